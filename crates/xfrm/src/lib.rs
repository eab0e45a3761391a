//! Types of security associations, policies and algorithms, which the configuration file, netlink and the `ipsec` crate share.
//!
//! The crate decides what an SA or a policy can be, under the names of Linux and iproute2: a [`SaConfig`] or a [`PolicyConfig`]
//! is a plain value that its reader fills in and the `ipsec` crate checks when it is added ([`ConfigError`]). One table
//! ([`Aead`], [`Enc`], [`Auth`]) holds the names of algorithms, lengths of their keys and ICVs.
//!
//! It leaves to others the formats in which SAs are read and shown (`config`, `netlink`, `ctl`) and everything that changes while
//! packets pass: sequence numbers, replay windows, counters, ciphers (`ipsec`).
//!
//! - **Selectors** are compared for each packet that no cache knows: [`Selector::matches`], [`Mark::matches`].
//! - **Keys** are zeroed when they are dropped, and `Debug` shows no byte of them ([`Key`]).
//! - **Requests**: an SA or a policy owns the request that made it ([`Request`]), in a type of the control plane.
//!
//! Limits: no AH, no IPComp; [`MAX_SAS`] SAs, [`MAX_TEMPLATES`] templates in a policy, [`MAX_WINDOW`] packets in a replay window,
//! [`MAX_KEY`] bytes in a key.
//!
//! Implements the data of RFC 4301 §4.4.1 (policies, selectors) and §4.4.2 (SAs), and RFC 3948's header; algorithms as in
//! Linux's `net/xfrm/xfrm_algo.c`.
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
pub use policy::{Action, Level, PolicyConfig, PolicyKey, Template};
pub use request::Request;
pub use sa::{AeventLimits, Aevents, EspInUdp, NatTraversal, SaConfig, SaFlags};
pub use selector::{PortMask, Selector};
pub use table::{Aead, Auth, Enc, MAX_KEY, MIN_ICV_BITS, Name, Spec};
