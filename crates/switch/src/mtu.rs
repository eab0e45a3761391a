//! Output MTU of a switch port (Open vSwitch `ovs_vport_send`).

use wire::{eth, vlan};

use crate::frame::Frame;

/// Tells whether a port of that MTU drops a frame of `len` bytes after the Ethernet header. If these bytes begin with a
/// VLAN tag (`is_tagged`), the tag's four bytes are not counted. A fat frame is never dropped here: it is segmented
/// later.
#[inline]
pub const fn exceeds_mtu(len: usize, is_tagged: bool, mtu: usize, is_gso: bool) -> bool {
    let tag_len = if is_tagged { vlan::VlanHeader::LEN } else { 0 };
    !is_gso && len > mtu.saturating_add(tag_len)
}

/// Tells whether a port of that MTU drops `frame`, which leaves with or without a tag in metadata.
#[inline]
pub(crate) fn is_too_big(frame: &Frame, leaves_tagged: bool, mtu: usize) -> bool {
    let len = frame.len.saturating_sub(eth::EthHeader::LEN);
    exceeds_mtu(len, frame.has_payload_tag && !leaves_tagged, mtu, frame.is_gso)
}

#[cfg(test)]
mod tests {
    use wire::MacAddr;

    use super::*;

    #[test]
    fn one_tag_is_not_counted_and_gso_never_exceeds() {
        let cases = [
            (1500, false, false, false),
            (1501, false, false, true),
            (1500, true, false, false),
            (1501, true, false, false),
            (1504, true, false, false),
            (1505, true, false, true),
            (0, false, false, false),
            (65_535, false, true, false),
            (65_535, true, true, false),
            (usize::MAX, true, false, true),
        ];
        for (len, is_tagged, is_gso, want) in cases {
            assert_eq!(exceeds_mtu(len, is_tagged, 1500, is_gso), want, "{len} {is_tagged} {is_gso}");
        }
        assert!(!exceeds_mtu(usize::MAX, true, usize::MAX, false));
    }

    #[test]
    fn payload_tag_counts_behind_a_tag_in_metadata() {
        let (dst, src) = (MacAddr([2; 6]), MacAddr([4; 6]));
        // Bytes after the Ethernet header, payload tag, whether the frame leaves tagged.
        let cases = [
            (1500, false, true, false),
            (1501, false, true, true),
            (1504, true, false, false),
            (1505, true, false, true),
            (1500, true, true, false),
            (1504, true, true, true),
        ];
        for (len, has_payload_tag, leaves_tagged, want) in cases {
            let frame = Frame { dst, src, tag: None, has_payload_tag, is_gso: false, len: 14 + len };
            assert_eq!(is_too_big(&frame, leaves_tagged, 1500), want, "{len} {has_payload_tag} {leaves_tagged}");
        }
        let runt = Frame { dst, src, tag: None, has_payload_tag: false, is_gso: false, len: 3 };
        assert!(!is_too_big(&runt, false, 0));
    }
}
