//! GRO of bridged frames: frames of a flow that a port received together pass the bridge as one fat frame (Linux
//! `dev_gro_receive`, which runs before `br_handle_frame`).
//!
//! Frames are merged only if their Ethernet headers and tags are equal too. A port that cannot take the fat frame gets the frames
//! that it was made of, by GSO. A frame that GRO leaves alone is not changed.

use base::DropReason;
use offload::{Gro, gro};
use packet::{Csum, Cut, GsoKind, Memory, Packet};
use wire::eth::{EthHeader, EtherType};
use wire::ipv6::Ipv6Header;
use wire::{tcp, udp};

use crate::node::ports::Ports;

/// Ethernet headers of held frames at most; then all frames are flushed.
const MAX_HEADERS: usize = 64;

/// Bytes of an Ethernet header.
type Header = [u8; EthHeader::LEN];

/// The frames that GRO holds for the bridges of a node.
///
/// GRO works on packets that begin with their IP header. The mark of a held frame, which a received frame does not have yet, is the
/// index of its Ethernet header; GRO merges no packets with different marks.
#[derive(Debug)]
pub(crate) struct FrameGro {
    gro: Gro,
    headers: Vec<Header>,
}

impl Default for FrameGro {
    fn default() -> Self {
        Self { gro: Gro::new(gro::Config { udp: true, frag_list: false }), headers: Vec::new() }
    }
}

impl FrameGro {
    /// Tells whether no frame is held.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.gro.held() == 0
    }

    /// Receives a frame that GRO [may hold](may_hold): holds it, merges it into a held one, or appends it to `out`, after frames that
    /// it must not overtake.
    pub(crate) fn receive(&mut self, mem: &Memory, ports: &mut Ports, mut pkt: Packet, out: &mut Vec<Packet>) {
        let Some(&header) = pkt.head().first_chunk() else { return out.push(pkt) };
        let known = self.headers.iter().position(|known| *known == header);
        if known.is_none() && self.headers.len() == MAX_HEADERS {
            self.flush(mem, ports, out);
        }
        let from = out.len();
        let number = known.unwrap_or(self.headers.len());
        if known.is_none() {
            self.headers.push(header);
        }
        pkt.pull(EthHeader::LEN);
        pkt.meta.mark = number as u32;
        self.gro.receive(mem, pkt, out);
        self.restore(mem, ports, out, from);
        if self.is_empty() {
            self.headers.clear();
        }
    }

    /// Flushes held frames with the IP addresses of a frame that GRO may not hold, and that must not overtake them; all frames if its
    /// head is too short for addresses.
    pub(crate) fn flush_before(&mut self, mem: &Memory, ports: &mut Ports, pkt: &Packet, out: &mut Vec<Packet>) {
        if pkt.headlen() < (EthHeader::LEN + Ipv6Header::LEN).min(pkt.len()) {
            return self.flush(mem, ports, out);
        }
        let from = out.len();
        self.gro.flush_between(&pkt.head()[EthHeader::LEN..], out);
        self.restore(mem, ports, out, from);
    }

    /// Flushes all frames.
    pub(crate) fn flush(&mut self, mem: &Memory, ports: &mut Ports, out: &mut Vec<Packet>) {
        let from = out.len();
        self.gro.flush(out);
        self.restore(mem, ports, out, from);
        self.headers.clear();
    }

    /// Puts the Ethernet headers back in front of the packets from index `from` on.
    fn restore(&self, mem: &Memory, ports: &mut Ports, out: &mut Vec<Packet>, from: usize) {
        let failed = out.extract_if(from.., |pkt| {
            let header = self.headers[std::mem::take(&mut pkt.meta.mark) as usize];
            pkt.push(mem, EthHeader::LEN).map(|front| front.copy_from_slice(&header)).is_err()
        });
        for pkt in failed {
            ports.drops(pkt.meta.origin.get(), DropReason::NoMemory, pkt.meta.cut.packets()).end();
        }
    }
}

/// Tells whether GRO may hold a frame, whose Ethernet header is in its head: an IP packet that is neither fat nor in parts, with a head
/// that no other packet shares, which would have to be copied for its header.
pub(crate) fn may_hold(pkt: &mut Packet) -> bool {
    let is_ip = |header: &EthHeader| matches!(header.ethertype(), EtherType::IPV4 | EtherType::IPV6);
    pkt.meta.cut == Cut::Whole && EthHeader::ref_from(pkt.head()).is_ok_and(is_ip) && pkt.head_mut().is_some()
}

/// Length of the longest frame that a fat frame out of [`FrameGro`] was made of; `None` for any other frame.
pub(crate) fn segment_len(pkt: &Packet) -> Option<usize> {
    let (gso, Csum::Partial { start, .. }) = (pkt.meta.cut.gso()?, pkt.meta.csum) else { return None };
    let l4 = usize::from(start);
    let header_len = match gso.kind {
        GsoKind::Udp => udp::UdpHeader::LEN,
        GsoKind::TcpV4 | GsoKind::TcpV6 => tcp::TcpHeader::ref_from(pkt.head().get(l4..)?).ok()?.header_len(),
    };
    Some(l4 + header_len + usize::from(gso.size))
}
