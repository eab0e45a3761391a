//! State of IKE for a tunnel, as the key manager tells it.

use serde::Serialize;

/// State of an IKE_SA, by charon's names.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum IkeState {
    /// There is no IKE_SA.
    None,
    /// A name that this program does not know.
    Unknown,
    Destroying,
    Deleting,
    Rekeyed,
    Passive,
    Created,
    Connecting,
    Rekeying,
    Established,
}

impl IkeState {
    pub(super) fn by_name(name: &[u8]) -> Self {
        match name {
            b"CREATED" => Self::Created,
            b"CONNECTING" => Self::Connecting,
            b"ESTABLISHED" => Self::Established,
            b"PASSIVE" => Self::Passive,
            b"REKEYING" => Self::Rekeying,
            b"REKEYED" => Self::Rekeyed,
            b"DELETING" => Self::Deleting,
            b"DESTROYING" => Self::Destroying,
            _ => Self::Unknown,
        }
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::None => "not connected",
            Self::Unknown => "in a state that fatpath does not know",
            Self::Destroying => "ends",
            Self::Deleting => "deletes its IKE_SA",
            Self::Rekeyed => "rekeyed",
            Self::Passive => "passive",
            Self::Created => "begins",
            Self::Connecting => "connecting",
            Self::Rekeying => "rekeying",
            Self::Established => "established",
        }
    }
}

/// State of IKE for a tunnel.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct IkeStatus {
    /// State of the IKE_SA.
    pub(super) state: IkeState,
    /// Text about the state.
    pub(super) text: String,
    /// Seconds since the IKE_SA was established.
    pub(super) established_secs: Option<u64>,
    /// Seconds until the IKE_SA is rekeyed.
    pub(super) rekey_secs: Option<u64>,
}
