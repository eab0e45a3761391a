//! Geometry of queued packets: lengths and segments, without bytes.

/// Lengths of a packet, in bytes with the link's header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Queued length: the headers of a fat packet count once.
    pub len: u32,
    /// Number of segments on the wire: 1 for a thin packet.
    pub segs: u32,
    /// Length of the headers of each segment.
    pub header_len: u32,
    /// Length of the longest segment, with its headers.
    pub seg_len: u32,
}

impl Geometry {
    /// Geometry of a packet that is one segment.
    pub const fn thin(len: u32) -> Self {
        Self { len, segs: 1, header_len: 0, seg_len: len }
    }

    /// Bytes on the wire, with the headers of every segment (Linux `qdisc_pkt_len_init`). At least 1, so that a limit
    /// in bytes also bounds the number of packets.
    pub fn wire_len(self) -> u32 {
        self.len.saturating_add(self.header_len.saturating_mul(self.segs.saturating_sub(1))).max(1)
    }

    /// Tells whether the packet has more than one segment.
    pub const fn is_fat(self) -> bool {
        self.segs > 1
    }
}

/// Packet that can be queued. Its geometry does not change while it waits.
pub trait Queued {
    /// Lengths of the packet.
    fn geometry(&self) -> Geometry;
}

/// Segmenter of fat packets.
pub trait Segmenter<T> {
    /// Segments a fat packet, and appends the segments in order.
    ///
    /// # Errors
    /// [`CannotSegment`], with nothing appended; the packet is dropped. The discipline counts the drop, and the
    /// segmenter counts the reason.
    fn segment(&mut self, fat: T, segments: &mut Vec<T>) -> Result<(), CannotSegment>;
}

/// Error: a packet cannot be segmented.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CannotSegment;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_len_counts_headers_of_every_segment() {
        let fat = |len, segs| Geometry { len, segs, header_len: 54, seg_len: 1514 };
        let cases = [
            (Geometry::thin(0), 1),
            (Geometry::thin(60), 60),
            (fat(1514, 1), 1514),
            (fat(1515, 2), 1515 + 54),
            (fat(54 + 44 * 1460, 44), 44 * 1514),
            (fat(1514, 0), 1514),
            (fat(u32::MAX, 2), u32::MAX),
            (Geometry { len: 1, segs: u32::MAX, header_len: u32::MAX, seg_len: 1 }, u32::MAX),
        ];
        for (geometry, want) in cases {
            assert_eq!(geometry.wire_len(), want, "{geometry:?}");
        }
    }
}
