//! Cost of packet operations: `cargo bench -p fatpath-packet`.

use std::hint::black_box;

use divan::Bencher;
use divan::counter::BytesCount;
use packet::{Buf, CopyReason, Memory, Packet};

/// Lengths of wire packets, and of a fat one.
const SIZES: [usize; 4] = [64, 1500, 9000, 65_000];

fn main() {
    divan::main();
}

fn buf(mem: &Memory, len: usize) -> Buf {
    let mut buf = mem.take(Memory::HEADROOM, len).expect("a page");
    buf.put(len).expect("room").fill(1);
    buf
}

/// A fat packet from GRO: a head, and the payload of 44 segments in their own pages.
fn glued(mem: &Memory) -> Packet {
    let mut packet = Packet::from_buf(buf(mem, 54));
    for _ in 0..44 {
        packet.push_frag(buf(mem, 1448)).expect("a free slot");
    }
    packet
}

#[divan::bench(name = "pool/take_drop", args = SIZES)]
fn take_drop(bencher: Bencher<'_, '_>, len: usize) {
    let mem = Memory::heap();
    bencher.bench_local(|| mem.take(Memory::HEADROOM, black_box(len)).expect("a page"));
}

#[divan::bench(name = "push_pull")]
fn push_pull(bencher: Bencher<'_, '_>) {
    let mem = Memory::heap();
    let mut packet = Packet::from_buf(buf(&mem, 1500));
    bencher.bench_local(|| {
        packet.push(&mem, 14).expect("headroom").fill(0);
        packet.pull(14);
        packet.len()
    });
}

#[divan::bench(name = "clone_shared/linear")]
fn clone_linear(bencher: Bencher<'_, '_>) {
    let mem = Memory::heap();
    let mut packet = Packet::from_buf(buf(&mem, 1500));
    bencher.bench_local(|| packet.clone_shared());
}

#[divan::bench(name = "clone_shared/44frags")]
fn clone_frags(bencher: Bencher<'_, '_>) {
    let mem = Memory::heap();
    let mut packet = glued(&mem);
    bencher.bench_local(|| packet.clone_shared());
}

/// Splits one page of 44 segments into 44 packets, each with its own head, by reference.
#[divan::bench(name = "move_front/64K/44segs")]
fn segment(bencher: Bencher<'_, '_>) {
    let mem = Memory::heap();
    bencher
        .with_inputs(|| Packet::from_buf(buf(&mem, 44 * 1448)))
        .counter(BytesCount::new(44 * 1448usize))
        .bench_local_values(|mut train| {
            let mut segments = Vec::with_capacity(44);
            while !train.is_empty() {
                let mut segment = Packet::new(&mem, Memory::HEADROOM, 54).expect("a page");
                train.move_front(1448, &mut segment).expect("a free slot");
                segments.push(segment);
            }
            assert_eq!(segments.len(), 44);
            segments
        });
}

/// Appends 44 packets to one, by reference.
#[divan::bench(name = "append/64K/44segs")]
fn append(bencher: Bencher<'_, '_>) {
    let mem = Memory::heap();
    bencher
        .with_inputs(|| (0..44).map(|_| Packet::from_buf(buf(&mem, 1448))).collect::<Vec<_>>())
        .counter(BytesCount::new(44 * 1448usize))
        .bench_local_values(|segments| {
            let mut segments = segments.into_iter();
            let mut packet = segments.next().expect("44 of them");
            segments.for_each(|segment| packet.append(segment));
            assert_eq!((packet.len(), packet.frags().len()), (44 * 1448, 43));
            packet
        });
}

/// Copy of the bytes, for comparison with the operations by reference.
#[divan::bench(name = "copy", args = SIZES)]
fn copy(bencher: Bencher<'_, '_>, len: usize) {
    let mem = Memory::heap();
    let packet = Packet::from_buf(buf(&mem, len));
    bencher.counter(BytesCount::new(len)).bench_local(|| packet.copy(&mem, CopyReason::Copy).expect("a page"));
}

#[divan::bench(name = "linearize/64K/44frags")]
fn linearize(bencher: Bencher<'_, '_>) {
    let mem = Memory::heap();
    bencher.with_inputs(|| glued(&mem)).counter(BytesCount::new(44 * 1448usize + 54)).bench_local_values(
        |mut packet| {
            packet.linearize(&mem).expect("a page");
            assert!(packet.is_linear());
            packet
        },
    );
}

/// Case in which all bytes are writable already.
#[divan::bench(name = "make_writable/44frags/exclusive")]
fn make_writable(bencher: Bencher<'_, '_>) {
    let mem = Memory::heap();
    let mut packet = glued(&mem);
    bencher.bench_local(|| packet.make_writable(&mem, 0));
    assert_eq!(mem.copies().total_bytes(), 0);
}
