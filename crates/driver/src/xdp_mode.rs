//! Place of an XDP program.

/// Place where an AF_XDP link takes an interface's frames.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
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
