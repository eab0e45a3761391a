//! Packets without bytes, and a segmenter for them.

use qdisc::{CannotSegment, Geometry, Queued, Segmenter};

/// Headers of Ethernet, IPv4 and TCP, in bytes.
pub(crate) const HEADER: u32 = 54;

/// Payload of a full segment, in bytes.
pub(crate) const GSO_SIZE: u32 = 1460;

/// Packet identified by its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pkt {
    pub(crate) number: u64,
    /// Index of the first segment in the original packet.
    pub(crate) segment: u32,
    pub(crate) payload: u32,
}

impl Pkt {
    /// Packet with that payload in bytes; fat if the payload exceeds a segment's.
    pub(crate) fn new(number: u64, payload: u32) -> Self {
        Self { number, segment: 0, payload }
    }
}

impl Queued for Pkt {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: HEADER + self.payload,
            segs: self.payload.div_ceil(GSO_SIZE).max(1),
            header_len: HEADER,
            seg_len: HEADER + self.payload.min(GSO_SIZE),
        }
    }
}

/// Segmenter that counts its calls.
#[derive(Debug, Default)]
pub(crate) struct Cutter {
    /// Number of packets to segment.
    pub(crate) calls: usize,
    /// Whether every call fails.
    pub(crate) is_broken: bool,
}

impl Segmenter<Pkt> for Cutter {
    fn segment(&mut self, fat: Pkt, segments: &mut Vec<Pkt>) -> Result<(), CannotSegment> {
        self.calls += 1;
        if self.is_broken {
            return Err(CannotSegment);
        }
        segments.extend((0..fat.geometry().segs).map(|segment| {
            let payload = (fat.payload - segment * GSO_SIZE).min(GSO_SIZE);
            Pkt { number: fat.number, segment, payload }
        }));
        Ok(())
    }
}
