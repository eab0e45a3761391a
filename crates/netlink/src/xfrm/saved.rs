//! Requests that restore SAs and policies.

use super::super::message::{HEADER_LEN, flag};
use super::super::saved::{Saved, find, kind_of, renumber_field};
use super::layout::{Layout, PolicyInfo, ReplayEsn, SaInfo};
use super::nums::{attr, msg};
use super::protocol::BLOCK;
use super::{Policy, Sa};

/// Sequence numbers of a restored SA.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Numbers {
    /// Last sent sequence number.
    pub oseq: u64,
    /// Highest sequence number that counts as received.
    pub seq: u64,
    /// Bytes and packets of use.
    pub used: [u64; 2],
}

impl Sa {
    /// Whether the SA has a time limit.
    pub const fn has_time_limit(&self) -> bool {
        let lft = &self.info.lft;
        lft.hard_add_expires_seconds != 0 || lft.hard_use_expires_seconds != 0
    }

    /// Request that restores the SA in its current state; `None` for a larval SA. It contains keys.
    pub fn saved(&self) -> Option<Saved> {
        self.algorithm.as_ref()?;
        let addr = self.info.daddr.ip(self.info.family)?;
        let label = format!("SA {addr} {:#010x}", self.info.spi);
        // The acquire that the SA answered is over.
        let again = Self { info: SaInfo { seq: 0, ..self.info }, last_used: 0, ..self.clone() };
        Some(Saved::new("SA", label, msg::NEW_SA, flag::CREATE | flag::EXCL, |w| {
            again.write(w);
            again.info.curlft.put(w, attr::LTIME_VAL);
            w.put_u32(attr::ETIMER_THRESH, again.etimer_thresh);
            w.put_u32(attr::REPLAY_THRESH, again.replay_thresh);
        }))
    }
}

/// Sets the initial sequence numbers of a request's SA, for its directions.
pub fn set_numbers(message: &mut [u8], numbers: Numbers) {
    let dir = find(message, SaInfo::LEN, attr::SA_DIR).and_then(|at| message.get(at).copied());
    let oseq = if dir == Some(1) { 0 } else { numbers.oseq };
    let seq = if dir == Some(2) { 0 } else { numbers.seq };
    let seen = if seq == 0 { 0 } else { u32::MAX };
    let halves = |number: u64| (number as u32, (number >> 32) as u32);
    let ((oseq, oseq_hi), (seq, seq_hi)) = (halves(oseq), halves(seq));
    if let Some(at) = find(message, SaInfo::LEN, attr::REPLAY_VAL) {
        put(message, at, &[oseq, seq, seen]);
    }
    if let Some(at) = find(message, SaInfo::LEN, attr::REPLAY_ESN_VAL) {
        // `struct xfrm_replay_state_esn`: the bitmap's length in words, the numbers, the window, the bitmap.
        let words = message.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |len| u32::from_ne_bytes(*len));
        put(message, at + 4, &[oseq, seq, oseq_hi, seq_hi]);
        (0..words.min(ReplayEsn::MAX_WORDS) as usize).for_each(|word| put(message, at + 24 + 4 * word, &[seen]));
    }
    if let Some(at) = find(message, SaInfo::LEN, attr::LTIME_VAL) {
        let [bytes, packets] = numbers.used.map(halves);
        let in_order = |(low, high): (u32, u32)| if cfg!(target_endian = "little") { [low, high] } else { [high, low] };
        put(message, at, &[in_order(bytes), in_order(packets)].concat());
    }
}

fn put(message: &mut [u8], at: usize, words: &[u32]) {
    for (n, word) in words.iter().enumerate() {
        let place = message.get_mut(at + 4 * n..).and_then(<[u8]>::first_chunk_mut);
        if let Some(place) = place {
            *place = word.to_ne_bytes();
        }
    }
}

impl Policy {
    /// Request that restores the policy.
    pub fn saved(&self) -> Saved {
        let info = PolicyInfo { index: 0, curlft: Default::default(), ..self.info };
        let again = Self { info, ..self.clone() };
        let sel = &info.sel;
        let of = |addr: super::layout::Addr, len| {
            addr.ip(sel.family).map_or_else(|| "any".to_owned(), |addr| format!("{addr}/{len}"))
        };
        let dir = ["in", "out", "fwd"].get(usize::from(info.dir)).unwrap_or(&"?");
        let label = format!("policy {dir} {} {}", of(sel.saddr, sel.prefixlen_s), of(sel.daddr, sel.prefixlen_d));
        Saved::new("policy", label, msg::NEW_POLICY, flag::CREATE | flag::EXCL, |w| again.write(w))
    }
}

/// Request that makes the default policies of in, out and fwd block, where `block` is true. The others stay unchanged.
pub fn saved_defaults(block: [bool; 3]) -> Saved {
    // `XFRM_USERPOLICY_UNSPEC`.
    const UNSPEC: u8 = 0;
    let [input, out, fwd] = block.map(|block| if block { BLOCK } else { UNSPEC });
    Saved::new("policy default", "policy default".to_owned(), msg::SET_DEFAULT, 0, |w| w.fixed(&[input, fwd, out]))
}

/// Replaces interface indexes in a request by those that `now` returns.
///
/// # Errors
/// The index for which `now` returns `None`.
pub fn renumber(message: &mut [u8], now: impl Fn(u32) -> Option<u32>) -> Result<(), u32> {
    // Both begin with a `struct xfrm_selector`; its `ifindex` precedes the last word.
    const IFINDEX: usize = 48;
    match kind_of(message) {
        msg::NEW_SA | msg::NEW_POLICY if message.len() > HEADER_LEN + IFINDEX => {
            renumber_field(message, IFINDEX, |old| if old == 0 { Some(0) } else { now(old) })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{LifetimeCfg, LifetimeCur, ReplayEsn, family_of};
    use super::super::nums::{mode, proto, sa_flag};
    use super::super::protocol::split;
    use super::super::{NewSa, Replay};
    use super::*;
    use crate::error::Error;
    use crate::message::Messages;
    use crate::session::Request;
    use std::time::Duration;
    use xfrm::{Aead, Algorithm, Mark};

    fn sa(dir: u8, esn: bool) -> Sa {
        let [src, dst] = ["192.0.2.1", "192.0.2.2"].map(|addr| addr.parse::<std::net::IpAddr>().unwrap());
        let flags = if esn { sa_flag::ESN } else { 0 };
        let curlft = LifetimeCur { bytes: 5, packets: 2, add_time: 9, use_time: 9 };
        let family = family_of(dst);
        let replay = if esn {
            let (replay_window, bmp) = if dir == 2 { (0, Vec::new()) } else { (64, vec![1, 0]) };
            Replay::Esn(ReplayEsn { oseq: 7, seq: 8, oseq_hi: 0, seq_hi: 0, replay_window, bmp })
        } else {
            Replay::Legacy([7, 8, 1])
        };
        let info = SaInfo {
            saddr: src.into(),
            daddr: dst.into(),
            spi: 0x1000,
            proto: proto::ESP,
            lft: LifetimeCfg::INFINITE,
            curlft,
            seq: 77,
            family,
            mode: mode::TUNNEL,
            replay_window: if esn || dir == 2 { 0 } else { 32 },
            flags,
            ..SaInfo::default()
        };
        let key = vec![3; 20].into();
        Sa {
            info,
            algorithm: Some(Algorithm::Aead { name: Aead::GcmAes, key, icv_bits: 128 }),
            encap: None,
            coaddr: None,
            last_used: 9,
            mark: Mark { value: 5, mask: 0xff },
            set_mark: Mark::default(),
            extra_flags: 0,
            replay,
            tfcpad: 0,
            if_id: 0,
            dir,
            mapping_threshold: 0,
            nat_keepalive: 0,
            replay_thresh: 3,
            etimer_thresh: 50,
        }
    }

    /// Parses a request as the gateway does.
    fn parse(message: &[u8]) -> Result<NewSa, Error> {
        let message = Messages::new(message).next().unwrap();
        let request = Request { message, strict: false, privileged: true, port: 0 };
        let (fixed, attrs) = split(&request)?;
        NewSa::parse(fixed, &attrs)
    }

    fn parsed(message: &[u8]) -> NewSa {
        parse(message).unwrap()
    }

    #[test]
    fn saved_sa_with_an_if_id_is_refused_by_name() {
        let saved = Sa { if_id: 7, ..sa(0, false) }.saved().unwrap();
        let refused = parse(&saved.message).unwrap_err();
        assert_eq!(refused.text.as_deref(), Some("if_id: fatpath has no XFRM interfaces"));
    }

    #[test]
    fn an_sa_begins_at_the_numbers_that_it_is_given() {
        let numbers = Numbers { oseq: 0x1_0000_0002, seq: 0x2_0000_0003, used: [u64::MAX - 1, 6] };
        for (dir, oseq, seq) in [(0, true, true), (1, false, true), (2, true, false)] {
            let [sent, received] = [(oseq, numbers.oseq), (seq, numbers.seq)].map(|(has, n)| if has { n } else { 0 });
            let seen = if seq { u32::MAX } else { 0 };
            for esn in [true, false] {
                let mut message = sa(dir, esn).saved().unwrap().message;
                if dir == 0 {
                    assert_eq!(parsed(&message).replay, Some(sa(dir, esn).replay), "as it was");
                }
                set_numbers(&mut message, numbers);
                let new = parsed(&message);
                let want = if esn {
                    let (oseq, seq) = (sent as u32, received as u32);
                    let (oseq_hi, seq_hi) = ((sent >> 32) as u32, (received >> 32) as u32);
                    let (replay_window, bmp) = if dir == 2 { (0, Vec::new()) } else { (64, vec![seen; 2]) };
                    Replay::Esn(ReplayEsn { oseq, seq, oseq_hi, seq_hi, replay_window, bmp })
                } else {
                    Replay::Legacy([sent as u32, received as u32, seen])
                };
                assert_eq!(new.replay, Some(want), "{dir}");
                assert_eq!(new.used.map(|used| [used.bytes, used.packets]), Some(numbers.used));
                assert_eq!((new.info.seq, new.mark.value, new.dir), (0, 5, dir));
                assert_eq!((new.aevents.packets, new.aevents.time), (Some(3), Some(Duration::from_secs(5))));
            }
        }
    }

    #[test]
    fn a_request_of_any_length_is_changed_within_it() {
        let whole = sa(0, true).saved().unwrap().message;
        for len in 0..whole.len() {
            set_numbers(&mut whole[..len].to_vec(), Numbers { oseq: 1, seq: 1, used: [1; 2] });
            let _ = renumber(&mut whole[..len].to_vec(), |_| Some(1));
        }
        // A bitmap whose stated length exceeds the message.
        let mut long = whole.clone();
        let at = find(&long, SaInfo::LEN, attr::REPLAY_ESN_VAL).unwrap();
        put(&mut long, at, &[u32::MAX]);
        set_numbers(&mut long, Numbers::default());
        assert_eq!(long.len(), whole.len());
    }

    #[test]
    fn time_limit_and_larval_state_of_an_sa_are_saved() {
        let mut it = sa(0, false);
        assert!(!it.has_time_limit() && it.saved().is_some());
        it.info.lft.soft_add_expires_seconds = 1;
        assert!(!it.has_time_limit());
        it.info.lft.hard_use_expires_seconds = 1;
        assert!(it.has_time_limit());
        it.algorithm = None;
        assert_eq!(it.saved(), None);
    }
}
