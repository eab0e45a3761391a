//! IPsec: security associations, policies, and ESP for fat packets.
//!
//! # Decides
//! - SAs by which a flow is protected, and whether a received packet had the protection that its policy demands:
//!   [`Ipsec::lookup`], [`Ipsec::check`].
//! - Bytes on the wire: [`Ipsec::seal`] encrypts and [`Ipsec::open`] decrypts a packet.
//! - Ends of SAs and requests for new ones: time is passed in ([`Ipsec::handle_timeout`]), lifetimes end, softly and
//!   hard, and a listener ([`Ipsec::set_listener`]) takes [`Event`]s.
//!
//! # Leaves to others
//! Types of SAs, policies and algorithms (crate `xfrm`); routing, enforcement of the inner MTU ([`Sa::inner_mtu`]) and
//! ICMP errors (crate `datapath`); fragmentation and reassembly (crate `reassembly`); GRO of decrypted packets (crate
//! `offload`); negotiation of keys (an IKE daemon, by crate `netlink`).
//!
//! # Limits
//! - No AH, no IPComp. [`xfrm::MAX_SAS`] SAs (2^20), a replay window of [`xfrm::MAX_WINDOW`] packets (4096). Look-ups
//!   cost the same among ten SAs or policies and among many thousands, also with a cold cache.
//! - [`MAX_HELD`]: 1024 packets wait for SAs, of at most [`MAX_HELD_BYTES`] (8 MiB), 101 for one policy (`MAX_PER_POLICY` in `hold.rs`). `MAX_LARVAE` in
//!   `sad/larval.rs`: 16 384 SAs that have been requested.
//! - [`MAX_EVENTS`]: 1024 queued events; later ones are lost, and counted. Details of 1024 dropped packets
//!   (`MAX_WAITING` in `esp_drop.rs`) and 64 additions and removals of SAs (in `sad/sa_changes.rs`) wait for a reader.
//! - 64 datagrams in a UDP train (`MAX_TRAIN` in `seal_job.rs`); 256 tasks queued for crypto threads (`WAITING` in
//!   `crypto/pool.rs`), beyond which the caller's thread runs them.
//!
//! # Standards
//! RFC 4301 §4.4 (databases), §5 (processing), §8.2.1 (path MTU); RFC 4303 (ESP with extended sequence numbers); RFC
//! 3948 §2 to §4 (ESP in UDP, keepalives); RFC 6040 (congestion marks); AES in GCM (RFC 4106), CCM (RFC 4309), CBC (RFC
//! 3602) and CTR (RFC 3686), GMAC (RFC 4543), ChaCha20-Poly1305 (RFC 7634), NULL (RFC 2410), AES-CMAC (RFC 4493),
//! AES-XCBC-MAC (RFC 3566), and Linux's other authentication algorithms. Counters and corner cases are those of Linux's
//! XFRM.
//!
//! # Operation
//! - **Out**: one policy look-up and one reservation of sequence numbers per fat packet. Its segments are written
//!   straight into the frames of a large page, encrypted on the way there, or copied once and encrypted in place. The
//!   result is a UDP train ([`Train::Udp`]), packets that share a page ([`Train::Frames`]), or single ones
//!   ([`Train::None`]).
//! - **In**: packets of a train are split by reference and decrypted in place; AES-GCM decrypts a packet in pieces from
//!   these, other ciphers after a copy. Every copy is counted.
//! - **Replay**: checked before the ICV and marked after it, so a forgery never moves the window.
//! - **Initialisation vectors** come from [`sequence`] alone. Debug builds keep a register of every pair of key and
//!   nonce per thread and panic when one repeats.
//!
//! The files form layers, each of which uses only those before it: `engine`; `sa`; `device` and `events`; `sad` and
//! `spd`; jobs (`open_job`, `seal_job`) and `esp_drop`; `crypto`; `nat`, `resolve`, `check`; `ipsec` with [`Ipsec`]; and on top of it
//! `input`, `output`, `policy`, `keepalive` and `offload_decision`.
//!
//! A program that uses this crate sets `AWS_LC_SYS_CFLAGS=-mtune=skylake` when it is built for x86-64, as this
//! repository does: AES-GCM of fat packets takes 7 % less (docs/decisions/0034).
#![deny(unsafe_code)]

mod admit;
mod check;
mod copy_sum;
pub mod crypto;
pub mod device;
pub mod engine;
mod esp_drop;
mod events;
mod flow_cache;
mod hash_index;
mod hold;
mod icmp_quote;
mod input;
mod ipsec;
mod keepalive;
mod nat;
#[cfg(debug_assertions)]
mod nonces;
mod offload_decision;
mod open_job;
mod outer;
mod output;
mod pieces;
mod policy;
pub mod replay;
mod resolve;
mod sa;
pub mod sad;
mod seal_job;
mod segmenter;
pub mod sequence;
mod shared;
pub mod spd;
mod timers;

pub use esp_drop::EspDrop;
pub use events::{Acquire, Event, MAX_EVENTS, PolicyExpired, SaExpired};
pub use hold::{MAX_HELD, MAX_HELD_BYTES, Released};
pub use input::{DecryptSink, Decrypted, ENCAP_PEEK, FnSink, InnerPacket, Opened, RunSummary, is_esp_in_udp};
pub use ipsec::Ipsec;
pub use keepalive::{KEEPALIVE, Keepalive};
pub use policy::Decision;
pub use resolve::Bundle;
pub use sa::{Aevent, Mapping, Sa, SaStats, State};
pub use sad::sa_changes::{SaChange, SaChangeKind};
pub use sad::spi::SpiRequest;
pub use sad::{Larval, MAX_SUMS, SaCounts, SaSum, SaSumKey};
pub use seal_job::Train;
pub use shared::SharedChange;
pub use spd::PolicyId;
