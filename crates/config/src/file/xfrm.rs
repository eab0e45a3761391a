//! Marks, limits, and settings of all SAs and policies.

use std::time::Duration;

use xfrm::{Lifetime, Limits, Mark};

use super::document::Document;
use super::reader::{Result, Table, Value};
use crate::model::{PolicyDefault, XfrmOptions};

pub(super) const OPTION_KEYS: &[&str] = &["larval-drop", "acq-expires", "aevent-rseqth", "aevent-etime"];
pub(super) const DEFAULT_KEYS: &[&str] = &["in", "out", "fwd"];

const USE_KEYS: [&str; 4] = ["byte-soft", "byte-hard", "packet-soft", "packet-hard"];
const TIME_KEYS: [&str; 4] = ["time-soft", "time-hard", "time-use-soft", "time-use-hard"];

/// Reads a mark: a number with all bits significant, or a table with a `mask`.
pub(super) fn mark(table: &Table<'_>, key: &str) -> Result<Mark> {
    let Some(value) = table.get(key) else { return Ok(Mark::ANY) };
    if value.is_number() {
        return Ok(Mark::exactly(value.number(0..=u32::MAX)?));
    }
    let table = value.table(&["value", "mask"])?;
    let bits = table.need("value", "use a number, such as 0x1")?.number(0..=u32::MAX)?;
    let mask = table.get("mask").map_or(Ok(u32::MAX), |value| value.number(0..=u32::MAX))?;
    if bits & !mask != 0 {
        return Err(value.error(format!("{bits:#x} has bits outside of the mask {mask:#x}; use {:#x}", bits & mask)));
    }
    Ok(Mark { value: bits, mask })
}

/// Reads the number of an XFRM interface, and refuses any but 0, which is none: no kind of link is an XFRM interface, so an SA with a number
/// would match no packet, and packets of a policy with a number would pass in clear.
pub(super) fn if_id(table: &Table<'_>) -> Result<u32> {
    let Some(value) = table.get("if_id") else { return Ok(0) };
    match value.number(0..=u32::MAX)? {
        0 => Ok(0),
        _ => Err(value.error("is for an XFRM interface, and no kind of link is one; take it out")),
    }
}

/// Lifetime of an SA.
pub(super) fn sa_lifetime(table: &Table<'_>) -> Result<Lifetime> {
    lifetime(table, &[USE_KEYS, TIME_KEYS].concat())
}

/// Lifetime of a policy, which has time limits only (Linux `xfrm_policy_timer`).
pub(super) fn policy_lifetime(table: &Table<'_>) -> Result<Lifetime> {
    lifetime(table, &TIME_KEYS)
}

fn lifetime(table: &Table<'_>, keys: &[&str]) -> Result<Lifetime> {
    let Some(value) = table.get("limit") else { return Ok(Lifetime::default()) };
    let table = value.table(keys)?;
    let number = |key: String| table.get(&key).map(|value: Value<'_>| value.number(1..=u64::MAX)).transpose();
    let limits = |end: &str| {
        Ok(Limits {
            bytes: number(format!("byte-{end}"))?.unwrap_or(u64::MAX),
            packets: number(format!("packet-{end}"))?.unwrap_or(u64::MAX),
            added: number(format!("time-{end}"))?.map(Duration::from_secs),
            used: number(format!("time-use-{end}"))?.map(Duration::from_secs),
        })
    };
    Ok(Lifetime { soft: limits("soft")?, hard: limits("hard")? })
}

/// `[ipsec]`.
pub(super) fn options(root: &Document<'_>) -> Result<XfrmOptions> {
    let mut options = XfrmOptions::default();
    let Some(value) = root.get("ipsec") else { return Ok(options) };
    let table = value.table(OPTION_KEYS)?;
    if let Some(value) = table.get("larval-drop") {
        options.larval_drop = value.bool()?;
    }
    if let Some(value) = table.get("acq-expires") {
        options.acq_expires = value.number(1..=u32::MAX)?;
    }
    if let Some(value) = table.get("aevent-rseqth") {
        options.aevent_rseqth = value.number(0..=u32::MAX)?;
    }
    if let Some(value) = table.get("aevent-etime") {
        options.aevent_etime = value.number(0..=u32::MAX)?;
    }
    Ok(options)
}

/// `[policy-default]`.
pub(super) fn policy_default(root: &Document<'_>) -> Result<PolicyDefault> {
    let Some(value) = root.get("policy-default") else { return Ok(PolicyDefault::default()) };
    let table = value.table(DEFAULT_KEYS)?;
    let block = |key| table.get(key).map_or(Ok(false), |value| value.word(&[("accept", false), ("block", true)]));
    Ok(PolicyDefault { block_in: block("in")?, block_out: block("out")?, block_fwd: block("fwd")? })
}
