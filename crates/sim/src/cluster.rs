//! A node of several shards, whose turns a seed chooses.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use base::{Counters, DropReason, Instant, PortId, ShardCount, ShardId};
use datapath::{Datapath, FatCounts, HandOver, Traffic, Update};
use packet::{Memory, Packet};
use wire::eth::{EthHeader, EtherType};
use wire::ip::Info;
use wire::{FlowKey, Protocol, vlan};

use crate::{Node, Rng};

/// Change of a node's configuration, the same for each shard.
type Change = Rc<dyn Fn(&mut Node, Instant)>;

/// Function that chooses the shard whose queue a link's packet arrives in.
type Steer = Box<dyn FnMut(ShardCount, &Packet, bool) -> ShardId>;

/// Datapaths that are one node: shards with rings between them and one log of changes and updates. A seed chooses which shard runs next,
/// what it takes, and how many packets a ring has room for. With one shard it is a plain node.
pub struct Cluster {
    members: Vec<Member>,
    count: ShardCount,
    rng: Rng,
    now: Instant,
    /// Packets that a ring from one shard to another has room for.
    ring: usize,
    steer: Steer,
    /// Links that have a queue in the first shard only.
    single: Vec<PortId>,
    /// Packets that have left, in the order in which they did.
    sent: Vec<(PortId, Packet)>,
    handed_over: u64,
    refused: u64,
}

/// A shard with its queues.
struct Member {
    node: Node,
    /// Operations that the shard has yet to apply, in the one order of all shards.
    log: VecDeque<Operation>,
    /// Packets that other shards have handed over, by shard.
    rings: Vec<VecDeque<HandOver>>,
    /// Packets in the shard's queues of the links, in their order of arrival.
    arrived: VecDeque<(PortId, Packet)>,
    /// Whether packets may be in flight in the datapath.
    is_unfinished: bool,
}

/// Operation of the log.
#[derive(Clone)]
enum Operation {
    Change(Change),
    Update(Update),
}

impl Cluster {
    /// Shards that are configured alike.
    pub fn new(count: ShardCount, seed: u64, now: Instant, configure: impl Fn(&mut Node)) -> Self {
        let mut rng = Rng::new(seed);
        let member = |datapath| {
            let mut node = Node { datapath, mem: Memory::heap(), devices: Vec::new() };
            configure(&mut node);
            Member {
                node,
                log: VecDeque::new(),
                rings: (0..count.get()).map(|_| VecDeque::new()).collect(),
                arrived: VecDeque::new(),
                is_unfinished: false,
            }
        };
        let members = Datapath::shards(count).into_iter().map(member).collect();
        let steer = steer_as_nic(rng.bits());
        Self {
            members,
            count,
            rng,
            now,
            ring: usize::MAX,
            steer,
            single: Vec::new(),
            sent: Vec::new(),
            handed_over: 0,
            refused: 0,
        }
    }

    /// Limits the rings to that many packets each.
    #[must_use]
    pub fn with_ring(self, packets: usize) -> Self {
        Self { ring: packets, ..self }
    }

    /// Replaces the choice of a shard for a packet; the last argument tells whether it begins with an Ethernet header. By default a
    /// hash of the flow chooses, as in a NIC.
    #[must_use]
    pub fn steered_by(self, steer: impl FnMut(ShardCount, &Packet, bool) -> ShardId + 'static) -> Self {
        Self { steer: Box::new(steer), ..self }
    }

    /// Makes a link one that has a queue in the first shard only.
    pub fn keep_in_first_shard(&mut self, link: PortId) {
        self.members.iter_mut().for_each(|member| member.node.datapath.set_port_elsewhere(link, true));
        self.single.push(link);
    }

    /// Receives a packet in the queue that `link` has in one of the shards. It is made in the memory of that shard, and once before, to
    /// be steered.
    ///
    /// # Panics
    /// If the link does not exist.
    pub fn arrive(&mut self, link: PortId, make: impl Fn(&Memory) -> Packet) {
        let is_ethernet = self.first().ports.get(link).expect("a port").config.mac.is_some();
        let ShardId(steered) = (self.steer)(self.count, &make(&self.members[0].node.mem), is_ethernet);
        let to = if self.single.contains(&link) { 0 } else { steered };
        let member = &mut self.members[usize::from(to)];
        member.arrived.push_back((link, make(&member.node.mem)));
    }

    /// Appends a change to the log: each shard applies it before its next turn.
    pub fn change(&mut self, change: impl Fn(&mut Node, Instant) + 'static) {
        let change: Change = Rc::new(change);
        for member in &mut self.members {
            member.log.push_back(Operation::Change(change.clone()));
        }
    }

    /// Runs shards in turns, until none has work.
    pub fn settle(&mut self) {
        loop {
            let busy: Vec<usize> = (0..self.members.len()).filter(|&at| self.members[at].has_work()).collect();
            if busy.is_empty() {
                return;
            }
            let at = *self.rng.pick(&busy);
            self.turn(at);
        }
    }

    /// Advances the time, and runs timers and shards at each time at which one is due.
    pub fn advance(&mut self, to: Instant) {
        self.settle();
        loop {
            let due = self.members.iter().filter_map(|member| member.node.datapath.poll_timeout()).min();
            let Some(due) = due.filter(|&due| due <= to) else { break };
            self.now = self.now.max(due);
            // A neighbour that becomes stale now is stale to all shards whose timers send packets now, as in a node of one shard.
            let mut order: Vec<usize> = (1..self.members.len()).collect();
            let mut next = Some(0);
            while let Some(at) = next {
                self.members[at].apply_log(self.now);
                self.members[at].node.timeout(self.now);
                self.spread(at);
                next = (!order.is_empty()).then(|| order.swap_remove(self.rng.below(order.len())));
            }
            self.settle();
        }
        self.now = to;
    }

    /// One turn of a shard: the log, then rings, then a burst, as a worker does.
    pub fn turn(&mut self, at: usize) {
        let (now, rng) = (self.now, &mut self.rng);
        let member = &mut self.members[at];
        member.apply_log(now);
        let Node { datapath, mem, .. } = &mut member.node;
        for ring in &mut member.rings {
            let taken = rng.below(ring.len() + 1).min(ring.len());
            let taken = if rng.happens(500) { ring.len() } else { taken };
            if taken > 0 {
                datapath.receive_handed_over(now, mem, ring.drain(..taken));
                member.is_unfinished = true;
            }
        }
        let most = 1 + rng.below(16);
        let link = member.arrived.front().map(|&(link, _)| link);
        let mut burst = Vec::new();
        while burst.len() < most
            && let Some((_, pkt)) = member.arrived.pop_front_if(|(by, _)| Some(*by) == link)
        {
            burst.push(pkt);
        }
        if let Some(link) = link {
            datapath.receive_burst(now, mem, link, &mut burst);
            assert!(burst.is_empty(), "a burst is taken whole");
            member.is_unfinished = true;
        }
        if member.is_unfinished && (member.is_idle() || rng.happens(300)) {
            member.finish(now);
        }
        self.spread(at);
    }

    /// Gives what a shard has for the others to them, and takes what it has sent.
    fn spread(&mut self, at: usize) {
        let datapath = &mut self.members[at].node.datapath;
        let mut first = PortId(1);
        while let Some(port) = datapath.next_to_send(first) {
            let packets = datapath.take_tx(port).map(std::mem::take).unwrap_or_default();
            self.sent.extend(packets.into_iter().map(|pkt| (port, pkt)));
            first = PortId(port.0 + 1);
        }
        while self.members[at].node.datapath.has_handed_over() {
            let handed_over: Vec<HandOver> = self.members[at].node.datapath.take_handed_over().collect();
            for packet in handed_over {
                let to = usize::from(packet.to().0);
                assert_ne!(to, at, "a shard hands over to others");
                let ring = &mut self.members[to].rings[at];
                if ring.len() < self.ring {
                    ring.push_back(packet);
                    self.handed_over += 1;
                } else {
                    self.members[at].node.datapath.refuse_handed_over(packet);
                    self.refused += 1;
                }
            }
        }
        // What has left is on the wire before others learn of it.
        for updates in self.members[at].node.datapath.take_updates() {
            let others = self.members.iter_mut().enumerate().filter(|&(other, _)| other != at || updates.is_for_all());
            others.for_each(|(_, member)| member.log.push_back(Operation::Update(updates)));
        }
    }

    /// Packets that have left since the last call, each with its port, in an order that each flow's is part of.
    pub fn take_sent(&mut self) -> Vec<(PortId, Packet)> {
        std::mem::take(&mut self.sent)
    }

    /// Time of the last [`advance`](Self::advance).
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The first shard.
    pub fn first(&self) -> &Datapath {
        &self.members[0].node.datapath
    }

    /// A shard's node.
    pub fn node(&mut self, at: usize) -> &mut Node {
        &mut self.members[at].node
    }

    /// Each shard's node.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.members.iter().map(|member| &member.node)
    }

    /// Packets that one shard has handed to another.
    pub const fn handed_over(&self) -> u64 {
        self.handed_over
    }

    /// Packets that found no room in a ring.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Linux's counters of all shards.
    pub fn counters(&self) -> Counters {
        self.nodes().fold(Counters::ZERO, |sum, node| add(sum, &node.datapath.counters))
    }

    /// Linux's counters of a port in all shards.
    pub fn counters_of(&self, port: PortId) -> Counters {
        self.nodes()
            .filter_map(|node| node.datapath.ports.get(port))
            .fold(Counters::ZERO, |sum, port| add(sum, &port.counters))
    }

    /// Forwarded packets of all shards, and their bytes.
    pub fn forwarded(&self) -> [u64; 2] {
        self.nodes()
            .map(|node| node.datapath.forwarded)
            .fold([0; 2], |[packets, bytes], more| [packets + more.packets, bytes + more.bytes])
    }

    /// Fat packets of a port in all shards.
    pub fn fat(&self, port: PortId) -> FatCounts {
        let of_shards = self.nodes().filter_map(|node| node.datapath.ports.get(port));
        of_shards.map(|port| port.fat).fold(FatCounts::default(), |sum, more| FatCounts {
            rx_gro_packets: sum.rx_gro_packets + more.rx_gro_packets,
            rx_gro_segs: sum.rx_gro_segs + more.rx_gro_segs,
            rx_esp_gro_packets: sum.rx_esp_gro_packets + more.rx_esp_gro_packets,
            tx_gso_packets: sum.tx_gso_packets + more.tx_gso_packets,
            tx_gso_segs: sum.tx_gso_segs + more.tx_gso_segs,
            tx_gso_cut_packets: sum.tx_gso_cut_packets + more.tx_gso_cut_packets,
            tx_gso_cut_segs: sum.tx_gso_cut_segs + more.tx_gso_cut_segs,
        })
    }

    /// Packets that passed by a virtual device in all shards.
    pub fn traffic(&self, port: PortId) -> Traffic {
        let of_shards = self.nodes().filter_map(|node| node.datapath.ports.get(port));
        of_shards.map(|port| port.traffic).fold(Traffic::default(), |sum, more| Traffic {
            rx_packets: sum.rx_packets + more.rx_packets,
            rx_bytes: sum.rx_bytes + more.rx_bytes,
            tx_packets: sum.tx_packets + more.tx_packets,
            tx_bytes: sum.tx_bytes + more.tx_bytes,
            tx_errors: sum.tx_errors + more.tx_errors,
        })
    }

    /// Drops of all shards: by the number of the link, or 0 for packets of the node, and reason.
    pub fn drops(&self) -> BTreeMap<(u32, &'static str), u64> {
        let mut sums = BTreeMap::new();
        for (link, reason, n) in self.nodes().flat_map(Node::drops) {
            *sums.entry((link, DropReason::name(reason))).or_default() += n;
        }
        sums
    }

    /// Number of pages that packets hold, in all shards and between them.
    pub fn pages_in_use(&self) -> usize {
        self.nodes().map(Node::pages_in_use).sum()
    }
}

impl Member {
    fn has_work(&self) -> bool {
        !self.is_idle() || self.is_unfinished || !self.log.is_empty()
    }

    /// Tells whether no packet waits for the shard.
    fn is_idle(&self) -> bool {
        self.arrived.is_empty() && self.rings.iter().all(VecDeque::is_empty)
    }

    fn apply_log(&mut self, now: Instant) {
        while let Some(operation) = self.log.pop_front() {
            match operation {
                Operation::Change(change) => {
                    self.finish(now);
                    change(&mut self.node, now);
                }
                Operation::Update(updates) => self.node.datapath.follow(now, &self.node.mem, updates),
            }
        }
    }

    fn finish(&mut self, now: Instant) {
        self.node.datapath.finish(now, &self.node.mem);
        self.is_unfinished = false;
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("shards", &self.count).field("now", &self.now).finish_non_exhaustive()
    }
}

fn add(sum: Counters, more: &Counters) -> Counters {
    more.iter().fold(sum, |mut sum, (which, n)| {
        sum.add(which, n);
        sum
    })
}

/// Steering as a NIC does: fragments by their addresses, ESP by the owner of its SPI, other packets by their flow, ARP by chance.
fn steer_as_nic(seed: u64) -> Steer {
    let mut rng = Rng::new(seed);
    Box::new(move |count, pkt, is_ethernet| {
        let bytes = pkt.to_vec();
        let hash = match ip_of(&bytes, is_ethernet) {
            Some(ip) => match flow_hash(seed, count, ip) {
                Ok(owner) => return owner,
                Err(hash) => hash,
            },
            None => rng.bits(),
        };
        ShardId((hash % count.get() as u64) as u8)
    })
}

/// The IP packet in a frame, behind its tags.
fn ip_of(bytes: &[u8], is_ethernet: bool) -> Option<&[u8]> {
    if !is_ethernet {
        return Some(bytes);
    }
    let mut ethertype = EthHeader::ref_from(bytes).ok()?.ethertype();
    let mut rest = bytes.get(EthHeader::LEN..)?;
    while ethertype == EtherType::VLAN {
        let (tag, behind) = rest.split_at_checked(vlan::VlanHeader::LEN)?;
        ethertype = EtherType(u16::from_be_bytes([tag[2], tag[3]]));
        rest = behind;
    }
    [EtherType::IPV4, EtherType::IPV6].contains(&ethertype).then_some(rest)
}

/// Hash of a packet's flow, or the owner of its SPI.
fn flow_hash(seed: u64, count: ShardCount, ip: &[u8]) -> Result<ShardId, u64> {
    let mut hasher = DefaultHasher::new();
    seed.hash(&mut hasher);
    let Ok(info) = Info::parse(ip, ip.len()) else {
        return Err(hasher.finish());
    };
    (info.src, info.dst).hash(&mut hasher);
    if info.fragment.is_some() {
        return Err(hasher.finish());
    }
    if info.protocol == Protocol::ESP
        && let Some(&[a, b, c, d]) = ip.get(info.header_len..info.header_len + 4)
    {
        return Ok(count.owner_of_spi(u32::from_be_bytes([a, b, c, d])));
    }
    let key = FlowKey::new(&info, ip);
    (info.protocol.0, key.sport, key.dport).hash(&mut hasher);
    Err(hasher.finish())
}
