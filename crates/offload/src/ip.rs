//! A packet's IP headers, wherever its bytes lie.

use base::DropReason;
use packet::{Memory, Packet};
use wire::Malformed;
use wire::ip::Info;

/// Sums up the IP headers of `pkt`, which are brought into its head. Bytes beyond the length that they say are cut off,
/// as link layers pad short packets (Linux `pskb_trim_rcsum` in `ip_rcv_core`).
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
            // An empty head has no version; another version does not get better with more bytes.
            Err(why)
                if pkt.headlen() < pkt.len()
                    && (why == Malformed::OutsideHead || (why == Malformed::IpVersion && pkt.headlen() == 0)) =>
            {
                // Each turn brings in more, up to all there is.
                let more = (2 * pkt.headlen()).max(128).min(pkt.len());
                pkt.may_pull(mem, more)?;
            }
            Err(why) => return Err(why.into()),
        }
    }
}
