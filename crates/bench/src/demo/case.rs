//! The cases of all demos.

use super::peer::Peer;
use super::{fragments, ila, switch};

/// The paths of the same stream.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum DemoCase {
    /// Between the hosts over veth alone: the ceiling.
    Veth,
    /// Through the tunnel with every offload off.
    Thin,
    /// Through the tunnel with packets kept fat.
    Fat,
    /// The same while routes and SAs are added and deleted.
    Storm,
    /// Through two loops without a datapath.
    Bare,
    /// Between sockets of the gateways' host sides.
    Large(fragments::FragmentsSetting),
    /// Between guests of a bridge.
    Switch(switch::SwitchSetting),
    /// Requests and responses between sockets of the gateways' host sides.
    Requests(ila::IlaSetting),
    /// Through another tunnel.
    Peer(Peer),
}

impl DemoCase {
    /// Cases of every demo, in the order in which a round measures them.
    pub(super) const OWN: [Self; 3] = [Self::Veth, Self::Thin, Self::Fat];

    /// Cases of a demo with the limit of a tunnel in user space.
    pub(super) const BARE: [Self; 4] = [Self::Veth, Self::Thin, Self::Fat, Self::Bare];

    /// Cases of a demo of a storm.
    pub(super) const STORM: [Self; 2] = [Self::Fat, Self::Storm];

    /// Cases of a demo of a switch, and the tunnel of every demo to compare with.
    pub(super) const SWITCH: [Self; 7] = [
        Self::Switch(switch::SwitchSetting::Bare),
        Self::Switch(switch::SwitchSetting::Thin),
        Self::Switch(switch::SwitchSetting::Fat),
        Self::Switch(switch::SwitchSetting::Esp),
        Self::Switch(switch::SwitchSetting::Wire),
        Self::Switch(switch::SwitchSetting::WireGro),
        Self::Fat,
    ];

    /// Cases of a demo of large datagrams.
    pub(super) fn datagrams() -> Vec<Self> {
        [Self::Veth].into_iter().chain(fragments::FragmentsSetting::ALL.map(Self::Large)).collect()
    }

    /// Cases of a demo of requests.
    pub(super) fn requests() -> Vec<Self> {
        ila::IlaSetting::ALL.map(Self::Requests).to_vec()
    }

    /// Name in the report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Veth => "veth",
            Self::Thin => "aes-gcm-256/thin",
            Self::Fat => "aes-gcm-256/fat",
            Self::Storm => "aes-gcm-256/storm",
            Self::Bare => "aes-gcm-256/bare",
            Self::Large(setting) => setting.name(),
            Self::Requests(setting) => setting.name(),
            Self::Switch(setting) => setting.name(),
            Self::Peer(peer) => peer.name(),
        }
    }

    /// Tells whether another program carries the stream.
    pub(super) fn is_peer(self) -> bool {
        match self {
            Self::Peer(_) => true,
            Self::Switch(setting) => switch::SwitchSetting::PEERS.contains(&setting),
            _ => false,
        }
    }

    /// Name of the case's ratio to fat, if there is one.
    pub(super) fn ratio(self) -> Option<String> {
        match self {
            Self::Fat | Self::Storm | Self::Large(_) | Self::Switch(_) | Self::Requests(_) => None,
            Self::Thin => Some("fat/thin".to_owned()),
            Self::Bare => Some("fat/bare".to_owned()),
            Self::Veth | Self::Peer(_) => Some(format!("fat/{}", self.name())),
        }
    }
}
