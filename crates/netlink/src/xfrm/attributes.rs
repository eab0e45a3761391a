//! Attributes of messages, and their policy table (Linux `xfrma_policy`).

use super::nums::attr;
use crate::attr::{AttrPolicy, Attrs, Kind, policy};

/// Highest attribute type, plus one.
const ATTRS: usize = 42;

/// The attributes of a message.
pub(super) type Attributes<'a> = Attrs<'a, ATTRS>;

/// Length and kind of each attribute.
pub(super) const POLICY: AttrPolicy<ATTRS> = policy(&[
    (attr::ALG_AUTH, Kind::Min(68)),
    (attr::ALG_CRYPT, Kind::Min(68)),
    (attr::ALG_COMP, Kind::Min(68)),
    (attr::ENCAP, Kind::Min(24)),
    (attr::TMPL, Kind::Min(64)),
    (attr::SA, Kind::Min(224)),
    (attr::POLICY, Kind::Min(168)),
    (attr::SEC_CTX, Kind::Min(8)),
    (attr::LTIME_VAL, Kind::Min(32)),
    (attr::REPLAY_VAL, Kind::Min(12)),
    (attr::REPLAY_THRESH, Kind::Int(4)),
    (attr::ETIMER_THRESH, Kind::Int(4)),
    (attr::SRCADDR, Kind::Min(16)),
    (attr::COADDR, Kind::Min(16)),
    (attr::LASTUSED, Kind::Int(8)),
    (attr::POLICY_TYPE, Kind::Min(6)),
    (attr::MIGRATE, Kind::Min(64)),
    (attr::ALG_AEAD, Kind::Min(72)),
    (attr::KMADDRESS, Kind::Min(40)),
    (attr::ALG_AUTH_TRUNC, Kind::Min(72)),
    (attr::MARK, Kind::Min(8)),
    (attr::TFCPAD, Kind::Int(4)),
    (attr::REPLAY_ESN_VAL, Kind::Min(24)),
    (attr::SA_EXTRA_FLAGS, Kind::Int(4)),
    (attr::PROTO, Kind::Int(1)),
    (attr::ADDRESS_FILTER, Kind::Min(36)),
    (attr::OFFLOAD_DEV, Kind::Min(8)),
    (attr::SET_MARK, Kind::Int(4)),
    (attr::SET_MARK_MASK, Kind::Int(4)),
    (attr::IF_ID, Kind::Int(4)),
    (attr::MTIMER_THRESH, Kind::Int(4)),
    (attr::SA_DIR, Kind::Int(1)),
    (attr::NAT_KEEPALIVE_INTERVAL, Kind::Int(4)),
    (attr::SA_PCPU, Kind::Int(4)),
]);
