//! `RTA_ENCAP`: lightweight tunnels of type ILA (Linux `ila_lwt.c`).

use base::Prefix;
use ila::{CsumMode, HookType, IdentType, Locator, RouteEncap};

use super::nums::*;
use crate::attr::{Attr, AttrPolicy, Attrs, Kind, Strictness, policy};
use crate::error::{Error, errno};
use crate::message::Writer;

/// `LWTUNNEL_ENCAP_ILA`, and the highest number of a lightweight tunnel in Linux (`LWTUNNEL_ENCAP_XFRM`).
const ENCAP_ILA: u16 = 3;
const ENCAP_MAX: u16 = 10;

/// `ILA_ATTR_*`.
const LOCATOR: u16 = 1;
const CSUM_MODE: u16 = 7;
const IDENT_TYPE: u16 = 8;
const HOOK_TYPE: u16 = 9;

const POLICY: AttrPolicy<10> = policy(&[
    (LOCATOR, Kind::Int(8)),
    (CSUM_MODE, Kind::Int(1)),
    (IDENT_TYPE, Kind::Int(1)),
    (HOOK_TYPE, Kind::Int(1)),
]);

/// Parses the encapsulation of a route to `prefix` (Linux `lwtunnel_valid_encap_type`, `ila_build_state`).
///
/// # Errors
/// Linux's errors; `EOPNOTSUPP` for another lightweight tunnel.
pub(super) fn read<const N: usize>(attrs: &Attrs<'_, N>, prefix: Prefix) -> Result<Option<RouteEncap>, Error> {
    let kind = attrs.get(RTA_ENCAP_TYPE);
    if let Some(kind) = kind {
        match kind.u16() {
            ENCAP_ILA => {}
            1..=ENCAP_MAX => {
                return Err(Error::unsupported("fatpath has no lightweight tunnels but ILA").at(kind.offset));
            }
            _ => return Err(kind.refused("Unknown lwt encap type")),
        }
    }
    let Some(encap) = attrs.get(RTA_ENCAP) else { return Ok(None) };
    if kind.is_none() {
        return Err(encap.refused("LWT encap type not specified"));
    }
    let found = encap.parse(&POLICY, Strictness::Liberal)?;
    let number = |kind, usual| found.get(kind).map_or(usual, Attr::u8);
    let locator = found.get(LOCATOR).ok_or_else(|| encap.refused("ILA: the locator is missing"))?;
    let csum_mode = CsumMode::from_number(number(CSUM_MODE, CsumMode::NoAction as u8))
        .ok_or_else(|| encap.refused("ILA: unknown checksum mode"))?;
    let ident_type = IdentType::from_number(number(IDENT_TYPE, IdentType::UseFormat as u8))
        .ok_or_else(|| encap.refused("ILA: unknown identifier type"))?;
    let hook_type = HookType::from_number(number(HOOK_TYPE, HookType::Output as u8))
        .ok_or_else(|| encap.refused("ILA: unknown hook type"))?;
    let read = RouteEncap { locator: Locator(u64::from_be(locator.u64())), csum_mode, ident_type, hook_type };
    read.check(prefix).map_err(|err| Error::owned_text(errno::EINVAL, format!("ILA: {err}")).at(encap.offset))?;
    Ok(Some(read))
}

/// Writes an encapsulation, as Linux's `lwtunnel_fill_encap`.
pub(super) fn write(w: &mut Writer, encap: &RouteEncap) {
    w.nest(RTA_ENCAP, |w| {
        w.put(LOCATOR, &encap.locator.0.to_be_bytes());
        w.put_u8(CSUM_MODE, encap.csum_mode as u8);
        w.put_u8(IDENT_TYPE, encap.ident_type as u8);
        w.put_u8(HOOK_TYPE, encap.hook_type as u8);
    });
    w.put_u16(RTA_ENCAP_TYPE, ENCAP_ILA);
}
