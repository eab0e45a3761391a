//! Validation of messages (Linux `xfrma_policy`, `verify_newsa_info`, `verify_replay`, `verify_newpolicy_info`,
//! `validate_tmpl`), in Linux's order.

use base::ShardCount;

use super::algorithm::has_its_key;
use super::attributes::Attributes;
use super::layout::{Encap, Layout, PolicyInfo, ReplayEsn, SaInfo, Selector, Tmpl, UserOffload};
use super::nums::{AF_INET, AF_INET6, MAX_DEPTH, attr, mode, policy_flag, proto, sa_flag};
use super::replay::{self, Replay};
use crate::attr::Attr;
use crate::error::{Error, errno};

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

/// Tells whether an SA's protocol matches the protocol of a request (Linux `xfrm_id_proto_match`).
pub(super) const fn matches_proto(of: u8, wanted: u8) -> bool {
    wanted == 0 || of == wanted || (wanted == proto::ANY && is_ipsec(of))
}

fn selector(sel: &Selector) -> Result<(), Error> {
    let longest = sel.prefixlen_d.max(sel.prefixlen_s);
    match sel.family {
        AF_INET => if_wrong(longest > 32, "Invalid prefix length in selector (must be <= 32 for IPv4)"),
        AF_INET6 => if_wrong(longest > 128, "Invalid prefix length in selector (must be <= 128 for IPv6)"),
        _ => Ok(()),
    }
}

/// Validates `NEWSA` and `UPDSA`.
pub(super) fn new_sa(info: &SaInfo, attrs: &Attributes<'_>) -> Result<(), Error> {
    let has = |kind| attrs.get(kind).is_some();
    known_direction(attrs)?;
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
    replay_numbers(info, attrs)?;
    let known = [mode::TRANSPORT, mode::TUNNEL, mode::ROUTE_OPTIMIZATION, mode::BEET, mode::IPTFS];
    if_wrong(!known.contains(&info.mode), "Unsupported mode")?;
    if_wrong(has(attr::MTIMER_THRESH) && !has(attr::ENCAP), "MTIMER_THRESH attribute can only be set on ENCAP states")?;
    direction(info, attrs)
}

/// Checks that attributes with a length field are that long.
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

/// Refuses a security label: unsupported, or malformed with Linux's error.
fn security_context(attrs: &Attributes<'_>) -> Result<(), Error> {
    let Some(attr) = attrs.get(attr::SEC_CTX) else { return Ok(()) };
    let mut from = super::layout::Fields(attr.data);
    let len = usize::from(from.u16());
    from.skip(4);
    let ctx_len = usize::from(from.u16());
    if_wrong(len > attr.data.len() || len != 8 + ctx_len, "Invalid security context length")?;
    Err(Error::unsupported("Security contexts are not supported").at(attr.offset))
}

/// Validates sequence numbers and window (Linux `verify_replay`).
fn replay_numbers(info: &SaInfo, attrs: &Attributes<'_>) -> Result<(), Error> {
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
    if_wrong(info.replay_window != 0, "ESN not compatible with legacy replay_window")?;
    let esn = ReplayEsn::of(attr.data);
    match direction_of(attrs) {
        OUT => {
            if_wrong(esn.replay_window != 0, "Replay window should be 0 for output SA")?;
            if_wrong(esn.seq != 0 || esn.seq_hi != 0, "Replay seq and seq_hi should be 0 for output SA")?;
            if_wrong(words != 0, "Replay bmp_len should 0 for output SA")
        }
        IN => if_wrong(esn.oseq != 0 || esn.oseq_hi != 0, "Replay oseq and oseq_hi should be 0 for input SA"),
        _ => Ok(()),
    }
}

/// `XFRM_POLICY_OUT`.
const POLICY_OUT: u8 = 1;
/// `XFRM_SA_DIR_IN`.
const IN: u8 = 1;
/// `XFRM_SA_DIR_OUT`.
const OUT: u8 = 2;

/// Direction attribute of an SA; 0 for none.
fn direction_of(attrs: &Attributes<'_>) -> u8 {
    attrs.get(attr::SA_DIR).map_or(0, Attr::u8)
}

/// Checks the direction attribute. Linux checks it in its attribute policy, before everything else.
pub(super) fn known_direction(attrs: &Attributes<'_>) -> Result<(), Error> {
    match attrs.get(attr::SA_DIR) {
        Some(attr) if !matches!(attr.u8(), IN | OUT) => {
            Err(Error::text(errno::ERANGE, "integer out of range").at(attr.offset))
        }
        _ => Ok(()),
    }
}

/// Refuses options that do not fit the SA's direction (Linux 6.10, `verify_newsa_info`).
fn direction(info: &SaInfo, attrs: &Attributes<'_>) -> Result<(), Error> {
    let has_flag = |flag| info.flags & flag != 0;
    let extra = attrs.get(attr::SA_EXTRA_FLAGS).map_or(0, Attr::u32);
    match direction_of(attrs) {
        OUT => {
            let has_threshold = attrs.get(attr::MTIMER_THRESH).is_some();
            if_wrong(has_threshold, "MTIMER_THRESH attribute should not be set on output SA")?;
            if_wrong(has_flag(sa_flag::DECAP_DSCP), "Flag DECAP_DSCP should not be set for output SA")?;
            if_wrong(has_flag(sa_flag::ICMP), "Flag ICMP should not be set for output SA")?;
            if_wrong(has_flag(sa_flag::WILDRECV), "Flag WILDRECV should not be set for output SA")?;
            if_wrong(info.replay_window != 0, "Replay window should be 0 for output SA")?;
            let received = match replay::legacy(attrs) {
                Some(Replay::Legacy([_, seq, bitmap])) => seq != 0 || bitmap != 0,
                _ => false,
            };
            if_wrong(received, "Replay seq and bitmap should be 0 for output SA")
        }
        IN => {
            if_wrong(has_flag(sa_flag::NOPMTUDISC), "Flag NOPMTUDISC should not be set for input SA")?;
            if_wrong(
                extra & sa_flag::EXTRA_DONT_ENCAP_DSCP != 0,
                "Flag DONT_ENCAP_DSCP should not be set for input SA",
            )?;
            if_wrong(extra & sa_flag::EXTRA_OSEQ_MAY_WRAP != 0, "Flag OSEQ_MAY_WRAP should not be set for input SA")
        }
        _ => Ok(()),
    }
}

/// Refuses protocols and modes of SAs that Linux supports and this node does not, by name.
pub(super) fn supported(protocol: u8, of_mode: u8) -> Result<(), Error> {
    match (protocol, of_mode) {
        (proto::ESP, mode::BEET) => Err(Error::unsupported("BEET mode is not supported")),
        (proto::ESP, mode::IPTFS) => Err(Error::unsupported("IP-TFS is not supported")),
        (proto::ESP, _) => Ok(()),
        (proto::AH, _) => Err(Error::unsupported("AH is not supported")),
        (proto::COMP, _) => Err(Error::unsupported("IPComp is not supported")),
        _ => Err(Error::unsupported("Only ESP is supported")),
    }
}

/// Refuses a number of an XFRM interface: no kind of link is one, so an SA with a number would match no packet, and
/// packets of a policy with a number would pass in clear. 0 is no number.
pub(super) fn interface(attrs: &Attributes<'_>) -> Result<(), Error> {
    match attrs.get(attr::IF_ID).filter(|attr| attr.u32() != 0) {
        Some(attr) => Err(Error::unsupported("if_id: fatpath has no XFRM interfaces").at(attr.offset)),
        None => Ok(()),
    }
}

/// Flags of an offload request: `struct xfrm_user_offload`, behind the device's number.
fn offload_flags(attr: &Attr<'_>) -> u8 {
    attr.data.get(4).copied().unwrap_or_default()
}

/// Validates an offload request for an SA (Linux `xfrm_dev_state_add`), except for the link, which the database knows.
fn sa_offload(attrs: &Attributes<'_>) -> Result<(), Error> {
    let Some(attr) = attrs.get(attr::OFFLOAD_DEV) else { return Ok(()) };
    let flags = offload_flags(attr);
    let unknown = flags & !(UserOffload::IPV6 | UserOffload::INBOUND | UserOffload::PACKET) != 0;
    if_wrong(unknown, "Unrecognized flags in offload request")?;
    let inbound = flags & UserOffload::INBOUND != 0;
    let against = if inbound { OUT } else { IN };
    if_wrong(direction_of(attrs) == against, "Mismatched SA and offload direction")?;
    let is_set = |kind| attrs.get(kind).is_some_and(|attr| attr.u32() != 0);
    if_wrong(inbound && is_set(attr::IF_ID), "XFRM if_id is not supported in RX path")?;
    if_wrong(is_set(attr::TFCPAD), "TFC padding can't be offloaded")
}

/// Validates an offload request for a policy, which must be in packet mode (Linux `xfrm_dev_policy_add`).
pub(super) fn policy_offload(attrs: &Attributes<'_>) -> Result<(), Error> {
    let Some(attr) = attrs.get(attr::OFFLOAD_DEV) else { return Ok(()) };
    if_wrong(offload_flags(attr) != UserOffload::PACKET, "Unrecognized flags in offload request")?;
    Err(invalid("Policy offload is not supported"))
}

/// Refuses SAs that Linux refuses when it creates them (`xfrm_init_state`, `esp_init_state`, `xfrm_init_replay`), and
/// unsupported SAs.
pub(super) fn buildable(info: &SaInfo, attrs: &Attributes<'_>) -> Result<(), Error> {
    let sel_family = info.sel.family;
    if_wrong(
        sel_family != 0 && sel_family != info.family && info.mode != mode::TUNNEL && info.mode != mode::BEET,
        "Only tunnel modes can accommodate a change of family",
    )?;
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
        let sends = direction_of(attrs) == OUT;
        if_wrong(info.flags & sa_flag::ESN != 0 && esn.replay_window == 0 && !sends, "ESN replay window must be > 0")?;
    }
    if attrs.get(attr::NAT_KEEPALIVE_INTERVAL).is_some_and(|attr| attr.u32() != 0) {
        if_wrong(direction_of(attrs) != OUT, "NAT keepalive is only supported for outbound SAs")?;
        let text = "NAT keepalive is only supported for UDP encapsulation";
        if_wrong(attrs.get(attr::ENCAP).is_none(), text)?;
    }
    cpu(attrs, errno::ERANGE)?;
    if let Some(attr) = (attr::IPTFS_DROP_TIME..=attr::IPTFS_PKT_SIZE).find_map(|kind| attrs.get(kind)) {
        return Err(Error::unsupported("IP-TFS is not supported").at(attr.offset));
    }
    sa_offload(attrs)?;
    interface(attrs)
}

/// Validates the number of an SA's CPU, which is a worker's here (Linux `xfrm_state_construct`, `xfrm_alloc_userspi`, which refuse it
/// with different errors).
pub(super) fn cpu(attrs: &Attributes<'_>, refusal: i32) -> Result<(), Error> {
    let Some(attr) = attrs.get(attr::SA_PCPU).filter(|attr| attr.u32() >= ShardCount::MAX.into()) else {
        return Ok(());
    };
    Err(Error::text(refusal, "pCPU number too big").at(attr.offset))
}

/// Validates a range of SPIs (Linux `verify_spi_info`).
pub(super) fn spi_range(proto: u8, min: u32, max: u32) -> Result<(), Error> {
    match proto {
        proto::AH | proto::ESP => {}
        proto::COMP => if_wrong(max >= 0x10000, "IPCOMP SPI must be <= 65535")?,
        _ => return Err(invalid("Invalid protocol, must be one of AH, ESP, IPCOMP")),
    }
    if_wrong(min > max, "Invalid SPI range: min > max")
}

/// Validates `NEWPOLICY` and `UPDPOLICY`.
pub(super) fn new_policy(info: &PolicyInfo, attrs: &Attributes<'_>) -> Result<(), Error> {
    if_wrong(info.share > SHARE_UNIQUE, "Invalid policy share")?;
    if_wrong(info.action > 1, "Invalid policy action")?;
    selector(&info.sel)?;
    if_wrong(!matches!(info.sel.family, AF_INET | AF_INET6), "Invalid selector family")?;
    policy_dir(info.dir)?;
    if_wrong(info.index != 0 && (info.index & 7) as u8 != info.dir, "Policy index doesn't match direction")?;
    security_context(attrs)
}

/// Refuses flags of policies that have no effect here.
pub(super) fn policy_flags(flags: u8) -> Result<(), Error> {
    let texts = [
        // Linux stores the flag and never reads it.
        (policy_flag::LOCALOK, "fatpath has no policies of sockets, which `flag localok` is about"),
        // `XFRM_LOOKUP_ICMP` of `icmp_route_lookup`.
        (policy_flag::ICMP, "`flag icmp`: fatpath sends ICMP errors by policies for their own addresses alone"),
        (!policy_flag::CPU_ACQUIRE, "fatpath's policies have no such flag"),
    ];
    match texts.into_iter().find(|(flag, _)| flags & flag != 0) {
        Some((_, text)) => Err(Error::unsupported(text)),
        None => Ok(()),
    }
}

/// Checks the direction of a policy.
pub(super) fn policy_dir(dir: u8) -> Result<(), Error> {
    if_wrong(dir > 2, "Invalid policy direction")
}

/// Checks the type of a policy: sub-policies are not supported.
pub(super) fn policy_type(attrs: &Attributes<'_>) -> Result<(), Error> {
    match attrs.get(attr::POLICY_TYPE) {
        Some(attr) if attr.u8() == 1 => Err(Error::unsupported("Sub-policies are not supported").at(attr.offset)),
        Some(attr) if attr.u8() > 1 => Err(invalid("Invalid policy type")),
        _ => Ok(()),
    }
}

/// Parses a policy's templates (Linux `copy_from_user_tmpl`, `validate_tmpl`).
pub(super) fn templates(attrs: &Attributes<'_>, family: u16, dir: u8) -> Result<Vec<Tmpl>, Error> {
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
                template.optional != 0 && dir == POLICY_OUT,
                "Mode in optional template not allowed in outbound policy",
            )?,
            _ => if_wrong(template.family != previous, "Mode in template doesn't support a family change")?,
        }
        if_wrong(template.mode >= mode::MAX, "Mode in template must be < XFRM_MODE_MAX (5)")?;
        // Linux evaluates the field only for these directions (`xfrm_state_ok`). A restriction that has no effect here
        // is refused.
        if template.algos[0] != u32::MAX && dir != POLICY_OUT {
            return Err(Error::unsupported("Templates cannot restrict algorithms of received packets").at(attr.offset));
        }
        previous = template.family;
        if_wrong(!matches!(template.family, AF_INET | AF_INET6), "Invalid family in template")?;
        let valid =
            is_ipsec(template.proto) || matches!(template.proto, proto::ROUTING | proto::DSTOPTS | proto::ANY | 0);
        if_wrong(!valid, "Invalid XFRM protocol in template")?;
        let protocol = if template.proto == proto::ANY { proto::ESP } else { template.proto };
        supported(protocol, template.mode).map_err(|err| err.at(attr.offset))?;
        if !matches!(template.mode, mode::TUNNEL | mode::TRANSPORT) {
            return Err(Error::unsupported("Templates support ESP only, in tunnel or transport mode").at(attr.offset));
        }
    }
    Ok(templates)
}

#[cfg(test)]
mod tests {
    use super::super::layout::LifetimeCfg;
    use super::super::nums::msg;
    use super::super::protocol::split;
    use super::super::{NewSa, NewSpi, Policy};
    use super::*;
    use crate::message::{Header, Messages, Writer, flag};
    use crate::session::Request;

    /// Result of parsing a request of `kind` with the given fixed part and attributes.
    fn read<T>(
        kind: u16,
        fixed: &[u8],
        put: impl FnOnce(&mut Writer),
        parse: impl FnOnce(&[u8], &Attributes<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut w = Writer::default();
        w.message(Header { kind, flags: flag::REQUEST, seq: 1, port: 0 }, |w| {
            w.fixed(fixed);
            put(w);
        });
        let message = Messages::new(w.as_bytes()).next().unwrap();
        let request = Request { message, strict: false, privileged: true, port: 0, restored: false };
        let (fixed, attrs) = split(&request).unwrap();
        parse(fixed, &attrs)
    }

    fn info() -> SaInfo {
        let [src, dst] = ["192.0.2.1", "192.0.2.2"].map(|addr| addr.parse::<std::net::IpAddr>().unwrap());
        SaInfo {
            saddr: src.into(),
            daddr: dst.into(),
            spi: 0x1000,
            proto: proto::ESP,
            lft: LifetimeCfg::INFINITE,
            family: AF_INET,
            mode: mode::TUNNEL,
            ..SaInfo::default()
        }
    }

    /// An SA with AES-GCM, the given fixed part and attributes.
    fn new_sa(info: SaInfo, put: impl FnOnce(&mut Writer)) -> Result<NewSa, Error> {
        let mut aead = vec![7; 72 + 20];
        aead[..64].fill(0);
        aead[..17].copy_from_slice(b"rfc4106(gcm(aes))");
        aead[64..68].copy_from_slice(&160_u32.to_ne_bytes());
        aead[68..72].copy_from_slice(&128_u32.to_ne_bytes());
        let all = |w: &mut Writer| {
            w.put(attr::ALG_AEAD, &aead);
            put(w);
        };
        read(msg::NEW_SA, &info.to_bytes(), all, NewSa::parse)
    }

    fn words(w: &mut Writer, kind: u16, words: &[u32]) {
        w.put(kind, &words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>());
    }

    /// A bitmap's length, `oseq`, `seq`, their upper halves, the window, and a zero bitmap of the stated length.
    fn esn(w: &mut Writer, fixed: [u32; 6]) {
        words(w, attr::REPLAY_ESN_VAL, &[&fixed[..], &vec![0; fixed[0] as usize]].concat());
    }

    fn encap(w: &mut Writer) {
        w.put(attr::ENCAP, &[&[ESPINUDP as u8, 0][..], &[0; 22]].concat());
    }

    type Put = fn(&mut Writer);

    #[test]
    fn an_sa_of_one_direction_has_nothing_of_the_other() {
        let with = |flags, replay_window| SaInfo { flags, replay_window, ..info() };
        let out_and_all = with(sa_flag::DECAP_DSCP | sa_flag::ICMP | sa_flag::WILDRECV, 8);
        let cases: &[(u8, SaInfo, Put, Option<&str>)] = &[
            (OUT, with(0, 8), |_| {}, Some("Replay window should be 0 for output SA")),
            (OUT, out_and_all, |_| {}, Some("Flag DECAP_DSCP should not be set for output SA")),
            (OUT, with(sa_flag::WILDRECV, 8), |_| {}, Some("Flag WILDRECV should not be set for output SA")),
            (
                OUT,
                out_and_all,
                |w| {
                    encap(w);
                    w.put_u32(attr::MTIMER_THRESH, 1);
                },
                Some("MTIMER_THRESH attribute should not be set on output SA"),
            ),
            (
                OUT,
                with(0, 0),
                |w| words(w, attr::REPLAY_VAL, &[5, 1, 0]),
                Some("Replay seq and bitmap should be 0 for output SA"),
            ),
            (
                OUT,
                with(0, 0),
                |w| words(w, attr::REPLAY_VAL, &[5, 0, 1]),
                Some("Replay seq and bitmap should be 0 for output SA"),
            ),
            (OUT, with(0, 0), |w| words(w, attr::REPLAY_VAL, &[5, 0, 0]), None),
            (
                OUT,
                with(sa_flag::ESN | sa_flag::ICMP, 0),
                |w| esn(w, [1, 0, 1, 0, 0, 32]),
                Some("Replay window should be 0 for output SA"),
            ),
            (
                OUT,
                with(sa_flag::ESN, 0),
                |w| esn(w, [1, 0, 0, 0, 1, 0]),
                Some("Replay seq and seq_hi should be 0 for output SA"),
            ),
            (OUT, with(sa_flag::ESN, 0), |w| esn(w, [1, 0, 0, 0, 0, 0]), Some("Replay bmp_len should 0 for output SA")),
            (OUT, with(sa_flag::ESN, 0), |w| esn(w, [0, 5, 0, 1, 0, 0]), None),
            (
                IN,
                with(sa_flag::ESN | sa_flag::NOPMTUDISC, 0),
                |w| esn(w, [1, 0, 0, 1, 0, 32]),
                Some("Replay oseq and oseq_hi should be 0 for input SA"),
            ),
            (IN, with(sa_flag::NOPMTUDISC, 0), |_| {}, Some("Flag NOPMTUDISC should not be set for input SA")),
            (IN, with(0, 8), |w| w.put_u32(attr::TFCPAD, 100), None),
            (3, with(0, 8), |_| {}, Some("integer out of range")),
        ];
        for &(dir, info, put, want) in cases {
            let put = |w: &mut Writer| {
                put(w);
                w.put_u8(attr::SA_DIR, dir);
            };
            let got = new_sa(info, put).map(drop).map_err(|err| err.text.unwrap());
            assert_eq!(got, want.map_or(Ok(()), |text| Err(text.into())), "dir {dir}: {info:?}");
        }
        let promise = [&info().to_bytes()[..], &[0; 8]].concat();
        let err = read(msg::ALLOC_SPI, &promise, |w| w.put_u8(attr::SA_DIR, 0), NewSpi::parse).unwrap_err();
        assert_eq!(err.errno, errno::ERANGE);
    }

    /// `struct xfrm_user_offload` with these flags.
    fn offload(w: &mut Writer, flags: u8) {
        w.put(attr::OFFLOAD_DEV, &[1, 0, 0, 0, flags, 0, 0, 0]);
    }

    #[test]
    fn sa_offload_is_checked_in_linux_words() {
        type Answer = Result<(), &'static str>;
        let cases: &[(u8, u8, Put, Answer)] = &[
            (0, 0, |_| {}, Ok(())),
            (UserOffload::IPV6, OUT, |_| {}, Ok(())),
            (UserOffload::INBOUND, IN, |_| {}, Ok(())),
            (UserOffload::PACKET, 0, |_| {}, Ok(())),
            (UserOffload::PACKET | UserOffload::INBOUND, IN, |_| {}, Ok(())),
            (8, 0, |_| {}, Err("Unrecognized flags in offload request")),
            (UserOffload::INBOUND, OUT, |_| {}, Err("Mismatched SA and offload direction")),
            (0, IN, |_| {}, Err("Mismatched SA and offload direction")),
            (0, OUT, |w| w.put_u32(attr::IF_ID, 0), Ok(())),
            (UserOffload::INBOUND, 0, |w| w.put_u32(attr::IF_ID, 7), Err("XFRM if_id is not supported in RX path")),
            (0, 0, |w| w.put_u32(attr::TFCPAD, 100), Err("TFC padding can't be offloaded")),
        ];
        for &(flags, dir, put, want) in cases {
            let put = |w: &mut Writer| {
                put(w);
                offload(w, flags);
                if dir != 0 {
                    w.put_u8(attr::SA_DIR, dir);
                }
            };
            let got = new_sa(info(), put).map(|sa| sa.offload).map_err(|err| (err.errno, err.text));
            let want = want.map(|()| Some(UserOffload { ifindex: 1, flags }));
            let want = want.map_err(|text| (errno::EINVAL, Some(text.into())));
            assert_eq!(got, want, "flags {flags}, dir {dir}");
        }
    }

    /// The errno and text of a refusal; `None` for a request that is taken.
    fn refusal<T>(got: Result<T, Error>) -> Option<(i32, String)> {
        got.err().map(|err| (err.errno, err.text.map(String::from).unwrap_or_default()))
    }

    #[test]
    fn if_id_other_than_0_is_refused_by_name() {
        let put = |if_id| move |w: &mut Writer| w.put_u32(attr::IF_ID, if_id);
        let larval = [&info().to_bytes()[..], &0x100_u32.to_ne_bytes(), &0x100_u32.to_ne_bytes()].concat();
        let sel = Selector { family: AF_INET, ..Selector::default() };
        let policy = PolicyInfo { sel, dir: POLICY_OUT, ..PolicyInfo::default() }.to_bytes();
        let refusals = |if_id| {
            vec![
                refusal(new_sa(info(), put(if_id))),
                refusal(read(msg::ALLOC_SPI, &larval, put(if_id), NewSpi::parse)),
                refusal(read(msg::NEW_POLICY, &policy, put(if_id), Policy::parse)),
            ]
        };
        assert_eq!(refusals(0), vec![None; 3]);
        let want = (errno::EOPNOTSUPP, "if_id: fatpath has no XFRM interfaces".to_owned());
        assert_eq!(refusals(7), vec![Some(want); 3]);
    }

    #[test]
    fn flags_of_policies_are_refused_by_name() {
        for (flags, want) in [
            (0, None),
            (policy_flag::LOCALOK, Some("localok")),
            (policy_flag::ICMP, Some("icmp")),
            (policy_flag::LOCALOK | policy_flag::ICMP, Some("localok")),
            (policy_flag::CPU_ACQUIRE, None),
            (policy_flag::CPU_ACQUIRE | policy_flag::ICMP, Some("icmp")),
            (0x80, Some("no such flag")),
        ] {
            let sel = Selector { family: AF_INET, ..Selector::default() };
            let info = PolicyInfo { sel, flags, ..PolicyInfo::default() };
            let got = refusal(read(msg::NEW_POLICY, &info.to_bytes(), |_| {}, Policy::parse));
            let is_right = match (&got, want) {
                (None, None) => true,
                (Some((number, text)), Some(want)) => *number == errno::EOPNOTSUPP && text.contains(want),
                _ => false,
            };
            assert!(is_right, "{flags:#x}: {got:?}");
        }
    }

    #[test]
    fn policy_offload_is_refused_in_linux_words() {
        for (flags, want) in [
            (UserOffload::PACKET, "Policy offload is not supported"),
            (0, "Unrecognized flags in offload request"),
            (UserOffload::PACKET | UserOffload::INBOUND, "Unrecognized flags in offload request"),
        ] {
            let got = read(
                msg::NEW_POLICY,
                &PolicyInfo::default().to_bytes(),
                |w| offload(w, flags),
                |_, attrs| policy_offload(attrs),
            );
            let err = got.unwrap_err();
            assert_eq!((err.errno, err.text), (errno::EINVAL, Some(want.into())), "flags {flags}");
        }
    }

    #[test]
    fn policy_index_of_another_direction_is_refused_in_linux_words() {
        for (index, dir, want) in [
            (8, 0, None),
            (9, 1, None),
            (0, 2, None),
            (8, 1, Some("Policy index doesn't match direction")),
            (11, 2, Some("Policy index doesn't match direction")),
        ] {
            let sel = Selector { family: AF_INET, ..Selector::default() };
            let info = PolicyInfo { sel, index, dir, ..PolicyInfo::default() };
            let got = read(msg::NEW_POLICY, &info.to_bytes(), |_| {}, |_, attrs| new_policy(&info, attrs));
            let got = got.map_err(|err| (err.errno, err.text));
            assert_eq!(got, want.map_or(Ok(()), |text| Err((errno::EINVAL, Some(text.into())))), "{index}, {dir}");
        }
    }

    #[test]
    fn other_protocols_and_modes_than_esp_are_refused_by_name() {
        let of = |proto, mode| SaInfo { proto, mode, ..info() };
        let hmac = |w: &mut Writer, kind| {
            let mut alg = vec![0; 68];
            alg[..10].copy_from_slice(b"hmac(sha1)");
            w.put(kind, &alg);
        };
        for (proto, mode, alg, want) in [
            (proto::AH, mode::TRANSPORT, Some(attr::ALG_AUTH), "AH is not supported"),
            (proto::AH, mode::TUNNEL, Some(attr::ALG_AUTH), "AH is not supported"),
            (proto::COMP, mode::TUNNEL, Some(attr::ALG_COMP), "IPComp is not supported"),
            (proto::ROUTING, mode::ROUTE_OPTIMIZATION, None, "Only ESP is supported"),
            (proto::ESP, mode::BEET, Some(attr::ALG_CRYPT), "BEET mode is not supported"),
            (proto::ESP, mode::IPTFS, Some(attr::ALG_CRYPT), "IP-TFS is not supported"),
        ] {
            let put = |w: &mut Writer| alg.into_iter().for_each(|kind| hmac(w, kind));
            let err = read(msg::NEW_SA, &of(proto, mode).to_bytes(), put, NewSa::parse).unwrap_err();
            assert_eq!((err.errno, err.text), (errno::EOPNOTSUPP, Some(want.into())), "{proto} {mode}");
            let promise = [&of(proto, mode).to_bytes()[..], &[0; 8]].concat();
            if is_ipsec(proto) {
                let err = read(msg::ALLOC_SPI, &promise, |_| {}, NewSpi::parse).unwrap_err();
                assert_eq!((err.errno, err.text), (errno::EOPNOTSUPP, Some(want.into())), "SPI of {proto} {mode}");
            }
            let daddr = info().daddr;
            let template = Tmpl { daddr, proto, family: AF_INET, mode, algos: [u32::MAX; 3], ..Tmpl::default() };
            if mode < mode::MAX {
                let put = |w: &mut Writer| w.put(attr::TMPL, &template.to_bytes());
                let fixed = PolicyInfo::default().to_bytes();
                let got = read(msg::NEW_POLICY, &fixed, put, |_, attrs| templates(attrs, AF_INET, 0));
                assert_eq!(got.unwrap_err().text, Some(want.into()), "template of {proto} {mode}");
            }
        }
    }

    #[test]
    fn keepalive_is_only_for_outbound_sas_with_encap() {
        let cases: &[(u8, bool, Option<&str>)] = &[
            (OUT, true, None),
            (OUT, false, Some("NAT keepalive is only supported for UDP encapsulation")),
            (IN, true, Some("NAT keepalive is only supported for outbound SAs")),
            (0, true, Some("NAT keepalive is only supported for outbound SAs")),
        ];
        for &(dir, has_ports, want) in cases {
            let put = |w: &mut Writer| {
                w.put_u32(attr::NAT_KEEPALIVE_INTERVAL, 20);
                if has_ports {
                    encap(w);
                }
                if dir != 0 {
                    w.put_u8(attr::SA_DIR, dir);
                }
            };
            let got = new_sa(info(), put).map(|sa| sa.nat_keepalive).map_err(|err| err.text.unwrap());
            assert_eq!(got, want.map_or(Ok(20), |text| Err(text.into())), "dir {dir}, ports {has_ports}");
        }
    }

    #[test]
    fn a_window_without_a_bitmap_attribute_has_the_bits_of_a_word() {
        for (replay_window, want) in [(0, 0), (32, 32), (33, 32), (255, 32)] {
            let sa = new_sa(SaInfo { replay_window, ..info() }, |_| {}).unwrap();
            assert_eq!((sa.replay_window(), sa.info.replay_window), (u32::from(want), want), "{replay_window}");
        }
        let sa = new_sa(info(), |w| esn(w, [4, 0, 0, 0, 0, 128])).unwrap();
        assert_eq!(sa.replay_window(), 128);
    }

    #[test]
    fn template_of_some_auth_algorithms_is_refused_where_it_counts() {
        let some = [u32::MAX ^ 4, u32::MAX, u32::MAX];
        for (dir, algos, want) in [
            (0, [u32::MAX; 3], true),
            (0, [u32::MAX, 0, 0], true), // Linux reads the first element alone
            (0, some, false),
            (POLICY_OUT, some, true),
            (2, some, false),
        ] {
            let address = info().daddr;
            let template = Tmpl {
                daddr: address,
                proto: proto::ESP,
                family: AF_INET,
                mode: mode::TUNNEL,
                algos,
                ..Tmpl::default()
            };
            let put = |w: &mut Writer| w.put(attr::TMPL, &template.to_bytes());
            let fixed = PolicyInfo { dir, ..PolicyInfo::default() }.to_bytes();
            let got = read(msg::NEW_POLICY, &fixed, put, |_, attrs| templates(attrs, AF_INET, dir));
            assert_eq!(got.is_ok(), want, "dir {dir}, {algos:x?}: {got:?}");
        }
    }
}
