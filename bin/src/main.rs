//! The `fatpath` program: the daemon and its command line.

fn main() {}
