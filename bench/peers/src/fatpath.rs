//! fatpath: a node's path from the link to local delivery, in bursts of 64 packets.

use std::time::{Duration, Instant};

use base::{PortId, Mib};
use datapath::{Datapath, PortConfig};
use offload::Features;
use packet::{Csum, Memory, Packet};
use sim::AddAddress as _;

use crate::train::Train;

pub const HOW: &str = "fatpath: Datapath::handle_rx in bursts of 64, each fragment in a page of its own, which is returned to its \
                       pool within the measured time; the node has no socket, verifies UDP's checksum and decides about an \
                       ICMP error";

const LINK: PortId = PortId(1);

/// Nanoseconds per fragment of the median pass; passes take at least `length` in total.
pub fn measure(train: &Train, length: Duration) -> Result<f64, String> {
    let (mut path, mem) = (Datapath::new(), Memory::heap());
    let port =
        PortConfig { name: "link".to_owned(), mac: None, mtu: 1500, features: Features::ALL, gro: true, esp_gro: true };
    path.set_port(LINK, port);
    let prefix = if train.flow.dst.is_ipv4() { 24 } else { 64 };
    path.fib.add_address(LINK, format!("{}/{prefix}", train.flow.dst).parse().expect("an address"));
    let mut bursts: Vec<Vec<Packet>> = Vec::new();
    let mut pass = || {
        bursts.clear();
        for burst in train.bursts() {
            let received = burst.iter().map(|bytes| {
                let mut packet = Packet::with_data(&mem, bytes).expect("a heap without limit");
                packet.meta.csum = if train.is_verified { Csum::Unnecessary } else { Csum::None };
                packet
            });
            bursts.push(received.collect());
        }
        let start = Instant::now();
        for burst in &mut bursts {
            path.handle_rx(base::Instant::ZERO, &mem, LINK, burst);
            path.take_tx(LINK).expect("a port").clear();
        }
        start.elapsed()
    };
    let (nanos, passes) = crate::middle(length, &mut pass);
    let came = path.counters.get(Mib::UdpNoPorts) + path.counters.get(Mib::Udp6NoPorts);
    if came != passes * train.datagrams as u64 {
        return Err(format!("{came} of {} datagrams came", passes * train.datagrams as u64));
    }
    Ok(nanos / train.fragments.len() as f64)
}
