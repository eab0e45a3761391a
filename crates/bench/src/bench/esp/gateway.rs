//! Two gateways with an SA from the first to the second.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};

use base::{Instant, PortId, SaId, TableId};
use datapath::{Datapath, PortConfig};
use fib::{Route, RouteKind};
use ipsec::crypto::{Crypto, Pool, Task};
use offload::Features;
use packet::Memory;
use sim::{AddAddress as _, policy, unique_mask};
use xfrm::{Dir, Mode, SaConfig, SaDir, SaFlags};

use super::load::FLOW;
use super::setting::{EspSetting, Measured, STREAMS, Traffic, Way};
use crate::bench::case::Load;
use crate::bench::cpu;

/// The link to a gateway's hosts.
pub(super) const LAN: PortId = PortId(1);
/// The link to the other gateway.
pub(super) const WAN: PortId = PortId(2);

/// Bytes of a packet on either link.
pub(super) const MTU: usize = 1500;

const ENDS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const NETS: [&str; 2] = ["10.1.0.0/16", "10.2.0.0/16"];

/// The network of one host of [`NETS`].
fn net_of(nth: u8) -> String {
    format!("10.2.{nth}.0/24")
}

/// One gateway.
#[derive(Debug)]
pub(super) struct EspGateway {
    pub(super) datapath: Datapath,
    pub(super) mem: Memory,
}

/// A sending gateway and a receiving one.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) near: EspGateway,
    pub(super) far: EspGateway,
    pub(super) way: Way,
    pub(super) sa: SaId,
    pub(super) holding: Holding,
}

/// Flag that withholds tasks from a gateway's crypto thread until the gateway waits for results: then the number of
/// tasks in flight is the maximum that a slow thread can cause.
#[derive(Clone, Debug, Default)]
pub(super) struct Holding(Arc<AtomicBool>);

impl Holding {
    pub(super) fn set(&self, holds: bool) {
        self.0.store(holds, Relaxed);
    }
}

/// A crypto thread from which tasks can be withheld.
#[derive(Debug)]
struct Helper {
    pool: Pool,
    holding: Holding,
}

impl Crypto for Helper {
    fn take(&mut self, now: Instant, todo: &mut VecDeque<Task>, more: bool) {
        if !self.holding.0.load(Relaxed) {
            self.pool.take(now, todo, more);
        }
    }

    fn work(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        self.pool.work(now, todo, done);
    }

    fn help(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        if !self.holding.0.load(Relaxed) {
            self.pool.help(now, todo, done);
        }
    }

    fn is_running(&self) -> bool {
        self.pool.is_running()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.pool.poll_timeout()
    }
}

impl Pair {
    /// Two gateways in the same configuration `way`.
    pub(super) fn new(setting: EspSetting, way: Way) -> Self {
        // Interleaved segments leave the sending gateway in their order of arrival.
        let gro = [!matches!(setting.traffic, Traffic::Streams | Traffic::Sas), true];
        let [mut near, mut far] = [0, 1].map(|at| EspGateway::new(at, way, gro[at]));
        let sas: Vec<SaId> = match setting.traffic {
            Traffic::Sas => (0..STREAMS).map(|nth| link(&mut near, &mut far, setting, nth, &net_of(nth))).collect(),
            _ => vec![link(&mut near, &mut far, setting, 0, NETS[1])],
        };
        let holding = Holding::default();
        if way == Way::Worker {
            let measured = if setting.measured == Measured::Tx { &mut near } else { &mut far };
            measured.datapath.ipsec.set_crypto(Some(Box::new(Helper { pool: pool(), holding: holding.clone() })));
        }
        Self { near, far, way, sa: sas[0], holding }
    }

    /// The largest packet that fits the wire after sealing, in bytes with its IP header.
    pub(super) fn inner_mtu(&self) -> usize {
        self.near.datapath.ipsec.sa(self.sa).expect("added").inner_mtu(MTU)
    }

    /// Traffic of one turn.
    pub(super) fn load(&self, traffic: Traffic) -> Load {
        traffic.load(self.inner_mtu())
    }
}

/// One crypto thread, which has moved to its CPU.
fn pool() -> Pool {
    let (there, is_there) = mpsc::channel();
    let start = move |_| {
        cpu::step_aside();
        there.send(()).expect("somebody waits");
    };
    let pool = Pool::new(NonZeroUsize::MIN, start).expect("one more thread");
    // While this thread runs at real-time priority, the new thread cannot start; so this thread waits.
    is_there.recv().expect("it tells");
    pool
}

/// Adds SA number `nth`, and policies for packets to `net`, from one gateway to the other.
fn link(near: &mut EspGateway, far: &mut EspGateway, setting: EspSetting, nth: u8, net: &str) -> SaId {
    let sa = sa(setting, nth);
    let [out, into] = [SaDir::Out, SaDir::In].map(|dir| SaConfig {
        dir: Some(dir),
        replay_window: if dir == SaDir::In { 1024 } else { 0 },
        ..sa.clone()
    });
    far.datapath.ipsec.add_sa(&into, unique_mask()).expect("a good SA");
    let sas = [sa];
    near.datapath.ipsec.add_policy(policy(Dir::Out, NETS[0], net, &sas)).expect("a good policy");
    for dir in [Dir::In, Dir::Fwd] {
        far.datapath.ipsec.add_policy(policy(dir, NETS[0], net, &sas)).expect("a good policy");
    }
    near.datapath.ipsec.add_sa(&out, unique_mask()).expect("a good SA")
}

/// The `nth` SA of a setting.
fn sa(setting: EspSetting, nth: u8) -> SaConfig {
    let [src, dst] = match setting.mode {
        Mode::Tunnel => ENDS.map(|end| end.parse().expect("an address")),
        Mode::Transport => [FLOW.src, FLOW.dst],
    };
    let flags = SaFlags { esn: true, ..SaFlags::default() };
    SaConfig {
        src,
        dst,
        algorithm: setting.cipher.algorithm(),
        flags,
        reqid: 1 + u32::from(nth),
        ..sim::esp(ENDS[0], ENDS[1], 0x1000 + u32::from(nth), setting.mode, setting.udp)
    }
}

impl EspGateway {
    /// Gateway number `at`, without SAs and policies.
    pub(super) fn new(at: usize, way: Way, gro: bool) -> Self {
        let mut datapath = Datapath::new();
        for (id, name, address) in
            [(LAN, "lan", format!("10.{}.0.254/16", at + 1)), (WAN, "wan", format!("{}/24", ENDS[at]))]
        {
            let (features, gro) = match way {
                Way::Baseline => (Features::NONE, false),
                Way::Fat | Way::Worker => (Features::ALL, gro),
            };
            datapath
                .set_port(id, PortConfig { name: name.to_owned(), mac: None, mtu: MTU, features, gro, esp_gro: gro });
            datapath.fib.add_address(id, address.parse().expect("an address"));
        }
        let via = Some(ENDS[1 - at].parse().expect("an address"));
        let kind = RouteKind::Unicast { via, dev: WAN };
        let route = Route { prefix: NETS[1 - at].parse().expect("a prefix"), kind, metric: 0 };
        datapath.fib.add(TableId::MAIN, route).expect("the only route");
        Self { datapath, mem: Memory::heap() }
    }
}
