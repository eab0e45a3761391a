//! In a steady state merging and cutting allocate nothing, however many packets go through.

use std::alloc::{self, GlobalAlloc, System};
use std::cell::Cell;

use offload::gro::Config;
use offload::{Features, Gro, fit};
use packet::{Memory, Packet};

#[expect(dead_code, reason = "only some of the frames are needed here")]
#[path = "offload/frames.rs"]
mod frames;

use frames::{Frame, Layout, SG, SG_CSUM, tcp4, tcp6, udp4};

/// Counts what each thread asks of the system's allocator.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: alloc::Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: alloc::Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: alloc::Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: alloc::Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// One round: the frames of one flow arrive as a burst, become few, and are cut again as the device asks. Returns how
/// often memory was asked for since they arrived.
fn round(
    mem: &Memory,
    gro: &mut Gro,
    arrived: Vec<Packet>,
    features: &Features,
    [fat, sent]: &mut [Vec<Packet>; 2],
) -> u64 {
    let (before, came) = (ALLOCATIONS.get(), arrived.len());
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
    ALLOCATIONS.get() - before
}

#[test]
fn a_steady_state_allocates_nothing() {
    let frame_of: [fn(u32) -> Frame; 3] =
        [|n| tcp4(1 + n * 1000, n as u16, 1000), |n| tcp6(1 + n * 1000, 1000), |n| udp4(n as u16, 1000)];
    let devices = [Features::NONE, SG, SG_CSUM, Features { frag_list: false, ..Features::ALL }, Features::ALL];
    for (frame_of, frag_list) in frame_of.into_iter().flat_map(|frame| [(frame, false), (frame, true)]) {
        // More than there are slots.
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
