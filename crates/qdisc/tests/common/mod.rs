//! Packets without bytes, and a segmenter for them.

use qdisc::{CannotSegment, Geometry, Queued, Segmenter};

/// Headers of Ethernet, IPv4 and TCP, in bytes.
pub(crate) const HEADER: u32 = 54;

/// Payload of a full segment, in bytes.
pub(crate) const GSO_SIZE: u32 = 1460;

/// Packet known by its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pkt {
    pub(crate) number: u64,
    /// Index of the first segment in the packet that this one was cut from.
    pub(crate) segment: u32,
    pub(crate) payload: u32,
}

impl Pkt {
    /// Packet with that many bytes behind its headers; fat if they are more than a segment's.
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
    /// Packets that were to be cut.
    pub(crate) calls: usize,
    /// Makes every call fail.
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
