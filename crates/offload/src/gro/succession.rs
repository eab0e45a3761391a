//! Which packets continue each other, found out where their bytes are near, so that GRO need not look at them once more.

use wire::{Prediction, RisingNumber, Version, ip, ipv4, tcp};

/// How often it is tried to find a packet's successor among those that are looked at: flows that come in turn have none.
const TRIES: u8 = 4;

/// Packets in the order in which GRO gets them, each compared with the one before.
#[derive(Debug, Default)]
pub struct Succession {
    /// What continues the packet before, and what its bytes sum up to.
    next: Prediction,
    sum: u16,
    /// An IPv4 identification that was looked at last, and whether the next one is to be the same.
    last_id: Option<u16>,
    fixed_id: bool,
    /// Whether no packet has continued the one that it was begun with.
    is_alone: bool,
    ip_header: u8,
    tried: u8,
}

/// What may follow a packet that was [joined](super::Gro::join), without another look, if each [continues](Succession) the one
/// before.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Room {
    /// How many packets.
    pub packets: u16,
    /// Whether all are to have the same IPv4 identification, instead of one that goes up.
    pub fixed_id: bool,
}

impl Succession {
    /// Tells whether `packet`, whose bytes sum up to `sum`, continues the one before: it is TCP of the same flow, as long, with the
    /// next sequence number and IPv4 identification, and its headers and checksum are right if those of the one before are.
    #[inline]
    pub fn continues(&mut self, packet: &[u8], sum: Option<u16>) -> bool {
        let continues = self.is_next(packet, sum);
        if !continues {
            self.begin(packet, sum);
        }
        continues
    }

    /// As [`continues`](Self::continues), for TCP that is behind an IP header: both packets have the same one but for `id`, IPv4's
    /// identification.
    #[inline]
    pub fn payload_continues(&mut self, payload: &[u8], sum: Option<u16>, id: Option<u16>) -> bool {
        let is_fixed = id.is_some() && id == self.last_id;
        let goes_on = is_fixed || id == self.last_id.map(|last| last.wrapping_add(1));
        let continues = goes_on && (self.is_alone || is_fixed == self.fixed_id) && self.is_next(payload, sum);
        if continues {
            self.fixed_id = is_fixed;
        } else {
            self.begin_payload(payload, sum);
        }
        self.last_id = id;
        continues
    }

    /// Whether the packets that continue each other have the same IPv4 identification.
    pub const fn fixed_id(&self) -> bool {
        self.fixed_id
    }

    /// Bytes of IP header that they begin with.
    pub const fn ip_header(&self) -> u8 {
        self.ip_header
    }

    #[inline]
    fn is_next(&mut self, front: &[u8], sum: Option<u16>) -> bool {
        let is_next = sum == Some(self.sum) && self.next.is(front, front.len());
        if is_next {
            self.next.advance();
            self.is_alone = false;
        }
        is_next
    }

    /// Compares the next packet with this one.
    #[cold]
    fn begin(&mut self, packet: &[u8], sum: Option<u16>) {
        let id = ipv4::Header::ref_from(packet)
            .ok()
            .filter(|_| Version::of(packet) == Ok(Version::V4))
            .map(ipv4::Header::id);
        self.fixed_id = id.is_some() && id == self.last_id;
        self.last_id = id;
        let id_step = u16::from(id.is_some() && !self.fixed_id);
        let l4 = Version::of(packet).ok().filter(|_| ip::is_plain_tcp(packet)).map(Version::header_len);
        self.predict(packet, l4, id_step, sum);
    }

    #[cold]
    fn begin_payload(&mut self, payload: &[u8], sum: Option<u16>) {
        self.predict(payload, Some(0), 0, sum);
    }

    /// Predicts what continues a packet that begins with `front`, with its TCP header at `l4`.
    fn predict(&mut self, front: &[u8], l4: Option<usize>, id_step: u16, sum: Option<u16>) {
        self.next.clear();
        if let (Some(l4), Some(sum), ..TRIES) = (l4, sum, self.tried)
            && let Some(Ok(header)) = front.get(l4..).map(tcp::Header::ref_from)
            && let Some(payload) = front.len().checked_sub(l4 + header.header_len())
        {
            let number = RisingNumber { at: l4 + tcp::SEQ_AT, step: payload as u32 };
            let check = (l4 + tcp::CHECK_AT, &[0xff; 2][..]);
            self.next.set(front, l4 + header.header_len(), front.len(), id_step, number, check);
            (self.sum, self.is_alone, self.ip_header) = (sum, true, l4 as u8);
            self.tried += 1;
        }
    }
}
