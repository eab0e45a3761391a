//! Messages of front ends, valid and invalid, whole and in parts.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::vhost_user::VhostUserBackendReqHandlerMut;
use vhost::vhost_user::message::VhostUserSingleMemoryRegion;

use super::*;
use crate::vhost::pace::BUCKET;

#[test]
fn partial_message_does_not_block_recv() {
    let mut back = back_end(1);
    let mem = Memory::heap();
    let mut none = Vec::new();
    let mut socket = UnixStream::connect(&back.socket).unwrap();
    // GET_FEATURES, byte by byte.
    for byte in [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0] {
        socket.write_all(&[byte]).unwrap();
        let before = Instant::now();
        back.recv(&mem, &mut none).unwrap();
        back.recv(&mem, &mut none).unwrap();
        assert!(before.elapsed() < PATIENCE / 2);
        assert!(!is_readable(&back));
    }
    socket.write_all(&[0]).unwrap();
    back.recv(&mem, &mut none).unwrap();
    let mut answer = [0; 20];
    std::io::Read::read_exact(&mut socket, &mut answer).unwrap();
    assert_eq!(answer[..12], [1, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0]);
}

#[test]
fn more_descriptors_than_a_message_may_have_close_it() {
    let mut back = back_end(1);
    let socket = UnixStream::connect(&back.socket).unwrap();
    let fds = vec![socket.as_fd(); 40];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(40))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let message = [1_u32, 1, 0].map(u32::to_ne_bytes).concat();
    sendmsg(&socket, &[IoSlice::new(&message)], &mut control, SendFlags::empty()).unwrap();
    assert_eq!(refusal(&mut back), "vm0: vhost-user: connection closed: message with too many descriptors");
}

/// Error that closes a connection after its descriptors have been inspected.
fn refusal(back: &mut VhostUser) -> String {
    let mut error = None;
    until(|| {
        error = back.recv(&Memory::heap(), &mut Vec::new()).err();
        error.is_some()
    });
    error.unwrap().to_string()
}

/// A message `SET_VRING_CALL` of ring 0, in these parts, with a descriptor in the last one.
fn send_with(socket: &UnixStream, split: usize, fd: impl AsFd) {
    let message = [13_u32, 1, 8, 0, 0].map(u32::to_ne_bytes).concat();
    if split > 0 {
        rustix::net::send(socket, &message[..split], SendFlags::empty()).unwrap();
    }
    let (mut space, fds) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], [fd.as_fd()]);
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(socket, &[IoSlice::new(&message[split..])], &mut control, SendFlags::empty()).unwrap();
}

/// A socket whose last close blocks for an hour is in a message, with the header or behind it.
#[test]
fn descriptor_whose_close_blocks_is_never_received() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut back = back_end(1);
        let mut far_ends = Vec::new();
        for split in [0, 4, 12, 16] {
            let (near, far) = crate::sys::discard::tests::lingering();
            let socket = UnixStream::connect(&back.socket).unwrap();
            send_with(&socket, split, &near);
            drop(near);
            let why = "descriptors that are neither eventfds nor files of memory";
            assert_eq!(refusal(&mut back), format!("vm0: vhost-user: connection closed: {why}"), "{split}");
            far_ends.push(far);
        }
        // Unread by the link that is removed.
        let (near, far) = crate::sys::discard::tests::lingering();
        let socket = UnixStream::connect(&back.socket).unwrap();
        send_with(&socket, 0, &near);
        drop((near, back));
        done.send((far_ends, far)).unwrap();
    });
    is_done.recv_timeout(3 * PATIENCE).expect("no call blocks");
}

#[test]
fn front_end_gone_amid_a_message_frees_the_port() {
    let mut back = back_end(1);
    let mem = Memory::heap();
    let header = [8_u32, 1, 8].map(u32::to_ne_bytes).concat();
    for (number, part) in [&header[..1], &header[..], &[&header[..], &[0; 7]].concat()].into_iter().enumerate() {
        let mut socket = UnixStream::connect(&back.socket).unwrap();
        socket.write_all(part).unwrap();
        back.recv(&mem, &mut Vec::new()).unwrap();
        assert!(back.guest().connected);
        drop(socket);
        until(|| {
            back.recv(&mem, &mut Vec::new()).unwrap();
            !back.guest().connected
        });
        assert_eq!((back.guest().connections, back.guest().violations), (number as u64 + 1, 0));
    }
}

/// `GET_FEATURES` again and again: what is above the rate waits in the socket, is not lost, and does not keep the link readable.
#[test]
fn messages_above_the_rate_wait_in_the_socket() {
    let mut back = back_end(1);
    let mem = Memory::heap();
    let mut socket = UnixStream::connect(&back.socket).unwrap();
    socket.set_nonblocking(true).unwrap();
    let request = [1_u32, 1, 0].map(u32::to_ne_bytes).concat();
    let (mut asked, mut answered, mut answer) = (0, 0, [0; 20]);
    let begin = Instant::now();
    let mut reads = 0;
    while answered < 2 * BUCKET {
        assert!(begin.elapsed() < PATIENCE, "{answered} of {asked} answers");
        // At most 16 are under way, so that answers are read before they fill the socket.
        while asked < answered + 16 && socket.write_all(&request).is_ok() {
            asked += 1;
        }
        if is_readable(&back) {
            back.recv(&mem, &mut Vec::new()).unwrap();
            reads += 1;
        }
        while std::io::Read::read_exact(&mut socket, &mut answer).is_ok() {
            answered += 1;
        }
    }
    // A token a millisecond for those above the first bucket, but for those on the way.
    assert!(begin.elapsed() > Duration::from_millis(u64::from(BUCKET - 32)), "{:?}", begin.elapsed());
    assert!(reads < 3 * BUCKET, "{reads} reads for {answered} answers");
}

/// Connections that send nothing count as messages do.
#[test]
fn connections_above_the_rate_wait_in_the_backlog() {
    let mut back = back_end(1);
    let (mem, begin) = (Memory::heap(), Instant::now());
    while back.guest().connections < u64::from(BUCKET) + 200 {
        assert!(begin.elapsed() < PATIENCE, "{} connections", back.guest().connections);
        let socket = UnixStream::connect(&back.socket).unwrap();
        let before = back.guest().connections;
        until(|| {
            if is_readable(&back) {
                back.recv(&mem, &mut Vec::new()).unwrap();
            }
            back.guest().connections > before
        });
        drop(socket);
        until(|| {
            back.recv(&mem, &mut Vec::new()).unwrap();
            !back.guest().connected
        });
    }
    assert!(begin.elapsed() > Duration::from_millis(180), "{:?}", begin.elapsed());
}

#[test]
fn malformed_messages_close_the_connection_with_one_error() {
    let message = |request: u32, body: &[u8]| {
        let mut bytes = Vec::new();
        for word in [request, 1, body.len() as u32] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(body);
        bytes
    };
    let word = |value: u64| value.to_ne_bytes();
    let vring = |index: u32, num: u32| [index.to_ne_bytes(), num.to_ne_bytes()].concat();
    let cases = [
        ("unknown", message(99, &[])),
        ("body too long", [7_u32, 1, 5000].map(u32::to_ne_bytes).concat()),
        ("no version", [1_u32, 0, 0].map(u32::to_ne_bytes).concat()),
        ("features not offered", message(2, &word(1 << 63))),
        ("protocol features not offered", message(16, &word(1 << 8))),
        ("ring size no power of two", message(8, &vring(0, 100))),
        ("ring size too large", message(8, &vring(0, 65_536))),
        ("ring that there is not", message(8, &vring(2, 128))),
        ("ring base of one that there is not", message(11, &vring(7, 0))),
        ("no memory", message(5, &[0; 8])),
        ("memory without descriptors", message(5, &[[1, 0, 0, 0, 0, 0, 0, 0].as_slice(), &[0; 32]].concat())),
        ("kick without descriptor", message(12, &word(0))),
    ];
    let mem = Memory::heap();
    let mut back = back_end(1);
    for (number, (case, bytes)) in cases.iter().enumerate() {
        let mut socket = UnixStream::connect(&back.socket).unwrap();
        socket.write_all(bytes).unwrap();
        let mut none = Vec::new();
        let mut errors = Vec::new();
        for _ in 0..20 {
            errors.extend(back.recv(&mem, &mut none).err().map(|err| err.to_string()));
        }
        assert_eq!(errors.len(), 1, "{case}: {errors:?}");
        assert!(errors[0].starts_with("vm0: vhost-user: connection closed: "), "{case}: {errors:?}");
        let guest = back.guest();
        assert_eq!((guest.violations, guest.connected), (number as u64 + 1, false), "{case}");
        assert_eq!(back.stats().dropped_for(DropReason::RingDescriptor), number as u64 + 1);
    }
}

#[test]
fn front_end_that_reads_no_answers_is_disconnected() {
    let mut back = back_end(1);
    let mem = Memory::heap();
    let mut none = Vec::new();
    let mut socket = UnixStream::connect(&back.socket).unwrap();
    socket.set_nonblocking(true).unwrap();
    let question = [1_u32, 1, 0].map(u32::to_ne_bytes).concat();
    let mut error = None;
    until(|| {
        for _ in 0..50 {
            let _ = socket.write(&question);
        }
        error = back.recv(&mem, &mut none).err();
        error.is_some()
    });
    let text = error.unwrap().to_string();
    assert_eq!(text, "vm0: vhost-user: connection closed: answers that are not read");
}

#[test]
fn socket_in_use_is_refused_and_a_stale_one_replaced() {
    let back = back_end(1);
    let taken = open(&VhostConfig::new("vm1", &back.socket, MAC)).unwrap_err();
    assert_eq!(taken.to_string(), "vm1: bind: Address already in use");
    let socket = back.socket.clone();
    // A crashed program leaves its socket behind.
    let stale = path();
    drop(UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    let again = open(&VhostConfig::new("vm1", &stale, MAC)).unwrap();
    drop((back, again));
    assert!(!socket.exists() && !stale.exists());
}

#[test]
fn files_of_others_are_neither_replaced_nor_removed() {
    let file = path();
    std::fs::write(&file, "kept").unwrap();
    let refused = open(&VhostConfig::new("vm0", &file, MAC)).unwrap_err();
    assert!(refused.to_string().contains("Address already in use"), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    std::fs::remove_file(&file).unwrap();
    // Another program's socket in place of this one.
    let link = open(&VhostConfig::new("vm0", &file, MAC)).unwrap();
    std::fs::remove_file(&file).unwrap();
    let other = UnixListener::bind(&file).unwrap();
    drop(link);
    assert!(file.exists());
    drop(other);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn get_vring_base_returns_the_index_of_the_stop() {
    let mut raw = Raw::new(|all| all);
    for number in 0..5 {
        assert_eq!(raw.send([0; 12], &frame(number, 64)).len(), 1);
    }
    let mut device = lock(&raw.back.device);
    let state = vhost::vhost_user::VhostUserBackendReqHandlerMut::get_vring_base(&mut *device, 1).unwrap();
    assert_eq!({ state.num }, 5);
    assert!(lock(&device.vrings[1]).ring.is_none());
    drop(device);
    assert!(!raw.back.guest().queues[1].running);
}

#[test]
fn rings_may_be_enabled_before_the_features_are_set() {
    let mut back = back_end(1);
    let mem = Memory::heap();
    let mut socket = UnixStream::connect(&back.socket).unwrap();
    let message = |request: u32, flags: u32, body: &[u32]| {
        let header = [request, flags, body.len() as u32 * 4];
        [&header, body].concat().into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<u8>>()
    };
    // GET_FEATURES, SET_PROTOCOL_FEATURES with REPLY_ACK, and SET_VRING_ENABLE with an answer as QEMU sends it.
    let all = [message(1, 1, &[]), message(16, 1, &[8, 0]), message(18, 9, &[0, 1])].concat();
    socket.write_all(&all).unwrap();
    back.recv(&mem, &mut Vec::new()).unwrap();
    let mut answers = [0; 40];
    std::io::Read::read_exact(&mut socket, &mut answers).unwrap();
    assert_eq!(answers[20..], *message(18, 5, &[0, 0]));
    assert!(back.guest().queues[0].enabled && !back.guest().queues[1].enabled);
    socket.write_all(&message(18, 9, &[0, 2])).unwrap();
    let err = back.recv(&mem, &mut Vec::new()).unwrap_err().to_string();
    assert_eq!(err, "vm0: vhost-user: connection closed: message 18: ring 0");
}

#[test]
fn connection_without_a_message_closes_silently() {
    let mut back = back_end(1);
    let mem = Memory::heap();
    for looks in 1..3 {
        drop(UnixStream::connect(&back.socket).unwrap());
        until(|| {
            back.recv(&mem, &mut Vec::new()).unwrap();
            back.guest().connections == looks && !back.guest().connected
        });
    }
}

#[test]
fn memory_slots_come_and_go_while_rings_run() {
    let mut raw = Raw::new(|all| all);
    assert_eq!(raw.send([0; 12], &frame(1, 64)).len(), 1);
    let file = rustix::fs::memfd_create("slot", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    let region = VhostUserSingleMemoryRegion::new(1 << 20, 8192, 1 << 50, 0);
    let mut device = lock(&raw.back.device);
    assert_eq!(device.get_max_mem_slots().unwrap(), 128);
    let file = || std::fs::File::from(file.try_clone().unwrap());
    device.add_mem_region(&region, file(), None).unwrap();
    // As QEMU 7.2 does for the second pair of queues.
    device.add_mem_region(&region, file(), None).unwrap();
    assert_eq!(device.memory.count(), 2);
    let other = rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&other, 8192).unwrap();
    assert!(device.add_mem_region(&region, other.into(), None).is_err(), "another file at the same place");
    let second_page = VhostUserSingleMemoryRegion::new(1 << 20, 4096, 1 << 50, 4096);
    assert!(device.add_mem_region(&second_page, file(), None).is_err(), "another stretch at the same place");
    assert!(device.remove_mem_region(&second_page).is_err(), "another length");
    let longer = VhostUserSingleMemoryRegion::new(2 << 20, 12_288, 2 << 50, 0);
    assert!(device.add_mem_region(&longer, file(), None).is_err(), "longer than its file");
    drop(device);
    // From newly mapped memory, at the ring's former index.
    raw.tx().ring.describe(0, 1 << 20, 200, 0, 0);
    raw.offer();
    let (got, err) = raw.recv();
    assert_eq!((got.len(), got[0].len(), err), (1, 188, None));
    assert_eq!(raw.tx().ring.take_back(), Ok(Some((0, 0))));
    let mut device = lock(&raw.back.device);
    device.remove_mem_region(&region).unwrap();
    device.remove_mem_region(&region).unwrap();
    assert_eq!(device.memory.count(), 1);
    drop(device);
    raw.tx().ring.describe(0, 1 << 20, 200, 0, 0);
    raw.offer();
    assert!(raw.recv().1.is_some_and(|err| err.ends_with("200 bytes at 0x100000 outside of guest memory")));
}

#[test]
fn memory_above_the_limit_of_the_link_is_refused() {
    /// 40 GiB, of a sparse file; the limit is 64.
    const LEN: u64 = 40 << 30;
    let raw = Raw::new(|all| all);
    let file = rustix::fs::memfd_create("sparse", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, LEN).unwrap();
    let mut device = lock(&raw.back.device);
    let mut add = |at: u64| {
        let region = VhostUserSingleMemoryRegion::new(at << 40, LEN, at << 41, 0);
        device.add_mem_region(&region, file.try_clone().unwrap().into(), None)
    };
    add(1).unwrap();
    assert!(add(2).is_err_and(|err| err.to_string().contains("more than 68719476736 bytes of memory")));
}

#[test]
fn reset_device_stops_all_rings() {
    let mut raw = Raw::new(|all| all);
    assert_eq!(raw.send([0; 12], &frame(1, 64)).len(), 1);
    lock(&raw.back.device).reset_device().unwrap();
    raw.offer();
    assert_eq!(raw.recv().0.len(), 0);
    let guest = raw.back.guest();
    assert!(guest.connected && !guest.running && guest.queues.iter().all(|queue| !queue.running && !queue.enabled));
    let mut burst = vec![Packet::with_data(&raw.mem, &frame(1, 64)).unwrap()];
    assert_eq!(raw.back.send(&mut burst).unwrap(), Sent::All);
    assert_eq!(raw.back.stats().dropped_for(DropReason::LinkDown), 1);
}

#[test]
fn disabled_queue_moves_nothing() {
    let mut raw = Raw::new(|all| all);
    for queue in 0..2 {
        lock(&raw.back.device).set_vring_enable(queue, false).unwrap();
    }
    // The guest's requests are read and have no effect.
    assert_eq!(raw.send([0; 12], &frame(1, 64)).len(), 0);
    assert_eq!(raw.back.stats().dropped_for(DropReason::LinkDown), 1);
    let mut burst = vec![Packet::with_data(&raw.mem, &frame(1, 64)).unwrap()];
    assert_eq!(raw.back.send(&mut burst).unwrap(), Sent::All);
    assert_eq!(raw.back.stats().dropped_for(DropReason::LinkDown), 2);
}

#[test]
fn random_messages_never_panic_the_back_end() {
    let mem = Memory::heap();
    let mut back = back_end(2);
    let mut random = 12_345_u32;
    let mut next = move |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) % below
    };
    let mut refused = 0;
    for _ in 0..400 {
        let mut socket = UnixStream::connect(&back.socket).unwrap();
        for _ in 0..30 {
            let words = [0, 0, 0, 0, 2, 2, 2, 10][next(8) as usize];
            let mut message = vec![1 + next(45), [1, 9][next(2) as usize], words * 4];
            message.extend((0..words).map(|_| [0, 1, 2, 8, 256, 1 << 20, u32::MAX][next(7) as usize]));
            let bytes: Vec<u8> = message.into_iter().flat_map(u32::to_ne_bytes).collect();
            if socket.write_all(&bytes).is_err() || back.recv(&mem, &mut Vec::new()).is_err() {
                refused += 1;
                break;
            }
            let mut burst = vec![Packet::with_data(&mem, &frame(1, 64)).unwrap()];
            let _ = back.send(&mut burst);
        }
        drop(socket);
        while back.guest().connected {
            let _ = back.recv(&mem, &mut Vec::new());
        }
    }
    assert!(refused > 0);
    let mut wire = Wire { front: front::open(&front_of(&back)).unwrap(), back, mem };
    wire.connect();
}

#[test]
fn memory_truncated_by_guest_closes_the_connection() {
    let mut raw = Raw::new(|all| all);
    let file = rustix::fs::memfd_create("slot", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    let region = VhostUserSingleMemoryRegion::new(1 << 20, 8192, 1 << 50, 0);
    let theirs = std::fs::File::from(file.try_clone().unwrap());
    lock(&raw.back.device).add_mem_region(&region, theirs, None).unwrap();
    rustix::fs::ftruncate(&file, 0).unwrap();
    raw.tx().ring.describe(0, 1 << 20, 200, 0, 0);
    raw.offer();
    let (_, err) = raw.recv();
    assert_eq!(err.as_deref(), Some("vm0: vhost-user: connection closed: the guest's memory went away"));
    assert_eq!(raw.back.guest().regions, 0);
}
