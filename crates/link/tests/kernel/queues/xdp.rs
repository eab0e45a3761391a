//! AF_XDP sockets, whose queues are dealt to shards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use driver::{DriverKind, XdpMode};
use libtest_mimic::Trial;
use link::{Config, Link, RingState};
use packet::Memory;
use system::{Need, Netns, Outcome, trial, wait_until};

use super::{collect, config, drain, open_queues, sum};
use crate::xdp::{at_the_host, bytes, cable_of_queues, flow_of_frame, frame, frame_of_flow, receive, send};

const NEEDS: &[Need] = &[Need::Namespaces, Need::ETHTOOL];

pub(super) fn trials() -> Vec<Trial> {
    let by_way = [("driver", XdpMode::Native), ("stack", XdpMode::Generic)].into_iter().map(|(way, mode)| {
        trial(format!("queues/xdp_flow_arrives_at_one_shard_by_the_{way}"), NEEDS, move || flows(mode))
    });
    let others = [
        trial("queues/xdp_has_as_many_links_as_queues", NEEDS, few_queues),
        trial("queues/xdp_goes_on_without_a_closed_link", NEEDS, one_closed),
        trial("queues/xdp_down_interface_is_an_error_for_each_shard", NEEDS, down),
        trial("queues/xdp_deleted_interface_is_gone_for_each_shard", NEEDS, deleted),
    ];
    by_way.chain(others).collect()
}

fn xdp(mode: XdpMode) -> Config {
    config("eth0", DriverKind::Xdp { interface: "eth0".to_owned(), ring: 256, mode }, true)
}

/// Rings of all links together: their number, and the frames that packets hold.
fn rings(queues: &[Box<dyn Link>]) -> RingState {
    let each: Vec<_> = queues.iter().map(|queue| queue.ring().expect("an XDP link has one")).collect();
    let (queues, held) = (each.iter().map(|ring| ring.queues).sum(), each.iter().map(|ring| ring.held).sum());
    RingState { queues, held, ..each[0] }
}

/// Waits until the interface has no program: a child of another test has copies of the descriptors between `fork` and `exec`.
fn wait_until_detached(netns: &Netns) -> Outcome {
    wait_until("no interface has a program", Duration::from_secs(20), || {
        netns.sh("ip -d link show").is_ok_and(|seen| !seen.contains("xdp"))
    })
}

fn flows(mode: XdpMode) -> Outcome {
    let cable = cable_of_queues(4)?;
    let mem = Memory::heap();
    let mut host = at_the_host(&cable)?;
    let mut queues = open_queues(&cable.us, &xdp(mode), 3)?;
    let each: Vec<_> = queues.iter().map(|queue| queue.ring().map_or(0, |ring| ring.queues)).collect();
    assert_eq!((each, rings(&queues).queues, rings(&queues).native), (vec![2, 1, 1], 4, mode == XdpMode::Native));
    let mut shard_of = BTreeMap::new();
    for _ in 0..3 {
        send(&mut *host, (1000..1100).map(|port| frame_of_flow(&mem, port)).collect())?;
        for (shard, port) in collect(&mut queues, &mem, 100, flow_of_frame)? {
            assert_eq!(*shard_of.entry(port).or_insert(shard), shard, "port {port}");
        }
    }
    assert_eq!(shard_of.values().collect::<BTreeSet<_>>().len(), 3, "all shards have flows: {shard_of:?}");
    assert!(sum(&queues).rx_packets >= 300 && queues.iter().all(|queue| queue.stats().rx_packets > 0));
    for (number, queue) in (0..).zip(&mut queues) {
        queue.set_mtu(Some(1400)).map_err(|err| err.to_string())?;
        send(queue.as_mut(), vec![frame(&mem, number, 100)])?;
        assert_eq!(receive(&mut *host, &mem, 1)?[0].to_vec(), bytes(number, 100));
        queue.settle(&mem);
    }
    assert_eq!((sum(&queues).tx_packets, rings(&queues).held), (3, 0));
    drop(queues);
    wait_until_detached(&cable.us)
}

fn few_queues() -> Outcome {
    for count in [1, 2] {
        let cable = cable_of_queues(count)?;
        let mem = Memory::heap();
        let mut host = at_the_host(&cable)?;
        let mut queues = open_queues(&cable.us, &xdp(XdpMode::Auto), 4)?;
        assert_eq!((queues.len() as u32, rings(&queues).queues), (count, count));
        send(&mut *host, (1000..1100).map(|port| frame_of_flow(&mem, port)).collect())?;
        collect(&mut queues, &mem, 100, flow_of_frame)?;
    }
    Ok(())
}

/// Flows of the links that are left go on, and frames of closed ones reach the host's stack.
fn one_closed() -> Outcome {
    let cable = cable_of_queues(3)?;
    let mem = Memory::heap();
    let mut host = at_the_host(&cable)?;
    let mut queues = open_queues(&cable.us, &xdp(XdpMode::Auto), 3)?;
    let mut flows = |queues: &mut [Box<dyn Link>], count| {
        send(&mut *host, (1000..1100).map(|port| frame_of_flow(&mem, port)).collect())?;
        let got = collect(queues, &mem, count, flow_of_frame)?;
        Ok::<_, libtest_mimic::Failed>(got.into_iter().map(|(shard, port)| (port, shard)).collect::<BTreeMap<_, _>>())
    };
    let before = flows(&mut queues, 100)?;
    // The first shard's link, whose closing must not detach the program.
    drop(queues.remove(0));
    let left = before.values().filter(|shard| **shard != 0).count();
    assert!((1..100).contains(&left));
    for (port, shard) in flows(&mut queues, left)? {
        assert_eq!(before[&port], shard + 1, "port {port}");
    }
    for queue in &mut queues {
        queue.set_promiscuous(true)?;
        assert!(!queue.look()?);
    }
    Ok(())
}

fn down() -> Outcome {
    let cable = cable_of_queues(3)?;
    let mem = Memory::heap();
    let mut queues = open_queues(&cable.us, &xdp(XdpMode::Auto), 3)?;
    cable.us.sh("ip link set eth0 down")?;
    for queue in &mut queues {
        // Frames that are in the ring arrive first.
        let mut failed = None;
        wait_until("the interface is down", Duration::from_secs(20), || {
            failed = queue.recv(&mem, &mut Vec::new()).err();
            failed.is_some()
        })?;
        assert_eq!(failed.map(|err| err.to_string()).as_deref(), Some("eth0: recv: Network is down"));
    }
    cable.us.sh("ip link set eth0 up")?;
    cable.host.wait_for_carrier("host")?;
    drain(&mut queues, &mem)?;
    let mut host = at_the_host(&cable)?;
    send(&mut *host, (1000..1100).map(|port| frame_of_flow(&mem, port)).collect())?;
    collect(&mut queues, &mem, 100, flow_of_frame)?;
    Ok(())
}

fn deleted() -> Outcome {
    let cable = cable_of_queues(3)?;
    let mem = Memory::heap();
    let mut queues = open_queues(&cable.us, &xdp(XdpMode::Auto), 3)?;
    cable.us.sh("ip link del eth0")?;
    for queue in &mut queues {
        let is_failed = || queue.recv(&mem, &mut Vec::new()).is_err();
        wait_until("the interface is gone", Duration::from_secs(20), is_failed)?;
        assert!(queue.is_gone());
        queue.release();
    }
    // Beside links of the old interface.
    system::veth((&cable.us, "eth0"), (&cable.host, "host"))?;
    let mut host = at_the_host(&cable)?;
    let mut new = open_queues(&cable.us, &xdp(XdpMode::Auto), 3)?;
    send(&mut *host, (1000..1100).map(|port| frame_of_flow(&mem, port)).collect())?;
    collect(&mut new, &mem, 100, flow_of_frame)?;
    drop(queues);
    Ok(())
}
