//! Offloads of a link, and the reason for each that is off.

use offload::{CsumOffload, Features};
use packet::{Csum, GsoKind, Packet};

/// One offload of a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Offload {
    /// Name: `rx-` for packets received with work left to do, `tx-` for packets sent so.
    pub name: &'static str,
    /// Whether the offload is on.
    pub on: bool,
    /// Reason why the offload is off, or the evidence that it works.
    pub why: Option<String>,
}

/// The offloads of a link.
#[derive(Clone, Debug)]
pub struct Offloads {
    /// Offloads in display order.
    all: Vec<Offload>,
    max_segs: usize,
}

pub(crate) const TX_CSUM: &str = "tx-checksum";
pub(crate) const TX_TSO4: &str = "tx-tso4";
pub(crate) const TX_TSO6: &str = "tx-tso6";
pub(crate) const TX_USO: &str = "tx-uso";

/// Number of segments of a UDP train that every kernel with UDP GSO accepts (`UDP_MAX_SEGMENTS`; 128 since Linux 6.9).
pub(crate) const SAFE_UDP_SEGS: usize = 64;

/// Reason that a link configured without offloads shows for each.
pub(crate) const BY_CONFIGURATION: &str = "offloads = false";

impl Offloads {
    /// No offloads yet.
    pub const EMPTY: Self = Self { all: Vec::new(), max_segs: Features::NONE.gso_max_segs };

    /// Offloads of a link that never takes more than [`SAFE_UDP_SEGS`] segments.
    pub(crate) const fn with_safe_trains() -> Self {
        Self { all: Vec::new(), max_segs: SAFE_UDP_SEGS }
    }

    /// Adds an offload that is on, with the evidence that it works, or off, with the reason.
    pub fn add(&mut self, name: &'static str, answer: Result<Option<String>, String>) {
        let (on, why) = match answer {
            Ok(how) => (true, how),
            Err(why) => (false, Some(why)),
        };
        self.all.push(Offload { name, on, why });
    }

    /// The offloads, in display order.
    pub fn all(&self) -> &[Offload] {
        &self.all
    }

    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.all.iter().any(|offload| offload.name == name && offload.on)
    }

    /// Features of the link for packets that are sent, from the `tx-` offloads that are on.
    pub(crate) fn features(&self) -> Features {
        let csum = if self.is_on(TX_CSUM) { CsumOffload::Any } else { CsumOffload::None };
        let tso4 = self.is_on(TX_TSO4);
        let tso6 = self.is_on(TX_TSO6);
        let uso = self.is_on(TX_USO);
        let (tso_ecn, gso_max_segs) = (tso4 || tso6, self.max_segs);
        Features { sg: true, frag_list: true, csum, tso4, tso6, uso, tso_ecn, gso_max_segs, ..Features::NONE }
    }

    /// Turns off the offload that `packet` was refused for, if that is on. For a long UDP train it lowers the segment
    /// limit first, so that one long train does not cost shorter ones their offload. Tells whether anything changed.
    #[cold]
    pub(crate) fn give_up(&mut self, packet: &Packet, why: &str) -> bool {
        let offload_name = match (packet.meta.cut.gso(), packet.meta.csum) {
            (Some(gso), _) => match gso.kind {
                GsoKind::TcpV4 => TX_TSO4,
                GsoKind::TcpV6 => TX_TSO6,
                GsoKind::Udp => TX_USO,
            },
            (None, Csum::Partial { .. }) => TX_CSUM,
            (None, _) => return false,
        };
        let too_long = packet.meta.cut.segs() > SAFE_UDP_SEGS as u64 && self.max_segs > SAFE_UDP_SEGS;
        if offload_name == TX_USO && too_long {
            self.max_segs = SAFE_UDP_SEGS;
            if let Some(offload) = self.all.iter_mut().find(|offload| offload.name == TX_USO && offload.on) {
                offload.why = Some(format!("at most {SAFE_UDP_SEGS} segments: {why}"));
                return true;
            }
        }
        let mut gave_up = false;
        // Segmentation needs checksum offload.
        let all = offload_name == TX_CSUM;
        for offload in &mut self.all {
            if offload.on && (offload.name == offload_name || all && [TX_TSO4, TX_TSO6, TX_USO].contains(&offload.name))
            {
                (offload.on, offload.why) = (false, Some(why.to_owned()));
                gave_up = true;
            }
        }
        gave_up
    }
}

#[cfg(test)]
mod tests {
    use packet::{Cut, Gso, Memory};

    use super::*;

    fn all_on() -> Offloads {
        let mut offloads = Offloads::EMPTY;
        for name in [TX_CSUM, TX_TSO4, TX_TSO6, TX_USO] {
            offloads.add(name, Ok(None));
        }
        offloads
    }

    #[test]
    fn refused_long_train_lowers_the_segment_limit_first() {
        let mem = Memory::heap();
        let mut packet = Packet::with_data(&mem, &[0; 1000]).unwrap();
        packet.meta.cut = Cut::Gso(Gso { kind: GsoKind::Udp, size: 10, segs: 65, ecn: false, fixed_id: false });
        let mut offloads = all_on();
        assert!(offloads.give_up(&packet, "EINVAL"));
        let features = offloads.features();
        assert_eq!((features.uso, features.gso_max_segs), (true, 64));
        assert_eq!(offloads.all()[3].why.as_deref(), Some("at most 64 segments: EINVAL"));
        assert!(offloads.give_up(&packet, "EINVAL"));
        assert!(!offloads.features().uso);
    }

    #[test]
    fn refused_packet_turns_its_offload_off() {
        let mem = Memory::heap();
        let gso = |kind| Cut::Gso(Gso { kind, size: 1000, segs: 2, ecn: false, fixed_id: false });
        let partial = Csum::Partial { start: 20, offset: 16 };
        let cases = [
            (gso(GsoKind::TcpV4), partial, &[TX_TSO4][..]),
            (gso(GsoKind::TcpV6), partial, &[TX_TSO6]),
            (gso(GsoKind::Udp), partial, &[TX_USO]),
            (Cut::Whole, partial, &[TX_CSUM, TX_TSO4, TX_TSO6, TX_USO]),
            (Cut::Whole, Csum::None, &[]),
        ];
        for (cut, csum, want) in cases {
            let mut packet = Packet::with_data(&mem, &[0; 100]).unwrap();
            (packet.meta.cut, packet.meta.csum) = (cut, csum);
            let mut offloads = all_on();
            assert_eq!(offloads.give_up(&packet, "EIO"), !want.is_empty());
            let off: Vec<_> = offloads.all().iter().filter(|offload| !offload.on).map(|offload| offload.name).collect();
            assert_eq!(off, want);
            assert!(!offloads.give_up(&packet, "EIO"), "what is off already is no reason to fit again");
        }
    }
}
