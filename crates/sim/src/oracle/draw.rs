//! Random SAs, policies and flows.

use std::net::IpAddr;
use std::time::Duration;

use base::PortId;
use wire::{FlowKey, Protocol, Spi};
use xfrm::Algorithm;
use xfrm::{
    Action, Dir, EspInUdp, Flowi, Level, Lifetime, Limits, Mark, Mode, PolicyConfig, PortMask, SaConfig, SaDir,
    SaFlags, Selector, Template,
};

use crate::Choices;

/// Small sets of values, so that operations collide: tunnel endpoints, hosts, and their prefixes.
const ENDS: [[&str; 3]; 2] = [["192.0.2.1", "192.0.2.2", "0.0.0.0"], ["2001:db8::1", "2001:db8::2", "::"]];
pub(super) const HOSTS: [[&str; 3]; 2] =
    [["10.1.0.1", "10.1.2.3", "10.2.0.1"], ["fd00:1::1", "fd00:1:2::3", "fd00:2::1"]];
const NETS: [[&str; 6]; 2] = [
    ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "10.2.0.0/16", "0.0.0.0/0"],
    ["::/0", "fd00::/16", "fd00:1::/32", "fd00:1:2::3/128", "fd00:2::/32", "::/0"],
];
const MARKS: [Mark; 4] = [
    Mark { value: 1, mask: 1 },
    Mark { value: 2, mask: 3 },
    Mark { value: 0, mask: 1 },
    // A value with a bit outside the mask, which matches nothing.
    Mark { value: 5, mask: 1 },
];
const PORTS: [PortMask; 6] = [
    PortMask::ANY,
    PortMask::ANY,
    PortMask::ANY,
    PortMask::exactly(53),
    PortMask { port: 48, mask: 0xfff0 },
    PortMask { port: 7, mask: 0 },
];
const PROTOCOLS: [Option<Protocol>; 4] = [None, None, Some(Protocol::UDP), Some(Protocol::TCP)];
const MODES: [Mode; 2] = [Mode::Tunnel, Mode::Transport];

/// `family`, or occasionally the other family.
pub(super) fn family(choices: &mut Choices<'_>, family: usize) -> usize {
    if choices.once_in(32) { 1 - family } else { family }
}

/// A tunnel endpoint.
pub(super) fn end(choices: &mut Choices<'_>) -> IpAddr {
    ENDS[usize::from(choices.byte() & 1)][usize::from(choices.byte() & 1)].parse().expect("an address")
}

/// Source and destination of a tunnel. Either may be unspecified.
pub(super) fn ends(choices: &mut Choices<'_>) -> (IpAddr, IpAddr) {
    let of = usize::from(choices.once_in(3));
    let from = family(choices, of);
    let to = usize::from(choices.byte() & 1);
    let src = ENDS[from][if choices.once_in(4) { 2 } else { 1 - to }];
    let dst = ENDS[of][if choices.once_in(32) { 2 } else { to }];
    (src.parse().expect("an address"), dst.parse().expect("an address"))
}

pub(super) fn spi(choices: &mut Choices<'_>) -> Spi {
    Spi(0x100 + u32::from(choices.byte() & 3))
}

pub(super) fn dir(choices: &mut Choices<'_>) -> Dir {
    choices.pick(&[Dir::Out, Dir::In, Dir::Fwd, Dir::Out])
}

pub(super) fn mark(choices: &mut Choices<'_>) -> Mark {
    if choices.once_in(8) { choices.pick(&MARKS) } else { Mark::ANY }
}

pub(super) fn lifetime(choices: &mut Choices<'_>) -> Lifetime {
    let bits = choices.byte();
    let limits = |bits: u8| match bits & 7 {
        7 => Limits { added: Some(Duration::from_secs(u64::from(bits >> 3 & 15))), ..Limits::NONE },
        _ => Limits::NONE,
    };
    Lifetime { soft: limits(bits), hard: limits(bits.rotate_left(4)) }
}

pub(super) fn selector(choices: &mut Choices<'_>) -> Selector {
    let of = usize::from(choices.once_in(3));
    let other = family(choices, of);
    let mut net = |of: usize| choices.pick(&NETS[of]).parse().expect("a prefix");
    let (src, dst) = (net(of), net(other));
    Selector {
        protocol: choices.pick(&PROTOCOLS),
        sport: choices.pick(&PORTS),
        dport: choices.pick(&PORTS),
        dev: choices.once_in(12).then_some(PortId(1)),
        ..Selector::new(src, dst)
    }
}

pub(super) fn sa(choices: &mut Choices<'_>) -> SaConfig {
    let bits = choices.byte();
    let ((src, dst), spi, mode) = (ends(choices), spi(choices), choices.pick(&MODES));
    let port = choices.pick(&[500, 4500]);
    SaConfig {
        reqid: u32::from(choices.byte() & 1),
        replay_window: 32 * u32::from(bits & 3 != 0),
        dir: match (bits & 3, bits >> 6) {
            (0, _) => Some(SaDir::Out),
            (1, 0) => Some(SaDir::In),
            _ => None,
        },
        flags: SaFlags {
            esn: bits & 12 == 12,
            af_unspec: bits & 16 == 0,
            wildrecv: bits & 3 != 0 && choices.once_in(8),
            ..SaFlags::default()
        },
        encap: (bits & 32 != 0).then_some(EspInUdp { sport: port, dport: port }),
        selector: (bits & 192 == 192).then(|| selector(choices)).filter(|it| it.src.is_ipv4() == it.dst.is_ipv4()),
        mark: mark(choices),
        if_id: u32::from(choices.once_in(12)),
        lifetime: lifetime(choices),
        ..SaConfig::new(src, dst, spi, mode, Algorithm::null())
    }
}

pub(super) fn policy(choices: &mut Choices<'_>) -> PolicyConfig {
    let template = |choices: &mut Choices<'_>| {
        let (bits, (src, dst)) = (choices.byte(), ends(choices));
        Template {
            src: (bits & 3 != 0).then_some(src),
            dst: (bits & 60 != 0).then_some(dst),
            spi: (bits & 60 == 60).then(|| spi(choices)),
            mode: if choices.once_in(4) { Mode::Transport } else { Mode::Tunnel },
            reqid: u32::from(bits >> 6 & 1),
            level: if bits & 0x83 == 0x83 { Level::Use } else { Level::Required },
        }
    };
    let n = choices.pick(&[0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 5, 6, 7]);
    PolicyConfig {
        priority: u32::from(choices.byte() & 3),
        action: if choices.once_in(8) { Action::Block } else { Action::Allow },
        templates: (0..n).map(|_| template(choices)).collect(),
        mark: mark(choices),
        if_id: u32::from(choices.once_in(12)),
        lifetime: lifetime(choices),
        ..PolicyConfig::new(dir(choices), selector(choices))
    }
}

pub(super) fn flow(choices: &mut Choices<'_>) -> Flowi {
    let of = usize::from(choices.once_in(3));
    let mut host = || choices.pick(&HOSTS[of]).parse().expect("an address");
    let (src, dst) = (host(), host());
    let key = FlowKey {
        src,
        dst,
        protocol: choices.pick(&[Protocol::UDP, Protocol::UDP, Protocol::TCP, Protocol::ICMP]),
        sport: choices.pick(&[53, 7, 50]),
        dport: choices.pick(&[53, 63, 80]),
    };
    let (mark, if_id) = (choices.pick(&[0, 0, 0, 1, 2, 3]), u32::from(choices.once_in(12)));
    let bits = choices.byte();
    let device = |bit: u8| (bits >> bit & 1 == 1).then_some(PortId(1));
    Flowi { key, mark, if_id, link: device(0), domain_device: device(1) }
}
