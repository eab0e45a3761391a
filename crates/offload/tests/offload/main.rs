//! What a peer, a device and the stack can see of checksums, segmentation and GRO.

mod checksums;
mod fitting;
mod foreign;
mod frames;
mod gro_groups;
mod gro_rules;
mod round_trip;
mod segmentation;
