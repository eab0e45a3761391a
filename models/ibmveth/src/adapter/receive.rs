//! Reception: queue entries, and the checksum state of frames.

use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet};
use wire::eth;
use wire::tcp::{self, Flags};

use super::Adapter;
use crate::descriptor::{BufDesc, FrameFlags, RxEntry};
use crate::frame::{self, Layout};
use crate::lan::Lan;
use crate::pool::BufferName;

/// Length below which a frame is copied, and its buffer reposted.
const RX_COPYBREAK: usize = 128;

/// Offset of the MSS in the receive buffer of a fat frame, eight bytes.
const MSS_AT: usize = 8;

impl Adapter {
    /// Takes up to `budget` frames from the queue. An invalid entry makes the adapter reset.
    pub(super) fn receive(&mut self, lan: &mut Lan, mem: &Memory, budget: usize, out: &mut Vec<Packet>) -> usize {
        let mut received = 0;
        while received < budget && !self.is_reset_due {
            let Some(queue) = self.queue else { break };
            let entry = RxEntry::decode(&lan.rx_entry(self.unit, queue.index));
            if entry.toggle() != queue.toggle {
                break;
            }
            let name = BufferName::of(entry.correlator);
            let address = self.pools.get(name.pool).and_then(|pool| pool.address(name.index));
            let Some(address) = address else {
                self.is_reset_due = true;
                break;
            };
            let end = entry.offset() + entry.length as usize;
            if !entry.is_valid() {
                self.stats.rx_invalid_buffer += 1;
                self.recycle(lan, name, address);
            } else if end > self.pools[name.pool].config.size || (entry.length as usize) < eth::EthHeader::LEN {
                self.is_reset_due = true;
                break;
            } else if let Some((mut pkt, mss)) = self.take_frame(lan, mem, entry, name, address) {
                self.counters.rx_packets += 1;
                self.counters.rx_bytes += pkt.len() as u64;
                received += 1;
                self.finish_csum(&mut pkt, entry.flags(), mss);
                out.push(pkt);
            }
            if let Some(queue) = &mut self.queue {
                queue.advance();
            }
        }
        received
    }

    /// A frame, with the MSS in its buffer: the buffer itself, which leaves its slot free, or a copy.
    fn take_frame(
        &mut self,
        lan: &mut Lan,
        mem: &Memory,
        entry: RxEntry,
        name: BufferName,
        address: u32,
    ) -> Option<(Packet, u16)> {
        let (offset, len) = (entry.offset(), entry.length as usize);
        let bytes = lan.io(self.unit).bytes(address, offset + len)?;
        let mss = bytes.get(MSS_AT..MSS_AT + 8).filter(|_| entry.flags().contains(FrameFlags::LARGE));
        // The MSS is the low half of the last four of eight bytes.
        let mss = mss.map_or(0, |bytes| u16::from_be_bytes([bytes[6], bytes[7]]));
        if len < RX_COPYBREAK
            && let Ok(pkt) = Packet::with_data(mem, &bytes[offset..])
        {
            self.counters.copied.copies += 1;
            self.counters.copied.bytes += len as u64;
            self.recycle(lan, name, address);
            return Some((pkt, mss));
        }
        self.pools[name.pool].remove(name.index);
        let buf = lan.unmap(self.unit, address)?;
        Some((Packet::from_buf(buf.narrowed(offset, offset + len)), mss))
    }

    /// Reposts a buffer. If the hypervisor refuses the buffer, it leaves its pool.
    fn recycle(&mut self, lan: &mut Lan, name: BufferName, address: u32) {
        let desc = BufDesc::new(FrameFlags::NONE, self.pools[name.pool].config.size, address);
        if lan.add_buffer(self.unit, desc).is_err() {
            self.pools[name.pool].remove(name.index);
            lan.unmap(self.unit, address);
        }
    }

    /// Sets a frame's metadata from its flags, length and marks, and restores header fields that carried marks.
    fn finish_csum(&mut self, pkt: &mut Packet, flags: FrameFlags, mss: u16) {
        let len = pkt.len();
        let Some(head) = pkt.head_mut() else { return };
        let l3 = frame::l3(head).map_or(eth::EthHeader::LEN, |(_, l3)| l3);
        let layout = Layout::find(head, len);
        let is_flagged = flags.contains(FrameFlags::LARGE);
        let is_marked = layout.is_some_and(|layout| layout.is_marked(head));
        let is_long = len > self.mtu + l3;
        self.stats.rx_large_packets += u64::from(is_flagged || is_marked || is_long);
        let is_good = flags.contains(FrameFlags::CSUM_GOOD);
        let Some(layout) = layout else {
            if is_good {
                pkt.meta.csum = Csum::Unnecessary;
            }
            return;
        };
        let has_no_csum = flags.contains(FrameFlags::NO_CSUM);
        let mss = match is_flagged {
            true => mss,
            // In the old style the checksum field holds the MSS. A long frame with its own checksum is not fat.
            false if is_marked || is_long && has_no_csum => {
                let mss = layout.check(head);
                layout.set_check(head, 0);
                mss
            }
            false => 0,
        };
        if is_marked {
            layout.rebuild_ip_check(head);
        }
        let payload = layout.end - layout.payload;
        let is_fat = mss > 0 && payload > usize::from(mss);
        let is_zeroed = has_no_csum || is_marked || is_good && layout.check(head) == 0;
        if is_fat || is_zeroed {
            // A forwarder completes the checksum, starting from the sum of the pseudo-header.
            layout.put_pseudo(head);
            let ecn = head[layout.l4 + tcp::FLAGS_AT + 1] & Flags::CWR.bits() as u8 != 0;
            pkt.trim(layout.end);
            pkt.meta.csum = Csum::Partial { start: layout.l4 as u16, offset: tcp::CHECK_AT as u16 };
            if is_fat {
                let kind = if layout.is_v4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
                let segs = payload.div_ceil(mss.into()) as u16;
                pkt.meta.cut = Cut::Gso(Gso { kind, size: mss, segs, ecn, fixed_id: false });
            }
        } else if is_good {
            pkt.meta.csum = Csum::Unnecessary;
        }
    }
}
