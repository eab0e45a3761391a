//! The fragments of the measurement.

use packet::{Memory, Packet};
use sim::{Flow, Rng};
use wire::Version;

/// Order of the fragments of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    Straight,
    Reversed,
    Shuffled,
}

/// Fragmented datagrams in sequence, as received by a device.
#[derive(Debug)]
pub struct Train {
    pub name: String,
    pub flow: Flow,
    /// Whether the device has verified the UDP checksums, as loopback does for packets of this machine's processes. A
    /// device on a wire cannot, as one checksum covers several packets.
    pub is_verified: bool,
    pub fragments: Vec<Vec<u8>>,
    pub datagrams: usize,
}

/// Approximate number of fragments in one pass.
const FRAGMENTS: usize = 1024;

/// Number of fragments that a device delivers at once.
pub const BURST: usize = 64;

impl Train {
    /// The fragments in bursts, as delivered by a device.
    pub fn bursts(&self) -> impl Iterator<Item = &[Vec<u8>]> {
        self.fragments.chunks(BURST)
    }

    /// All measured trains. Fragments have 1500 bytes.
    pub fn all() -> Vec<Self> {
        let (v4, v6) = (Flow::new("192.0.2.1", "192.0.2.2"), Flow::new("fd00::1", "fd00::2"));
        let cases = [
            ("v4/in-order/2", v4, 2900, Order::Straight),
            ("v4/in-order/45", v4, 65_507, Order::Straight),
            ("v4/reversed/45", v4, 65_507, Order::Reversed),
            ("v4/shuffled/45", v4, 65_507, Order::Shuffled),
            ("v6/in-order/2", v6, 2800, Order::Straight),
            ("v6/in-order/46", v6, 65_507, Order::Straight),
            ("v6/reversed/46", v6, 65_507, Order::Reversed),
            ("v6/shuffled/46", v6, 65_507, Order::Shuffled),
        ];
        let both = [("", false), ("/verified", true)];
        let cases = both.into_iter().flat_map(|(suffix, is_verified)| {
            cases.map(|(name, flow, payload, order)| {
                let name = format!("{name}{suffix}");
                Self { name, is_verified, ..Self::new(flow, payload, order) }
            })
        });
        cases.collect()
    }

    fn new(flow: Flow, payload: usize, order: Order) -> Self {
        let flow = Flow { dont_fragment: false, ..flow };
        let mem = Memory::heap();
        let mut chance = Rng::new(42);
        let (mut fragments, mut datagrams) = (Vec::new(), 0);
        while fragments.len() < FRAGMENTS {
            let mut bytes = flow.udp(payload);
            if flow.version() == Version::V4 {
                bytes[4..6].copy_from_slice(&(datagrams as u16 + 1).to_be_bytes());
                wire::ipv4::fill_check(&mut bytes).expect("a header");
            }
            let packet = Packet::with_data(&mem, &bytes).expect("a heap without limit");
            let mut cut = Vec::new();
            let done = match flow.version() {
                Version::V4 => reassembly::fragment(&mem, packet, 1500, &mut cut),
                Version::V6 => reassembly::fragment_v6(&mem, packet, 1500, datagrams as u32 + 1, &mut cut),
            };
            done.expect("a datagram that may be fragmented");
            let mut cut: Vec<Vec<u8>> = cut.iter().map(Packet::to_vec).collect();
            match order {
                Order::Straight => {}
                Order::Reversed => cut.reverse(),
                Order::Shuffled => {
                    for at in (1..cut.len()).rev() {
                        cut.swap(at, chance.below(at + 1));
                    }
                }
            }
            fragments.append(&mut cut);
            datagrams += 1;
        }
        Self { name: String::new(), flow, is_verified: false, fragments, datagrams }
    }
}
