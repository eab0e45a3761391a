//! Modes and directions of SAs and policies, and limits of their databases.

use std::fmt;

/// Maximum number of SAs of a node.
pub const MAX_SAS: usize = 1 << 20;

/// Most templates that a policy may have (`XFRM_MAX_DEPTH`). One with so many is never satisfied: it can be added, but
/// there must be one fewer for it to be of use.
pub const MAX_TEMPLATES: usize = 6;

/// RFC 4301's modes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Mode {
    /// The payload of the packet is protected; its own IP header stays outside.
    Transport,
    /// The whole packet is protected, inside a new IP header.
    Tunnel,
}

/// Direction of an SA's packets, seen from this node: iproute2's `dir` of `ip xfrm state`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum SaDir {
    /// They are received and opened.
    In,
    /// They are sealed and sent.
    Out,
}

/// Direction of a policy's packets: Linux's `XFRM_POLICY_*`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Dir {
    /// To this node.
    In,
    /// Out of this node, forwarded or its own.
    Out,
    /// Through this node, judged as they came in.
    Fwd,
}

impl fmt::Display for SaDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
        })
    }
}
