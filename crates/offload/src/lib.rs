//! Part of fatpath.
#![forbid(unsafe_code)]

pub mod checksum;
mod features;
mod fit;
pub mod gro;
pub mod gso;
mod headers;

pub use features::{CsumOffload, Features};
pub use fit::fit;
pub use gro::Gro;
