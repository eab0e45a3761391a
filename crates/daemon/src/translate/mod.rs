//! Translation between the terms of files and clients (`config`, `ctl`, `netlink`) and those of the crates that
//! implement them.

pub(crate) mod features;
pub(crate) mod fib;
pub(crate) mod reassembly;
