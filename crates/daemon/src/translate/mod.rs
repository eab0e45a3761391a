//! Translation between the terms of `config`, `ctl` and `netlink`, in which files and programs speak, and those of the crates that do the work.

pub(crate) mod features;
pub(crate) mod fib;
pub(crate) mod reassembly;
