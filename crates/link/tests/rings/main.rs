//! The back end against a second implementation of virtio: rings written by the crate `virtio-queue` in memory of
//! `vm-memory`.

mod driver;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use link::vhost::{VhostConfig, VhostUser, open};
use link::{Link, Sent};
use packet::{Memory, Packet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use wire::{MacAddr, Protocol, ipv4, udp};

use driver::{Driver, EVENT_IDX, INDIRECT_DESC, MRG_RXBUF, VERSION_1, memory};

/// Address of the link.
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// Features of the driver.
const ALL: u64 = MRG_RXBUF | INDIRECT_DESC | EVENT_IDX | VERSION_1;

fn path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("fatpath-rings-{}-{number}.sock", std::process::id()))
}

fn back_end(socket: &Path, pairs: u16) -> VhostUser {
    open(&VhostConfig { pairs, ..VhostConfig::new("vm0", socket, MAC) }).unwrap()
}

/// Drives `send` until the link reports its features.
fn refit(back: &mut VhostUser) {
    while back.send(&mut Vec::new()).unwrap() == Sent::Refit {}
}

/// A frame of `len` bytes with a number in it.
fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u32 ^ number) as u8).collect();
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes
}

/// A small generator of numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    /// Splits a range into one to four pieces, some of them empty.
    fn cut(&mut self, addr: u64, len: usize) -> Vec<(u64, u32)> {
        let mut ends: Vec<usize> = (0..self.below(4)).map(|_| self.below(len + 1)).collect();
        ends.push(len);
        ends.sort_unstable();
        let mut start = 0;
        let piece = |end: usize| {
            let piece = (addr + start as u64, (end - start) as u32);
            start = end;
            piece
        };
        ends.into_iter().map(piece).collect()
    }
}

/// Sends frames by a queue of the driver, and returns the frames that the back end received.
fn send(
    driver: &mut Driver<'_>,
    number: usize,
    back: &mut VhostUser,
    random: &mut Random,
    frames: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let header_len = driver.header_len();
    let may_be_indirect = driver.features & INDIRECT_DESC != 0;
    let mut kicks_enabled = false;
    for bytes in frames {
        let queue = &driver.queues[number];
        let (addr, room) = queue.buffer(queue.next_head().unwrap());
        let all = [&vec![0; header_len][..], bytes].concat();
        assert!(all.len() <= room as usize);
        driver.write(addr, &all);
        let pieces = random.cut(addr, all.len());
        let is_indirect = may_be_indirect && random.below(2) == 0;
        kicks_enabled |= driver.queues[number].offer(&pieces, false, is_indirect);
    }
    assert!(kicks_enabled, "the back end was idle, so it has kicks enabled");
    driver.queues[number].kick();
    assert!(is_readable(back));
    let mut got = Vec::new();
    back.recv(&Memory::heap(), &mut got).unwrap();
    for _ in frames {
        assert_eq!(driver.queues[number].take().map(|(_, len)| len), Some(0));
    }
    assert!(driver.queues[number].take().is_none());
    got.iter().map(Packet::to_vec).collect()
}

/// Makes buffers available until the queue has no free descriptors.
fn offer_all(driver: &mut Driver<'_>, number: usize, random: &mut Random, len: usize) {
    let may_be_indirect = driver.features & INDIRECT_DESC != 0;
    let queue = &mut driver.queues[number];
    while let Some(head) = queue.next_head() {
        let (addr, room) = queue.buffer(head);
        assert!(len <= room as usize);
        let mut pieces = random.cut(addr, len);
        let is_indirect = may_be_indirect && random.below(2) == 0;
        if !is_indirect && pieces.len() > queue.free() {
            pieces = vec![(addr, len as u32)];
        }
        queue.offer(&pieces, true, is_indirect);
    }
}

/// Takes the frames that the driver received.
fn received(driver: &mut Driver<'_>, number: usize) -> Vec<Vec<u8>> {
    let header_len = driver.header_len();
    let mut frames = Vec::new();
    while let Some((head, len)) = driver.queues[number].take() {
        let mut bytes = driver.read(driver.queues[number].buffer(head).0, len as usize);
        let mut header = bytes[..header_len].to_vec();
        let count = if header_len == 12 { u16::from_le_bytes([header[10], header[11]]) } else { 1 };
        for _ in 1..count {
            let (head, len) = driver.queues[number].take().expect("as many buffers as the header says");
            bytes.extend(driver.read(driver.queues[number].buffer(head).0, len as usize));
        }
        header.truncate(10);
        assert_eq!(header, [0; 10]);
        frames.push(bytes[header_len..].to_vec());
    }
    frames
}

fn packets(frames: &[Vec<u8>]) -> Vec<Packet> {
    frames.iter().map(|bytes| Packet::with_data(&Memory::heap(), bytes).unwrap()).collect()
}

fn is_readable(link: &dyn Link) -> bool {
    let fds = link.poll_fds();
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn frames_cross_both_ways_with_all_feature_sets() {
    let mut random = Random(88_172_645_463_325_252);
    for set in 0..16_u64 {
        let choose = |bit: u64, feature: u64| if set & bit != 0 { feature } else { 0 };
        let features = choose(1, MRG_RXBUF) | choose(2, INDIRECT_DESC) | choose(4, EVENT_IDX) | choose(8, VERSION_1);
        let socket = path();
        let mut back = back_end(&socket, 1);
        let mem = memory();
        // The indices wrap in the first rounds.
        let base = 65_500;
        let mut driver = Driver::new(&mem, features, 1, 32, base);
        driver.connect(&mut back, &socket, &[base; 2]);
        refit(&mut back);
        let mut number = 0;
        let mut frames = |random: &mut Random, most: usize, longest: usize| -> Vec<Vec<u8>> {
            let count = 1 + random.below(most);
            let one = |_| {
                number += 1;
                frame(number, 14 + random.below(longest - 13))
            };
            (0..count).map(one).collect()
        };
        for round in 0..100 {
            let out = frames(&mut random, 7, 9000);
            assert_eq!(send(&mut driver, 1, &mut back, &mut random, &out), out, "{features:#x}, round {round}");
            // With mergeable buffers a frame takes several.
            let len = if features & MRG_RXBUF != 0 { 400 } else { 2000 };
            offer_all(&mut driver, 0, &mut random, len);
            let back_in = frames(&mut random, 2, 1500);
            let mut burst = packets(&back_in);
            assert_eq!((back.send(&mut burst).unwrap(), burst.len()), (Sent::All, 0));
            assert_eq!(received(&mut driver, 0), back_in, "{features:#x}, round {round}");
        }
        let guest = back.guest();
        assert_eq!((guest.violations, guest.queues[0].full, guest.regions), (0, 0, 2));
        assert!(guest.queues[1].chains > 100, "the indices have wrapped");
    }
}

#[test]
fn interrupts_are_sent_if_the_driver_enables_them() {
    for features in [ALL, ALL & !EVENT_IDX] {
        let socket = path();
        let mut back = back_end(&socket, 1);
        let mem = memory();
        let mut driver = Driver::new(&mem, features, 1, 32, 65_533);
        driver.connect(&mut back, &socket, &[65_533; 2]);
        let mut random = Random(1);
        let mut one = |driver: &mut Driver<'_>| {
            assert_eq!(send(driver, 1, &mut back, &mut random, &[frame(1, 64)]).len(), 1);
            driver.queues[1].calls()
        };
        driver.queues[1].want_call(Some(1));
        assert_eq!(one(&mut driver), 1, "{features:#x}");
        driver.queues[1].want_call(None);
        assert_eq!([one(&mut driver), one(&mut driver)], [0, 0], "{features:#x}");
        driver.queues[1].want_call(Some(3));
        let calls = [one(&mut driver), one(&mut driver), one(&mut driver), one(&mut driver)];
        assert_eq!(calls, if features & EVENT_IDX != 0 { [0, 0, 1, 0] } else { [1; 4] }, "{features:#x}");
    }
}

#[test]
fn queues_are_independent() {
    let socket = path();
    let mut back = back_end(&socket, 3);
    let mem = memory();
    let mut driver = Driver::new(&mem, ALL, 3, 64, 0);
    driver.connect(&mut back, &socket, &[0; 6]);
    refit(&mut back);
    assert_eq!(driver.say(&mut back, |front| front.get_queue_num().unwrap()), 3);
    let mut random = Random(2);
    for number in [1, 3, 5, 3, 1] {
        let frames = [frame(number, 300), frame(number + 1, 3000)];
        assert_eq!(send(&mut driver, number as usize, &mut back, &mut random, &frames), frames);
    }
    // Flows by their source port.
    let flow = |port: u16, number: u8| {
        let mut ip = ipv4::Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::UDP, 40);
        ip.fill_check();
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        bytes.extend_from_slice(ip.as_bytes());
        bytes.extend_from_slice(udp::UdpHeader::new(port, 9, 20).as_bytes());
        bytes.resize(54, number);
        bytes
    };
    let mut deliver = |driver: &mut Driver<'_>| {
        let frames: Vec<Vec<u8>> = (0..2).flat_map(|number| (0..30).map(move |port| flow(port, number))).collect();
        for queue in [0, 2, 4] {
            offer_all(driver, queue, &mut random, 400);
        }
        let mut burst = packets(&frames);
        assert_eq!((back.send(&mut burst).unwrap(), burst.len()), (Sent::All, 0));
        let got = [0, 2, 4].map(|queue| received(driver, queue));
        for frames in &got {
            let (first, second) = frames.split_at(frames.len() / 2);
            let port = |bytes: &Vec<u8>| bytes[34..36].to_vec();
            assert!(first.iter().map(port).eq(second.iter().map(port)), "a flow is in one queue, in its order");
            assert!(first.iter().all(|bytes| bytes[53] == 0) && second.iter().all(|bytes| bytes[53] == 1));
        }
        assert_eq!(got.iter().map(Vec::len).sum::<usize>(), 60);
        got.map(|frames| frames.len())
    };
    assert!(deliver(&mut driver).iter().all(|&count| count > 0));
    driver.say(&mut back, |front| front.set_vring_enable(2, false).unwrap());
    let mut burst = packets(&(0..30).map(|port| flow(port, 0)).collect::<Vec<_>>());
    for queue in [0, 4] {
        offer_all(&mut driver, queue, &mut Random(3), 400);
    }
    assert_eq!((back.send(&mut burst).unwrap(), burst.len()), (Sent::All, 0));
    let got = [0, 2, 4].map(|queue| received(&mut driver, queue).len());
    assert_eq!((got[1], got.iter().sum::<usize>()), (0, 30), "{got:?}");
}

#[test]
fn rings_resume_at_their_index_after_a_reconnect() {
    let socket = path();
    let mut back = back_end(&socket, 1);
    let mem = memory();
    let mut driver = Driver::new(&mem, ALL, 1, 16, 65_530);
    let mut random = Random(3);
    let mut bases = [65_530; 2];
    for round in 0..6 {
        driver.connect(&mut back, &socket, &bases);
        refit(&mut back);
        // Buffers that were available before stay available.
        offer_all(&mut driver, 0, &mut random, 2000);
        for number in 0..5 {
            let frames = [frame(10 * round + number, 500)];
            assert_eq!(send(&mut driver, 1, &mut back, &mut random, &frames), frames, "round {round}");
            assert_eq!(back.send(&mut packets(&frames)).unwrap(), Sent::All);
            assert_eq!(received(&mut driver, 0), frames, "round {round}");
        }
        if round % 2 == 0 {
            // The front end reads the index, which stops the ring.
            bases = [0, 1].map(|queue| driver.say(&mut back, |front| front.get_vring_base(queue).unwrap()) as u16);
            assert_eq!(bases, [0, 1].map(|queue| driver.queues[queue].used_index()));
            assert!(!back.guest().running && back.guest().connected);
            assert_eq!(back.send(&mut packets(&[frame(1, 64)])).unwrap(), Sent::All);
            assert!(received(&mut driver, 0).is_empty());
        } else {
            // The front end disconnects without a message; the index is in the used ring.
            bases = [0, 1].map(|queue| driver.queues[queue].used_index());
        }
        driver.disconnect();
        let mut got = Vec::new();
        // On a busy machine the end of the connection is noticed late.
        let gone = (0..500).find_map(|_| {
            let gone = back.recv(&Memory::heap(), &mut got).err();
            if gone.is_none() {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            gone
        });
        let gone = gone.expect("the link fails").to_string();
        assert_eq!(
            (gone.as_str(), got.len()),
            ("vm0: vhost-user: the guest has shut down, or its front end has disconnected", 0)
        );
    }
    assert_eq!((back.guest().connections, back.guest().violations), (6, 0));
}
