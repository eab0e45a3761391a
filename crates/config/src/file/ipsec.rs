//! `[[sa]]` and `[[policy]]`, with the words of `ip xfrm state add` and `ip xfrm policy add`.

use std::net::IpAddr;

use base::{Prefix, ShardCount};
use wire::{Protocol, Spi};
use xfrm::{
    Action, Dir, EspInUdp, Level, MAX_WINDOW, Mode, PolicyConfig, PolicyKey, PortMask, SaConfig, SaDir, SaFlags,
    Selector, Template,
};

use super::index::Index;
use super::reader::{Refers, Result, Table, Value, one_of, quoted};
use super::{algorithm, nat, xfrm as parts};
use crate::model::Config;
use crate::protocols::{PROTOCOLS, WITH_PORTS};

pub(super) const SA_KEYS: &[&str] = &[
    "src",
    "dst",
    "proto",
    "spi",
    "dir",
    "mode",
    "reqid",
    "aead",
    "enc",
    "auth",
    "auth-trunc",
    "replay-window",
    "replay-seq",
    "replay-seq-hi",
    "replay-oseq",
    "replay-oseq-hi",
    "flags",
    "encap",
    "sel",
    "mark",
    "output-mark",
    "if_id",
    "limit",
    "tfcpad",
    "pcpu-num",
    nat::KEYS[0],
    nat::KEYS[1],
    nat::KEYS[2],
];
pub(super) const POLICY_KEYS: &[&str] =
    &["dir", "src", "dst", "proto", "sport", "dport", "priority", "action", "tmpl", "mark", "if_id", "limit"];
const SELECTOR_KEYS: &[&str] = &["src", "dst", "proto", "sport", "dport"];

/// Highest number of a CPU in an SA.
const MAX_PCPU: u32 = ShardCount::MAX as u32 - 1;

/// Maximum number of templates in a usable policy, one fewer than Linux accepts in a request.
const MAX_TEMPLATES: usize = xfrm::MAX_TEMPLATES - 1;

/// Reads one SA. `config` contains all links, and `index` the earlier SAs.
pub(super) fn read_sa(table: &Table<'_>, config: &Config, index: &Index) -> Result<SaConfig> {
    esp_alone(table)?;
    let (src, dst) = (table.need("src", "use the outer source")?, table.need("dst", "use the outer destination")?);
    let (src_addr, dst_addr) = (address(&src)?, address(&dst)?);
    same_family(src_addr, dst_addr, &dst)?;
    let spi_value = table.need("spi", "use a number, such as 0x1000")?;
    let number = spi_value.number(1..=u32::MAX)?; // 0 is never sent: RFC 4303 §2.1.
    let (spi, mark) = (Spi(number), parts::mark(table, "mark")?);
    if let Some(n) = index.sa(&(dst_addr, spi, mark)) {
        let what = format!("{number:#x} with destination {dst_addr} is already {n}; use another SPI");
        return Err(spi_value.error(what));
    }
    let dir = table.get("dir").map(|value| value.word(SaDir::WORDS)).transpose()?;
    let mode = table.get("mode").map_or(Ok(Mode::Transport), |value| value.word(Mode::WORDS))?;
    let reqid = table.get("reqid").map_or(Ok(0), |value| value.number(0..=u32::MAX))?;
    let algorithm = algorithm::read(table)?;
    let flags = table.get("flags").map_or(Ok(SaFlags::default()), |value| sa_flags(&value, dir))?;
    let replay_window = replay_window(table, flags, dir)?;
    let encap = table.get("encap").map(|value| encap(&value)).transpose()?;
    let cpu = table.get("pcpu-num").map(|value| value.number(0..=MAX_PCPU)).transpose()?;
    check_udp_link(table, config, (src_addr, dst_addr), encap, cpu)?;
    let selector = table.get("sel").map(|value| sa_selector(&value, mode, src_addr)).transpose()?;
    let tfcpad = table.get("tfcpad").map_or(Ok(0), |value| tfcpad(&value, mode, dir))?;
    let nat = nat::read(table, encap, dir, replay_window)?;
    let seq = sequence(table, flags, dir, ("replay-seq", "replay-seq-hi"), SaDir::In)?;
    let oseq = sequence(table, flags, dir, ("replay-oseq", "replay-oseq-hi"), SaDir::Out)?;
    let (src, dst) = (src_addr, dst_addr);
    let (output_mark, if_id, lifetime) =
        (parts::mark(table, "output-mark")?, parts::if_id(table)?, parts::sa_lifetime(table)?);
    Ok(SaConfig {
        dir,
        reqid,
        replay_window,
        flags,
        encap,
        selector,
        seq,
        oseq,
        mark,
        output_mark,
        if_id,
        lifetime,
        tfcpad,
        nat,
        cpu,
        ..SaConfig::new(src, dst, spi, mode, algorithm)
    })
}

/// Reads one policy. `config` contains all SAs, and `index` the earlier policies.
pub(super) fn read_policy(table: &Table<'_>, config: &Config, index: &mut Index) -> Result<PolicyConfig> {
    let dir_value = table.need("dir", "use in, out or fwd")?;
    let dir = dir_value.word(Dir::WORDS)?;
    let selector = selector(table)?;
    let (mark, if_id) = (parts::mark(table, "mark")?, parts::if_id(table)?);
    if let Some(n) = index.policy(&PolicyKey { dir, selector, mark, if_id }) {
        let what = format!("{n} has the same direction and selector; take one of them out");
        return Err(dir_value.error(what));
    }
    let priority = table.get("priority").map_or(Ok(0), |value| value.number(0..=u32::MAX))?;
    let action = table.get("action").map_or(Ok(Action::Allow), |value| value.word(Action::WORDS))?;
    let mut templates = Vec::new();
    if let Some(value) = table.get("tmpl") {
        let items = value.list()?;
        if action == Action::Block && !items.is_empty() {
            return Err(value.error("a policy that blocks needs no SA; take the templates out"));
        }
        if items.len() > MAX_TEMPLATES {
            return Err(value.error(format!("{} templates are too many; use at most {MAX_TEMPLATES}", items.len())));
        }
        for item in items {
            templates.push(template(&item, dir, selector, config, index)?);
        }
    }
    let lifetime = parts::policy_lifetime(table)?;
    Ok(PolicyConfig { priority, action, templates, mark, if_id, lifetime, ..PolicyConfig::new(dir, selector) })
}

fn address(value: &Value<'_>) -> Result<IpAddr> {
    let text = value.str()?;
    match text.parse::<IpAddr>() {
        Ok(addr) if !addr.is_unspecified() => Ok(addr),
        _ => Err(value.error(format!("{} is no address of a host; use one such as \"192.0.2.1\"", quoted(text)))),
    }
}

/// Refuses `second`, which was read from `value`, unless both addresses are IPv4 or both IPv6.
fn same_family(first: IpAddr, second: IpAddr, value: &Value<'_>) -> Result<()> {
    if first.is_ipv4() == second.is_ipv4() {
        return Ok(());
    }
    let family = if first.is_ipv4() { "IPv4" } else { "IPv6" };
    Err(value.error(format!("{second} is of another family than {first}; use an {family} address")))
}

/// Checks that `proto`, which iproute2 requires, is ESP if present.
fn esp_alone(table: &Table<'_>) -> Result<()> {
    let Some(value) = table.get("proto") else { return Ok(()) };
    match value.word(&[("esp", None), ("ah", Some("AH")), ("comp", Some("IPComp"))]) {
        Ok(Some(other)) => Err(value.error(format!("{other} is not supported; use esp"))),
        Ok(None) => Ok(()),
        Err(_) => value.word(&[("esp", ())]),
    }
}

/// Flags for one direction only (Linux `verify_newsa_info`).
const ONE_WAY_FLAGS: &[(&str, SaDir)] = &[
    ("decap-dscp", SaDir::In),
    ("wildrecv", SaDir::In),
    ("icmp", SaDir::In),
    ("nopmtudisc", SaDir::Out),
    ("dont-encap-dscp", SaDir::Out),
    ("oseq-may-wrap", SaDir::Out),
];

fn sa_flags(value: &Value<'_>, dir: Option<SaDir>) -> Result<SaFlags> {
    let mut flags = SaFlags::default();
    for item in value.list()? {
        let name = item.str()?;
        if !flags.set(name) {
            let names = one_of(SaFlags::NAMES.iter().copied());
            return Err(item.error(format!("{} is not a flag; use {names}", quoted(name))));
        }
        if let Some((_, its_dir)) =
            ONE_WAY_FLAGS.iter().find(|&&(flag, its)| flag == name && dir.is_some_and(|dir| dir != its))
        {
            return Err(item.error(format!("{name} is for an SA of dir {its_dir}; take it out")));
        }
    }
    Ok(flags)
}

fn replay_window(table: &Table<'_>, flags: SaFlags, dir: Option<SaDir>) -> Result<u32> {
    let window = match table.get("replay-window") {
        Some(value) => {
            let window = value.number(0..=MAX_WINDOW)?;
            if dir == Some(SaDir::Out) {
                return match window {
                    0 => Ok(0),
                    _ => Err(value.error("an SA of dir out receives nothing; take it out")),
                };
            }
            if window == 0 && flags.esn {
                return Err(value.error("ESN replay window must be > 0; use 1 to 4096"));
            }
            window
        }
        None if flags.esn && dir != Some(SaDir::Out) => {
            return Err(table.missing("replay-window", "the flag esn needs one; use 1 to 4096"));
        }
        None => 0,
    };
    Ok(window)
}

/// Initial sequence number of an SA of direction `its`, with its upper half for extended sequence numbers.
fn sequence(
    table: &Table<'_>,
    flags: SaFlags,
    dir: Option<SaDir>,
    (low, high): (&str, &str),
    its: SaDir,
) -> Result<u64> {
    let mut number = 0;
    for (key, shift) in [(low, 0), (high, 32)] {
        let Some(value) = table.get(key) else { continue };
        let half = value.number(0..=u32::MAX)?;
        if half > 0 && dir.is_some_and(|dir| dir != its) {
            return Err(value.error(format!("{key} is for an SA of dir {its}; take it out")));
        }
        if half > 0 && shift > 0 && !flags.esn {
            return Err(value.error("only extended sequence numbers have an upper half; use flags = [\"esn\"]"));
        }
        number |= u64::from(half) << shift;
    }
    Ok(number)
}

/// TFC padding requires a tunnel, whose receiver can distinguish padding from the packet (Linux `verify_newsa_info`).
fn tfcpad(value: &Value<'_>, mode: Mode, dir: Option<SaDir>) -> Result<u32> {
    let tfcpad = value.number(0..=u32::MAX)?;
    match (mode, dir) {
        (Mode::Transport, _) if tfcpad > 0 => Err(value.error("is for mode tunnel alone; take it out")),
        (_, Some(SaDir::In)) => Err(value.error("is for an SA of dir out; take it out")),
        _ => Ok(tfcpad),
    }
}

fn encap(value: &Value<'_>) -> Result<EspInUdp> {
    let table = value.table(&["type", "sport", "dport"])?;
    table.need("type", "use \"espinudp\"")?.word(&[("espinudp", ())])?;
    let port = |key| table.need(key, "use a UDP port, such as 4500")?.number(1..=u16::MAX);
    Ok(EspInUdp { sport: port("sport")?, dport: port("dport")? })
}

/// A UDP link carries only ESP in UDP, with the port that it is bound to; an SA of one CPU may send from a port of its own. If another link
/// has the same address, an SA may use that link, with or without UDP.
fn check_udp_link(
    table: &Table<'_>,
    config: &Config,
    ends: (IpAddr, IpAddr),
    encap: Option<EspInUdp>,
    cpu: Option<u32>,
) -> Result<()> {
    let on_other = |addr| config.links.iter().any(|link| link.addresses.iter().any(|own| own.addr() == addr));
    let bound = |addr: IpAddr| {
        let links = config.links.iter().filter_map(|link| Some((link.kind.bind()?, link.name.as_str())));
        links.filter(move |(bind, _)| bind.ip() == addr).map(|(bind, name)| (bind.port(), name))
    };
    for (addr, port_key, port) in
        [(ends.0, "sport", encap.map(|encap| encap.sport)), (ends.1, "dport", encap.map(|encap| encap.dport))]
    {
        let Some((bound_port, name)) = bound(addr).next() else { continue };
        if on_other(addr) {
            continue;
        }
        match (table.get("encap"), port) {
            (Some(_), Some(_)) if port_key == "sport" && cpu.is_some() => {}
            (Some(value), Some(port)) if !bound(addr).any(|(bound_port, _)| bound_port == port) => {
                let text = format!("link {name} is bound to port {bound_port}; use {port_key} = {bound_port}");
                return Err(value.error(text).about(Refers::Links));
            }
            (Some(_), Some(_)) => {}
            _ => {
                let hint = format!("{addr} is the address of the udp link {name}, which carries ESP in UDP alone");
                return Err(table.missing("encap", &hint).about(Refers::Links));
            }
        }
    }
    Ok(())
}

/// Selector of an SA. In transport mode it matches the outer addresses, so it has their family.
fn sa_selector(value: &Value<'_>, mode: Mode, outer: IpAddr) -> Result<Selector> {
    let selector = selector(&value.table(SELECTOR_KEYS)?)?;
    if mode == Mode::Transport && selector.src.is_ipv4() != outer.is_ipv4() {
        return Err(value.error("in transport mode the selector has the family of src and dst; use theirs"));
    }
    Ok(selector)
}

fn selector(table: &Table<'_>) -> Result<Selector> {
    let prefix = |key| table.get(key).map(|value| Ok((value.prefix(PREFIX_HINT)?, value))).transpose();
    let (src, dst) = match (prefix("src")?, prefix("dst")?) {
        (Some((src, _)), Some((dst, value))) => {
            same_family(src.addr(), dst.addr(), &value)?;
            (src, dst)
        }
        (Some((src, _)), None) => (src, any_like(src)),
        (None, Some((dst, _))) => (any_like(dst), dst),
        (None, None) => return Err(table.missing("src", &format!("use {PREFIX_HINT}"))),
    };
    let proto = table.get("proto").map(|value| proto(&value)).transpose()?;
    let port = |key| {
        let Some(value) = table.get(key) else { return Ok(PortMask::ANY) };
        if !proto.is_some_and(|proto| WITH_PORTS.contains(&proto)) {
            return Err(value.error("a port needs a protocol that has ports; use proto = \"tcp\", \"udp\" or \"sctp\""));
        }
        value.number(1..=u16::MAX).map(PortMask::exactly)
    };
    let (sport, dport) = (port("sport")?, port("dport")?);
    Ok(Selector { protocol: proto.map(Protocol), sport, dport, ..Selector::new(src, dst) })
}

const PREFIX_HINT: &str = "a prefix such as \"10.1.0.0/24\"";

fn any_like(other: Prefix) -> Prefix {
    if other.is_ipv4() { Prefix::ANY_V4 } else { Prefix::ANY_V6 }
}

fn proto(value: &Value<'_>) -> Result<u8> {
    if value.is_number() { value.number(1..=u8::MAX) } else { value.word(PROTOCOLS) }
}

fn template(value: &Value<'_>, dir: Dir, selector: Selector, config: &Config, index: &mut Index) -> Result<Template> {
    let table = value.table(&["src", "dst", "proto", "mode", "reqid", "level"])?;
    esp_alone(&table)?;
    let mode = table.get("mode").map_or(Ok(Mode::Transport), |value| value.word(Mode::WORDS))?;
    let src = table.get("src").map(|value| address(&value)).transpose()?;
    let dst = table.get("dst").map(|value| address(&value)).transpose()?;
    if mode == Mode::Tunnel {
        table.need("src", "a tunnel has an outer source")?;
        table.need("dst", "a tunnel has an outer destination")?;
    }
    if let (Some(src), Some(dst), Some(dst_value)) = (src, dst, table.get("dst")) {
        same_family(src, dst, &dst_value)?;
    }
    if let (Mode::Transport, Some(outer)) = (mode, src.or(dst))
        && outer.is_ipv4() != selector.src.is_ipv4()
    {
        return Err(value.error("in transport mode a template has the family of the policy's selector; use that"));
    }
    let reqid = table.get("reqid").map_or(Ok(0), |value| value.number(0..=u32::MAX))?;
    let level = table.get("level").map_or(Ok(Level::Required), |value| value.word(Level::WORDS))?;
    if let (Dir::Out, Mode::Tunnel, Level::Use, Some(value)) = (dir, mode, level, table.get("level")) {
        return Err(value.error("an optional tunnel would let packets leave in clear; use required"));
    }
    let template = Template { src, dst, spi: None, mode, reqid, level };
    if let Some(n) = index.other_mode(template, &config.sas) {
        let (mode, other) = (template.mode, config.sas[n].mode);
        let sa = index.sa_path(n);
        let text = format!("requires mode {mode}, but {sa} is mode {other}; use one mode for both");
        return Err(value.error(text).about(Refers::Sas));
    }
    Ok(template)
}
