//! A namespace of the host, fed through a TUN device.

use std::fs;
use std::num::NonZeroU32;
use std::ops::AddAssign;
use std::os::fd::OwnedFd;

use base::Mib;
use driver::DriverKind;
use link::{Link, Sent};
use packet::{Memory, Packet};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use system::{Netns, Outcome};
use wire::Version;

use crate::cases::{OTHER_PROTOCOL, PROTOCOL};

/// Externally visible effects of a train of fragments.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// Packets received by raw sockets, in no order: in IPv4 with header.
    pub(crate) delivered: Vec<Vec<u8>>,
    /// The ICMP errors.
    pub(crate) answers: Vec<Answer>,
    /// Changes of the counters, by name.
    pub(crate) moved: Vec<(&'static str, u64)>,
}

/// One ICMP error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) kind: u8,
    pub(crate) code: u8,
    pub(crate) pointer: u32,
}

impl AddAssign for Seen {
    fn add_assign(&mut self, more: Self) {
        self.delivered.extend(more.delivered);
        self.answers.extend(more.answers);
        if self.moved.is_empty() {
            self.moved = more.moved;
        } else {
            self.moved.iter_mut().zip(more.moved).for_each(|(sum, (_, n))| sum.1 += n);
        }
    }
}

const COUNTED_V4: [Mib; 5] =
    [Mib::IpReasmReqds, Mib::IpReasmOKs, Mib::IpReasmFails, Mib::IpReasmTimeout, Mib::IpExtReasmOverlaps];
const COUNTED_V6: [Mib; 5] =
    [Mib::Ip6ReasmReqds, Mib::Ip6ReasmOKs, Mib::Ip6ReasmFails, Mib::Ip6ReasmTimeout, Mib::Ip6InHdrErrors];

/// The counters of reassembly.
pub(crate) fn moved(version: Version, of: impl Fn(Mib) -> u64) -> Vec<(&'static str, u64)> {
    let counted = if version == Version::V4 { COUNTED_V4 } else { COUNTED_V6 };
    counted.iter().map(|&mib| (mib.name(), of(mib))).collect()
}

pub(crate) struct Host {
    version: Version,
    netns: Netns,
    mem: Memory,
    link: Box<dyn Link>,
    /// One socket for each protocol.
    sockets: [OwnedFd; 2],
    counters: Vec<(&'static str, u64)>,
}

impl Host {
    /// A host with the second of the test addresses.
    pub(crate) fn new(version: Version) -> Outcome<Self> {
        let netns = Netns::new("frag")?;
        let config = link::Config {
            name: "fat0".to_owned(),
            kind: DriverKind::Tun { queues: 1 },
            mac: None,
            mtu: None,
            offloads: false,
            index: None,
        };
        let link = netns.enter(|| link::open(&config)).map_err(|error| error.to_string())?;
        netns.sh("ip addr add 192.0.2.2/24 dev fat0; ip addr add 2001:db8::2/64 dev fat0 nodad
            echo 0 >/proc/sys/net/ipv4/icmp_ratemask; echo 255 >/proc/sys/net/ipv6/icmp/ratemask")?;
        let family = if version == Version::V4 { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = |protocol: wire::Protocol| {
            let protocol = NonZeroU32::new(protocol.0.into()).map(Protocol::from_raw);
            netns.enter(|| socket_with(family, SocketType::RAW, SocketFlags::NONBLOCK, protocol))
        };
        let sockets = [socket(PROTOCOL)?, socket(OTHER_PROTOCOL)?];
        let mut host = Self { version, netns, mem: Memory::heap(), link, sockets, counters: Vec::new() };
        host.seen()?;
        Ok(host)
    }

    /// Changes sysctls of the family's reassembly, each `name=value`.
    pub(crate) fn set(&self, settings: &[&str]) -> Outcome {
        for setting in settings {
            let (name, value) = setting.split_once('=').ok_or("a setting is name=value")?;
            let family = if name.starts_with("ip6") { "ipv6" } else { "ipv4" };
            // The lower threshold has no effect, but may not exceed the upper one.
            let low = name.replace("high", "low");
            let before = if low == name { "" } else { "echo 0 >" };
            let path = |name: &str| format!("/proc/sys/net/{family}/{name}");
            let lower = if before.is_empty() { String::new() } else { format!("{before}{}; ", path(&low)) };
            self.netns.sh(&format!("{lower}echo {value} >{}", path(name)))?;
        }
        Ok(())
    }

    /// Sends fragments, one by one, and returns the effects.
    pub(crate) fn send(&mut self, fragments: &[Vec<u8>]) -> Outcome<Seen> {
        for bytes in fragments {
            let mut burst = vec![Packet::with_data(&self.mem, bytes).map_err(|dry| dry.to_string())?];
            assert_eq!(self.link.send(&mut burst)?, Sent::All);
        }
        self.seen()
    }

    /// Effects since the last call.
    pub(crate) fn seen(&mut self) -> Outcome<Seen> {
        let mut delivered = Vec::new();
        let mut buffer = vec![0; 70_000];
        for socket in &self.sockets {
            while let Ok((_, len)) = recv(socket, &mut buffer[..], RecvFlags::empty()) {
                delivered.push(buffer[..len].to_vec());
            }
        }
        delivered.sort();
        let mut sent = Vec::new();
        self.link.recv(&self.mem, &mut sent)?;
        let answers = sent.iter().filter_map(|pkt| answer(&pkt.to_vec())).collect();
        let now = self.counters()?;
        let since = |(name, value): &(&'static str, u64)| {
            let before = self.counters.iter().find(|(other, _)| other == name).map_or(0, |(_, before)| *before);
            (*name, value - before)
        };
        let moved = now.iter().map(since).collect();
        self.counters = now;
        Ok(Seen { delivered, answers, moved })
    }

    fn counters(&self) -> Outcome<Vec<(&'static str, u64)>> {
        let text = self.proc(match self.version {
            Version::V4 => &["snmp", "netstat"],
            Version::V6 => &["snmp6"],
        })?;
        let v6 = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
        };
        // A line of names and a line of values, each after its group.
        let v4 = |name: &str| {
            let (group, name) = name.strip_prefix("IpExt").map_or(("Ip: ", &name[2..]), |name| ("IpExt: ", name));
            let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
            let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
            let found = names.split(' ').zip(values.split(' ')).find(|(other, _)| *other == name);
            found.and_then(|(_, value)| value.parse().ok()).unwrap_or_default()
        };
        Ok(moved(self.version, |mib| if self.version == Version::V4 { v4(mib.name()) } else { v6(mib.name()) }))
    }

    /// Number of waiting datagrams.
    pub(crate) fn queues(&self) -> Outcome<usize> {
        self.usage("inuse")
    }

    /// Memory charged for them.
    pub(crate) fn memory(&self) -> Outcome<usize> {
        self.usage("memory")
    }

    fn usage(&self, what: &str) -> Outcome<usize> {
        let (file, group) = match self.version {
            Version::V4 => ("sockstat", "FRAG:"),
            Version::V6 => ("sockstat6", "FRAG6:"),
        };
        let text = self.proc(&[file])?;
        let line = text.lines().find_map(|line| line.strip_prefix(group)).ok_or("no line of reassembly")?;
        let mut words = line.split_whitespace().skip_while(|&word| word != what);
        Ok(words.nth(1).ok_or("no such figure")?.parse()?)
    }

    fn proc(&self, files: &[&str]) -> Outcome<String> {
        let read = || files.iter().map(|file| fs::read_to_string(format!("/proc/thread-self/net/{file}"))).collect();
        let texts: Result<Vec<_>, _> = self.netns.enter(read);
        Ok(texts?.concat())
    }
}

/// Parses a packet as an ICMP error.
fn answer(bytes: &[u8]) -> Option<Answer> {
    let message = match (bytes.first()? >> 4, bytes.get(6)?, bytes.get(9)?) {
        (4, _, 1) => bytes.get(20..28)?,
        (6, 58, _) => bytes.get(40..48)?,
        _ => return None,
    };
    let &[kind, code, _, _, a, b, c, d] = message else { return None };
    let is_error = if bytes[0] >> 4 == 4 { matches!(kind, 3 | 11 | 12) } else { kind < 128 };
    is_error.then_some(Answer { kind, code, pointer: u32::from_be_bytes([a, b, c, d]) })
}
