//! Parts that SAs and policies have in common, in iproute2's words: marks and limits; and settings of all SAs.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// Marked packets that are meant, or the mark that packets get.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct Mark {
    /// The bits.
    pub value: u32,
    /// Bits that are compared.
    pub mask: u32,
}

/// When an SA or a policy ends (`limit`). `None` is never.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct Limit {
    /// Limits at which the listener is told.
    pub soft: Bounds,
    /// Limits at which it ends.
    pub hard: Bounds,
}

/// The limits of one kind.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct Bounds {
    /// Protected bytes.
    pub bytes: Option<u64>,
    /// Protected packets.
    pub packets: Option<u64>,
    /// Seconds since it was added.
    pub add_secs: Option<u64>,
    /// Seconds since it was used: an SA for the first time, a policy for the last.
    pub use_secs: Option<u64>,
}

/// Age, in seconds; `None` for what has not happened yet.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Ages {
    /// Since it was added.
    pub add_secs: Option<u64>,
    /// Since it was used: an SA for the first time, a policy for the last.
    pub use_secs: Option<u64>,
}

/// Default action on packets that no policy is for, by direction: `ip xfrm policy setdefault`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PolicyDefault {
    /// Whether those to this node are dropped.
    pub block_in: bool,
    /// Whether those out of it are dropped.
    pub block_out: bool,
    /// Whether those through it are dropped.
    pub block_fwd: bool,
}

/// Settings of all SAs: Linux's `net.core.xfrm_*`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct XfrmOptions {
    /// Packets whose SA is missing are dropped, and do not wait for it.
    pub larval_drop: bool,
    /// Seconds that an SA may take which was asked for.
    pub acq_expires: u32,
    /// Packets after which an SA's numbers are told of; 0 for never.
    pub aevent_rseqth: u32,
    /// Tenths of a second after which they are told of again; 0 for never.
    pub aevent_etime: u32,
}

impl Default for XfrmOptions {
    fn default() -> Self {
        Self { larval_drop: true, acq_expires: 30, aevent_rseqth: 2, aevent_etime: 10 }
    }
}

impl Display for Mark {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.value, self.mask)
    }
}

impl Display for Limit {
    /// As iproute2's `xfrm_lifetime_print`, if there is a limit.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return Ok(());
        }
        let number = |limit: Option<u64>| limit.map_or("(INF)".to_owned(), |limit| limit.to_string());
        let secs = |limit: Option<u64>| limit.unwrap_or(0);
        let Self { soft, hard } = self;
        writeln!(f, "\tlifetime config:")?;
        writeln!(f, "\t  limit: soft {}(bytes), hard {}(bytes)", number(soft.bytes), number(hard.bytes))?;
        writeln!(f, "\t  limit: soft {}(packets), hard {}(packets)", number(soft.packets), number(hard.packets))?;
        writeln!(f, "\t  expire add: soft {}(sec), hard {}(sec)", secs(soft.add_secs), secs(hard.add_secs))?;
        writeln!(f, "\t  expire use: soft {}(sec), hard {}(sec)", secs(soft.use_secs), secs(hard.use_secs))
    }
}

impl Display for Ages {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ago = |secs: Option<u64>| secs.map_or("-".to_owned(), |secs| format!("{secs}s ago"));
        writeln!(f, "\t  add {} use {}", ago(self.add_secs), ago(self.use_secs))
    }
}
