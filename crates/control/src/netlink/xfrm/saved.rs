//! SAs and policies as the requests that make them again.

use super::super::message::{HEADER_LEN, flag};
use super::super::saved::{Saved, find, renumber_field};
use super::layout::{Layout, PolicyInfo, ReplayEsn, SaInfo};
use super::nums::{attr, msg};
use super::protocol::{ACCEPT, BLOCK};
use super::{Policy, Sa};

/// What is said of the numbers of an SA that is made again.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Numbers {
    /// The number after which it sends.
    pub oseq: u64,
    /// The number up to which all counts as received.
    pub seq: u64,
    /// Bytes and packets that it has been used for.
    pub used: [u64; 2],
}

impl Sa {
    /// Whether it ends by time.
    pub const fn has_time_limit(&self) -> bool {
        let lft = &self.info.lft;
        lft.hard_add_expires_seconds != 0 || lft.hard_use_expires_seconds != 0
    }

    /// The request that makes it again, as it is now; `None` of one that is yet to come. It has keys in it.
    pub fn saved(&self) -> Option<Saved> {
        self.algorithm.as_ref()?;
        let addr = self.info.daddr.ip(self.info.family)?;
        let label = format!("SA {addr} {:#010x}", self.info.spi);
        // What was asked for it by is over.
        let again = Self { info: SaInfo { seq: 0, ..self.info }, last_used: 0, ..self.clone() };
        Some(Saved::new("SA", label, msg::NEW_SA, flag::CREATE | flag::EXCL, |w| {
            again.write(w);
            again.info.curlft.put(w, attr::LTIME_VAL);
        }))
    }
}

/// Has the SA of a request begin at `numbers`, as far as its direction has any.
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
    /// The request that makes it again.
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

/// The request that says which of in, fwd and out block what no policy is for, of `block` in the order in, out, fwd.
pub fn saved_defaults(block: [bool; 3]) -> Saved {
    let [input, out, fwd] = block.map(|block| if block { BLOCK } else { ACCEPT });
    Saved::new("policy default", "policy default".to_owned(), msg::SET_DEFAULT, 0, |w| w.fixed(&[input, fwd, out]))
}

/// Exchanges the numbers of links in a request for those that `now` gives.
///
/// # Errors
/// The number for which it gives none.
pub fn renumber(message: &mut [u8], now: impl Fn(u32) -> Option<u32>) -> Result<(), u32> {
    // Both begin with a `struct xfrm_selector`, whose link stands before its last word.
    const IFINDEX: usize = 48;
    let kind = message.get(4..6).and_then(<[u8]>::first_chunk).map_or(0, |kind| u16::from_ne_bytes(*kind));
    match kind {
        msg::NEW_SA | msg::NEW_POLICY if message.len() > HEADER_LEN + IFINDEX => {
            renumber_field(message, IFINDEX, |old| if old == 0 { Some(0) } else { now(old) })
        }
        _ => Ok(()),
    }
}
