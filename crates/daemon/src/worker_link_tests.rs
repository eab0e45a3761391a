//! Links whose state one shard alone sees, in a node of two shards.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Prefix, ShardCount, TableId};
use config::Config;
use config::model::LinkConfig;
use link::memory::{End, MemoryLink, pair};
use link::{Common, InternalLink, Layer, Link, OpenError, Sent};
use netlink::rtnl::{Delta, Route, nums};
use packet::{Memory, Packet};
use wire::ipv4::Ipv4Header;
use wire::{MacAddr, Protocol};

use super::super::command::{Handle, channels};
use super::super::links::LinkChange;
use super::super::node::Shards as NodeShards;
use super::super::snapshot;
use super::*;

const LAN: PortId = PortId(2);
const WAN: PortId = PortId(3);

/// State of a queue, which a test sets.
#[derive(Debug, Default)]
struct State {
    fails: AtomicBool,
    is_gone: AtomicBool,
    has_no_carrier: AtomicBool,
    has_no_queue: AtomicBool,
    /// Whether the shards that have a queue have changed.
    has_changed: AtomicBool,
}

impl State {
    fn set(flag: &AtomicBool, is_set: bool) {
        flag.store(is_set, Ordering::Relaxed);
    }
}

/// A queue of a link, with that state.
#[derive(Debug)]
struct Queue {
    link: MemoryLink,
    state: Arc<State>,
}

impl Link for Queue {
    fn common(&self) -> &Common {
        self.link.common()
    }

    fn common_mut(&mut self) -> &mut Common {
        self.link.common_mut()
    }

    fn set_mac(&mut self, mac: MacAddr) -> Result<(), OpenError> {
        self.link.set_mac(mac)
    }

    fn layer(&self) -> Layer {
        self.link.layer()
    }

    fn is_gone(&self) -> bool {
        self.state.is_gone.load(Ordering::Relaxed)
    }

    fn has_carrier(&self) -> bool {
        !self.state.has_no_carrier.load(Ordering::Relaxed)
    }

    fn is_elsewhere(&self) -> bool {
        self.state.has_no_queue.load(Ordering::Relaxed)
    }

    fn take_shared_change(&mut self) -> bool {
        self.state.has_changed.swap(false, Ordering::Relaxed)
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        if self.state.fails.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::NetworkDown, "lan: recv: the queue fails"));
        }
        self.link.recv(mem, out)
    }

    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent> {
        self.link.send(burst)
    }
}

/// The workers of two shards, which the test runs, with a queue each of two links.
struct Shards {
    handle: Handle,
    workers: [Worker; 2],
    /// State of the queues of `LAN`.
    lan: [Arc<State>; 2],
    /// Other ends of the queues of `LAN` and `WAN`, by shard.
    ends: Vec<[MemoryLink; 2]>,
}

fn link_config(name: &str) -> LinkConfig {
    Config::from_toml(&format!("[[link]]\nname = \"{name}\"\nkind = \"tun\"\n"), "f").unwrap().links[0].clone()
}

impl Shards {
    fn new() -> Self {
        let (handle, inboxes) = channels::<2>().unwrap();
        let (clock, count) = (Clock::start(), ShardCount::new(2).unwrap());
        let mut datapaths = Datapath::shards(count).into_iter();
        let mut shards = count.all();
        let workers = inboxes.map(|inbox| {
            let shard = shards.next().map(|shard| (shard, Arc::new(handle.clone()) as Arc<dyn NodeShards>));
            Worker::of_shard(inbox, clock, datapaths.next().unwrap(), shard).unwrap()
        });
        let mut all = Self { handle, workers, lan: Default::default(), ends: Vec::new() };
        for shard in 0..2 {
            let lan = all.open(shard, LAN, "lan");
            let wan = all.open(shard, WAN, "wan");
            all.ends.push([lan, wan]);
        }
        all.handle.queue_deltas([route(LAN, 1), route(WAN, 2)].into_iter());
        all.turn();
        all
    }

    /// Opens a link of a shard, and returns the other end.
    fn open(&mut self, shard: usize, id: PortId, name: &str) -> MemoryLink {
        let (link, end) = pair(End::new(name), End::new(name));
        let state = if id == LAN { Arc::clone(&self.lan[shard]) } else { Arc::default() };
        let node = &mut self.workers[shard].node;
        node.add_link(id, Box::new(Queue { link, state }), link_config(name));
        node.change_link(id, LinkChange::Up(true)).unwrap();
        end
    }

    /// Applies what the workers have told each other.
    fn turn(&mut self) {
        for _ in 0..3 {
            for worker in &mut self.workers {
                worker.apply_all(worker.node.now());
            }
        }
    }

    /// Reads `LAN` in a shard, and applies what it tells.
    fn serve(&mut self, shard: usize) {
        let now = self.workers[shard].node.now();
        self.workers[shard].serve(now, LAN);
        self.turn();
    }

    /// Retries links in both shards, the second one first, as after `secs` seconds.
    fn retry(&mut self, secs: u64) {
        for worker in self.workers.iter_mut().rev() {
            worker.node.retry_links(worker.node.now() + Duration::from_secs(secs));
        }
        self.turn();
    }

    /// Whether `LAN` is up, in each shard.
    fn up(&self) -> [bool; 2] {
        [0, 1].map(|shard| self.workers[shard].node.datapath.ports.get(LAN).is_some_and(|port| port.up))
    }
}

/// A route to 10.`net`.0.0/16 by `dev`.
fn route(dev: PortId, net: u8) -> Delta {
    let prefix = Prefix::new(IpAddr::V4(Ipv4Addr::new(10, net, 0, 0)), 16).unwrap();
    let (kind, scope, protocol) = (nums::RTN_UNICAST, nums::RT_SCOPE_LINK, nums::RTPROT_STATIC);
    let (metric, via, src, encap) = (0, None, None, None);
    let route =
        Route { prefix, kind, metric, scope, protocol, dev: dev.0, via, src, onlink: false, encap, paths: None };
    Delta::AddRoute { table: TableId::MAIN, route, ahead: false }
}

#[test]
fn failure_in_one_shard_takes_the_link_down_in_all() {
    for failing in [0, 1] {
        let mut shards = Shards::new();
        assert_eq!(shards.up(), [true; 2]);
        State::set(&shards.lan[failing].fails, true);
        shards.serve(failing);
        assert_eq!(shards.up(), [false; 2], "{failing}");
        let failed = [0, 1].map(|shard| shards.workers[shard].node.failed_links());
        assert_eq!(failed[0], [("lan".to_owned(), "lan: recv: the queue fails".to_owned())]);
        assert_eq!(failed[0], failed[1]);
        // The second shard waits for the first, which retries after a second.
        assert!(shards.workers[1].deadline().is_none() && shards.workers[0].deadline().is_some());
        State::set(&shards.lan[failing].fails, false);
        shards.workers[1].node.retry_links(shards.workers[1].node.now() + Duration::from_secs(9));
        assert_eq!(shards.up(), [false; 2], "{failing}");
        shards.retry(2);
        assert_eq!(shards.up(), [true; 2], "{failing}");
    }
}

#[test]
fn queue_that_still_fails_takes_the_link_down_again() {
    let mut shards = Shards::new();
    State::set(&shards.lan[1].fails, true);
    shards.serve(1);
    shards.retry(2);
    assert_eq!(shards.up(), [false; 2], "the second shard's queue fails yet");
    State::set(&shards.lan[1].fails, false);
    shards.retry(4);
    assert_eq!(shards.up(), [true; 2]);
}

#[test]
fn device_gone_for_one_shard_is_gone_for_all() {
    let mut shards = Shards::new();
    State::set(&shards.lan[1].fails, true);
    State::set(&shards.lan[1].is_gone, true);
    shards.serve(1);
    // The first shard's queue works, and there is no new device.
    shards.retry(2);
    assert_eq!(shards.up(), [false; 2]);
    assert_eq!(shards.workers[0].node.failed_links()[0].1, "lan: the device is gone");
    // A new device, with queues that the first shard has opened.
    let (link, _end) = pair(End::new("lan"), End::new("lan"));
    let (other, _end) = pair(End::new("lan"), End::new("lan"));
    shards.workers[0].node.finish_reopening(LAN, vec![Box::new(link), Box::new(other)]);
    shards.retry(4);
    assert_eq!(shards.up(), [true; 2]);
}

#[test]
fn failure_of_a_link_that_was_replaced_is_ignored() {
    let mut shards = Shards::new();
    State::set(&shards.lan[1].fails, true);
    // The first shard has another link of that number by the time that it is told.
    shards.workers[0].node.change_link(LAN, LinkChange::Close).unwrap();
    let _end = shards.open(0, LAN, "lan");
    let now = shards.workers[1].node.now();
    shards.workers[1].serve(now, LAN);
    shards.turn();
    assert_eq!(shards.up(), [true, false]);
    shards.workers[1].node.change_link(LAN, LinkChange::Close).unwrap();
    State::set(&shards.lan[1].fails, false);
    let _end = shards.open(1, LAN, "lan");
    assert_eq!(shards.up(), [true; 2]);
    // From then on the two mean the same link.
    State::set(&shards.lan[1].fails, true);
    shards.serve(1);
    assert_eq!(shards.up(), [false; 2]);
}

#[test]
fn failure_while_the_link_is_set_down_is_known_afterwards() {
    let mut shards = Shards::new();
    State::set(&shards.lan[1].fails, true);
    shards.workers[0].node.change_link(LAN, LinkChange::Up(false)).unwrap();
    shards.serve(1);
    shards.workers[1].node.change_link(LAN, LinkChange::Up(false)).unwrap();
    State::set(&shards.lan[1].fails, false);
    for worker in &mut shards.workers {
        worker.node.change_link(LAN, LinkChange::Up(true)).unwrap();
    }
    assert_eq!(shards.up(), [false; 2]);
    shards.retry(0);
    assert_eq!(shards.up(), [true; 2]);
}

#[test]
fn carrier_of_the_first_shard_is_that_of_all() {
    let mut shards = Shards::new();
    for has_carrier in [false, true] {
        State::set(&shards.lan[0].has_no_carrier, !has_carrier);
        shards.serve(0);
        assert_eq!(shards.up(), [has_carrier; 2]);
    }
    // Also for a link without a queue in the second shard.
    let node = &mut shards.workers[1].node;
    let link = InternalLink::elsewhere(&*node.slots[LAN.0 as usize].as_ref().unwrap().link);
    let slot = node.slots[LAN.0 as usize].as_mut().unwrap();
    slot.link = Box::new(link);
    for has_carrier in [false, true] {
        State::set(&shards.lan[0].has_no_carrier, !has_carrier);
        shards.serve(0);
        assert_eq!(shards.up(), [has_carrier; 2]);
    }
}

#[test]
fn packets_go_by_the_first_shard_while_one_has_no_queue() {
    let mut shards = Shards::new();
    let mem = Memory::heap();
    for (has_queue, want) in [(true, [0, 1]), (false, [1, 0]), (true, [0, 1])] {
        State::set(&shards.lan[1].has_no_queue, !has_queue);
        State::set(&shards.lan[0].has_changed, true);
        shards.serve(0);
        let node = &shards.workers[1].node;
        assert_eq!(snapshot::link_sums(node, 0..node.datapath.ports.end()).without_queue.is_empty(), has_queue);
        let mut bytes = [0; Ipv4Header::LEN + 16];
        let mut header = Ipv4Header::new([10, 2, 0, 1].into(), [10, 1, 0, 1].into(), Protocol::UDP, bytes.len() as u16);
        header.fill_check();
        bytes[..Ipv4Header::LEN].copy_from_slice(header.as_bytes());
        let sent = shards.ends[1][1].send(&mut vec![Packet::with_data(&mem, &bytes).unwrap()]);
        assert_eq!(sent.unwrap(), Sent::All);
        let now = shards.workers[1].node.now();
        shards.workers[1].serve(now, WAN);
        shards.workers[0].serve_handed_over(now);
        shards.workers[0].node.send_all(now);
        let arrived = [0, 1].map(|shard| {
            let mut out = Vec::new();
            shards.ends[shard][0].recv(&mem, &mut out).unwrap();
            out.len()
        });
        assert_eq!(arrived, want, "{has_queue}");
    }
}
