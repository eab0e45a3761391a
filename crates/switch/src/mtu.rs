//! Longest frame of a bridge's port (Linux `is_skb_forwardable`).

use wire::{eth, vlan};

use crate::frame::Frame;

/// Tells whether a port of that MTU drops `frame`, without its FCS and without the tag in metadata: the MTU, a header and one VLAN tag
/// fit, whatever the bytes are. A fat frame is never dropped here: it is segmented later.
///
/// On Linux a bridge without VLAN filtering has each frame's outer tag in metadata, of whatever protocol, so this tag does not count; a
/// bridge that filters (`is_filtered`) puts a tag that is not 802.1Q back into the bytes.
#[inline]
pub(crate) fn is_too_big(frame: &Frame, is_filtered: bool, mtu: usize) -> bool {
    let has_outer_tag = frame.has_payload_tag && frame.tag.is_none() && !is_filtered;
    let outer_tag = if has_outer_tag { vlan::VlanHeader::LEN } else { 0 };
    let longest = mtu.saturating_add(eth::EthHeader::LEN + vlan::VlanHeader::LEN + outer_tag);
    !frame.is_gso && frame.len > longest
}

#[cfg(test)]
mod tests {
    use wire::MacAddr;
    use wire::vlan::Tci;

    use super::*;

    #[test]
    fn outer_tag_does_not_count_unless_it_is_filtered_payload() {
        let (dst, src) = (MacAddr([2; 6]), MacAddr([4; 6]));
        let tag = Tci::new(5, 0);
        // Tag in metadata, payload tag, whether the bridge filters, longest frame.
        let cases = [
            (None, false, false, 1518),
            (None, false, true, 1518),
            (tag, false, false, 1518),
            (tag, true, false, 1518),
            (tag, true, true, 1518),
            (None, true, false, 1522),
            (None, true, true, 1518),
        ];
        for (tag, has_payload_tag, is_filtered, longest) in cases {
            for (len, want) in [(0, false), (longest, false), (longest + 1, true), (usize::MAX, true)] {
                let frame = Frame { dst, src, tag, has_payload_tag, is_gso: false, len };
                assert_eq!(is_too_big(&frame, is_filtered, 1500), want, "{frame:?} {is_filtered}");
                assert!(!is_too_big(&Frame { is_gso: true, ..frame }, is_filtered, 1500));
                assert!(!is_too_big(&frame, is_filtered, usize::MAX));
            }
        }
    }
}
