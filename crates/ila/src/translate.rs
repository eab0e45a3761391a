//! Translation of addresses, and of packets in any checksum state (Linux `ila_update_ipv6_locator`).

use std::net::{IpAddr, Ipv6Addr};

use base::DropReason;
use packet::{Csum, Cut, Memory, Packet};
use wire::ip::Info;
use wire::{Protocol, checksum as sums, ipv6, tcp, udp};

use crate::checksum::{CsumMode, Diff};
use crate::identifier::Identifier;
use crate::locator::Locator;

/// Direction of a translation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// From the address of applications to the address of the node's location.
    SirToIla,
    /// From the address of the node's location to the address of applications.
    IlaToSir,
}

/// Sign of the checksum adjustment in `adj-transport`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum AdjTransport {
    /// Linux's sign: the old locator less the new one is added, although the opposite would be right. Between two
    /// translations the checksum is wrong; the second translation undoes the error of the first.
    #[default]
    Linux,
    /// The new locator less the old one: the checksum matches the address in the packet (RFC 1624). Both ends must use
    /// this sign.
    Rfc1624,
}

/// Translation of a destination.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rewrite {
    /// The new locator.
    pub locator: Locator,
    /// Treatment of checksums.
    pub csum_mode: CsumMode,
    /// Difference of the locators, if the old locator is fixed.
    pub diff: Option<Diff>,
}

/// Transport checksum of a packet, which covers the address.
#[derive(Clone, Copy, Debug)]
struct Check {
    /// Start of the transport header.
    l4: usize,
    /// Offset of the checksum in the transport header.
    offset: usize,
    /// Minimum length of the transport header.
    header_len: usize,
    protocol: Protocol,
}

impl Rewrite {
    /// Destination of a packet after the translation.
    ///
    /// `neutral-map` changes the last 16 bits of the identifier only if the C bit permits it, `neutral-map-auto`
    /// always; otherwise only the locator changes, as in Linux.
    #[inline]
    pub fn address(&self, dst: Ipv6Addr, direction: Direction) -> Ipv6Addr {
        let identifier = Identifier::of(dst);
        let identifier = match self.csum_mode {
            // An address with the C bit is not a SIR address (Linux warns).
            CsumMode::NeutralMap if identifier.is_checksum_neutral() == (direction == Direction::IlaToSir) => {
                identifier.absorb_and_flip(self.diff_from(dst))
            }
            CsumMode::NeutralMapAuto => identifier.absorb(self.diff_from(dst)),
            CsumMode::NeutralMap | CsumMode::AdjTransport | CsumMode::NoAction => identifier,
        };
        self.locator.with(identifier)
    }

    /// Translates a packet that begins with the IPv6 header summarized in `info`, and returns the packet's new
    /// destination.
    ///
    /// The packet's checksum state stays valid: a [complete](Csum::Complete) sum is that of the changed bytes, and a
    /// fat packet whose segments would otherwise get checksums of the new address becomes [partial](Csum::Partial) with
    /// the pseudo-header of the old one. As in Linux, a verified packet stays verified, even if its checksum is wrong
    /// from now on.
    ///
    /// # Errors
    /// [`DropReason::Ipv6Header`] for an IPv4 packet, [`DropReason::NoMemory`]; the packet is unchanged.
    pub fn packet(
        &self,
        mem: &Memory,
        pkt: &mut Packet,
        info: &Info,
        direction: Direction,
        sign: AdjTransport,
    ) -> Result<Ipv6Addr, DropReason> {
        let (IpAddr::V6(src), IpAddr::V6(old)) = (info.src, info.dst) else { return Err(DropReason::Ipv6Header) };
        let new = self.address(old, direction);
        let check = self.check_of(mem, pkt, info)?;
        let complete = pkt.meta.csum;
        pkt.writable_head(mem)?;
        // No later step fails.
        let adjusts = self.csum_mode == CsumMode::AdjTransport && info.plain && info.fragment.is_none();
        let stays_right = is_sum_same(old, new) || adjusts && sign == AdjTransport::Rfc1624;
        if let Some(check) = check
            && !stays_right
            && matches!(pkt.meta.cut, Cut::Gso(_))
            && !check.is_partial(pkt)
        {
            check.make_partial(pkt, src, old);
        }
        let mut changed = sums::sub(sums::sum(&new.octets()), sums::sum(&old.octets()));
        if let Some(check) = check.filter(|_| adjusts) {
            let diff = self.diff_from(old);
            let diff = match sign {
                AdjTransport::Linux => diff.old_less_new(),
                AdjTransport::Rfc1624 => diff.new_less_old(),
            };
            changed = sums::add(changed, check.adjust(pkt, diff));
        }
        if let Some(head) = pkt.head_mut() {
            ipv6::Ipv6Header::mut_from(head)?.set_dst(new);
        }
        if let Csum::Complete(sum) = complete
            && !matches!(pkt.meta.csum, Csum::Partial { .. })
        {
            pkt.meta.csum = Csum::Complete(sums::fold(sums::add(sum.into(), changed)));
        }
        Ok(new)
    }

    /// Difference of the locators for a packet to `dst`.
    #[inline]
    fn diff_from(&self, dst: Ipv6Addr) -> Diff {
        self.diff.unwrap_or_else(|| Diff::between(Locator::of(dst), self.locator))
    }

    /// The checksum field of a packet, pulled into the head, if the mode adjusts checksums.
    fn check_of(&self, mem: &Memory, pkt: &mut Packet, info: &Info) -> Result<Option<Check>, DropReason> {
        let is_needed = self.csum_mode == CsumMode::AdjTransport || pkt.meta.cut.gso().is_some();
        let Some(check) = Check::find(info).filter(|_| is_needed) else { return Ok(None) };
        // A truncated header has no checksum to adjust.
        Ok(pkt.may_pull(mem, check.l4 + check.header_len)?.then_some(check))
    }
}

impl Check {
    fn find(info: &Info) -> Option<Self> {
        let (offset, header_len) = match info.protocol {
            Protocol::TCP => (tcp::CHECK_AT, tcp::TcpHeader::LEN),
            Protocol::UDP => (udp::CHECK_AT, udp::UdpHeader::LEN),
            Protocol::ICMPV6 => (ICMPV6_CHECK_AT, ICMPV6_LEN),
            _ => return None,
        };
        let found = Self { l4: info.header_len, offset, header_len, protocol: info.protocol };
        info.has_transport().then_some(found)
    }

    /// Tells whether this checksum is the packet's partial one.
    fn is_partial(self, pkt: &Packet) -> bool {
        let Self { l4, offset, .. } = self;
        matches!(pkt.meta.csum, Csum::Partial { start, offset: at } if usize::from(start) == l4 && usize::from(at) == offset)
    }

    /// Makes the checksum partial, with the pseudo-header of these addresses.
    fn make_partial(self, pkt: &mut Packet, src: Ipv6Addr, dst: Ipv6Addr) {
        let pseudo = sums::fold(sums::pseudo_v6(src, dst, self.protocol, pkt.len() - self.l4));
        if let Some(field) = self.field(pkt) {
            *field = pseudo.to_be_bytes();
            pkt.meta.csum = Csum::Partial { start: self.l4 as u16, offset: self.offset as u16 };
        }
    }

    /// Adds `diff` to the sum that the checksum represents. Returns the difference of the sum of the packet's bytes.
    fn adjust(self, pkt: &mut Packet, diff: u32) -> u32 {
        let is_partial = self.is_partial(pkt);
        let is_udp = self.protocol == Protocol::UDP;
        let Some(field) = self.field(pkt) else { return 0 };
        let old = u16::from_be_bytes(*field);
        // The datagram was sent without a checksum.
        if is_udp && old == 0 && !is_partial {
            return 0;
        }
        let new = if is_partial { sums::fold(sums::add(diff, old.into())) } else { sums::replace_by_diff(old, diff) };
        let new = if is_udp && new == 0 { 0xffff } else { new };
        *field = new.to_be_bytes();
        sums::sub(new.into(), old.into())
    }

    fn field(self, pkt: &mut Packet) -> Option<&mut [u8; 2]> {
        pkt.head_mut()?.get_mut(self.l4 + self.offset..)?.first_chunk_mut()
    }
}

/// Offset of the checksum in an ICMPv6 header (RFC 4443 §2.1), and the length of the header that Linux requires.
const ICMPV6_CHECK_AT: usize = 2;
const ICMPV6_LEN: usize = 8;

/// Tells whether a checksum over one address is also right for the other.
fn is_sum_same(one: Ipv6Addr, other: Ipv6Addr) -> bool {
    let change = sums::fold(sums::sub(sums::sum(&one.octets()), sums::sum(&other.octets())));
    matches!(change, 0 | 0xffff)
}
