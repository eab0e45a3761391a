//! Configuration of a node: the typed model, the TOML file that describes one, and the steps from one configuration to
//! the next.
//!
//! # Decides
//! - The [`model`]: links, addresses, routes, VRFs, bridges, queueing disciplines and limits.
//! - Valid files: [`Config::from_toml`] checks a file as a whole. Names are unique, routes lead to links that exist,
//!   keys have their algorithm's length. A [`ConfigError`] names the file, the line, the key and a value that would be
//!   right.
//! - Differences of two configurations: [`reload`] pairs their items and says which are added, removed, kept or changed
//!   in place.
//! - Values that `sysctl` can change while the node runs: [`settings`]; a file sets some of them.
//!
//! # Leaves to others
//! Types of SAs and policies (crate `xfrm`), kinds of links with a driver (crate `driver`), reading of files, opening
//! of links and application of a [`Change`] (crate `daemon`). Nothing here does I/O.
//!
//! # Limits
//! A file may be of any size that fits in memory (crate `daemon` reads at most 256 MiB). Limits of its items are
//! checked where the items are read, in `file/`:
//!
//! - names of 15 bytes and paths of sockets of 107 (`link.rs`); MTUs from 68 (`MIN_MTU`, `MIN_MTU_V6`);
//! - [`HostConfig::MAX_LINKS`](model::HostConfig::MAX_LINKS) devices of the host side (256);
//! - 64 crypto threads (`MAX_WORKERS` in `crypto.rs`); 2^20 learnt addresses of a bridge's port (`MAX_FDB_LIMIT` in
//!   `bridge.rs`);
//! - 5 templates of a policy (`MAX_TEMPLATES` in `ipsec.rs`). The number of SAs ([`xfrm::MAX_SAS`], 2^20) is checked by
//!   crate `ipsec`, which adds them;
//! - 1 TiB for waiting fragments, for an hour (`MAX_THRESH`, `MAX_TIME` in `reassembly.rs`).
//!
//! # Standards
//! No RFC; the smallest MTUs are those of RFC 791 §3.2 and RFC 8200 §5.
#![forbid(unsafe_code)]

pub mod bridge;
pub mod device;
pub mod features;
mod file;
pub mod model;
pub mod protocols;
pub mod reload;
pub mod serde_display;
pub mod settings;

pub use file::{ConfigError, Findings, Meter};
pub use model::Config;
pub use reload::Change;
