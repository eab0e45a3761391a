//! Place of an XDP program.

use serde::{Deserialize, Serialize};

/// Place where an AF_XDP link takes an interface's frames.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum XdpMode {
    /// In the driver if it supports XDP, else in the network stack.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the network stack, on any interface.
    Generic,
}

impl XdpMode {
    /// Every mode, by its word.
    pub const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("native", Self::Native), ("generic", Self::Generic)];
}
