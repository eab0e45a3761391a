//! Configuration of a node: the typed [`model`] (of SAs and policies: crate `xfrm`), the TOML file that describes one, and the [steps](reload) from one
//! configuration to the next.
//!
//! - [`Config::from_toml`] checks a file as a whole: names are unique, routes lead to links that exist, keys have their
//!   algorithm's length. A [`ConfigError`] names the file, the line, the key and a value that would be right.
//! - [`reload`] pairs the items of two configurations and says which are added, removed, kept or changed in place.
//! - [`settings`] are the values that `sysctl` can change while the node runs; a file sets some of them.
//!
//! The daemon reads the file, opens links and applies a [`Change`]; nothing here does I/O. A file may be of any size that
//! fits in memory; limits of its items (256 links of the host, 2^20 SAs) are checked where they are read.
#![forbid(unsafe_code)]

pub mod bridge;
pub mod features;
mod file;
pub mod model;
pub mod protocols;
pub mod reload;
pub mod serde_display;
pub mod settings;

pub use file::ConfigError;
pub use model::Config;
pub use reload::Change;
