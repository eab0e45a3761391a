//! Vocabulary of the control plane: the typed model of a node, the file that describes one, the requests of the
//! control socket with their replies, and the text that shows them; and [`netlink`], which Linux's own tools speak.
//!
//! Nothing here does I/O. The daemon reads the file and serves the sockets.
#![forbid(unsafe_code)]

pub mod algorithm;
mod as_text;
pub mod bridge;
pub mod event;
pub mod features;
mod file;
pub mod ike;
mod key;
pub mod model;
pub mod netlink;
pub mod reload;
pub mod request;
pub mod stat_file;
pub mod state;
pub mod sysctl;
mod text;
pub mod trace;
pub mod xfrm;

pub use file::ConfigError;
pub use model::Config;
pub use reload::Change;
pub use request::{Reply, Request, Shown, What};
