//! Marks, limits, and what is said of all SAs and policies.

use super::document::Document;
use super::reader::{Result, Table, Value};
use crate::xfrm::{Bounds, Limit, Mark, PolicyDefault, XfrmOptions};

pub(super) const OPTION_KEYS: &[&str] = &["larval-drop", "acq-expires", "aevent-rseqth", "aevent-etime"];
pub(super) const DEFAULT_KEYS: &[&str] = &["in", "out", "fwd"];

const USE_KEYS: [&str; 4] = ["byte-soft", "byte-hard", "packet-soft", "packet-hard"];
const TIME_KEYS: [&str; 4] = ["time-soft", "time-hard", "time-use-soft", "time-use-hard"];

/// A mark: a number, of which all bits count, or a table with a `mask`.
pub(super) fn mark(table: &Table<'_>, key: &str) -> Result<Option<Mark>> {
    let Some(value) = table.get(key) else { return Ok(None) };
    if value.is_number() {
        return Ok(Some(Mark { value: value.number(0..=u32::MAX)?, mask: u32::MAX }));
    }
    let table = value.table(&["value", "mask"])?;
    let bits = table.need("value", "use a number, such as 0x1")?.number(0..=u32::MAX)?;
    let mask = table.get("mask").map_or(Ok(u32::MAX), |value| value.number(0..=u32::MAX))?;
    if bits & !mask != 0 {
        return Err(value.error(format!("{bits:#x} has bits outside of the mask {mask:#x}; use {:#x}", bits & mask)));
    }
    Ok(Some(Mark { value: bits, mask }))
}

/// The number of an XFRM interface, which no kind of link is: what is for one alone would be for no packet, and what a
/// policy is to protect would pass in clear.
pub(super) fn if_id(table: &Table<'_>) -> Result<u32> {
    match table.get("if_id") {
        Some(value) => Err(value.error("is for an XFRM interface, and no kind of link is one; take it out")),
        None => Ok(0),
    }
}

/// The limits of an SA.
pub(super) fn sa_limit(table: &Table<'_>) -> Result<Limit> {
    limit(table, &[USE_KEYS, TIME_KEYS].concat())
}

/// The limits of a policy, which are those of time (Linux `xfrm_policy_timer`).
pub(super) fn policy_limit(table: &Table<'_>) -> Result<Limit> {
    limit(table, &TIME_KEYS)
}

fn limit(table: &Table<'_>, keys: &[&str]) -> Result<Limit> {
    let Some(value) = table.get("limit") else { return Ok(Limit::default()) };
    let table = value.table(keys)?;
    let number = |key: String| table.get(&key).map(|value: Value<'_>| value.number(1..=u64::MAX)).transpose();
    let bounds = |end: &str| {
        Ok(Bounds {
            bytes: number(format!("byte-{end}"))?,
            packets: number(format!("packet-{end}"))?,
            add_secs: number(format!("time-{end}"))?,
            use_secs: number(format!("time-use-{end}"))?,
        })
    };
    Ok(Limit { soft: bounds("soft")?, hard: bounds("hard")? })
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
