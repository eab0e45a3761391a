//! A back end whose pairs of queues are dealt to shards.

use std::path::Path;

use super::*;
use vhost::vhost_user::VhostUserBackendReqHandlerMut;

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
        let (first, others) = open_shards(&config, base::ShardCount::new(2).unwrap(), None).unwrap();
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
    fn receive_of_guest(&mut self, count: usize) -> Vec<(usize, Vec<u8>)> {
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

    fn send_to_guest(&mut self, shard: usize, mut burst: Vec<Packet>) -> Vec<Packet> {
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
        for (shard, bytes) in shards.receive_of_guest(100) {
            assert_eq!(*shard_of.entry(bytes).or_insert(shard), shard);
        }
    }
    let of_first = shard_of.values().filter(|shard| **shard == 0).count();
    assert!(shard_of.len() == 100 && (20..80).contains(&of_first), "{of_first}");
    // Each shard sends by pairs of its own.
    for shard in [0, 1] {
        let before = shards.links[0].guest().unwrap();
        let burst = shards.flows(50);
        assert_eq!(bytes_of(&shards.send_to_guest(shard, burst)).len(), 50);
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
fn shard_without_an_enabled_pair_is_elsewhere() {
    let mut shards = Shards::new(2, 1);
    assert!(!shards.links[0].is_elsewhere() && shards.links[1].is_elsewhere());
    assert!(shards.links[0].take_shared_change() && !shards.links[0].take_shared_change());
    // Packets that the shard had already are dropped: the first shard's pair is no other thread's.
    let mut burst = shards.flows(20);
    assert_eq!(shards.links[1].send(&mut burst).unwrap(), Sent::All);
    assert_eq!(shards.links[1].stats().dropped_for(DropReason::LinkDown), 20);
    let mut burst = shards.flows(20);
    assert_eq!(shards.front.send(&mut burst).unwrap(), Sent::All);
    assert!(shards.receive_of_guest(20).iter().all(|(shard, _)| *shard == 0));
}

/// A driver that the test itself is, over a back end of two shards.
struct RawShards {
    first: VhostUser,
    second: VhostPairs,
    session: Session,
    mem: Memory,
}

impl RawShards {
    fn new() -> Self {
        let config = VhostConfig { pairs: 2, ..VhostConfig::new("vm0", &path(), MAC) };
        let (mut first, mut others) = open_shards(&config, base::ShardCount::new(2).unwrap(), None).unwrap();
        let mem = Memory::heap();
        let requested = Proposal { features: Bits::requested(true, true), pairs: 2, ring_size: 16 };
        let socket = UnixStream::connect(&config.socket).unwrap();
        let session = std::thread::spawn(move || negotiate(socket, &requested).unwrap());
        until(|| {
            first.recv(&mem, &mut Vec::new()).unwrap();
            session.is_finished()
        });
        first.recv(&mem, &mut Vec::new()).unwrap();
        Self { first, second: others.remove(0), session: session.join().unwrap(), mem }
    }

    /// Sends `VHOST_USER_SET_VRING_ENABLE`, and waits until it is handled.
    fn enable(&mut self, queue: u32, is_enabled: bool) {
        let message = [18_u32, 1, 8, queue, is_enabled.into()].map(u32::to_ne_bytes).concat();
        self.session.socket.try_clone().unwrap().write_all(&message).unwrap();
        until(|| {
            self.first.recv(&self.mem, &mut Vec::new()).unwrap();
            self.first.guest().queues[queue as usize].enabled == is_enabled
        });
    }

    /// Whether there is a carrier, and whether the second shard has no queue: in both shards alike.
    fn state(&self) -> (bool, bool) {
        assert_eq!(self.first.has_carrier(), self.second.has_carrier());
        (self.first.has_carrier(), self.second.is_elsewhere())
    }
}

#[test]
fn pairs_enabled_and_disabled_are_known_to_all_shards() {
    let mut shards = RawShards::new();
    assert_eq!(shards.state(), (true, false));
    shards.first.take_shared_change();
    for (queue, is_enabled, state) in
        [(2, false, (true, true)), (0, false, (false, true)), (2, true, (false, false)), (0, true, (true, false))]
    {
        shards.enable(queue, is_enabled);
        assert_eq!(shards.state(), state, "{queue} {is_enabled}");
        assert!(shards.first.take_shared_change(), "{queue} {is_enabled}");
    }
    // By a transmit queue the guest does not receive.
    shards.enable(3, false);
    assert!(!shards.first.take_shared_change());
    drop(shards.session);
    // Closed by a thread of its own.
    until(|| shards.first.recv(&shards.mem, &mut Vec::new()).is_err());
    assert!(shards.first.take_shared_change() && shards.second.is_elsewhere() && !shards.second.has_carrier());
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
    assert_eq!(shards.send_to_guest(1, burst).len(), 20);
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
    let RawShards { mut first, mut second, mut session, mem } = RawShards::new();
    // The transmit queue of the second pair.
    let queue = &mut session.queues[3];
    queue.ring.describe(0, 1 << 50, 64, 0, 0);
    queue.ring.offer(0, 0);
    queue.ring.publish();
    let mut got = Vec::new();
    second.recv(&mem, &mut got).unwrap();
    assert!(got.is_empty() && is_readable(&first));
    // A ring that was stopped is not started again.
    lock(&first.device).reset_device().unwrap();
    let err = first.recv(&mem, &mut got).expect_err("the connection is closed");
    assert!(err.to_string().contains("outside of guest memory"), "{err}");
    assert!(!first.has_carrier() && !second.has_carrier());
    assert_eq!((first.guest().violations, first.stats().dropped_for(DropReason::RingDescriptor)), (1, 1));
    // The next guest is not blamed for it.
    first.recv(&mem, &mut got).unwrap();
    drop(session);
    let socket = first.socket.clone();
    let next = Shards::over(first, vec![second], &socket, 2);
    assert_eq!(next.links[0].guest().unwrap().violations, 1);
}

#[test]
fn violation_while_sending_closes_it_and_drops_the_rest() {
    let RawShards { mut first, mut second, mut session, mem } = RawShards::new();
    let queue = &mut session.queues[2];
    queue.ring.describe(0, 1 << 50, 4096, WRITE, 0);
    queue.ring.offer(0, 0);
    queue.ring.publish();
    refit(&mut second);
    let packet = || Packet::with_data(&mem, &frame(1, 64)).unwrap();
    let mut burst = vec![packet(), packet()];
    assert_eq!(second.send(&mut burst).unwrap(), Sent::All);
    assert_eq!((burst.len(), second.stats().dropped_for(DropReason::LinkDown)), (0, 2));
    let err = first.recv(&mem, &mut Vec::new()).expect_err("the connection is closed");
    assert!(err.to_string().contains("outside of guest memory"), "{err}");
}
