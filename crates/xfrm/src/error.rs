//! Reasons to refuse an SA or a policy.

use std::fmt;
use std::net::IpAddr;

use base::PortId;

use crate::algorithm::AlgorithmError;
use crate::limits::{MAX_SAS, MAX_TEMPLATES, MAX_WINDOW};
use crate::mode::SaDir;

/// Reason for which an SA or a policy was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConfigError {
    /// The algorithm, its key or its integrity check value is invalid.
    Algorithm(AlgorithmError),
    /// Addresses are of different families.
    Family(IpAddr, IpAddr),
    /// SPI 0, which is invalid for an SA (RFC 4303 §2.1).
    SpiZero,
    /// A replay window above [`MAX_WINDOW`].
    ReplayWindow(u32),
    /// Extended sequence numbers without a replay window, in an SA that may receive.
    EsnWithoutWindow,
    /// An option, by iproute2's name, that is invalid in that direction.
    Direction(SaDir, &'static str),
    /// The direction of a key in use would be reversed.
    DirReversed,
    /// The SA or policy exists already.
    Exists,
    /// The SA does not exist.
    NotFound,
    /// Extended sequence numbers cannot be enabled or disabled under a key in use: the two ends would interpret each
    /// other's numbers differently.
    EsnChanged,
    /// The node has [`MAX_SAS`] SAs already.
    TooMany,
    /// The destination of an SA or a tunnel template is unspecified.
    NoDestination,
    /// More than [`MAX_TEMPLATES`] templates.
    Templates(usize),
    /// An optional tunnel in a policy of direction out: packets would leave in clear.
    OptionalTunnel,
    /// Source and destination of a selector are of different families.
    SelectorFamily,
    /// A UDP header around ESP cannot be added or removed under a key in use.
    EncapChanged,
    /// The SA has expired, and will be removed.
    NotValid,
    /// The lowest SPI of the range is above the highest.
    SpiRange(u32, u32),
    /// All SPIs of the range are in use.
    NoSpi,
    /// TFC padding in transport mode, whose receiver could not separate the padding from the packet.
    TfcTransport,
    /// `nat-follow` without a replay window: a replayed packet could move the peer's address.
    FollowWithoutWindow,
    /// Keepalives of an SA that may be inbound: they would be sent in the peer's name.
    KeepaliveWithoutDir,
    /// The direction of the offload differs from the SA's.
    OffloadDirection,
    /// An option, by iproute2's name, that is invalid for an SA on a device.
    Offload(&'static str),
    /// The link has no device with this offload.
    OffloadUnsupported(PortId),
    /// The device refused the SA, for this reason.
    OffloadFailed(PortId, &'static str),
    /// Packet offload, whose device has its own counters, cannot be enabled or disabled under a key in use.
    OffloadChanged,
    /// An option for NAT traversal, by its name, without a UDP header around ESP.
    WithoutEncap(&'static str),
}

impl From<AlgorithmError> for ConfigError {
    fn from(err: AlgorithmError) -> Self {
        Self::Algorithm(err)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Algorithm(err) => err.fmt(f),
            Self::Family(a, b) => write!(f, "{a} and {b} are of different families"),
            Self::SpiZero => f.write_str("an SPI is not 0"),
            Self::ReplayWindow(size) => write!(f, "replay-window {size} is above {MAX_WINDOW}"),
            Self::EsnWithoutWindow => f.write_str("esn needs a replay-window above 0"),
            Self::Direction(dir, option) => write!(f, "an SA of dir {dir} has no {option}"),
            Self::DirReversed => f.write_str("dir cannot be reversed under a key in use; give it a new SPI and key"),
            Self::Exists => f.write_str("it exists already"),
            Self::NotFound => f.write_str("it does not exist"),
            Self::EsnChanged => f.write_str("esn cannot change under a key that is in use; give it a new SPI and key"),
            Self::TooMany => write!(f, "there are {MAX_SAS} SAs already"),
            Self::NoDestination => f.write_str("a destination address is missing"),
            Self::Templates(n) => write!(f, "{n} templates are more than {MAX_TEMPLATES}"),
            Self::OptionalTunnel => f.write_str("in direction out only a transport template can be of level use"),
            Self::SelectorFamily => f.write_str("source and destination of a selector are of different families"),
            Self::EncapChanged => f.write_str("encap cannot come or go under a key in use; give it a new SPI and key"),
            Self::NotValid => f.write_str("it has expired"),
            Self::SpiRange(min, max) => write!(f, "the SPI {min:#x} is above {max:#x}"),
            Self::NoSpi => f.write_str("No SPI available in the requested range"),
            Self::TfcTransport => f.write_str("tfcpad is for tunnel mode alone"),
            Self::FollowWithoutWindow => f.write_str("nat-follow needs a replay-window above 0"),
            Self::KeepaliveWithoutDir => f.write_str("nat-keepalive-interval needs dir out"),
            Self::OffloadDirection => f.write_str("offload is not of the direction of the SA"),
            Self::Offload(option) => write!(f, "{option} cannot be offloaded"),
            Self::OffloadUnsupported(link) => write!(f, "link {} does not offload it", link.0),
            Self::OffloadFailed(link, why) => write!(f, "link {} does not offload it: {why}", link.0),
            Self::OffloadChanged => {
                f.write_str("packet offload cannot change under a key in use; give it a new SPI and key")
            }
            Self::WithoutEncap(option) => write!(f, "{option} is for an SA with encap alone"),
        }
    }
}

impl std::error::Error for ConfigError {}
