//! Modes of SAs, directions of SAs and policies, with iproute2's keywords.

use serde::{Deserialize, Serialize};

/// RFC 4301's modes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The payload of the packet is protected; the packet's own IP header stays outside.
    Transport,
    /// The complete packet is protected, inside a new IP header.
    Tunnel,
}

/// Direction of an SA's packets on this node: iproute2's `dir` of `ip xfrm state`, Linux's `XFRM_SA_DIR_*`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SaDir {
    /// Packets are received and opened, for this node or for hosts behind it.
    In,
    /// Packets are sealed and sent.
    Out,
}

/// Direction of a policy's packets: Linux's `XFRM_POLICY_*`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Dir {
    /// To this node.
    In,
    /// Out of this node, forwarded or locally sent.
    Out,
    /// Through this node, checked as received.
    Fwd,
}

macro_rules! words {
    ($($type:ident { $($variant:ident $word:literal,)* })*) => {$(
        impl $type {
            /// Every value with iproute2's keyword.
            pub const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant),)*];

            /// iproute2's keyword.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    )*};
}

pub(crate) use words;

words! {
    Mode { Transport "transport", Tunnel "tunnel", }
    SaDir { In "in", Out "out", }
    Dir { In "in", Out "out", Fwd "fwd", }
}
