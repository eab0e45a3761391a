//! Types of security associations, policies and algorithms, which the configuration file, netlink and the `ipsec` crate
//! share.
//!
//! # Decides
//! Forms of SAs and policies, under the names of Linux and iproute2: a [`SaConfig`] or a [`PolicyConfig`] is a plain
//! value that its reader fills in and the `ipsec` crate checks when it is added ([`ConfigError`]). One table ([`Aead`],
//! [`Enc`], [`Auth`]) holds the names of algorithms, lengths of their keys and ICVs.
//!
//! - **Selectors** are compared for each packet that no cache knows: [`Selector::matches`], [`Mark::matches`].
//! - **Inner MTU**: bytes that an SA adds to a packet ([`Overhead`]).
//! - **Keys** are zeroed when they are dropped, and `Debug` shows no byte of them ([`Key`]).
//! - **Requests**: an SA or a policy owns the request that made it ([`Request`]), in a type of the control plane.
//!
//! # Leaves to others
//! Formats in which SAs are read and shown (crates `config`, `netlink` and `ctl`), and everything that changes while
//! packets pass: sequence numbers, replay windows, counters, ciphers (crate `ipsec`).
//!
//! # Limits
//! [`MAX_SAS`] SAs of a node (2^20), [`MAX_TEMPLATES`] templates in a policy (6), [`MAX_WINDOW`] packets in a replay
//! window (4096), [`MAX_KEY`] bytes in a key (4096), [`MIN_ICV_BITS`] bits in an ICV (32). No AH, no IPComp.
//!
//! # Standards
//! RFC 4301 §4.4.1 (policies, selectors) and §4.4.2 (SAs); RFC 4303 §2.1 (SPI); RFC 3948 §4 (keepalives) and its UDP
//! header. Algorithms have the names of Linux's `net/xfrm/xfrm_algo.c`: RFC 4106, RFC 4309, RFC 4543, RFC 7634 (AEADs);
//! RFC 2410, RFC 3602, RFC 3686 (ciphers); RFC 2403, RFC 2404, RFC 2857, RFC 3566, RFC 4494, RFC 4868 (authentication).
#![forbid(unsafe_code)]

mod algorithm;
mod error;
mod flowi;
mod key;
mod lifetime;
mod limits;
mod mark;
mod mode;
mod offload;
mod overhead;
mod policy;
mod request;
mod sa;
mod selector;
mod table;

pub use algorithm::{Algorithm, AlgorithmError, AuthConfig};
pub use error::ConfigError;
pub use flowi::Flowi;
pub use key::Key;
pub use lifetime::{Lifetime, Limits};
pub use limits::{MAX_SAS, MAX_TEMPLATES, MAX_WINDOW};
pub use mark::Mark;
pub use mode::{Dir, Mode, SaDir};
pub use offload::{Offload, OffloadMode};
pub use overhead::Overhead;
pub use policy::{Action, Level, PolicyConfig, PolicyKey, Template};
pub use request::Request;
pub use sa::{AeventLimits, Aevents, EspInUdp, NatTraversal, SaConfig, SaFlags};
pub use selector::{PortMask, Selector};
pub use table::{Aead, Auth, Enc, MAX_KEY, MIN_ICV_BITS, Name, Spec};
