//! Structures of `linux/xfrm.h`: parsing and serialisation. Numbers that also occur on the wire are in network byte
//! order, all others in host byte order.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::nums::{AF_INET, AF_INET6};
use crate::message::Writer;

/// Reader of consecutive fields. Missing bytes read as zeros: the caller has checked the length.
#[derive(Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let Some((first, rest)) = self.0.split_first_chunk() else {
            self.0 = &[];
            return [0; N];
        };
        self.0 = rest;
        *first
    }

    pub(super) fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.bytes())
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.bytes())
    }

    pub(super) fn be16(&mut self) -> u16 {
        u16::from_be_bytes(self.bytes())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.bytes())
    }

    pub(super) fn be32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.bytes())
    }

    pub(super) fn addr(&mut self) -> Addr {
        Addr(self.bytes())
    }

    pub(super) fn skip(&mut self, n: usize) {
        self.0 = self.0.get(n..).unwrap_or_default();
    }
}

/// Structure that can be parsed and serialised.
pub(super) trait Layout: Sized {
    /// Length in bytes, with padding.
    const LEN: usize;

    fn read(from: &mut Fields<'_>) -> Self;

    fn write(&self, to: &mut Vec<u8>);

    /// Parses the structure at the start of `bytes`.
    fn of(bytes: &[u8]) -> Self {
        Self::read(&mut Fields(bytes))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::LEN);
        self.write(&mut bytes);
        bytes.resize(Self::LEN, 0);
        bytes
    }

    /// Writes the structure as an attribute.
    fn put(&self, w: &mut Writer, kind: u16) {
        w.put(kind, &self.to_bytes());
    }
}

/// `xfrm_address_t`: an address of either family; IPv4 uses the first four bytes.
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Addr(pub [u8; 16]);

impl Addr {
    /// The address, interpreted in `family`.
    pub fn ip(self, family: u16) -> Option<IpAddr> {
        let [a, b, c, d, ..] = self.0;
        match family {
            AF_INET => Some(Ipv4Addr::new(a, b, c, d).into()),
            AF_INET6 => Some(Ipv6Addr::from(self.0).into()),
            _ => None,
        }
    }

    /// Whether the address is unspecified.
    pub fn is_any(self, family: u16) -> bool {
        self.ip(family).is_none_or(|ip| ip.is_unspecified())
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

impl From<IpAddr> for Addr {
    fn from(addr: IpAddr) -> Self {
        let mut bytes = [0; 16];
        match addr {
            IpAddr::V4(addr) => bytes[..4].copy_from_slice(&addr.octets()),
            IpAddr::V6(addr) => bytes = addr.octets(),
        }
        Self(bytes)
    }
}

/// `AF_*` number of an address's family.
pub const fn family_of(addr: IpAddr) -> u16 {
    match addr {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    }
}

/// `struct xfrm_selector`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Linux's names")]
pub struct Selector {
    pub daddr: Addr,
    pub saddr: Addr,
    pub dport: u16,
    pub dport_mask: u16,
    pub sport: u16,
    pub sport_mask: u16,
    pub family: u16,
    pub prefixlen_d: u8,
    pub prefixlen_s: u8,
    pub proto: u8,
    pub ifindex: u32,
    pub user: u32,
}

impl Layout for Selector {
    const LEN: usize = 56;

    fn read(from: &mut Fields<'_>) -> Self {
        let (daddr, saddr) = (from.addr(), from.addr());
        let (dport, dport_mask, sport, sport_mask) = (from.be16(), from.be16(), from.be16(), from.be16());
        let (family, prefixlen_d, prefixlen_s, proto) = (from.u16(), from.u8(), from.u8(), from.u8());
        from.skip(3);
        let (ifindex, user) = (from.u32(), from.u32());
        Self {
            daddr,
            saddr,
            dport,
            dport_mask,
            sport,
            sport_mask,
            family,
            prefixlen_d,
            prefixlen_s,
            proto,
            ifindex,
            user,
        }
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.daddr.0);
        to.extend(self.saddr.0);
        for port in [self.dport, self.dport_mask, self.sport, self.sport_mask] {
            to.extend(port.to_be_bytes());
        }
        to.extend(self.family.to_ne_bytes());
        to.extend([self.prefixlen_d, self.prefixlen_s, self.proto, 0, 0, 0]);
        to.extend(self.ifindex.to_ne_bytes());
        to.extend(self.user.to_ne_bytes());
    }
}

/// `struct xfrm_lifetime_cfg`: limits in bytes, packets and seconds. No limit is 0 for seconds and `u64::MAX` for the
/// others.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Linux's names")]
pub struct LifetimeCfg {
    pub soft_byte_limit: u64,
    pub hard_byte_limit: u64,
    pub soft_packet_limit: u64,
    pub hard_packet_limit: u64,
    pub soft_add_expires_seconds: u64,
    pub hard_add_expires_seconds: u64,
    pub soft_use_expires_seconds: u64,
    pub hard_use_expires_seconds: u64,
}

impl LifetimeCfg {
    /// No limits.
    pub const INFINITE: Self = Self {
        soft_byte_limit: u64::MAX,
        hard_byte_limit: u64::MAX,
        soft_packet_limit: u64::MAX,
        hard_packet_limit: u64::MAX,
        soft_add_expires_seconds: 0,
        hard_add_expires_seconds: 0,
        soft_use_expires_seconds: 0,
        hard_use_expires_seconds: 0,
    };
}

impl Layout for LifetimeCfg {
    const LEN: usize = 64;

    fn read(from: &mut Fields<'_>) -> Self {
        Self {
            soft_byte_limit: from.u64(),
            hard_byte_limit: from.u64(),
            soft_packet_limit: from.u64(),
            hard_packet_limit: from.u64(),
            soft_add_expires_seconds: from.u64(),
            hard_add_expires_seconds: from.u64(),
            soft_use_expires_seconds: from.u64(),
            hard_use_expires_seconds: from.u64(),
        }
    }

    fn write(&self, to: &mut Vec<u8>) {
        let fields = [
            self.soft_byte_limit,
            self.hard_byte_limit,
            self.soft_packet_limit,
            self.hard_packet_limit,
            self.soft_add_expires_seconds,
            self.hard_add_expires_seconds,
            self.soft_use_expires_seconds,
            self.hard_use_expires_seconds,
        ];
        fields.iter().for_each(|field| to.extend(field.to_ne_bytes()));
    }
}

/// `struct xfrm_lifetime_cur`: counters of use. Times are seconds since the Unix epoch, 0 for never.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Linux's names")]
pub struct LifetimeCur {
    pub bytes: u64,
    pub packets: u64,
    pub add_time: u64,
    pub use_time: u64,
}

impl Layout for LifetimeCur {
    const LEN: usize = 32;

    fn read(from: &mut Fields<'_>) -> Self {
        Self { bytes: from.u64(), packets: from.u64(), add_time: from.u64(), use_time: from.u64() }
    }

    fn write(&self, to: &mut Vec<u8>) {
        let fields = [self.bytes, self.packets, self.add_time, self.use_time];
        fields.iter().for_each(|field| to.extend(field.to_ne_bytes()));
    }
}

/// `struct xfrm_usersa_info`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Linux's names")]
pub struct SaInfo {
    pub sel: Selector,
    pub daddr: Addr,
    pub spi: u32,
    pub proto: u8,
    pub saddr: Addr,
    pub lft: LifetimeCfg,
    pub curlft: LifetimeCur,
    /// `struct xfrm_stats`: packets left of the window, replayed, and failed authentication.
    pub stats: [u32; 3],
    pub seq: u32,
    pub reqid: u32,
    pub family: u16,
    pub mode: u8,
    pub replay_window: u8,
    pub flags: u8,
}

impl Layout for SaInfo {
    const LEN: usize = 224;

    fn read(from: &mut Fields<'_>) -> Self {
        let (sel, daddr, spi, proto) = (Selector::read(from), from.addr(), from.be32(), from.u8());
        from.skip(3);
        let (saddr, lft, curlft) = (from.addr(), LifetimeCfg::read(from), LifetimeCur::read(from));
        let stats = [from.u32(), from.u32(), from.u32()];
        let (seq, reqid, family) = (from.u32(), from.u32(), from.u16());
        let (mode, replay_window, flags) = (from.u8(), from.u8(), from.u8());
        from.skip(7);
        Self { sel, daddr, spi, proto, saddr, lft, curlft, stats, seq, reqid, family, mode, replay_window, flags }
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.sel.write(to);
        to.extend(self.daddr.0);
        to.extend(self.spi.to_be_bytes());
        to.extend([self.proto, 0, 0, 0]);
        to.extend(self.saddr.0);
        self.lft.write(to);
        self.curlft.write(to);
        self.stats.iter().for_each(|count| to.extend(count.to_ne_bytes()));
        to.extend(self.seq.to_ne_bytes());
        to.extend(self.reqid.to_ne_bytes());
        to.extend(self.family.to_ne_bytes());
        to.extend([self.mode, self.replay_window, self.flags, 0, 0, 0, 0, 0, 0, 0]);
    }
}

/// `struct xfrm_usersa_id`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Linux's names")]
pub struct SaId {
    pub daddr: Addr,
    pub spi: u32,
    pub family: u16,
    pub proto: u8,
}

impl Layout for SaId {
    const LEN: usize = 24;

    fn read(from: &mut Fields<'_>) -> Self {
        let (daddr, spi, family, proto) = (from.addr(), from.be32(), from.u16(), from.u8());
        from.skip(1);
        Self { daddr, spi, family, proto }
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.daddr.0);
        to.extend(self.spi.to_be_bytes());
        to.extend(self.family.to_ne_bytes());
        to.extend([self.proto, 0]);
    }
}

/// `struct xfrm_user_tmpl`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Linux's names")]
pub struct Tmpl {
    pub daddr: Addr,
    pub spi: u32,
    pub proto: u8,
    pub family: u16,
    pub saddr: Addr,
    pub reqid: u32,
    pub mode: u8,
    pub share: u8,
    pub optional: u8,
    /// Allowed algorithms: authentication, encryption, compression.
    pub algos: [u32; 3],
}

impl Layout for Tmpl {
    const LEN: usize = 64;

    fn read(from: &mut Fields<'_>) -> Self {
        let (daddr, spi, proto) = (from.addr(), from.be32(), from.u8());
        from.skip(3);
        let family = from.u16();
        from.skip(2);
        let (saddr, reqid, mode, share, optional) = (from.addr(), from.u32(), from.u8(), from.u8(), from.u8());
        from.skip(1);
        let algos = [from.u32(), from.u32(), from.u32()];
        Self { daddr, spi, proto, family, saddr, reqid, mode, share, optional, algos }
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.daddr.0);
        to.extend(self.spi.to_be_bytes());
        to.extend([self.proto, 0, 0, 0]);
        to.extend(self.family.to_ne_bytes());
        to.extend([0, 0]);
        to.extend(self.saddr.0);
        to.extend(self.reqid.to_ne_bytes());
        to.extend([self.mode, self.share, self.optional, 0]);
        self.algos.iter().for_each(|mask| to.extend(mask.to_ne_bytes()));
    }
}

/// `struct xfrm_userpolicy_info`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Linux's names")]
pub struct PolicyInfo {
    pub sel: Selector,
    pub lft: LifetimeCfg,
    pub curlft: LifetimeCur,
    pub priority: u32,
    pub index: u32,
    pub dir: u8,
    pub action: u8,
    pub flags: u8,
    pub share: u8,
}

impl Layout for PolicyInfo {
    const LEN: usize = 168;

    fn read(from: &mut Fields<'_>) -> Self {
        let (sel, lft, curlft) = (Selector::read(from), LifetimeCfg::read(from), LifetimeCur::read(from));
        let (priority, index) = (from.u32(), from.u32());
        let (dir, action, flags, share) = (from.u8(), from.u8(), from.u8(), from.u8());
        from.skip(4);
        Self { sel, lft, curlft, priority, index, dir, action, flags, share }
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.sel.write(to);
        self.lft.write(to);
        self.curlft.write(to);
        to.extend(self.priority.to_ne_bytes());
        to.extend(self.index.to_ne_bytes());
        to.extend([self.dir, self.action, self.flags, self.share, 0, 0, 0, 0]);
    }
}

/// `struct xfrm_userpolicy_id`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Linux's names")]
pub struct PolicyId {
    pub sel: Selector,
    pub index: u32,
    pub dir: u8,
}

impl Layout for PolicyId {
    const LEN: usize = 64;

    fn read(from: &mut Fields<'_>) -> Self {
        Self { sel: Selector::read(from), index: from.u32(), dir: from.u8() }
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.sel.write(to);
        to.extend(self.index.to_ne_bytes());
        to.extend([self.dir, 0, 0, 0]);
    }
}

/// `struct xfrm_encap_tmpl`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Linux's names")]
pub struct Encap {
    pub kind: u16,
    pub sport: u16,
    pub dport: u16,
    pub oa: Addr,
}

impl Layout for Encap {
    const LEN: usize = 24;

    fn read(from: &mut Fields<'_>) -> Self {
        let (kind, sport, dport) = (from.u16(), from.be16(), from.be16());
        from.skip(2);
        Self { kind, sport, dport, oa: from.addr() }
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.kind.to_ne_bytes());
        to.extend(self.sport.to_be_bytes());
        to.extend(self.dport.to_be_bytes());
        to.extend([0, 0]);
        to.extend(self.oa.0);
    }
}

/// `struct xfrm_user_offload`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Linux's names")]
pub struct UserOffload {
    pub ifindex: u32,
    pub flags: u8,
}

impl UserOffload {
    /// `XFRM_OFFLOAD_IPV6`.
    pub const IPV6: u8 = 1;
    /// `XFRM_OFFLOAD_INBOUND`.
    pub const INBOUND: u8 = 2;
    /// `XFRM_OFFLOAD_PACKET`.
    pub const PACKET: u8 = 4;
}

impl Layout for UserOffload {
    const LEN: usize = 8;

    fn read(from: &mut Fields<'_>) -> Self {
        Self { ifindex: from.u32(), flags: from.u8() }
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.ifindex.to_ne_bytes());
        to.extend([self.flags, 0, 0, 0]);
    }
}

/// `struct xfrm_replay_state_esn`, with its bitmap.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Linux's names")]
pub struct ReplayEsn {
    pub oseq: u32,
    pub seq: u32,
    pub oseq_hi: u32,
    pub seq_hi: u32,
    pub replay_window: u32,
    pub bmp: Vec<u32>,
}

impl ReplayEsn {
    /// Length of the fields before the bitmap.
    pub(super) const FIXED: usize = 24;
    /// Maximum length of the bitmap in words: 4096 bits.
    pub(super) const MAX_WORDS: u32 = 4096 / 32;

    /// Length of the bitmap in words, as `bytes` state it.
    pub(super) fn bmp_len(bytes: &[u8]) -> u32 {
        Fields(bytes).u32()
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut from = Fields(bytes);
        let len = from.u32().min(Self::MAX_WORDS) as usize;
        let (oseq, seq, oseq_hi, seq_hi) = (from.u32(), from.u32(), from.u32(), from.u32());
        let replay_window = from.u32();
        // A structure may state the bitmap's length and omit the bitmap.
        let bmp = (0..len).map(|_| from.u32()).collect();
        Self { oseq, seq, oseq_hi, seq_hi, replay_window, bmp }
    }

    pub(super) fn put(&self, w: &mut Writer, kind: u16) {
        let fixed = [self.bmp.len() as u32, self.oseq, self.seq, self.oseq_hi, self.seq_hi, self.replay_window];
        let bytes: Vec<u8> = fixed.iter().chain(&self.bmp).flat_map(|word| word.to_ne_bytes()).collect();
        w.put(kind, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a structure from distinct bytes, and serialises it again. `pads` are ranges of padding.
    fn round<T: Layout>(pads: &[(usize, usize)]) {
        let is_pad = |at: usize| pads.iter().any(|&(start, end)| (start..end).contains(&at));
        let bytes: Vec<u8> = (0..T::LEN).map(|at| if is_pad(at) { 0 } else { at as u8 | 1 }).collect();
        assert_eq!(T::of(&bytes).to_bytes(), bytes);
        for len in 0..T::LEN {
            assert_eq!(T::of(&bytes[..len]).to_bytes().len(), T::LEN);
        }
    }

    #[test]
    fn a_structure_is_written_as_it_was_read() {
        round::<Selector>(&[(45, 48)]);
        round::<LifetimeCfg>(&[]);
        round::<LifetimeCur>(&[]);
        round::<SaInfo>(&[(45, 48), (77, 80), (217, 224)]);
        round::<SaId>(&[(23, 24)]);
        round::<Tmpl>(&[(21, 24), (26, 28), (51, 52)]);
        round::<PolicyInfo>(&[(45, 48), (164, 168)]);
        round::<PolicyId>(&[(45, 48), (61, 64)]);
        round::<Encap>(&[(6, 8)]);
        round::<UserOffload>(&[(5, 8)]);
    }
}
