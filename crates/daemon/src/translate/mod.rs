//! Conversion between the types of `config`, `ctl` and `netlink` and those of the datapath's crates.

pub(crate) mod features;
pub(crate) mod fib;
pub(crate) mod reassembly;
