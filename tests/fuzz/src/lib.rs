//! Bodies of the fuzz targets: each is a function of bytes, which a fuzzer (`cargo xtask fuzz`) runs on new inputs, and
//! the test `corpora` on those of `fuzz/corpus`, and on [mutations](mutation) of these.
//!
//! # Decides
//! Reading of bytes as packets, messages and operations, and invariants that hold for any of them: no panic, each packet
//! accounted for once, no memory or descriptor leaked, and agreement with a simple model where there is one.
//!
//! # Leaves to others
//! Programs with coverage counters and AddressSanitizer (`fuzz`, a workspace of its own), and models of packets, of
//! reassembly and of netlink, which property tests of their crates run, too.
//!
//! # Limits
//! 400 operations of an input at most.
//!
//! # Standards
//! No RFC.
#![forbid(unsafe_code)]

pub mod bridge;
pub mod capture_file;
pub mod config;
pub mod control;
pub mod databases;
pub mod esp_inside;
pub mod esp_open;
pub mod fleet;
pub mod gro;
pub mod gso;
pub mod host_side;
pub mod ibmveth;
pub mod ila;
pub mod neighbours;
pub mod netlink;
pub mod netlink_ila;
pub mod netlink_xfrm;
pub mod opener;
pub mod packet_ops;
pub mod path;
pub mod reassembly;
pub mod reassembly_ops;
pub mod reassembly_trains;
pub mod sealed;
pub mod sockets;
pub mod state;
pub mod vhost_messages;
pub mod vhost_rings;
pub mod vhost_state;
pub mod virtio_header;
pub mod wire_eth;
pub mod wire_icmp;
pub mod wire_ip;

pub mod mutation;

mod recorded;
mod structured;
mod vhost;

#[path = "../../../crates/netlink/tests/netlink/common/node.rs"]
mod node;
#[allow(dead_code, reason = "the crate's own tests use the rest")]
#[path = "../../../crates/offload/tests/model/mod.rs"]
mod offload_model;
#[allow(dead_code, reason = "the crate's own tests use the rest")]
#[path = "../../../crates/packet/tests/model/mod.rs"]
mod packet_model;
#[allow(dead_code, reason = "the crate's own tests use the rest")]
#[path = "../../../crates/reassembly/tests/model/mod.rs"]
mod reassembly_model;

/// A target: its name, and the function that runs one input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets, in order of their names.
pub const TARGETS: [Target; 33] = [
    ("bridge", bridge::target),
    ("capture_file", capture_file::target),
    ("config", config::target),
    ("control", control::target),
    ("databases", databases::target),
    ("esp_inside", esp_inside::target),
    ("esp_open", esp_open::target),
    ("fleet", fleet::target),
    ("gro", gro::target),
    ("gso", gso::target),
    ("host_side", host_side::target),
    ("ibmveth", ibmveth::target),
    ("ila", ila::target),
    ("neighbours", neighbours::target),
    ("netlink", netlink::target),
    ("netlink_ila", netlink_ila::target),
    ("netlink_xfrm", netlink_xfrm::target),
    ("opener", opener::target),
    ("packet_ops", packet_ops::target),
    ("path", path::target),
    ("reassembly", reassembly::target),
    ("reassembly_ops", reassembly_ops::target),
    ("reassembly_trains", reassembly_trains::target),
    ("sealed", sealed::target),
    ("sockets", sockets::target),
    ("state", state::target),
    ("vhost_messages", vhost_messages::target),
    ("vhost_rings", vhost_rings::target),
    ("vhost_state", vhost_state::target),
    ("virtio_header", virtio_header::target),
    ("wire_eth", wire_eth::target),
    ("wire_icmp", wire_icmp::target),
    ("wire_ip", wire_ip::target),
];
