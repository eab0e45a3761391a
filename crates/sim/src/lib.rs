//! Deterministic simulation of nodes, hosts and wires, for tests and benchmarks.
//!
//! # Decides
//! - Order of events: a [`World`] holds [`Node`]s, which are a [`datapath::Datapath`] and its memory, and [`Host`]s.
//!   Time is virtual: [`World::run_until`] goes from event to event, and all randomness comes from one seed, which is
//!   printed when a test fails.
//! - Shards: a [`Cluster`] is several datapaths that are one node, whose turns a seed chooses.
//! - Fate of frames: [`Wire`]s join their ends, and lose, reorder, duplicate and delay frames, or take none for a
//!   while. A wire is also the device at its ends. It checks each packet against its features, segments fat packets and
//!   completes checksums as hardware does, and checks that no frame exceeds its MTU ([`Medium`]). [`World::watch`]
//!   captures every frame of a wire.
//! - Behaviour of devices: a node's ciphers may be on a [`SlowCrypto`], which is busy, slow, and finishes tasks in any
//!   order. A link's device may offload ESP: [`SoftDevice`] does so in software, and can be configured to refuse, be
//!   busy, or lie.
//! - Expected results: an [`Oracle`] checks IPsec's databases against plain lists, and a [`FullNode`] checks that each
//!   packet ends somewhere; [`Choices`] drive both, from a fuzzer or a seed.
//! - Contents of packets: [`Flow`] makes finished ones and fat ones, whose every payload byte depends on its offset in
//!   the stream.
//!
//! # Leaves to others
//! Packets themselves (crate `packet`), and all behaviour of nodes (crate `datapath`).
//!
//! # Limits
//! One thread. A device hands over at most 64 frames at once (`BURST` in `world.rs`); a [`SlowCrypto`] has at most 64
//! tasks in flight (`ROOM` in `crypto.rs`).
//!
//! # Standards
//! No RFC.
#![forbid(unsafe_code)]

mod addresses;
mod choices;
mod cluster;
mod config;
mod crypto;
mod device;
mod flow;
mod full_node;
mod host;
mod malformed_inner;
mod node;
mod oracle;
mod rng;
mod soft_device;
mod watch;
mod world;

pub use addresses::AddAddress;
pub use choices::Choices;
pub use cluster::Cluster;
pub use config::{esp, link_pair, policy, template, unique_mask};
pub use crypto::SlowCrypto;
pub use device::{Medium, Wire, WireStats};
pub use flow::{Flow, stream_byte};
pub use full_node::FullNode;
pub use host::Host;
pub use malformed_inner::malformed_inner;
pub use node::{Node, PortOptions};
pub use oracle::Oracle;
pub use rng::Rng;
pub use soft_device::{Faults, SoftDevice, SoftStats};
pub use watch::{Fate, Seen};
pub use world::{End, World};
