//! VLAN membership of one port, and the rules of `__allowed_ingress` and `br_allowed_egress` (Linux `br_vlan.c`).

use wire::vlan::Tci;

use crate::frame::Refusal;
use crate::vid::{Vid, VidSet};

/// VLANs of a port, the subset that leaves untagged, and the PVID, the VLAN of untagged frames.
///
/// Invariants: the PVID and each untagged VLAN are members.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Vlans {
    members: VidSet,
    untagged: VidSet,
    pvid: Option<Vid>,
}

impl Vlans {
    /// VLANs of the port.
    pub fn members(&self) -> &VidSet {
        &self.members
    }

    /// Members whose frames leave untagged.
    pub fn untagged(&self) -> &VidSet {
        &self.untagged
    }

    /// VLAN of frames that arrive untagged or priority-tagged.
    pub fn pvid(&self) -> Option<Vid> {
        self.pvid
    }

    /// Adds a VLAN, or changes its flags if it is a member. Returns whether it is new.
    ///
    /// The PVID flag is set or cleared with each call: a call for the present PVID without `is_pvid` removes the PVID
    /// (Linux `__vlan_add_flags`).
    pub(crate) fn add(&mut self, vid: Vid, flags: VlanFlags) -> bool {
        if flags.is_pvid {
            self.pvid = Some(vid);
        } else if self.pvid == Some(vid) {
            self.pvid = None;
        }
        if flags.is_untagged {
            self.untagged.insert(vid);
        } else {
            self.untagged.remove(vid);
        }
        self.members.insert(vid)
    }

    /// Removes a VLAN. Returns whether it was a member.
    pub(crate) fn remove(&mut self, vid: Vid) -> bool {
        if self.pvid == Some(vid) {
            self.pvid = None;
        }
        self.untagged.remove(vid);
        self.members.remove(vid)
    }

    /// Tells whether the port still has its initial membership in the default PVID, and so may move to a new default.
    pub(crate) fn has_default(&self, vid: Vid) -> bool {
        self.pvid == Some(vid) && self.untagged.contains(vid)
    }

    /// The VLAN of an incoming frame, and its tag with that VLAN's number. Priority and drop eligibility are kept.
    ///
    /// # Errors
    /// [`Refusal::NoPvid`], [`Refusal::IngressVlan`].
    #[inline]
    pub(crate) fn classify(&self, tag: Option<Tci>) -> Result<(Vid, Tci), Refusal> {
        let tci = tag.unwrap_or(Tci(0));
        if tci.vid() == 0 {
            let pvid = self.pvid.ok_or(Refusal::NoPvid)?;
            return Ok((pvid, Tci(tci.0 | pvid.get())));
        }
        let vid = Vid::new(tci.vid()).filter(|&vid| self.members.contains(vid)).ok_or(Refusal::IngressVlan)?;
        Ok((vid, tci))
    }

    /// The egress tag of a frame of `vid` whose tag inside the bridge is `tci`; `None` if the port is not a member.
    #[inline]
    pub(crate) fn egress_tag(&self, vid: Vid, tci: Tci) -> Option<Option<Tci>> {
        let is_tagged = !self.untagged.contains(vid);
        self.members.contains(vid).then(|| is_tagged.then_some(tci))
    }
}

/// Flags of a VLAN on a port, as in `bridge vlan add … pvid untagged`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct VlanFlags {
    /// Untagged frames that arrive belong to this VLAN (`BRIDGE_VLAN_INFO_PVID`).
    pub is_pvid: bool,
    /// Frames of this VLAN leave untagged (`BRIDGE_VLAN_INFO_UNTAGGED`).
    pub is_untagged: bool,
}

impl VlanFlags {
    /// Flags of the default PVID.
    pub const DEFAULT_PVID: Self = Self { is_pvid: true, is_untagged: true };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vid(number: u16) -> Vid {
        Vid::new(number).unwrap()
    }

    /// A port in VLAN 1 (PVID, untagged), 10 (tagged) and 20 (untagged).
    fn port() -> Vlans {
        let mut vlans = Vlans::default();
        assert!(vlans.add(vid(1), VlanFlags::DEFAULT_PVID));
        assert!(vlans.add(vid(10), VlanFlags::default()));
        assert!(vlans.add(vid(20), VlanFlags { is_pvid: false, is_untagged: true }));
        vlans
    }

    #[test]
    fn incoming_frame_is_classified_by_tag_and_pvid() {
        // Tag, VLAN and tag inside. 0x6000 is priority 3, 0x1000 drop eligible.
        let cases = [
            (None, Ok((1, 0x0001))),
            (Some(0x0000), Ok((1, 0x0001))),
            (Some(0x6000), Ok((1, 0x6001))),
            (Some(0xf000), Ok((1, 0xf001))),
            (Some(0x0001), Ok((1, 0x0001))),
            (Some(0x600a), Ok((10, 0x600a))),
            (Some(0x0014), Ok((20, 0x0014))),
            (Some(0x0002), Err(Refusal::IngressVlan)),
            (Some(0x0ffe), Err(Refusal::IngressVlan)),
            (Some(0x0fff), Err(Refusal::IngressVlan)),
            (Some(0xffff), Err(Refusal::IngressVlan)),
        ];
        for (tag, want) in cases {
            let got = port().classify(tag.map(Tci));
            assert_eq!(got, want.map(|(number, tci)| (vid(number), Tci(tci))), "{tag:x?}");
        }
    }

    #[test]
    fn untagged_frame_without_pvid_is_refused() {
        let mut vlans = port();
        vlans.add(vid(1), VlanFlags { is_pvid: false, is_untagged: true });
        for tag in [None, Some(Tci(0)), Some(Tci(0xe000))] {
            assert_eq!(vlans.classify(tag), Err(Refusal::NoPvid), "{tag:?}");
        }
        assert_eq!(vlans.classify(Some(Tci(1))), Ok((vid(1), Tci(1))));
    }

    #[test]
    fn frame_leaves_tagged_unless_its_vlan_is_untagged() {
        let cases = [(1, Some(None)), (10, Some(Some(Tci(0x600a)))), (20, Some(None)), (2, None), (4094, None)];
        for (number, want) in cases {
            assert_eq!(port().egress_tag(vid(number), Tci(0x6000 | number)), want, "{number}");
        }
    }

    #[test]
    fn pvid_moves_to_the_last_vlan_added_as_pvid() {
        let mut vlans = port();
        assert!(!vlans.add(vid(10), VlanFlags { is_pvid: true, is_untagged: false }));
        assert_eq!((vlans.pvid(), vlans.members().len()), (Some(vid(10)), 3));
        assert!(!vlans.has_default(vid(1)) && !vlans.has_default(vid(10)));
        // The flag of another VLAN leaves the PVID unchanged; a call for the PVID itself without the flag removes it.
        vlans.add(vid(20), VlanFlags::default());
        assert_eq!(vlans.pvid(), Some(vid(10)));
        vlans.add(vid(10), VlanFlags::default());
        assert_eq!(vlans.pvid(), None);
    }

    #[test]
    fn removed_vlan_leaves_no_flag_behind() {
        let mut vlans = port();
        assert!(vlans.has_default(vid(1)));
        assert!(vlans.remove(vid(1)) && !vlans.remove(vid(1)));
        assert_eq!((vlans.pvid(), vlans.egress_tag(vid(1), Tci(1))), (None, None));
        vlans.add(vid(1), VlanFlags::default());
        assert_eq!(vlans.egress_tag(vid(1), Tci(1)), Some(Some(Tci(1))));
    }
}
