//! Packets in several buffers: opened to the same bytes as in one, and without a copy where the cipher can.

use crate::common::{NAT_T, Pair, fat, gcm, sa, segments};
use base::DropReason;
use ipsec::Train;
use ipsec::engine::{Cipher, Library, OpenError};
use packet::{Buf, CopyReason, Memory, Packet};
use proptest::prelude::*;
use wire::Version;
use xfrm::{Aead, Algorithm};
use xfrm::{Mode, SaConfig, SaFlags};

/// Bytes around the text in the room for a packet.
const AROUND: u8 = 0xa5;

fn library() -> impl Strategy<Value = Library> {
    prop::sample::select(Library::ALL)
}

/// `bytes` in buffers of these lengths, the last one with the remainder; some may be empty.
fn cut<'b>(mut bytes: &'b [u8], lens: &[usize]) -> Vec<&'b [u8]> {
    let mut pieces = Vec::new();
    for &len in lens {
        let (front, behind) = bytes.split_at(len.min(bytes.len()));
        pieces.push(front);
        bytes = behind;
    }
    pieces.push(bytes);
    pieces
}

/// Many short lengths, so that headers and ICV are split too.
fn lens() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        prop::collection::vec(prop_oneof![Just(1), 0..20_usize, 0..600_usize], 0..40),
        prop::collection::vec(Just(1), 0..100),
        prop::collection::vec(Just(1448), 0..50),
    ]
}

proptest! {
    #[test]
    fn packet_in_frags_decrypts_like_a_linear_one(
        (key_len, icv_len) in (prop_oneof![Just(20_u8), Just(28), Just(36)], prop_oneof![Just(8), Just(12), Just(16)]),
        library in library(),
        (text, lens) in (prop::collection::vec(any::<u8>(), 0..5000), lens()),
        high in any::<Option<u32>>(),
        flipped in prop::option::of((any::<prop::sample::Index>(), 0..8_u32)),
    ) {
        let cipher = Cipher::with_library(&gcm(key_len, icv_len), library).unwrap();
        let text = &text[..text.len() / 4 * 4];
        let mut sealed = [&[7; 8][..], &[0; 8], text, &vec![0; icv_len]].concat();
        cipher.seal(&mut sealed, [1; 8], high);
        if let Some((at, bit)) = flipped {
            let at = at.index(sealed.len());
            sealed[at] ^= 1 << bit;
        }
        let mut plain = sealed.clone();
        let want = cipher.open(&mut plain, high).map(|text| text.to_vec());
        prop_assert_eq!(want.is_ok(), flipped.is_none());
        prop_assert_eq!(want.as_deref().unwrap_or(text), text);

        let (before, mut room) = (sealed.clone(), vec![AROUND; sealed.len()]);
        let got = cipher.open_from(cut(&sealed, &lens).into_iter(), &mut room, high).map(|text| text.to_vec());
        prop_assert_eq!(&got, &want);
        prop_assert_eq!(sealed, before, "what it is read from stays");
        let inside = got.unwrap_or_else(|_| vec![0; text.len()]);
        let end = room.len() - icv_len;
        prop_assert!(room[16..end] == inside, "nothing of what is forged is to be seen");
        prop_assert!(room[..16].iter().chain(&room[end..]).all(|&byte| byte == AROUND));
    }
}

#[test]
fn truncated_packet_is_forged_and_zeroed_and_the_next_opens() {
    let cipher = Cipher::new(&gcm(36, 12)).unwrap();
    let mut sealed = [0x11; 16 + 3000 + 12];
    cipher.seal(&mut sealed, [1; 8], Some(1));
    for missing in [1, 11, 12, 13, 3000, 3012, 3020, 3028] {
        let mut room = [AROUND; 3028];
        let pieces = cut(&sealed[..3028 - missing], &[10, 1448, 1]);
        assert_eq!(cipher.open_from(pieces.into_iter(), &mut room, Some(1)), Err(OpenError::IcvWrong), "{missing}");
        assert_eq!(room[16..3016], [0; 3000]);
        let opened = cipher.open_from(cut(&sealed, &[1448; 3]).into_iter(), &mut room, Some(1));
        assert_eq!(opened.map(|text| text.to_vec()), Ok(vec![0x11; 3000]));
    }
}

#[test]
fn several_threads_open_with_one_key() {
    let cipher = Cipher::new(&gcm(20, 12)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let cipher = &cipher;
            scope.spawn(move || {
                for n in 0..200_u8 {
                    let mut sealed = vec![thread; 28 + 4 * usize::from(n)];
                    cipher.seal(&mut sealed, [thread, n, 0, 0, 0, 0, 0, 0], None);
                    let mut room = vec![0; sealed.len()];
                    let opened = cipher.open_from(cut(&sealed, &[1, 20, 100]).into_iter(), &mut room, None);
                    assert!(opened.is_ok_and(|text| text.iter().all(|&byte| byte == thread)));
                }
            });
        }
    });
}

/// A packet with one buffer for each `len` bytes, each in a page of its own.
fn in_pieces(mem: &Memory, bytes: &[u8], len: usize) -> Packet {
    let mut bufs = bytes.chunks(len).map(|bytes| {
        let mut buf: Buf = mem.small().take(Memory::HEADROOM).unwrap();
        buf.put(bytes.len()).unwrap().copy_from_slice(bytes);
        buf
    });
    let mut whole = Packet::from_buf(bufs.next().unwrap());
    for buf in bufs {
        if let Err(buf) = whole.push_frag(buf) {
            whole.push_child(Packet::from_buf(buf));
        }
    }
    whole
}

#[test]
fn datagram_in_pieces_is_opened_to_one_page_without_a_copy() {
    let chacha = Algorithm::aead(Aead::ChaCha20Poly1305, vec![3; 36].into(), 128);
    for (outer, version) in [(0, Version::V4), (1, Version::V6)] {
        for (algorithm, is_copied) in [(gcm(20, 12), false), (gcm(36, 16), false), (chacha.clone(), true)] {
            let (src, dst) = (crate::common::HERE[outer], crate::common::THERE[outer]);
            let flags = SaFlags { esn: outer == 0, ..sa().flags };
            let config = SaConfig { src, dst, mode: Mode::Transport, algorithm, flags, ..sa() };
            let mut pair = Pair::new(&config);
            let device = Memory::heap();
            for (payload, len) in [(60_000, 1448), (5000, 100), (300, 2), (70, 1)] {
                let bytes = crate::common::udp_packet(version, payload);
                let mut wire = Vec::new();
                let pkt = Packet::with_data(&Memory::heap(), &bytes).unwrap();
                let now = base::Instant::ZERO;
                let sealed =
                    pair.sender.seal(&pair.mem, now, pair.out_sa, pkt, Train::None, 65_575, &mut wire, &mut pair.sent);
                assert_eq!((sealed, wire.len()), (Ok(()), 1));
                let before = pair.mem.copies().get(CopyReason::Linearize).bytes;
                let got = pair.open(in_pieces(&device, &wire[0].to_vec(), len));
                assert!(got.len() == 1 && got[0].to_vec() == bytes, "{version} {len} {:?}", pair.opened.drops);
                assert_eq!(pair.mem.copies().get(CopyReason::Linearize).bytes > before, is_copied, "{version} {len}");
            }
            assert_eq!(device.small().in_use(), 0, "its pages are freed with the buffers");
        }
    }
}

#[test]
fn forged_datagram_in_pieces_is_dropped_and_its_pages_freed() {
    let mut pair = Pair::new(&sa());
    let pkt = Packet::with_data(&Memory::heap(), &crate::common::udp_packet(Version::V4, 1000)).unwrap();
    let wire = pair.seal(pkt, Train::None);
    let mut bytes = wire[0].to_vec();
    bytes[500] ^= 1;
    let device = Memory::heap();
    assert!(pair.open(in_pieces(&device, &bytes, 300)).is_empty());
    assert_eq!(std::mem::take(&mut pair.opened.drops), [DropReason::EspIcv]);
    assert_eq!((device.small().in_use(), pair.mem.large().in_use()), (0, 0));
    bytes[500] ^= 1;
    assert_eq!(pair.open(in_pieces(&device, &bytes, 300)).len(), 1, "a forgery did not move the window");
}

#[test]
fn train_across_pages_is_opened_in_order_without_a_copy() {
    let mut pair = Pair::new(&SaConfig { encap: NAT_T, ..sa() });
    let (bytes, csum, cut) = fat(Version::V4, true, 1300, 20 * 1300);
    let want = segments(&pair.mem, &bytes, csum, cut);
    let mut pkt = Packet::with_data(&Memory::heap(), &bytes).unwrap();
    (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
    let sealed = pair.seal(pkt, Train::Udp).remove(0);
    let mut wire = in_pieces(&Memory::heap(), &sealed.to_vec(), 1500);
    wire.meta.cut = sealed.meta.cut;
    let before = pair.mem.copies().total_bytes();
    let got: Vec<_> = pair.open(wire).iter().map(Packet::to_vec).collect();
    assert!(got == want, "{:?}", pair.opened.drops);
    assert_eq!(pair.mem.copies().total_bytes(), before);
}
