//! A simulation of nodes and what lies between them: for tests, and repeatable to the last bit.
//!
//! A [`World`] holds [`Node`]s, which are a [`datapath::Datapath`] and its memory, and [`Host`]s, which are all others. Their
//! ends are joined by [`Wire`]s that lose, reorder, duplicate and delay frames, or take none for a while. Time is
//! virtual: [`World::run_until`] goes from event to event, and every chance comes from one seed, which is printed when
//! a test fails.
//!
//! A wire is also the device at its ends. It checks that what it is given is what its features allow, cuts fat packets
//! and completes checksums as hardware does, and checks that nothing longer than its MTU crosses it ([`Medium`]).
//!
//! A node's ciphers may be with a [`SlowCrypto`], which is busy, slow, and gives nothing back in order.
//!
//! A link's device may offload ESP: [`SoftDevice`] does so in software, and can refuse, be busy, or lie.
//!
//! [`World::watch`] captures every frame of a wire.
//!
//! An [`Oracle`] holds IPsec's databases beside plain lists, and a [`Maze`] whatever may be done to a packet: both take
//! what [`Choices`] say, which are a fuzzer's or a seed's.
//!
//! [`Flow`] makes packets, finished ones and fat ones, whose every payload byte tells its place in the stream.
#![forbid(unsafe_code)]

mod choices;
mod config;
mod crypto;
mod device;
mod flow;
mod host;
mod inside;
mod maze;
mod node;
mod oracle;
mod rng;
mod soft_device;
mod watch;
mod world;

pub use choices::Choices;
pub use config::{esp, link_pair, policy, template, unique_mask};
pub use crypto::SlowCrypto;
pub use device::{Medium, Wire, WireStats};
pub use flow::{Flow, stream_byte};
pub use host::Host;
pub use inside::esp_inside;
pub use maze::Maze;
pub use node::{Node, PortOptions};
pub use oracle::Oracle;
pub use rng::Rng;
pub use soft_device::{Faults, SoftDevice, SoftStats};
pub use watch::{Fate, Seen};
pub use world::{End, World};
