//! A wire, and the devices at its ends.

use std::time::Duration;

use offload::{CsumOffload, Features, Gro, fit, gro};
use packet::{Csum, Cut, Memory, Packet};

/// Kind of packets that cross a wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Medium {
    /// A device shared with a guest, such as TUN: packets pass fat, with metadata.
    Guest,
    /// A cable: the device segments fat packets and completes checksums, and the other end receives plain packets.
    Cable,
    /// A UDP socket at both ends with the kernel's GSO and GRO: like a cable, but datagrams that arrive together are
    /// received as one train.
    UdpSocket,
}

/// Properties of a wire.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// Kind of packets that cross it.
    pub medium: Medium,
    /// Maximum length of a packet, in bytes from its IP header on. Unlimited for a guest's device.
    pub mtu: usize,
    /// Delay of a frame.
    pub delay: Duration,
    /// Additional delay of a frame that is overtaken.
    pub late_by: Duration,
    /// Frames in a thousand that are overtaken.
    pub late: u16,
    /// Frames in a thousand that are lost.
    pub loss: u16,
    /// Frames in a thousand that are duplicated.
    pub twice: u16,
    /// Frames in a thousand with a bit flipped behind their outer headers.
    pub damaged: u16,
    /// Chance in a thousand that the device is busy when it gets frames: it accepts some, and then none for some time.
    pub busy: u16,
}

/// Counters of a wire, for both directions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WireStats {
    /// Frames sent.
    pub frames: u64,
    /// Frames lost.
    pub lost: u64,
    /// Frames duplicated.
    pub twice: u64,
    /// Frames damaged.
    pub damaged: u64,
    /// Times the device was busy.
    pub busy: u64,
}

impl Wire {
    /// A perfect wire with a delay of 10 µs.
    pub const fn new(medium: Medium, mtu: usize) -> Self {
        let (delay, late_by) = (Duration::from_micros(10), Duration::from_micros(500));
        Self { medium, mtu, delay, late_by, late: 0, loss: 0, twice: 0, damaged: 0, busy: 0 }
    }

    /// The same wire with faults.
    #[must_use]
    pub const fn troubled(self, loss: u16, late: u16, twice: u16, busy: u16) -> Self {
        Self { loss, late, twice, busy, ..self }
    }

    /// Frames on the wire for a packet that a device with these features sends.
    ///
    /// # Panics
    /// If the device cannot send the packet, or a frame exceeds its MTU.
    pub fn cut(&self, mem: &Memory, features: &Features, pkt: Packet, l3: usize, out: &mut Vec<Packet>) {
        pkt.check_invariants();
        check_taken(features, &pkt);
        if self.medium == Medium::Guest {
            return pkt.into_frames(out);
        }
        fit(mem, &Features::NONE, pkt, l3, out).expect("a packet that the device can cut");
        for frame in out {
            assert!(frame.len() - l3 <= self.mtu, "{} bytes on a wire of {}", frame.len() - l3, self.mtu);
        }
    }

    /// Packets that the other end receives from frames that arrived together, in its own memory.
    ///
    /// # Panics
    /// If no memory is free.
    pub(crate) fn arrive(&self, mem: &Memory, frames: Vec<Packet>) -> Vec<Packet> {
        let received = frames.iter().map(|frame| {
            let mut pkt = Packet::with_data(mem, &frame.to_vec()).expect("memory");
            if self.medium == Medium::Guest {
                (pkt.meta.csum, pkt.meta.cut) = (frame.meta.csum, frame.meta.cut);
            }
            pkt
        });
        if self.medium != Medium::UdpSocket {
            return received.collect();
        }
        let mut gro = Gro::new(gro::Config { udp: true, frag_list: false });
        let mut trains = Vec::new();
        received.for_each(|pkt| gro.receive(mem, pkt, &mut trains));
        gro.flush(&mut trains);
        for train in &mut trains {
            train.linearize(mem).expect("memory");
            train.meta.csum = Csum::Unnecessary;
        }
        trains
    }
}

/// Checks that a device with these features can send a packet.
fn check_taken(features: &Features, pkt: &Packet) {
    if let Cut::Gso(gso) = pkt.meta.cut {
        assert!(features.cuts(&gso, pkt.len()), "{features:?} was handed {gso:?}");
    }
    assert!(!matches!(pkt.meta.cut, Cut::Frames(_)) || features.frames, "{:?} for {features:?}", pkt.meta.cut);
    let is_partial = matches!(pkt.meta.csum, Csum::Partial { .. });
    assert!(!is_partial || features.csum != CsumOffload::None, "a checksum left to {features:?}");
    assert!(pkt.is_linear() || features.sg, "pieces for {features:?}");
    assert!(pkt.frag_list().is_empty() || features.frag_list, "children for {features:?}");
}
