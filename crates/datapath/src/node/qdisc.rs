//! Packets in the queueing discipline of a port.

use base::DropReason;
use offload::{Features, gso};
use packet::{Csum, Cut, GsoKind, Memory, Packet};
use qdisc::{CannotSegment, Geometry, Qdisc, Queued, Segmenter};
use wire::ip::Info;
use wire::{tcp, udp};

/// Discipline of a port.
pub(crate) type PortQdisc = Qdisc<QueuedPacket>;

/// Packet in a discipline.
#[derive(Debug)]
pub(crate) struct QueuedPacket {
    pub(crate) pkt: Packet,
    /// Offset of the IP header.
    pub(crate) l3: usize,
    /// Whether it is an IP packet of [`transmit`](crate::tx::transmit::transmit), which a capture of fat packets has yet to copy.
    pub(crate) is_transmitted: bool,
}

impl Queued for QueuedPacket {
    fn geometry(&self) -> Geometry {
        let Self { pkt, l3, .. } = self;
        let len = to_u32(pkt.len());
        match pkt.meta.cut {
            Cut::Whole | Cut::Fragment => Geometry::thin(len),
            Cut::Frames(frames) => {
                let all: usize = pkt.frames().map(<[u8]>::len).sum();
                Geometry { len: to_u32(all), segs: frames.count.into(), header_len: 0, seg_len: frames.size.into() }
            }
            Cut::Gso(gso) => {
                let headers = headers_len(pkt, *l3, gso.kind);
                let payload = pkt.len().saturating_sub(headers);
                let segs = to_u32(payload.div_ceil(usize::from(gso.size.max(1)))).max(1);
                let seg_len = to_u32(pkt.len().min(headers + usize::from(gso.size)));
                Geometry { len, segs, header_len: to_u32(headers), seg_len }
            }
        }
    }
}

fn to_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Length of the headers that each segment of a fat packet gets.
fn headers_len(pkt: &Packet, l3: usize, kind: GsoKind) -> usize {
    let transport_at = match pkt.meta.csum {
        Csum::Partial { start, .. } => usize::from(start),
        _ => {
            let head = pkt.head().get(l3..).unwrap_or_default();
            l3 + Info::parse(head, pkt.len() - l3).map_or(0, |info| info.header_len)
        }
    };
    let transport = match kind {
        GsoKind::Udp => udp::UdpHeader::LEN,
        GsoKind::TcpV4 | GsoKind::TcpV6 => {
            let mut header = [0; tcp::TcpHeader::LEN];
            pkt.read_at(transport_at, &mut header);
            tcp::TcpHeader::ref_from(&header).map_or(tcp::TcpHeader::LEN, tcp::TcpHeader::header_len)
        }
    };
    transport_at + transport
}

/// Cutter of packets that exceed a token bucket.
pub(crate) struct Cutter<'m> {
    pub(crate) mem: &'m Memory,
    pub(crate) segments: Vec<Packet>,
    /// Reason why the packet could not be cut.
    pub(crate) failure: Option<DropReason>,
}

impl Segmenter<QueuedPacket> for Cutter<'_> {
    fn segment(&mut self, fat: QueuedPacket, segments: &mut Vec<QueuedPacket>) -> Result<(), CannotSegment> {
        let QueuedPacket { pkt, l3, is_transmitted } = fat;
        let cut = match pkt.meta.cut {
            Cut::Gso(_) => gso::segment(self.mem, &Features::BY_REFERENCE, pkt, l3, &mut self.segments),
            Cut::Frames(_) | Cut::Whole | Cut::Fragment => {
                pkt.into_frames(&mut self.segments);
                Ok(())
            }
        };
        if let Err(reason) = cut {
            self.failure = Some(reason);
            return Err(CannotSegment);
        }
        segments.extend(self.segments.drain(..).map(|pkt| QueuedPacket { pkt, l3, is_transmitted }));
        Ok(())
    }
}
