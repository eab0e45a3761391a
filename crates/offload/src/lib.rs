//! Part of fatpath.
#![forbid(unsafe_code)]

mod features;

pub use features::{CsumOffload, Features};
