//! IPsec: security associations, policies, and ESP for fat packets.
//!
//! [`Ipsec`] decides by which SAs a flow is protected ([`lookup`](Ipsec::lookup), [`check`](Ipsec::check)), and
//! encrypts and decrypts its packets ([`seal`](Ipsec::seal), [`open`](Ipsec::open)). Left to its caller: routing, the
//! inner MTU's enforcement ([`Sa::inner_mtu`]), fragmentation and reassembly, and GRO of decrypted packets.
//!
//! - **Out**: one policy look-up and one reservation of sequence numbers per fat packet. Its segments are written
//!   straight into the frames of a large page, encrypted on the way there, or copied once and encrypted in place. The
//!   result is a UDP train ([`Train::Udp`]), packets that share a page ([`Train::Frames`]), or single ones ([`Train::None`]).
//! - **In**: packets of a train are split by reference and decrypted in place; AES-GCM decrypts a packet in pieces from
//!   these, other ciphers after a copy. Every copy is counted.
//! - **Replay**: checked before the ICV and marked after it, so a forgery never moves the window.
//! - **Time** is passed in ([`handle_timeout`](Ipsec::handle_timeout)): lifetimes end, softly and hard, and a listener
//!   ([`set_listener`](Ipsec::set_listener)) takes [`Event`]s, among them requests for SAs that packets need.
//! - **Look-ups** cost the same among ten SAs or policies and among many thousands, also with a cold cache.
//! - **Initialisation vectors** come from [`sequence`] alone. Debug builds keep a register of every pair of key and
//!   nonce per thread and panic when one repeats.
//!
//! Crate `xfrm` has the types of what is configured: SAs, policies, algorithms. The files form layers, each of which uses only
//! those before it: `engine`; `sa`; `device` and `events`; `sad` and
//! `spd`; jobs (`open_job`, `seal_job`); `crypto`; `nat`, `resolve`, `check`; `ipsec` with [`Ipsec`]; and on top of it `input`,
//! `output`, `policy`, `keepalive` and `offload_decision`.
//!
//! A program that uses this crate sets `AWS_LC_SYS_CFLAGS=-mtune=skylake` when it is built for x86-64, as this
//! repository does: AES-GCM of fat packets takes 7 % less (docs/decisions/0034).
//!
//! Implements RFC 4301 (policies), 4303 (ESP with extended sequence numbers), 3948 (ESP in UDP); AES in GCM (4106), CCM
//! (4309), CBC (3602) and CTR (3686), GMAC (4543), ChaCha20-Poly1305 (7634), NULL (2410), and Linux's authentication
//! algorithms. Counters and corner cases are those of Linux's XFRM. Limits: no AH, no IPComp.
#![deny(unsafe_code)]

mod admit;
mod check;
mod copy_sum;
pub mod crypto;
pub mod device;
pub mod engine;
mod events;
mod flow_cache;
mod hash_index;
mod hold;
mod icmp_quote;
mod input;
mod ipsec;
mod keepalive;
pub mod mtu;
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
pub mod spd;
mod timers;

pub use events::{Acquire, Event, MAX_EVENTS, PolicyExpired, SaExpired};
pub use hold::{MAX_HELD, Released};
pub use input::{DecryptSink, Decrypted, ENCAP_PEEK, FnSink, InnerPacket, Opened, RunSummary, is_esp_in_udp};
pub use ipsec::Ipsec;
pub use keepalive::{KEEPALIVE, Keepalive};
pub use policy::Decision;
pub use resolve::Bundle;
pub use sa::{Aevent, Mapping, Sa, SaStats, State};
pub use sad::Larval;
pub use sad::spi::SpiRequest;
pub use seal_job::Train;
pub use spd::PolicyId;
