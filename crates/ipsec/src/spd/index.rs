//! Index of policies by selector: a look-up hashes once for each shape of selectors, however many there are of each.
//!
//! Selectors are of one *shape* if they look at the same bits of a flow. A packet matches at most one key of a shape,
//! so a hash look-up finds it. With many shapes, only those are tried that occur in selectors to a prefix of the
//! packet's destination. (Linux has a hash for the most specific selectors, `xfrm_policy_hash_rebuild`'s thresholds,
//! and trees for the others.)

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use base::{PortId, Prefix};
use hashbrown::HashMap;
use xfrm::{Flowi, Mark, PortMask, Selector};

/// Number of shapes that are tried one by one; with more, a look-up by destination finds the candidates.
const FEW: usize = 4;

/// Bits of a flow, apart from its destination, that a selector looks at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Shape {
    src_len: u8,
    protocol: bool,
    dev: bool,
    sport: u16,
    dport: u16,
    mark: u32,
}

/// A prefix of destinations, for one XFRM interface.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Destination {
    bits: u128,
    len: u8,
    if_id: u32,
}

/// All conditions of a selector.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct MatchKey {
    dst: Destination,
    src: u128,
    shape: Shape,
    protocol: u8,
    dev: Option<PortId>,
    sport: u16,
    dport: u16,
    mark: u32,
}

/// Shapes of the keys of a table.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    /// Number of keys of each shape and destination prefix length.
    all: Vec<((u8, Shape), u32)>,
    /// Number of destinations of each prefix length.
    dst_lens: Vec<(u8, u32)>,
    /// Number of keys of each shape, by destination.
    of: Map<Destination, Vec<(Shape, u32)>>,
}

pub(super) type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// An address as the highest bits of a number, so that a prefix of one has the same mask in both families.
fn bits_of(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(addr) => u128::from(addr.to_bits()) << 96,
        IpAddr::V6(addr) => addr.to_bits(),
    }
}

const fn masked(bits: u128, len: u8) -> u128 {
    match u128::MAX.checked_shl(128 - len as u32) {
        Some(mask) => bits & mask,
        None => 0,
    }
}

impl MatchKey {
    /// Key of `selector` for packets with that mark and interface.
    pub(super) fn new(selector: &Selector, mark: Mark, if_id: u32) -> Self {
        let &Selector { src, dst, protocol, sport, dport, dev } = selector;
        let of = |prefix: Prefix| bits_of(prefix.addr());
        Self {
            dst: Destination { bits: of(dst), len: dst.len(), if_id },
            src: of(src),
            shape: Shape {
                src_len: src.len(),
                protocol: protocol.is_some(),
                dev: dev.is_some(),
                sport: sport.mask,
                dport: dport.mask,
                mark: mark.mask,
            },
            protocol: protocol.map_or(0, |protocol| protocol.0),
            dev,
            sport: sport.port & sport.mask,
            dport: dport.port & dport.mask,
            mark: mark.value,
        }
    }

    /// The same without ports, which later fragments do not have, and without IPv6's protocol, which only the first
    /// fragment determines (RFC 8200 §4.5).
    pub(super) fn of_fragments(selector: &Selector, mark: Mark, if_id: u32) -> Self {
        let protocol = selector.protocol.filter(|_| selector.dst.is_ipv4());
        Self::new(&Selector { protocol, sport: PortMask::ANY, dport: PortMask::ANY, ..*selector }, mark, if_id)
    }

    /// Key of a shape that `flow` matches, with this one of its devices; `dev` is `None` for a shape without a device.
    #[inline]
    fn of_flow(flow: &Flowi, dev: Option<PortId>, src: u128, dst: Destination, shape: Shape) -> Self {
        Self {
            dst,
            src: masked(src, shape.src_len),
            shape,
            protocol: if shape.protocol { flow.key.protocol.0 } else { 0 },
            dev,
            sport: flow.key.sport & shape.sport,
            dport: flow.key.dport & shape.dport,
            mark: flow.mark & shape.mark,
        }
    }
}

impl Hash for MatchKey {
    /// Few steps, because each look-up hashes several keys.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let &Self { dst, src, shape, protocol, dev, sport, dport, mark } = self;
        let packed = |parts: [u32; 4]| parts.into_iter().fold(0, |all, part| all << 32 | u128::from(part));
        let flags = u32::from(shape.protocol) << 9 | u32::from(shape.dev) << 8;
        let lens = u32::from(dst.len) << 24 | u32::from(shape.src_len) << 16 | flags | u32::from(protocol);
        state.write_u128(dst.bits);
        state.write_u128(src);
        state.write_u128(packed([dst.if_id, lens, u32::from(sport) << 16 | u32::from(dport), mark]));
        state.write_u128(packed([
            dev.map_or(0, |dev| dev.0),
            u32::from(shape.sport) << 16 | u32::from(shape.dport),
            shape.mark,
            0,
        ]));
    }
}

impl Shapes {
    /// Counts an added key.
    pub(super) fn insert(&mut self, key: &MatchKey) {
        count(&mut self.all, (key.dst.len, key.shape));
        let shapes = self.of.entry(key.dst).or_insert_with(|| {
            count(&mut self.dst_lens, key.dst.len);
            Vec::new()
        });
        count(shapes, key.shape);
    }

    /// Counts a removed key.
    pub(super) fn remove(&mut self, key: &MatchKey) {
        discount(&mut self.all, (key.dst.len, key.shape));
        let Some(shapes) = self.of.get_mut(&key.dst) else { return };
        discount(shapes, key.shape);
        if shapes.is_empty() {
            self.of.remove(&key.dst);
            discount(&mut self.dst_lens, key.dst.len);
        }
    }

    /// Calls back with each key that `flow` matches, one for each shape.
    #[inline]
    pub(super) fn each_key(&self, flow: &Flowi, mut ask: impl FnMut(&MatchKey)) {
        let (src, dst) = (bits_of(flow.key.src), bits_of(flow.key.dst));
        let destination = |len| Destination { bits: masked(dst, len), len, if_id: flow.if_id };
        let mut ask_shape = |dst, shape: Shape| {
            if !shape.dev {
                return ask(&MatchKey::of_flow(flow, None, src, dst, shape));
            }
            for dev in flow.devices() {
                ask(&MatchKey::of_flow(flow, Some(dev), src, dst, shape));
            }
        };
        if self.all.len() <= FEW {
            for &((len, shape), _) in &self.all {
                ask_shape(destination(len), shape);
            }
            return;
        }
        for dst in self.dst_lens.iter().map(|&(len, _)| destination(len)) {
            for &(shape, _) in self.of.get(&dst).into_iter().flatten() {
                ask_shape(dst, shape);
            }
        }
    }
}

fn count<T: PartialEq>(counts: &mut Vec<(T, u32)>, what: T) {
    match counts.iter_mut().find(|(it, _)| *it == what) {
        Some((_, n)) => *n += 1,
        None => counts.push((what, 1)),
    }
}

fn discount<T: PartialEq>(counts: &mut Vec<(T, u32)>, what: T) {
    if let Some(at) = counts.iter().position(|(it, _)| *it == what) {
        counts[at].1 -= 1;
        if counts[at].1 == 0 {
            counts.swap_remove(at);
        }
    }
}
