//! What a message may say (Linux `xfrma_policy`, `verify_newsa_info`, `verify_replay`, `verify_newpolicy_info`,
//! `validate_tmpl`), in the order in which Linux finds fault with it.

use super::algorithm::has_its_key;
use super::layout::{Encap, Layout, PolicyInfo, ReplayEsn, SaInfo, Selector, Tmpl};
use super::nums::{AF_INET, AF_INET6, MAX_DEPTH, attr, mode, proto, sa_flag};
use crate::netlink::attr::{Attr, Attrs, Kind, Policy, policy};
use crate::netlink::error::{Error, errno};

/// One more than the highest attribute.
const ATTRS: usize = 42;

/// The attributes of a message.
pub(super) type Attributes<'a> = Attrs<'a, ATTRS>;

/// What they look like.
pub(super) const POLICY: Policy<ATTRS> = policy(&[
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

/// The highest `XFRM_SHARE_*`.
const SHARE_UNIQUE: u8 = 3;
/// `UDP_ENCAP_ESPINUDP`.
pub(super) const ESPINUDP: u16 = 2;

fn invalid(text: &'static str) -> Error {
    Error::text(errno::EINVAL, text)
}

fn if_wrong(wrong: bool, text: &'static str) -> Result<(), Error> {
    if wrong { Err(invalid(text)) } else { Ok(()) }
}

/// Whether SAs of a protocol have SPIs.
pub(super) const fn is_ipsec(proto: u8) -> bool {
    matches!(proto, proto::AH | proto::ESP | proto::COMP)
}

fn selector(sel: &Selector) -> Result<(), Error> {
    let longest = sel.prefixlen_d.max(sel.prefixlen_s);
    match sel.family {
        AF_INET => if_wrong(longest > 32, "Invalid prefix length in selector (must be <= 32 for IPv4)"),
        AF_INET6 => if_wrong(longest > 128, "Invalid prefix length in selector (must be <= 128 for IPv6)"),
        _ => Ok(()),
    }
}

/// Finds fault with `NEWSA` and `UPDSA`.
pub(super) fn new_sa(info: &SaInfo, attrs: &Attributes<'_>) -> Result<(), Error> {
    let has = |kind| attrs.get(kind).is_some();
    if_wrong(!matches!(info.family, AF_INET | AF_INET6), "Invalid address family")?;
    selector(&info.sel)?;
    if_wrong(!matches!(info.sel.family, 0 | AF_INET | AF_INET6), "Invalid address family in selector")?;
    let auth = has(attr::ALG_AUTH) || has(attr::ALG_AUTH_TRUNC);
    match info.proto {
        proto::AH => {
            if_wrong(!auth, "Missing required attribute for AH: AUTH_TRUNC or AUTH")?;
            let wrong = has(attr::ALG_AEAD) || has(attr::ALG_CRYPT) || has(attr::ALG_COMP) || has(attr::TFCPAD);
            if_wrong(wrong, "Invalid attributes for AH: AEAD, CRYPT, COMP, TFCPAD")?;
        }
        proto::ESP => {
            if_wrong(has(attr::ALG_COMP), "Invalid attribute for ESP: COMP")?;
            let (aead, separate) = (has(attr::ALG_AEAD), auth || has(attr::ALG_CRYPT));
            if_wrong(
                !aead && !separate,
                "Missing required attribute for ESP: at least one of AUTH, AUTH_TRUNC, CRYPT, AEAD",
            )?;
            if_wrong(
                aead && separate,
                "Invalid attribute combination for ESP: AEAD can't be used with AUTH, AUTH_TRUNC, CRYPT",
            )?;
            if_wrong(has(attr::TFCPAD) && info.mode != mode::TUNNEL, "TFC padding can only be used in tunnel mode")?;
        }
        proto::COMP => {
            if_wrong(!has(attr::ALG_COMP), "Missing required attribute for COMP: COMP")?;
            let wrong = has(attr::ALG_AEAD) || auth || has(attr::ALG_CRYPT) || has(attr::TFCPAD);
            if_wrong(wrong, "Invalid attributes for COMP: AEAD, AUTH, AUTH_TRUNC, CRYPT, TFCPAD")?;
            if_wrong(info.spi >= 0x10000, "SPI is too large for COMP (must be < 0x10000)")?;
        }
        proto::DSTOPTS | proto::ROUTING => {}
        _ => return Err(invalid("Unsupported protocol")),
    }
    lengths(attrs)?;
    replay(info, attrs)?;
    let known = [mode::TRANSPORT, mode::TUNNEL, mode::ROUTE_OPTIMIZATION, mode::BEET];
    if_wrong(!known.contains(&info.mode), "Unsupported mode")?;
    if_wrong(has(attr::MTIMER_THRESH) && !has(attr::ENCAP), "MTIMER_THRESH attribute can only be set on ENCAP states")?;
    direction(info, attrs)
}

/// Whether attributes that say how long they are, are.
fn lengths(attrs: &Attributes<'_>) -> Result<(), Error> {
    let checks = [
        (attr::ALG_AEAD, true, "Invalid AEAD key length"),
        (attr::ALG_AUTH_TRUNC, true, "Invalid AUTH_TRUNC key length"),
        (attr::ALG_AUTH, false, "Invalid AUTH key length"),
        (attr::ALG_CRYPT, false, "Invalid CRYPT key length"),
        (attr::ALG_COMP, false, "Invalid COMP key length"),
    ];
    for (kind, with_more, text) in checks {
        if_wrong(attrs.get(kind).is_some_and(|attr| !has_its_key(attr, with_more)), text)?;
    }
    security_context(attrs)
}

/// Security labels are not known here. One that is not even whole is refused as Linux refuses it.
fn security_context(attrs: &Attributes<'_>) -> Result<(), Error> {
    let Some(attr) = attrs.get(attr::SEC_CTX) else { return Ok(()) };
    let mut from = super::layout::Fields(attr.data);
    let len = usize::from(from.u16());
    from.skip(4);
    let ctx_len = usize::from(from.u16());
    if_wrong(len > attr.data.len() || len != 8 + ctx_len, "Invalid security context length")?;
    Err(Error::unsupported("Security contexts are not supported").at(attr.offset))
}

/// Linux `verify_replay`.
fn replay(info: &SaInfo, attrs: &Attributes<'_>) -> Result<(), Error> {
    let Some(attr) = attrs.get(attr::REPLAY_ESN_VAL) else {
        return if_wrong(info.flags & sa_flag::ESN != 0, "Missing required attribute for ESN");
    };
    let words = ReplayEsn::bmp_len(attr.data);
    if_wrong(words > ReplayEsn::MAX_WORDS, "ESN bitmap length must be <= 128")?;
    let len = ReplayEsn::FIXED + words as usize * 4;
    if_wrong(
        attr.data.len() < len && attr.data.len() != ReplayEsn::FIXED,
        "ESN attribute is too short to fit the full bitmap length",
    )?;
    if_wrong(!matches!(info.proto, proto::ESP | proto::AH), "ESN only supported for ESP and AH")?;
    if_wrong(info.replay_window != 0, "ESN not compatible with legacy replay_window")
}

/// What an SA of one direction has not (Linux 6.10, `verify_newsa_info`).
fn direction(info: &SaInfo, attrs: &Attributes<'_>) -> Result<(), Error> {
    const IN: u8 = 1;
    const OUT: u8 = 2;
    let Some(attr) = attrs.get(attr::SA_DIR) else { return Ok(()) };
    let dir = attr.u8();
    let has_flag = |flag| info.flags & flag != 0;
    let extra = attrs.get(attr::SA_EXTRA_FLAGS).map_or(0, Attr::u32);
    let esn = attrs.get(attr::REPLAY_ESN_VAL).map(|attr| ReplayEsn::of(attr.data));
    match dir {
        OUT => {
            if_wrong(info.replay_window != 0, "Replay window should not be set for OUT SA")?;
            if_wrong(has_flag(sa_flag::DECAP_DSCP), "Flag DECAP_DSCP should not be set for output SA")?;
            if_wrong(has_flag(sa_flag::ICMP), "Flag ICMP should not be set for output SA")?;
            if_wrong(has_flag(sa_flag::WILDRECV), "Flag WILDRECV should not be set for output SA")?;
            if let Some(esn) = esn {
                if_wrong(esn.replay_window != 0, "Replay window should be 0 for output SA")?;
                if_wrong(esn.seq != 0 || esn.seq_hi != 0, "Replay seq and seq_hi should be 0 for output SA")?;
            }
            if_wrong(attrs.get(attr::MTIMER_THRESH).is_some(), "MTIMER_THRESH attribute should not be set on output SA")
        }
        IN => {
            if_wrong(has_flag(sa_flag::NOPMTUDISC), "Flag NOPMTUDISC should not be set for input SA")?;
            if_wrong(
                extra & sa_flag::EXTRA_DONT_ENCAP_DSCP != 0,
                "Flag DONT_ENCAP_DSCP should not be set for input SA",
            )?;
            if_wrong(extra & sa_flag::EXTRA_OSEQ_MAY_WRAP != 0, "Flag OSEQ_MAY_WRAP should not be set for input SA")?;
            if let Some(esn) = esn {
                if_wrong(esn.oseq != 0 || esn.oseq_hi != 0, "Replay oseq and oseq_hi should be 0 for input SA")?;
            }
            Ok(())
        }
        // Linux says so by its table of attributes.
        _ => Err(Error::text(errno::ERANGE, "integer out of range").at(attr.offset)),
    }
}

/// Finds fault with what Linux finds fault with when it makes the SA (`xfrm_init_state`, `esp_init_state`,
/// `xfrm_init_replay`), and with what is not supported here.
pub(super) fn buildable(info: &SaInfo, attrs: &Attributes<'_>) -> Result<(), Error> {
    let sel_family = info.sel.family;
    if_wrong(
        sel_family != 0 && sel_family != info.family && info.mode != mode::TUNNEL && info.mode != mode::BEET,
        "Only tunnel modes can accommodate a change of family",
    )?;
    if info.proto != proto::ESP {
        return Err(Error::text(errno::EPROTONOSUPPORT, "Requested type not found"));
    }
    if info.mode != mode::TUNNEL && info.mode != mode::TRANSPORT {
        return Err(Error::text(errno::EPROTONOSUPPORT, "Requested mode not found"));
    }
    if let Some(attr) = attrs.get(attr::ENCAP)
        && Encap::of(attr.data).kind != ESPINUDP
    {
        return Err(invalid("Unsupported encapsulation type for ESP"));
    }
    if let Some(esn) = attrs.get(attr::REPLAY_ESN_VAL).map(|attr| ReplayEsn::of(attr.data)) {
        let bits = u64::from(esn.bmp.len() as u32) * 32;
        if_wrong(u64::from(esn.replay_window) > bits, "ESN replay window is too large for the chosen bitmap size")?;
        let sends = attrs.get(attr::SA_DIR).is_some_and(|attr| attr.u8() == 2);
        if_wrong(info.flags & sa_flag::ESN != 0 && esn.replay_window == 0 && !sends, "ESN replay window must be > 0")?;
    }
    for kind in [attr::OFFLOAD_DEV, attr::SA_PCPU] {
        if let Some(attr) = attrs.get(kind) {
            let text = if kind == attr::OFFLOAD_DEV {
                "No link here offloads IPsec"
            } else {
                "SAs of one processor are not supported"
            };
            return Err(Error::unsupported(text).at(attr.offset));
        }
    }
    if let Some(attr) = (attr::IPTFS_DROP_TIME..=attr::IPTFS_PKT_SIZE).find_map(|kind| attrs.get(kind)) {
        return Err(Error::unsupported("IP-TFS is not supported").at(attr.offset));
    }
    Ok(())
}

/// Finds fault with a range of SPIs (Linux `verify_spi_info`).
pub(super) fn spi_range(proto: u8, min: u32, max: u32) -> Result<(), Error> {
    match proto {
        proto::AH | proto::ESP => {}
        proto::COMP => if_wrong(max >= 0x10000, "IPCOMP SPI must be <= 65535")?,
        _ => return Err(invalid("Invalid protocol, must be one of AH, ESP, IPCOMP")),
    }
    if_wrong(min > max, "Invalid SPI range: min > max")
}

/// Finds fault with `NEWPOLICY` and `UPDPOLICY`.
pub(super) fn new_policy(info: &PolicyInfo, attrs: &Attributes<'_>) -> Result<(), Error> {
    if_wrong(info.share > SHARE_UNIQUE, "Invalid policy share")?;
    if_wrong(info.action > 1, "Invalid policy action")?;
    selector(&info.sel)?;
    if_wrong(!matches!(info.sel.family, AF_INET | AF_INET6), "Invalid selector family")?;
    policy_dir(info.dir)?;
    if_wrong(info.index != 0 && (info.index & 7) as u8 != info.dir, "Policy index doesn't match direction")?;
    security_context(attrs)
}

/// Whether a direction is one.
pub(super) fn policy_dir(dir: u8) -> Result<(), Error> {
    if_wrong(dir > 2, "Invalid policy direction")
}

/// Which kind of policy is meant: sub-policies are not supported.
pub(super) fn policy_type(attrs: &Attributes<'_>) -> Result<(), Error> {
    match attrs.get(attr::POLICY_TYPE) {
        Some(attr) if attr.u8() == 1 => Err(Error::unsupported("Sub-policies are not supported").at(attr.offset)),
        Some(attr) if attr.u8() > 1 => Err(invalid("Invalid policy type")),
        _ => Ok(()),
    }
}

/// Reads a policy's templates (Linux `copy_from_user_tmpl`, `validate_tmpl`).
pub(super) fn templates(attrs: &Attributes<'_>, family: u16, dir: u8) -> Result<Vec<Tmpl>, Error> {
    const OUT: u8 = 1;
    let Some(attr) = attrs.get(attr::TMPL) else { return Ok(Vec::new()) };
    let mut templates: Vec<Tmpl> = attr.data.chunks_exact(Tmpl::LEN).map(Tmpl::of).collect();
    if_wrong(templates.len() > MAX_DEPTH, "Template count must be <= XFRM_MAX_DEPTH (6)")?;
    let mut previous = family;
    for template in &mut templates {
        if template.family == 0 {
            template.family = family;
        }
        match template.mode {
            mode::TUNNEL | mode::BEET => if_wrong(
                template.optional != 0 && dir == OUT,
                "Mode in optional template not allowed in outbound policy",
            )?,
            _ => if_wrong(template.family != previous, "Mode in template doesn't support a family change")?,
        }
        if_wrong(template.mode >= mode::MAX, "Mode in template must be < XFRM_MODE_MAX (5)")?;
        previous = template.family;
        if_wrong(!matches!(template.family, AF_INET | AF_INET6), "Invalid family in template")?;
        let valid =
            is_ipsec(template.proto) || matches!(template.proto, proto::ROUTING | proto::DSTOPTS | proto::ANY | 0);
        if_wrong(!valid, "Invalid XFRM protocol in template")?;
        if !matches!(template.proto, proto::ESP | proto::ANY)
            || !matches!(template.mode, mode::TUNNEL | mode::TRANSPORT)
        {
            return Err(Error::unsupported("Templates are of ESP, in tunnel or transport mode").at(attr.offset));
        }
    }
    Ok(templates)
}
