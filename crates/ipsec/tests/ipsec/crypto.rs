//! Cipher work on other threads or devices: in order, once, and with the same outcome.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::common::{NAT_T, Pair, fat, sa, segments, udp_packet};
use base::{DropReason, Instant, Mib};
use ipsec::crypto::{Crypto, Pool, Task};
use ipsec::{Decrypted, FnSink, Train};
use offload::ip_headers;
use packet::{Memory, Packet, geometry};
use wire::{Version, esp, ipv4};
use xfrm::{Algorithm, Mode, SaConfig};

const NOW: Instant = Instant::from_nanos(7);

fn pool(threads: usize) -> Option<Box<dyn Crypto>> {
    Some(Box::new(Pool::new(NonZeroUsize::new(threads).unwrap(), |_| {}).unwrap()))
}

/// Takes all tasks, and returns them in reverse order at the second call.
#[derive(Debug, Default)]
struct Backwards(Vec<Task>);

impl Crypto for Backwards {
    fn work(&mut self, _: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        if todo.is_empty() {
            self.0.iter_mut().for_each(Task::run);
            done.extend(self.0.drain(..).rev());
        }
        self.0.extend(todo.drain(..));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (!self.0.is_empty()).then_some(NOW)
    }
}

/// A packet of its own size for each `n`.
fn pkt(mem: &Memory, n: usize) -> Packet {
    Packet::with_data(mem, &udp_packet(Version::V4, 1 + n * 37 % 1300)).unwrap()
}

/// Seals `n` packets by `crypto`, which is called after every `step`; returns their numbers and contents.
fn sealed_by(crypto: Option<Box<dyn Crypto>>, n: usize, step: usize) -> Vec<(u32, Vec<u8>)> {
    let mut pair = Pair::new(&sa());
    pair.sender.set_crypto(crypto);
    let mut out = Vec::new();
    for n in 0..n {
        let pkt = pkt(&pair.mem, n);
        let sealed = pair.sender.submit_seal(&pair.mem, NOW, pair.out_sa, pkt, Train::None, 1500, &mut pair.sent);
        assert_eq!(sealed, Ok(()));
        if n % step == 0 {
            pair.sender.work(NOW);
            while pair.sender.next_sealed(&pair.mem, &mut out) {}
        }
    }
    while pair.sender.is_pending() {
        pair.sender.work(NOW);
        while pair.sender.next_sealed(&pair.mem, &mut out) {}
    }
    let number = |pkt: &Packet| esp::EspHeader::ref_from(&pkt.head()[ipv4::Ipv4Header::LEN..]).unwrap().seq();
    out.into_iter().map(|pkt| (number(&pkt), pair.open(pkt).remove(0).to_vec())).collect()
}

/// Opens `packets` by `crypto`: their payload, or the reason of the drop.
fn opened_by(
    pair: &mut Pair,
    crypto: Option<Box<dyn Crypto>>,
    packets: &[Vec<u8>],
) -> Vec<Result<Vec<u8>, DropReason>> {
    pair.receiver.set_crypto(crypto);
    let mut got = Vec::new();
    for bytes in packets {
        let mut pkt = Packet::with_data(&pair.mem, bytes).unwrap();
        let info = ip_headers(&pair.mem, &mut pkt).unwrap();
        pair.receiver.submit_open(&pair.mem, NOW, pkt, &info, &mut pair.opened, &mut pair.received);
    }
    while pair.receiver.is_pending() {
        pair.receiver.work(NOW);
        let std::ops::ControlFlow::Continue(()) = pair.receiver.pass_opened(
            &pair.mem,
            NOW,
            &mut pair.received,
            &mut FnSink(|inner: Decrypted<'_>| {
                got.push(match inner {
                    Decrypted::Packet(content) => Ok(content.into_packet().to_vec()),
                    Decrypted::Dropped(reason, _) => Err(reason),
                });
            }),
        );
    }
    got
}

#[test]
fn packets_sealed_by_any_thread_leave_in_order() {
    let alone = sealed_by(None, 500, 64);
    assert!(alone.iter().map(|(number, _)| *number).eq(1..=500));
    for (threads, step) in [(1, 1), (1, 64), (3, 7), (3, 500)] {
        assert!(sealed_by(pool(threads), 500, step) == alone, "{threads} threads, {step} packets at once");
    }
    assert!(sealed_by(Some(Box::<Backwards>::default()), 500, 64) == alone);
}

#[test]
fn packets_opened_by_any_thread_come_out_in_order() {
    let mut pair = Pair::new(&sa());
    let mut packets: Vec<_> =
        (0..300).map(|n| pair.seal(pkt(&Memory::heap(), n), Train::None).remove(0).to_vec()).collect();
    packets[100][60] ^= 1;
    let mut alone = Pair::new(&sa());
    let want = opened_by(&mut alone, None, &packets);
    assert_eq!(want.iter().filter(|got| got.is_ok()).count(), 299);
    assert_eq!(want[100], Err(DropReason::EspIcv));
    for crypto in [pool(1), pool(3), Some(Box::<Backwards>::default() as Box<dyn Crypto>)] {
        let mut other = Pair::new(&sa());
        let name = format!("{crypto:?}");
        assert!(opened_by(&mut other, crypto, &packets) == want, "{name}");
        let stats = |pair: &Pair| pair.receiver.sa(pair.in_sa).unwrap().stats();
        assert_eq!((stats(&other).packets, stats(&other).failed), (299, 1), "{name}");
    }
}

/// The worker decrypts a lone packet at once, also while more packets arrive. Of many packets the threads keep some,
/// which are all returned in the end.
#[test]
fn threads_keep_their_tasks_while_packets_arrive() {
    let mut pair = Pair::new(&sa());
    let mut packets: Vec<_> = (0..300).map(|n| pair.seal(pkt(&Memory::heap(), n), Train::None).remove(0)).collect();
    pair.receiver.set_crypto(pool(1));
    let submit = |pair: &mut Pair, mut pkt: Packet| {
        let info = ip_headers(&pair.mem, &mut pkt).unwrap();
        pair.receiver.submit_open(&pair.mem, NOW, pkt, &info, &mut pair.opened, &mut pair.received);
    };
    let take = |pair: &mut Pair| {
        let mut got = Vec::new();
        let std::ops::ControlFlow::Continue(()) = pair.receiver.pass_opened(
            &pair.mem,
            NOW,
            &mut pair.received,
            &mut FnSink(|inner: Decrypted<'_>| {
                let Decrypted::Packet(content) = inner else { panic!("a good packet") };
                got.push(content.into_packet().to_vec());
            }),
        );
        got
    };
    let rest = packets.split_off(1);
    submit(&mut pair, packets.remove(0));
    assert!(pair.receiver.help(NOW));
    assert_eq!((take(&mut pair).len(), pair.receiver.is_pending()), (1, false));
    rest.into_iter().for_each(|pkt| submit(&mut pair, pkt));
    let mut got = Vec::new();
    while pair.receiver.help(NOW) {
        got.append(&mut take(&mut pair));
    }
    while pair.receiver.work(NOW) {
        got.append(&mut take(&mut pair));
    }
    let want: Vec<_> = (1..300).map(|n| pkt(&Memory::heap(), n).to_vec()).collect();
    assert!(got == want && !pair.receiver.is_pending());
}

/// Keeps all tasks.
#[derive(Clone, Debug, Default)]
struct Keeping(Arc<Mutex<VecDeque<Task>>>);

impl Crypto for Keeping {
    fn work(&mut self, _: Instant, todo: &mut VecDeque<Task>, _: &mut Vec<Task>) {
        self.0.lock().unwrap().append(todo);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn lone_task_goes_to_a_thread_if_another_follows() {
    let (mut pair, keeping) = (Pair::new(&sa()), Keeping::default());
    pair.sender.set_crypto(Some(Box::new(keeping.clone())));
    let pkt = pkt(&pair.mem, 1);
    let sealed = pair.sender.submit_seal(&pair.mem, NOW, pair.out_sa, pkt, Train::None, 1500, &mut pair.sent);
    assert_eq!(sealed, Ok(()));
    pair.sender.work(NOW);
    let mut todo = std::mem::take(&mut *keeping.0.lock().unwrap());
    let mut pool = Pool::new(NonZeroUsize::MIN, |_| {}).unwrap();
    for (more, want) in [(false, (1, false)), (true, (0, true))] {
        pool.take(NOW, &mut todo, more);
        assert_eq!((todo.len(), pool.is_running()), want, "more: {more}");
    }
    let mut done = Vec::new();
    pool.work(NOW, &mut todo, &mut done);
    assert_eq!((done.len(), pool.is_running()), (1, false));
}

/// Runs every task at once, and counts them.
#[derive(Debug)]
struct Counting(Arc<AtomicUsize>);

impl Crypto for Counting {
    fn work(&mut self, _: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        self.0.fetch_add(todo.len(), Relaxed);
        todo.iter_mut().for_each(Task::run);
        done.extend(todo.drain(..));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn train_in_any_geometry_is_decrypted_in_several_tasks() {
    let config = SaConfig { encap: NAT_T, ..sa() };
    let (bytes, csum, cut) = fat(Version::V4, true, 1300, 50_000);
    let wire = |pair: &mut Pair| {
        let mut pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
        (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
        pair.seal(pkt, Train::Udp).remove(0)
    };
    let sealed = wire(&mut Pair::new(&config));
    let esp = usize::from(sealed.meta.cut.gso().unwrap().size);
    let shapes = geometry::all(&Memory::heap(), &sealed.to_vec(), &[28 + 12 * esp, 28 + 13 * esp, 28 + 20 * esp + 5]);
    for (name, mut pkt) in shapes {
        let mut pair = Pair::new(&config);
        let want = segments(&pair.mem, &bytes, csum, cut);
        let tasks = Arc::new(AtomicUsize::new(0));
        pair.receiver.set_crypto(Some(Box::new(Counting(Arc::clone(&tasks)))));
        pkt.meta.cut = sealed.meta.cut;
        let got: Vec<_> = pair.open(pkt).iter().map(Packet::to_vec).collect();
        assert!(got == want, "{name}: {:?}", pair.opened.drops);
        assert!(tasks.load(Relaxed) > 2, "{name}");
    }
}

/// Without a cipher, threads would only cost time.
#[test]
fn null_cipher_is_sealed_on_the_worker() {
    let mut pair = Pair::new(&SaConfig { algorithm: Algorithm::null(), ..sa() });
    let packets: Vec<_> =
        (0..300).map(|n| pair.seal(pkt(&Memory::heap(), n), Train::None).remove(0).to_vec()).collect();
    let tasks = Arc::new(AtomicUsize::new(0));
    let got = opened_by(&mut pair, Some(Box::new(Counting(Arc::clone(&tasks)))), &packets);
    assert!(got.into_iter().eq((0..300).map(|n| Ok(pkt(&Memory::heap(), n).to_vec()))));
    assert_eq!(tasks.load(Relaxed), 0, "opened");
    pair.sender.set_crypto(Some(Box::new(Counting(Arc::clone(&tasks)))));
    let mut sealed = Vec::new();
    for n in 0..300 {
        let (Pair { sender, mem, out_sa, sent, .. }, pkt) = (&mut pair, pkt(&Memory::heap(), n));
        sender.submit_seal(mem, NOW, *out_sa, pkt, Train::None, 1500, sent).unwrap();
        assert!(pair.sender.next_sealed(&pair.mem, &mut sealed), "no wait for threads");
    }
    assert_eq!((sealed.len(), tasks.load(Relaxed)), (300, 0), "sealed");
}

/// Row X31: the second check finds a duplicate that was in flight with the first.
#[test]
fn one_of_two_copies_in_flight_is_accepted() {
    for crypto in [None, pool(2), Some(Box::<Backwards>::default() as Box<dyn Crypto>)] {
        let mut pair = Pair::new(&sa());
        let packet = pair.seal(pkt(&Memory::heap(), 1), Train::None).remove(0).to_vec();
        let got = opened_by(&mut pair, crypto, &[packet.clone(), packet]);
        assert!(matches!(got[..], [Ok(_), Err(DropReason::EspReplay)]), "{got:?}");
        assert_eq!(pair.received.get(Mib::XfrmInStateSeqError), 1);
    }
}

#[test]
fn packets_in_flight_of_a_deleted_sa_are_dropped() {
    let mut pair = Pair::new(&sa());
    let packet = pair.seal(pkt(&Memory::heap(), 1), Train::None).remove(0);
    pair.receiver.set_crypto(Some(Box::<Backwards>::default()));
    let mut pkt = Packet::with_data(&pair.mem, &packet.to_vec()).unwrap();
    let info = ip_headers(&pair.mem, &mut pkt).unwrap();
    pair.receiver.submit_open(&pair.mem, NOW, pkt, &info, &mut pair.opened, &mut pair.received);
    pair.receiver.work(NOW);
    assert!(pair.receiver.remove_sa(sa().dst, sa().spi, 0).is_some());
    // Another backend replaces the first in the meantime.
    let got = opened_by(&mut pair, pool(1), &[]);
    assert_eq!(got, [Err(DropReason::EspNoState)]);
    assert_eq!(pair.received.get(Mib::XfrmInStateInvalid), 1);
}

/// The contents of a transport mode packet are no packet that a tunnel carries.
#[test]
fn sa_with_changed_mode_refuses_packets_in_flight() {
    let transport = SaConfig { mode: Mode::Transport, ..sa() };
    let mut pair = Pair::new(&transport);
    let (bytes, csum, cut) = fat(Version::V4, true, 1000, 1000);
    let tcp = segments(&pair.mem, &bytes, csum, cut).remove(0);
    for (mode, want) in [(Mode::Transport, Ok(tcp.clone())), (Mode::Tunnel, Err(DropReason::EspFormat))] {
        let sealed = pair.seal(Packet::with_data(&pair.mem, &tcp).unwrap(), Train::None).remove(0);
        let mut pkt = Packet::with_data(&pair.mem, &sealed.to_vec()).unwrap();
        pair.receiver.set_crypto(Some(Box::<Backwards>::default()));
        let info = ip_headers(&pair.mem, &mut pkt).unwrap();
        pair.receiver.submit_open(&pair.mem, NOW, pkt, &info, &mut pair.opened, &mut pair.received);
        pair.receiver.work(NOW);
        pair.receiver.replace_sa(&SaConfig { mode, ..transport.clone() }).unwrap();
        assert_eq!(opened_by(&mut pair, pool(1), &[]), [want], "{mode:?}");
    }
}

#[test]
fn crypto_may_be_replaced_while_tasks_are_in_flight() {
    let mut pair = Pair::new(&sa());
    let want: Vec<_> = (0..40).map(|n| pkt(&pair.mem, n).to_vec()).collect();
    let mut out = Vec::new();
    for n in 0..40 {
        if n % 5 == 0 {
            let crypto = if n % 15 == 0 { Some(Box::<Backwards>::default() as Box<dyn Crypto>) } else { None };
            pair.sender.set_crypto(if n % 10 == 0 { crypto } else { pool(1) });
        }
        let pkt = pkt(&pair.mem, n);
        let sealed = pair.sender.submit_seal(&pair.mem, NOW, pair.out_sa, pkt, Train::None, 1500, &mut pair.sent);
        assert_eq!(sealed, Ok(()));
        if n % 3 == 0 {
            pair.sender.work(NOW);
        }
    }
    while pair.sender.is_pending() {
        pair.sender.work(NOW);
        while pair.sender.next_sealed(&pair.mem, &mut out) {}
    }
    let got: Vec<_> = out.into_iter().flat_map(|pkt| pair.open(pkt)).map(|pkt| pkt.to_vec()).collect();
    assert!(got == want);
}

#[test]
fn device_that_never_answers_gets_a_bounded_number_of_packets() {
    #[derive(Debug, Default)]
    struct Busy;
    impl Crypto for Busy {
        fn work(&mut self, _: Instant, _: &mut VecDeque<Task>, _: &mut Vec<Task>) {}
        fn poll_timeout(&self) -> Option<Instant> {
            None
        }
    }
    let mut pair = Pair::new(&sa());
    pair.sender.set_crypto(Some(Box::new(Busy)));
    let results: Vec<_> = (0..1100)
        .map(|n| {
            let pkt = pkt(&pair.mem, n);
            pair.sender.submit_seal(&pair.mem, NOW, pair.out_sa, pkt, Train::None, 1500, &mut pair.sent)
        })
        .collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1000);
    assert_eq!(results[1000], Err(DropReason::CryptoQueueFull));
    assert_eq!(pair.sent.get(Mib::XfrmOutNoQueueSpace), 100);
}

/// Rows X99 and X100: each direction has a queue of its own.
#[test]
fn stalled_direction_does_not_stop_the_other() {
    /// Runs all tasks but those of one kind.
    #[derive(Debug)]
    struct Stuck(&'static str, Vec<Task>);
    impl Crypto for Stuck {
        fn work(&mut self, _: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
            for mut task in todo.drain(..) {
                if format!("{task:?}").starts_with(self.0) {
                    self.1.push(task);
                } else {
                    task.run();
                    done.push(task);
                }
            }
        }

        fn poll_timeout(&self) -> Option<Instant> {
            None
        }
    }
    // (stalled direction, [sealed, refused], [opened, refused])
    let cases = [("Task(seal", [0, 100], [1100, 0]), ("Task(open", [1100, 0], [0, 100])];
    for (stuck, seals, opens) in cases {
        let mut pair = Pair::new(&sa());
        let back = SaConfig { src: sa().dst, dst: sa().src, spi: wire::Spi(0x2000), ..sa() };
        let back = pair.receiver.add_sa(&back, crate::common::mask()).unwrap();
        let packets: Vec<_> =
            (0..1100).map(|n| pair.seal(pkt(&Memory::heap(), n), Train::None).remove(0).to_vec()).collect();
        let Pair { receiver: node, mem, opened, sent, received, .. } = &mut pair;
        node.set_crypto(Some(Box::new(Stuck(stuck, Vec::new()))));
        let (mut sealed, mut passed) = (Vec::new(), 0);
        for (n, packet) in packets.iter().enumerate() {
            let _counted = node.submit_seal(mem, NOW, back, pkt(mem, n), Train::None, 1500, sent);
            let mut pkt = Packet::with_data(mem, packet).unwrap();
            let info = ip_headers(mem, &mut pkt).unwrap();
            node.submit_open(mem, NOW, pkt, &info, opened, received);
            while node.work(NOW) {
                while node.next_sealed(mem, &mut sealed) {}
                let mut count =
                    FnSink(|inner: Decrypted<'_>| passed += usize::from(matches!(inner, Decrypted::Packet(_))));
                let _all = node.pass_opened(mem, NOW, received, &mut count);
            }
        }
        let refused = [sent.get(Mib::XfrmOutNoQueueSpace), received.get(Mib::XfrmInError)];
        assert_eq!(([sealed.len() as u64, refused[0]], [passed as u64, refused[1]]), (seals, opens), "{stuck}");
        assert!(opened.drops.iter().all(|&reason| reason == DropReason::CryptoQueueFull));
    }
}
