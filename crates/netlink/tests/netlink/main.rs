//! Tests of the library from outside.

mod common;

mod ethtool;
mod hostile;
mod lifetimes;
mod netlink_xfrm;
mod numbers;
mod qdisc;
mod recorded;
mod saved;
