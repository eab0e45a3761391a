//! Checksums, segmentation and GRO as observed by a peer, a device and the stack.

mod any;
mod checksums;
mod fitting;
mod foreign;
mod frames;
mod gro_groups;
mod gro_rules;
mod ip;
#[path = "../model/mod.rs"]
mod model;
mod round_trip;
mod segmentation;
mod tunnels;
