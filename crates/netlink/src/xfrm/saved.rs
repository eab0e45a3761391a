//! Requests that restore SAs and policies.

use std::net::IpAddr;
use std::time::Duration;

use ::xfrm::{Action, PolicyConfig};
use zeroize::Zeroizing;

use super::super::change::{Change, again, removal, word};
use super::super::message::{HEADER_LEN, flag};
use super::super::saved::{Saved, find, kind_of, renumber_attribute, renumber_field};
use super::database::{Database, Xfrm};
use super::layout::{Layout, LifetimeCfg, PolicyId, PolicyInfo, ReplayEsn, SaId, SaInfo, Selector};
use super::nums::{attr, msg};
use super::protocol::BLOCK;
use super::{NewSpi, Policy, PolicyQuery, Sa};

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

const fn has_time_limit(info: &SaInfo) -> bool {
    info.lft.hard_add_expires_seconds != 0 || info.lft.hard_use_expires_seconds != 0
}

impl Sa {
    /// Whether the SA has a time limit.
    pub const fn has_time_limit(&self) -> bool {
        has_time_limit(&self.info)
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

impl Sa {
    /// Request that reserves the SPI of an SA with a time limit, or of a larval SA: the key is not saved, but a key manager that runs on
    /// is told that the SA is gone (Linux `km_state_expired`). `None` for other SAs, and without an SPI.
    pub fn lost(&self) -> Option<Saved> {
        let is_lost = self.info.spi != 0 && (self.algorithm.is_none() || self.has_time_limit());
        let addr = self.info.daddr.ip(self.info.family).filter(|_| is_lost)?;
        let label = format!("SPI {addr} {:#010x}", self.info.spi);
        Some(Saved::new("SPI", label, msg::ALLOC_SPI, 0, |w| {
            w.fixed(&name_only(&self.info));
            super::sa::put_mark(w, self.mark);
            if self.dir != 0 {
                w.put_u8(attr::SA_DIR, self.dir);
            }
            super::sa::put_cpu(w, self.cpu);
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
        Saved::new("policy", policy_label(&info), msg::NEW_POLICY, flag::CREATE | flag::EXCL, |w| again.write(w))
    }
}

fn policy_label(info: &PolicyInfo) -> String {
    let sel = &info.sel;
    let of = |addr: super::layout::Addr, len| {
        addr.ip(sel.family).map_or_else(|| "any".to_owned(), |addr| format!("{addr}/{len}"))
    };
    let dir = ["in", "out", "fwd"].get(usize::from(info.dir)).unwrap_or(&"?");
    format!("policy {dir} {} {}", of(sel.saddr, sel.prefixlen_s), of(sel.daddr, sel.prefixlen_d))
}

/// Request that makes the default policies of in, out and fwd block, where `block` is true. The others stay unchanged.
pub fn saved_defaults(block: [bool; 3]) -> Saved {
    // `XFRM_USERPOLICY_UNSPEC`.
    const UNSPEC: u8 = 0;
    let [input, out, fwd] = block.map(|block| if block { BLOCK } else { UNSPEC });
    Saved::new("policy default", "policy default".to_owned(), msg::SET_DEFAULT, 0, |w| w.fixed(&[input, fwd, out]))
}

/// Change by a request, if it is carried out.
pub(crate) fn change(message: &[u8]) -> Change {
    let Some(payload) = message.get(HEADER_LEN..) else { return Change::None };
    let has_index = |at: usize| word(message, at).is_some_and(|index| index != 0);
    match kind_of(message) {
        msg::NEW_SA | msg::UPD_SA if payload.len() >= SaInfo::LEN => {
            let info = SaInfo::of(payload);
            let Some(dst) = info.daddr.ip(info.family) else { return Change::None };
            let mark = mark_of(message);
            if has_time_limit(&info) {
                let body = name_only(&info);
                return Change::Request(removal(
                    message,
                    msg::ALLOC_SPI,
                    &body,
                    SaInfo::LEN,
                    &[attr::MARK, attr::SA_DIR, attr::SA_PCPU],
                ));
            }
            Change::Sa { request: again(message), dst, spi: info.spi, mark }
        }
        // An SA that a restart has lost cannot expire, but can be removed.
        msg::EXPIRE if payload.get(SaInfo::LEN).is_some_and(|&hard| hard != 0) => {
            Change::Request(deletion(message, &SaInfo::of(payload), SaInfo::LEN + 8))
        }
        msg::DEL_POLICY if has_index(Selector::LEN) => Change::PolicyByIndex,
        msg::POL_EXPIRE if payload.get(PolicyInfo::LEN).is_some_and(|&hard| hard != 0) => Change::PolicyByIndex,
        msg::DEL_SA | msg::FLUSH_SA | msg::NEW_POLICY | msg::UPD_POLICY | msg::DEL_POLICY | msg::FLUSH_POLICY => {
            Change::Request(again(message))
        }
        msg::SET_DEFAULT => Change::Request(again(message)),
        msg::NEW_AE => Change::Numbers,
        _ => Change::None,
    }
}

/// Fixed part of `ALLOCSPI` for the SPI of an SA, without the rest of it.
fn name_only(info: &SaInfo) -> Vec<u8> {
    let info = SaInfo { lft: LifetimeCfg::INFINITE, curlft: Default::default(), seq: 0, ..*info };
    let mut body = info.to_bytes().to_vec();
    body.extend([info.spi; 2].iter().flat_map(|spi| spi.to_ne_bytes()));
    body
}

/// Request that removes the SA of a request with this fixed part.
fn deletion(message: &[u8], info: &SaInfo, fixed: usize) -> Zeroizing<Vec<u8>> {
    let id = SaId { daddr: info.daddr, spi: info.spi, family: info.family, proto: info.proto };
    removal(message, msg::DEL_SA, &id.to_bytes(), fixed, &[attr::MARK])
}

/// Request that removes the SA whose SPI `message` reserves; `None` for other messages.
pub fn removal_before(message: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let payload = message.get(HEADER_LEN..).filter(|payload| payload.len() >= NewSpi::LEN)?;
    is_lost(message).then(|| deletion(message, &SaInfo::of(payload), NewSpi::LEN))
}

/// Whether a request stands for an SA with a time limit, of which its name is saved: it reserves the SPI.
pub fn is_lost(message: &[u8]) -> bool {
    kind_of(message) == msg::ALLOC_SPI
}

/// Mark of the SA in a request.
fn mark_of(message: &[u8]) -> xfrm::Mark {
    let Some(at) = find(message, SaInfo::LEN, attr::MARK) else { return xfrm::Mark::default() };
    let number = |at| word(message, at - HEADER_LEN).unwrap_or_default();
    xfrm::Mark { value: number(at), mask: number(at + 4) }
}

/// Key of the SA in a request that adds it: destination, SPI and mark.
pub fn sa_key(message: &[u8]) -> Option<(IpAddr, u32, xfrm::Mark)> {
    let info = SaInfo::of(message.get(HEADER_LEN..).filter(|payload| payload.len() >= SaInfo::LEN)?);
    Some((info.daddr.ip(info.family)?, info.spi, mark_of(message)))
}

/// Time that the SA of a request has left if it was added, and first used, so long ago; `None` without a time limit.
pub fn time_left(message: &[u8], added: Duration, first_used: Option<Duration>) -> Option<Duration> {
    let payload = message.get(HEADER_LEN..).filter(|payload| payload.len() >= SaInfo::LEN)?;
    let lft = SaInfo::of(payload).lft;
    let limits = [(lft.hard_add_expires_seconds, Some(added)), (lft.hard_use_expires_seconds, first_used)];
    let left = |(limit, age): (u64, Option<Duration>)| Some(Duration::from_secs(limit).saturating_sub(age?));
    limits.into_iter().filter(|(limit, _)| *limit != 0).filter_map(left).min()
}

/// Whether the SA of a request ends by time.
pub fn has_limit(message: &[u8]) -> bool {
    let payload = message.get(HEADER_LEN..).filter(|payload| payload.len() >= SaInfo::LEN);
    payload.is_some_and(|payload| has_time_limit(&SaInfo::of(payload)))
}

/// Makes a request that changes an SA one that adds it.
pub fn make_new(message: &mut [u8]) {
    if let Some(field) = message.get_mut(4..6) {
        field.copy_from_slice(&msg::NEW_SA.to_ne_bytes());
    }
}

/// Whether a request changes an SA, and adds none.
pub fn is_update(message: &[u8]) -> bool {
    kind_of(message) == msg::UPD_SA
}

/// Whether a request adds or changes an SA or a policy.
pub fn adds(message: &[u8]) -> bool {
    matches!(kind_of(message), msg::NEW_SA | msg::UPD_SA | msg::NEW_POLICY | msg::UPD_POLICY | msg::SET_DEFAULT)
}

/// Label of the SA or policy that a request adds, such as `SA 192.0.2.1 0x00001000`.
pub fn label_of(message: &[u8]) -> String {
    match (kind_of(message), sa_key(message)) {
        (msg::NEW_SA | msg::UPD_SA, Some((dst, spi, _))) => format!("SA {dst} {spi:#010x}"),
        (msg::NEW_POLICY | msg::UPD_POLICY, _) if message.len() >= HEADER_LEN + PolicyInfo::LEN => {
            policy_label(&PolicyInfo::of(&message[HEADER_LEN..]))
        }
        (msg::ALLOC_SPI, _) if message.len() >= HEADER_LEN + SaInfo::LEN => {
            let info = SaInfo::of(&message[HEADER_LEN..]);
            let dst = info.daddr.ip(info.family).map_or_else(|| "?".to_owned(), |dst| dst.to_string());
            format!("SPI {dst} {:#010x}", info.spi)
        }
        (msg::SET_DEFAULT, _) => "policy default".to_owned(),
        _ => "request".to_owned(),
    }
}

/// Adds the attributes that [`set_numbers`] sets, if a request lacks them.
pub fn with_numbers(message: &mut Zeroizing<Vec<u8>>) {
    /// `struct xfrm_replay_state` and `struct xfrm_lifetime_cur`.
    const MISSING: [(u16, usize); 2] = [(attr::REPLAY_VAL, 12), (attr::LTIME_VAL, 32)];
    let has = |message: &[u8], kind| find(message, SaInfo::LEN, kind).is_some();
    for (kind, len) in MISSING {
        if has(message, kind) || kind == attr::REPLAY_VAL && has(message, attr::REPLAY_ESN_VAL) {
            continue;
        }
        // A reallocation would leave keys in freed memory, which the allocator zeroes.
        let mut longer = Zeroizing::new(Vec::with_capacity(message.len() + 4 + len));
        longer.extend_from_slice(message);
        longer.resize(message.len().next_multiple_of(4), 0);
        longer.extend([(len + 4) as u16, kind].iter().flat_map(|half| half.to_ne_bytes()));
        let end = longer.len() + len;
        longer.resize(end, 0);
        let total = longer.len() as u32;
        longer[..4].copy_from_slice(&total.to_ne_bytes());
        *message = longer;
    }
}

impl<D: Database> Xfrm<D> {
    /// Request that removes the policy that `message` removes by its index, with the selector in place of the index;
    /// `None` if there is no such policy.
    pub fn removal_by_selector(&mut self, message: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let payload = message.get(HEADER_LEN..)?;
        let id = match kind_of(message) {
            msg::POL_EXPIRE if payload.len() >= PolicyInfo::LEN => {
                let PolicyInfo { sel, index, dir, .. } = PolicyInfo::of(payload);
                PolicyId { sel, index, dir }
            }
            msg::DEL_POLICY if payload.len() >= PolicyId::LEN => PolicyId::of(payload),
            _ => return None,
        };
        let fixed = if kind_of(message) == msg::POL_EXPIRE { PolicyInfo::LEN + 8 } else { PolicyId::LEN };
        let attribute =
            |kind, at: usize| find(message, fixed, kind).and_then(|found| word(message, found - HEADER_LEN + at));
        let mark = xfrm::Mark {
            value: attribute(attr::MARK, 0).unwrap_or_default(),
            mask: attribute(attr::MARK, 4).unwrap_or_default(),
        };
        let query = PolicyQuery { id, mark, if_id: attribute(attr::IF_ID, 0).unwrap_or_default() };
        let policy = self.database.find_policy(&query, false).ok()?;
        let id = PolicyId { sel: policy.info.sel, index: 0, dir: policy.info.dir };
        let saved = Saved::new("policy", String::new(), msg::DEL_POLICY, 0, |w| {
            w.fixed(&id.to_bytes());
            super::sa::put_mark(w, policy.mark);
            if policy.if_id != 0 {
                w.put_u32(attr::IF_ID, policy.if_id);
            }
        });
        Some(saved.message)
    }
}

impl<D: Database> Xfrm<D> {
    /// Makes a request that adds a policy replace the present one, if that only waits for a key manager: the policies of a
    /// `[[tunnel]]` with `keys = "ike"` have the lowest priority and no reqid, and a key manager's replace them.
    pub fn replace_waiting_policy(&mut self, message: &mut [u8]) {
        let payload = message.get(HEADER_LEN..).filter(|payload| payload.len() >= PolicyInfo::LEN);
        let Some(payload) = payload.filter(|_| kind_of(message) == msg::NEW_POLICY) else { return };
        let PolicyInfo { sel, dir, .. } = PolicyInfo::of(payload);
        let if_id = find(message, PolicyInfo::LEN, attr::IF_ID).and_then(|found| word(message, found - HEADER_LEN));
        let mark = find(message, PolicyInfo::LEN, attr::MARK)
            .map(|found| [0, 4].map(|at| word(message, found - HEADER_LEN + at)));
        let [value, mask] = mark.unwrap_or_default().map(Option::unwrap_or_default);
        let id = PolicyId { sel, index: 0, dir };
        let query = PolicyQuery { id, mark: xfrm::Mark { value, mask }, if_id: if_id.unwrap_or_default() };
        let waits = |Policy { info, templates, .. }: Policy| {
            let action = if info.action == 0 { Action::Allow } else { Action::Block };
            PolicyConfig::waits(action, info.priority, templates.iter().map(|template| template.reqid))
        };
        if self.database.find_policy(&query, false).is_ok_and(waits)
            && let Some(field) = message.get_mut(4..6)
        {
            field.copy_from_slice(&msg::UPD_POLICY.to_ne_bytes());
        }
    }
}

/// Replaces interface indexes in a request by those that `now` returns.
///
/// # Errors
/// The index for which `now` returns `None`.
pub fn renumber(message: &mut [u8], now: impl Fn(u32) -> Option<u32>) -> Result<(), u32> {
    // All begin with a `struct xfrm_selector`; its `ifindex` precedes the last word.
    const IFINDEX: usize = 48;
    match kind_of(message) {
        msg::NEW_SA | msg::UPD_SA | msg::ALLOC_SPI | msg::NEW_POLICY | msg::UPD_POLICY | msg::DEL_POLICY
            if message.len() > HEADER_LEN + IFINDEX =>
        {
            let now = |old| if old == 0 { Some(0) } else { now(old) };
            renumber_field(message, IFINDEX, now)?;
            match kind_of(message) {
                msg::NEW_SA | msg::UPD_SA => renumber_attribute(message, SaInfo::LEN, attr::OFFLOAD_DEV, now),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{LifetimeCur, ReplayEsn, UserOffload, family_of};
    use super::super::nums::{mode, proto, sa_flag};
    use super::super::protocol::split;
    use super::super::{NewSa, Replay};
    use super::*;
    use crate::error::Error;
    use crate::message::Messages;
    use crate::session::Request;
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
            offload: Some(UserOffload { ifindex: 4, flags: if dir == 2 { 0 } else { UserOffload::INBOUND } }),
            tfcpad: 0,
            if_id: 0,
            dir,
            mapping_threshold: 0,
            nat_keepalive: 0,
            cpu: Some(3),
            replay_thresh: 3,
            etimer_thresh: 50,
        }
    }

    /// Parses a request as the gateway does.
    fn parse(message: &[u8]) -> Result<NewSa, Error> {
        let message = Messages::new(message).next().unwrap();
        let request = Request { message, strict: false, privileged: true, port: 0, restored: false };
        let (fixed, attrs) = split(&request)?;
        NewSa::parse(fixed, &attrs)
    }

    fn parsed(message: &[u8]) -> NewSa {
        parse(message).unwrap()
    }

    #[test]
    fn saved_sa_with_an_if_id_is_refused_by_name() {
        let saved = Sa { if_id: 7, offload: None, ..sa(0, false) }.saved().unwrap();
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
    fn sa_with_a_time_limit_leaves_its_name_alone() {
        let mut it = sa(1, false);
        assert_eq!(it.lost(), None);
        it.info.lft.hard_add_expires_seconds = 60;
        let request = Saved::new("SA", String::new(), msg::UPD_SA, flag::ACK, |w| it.write(w)).message;
        let Change::Request(changed) = change(&request) else { panic!("{:?}", change(&request)) };
        let lost = it.lost().unwrap().message;
        for message in [&changed, &lost] {
            assert!(is_lost(message) && !message.windows(8).any(|bytes| bytes == [3; 8]), "no key");
            let message = Messages::new(message).next().unwrap();
            let request = Request { message, strict: false, privileged: true, port: 0, restored: false };
            let (fixed, attrs) = split(&request).unwrap();
            let spi = NewSpi::parse(fixed, &attrs).unwrap();
            assert_eq!((spi.min, spi.max, spi.mark, spi.dir), (0x1000, 0x1000, it.mark, 1));
            assert_eq!((spi.info.daddr, spi.info.seq, spi.info.lft), (it.info.daddr, 0, LifetimeCfg::INFINITE));
        }
        assert_eq!(label_of(&changed), "SPI 192.0.2.2 0x00001000");
        // What has the name is removed before.
        let removal = removal_before(&changed).unwrap();
        assert_eq!((kind_of(&removal), sa_key(&removal)), (msg::DEL_SA, None));
        let id = SaId::of(&removal[HEADER_LEN..]);
        assert_eq!((id.spi, id.daddr, mark_of_removal(&removal)), (0x1000, it.info.daddr, it.mark));
        assert!(removal_before(&request).is_none());
        for len in 0..changed.len() {
            let _ = (removal_before(&changed[..len]), label_of(&changed[..len]));
        }
    }

    fn mark_of_removal(message: &[u8]) -> Mark {
        let at = find(message, SaId::LEN, attr::MARK).unwrap() - HEADER_LEN;
        Mark { value: word(message, at).unwrap(), mask: word(message, at + 4).unwrap() }
    }

    #[test]
    fn time_left_is_that_of_the_nearer_limit() {
        let left = |added: u64, used: u64, of: [u64; 2], first_used: Option<u64>| {
            let mut it = sa(1, false);
            (it.info.lft.hard_add_expires_seconds, it.info.lft.hard_use_expires_seconds) = (added, used);
            let [age, use_age] = [Some(of[0]), first_used.map(|_| of[1])].map(|secs| secs.map(Duration::from_secs));
            time_left(&it.saved().unwrap().message, age.unwrap(), use_age).map(|left| left.as_secs())
        };
        assert_eq!(left(0, 0, [5, 5], Some(5)), None);
        assert_eq!(left(60, 0, [5, 5], Some(5)), Some(55));
        assert_eq!(left(60, 30, [5, 4], Some(4)), Some(26));
        assert_eq!(left(60, 30, [5, 0], None), Some(55));
        assert_eq!(left(0, 30, [50, 0], None), None);
        assert_eq!(left(60, 90, [61, 5], Some(5)), Some(0));
        assert_eq!(time_left(&[0; 100], Duration::ZERO, None), None);
    }

    #[test]
    fn time_limit_and_larval_state_of_an_sa_are_saved() {
        let mut it = sa(0, false);
        assert!(!it.has_time_limit() && it.saved().is_some());
        it.info.lft.soft_add_expires_seconds = 1;
        assert!(!it.has_time_limit());
        it.info.lft.hard_use_expires_seconds = 1;
        assert!(it.has_time_limit());
        let mut other = sa(1, false);
        assert!(!has_limit(&other.saved().unwrap().message));
        other.info.lft.hard_use_expires_seconds = 1;
        assert!(has_limit(&other.saved().unwrap().message) && !has_limit(&[0; 100]));
        it.algorithm = None;
        assert_eq!(it.saved(), None);
    }
}
