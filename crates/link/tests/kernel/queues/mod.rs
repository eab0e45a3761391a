//! Links with a queue for each shard: the queue that a packet arrives at, and queues that are closed.

mod acquired;
mod packet_socket;
mod tun;
mod udp;
mod xdp;

use std::time::{Duration, Instant};

use base::ShardCount;
use driver::DriverKind;
use libtest_mimic::Trial;
use link::{Config, Link, LinkStats};
use packet::{Memory, Packet};
use system::{Netns, Outcome};

pub(crate) fn trials() -> Vec<Trial> {
    [acquired::trials(), tun::trials(), udp::trials(), packet_socket::trials(), xdp::trials()]
        .into_iter()
        .flatten()
        .collect()
}

fn shards(count: u8) -> ShardCount {
    ShardCount::new(count).expect("1 to 64")
}

fn config(name: &str, kind: DriverKind, offloads: bool) -> Config {
    Config { name: name.to_owned(), kind, mac: None, mtu: None, offloads, index: None }
}

/// Opens a queue for each shard in a namespace.
fn open_queues(netns: &Netns, config: &Config, count: u8) -> Outcome<Vec<Box<dyn Link>>> {
    let opened = netns.enter(|| link::open_queues(config, shards(count)));
    opened.map_err(|err| err.to_string().into())
}

/// Text of the error of opening queues.
fn refusal(netns: &Netns, config: &Config, count: u8) -> String {
    match open_queues(netns, config, count) {
        Ok(queues) => panic!("{} queues were opened", queues.len()),
        Err(err) => err.message().unwrap_or_default().to_owned(),
    }
}

/// All packets that wait, with the queue of each.
fn drain(queues: &mut [Box<dyn Link>], mem: &Memory) -> Outcome<Vec<(usize, Packet)>> {
    let mut all = Vec::new();
    for (shard, queue) in queues.iter_mut().enumerate() {
        loop {
            let mut out = Vec::new();
            queue.recv(mem, &mut out)?;
            if out.is_empty() {
                break;
            }
            all.extend(out.into_iter().map(|packet| (shard, packet)));
        }
    }
    Ok(all)
}

/// Receives until `count` packets have `wanted`: the queue of each, and what is wanted.
fn collect<T>(
    queues: &mut [Box<dyn Link>],
    mem: &Memory,
    count: usize,
    wanted: impl Fn(&Packet) -> Option<T>,
) -> Outcome<Vec<(usize, T)>> {
    let got = collect_for(Duration::from_secs(5), queues, mem, count, wanted)?;
    assert_eq!(got.len(), count, "packets");
    Ok(got)
}

fn collect_for<T>(
    patience: Duration,
    queues: &mut [Box<dyn Link>],
    mem: &Memory,
    count: usize,
    wanted: impl Fn(&Packet) -> Option<T>,
) -> Outcome<Vec<(usize, T)>> {
    let mut got = Vec::new();
    let end = Instant::now() + patience;
    while got.len() < count && Instant::now() < end {
        for (shard, packet) in drain(queues, mem)? {
            got.extend(wanted(&packet).map(|wanted| (shard, wanted)));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(got)
}

/// Sends until the `count` packets of a round all arrive, after a queue was closed. A child of another test has copies of its descriptor
/// between `fork` and `exec`.
fn wait_until_all_arrive<T>(
    queues: &mut [Box<dyn Link>],
    mem: &Memory,
    count: usize,
    mut send: impl FnMut() -> Outcome,
    wanted: impl Fn(&Packet) -> Option<T>,
) -> Outcome {
    let mut arrived = 0;
    for _ in 0..50 {
        drain(queues, mem)?;
        send()?;
        arrived = collect_for(Duration::from_millis(200), queues, mem, count, &wanted)?.len();
        if arrived == count {
            return Ok(());
        }
    }
    Err(format!("{arrived} of {count} packets arrived").into())
}

/// Counters of all queues together, those that the tests compare.
fn sum(queues: &[Box<dyn Link>]) -> LinkStats {
    let mut sum = LinkStats::ZERO;
    for queue in queues {
        let each = queue.stats();
        sum.rx_packets += each.rx_packets;
        sum.rx_wire_packets += each.rx_wire_packets;
        sum.rx_dropped += each.rx_dropped;
        sum.tx_packets += each.tx_packets;
        sum.tx_dropped += each.tx_dropped;
        sum.soft_errors += each.soft_errors;
    }
    sum
}
