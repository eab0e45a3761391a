//! Packets for ESP by a device that are queued in a queueing discipline.

use qdisc::{Options, Stats};
use sim::{Node, SoftDevice, SoftStats};
use xfrm::OffloadMode;

use super::{Lane, MODES, SEGMENTS};
use crate::common::*;

/// A lane with a busy link, and two fat packets in the link's discipline.
fn queued(mode: OffloadMode) -> Lane {
    let mut lane = Lane::new(mode);
    let Node { datapath, mem, .. } = &mut lane.near;
    datapath.set_qdisc(NOW, mem, OUTSIDE, Some(Options::Pfifo { limit: 1000 })).unwrap();
    datapath.set_busy(NOW, mem, OUTSIDE, true);
    lane.send();
    lane.send();
    assert!(lane.waiting(OUTSIDE).is_empty() && stats(&lane).qlen > 0, "{mode:?}");
    lane
}

fn stats(lane: &Lane) -> Stats {
    lane.near.datapath.qdisc_stats(OUTSIDE).unwrap()
}

/// Ends the link's busy state.
fn let_go(lane: &mut Lane) {
    let Node { datapath, mem, .. } = &mut lane.near;
    datapath.set_busy(NOW, mem, OUTSIDE, false);
    let Stats { qlen, backlog, .. } = stats(lane);
    assert_eq!((qlen, backlog), (0, 0));
}

#[test]
fn esp_for_a_device_passes_a_discipline_whole() {
    for mode in MODES {
        let mut lane = queued(mode);
        let backlog = stats(&lane).backlog;
        let_go(&mut lane);
        let Stats { bytes, packets, drops, .. } = stats(&lane);
        assert_eq!((bytes, packets, drops), (backlog, 2 * SEGMENTS as u64, 0), "{mode:?}");
        assert!(lane.waiting(OUTSIDE).iter().all(Option::is_some), "{mode:?}");
        assert_eq!(lane.carry(OUTSIDE), 2 * SEGMENTS, "{mode:?}");
        assert_eq!((lane.received.bytes, lane.device.stats().sealed), (lane.sent, 2 * SEGMENTS as u64));
        assert_eq!((lane.near.drops(), lane.far.drops()), (vec![], vec![]));
    }
}

#[test]
fn queued_esp_is_sealed_in_software_if_the_device_cannot() {
    let mut lane = queued(OffloadMode::Crypto);
    let mut config = lane.near.datapath.ports.get(OUTSIDE).unwrap().config.clone();
    config.features.esp = false;
    lane.near.datapath.set_port(OUTSIDE, config);
    let_go(&mut lane);
    assert_eq!(lane.waiting(OUTSIDE), vec![None; 2 * SEGMENTS]);
    assert_eq!(lane.carry(OUTSIDE), 2 * SEGMENTS);
    assert_eq!((lane.received.bytes, lane.device.stats()), (lane.sent, SoftStats::default()));
    assert_eq!((lane.near.drops(), lane.far.drops()), (vec![], vec![]));
}

#[test]
fn queued_esp_is_dropped_when_its_device_goes() {
    for mode in MODES {
        for other in [false, true] {
            let mut lane = queued(mode);
            let Node { datapath, mem, .. } = &mut lane.near;
            let other = other.then(|| Box::new(SoftDevice::new(true, true)) as Box<dyn ipsec::device::Device>);
            datapath.set_device(NOW, mem, OUTSIDE, other);
            let_go(&mut lane);
            assert!(lane.waiting(OUTSIDE).is_empty(), "{mode:?}");
            let dropped: u64 = lane.near.drops().iter().map(|(.., count)| count).sum();
            assert!(dropped > 0, "{mode:?}");
            assert_eq!((lane.device.load(), lane.near.pages_in_use()), ((0, 0), 0), "{mode:?}");
        }
    }
}

#[test]
fn discipline_that_goes_drops_esp_for_a_device() {
    for mode in MODES {
        let mut lane = queued(mode);
        let Node { datapath, mem, .. } = &mut lane.near;
        datapath.set_qdisc(NOW, mem, OUTSIDE, None).unwrap();
        let dropped = lane.near.drops();
        assert!(matches!(dropped[..], [(_, base::DropReason::QdiscRemoved, 1..)]), "{mode:?}: {dropped:?}");
        let Node { datapath, mem, .. } = &mut lane.near;
        datapath.set_busy(NOW, mem, OUTSIDE, false);
        lane.send();
        assert_eq!(lane.carry(OUTSIDE), SEGMENTS, "{mode:?}");
        assert_eq!(lane.near.pages_in_use(), 0, "{mode:?}");
    }
}
