//! A back end whose pairs of queues are dealt to shards.

use std::path::Path;

use super::*;
use crate::flow_hash::FlowHash;
use crate::vhost::back::{VhostPairs, open_shards};

/// A back end with a link for each of two shards, and a front end of as many pairs as requested.
struct Shards {
    links: Vec<Box<dyn Link>>,
    front: VhostFront,
    /// Path of the socket.
    socket: PathBuf,
    mem: Memory,
}

impl Shards {
    fn new(pairs: u16, of_front: u16) -> Self {
        let config = VhostConfig { pairs, ..VhostConfig::new("vm0", &path(), MAC) };
        let (first, others) = open_shards(&config, base::ShardCount::new(2).unwrap()).unwrap();
        Self::over(first, others, &config.socket, of_front)
    }

    /// Links to which a front end connects.
    fn over(first: VhostUser, others: Vec<VhostPairs>, socket: &Path, of_front: u16) -> Self {
        let front = FrontConfig { pairs: of_front, ..front_of(&first) };
        let front = open_requesting(&front, Bits::requested(true, of_front > 1)).unwrap();
        let mut links = vec![Box::new(first) as Box<dyn Link>];
        links.extend(others.into_iter().map(|link| Box::new(link) as Box<dyn Link>));
        let mut shards = Self { links, front, socket: socket.to_owned(), mem: Memory::heap() };
        shards.connect();
        shards
    }

    /// Until both ends run, and the links have the negotiated features.
    fn connect(&mut self) {
        until(|| {
            let mut none = Vec::new();
            self.links.iter_mut().for_each(|link| link.recv(&self.mem, &mut none).unwrap());
            self.front.recv(&self.mem, &mut none).unwrap();
            self.links.iter().all(|link| link.has_carrier()) && self.front.has_carrier() && self.front.guest().running
        });
        self.links.iter_mut().for_each(|link| refit(link.as_mut()));
        refit(&mut self.front);
    }

    /// Datagrams of many flows, numbered by their source port.
    fn flows(&self, count: u16) -> Vec<Packet> {
        let flow = |number: u16| {
            let mut ip = ipv4::Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::UDP, 60);
            ip.fill_check();
            let udp = wire::udp::UdpHeader::new(1000 + number, 9, 40);
            let bytes = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0], ip.as_bytes(), udp.as_bytes(), &[7; 32]].concat();
            Packet::with_data(&self.mem, &bytes).unwrap()
        };
        (0..count).map(flow).collect()
    }

    /// Packets of the front end, with the shard that each arrives at.
    fn from_guest(&mut self, count: usize) -> Vec<(usize, Vec<u8>)> {
        let mut got = Vec::new();
        until(|| {
            for (shard, link) in self.links.iter_mut().enumerate() {
                let mut out = Vec::new();
                link.recv(&self.mem, &mut out).unwrap();
                got.extend(out.iter().map(|packet| (shard, packet.to_vec())));
            }
            got.len() >= count
        });
        got
    }

    fn to_guest(&mut self, shard: usize, mut burst: Vec<Packet>) -> Vec<Packet> {
        let count = burst.len();
        let mut got = Vec::new();
        until(|| {
            assert_ne!(self.links[shard].send(&mut burst).unwrap(), Sent::Refit);
            self.front.recv(&self.mem, &mut got).unwrap();
            got.len() == count
        });
        got
    }
}

#[test]
fn pairs_are_dealt_to_shards_and_flows_stay_in_one() {
    let mut shards = Shards::new(4, 4);
    let mut shard_of = std::collections::BTreeMap::new();
    for _ in 0..3 {
        let mut burst = shards.flows(100);
        assert_eq!(shards.front.send(&mut burst).unwrap(), Sent::All);
        for (shard, bytes) in shards.from_guest(100) {
            assert_eq!(*shard_of.entry(bytes).or_insert(shard), shard);
        }
    }
    let of_first = shard_of.values().filter(|shard| **shard == 0).count();
    assert!(shard_of.len() == 100 && (20..80).contains(&of_first), "{of_first}");
    // Each shard sends by pairs of its own.
    for shard in [0, 1] {
        let before = shards.links[0].guest().unwrap();
        let burst = shards.flows(50);
        assert_eq!(bytes_of(&shards.to_guest(shard, burst)).len(), 50);
        let after = shards.links[0].guest().unwrap();
        let used = |pair: usize| after.queues[2 * pair].chains > before.queues[2 * pair].chains;
        assert!((0..4).all(|pair| used(pair) == (pair % 2 == shard)), "shard {shard}");
        assert_eq!((shards.links[shard].stats().tx_packets, shards.links[shard].stats().tx_dropped), (50, 0));
    }
    // In both directions, by all shards.
    let copied = shards.links[0].guest().unwrap().copied;
    assert!((400 * 74..400 * 100).contains(&copied), "{copied}");
}

#[test]
fn shard_without_an_enabled_pair_sends_by_another() {
    let mut shards = Shards::new(2, 1);
    let burst = shards.flows(20);
    assert_eq!(shards.to_guest(1, burst).len(), 20);
    let mut burst = shards.flows(20);
    assert_eq!(shards.front.send(&mut burst).unwrap(), Sent::All);
    assert!(shards.from_guest(20).iter().all(|(shard, _)| *shard == 0));
}

#[test]
fn shards_serve_their_pairs_by_threads_of_their_own() {
    let mut shards = Shards::new(2, 2);
    let hash = FlowHash::default();
    let by_shard = [0, 1].map(|shard| {
        let all = shards.flows(400).into_iter();
        all.filter(|packet| hash.queue(packet, 14, 2) == shard).collect::<Vec<_>>()
    });
    let sent: usize = by_shard.iter().map(Vec::len).sum();
    let Shards { links, front, mem, .. } = &mut shards;
    std::thread::scope(|scope| {
        for (link, mut burst) in links.iter_mut().zip(by_shard) {
            scope.spawn(move || {
                let mem = Memory::heap();
                until(|| {
                    link.recv(&mem, &mut Vec::new()).unwrap();
                    link.send(&mut burst).unwrap() == Sent::All
                });
            });
        }
        let mut got = Vec::new();
        until(|| {
            front.recv(mem, &mut got).unwrap();
            got.len() == sent
        });
    });
}

#[test]
fn guest_that_leaves_and_returns_is_met_by_all_shards() {
    let mut shards = Shards::new(2, 2);
    let config = FrontConfig { pairs: 2, offloads: false, ..FrontConfig::new("u1", &shards.socket, MAC) };
    shards.front = open_requesting(&config, Bits::requested(false, true)).unwrap();
    until(|| shards.links[0].recv(&shards.mem, &mut Vec::new()).is_err());
    assert!(shards.links.iter().all(|link| !link.has_carrier()));
    shards.connect();
    assert!(shards.links.iter().all(|link| !link.features().tso4), "offloads that the second front end does not have");
    let burst = shards.flows(20);
    assert_eq!(shards.to_guest(1, burst).len(), 20);
}

#[test]
fn links_without_the_first_shard_have_no_guest() {
    let mut shards = Shards::new(2, 2);
    drop(shards.links.remove(0));
    let link = &mut shards.links[0];
    assert!(!link.has_carrier());
    link.recv(&shards.mem, &mut Vec::new()).unwrap();
    refit(link.as_mut());
    let mut burst = vec![Packet::with_data(&shards.mem, &frame(1, 64)).unwrap()];
    assert_eq!(link.send(&mut burst).unwrap(), Sent::All);
    assert_eq!(link.stats().dropped_for(DropReason::LinkDown), 1);
}

#[test]
fn violation_in_a_shard_closes_the_connection_of_all() {
    let config = VhostConfig { pairs: 2, ..VhostConfig::new("vm0", &path(), MAC) };
    let (mut first, mut others) = open_shards(&config, base::ShardCount::new(2).unwrap()).unwrap();
    let mem = Memory::heap();
    let requested = Proposal { features: Bits::requested(true, true), pairs: 2, ring_size: 16 };
    let socket = UnixStream::connect(&config.socket).unwrap();
    let session = std::thread::spawn(move || negotiate(socket, &requested).unwrap());
    until(|| {
        first.recv(&mem, &mut Vec::new()).unwrap();
        session.is_finished()
    });
    first.recv(&mem, &mut Vec::new()).unwrap();
    let mut session = session.join().unwrap();
    // The transmit queue of the second pair.
    let queue = &mut session.queues[3];
    queue.ring.describe(0, 1 << 50, 64, 0, 0);
    queue.ring.offer(0, 0);
    queue.ring.publish();
    let mut got = Vec::new();
    others[0].recv(&mem, &mut got).unwrap();
    assert!(got.is_empty() && is_readable(&first));
    let err = first.recv(&mem, &mut got).expect_err("the connection is closed");
    assert!(err.to_string().contains("outside of guest memory"), "{err}");
    assert!(!first.has_carrier() && !others[0].has_carrier());
    assert_eq!((first.guest().violations, first.stats().dropped_for(DropReason::RingDescriptor)), (1, 1));
    // The next guest is not blamed for it.
    first.recv(&mem, &mut got).unwrap();
    drop(session);
    let next = Shards::over(first, others, &config.socket, 2);
    assert_eq!(next.links[0].guest().unwrap().violations, 1);
}
