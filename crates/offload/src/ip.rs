//! IP headers of a packet, across buffers.

use base::DropReason;
use packet::{Memory, Packet};
use wire::Malformed;
use wire::ip::Info;

/// Parses the IP headers of `pkt`, after pulling them into the head. Trailing bytes are trimmed, as link layers pad
/// short packets (Linux `pskb_trim_rcsum` in `ip_rcv_core`).
///
/// # Errors
/// The reason to drop the packet, or [`DropReason::NoMemory`].
#[inline]
pub fn ip_headers(mem: &Memory, pkt: &mut Packet) -> Result<Info, DropReason> {
    loop {
        match Info::parse(pkt.head(), pkt.len()) {
            Ok(info) => {
                if info.total_len < pkt.len() {
                    pkt.trim(info.total_len);
                }
                return Ok(info);
            }
            // Further bytes do not change the version.
            Err(why)
                if pkt.headlen() < pkt.len()
                    && (why == Malformed::OutsideHead || (why == Malformed::IpVersion && pkt.headlen() == 0)) =>
            {
                // Each iteration pulls more bytes, up to the complete packet.
                let more = (2 * pkt.headlen()).max(128).min(pkt.len());
                pkt.may_pull(mem, more)?;
            }
            Err(why) => return Err(why.into()),
        }
    }
}
