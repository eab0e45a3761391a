//! A second algorithm: the list of holes of RFC 815, and the sender of each byte. Any sequence of fragments must have
//! the same outcome in both.

use packet::{Buf, Memory, Packet};
use reassembly::{Coalesce, Config, Policy, TruncatedChain, fragment, fragment_v6};
use wire::Version;
use wire::ip::Info;

pub(crate) mod ops;
pub(crate) mod trains;
pub(crate) mod world;

use world::{BOTH, Piece, World, byte_at, limited};

/// One fragment or a jump in time: kind, datagram, offset, length.
pub(crate) type Step = (u8, u8, u8, u8);

/// Number of datagrams in progress, of each family.
const DATAGRAMS: usize = 4;

/// Bytes of the longest datagram.
const MAX_LEN: usize = 8 * 24;

/// Outcome of a fragment.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Outcome {
    Held,
    /// Only the fragment is dropped or refused.
    Dropped,
    /// All fragments are dropped.
    Killed,
    /// Reassembled to these bytes.
    Whole(Vec<u8>),
}

/// State of one datagram.
struct Holes {
    /// Missing ranges, each `from..to`.
    holes: Vec<(usize, usize)>,
    end: Option<usize>,
    highest: usize,
    /// The range in which each byte arrived, if it did.
    runs: Vec<Option<u32>>,
    bytes: Vec<u8>,
    fragments: u64,
}

impl Holes {
    fn new() -> Self {
        Self {
            holes: vec![(0, usize::MAX)],
            end: None,
            highest: 0,
            runs: vec![None; MAX_LEN],
            bytes: vec![0; MAX_LEN],
            fragments: 0,
        }
    }

    fn add(&mut self, version: Version, piece: Piece) -> Outcome {
        let (at, mut end) = (piece.at, piece.at + piece.len);
        if piece.more && end % 8 != 0 {
            match version {
                Version::V4 => end -= end % 8,
                Version::V6 => return Outcome::Dropped,
            }
        }
        let wrong_end = match (piece.more, self.end) {
            (true, known) => known.is_some_and(|known| end > known),
            (false, known) => end < self.highest || known.is_some_and(|known| end != known),
        };
        if wrong_end {
            return Outcome::Killed;
        }
        let before = self.highest;
        self.highest = self.highest.max(end);
        if !piece.more {
            self.end = Some(end);
            self.holes.retain_mut(|hole| {
                hole.1 = hole.1.min(end);
                hole.0 < hole.1
            });
        }
        if at == end {
            return Outcome::Killed;
        }
        if let Some(which) = self.holes.iter().position(|&(from, to)| from <= at && end <= to) {
            let (from, to) = self.holes.remove(which);
            self.holes.extend([(from, at), (end, to)].into_iter().filter(|(from, to)| from < to));
            // A range grows only at the end of the datagram so far.
            let behind = at > 0 && at == before;
            let run = if behind { self.runs[at - 1] } else { Some(at as u32) };
            self.runs[at..end].fill(run);
            for (n, byte) in self.bytes[at..end].iter_mut().enumerate() {
                *byte = byte_at(at + n).wrapping_add(piece.change);
            }
            self.fragments += 1;
            return if self.holes.is_empty() {
                Outcome::Whole(self.bytes[..self.highest].to_vec())
            } else {
                Outcome::Held
            };
        }
        let all_of_one_run = self.runs[at].is_some() && self.runs[at..end].iter().all(|&run| run == self.runs[at]);
        if all_of_one_run { Outcome::Dropped } else { Outcome::Killed }
    }
}

/// Sends fragments of a few datagrams, and compares each outcome, for each treatment of pages.
pub(crate) fn run(steps: &[Step]) {
    for coalesce in [Coalesce::Move, Coalesce::Off, Coalesce::Copy] {
        run_for(coalesce, steps);
    }
}

fn run_for(coalesce: Coalesce, steps: &[Step]) {
    let mut worlds = BOTH.map(|version| {
        // The model does not count distances between fragments.
        World::with_config(version, Config { coalesce, ..limited(Policy::Fair, 4 << 20, 0) })
    });
    let mut known = [(); 2].map(|()| [(); DATAGRAMS].map(|()| Holes::new()));
    for &(kind, who, at, len) in steps {
        let family = usize::from(kind & 1);
        let (world, datagrams) = (&mut worlds[family], &mut known[family]);
        if kind >> 2 == 63 {
            world.drain();
            *datagrams = [(); DATAGRAMS].map(|()| Holes::new());
            continue;
        }
        let odd = if len >= 128 { usize::from(len) % 8 } else { 0 };
        let at = usize::from(at) % 20 * 8;
        let len = (usize::from(len) % 5 * 8 + odd).min(MAX_LEN - at);
        let which = usize::from(who) % DATAGRAMS;
        let more = kind & 2 != 0;
        let piece = Piece { id: which as u32, change: who, more, ..world::part(at, len) };
        // Fragments outside of any datagram: an atomic one, and a first one without its ports.
        let whole = at == 0 && !more;
        if whole && world.version == Version::V4 || world.version == Version::V6 && at == 0 && (whole || len < 8) {
            continue;
        }
        let outcome = step(world, piece, kind >> 2);
        let holes = &mut datagrams[which];
        let want = holes.add(world.version, piece);
        assert_eq!(outcome, want, "{piece:?}, {}", world.version);
        if let Outcome::Killed | Outcome::Whole(_) = want {
            *holes = Holes::new();
        }
    }
    for world in &mut worlds {
        world.drain();
        world.assert_pages_came_home();
    }
}

/// Sends one fragment in some shape, and returns its outcome.
fn step(world: &mut World, piece: Piece, shape: u8) -> Outcome {
    let bytes = piece.bytes(world.version);
    let (dropped, refused) = (world.dropped.len(), world.refused.len());
    let queues = world.reassembly.queues();
    let pkt = shaped(&world.mem, &bytes, shape);
    world.send_packet(pkt, &bytes);
    if let Some(whole) = world.delivered.pop() {
        let headers = world.version.header_len();
        return Outcome::Whole(whole.to_vec().split_off(headers));
    }
    match world.dropped.get(dropped) {
        Some(&(base::DropReason::FragmentDuplicate, 1)) => Outcome::Dropped,
        Some(_) => {
            assert!(world.reassembly.queues() <= queues, "a queue is left of what was dropped");
            Outcome::Killed
        }
        None if world.refused.len() > refused => Outcome::Dropped,
        None => Outcome::Held,
    }
}

/// A packet of `bytes` in one of a few shapes.
fn shaped(mem: &Memory, bytes: &[u8], shape: u8) -> Packet {
    let linear = |bytes: &[u8]| Packet::with_data(mem, bytes).expect("memory for a test");
    let cut = bytes.len().min(usize::from(shape) % 61);
    match shape % 5 {
        0 => linear(bytes),
        1 => {
            let mut front = linear(&bytes[..cut]);
            front.append(linear(&bytes[cut..]));
            front
        }
        2 => {
            let mut front = linear(&bytes[..cut]);
            front.push_child(linear(&bytes[cut..]));
            front
        }
        3 => Packet::from_buf(Buf::foreign(bytes.to_vec())),
        _ => {
            // Two bytes to a page, without tailroom.
            let mut pkt = Packet::new(mem, 0, 0).expect("memory for a test");
            bytes.chunks(2).for_each(|two| pkt.append(linear(two)));
            pkt
        }
    }
}

/// Sends arbitrary bytes that look like an IP packet, and checks the charges.
pub(crate) fn hostile(packets: &[Vec<u8>]) {
    hostile_for(Coalesce::Move, packets);
    hostile_for(Coalesce::Off, packets);
}

fn hostile_for(coalesce: Coalesce, packets: &[Vec<u8>]) {
    let config = Config { coalesce, ..limited(Policy::Fair, 100_000, 64) };
    let mut world = World::with_config(Version::V6, config);
    for bytes in packets {
        let Ok(info) = Info::parse(bytes, bytes.len()) else {
            let mut pkt = shaped(&world.mem, bytes, bytes.len() as u8);
            if let Some(found) = TruncatedChain::find(&world.mem, &mut pkt) {
                assert!(found.pointer <= bytes.len() && found.info.total_len <= bytes.len(), "{found:?}");
            }
            continue;
        };
        let bytes = &bytes[..info.total_len];
        let pkt = shaped(&world.mem, bytes, bytes.len() as u8);
        world.send_packet(pkt, bytes);
        for whole in world.delivered.drain(..) {
            let bytes = whole.to_vec();
            // No headers of a whole datagram may mark it as a fragment.
            let fragment = Info::parse(&bytes, bytes.len()).ok().and_then(|info| info.fragment);
            assert_eq!(fragment, None, "{whole:?}");
            goes_on(&world.mem, whole);
        }
    }
    world.drain();
    world.assert_pages_came_home();
}

/// Fragments a datagram, and checks that no fragment is too large and that reassembly restores it.
fn goes_on(mem: &Memory, whole: Packet) {
    let bytes = whole.to_vec();
    let mut fragments = Vec::new();
    let (mtu, done) = match Version::of(&bytes).expect("a datagram with its header") {
        Version::V4 => (200, fragment(mem, whole, 200, &mut fragments)),
        Version::V6 => (1280, fragment_v6(mem, whole, 1280, 7, &mut fragments)),
    };
    if done.is_err() || fragments.len() < 2 {
        return;
    }
    let mut world = World::with_config(Version::V6, world::no_limits());
    for fragment in fragments {
        let bytes = fragment.to_vec();
        assert!(bytes.len() <= mtu, "{} bytes, and {mtu} at most", bytes.len());
        world.send_packet(fragment, &bytes);
    }
    assert!(world.bytes() == [bytes], "other bytes than before");
}
