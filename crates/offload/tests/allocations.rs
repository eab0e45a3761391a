//! Test that GRO and GSO do not allocate in a steady state.

use offload::gro::Config;
use offload::{Features, Gro, fit};
use packet::{Allocations, Memory, Packet};

#[expect(dead_code, reason = "only some of the frames are needed here")]
#[path = "offload/frames.rs"]
mod frames;

use frames::{Frame, Layout, SG, SG_CSUM, tcp4, tcp6, udp4};

#[global_allocator]
static ALLOCATOR: Allocations = Allocations;

/// One round: the frames of a flow arrive as a burst, are merged, and segmented again for the device. Returns the
/// number of allocations after their arrival.
fn round(
    mem: &Memory,
    gro: &mut Gro,
    arrived: Vec<Packet>,
    features: &Features,
    [fat, sent]: &mut [Vec<Packet>; 2],
) -> u64 {
    let (before, came) = (Allocations::of_thread(), arrived.len());
    for packet in arrived {
        gro.receive(mem, packet, fat);
    }
    gro.flush(fat);
    assert!(fat.len() <= 2, "{} packets of {came}", fat.len());
    for packet in fat.drain(..) {
        fit(mem, features, packet, 0, sent).expect("a right packet");
    }
    let wire: u64 = sent.iter().map(|packet| packet.meta.cut.segs()).sum();
    assert_eq!(wire, came as u64);
    sent.clear();
    Allocations::of_thread() - before
}

#[test]
fn a_steady_state_allocates_nothing() {
    let frame_of: [fn(u32) -> Frame; 3] =
        [|n| tcp4(1 + n * 1000, n as u16, 1000), |n| tcp6(1 + n * 1000, 1000), |n| udp4(n as u16, 1000)];
    let devices = [Features::NONE, SG, SG_CSUM, Features { frag_list: false, ..Features::ALL }, Features::ALL];
    for (frame_of, frag_list) in frame_of.into_iter().flat_map(|frame| [(frame, false), (frame, true)]) {
        // More frames than slots.
        let frames: Vec<_> = (0..60).map(frame_of).map(|frame| (frame.bytes(), frame.header_len())).collect();
        for (layout, features) in Layout::ALL.into_iter().flat_map(|layout| devices.map(|device| (layout, device))) {
            let mem = Memory::heap();
            let mut gro = Gro::new(Config { udp: true, frag_list });
            let mut lists = [Vec::new(), Vec::new()];
            for turn in 0..20 {
                let arrived = layout.packets(&mem, &frames);
                let allocated = round(&mem, &mut gro, arrived, &features, &mut lists);
                assert!(turn < 10 || allocated == 0, "{allocated} allocations in turn {turn}: {layout:?} {features:?}");
            }
        }
    }
}
