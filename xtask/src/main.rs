//! Chores of this repository: `cargo xtask test`, `cargo xtask check`.

fn main() {}
