//! Destination node of the datagrams, with a clock that advances at the speed of the wire or the node, whichever is
//! slower.

use std::time::Duration;

use base::{Instant, Mib, PortId, TableId};
use datapath::{Datapath, PortConfig};
use fib::{Route, RouteKind};
use offload::Features;
use packet::{Allocations, Memory, Packet};
use reassembly::Config;
use sim::{AddAddress as _, policy, unique_mask};
use xfrm::{Dir, SaConfig, SaDir};

use crate::bench::case::{Copied, Sample};

/// The only link.
const WIRE: PortId = PortId(1);

/// Addresses of the node (S0's second host), by family.
const OWN: [&str; 2] = ["192.0.2.2/24", "fc00:2::1/64"];

/// Bytes of a packet on the wire.
pub(super) const MTU: usize = 1500;

/// Nanoseconds of a fragment on the wire: 1538 bytes including all overhead, at 100 Gb/s.
const WIRE_NANOS: u64 = 123;

/// A node that counts its input.
#[derive(Debug)]
pub(super) struct Receiver {
    datapath: Datapath,
    pub(super) mem: Memory,
    pub(super) now: Instant,
    limit: usize,
    spent: Spent,
    high_water: usize,
}

/// Resources that the node has used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// CPU time.
    cpu: Duration,
    /// Number of received fragments.
    fragments: u64,
    /// Number of complete datagrams.
    pub(super) delivered: u64,
    copied: Copied,
    allocations: u64,
}

impl Receiver {
    /// A node without SAs.
    pub(super) fn new(config: Config) -> Self {
        let mut datapath = Datapath::new();
        datapath.set_reassembly(config);
        let port = PortConfig {
            name: "wire".to_owned(),
            mac: None,
            mtu: MTU,
            features: Features::ALL,
            gro: true,
            esp_gro: true,
        };
        datapath.set_port(WIRE, port);
        for address in OWN {
            datapath.fib.add_address(WIRE, address.parse().expect("an address"));
        }
        for prefix in ["0.0.0.0/0", "::/0"] {
            let kind = RouteKind::Unicast { via: None, dev: WIRE };
            let route = Route { prefix: prefix.parse().expect("a prefix"), kind, metric: 0 };
            datapath.fib.add(TableId::MAIN, route).expect("the only route");
        }
        let limit = config.v4.high_thresh.max(config.v6.high_thresh);
        let spent = Spent::default();
        Self { datapath, mem: Memory::heap(), now: Instant::ZERO, limit, spent, high_water: 0 }
    }

    /// A node with an SA for all input.
    pub(super) fn with_sa(config: Config, sa: &SaConfig) -> Self {
        let mut node = Self::new(config);
        let sa = SaConfig { dir: Some(SaDir::In), ..sa.clone() };
        node.datapath.ipsec.add_sa(&sa, unique_mask()).expect("a good SA");
        let [src, dst] = [sa.src, sa.dst].map(|addr| addr.to_string());
        node.datapath.ipsec.add_policy(policy(Dir::In, &src, &dst, &[sa])).expect("a good policy");
        node
    }

    /// Receives a burst from the wire, and advances the clock by the time of `sent` fragments, or by the node's own
    /// time.
    pub(super) fn take(&mut self, burst: &mut Vec<Packet>, sent: u64) {
        let cpu = self.run(burst);
        self.after(cpu.max(Duration::from_nanos(sent * WIRE_NANOS)));
    }

    /// Receives a burst from the wire, and advances the clock by `time`.
    pub(super) fn take_paced(&mut self, burst: &mut Vec<Packet>, time: Duration) {
        self.run(burst);
        self.after(time);
    }

    /// Receives a burst from the wire, and returns the CPU time used.
    fn run(&mut self, burst: &mut Vec<Packet>) -> Duration {
        let fragments = burst.len() as u64;
        let (before, allocations) = (Copied::of(&self.mem), Allocations::count());
        let start = std::time::Instant::now();
        if self.datapath.poll_timeout().is_some_and(|at| at <= self.now) {
            self.datapath.handle_timeout(self.now, &self.mem);
        }
        self.datapath.handle_rx(self.now, &self.mem, WIRE, burst);
        let cpu = start.elapsed();
        self.spent.allocations += Allocations::count() - allocations;
        let copied = Copied::of(&self.mem);
        self.spent.copied.payload += copied.payload - before.payload;
        self.spent.copied.headers += copied.headers - before.headers;
        self.spent.cpu += cpu;
        self.spent.fragments += fragments;
        cpu
    }

    /// Advances the clock to the next timeout, and returns the number of fragments that the wire delivered meanwhile.
    /// `None` without a timeout.
    pub(super) fn sleep(&mut self) -> Option<u64> {
        let at = self.datapath.poll_timeout()?;
        let slept = at.since(self.now);
        self.now = self.now.max(at);
        self.datapath.handle_timeout(self.now, &self.mem);
        self.after(Duration::ZERO);
        Some(slept.as_nanos() as u64 / WIRE_NANOS)
    }

    fn after(&mut self, time: Duration) {
        self.now = self.now + time;
        // ICMP errors for the datagrams, which have no socket.
        self.datapath.take_tx(WIRE).expect("a port").clear();
        self.high_water = self.high_water.max(self.datapath.reassembly().memory());
        let noted = [Mib::UdpNoPorts, Mib::Udp6NoPorts].map(|mib| self.datapath.counters.get(mib));
        self.spent.delivered = noted.iter().sum();
    }

    /// Tells whether new fragments are refused, regardless of free frames (Linux's policy).
    pub(super) fn is_full(&self) -> bool {
        self.datapath.reassembly().memory() > self.limit
    }

    /// Resources that the node has used so far.
    pub(super) fn spent(&self) -> Spent {
        self.spent
    }

    /// Sample of the resources used since an earlier reading, for datagrams of `payload` bytes.
    pub(super) fn sample(&self, (since, from): (Spent, Instant), payload: usize) -> Sample {
        let Spent { cpu, fragments, delivered, copied, allocations } = self.spent;
        let fragments = (fragments - since.fragments).max(1) as f64;
        let bytes = ((delivered - since.delivered) * payload as u64).max(1) as f64;
        let nanos = self.now.since(from).as_nanos() as f64;
        Sample {
            // Time of one datagram.
            nanos: nanos / (bytes / payload as f64),
            gbps: bytes * 8.0 / nanos.max(1.0),
            ns_per_packet: (cpu - since.cpu).as_nanos() as f64 / fragments,
            copied_bytes_per_byte: (copied.payload - since.copied.payload) as f64 / bytes,
            header_bytes_per_byte: (copied.headers - since.copied.headers) as f64 / bytes,
            allocs_per_packet: (allocations - since.allocations) as f64 / fragments,
            mpps: None,
            more: Vec::new(),
        }
    }

    /// Numbers of dropped packets, by reason.
    pub(super) fn drops(&self) -> String {
        let drops =
            self.datapath.ports.drop_counts().map(|(_, reason, count)| format!("{count} for {}", reason.name()));
        drops.collect::<Vec<_>>().join(", ")
    }

    /// Peak memory of waiting fragments, in bytes.
    pub(super) fn high_water(&self) -> usize {
        self.high_water
    }

    /// Advances the clock until all waiting datagrams have timed out.
    ///
    /// # Errors
    /// A datagram is left, or waiting fragments exceeded the limit.
    pub(super) fn drain(&mut self, may_pass_limit: bool) -> Result<(), String> {
        while self.sleep().is_some() {}
        let left = self.datapath.reassembly().memory();
        let queues = self.datapath.reassembly().queues();
        let pages = self.mem.small().in_use() + self.mem.large().in_use();
        if left + queues + pages > 0 {
            return Err(format!("{left} bytes, {queues} datagrams and {pages} pages are left behind"));
        }
        if self.high_water > self.limit && !may_pass_limit {
            return Err(format!("{} bytes waited, and {} may", self.high_water, self.limit));
        }
        Ok(())
    }
}
