//! A node with every kind of configuration, for malicious packets.

use std::sync::LazyLock;
use std::time::Duration;

use base::{Counters, DropReason, Instant, Mib, PortId};
use datapath::IkeAt;
use fib::{Fib, RouteKind};
use packet::{Cut, Packet};
use wire::ip::Info;
use wire::{EtherType, Protocol, eth, udp};
use xfrm::{Algorithm, Auth, AuthConfig, Enc};
use xfrm::{Dir, Mode, PolicyConfig, SaConfig, Template};

use crate::{Medium, Node, PortOptions, Wire, esp, policy, unique_mask};

/// Routes and addresses of each [`FullNode`], built once: a fuzzer makes thousands of nodes a second.
static FIB: LazyLock<Fib> = LazyLock::new(|| {
    let mut node = Node::new();
    for (id, (options, addresses)) in FullNode::PORTS.into_iter().zip(FullNode::ports()) {
        node.port(id.0, options, &addresses);
    }
    let [_, ethernet, socket, small] = FullNode::PORTS;
    node.route("10.5.0.0/16", Some("192.0.2.1"), socket);
    node.route("fd00:5::/32", Some("2001:db8::1"), socket);
    node.route("10.3.0.0/16", Some("10.2.0.1"), ethernet);
    node.route("fd00:3::/32", Some("fd00:4::1"), small);
    node.route_of("10.7.0.0/16", RouteKind::Blackhole);
    node.route_of("10.8.0.0/16", RouteKind::Unreachable);
    node.route_of("fd00:8::/32", RouteKind::Prohibit);
    node.datapath.fib
});

/// Inbound SAs of each [`FullNode`].
static SAS: LazyLock<Vec<SaConfig>> = LazyLock::new(FullNode::inbound);

/// Policies of each [`FullNode`].
static POLICIES: LazyLock<Vec<PolicyConfig>> = LazyLock::new(FullNode::policies);

/// Outbound SAs of each [`FullNode`], for the templates of its policies.
static OUTBOUND: LazyLock<Vec<SaConfig>> = LazyLock::new(|| {
    let out = POLICIES.iter().filter(|policy| policy.dir == Dir::Out);
    let sa = |template: &Template| {
        let [src, dst] = [template.src, template.dst].map(|addr| addr.expect("a tunnel has ends").to_string());
        esp(&src, &dst, template.reqid, Mode::Tunnel, template.reqid == 0x100)
    };
    out.flat_map(|policy| &policy.templates).map(sa).collect()
});

/// A node with two Ethernet ports and two bare ones of different offloads, routes of every kind, SAs of every kind (the
/// first with NULL ciphers, so that forged packets are accepted), and policies.
///
/// Each packet must be accounted for: sent, held, delivered or counted as dropped. [`rx`](Self::rx) checks this, and
/// that a call leaves no work to the next event; [`send`](Self::send) checks that the links can send the packets.
#[derive(Debug)]
pub struct FullNode {
    /// The node.
    pub node: Node,
    now: Instant,
}

impl FullNode {
    /// The ports: a guest's, an Ethernet port without offloads, a UDP socket's, an Ethernet port with all offloads.
    pub const PORTS: [PortId; 4] = [PortId(1), PortId(2), PortId(3), PortId(4)];

    /// Options and addresses of each port.
    fn ports() -> [(PortOptions, [&'static str; 2]); 4] {
        [
            (PortOptions::BARE.mtu(9000), ["10.1.0.254/24", "fd00:1::254/64"]),
            (PortOptions::ethernet(2), ["10.2.0.254/24", "fd00:2::254/64"]),
            (PortOptions::BARE, ["192.0.2.2/24", "2001:db8::2/64"]),
            (PortOptions::ethernet(4).mtu(1280).features(offload::Features::ALL), ["10.4.0.254/24", "fd00:4::254/64"]),
        ]
    }

    /// SPIs 1 to 24: inbound SAs from 192.0.2.1 or 2001:db8::1, tunnel or transport, raw or in UDP; the first eight
    /// with NULL, then eight with AES-GCM, and eight with AES-CBC and HMAC.
    pub fn sas() -> &'static [SaConfig] {
        &SAS
    }

    fn inbound() -> Vec<SaConfig> {
        let kinds = (0..24_u32).map(|bits| {
            let ends = if bits & 1 == 0 { ["192.0.2.1", "192.0.2.2"] } else { ["2001:db8::1", "2001:db8::2"] };
            let mode = if bits & 2 == 0 { Mode::Tunnel } else { Mode::Transport };
            let sa = esp(ends[0], ends[1], bits + 1, mode, bits & 4 != 0);
            let algorithm = match bits >> 3 {
                0 => Algorithm::null(),
                1 => sa.algorithm.clone(),
                _ => Algorithm::separate(
                    Enc::CbcAes,
                    vec![bits as u8; 16].into(),
                    Some(AuthConfig::new(Auth::HmacSha256, vec![7; 32].into(), 128)),
                ),
            };
            SaConfig { algorithm, reqid: 1 + (bits & 1), ..sa }
        });
        kinds.collect()
    }

    fn policies() -> Vec<PolicyConfig> {
        let out = [esp("192.0.2.2", "192.0.2.1", 0x100, Mode::Tunnel, true)];
        let out_v6 = [esp("2001:db8::2", "2001:db8::1", 0x101, Mode::Tunnel, false)];
        let sas = Self::sas();
        let (fwd, fwd_v6) = (&sas[..1], &sas[1..2]);
        vec![
            policy(Dir::Out, "10.0.0.0/8", "10.5.0.0/16", &out),
            policy(Dir::Out, "fd00::/16", "fd00:5::/32", &out_v6),
            policy(Dir::Fwd, "10.5.0.0/16", "0.0.0.0/0", fwd),
            policy(Dir::In, "10.5.0.0/16", "0.0.0.0/0", fwd),
            policy(Dir::Fwd, "fd00:5::/32", "::/0", fwd_v6),
            policy(Dir::In, "fd00:5::/32", "::/0", fwd_v6),
            PolicyConfig { action: xfrm::Action::Block, ..policy(Dir::Fwd, "10.6.0.0/16", "0.0.0.0/0", &[]) },
        ]
    }

    /// The node in its initial state.
    ///
    /// # Panics
    /// Never: its configuration is valid.
    pub fn new() -> Self {
        let mut node = Node::new();
        node.datapath.fib = FIB.clone();
        for (id, (options, _)) in Self::PORTS.into_iter().zip(Self::ports()) {
            node.port(id.0, options, &[]);
        }
        let [_, ethernet, _, small] = Self::PORTS;
        node.datapath.set_ike(vec![(ethernet, IkeAt::Node), (small, IkeAt::Node)]);
        let ipsec = &mut node.datapath.ipsec;
        for sa in OUTBOUND.iter().chain(Self::sas()) {
            ipsec.add_sa(sa, unique_mask()).expect("a good SA");
        }
        for policy in &*POLICIES {
            ipsec.add_policy(policy.clone()).expect("a good policy");
        }
        Self { node, now: Instant::ZERO + Duration::from_secs(1) }
    }

    /// Advances the time.
    pub fn pass(&mut self, how_long: Duration) {
        self.now = self.now + how_long;
        self.node.timeout(self.now);
        self.check_nothing_is_left();
    }

    /// Sets a link up or down.
    pub fn set_up(&mut self, link: PortId, up: bool) {
        self.node.datapath.set_up(self.now, &self.node.mem, link, up);
        self.check_nothing_is_left();
    }

    /// Checks that the last call left no work behind: a further `finish` changes nothing.
    fn check_nothing_is_left(&mut self) {
        let before = self.work_done();
        self.node.datapath.finish(self.now, &self.node.mem);
        assert_eq!(self.work_done(), before, "left to the next event");
    }

    /// Numbers of packets queued at each port and for neighbours, drops, and counters.
    fn work_done(&mut self) -> WorkDone {
        let Node { datapath, .. } = &mut self.node;
        let sent =
            Self::PORTS.into_iter().map(|port| datapath.take_tx(port).map_or(0, |waiting| waiting.len())).collect();
        let counters = datapath.counters.clone();
        WorkDone { sent, waiting: self.node.waiting(), drops: self.node.drops(), counters }
    }

    /// Receives one packet, and checks that the packet is accounted for.
    ///
    /// # Panics
    /// If the packet is not accounted for.
    pub fn rx(&mut self, link: PortId, pkt: Packet) {
        // Text is made of them for a finding alone.
        let (meta, bytes) = (pkt.meta.clone(), pkt.to_vec());
        let case = || format!("{meta:?} by {link:?}: {:02x?}", &bytes[..bytes.len().min(120)]);
        let plain = meta.cut == Cut::Whole;
        let quiet = self.ends_quietly(link, &bytes);
        let before = self.ends(link);
        self.node.rx(self.now, link, vec![pkt]);
        let after = self.ends(link);
        assert!(after.all() > before.all() || quiet, "lost: {}", case());
        self.check_nothing_is_left();
        if plain && before.held == 0 && self.node.datapath.counters.get(Mib::IpFragCreates) == 0 {
            let dropped = after.dropped_of_link - before.dropped_of_link;
            assert!(dropped <= 1, "dropped {dropped} times: {}", case());
        }
    }

    /// Receives a burst, and checks that each packet is accounted for.
    ///
    /// # Panics
    /// If a packet is not accounted for.
    pub fn rx_burst(&mut self, link: PortId, packets: Vec<Packet>) {
        let quiet = packets.iter().all(|pkt| self.ends_quietly(link, &pkt.to_vec()));
        let before = self.ends(link);
        self.node.rx(self.now, link, packets);
        assert!(self.ends(link).all() > before.all() || quiet, "lost a burst");
        self.check_nothing_is_left();
    }

    /// Sends the packets queued at a port, and checks them.
    ///
    /// # Panics
    /// If the device cannot send a packet, or a packet is too long or malformed.
    pub fn send(&mut self, link: PortId) -> usize {
        let port = self.node.datapath.ports.get(link).expect("a port");
        let (features, l3) = (port.config.features, if port.config.mac.is_some() { eth::EthHeader::LEN } else { 0 });
        let wire = Wire::new(Medium::Cable, port.config.mtu);
        let sent = self.node.tx(link);
        let n = sent.len();
        let mut frames = Vec::new();
        sent.into_iter().for_each(|pkt| wire.cut(&self.node.mem, &features, pkt, l3, &mut frames));
        for frame in &frames {
            let bytes = frame.to_vec();
            let is_arp = l3 > 0 && eth::EthHeader::ref_from(&bytes).is_ok_and(|eth| eth.ethertype() == EtherType::ARP);
            let info = Info::parse(&bytes[l3..], bytes.len() - l3);
            assert!(is_arp || info.is_ok_and(|info| info.total_len == bytes.len() - l3), "sent {bytes:02x?}");
        }
        n
    }

    /// Shuts down, and checks that no page is leaked.
    ///
    /// # Panics
    /// If a page is leaked.
    pub fn finish(mut self) {
        // The removal of a neighbour causes errors for the packets that wait for it, and the errors may wait for
        // neighbours in turn.
        for _ in 0..2 {
            for link in Self::PORTS {
                self.send(link);
                self.set_up(link, false);
            }
        }
        for link in Self::PORTS {
            self.node.datapath.remove_port(self.now, &self.node.mem, link);
        }
        let Node { datapath, mem, .. } = self.node;
        drop(datapath);
        assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
    }

    fn ends(&mut self, link: PortId) -> Ends {
        let datapath = &mut self.node.datapath;
        datapath.take_ike();
        let packets = |waiting: &mut Vec<Packet>| waiting.iter().map(|pkt| pkt.meta.cut.packets()).sum();
        let sent = Self::PORTS.into_iter().map(|port| datapath.take_tx(port).map_or(0, packets)).sum();
        let drops = |of_link: Option<PortId>| {
            let drops = datapath.ports.drop_counts().filter(|&(by, ..)| of_link.is_none_or(|link| by == Some(link)));
            drops.map(|(.., n)| n).sum()
        };
        let taken_in = [
            Mib::IcmpOutEchoReps,
            Mib::Icmp6OutEchoReplies,
            Mib::Icmp6InNeighborSolicits,
            Mib::Icmp6InNeighborAdvertisements,
            Mib::IpReasmReqds,
            Mib::Ip6ReasmReqds,
            // IKE messages for a key manager.
            Mib::UdpInDatagrams,
            Mib::Udp6InDatagrams,
            // Datagrams to groups and broadcasts that no program listens to.
            Mib::UdpIgnoredMulti,
            Mib::Udp6IgnoredMulti,
        ];
        Ends {
            dropped: drops(None),
            dropped_of_link: drops(Some(link)),
            sent,
            held: self.node.waiting() as u64,
            taken_in: taken_in.into_iter().map(|mib| self.node.datapath.counters.get(mib)).sum::<u64>()
                + self.node.datapath.path_mtus_learnt,
        }
    }

    /// Tells whether a packet may end uncounted: ARP, the keepalives of ESP in UDP (RFC 3948 §2.3), and multicast that is for
    /// others: memberships of groups, and router discovery.
    fn ends_quietly(&self, link: PortId, bytes: &[u8]) -> bool {
        let ethernet = self.node.datapath.ports.get(link).is_some_and(|port| port.config.mac.is_some());
        let l3 = if ethernet { eth::EthHeader::LEN } else { 0 };
        if ethernet && eth::EthHeader::ref_from(bytes).is_ok_and(|eth| eth.ethertype() == EtherType::ARP) {
            return true;
        }
        let Some(ip) = bytes.get(l3..) else { return false };
        Info::parse(ip, ip.len()).is_ok_and(|info| {
            let payload = &ip[info.header_len..info.total_len];
            let is_of_others = match info.protocol {
                Protocol::ICMPV6 => matches!(payload.first(), Some(130..=136 | 143)),
                protocol => protocol == Protocol(2),
            };
            let is_to_others = info.dst.is_multicast() && is_of_others;
            is_to_others || info.protocol == Protocol::UDP && payload.get(udp::UdpHeader::LEN) == Some(&0xff)
        })
    }
}

impl Default for FullNode {
    fn default() -> Self {
        Self::new()
    }
}

/// Visible work of a call.
#[derive(Debug, Eq, PartialEq)]
struct WorkDone {
    sent: Vec<usize>,
    waiting: usize,
    drops: Vec<(u32, DropReason, u64)>,
    counters: Counters,
}

/// Numbers of packets so far, by outcome.
#[derive(Clone, Copy, Debug)]
struct Ends {
    dropped: u64,
    dropped_of_link: u64,
    sent: u64,
    held: u64,
    taken_in: u64,
}

impl Ends {
    fn all(self) -> u64 {
        self.dropped + self.sent + self.held + self.taken_in
    }
}
