//! Neighbour discovery (RFC 4861 §4): solicitations and advertisements of neighbours and routers, and their options.
//!
//! Only messages that satisfy RFC 4861 §6.1 and §7.1 are accepted. These rules include fields of the IP header, which
//! [`Nd::parse`] takes as parameters. The checksum is left to [`crate::icmpv6::Icmpv6::check_ok`].

use std::net::Ipv6Addr;

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{MacAddr, Malformed, icmpv6};

/// The hop limit of every message; a router would have decremented it (RFC 4861 §3.1, §7.1).
pub const HOP_LIMIT: u8 = 255;

/// `ff02::1`: every node of the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// `ff02::2`: every router of the link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// ICMPv6 type of a router solicitation (RFC 4861 §4.1).
pub const ROUTER_SOLICIT: u8 = 133;
/// ICMPv6 type of a router advertisement (RFC 4861 §4.2).
pub const ROUTER_ADVERT: u8 = 134;
/// The ICMPv6 type of a solicitation.
pub const NEIGHBOUR_SOLICIT: u8 = 135;
/// The ICMPv6 type of an advertisement.
pub const NEIGHBOUR_ADVERT: u8 = 136;
const REDIRECT: u8 = 137;

/// Tells whether ICMPv6 messages of this type are neighbour or router discovery (RFC 4861 §4).
pub const fn is_discovery(kind: u8) -> bool {
    matches!(kind, ROUTER_SOLICIT..=REDIRECT)
}

/// The group to which solicitations for `addr` are sent (RFC 4291 §2.7.1).
pub const fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b] = addr.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a & 0xff, b)
}

/// Flags of an advertisement.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AdvertFlags {
    /// The sender is a router.
    pub router: bool,
    /// The advertisement answers a solicitation.
    pub solicited: bool,
    /// The link-layer address replaces a known one.
    pub overriding: bool,
}

impl AdvertFlags {
    const fn from_bits(bits: u32) -> Self {
        Self { router: bits >> 31 == 1, solicited: bits >> 30 & 1 == 1, overriding: bits >> 29 & 1 == 1 }
    }

    const fn bits(self) -> u32 {
        (self.router as u32) << 31 | (self.solicited as u32) << 30 | (self.overriding as u32) << 29
    }
}

/// A neighbour solicitation or advertisement without options.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Neighbour {
    kind: u8,
    code: u8,
    check: U16,
    flags: U32,
    target: [u8; 16],
}

header!(Neighbour, 24, Malformed::NdShort);

impl Neighbour {
    /// Solicitation for the station with the address `target`. [`icmpv6::fill_check`] computes the checksum last.
    pub const fn solicit(target: Ipv6Addr) -> Self {
        let target = target.octets();
        Self { kind: NEIGHBOUR_SOLICIT, code: 0, check: U16::ZERO, flags: U32::ZERO, target }
    }

    /// Advertisement of `target`. [`icmpv6::fill_check`] computes the checksum last.
    pub const fn advert(target: Ipv6Addr, flags: AdvertFlags) -> Self {
        let target = target.octets();
        Self { kind: NEIGHBOUR_ADVERT, code: 0, check: U16::ZERO, flags: U32::new(flags.bits()), target }
    }

    /// The address in question.
    pub fn target(&self) -> Ipv6Addr {
        self.target.into()
    }

    /// The flags, which only an advertisement has.
    pub const fn flags(&self) -> AdvertFlags {
        AdvertFlags::from_bits(self.flags.get())
    }
}

/// A router advertisement without options. Durations are 0 if the router does not specify them.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct RouterAdvert {
    kind: u8,
    code: u8,
    check: U16,
    hop_limit: u8,
    flags: u8,
    lifetime_secs: U16,
    reachable_ms: U32,
    retrans_ms: U32,
}

header!(RouterAdvert, 16, Malformed::NdShort);

impl RouterAdvert {
    /// The hop limit for sent packets; 0 if the router does not specify it.
    pub const fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Lifetime as a default router, in seconds; 0 if the router is not a default router.
    pub const fn lifetime_secs(&self) -> u16 {
        self.lifetime_secs.get()
    }

    /// Time for which a neighbour counts as reachable, in milliseconds.
    pub const fn reachable_ms(&self) -> u32 {
        self.reachable_ms.get()
    }

    /// Time between solicitations, in milliseconds.
    pub const fn retrans_ms(&self) -> u32 {
        self.retrans_ms.get()
    }
}

/// Ethernet option with a source or target link-layer address (RFC 4861 §4.6.1, RFC 2464 §6).
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct LinkAddr {
    kind: u8,
    len_blocks: u8,
    addr: MacAddr,
}

header!(LinkAddr, 8, Malformed::NdOption);

impl LinkAddr {
    /// The sender's own address, in solicitations and router advertisements.
    pub const fn source(addr: MacAddr) -> Self {
        Self { kind: NdOption::SOURCE, len_blocks: 1, addr }
    }

    /// The target's address, in advertisements.
    pub const fn target(addr: MacAddr) -> Self {
        Self { kind: NdOption::TARGET, len_blocks: 1, addr }
    }
}

/// An option.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NdOption<'a> {
    /// The sender's link-layer address.
    SourceLinkAddr(MacAddr),
    /// The target's link-layer address.
    TargetLinkAddr(MacAddr),
    /// The link's MTU.
    Mtu(u32),
    /// Any other option, or one of the above with a length that Ethernet does not use.
    Other {
        /// The type byte.
        kind: u8,
        /// Bytes behind the length byte.
        data: &'a [u8],
    },
}

impl NdOption<'_> {
    const SOURCE: u8 = 1;
    const TARGET: u8 = 2;
    const MTU: u8 = 5;
}

/// The options of a message, with checked lengths.
#[derive(Clone, Debug)]
pub struct NdOptions<'a> {
    rest: &'a [u8],
}

impl<'a> NdOptions<'a> {
    /// Parses the options in `bytes`.
    ///
    /// # Errors
    /// [`Malformed::NdOption`] if an option has length zero or runs past the end.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = split_option(rest).ok_or(Malformed::NdOption)?.1;
        }
        Ok(Self { rest: bytes })
    }

    /// The sender's link-layer address, if included.
    pub fn source_link_addr(&self) -> Option<MacAddr> {
        self.clone().find_map(|option| match option {
            NdOption::SourceLinkAddr(addr) => Some(addr),
            _ => None,
        })
    }

    /// The target's link-layer address, if included.
    pub fn target_link_addr(&self) -> Option<MacAddr> {
        self.clone().find_map(|option| match option {
            NdOption::TargetLinkAddr(addr) => Some(addr),
            _ => None,
        })
    }
}

fn split_option(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = usize::from(*bytes.get(1)?) * 8;
    if len == 0 { None } else { bytes.split_at_checked(len) }
}

impl<'a> Iterator for NdOptions<'a> {
    type Item = NdOption<'a>;

    fn next(&mut self) -> Option<NdOption<'a>> {
        let (option, rest) = split_option(self.rest)?;
        self.rest = rest;
        let (kind, data) = (option[0], &option[2..]);
        Some(match (kind, data.as_array::<6>()) {
            (NdOption::SOURCE, Some(addr)) => NdOption::SourceLinkAddr(MacAddr(*addr)),
            (NdOption::TARGET, Some(addr)) => NdOption::TargetLinkAddr(MacAddr(*addr)),
            (NdOption::MTU, Some(&[_, _, a, b, c, d])) => NdOption::Mtu(u32::from_be_bytes([a, b, c, d])),
            _ => NdOption::Other { kind, data },
        })
    }
}

/// A valid message.
#[derive(Clone, Debug)]
pub enum Nd<'a> {
    /// Router solicitation.
    RouterSolicit {
        /// Options.
        options: NdOptions<'a>,
    },
    /// Router advertisement.
    RouterAdvert {
        /// Fixed part of the message.
        header: &'a RouterAdvert,
        /// Options.
        options: NdOptions<'a>,
    },
    /// Neighbour solicitation.
    NeighbourSolicit {
        /// The address.
        target: Ipv6Addr,
        /// Options.
        options: NdOptions<'a>,
    },
    /// Neighbour advertisement.
    NeighbourAdvert {
        /// The address.
        target: Ipv6Addr,
        /// Flags.
        flags: AdvertFlags,
        /// Options.
        options: NdOptions<'a>,
    },
}

impl<'a> Nd<'a> {
    /// Parses an ICMPv6 message, from its ICMPv6 header on, from `src` to `dst` with `hop_limit`. Returns `None` for a
    /// message of another type.
    ///
    /// # Errors
    /// [`Malformed::NdShort`], [`Malformed::NdOption`], or [`Malformed::NdInvalid`] for messages that RFC 4861 §6.1 and
    /// §7.1 require to discard.
    pub fn parse(message: &'a [u8], src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8) -> Result<Option<Self>, Malformed> {
        let header = icmpv6::Icmpv6Header::ref_from(message)?;
        if !matches!(header.kind(), ROUTER_SOLICIT..=NEIGHBOUR_ADVERT) {
            return Ok(None);
        }
        if hop_limit != HOP_LIMIT || header.code() != 0 {
            return Err(Malformed::NdInvalid);
        }
        let nd = match header.kind() {
            ROUTER_SOLICIT => Self::RouterSolicit { options: NdOptions::parse(&message[icmpv6::Icmpv6Header::LEN..])? },
            ROUTER_ADVERT => {
                let (header, options) = RouterAdvert::split_from(message)?;
                Self::RouterAdvert { header, options: NdOptions::parse(options)? }
            }
            kind => {
                let (header, options) = Neighbour::split_from(message)?;
                let (target, options) = (header.target(), NdOptions::parse(options)?);
                if kind == NEIGHBOUR_SOLICIT {
                    Self::NeighbourSolicit { target, options }
                } else {
                    Self::NeighbourAdvert { target, flags: header.flags(), options }
                }
            }
        };
        if nd.is_valid(src, dst) { Ok(Some(nd)) } else { Err(Malformed::NdInvalid) }
    }

    /// Checks the rules on the IP header's addresses.
    fn is_valid(&self, src: Ipv6Addr, dst: Ipv6Addr) -> bool {
        match self {
            Self::RouterSolicit { options } => !src.is_unspecified() || options.source_link_addr().is_none(),
            Self::RouterAdvert { .. } => src.is_unicast_link_local(),
            Self::NeighbourSolicit { target, options } => {
                // An unspecified source is duplicate address detection (RFC 4862 §5.4).
                let probe = options.source_link_addr().is_none() && dst == solicited_node(*target);
                !target.is_multicast() && (!src.is_unspecified() || probe)
            }
            Self::NeighbourAdvert { target, flags, .. } => {
                let solicited_by_all = dst.is_multicast() && flags.solicited;
                !target.is_multicast() && !solicited_by_all
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const HERE: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const GLOBAL: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x12, 0x3456);
    const NOBODY: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

    fn with_option(message: &[u8], option: &[u8]) -> Vec<u8> {
        [message, option].concat()
    }

    #[test]
    fn a_solicitation_carries_the_senders_address() {
        let bytes = with_option(Neighbour::solicit(GLOBAL).as_bytes(), LinkAddr::source(MAC).as_bytes());
        assert_eq!(bytes[..8], [135, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..], [1, 1, 2, 0, 0, 0, 0, 1]);
        match Nd::parse(&bytes, HERE, solicited_node(GLOBAL), 255) {
            Ok(Some(Nd::NeighbourSolicit { target, options })) => {
                assert_eq!((target, options.source_link_addr()), (GLOBAL, Some(MAC)));
                assert_eq!(options.target_link_addr(), None);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn advertisement_has_sender_and_flags() {
        for bits in 0..8u8 {
            let want = AdvertFlags { router: bits & 4 != 0, solicited: bits & 2 != 0, overriding: bits & 1 != 0 };
            let bytes = with_option(Neighbour::advert(GLOBAL, want).as_bytes(), LinkAddr::target(MAC).as_bytes());
            assert_eq!(bytes[..8], [136, 0, 0, 0, bits << 5, 0, 0, 0]);
            match Nd::parse(&bytes, GLOBAL, HERE, 255) {
                Ok(Some(Nd::NeighbourAdvert { target, flags, options })) => {
                    assert_eq!((target, flags, options.target_link_addr()), (GLOBAL, want, Some(MAC)));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn nd_message_is_validated_as_in_rfc_4861() {
        let group = solicited_node(GLOBAL);
        let multicast = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 5);
        let solicit = Neighbour::solicit(GLOBAL).as_bytes().to_vec();
        let solicit_lladdr = with_option(&solicit, LinkAddr::source(MAC).as_bytes());
        let mut coded = solicit.clone();
        coded[1] = 1;
        let unsolicited = Neighbour::advert(GLOBAL, AdvertFlags::default()).as_bytes().to_vec();
        let answer = AdvertFlags { solicited: true, ..AdvertFlags::default() };
        let answer = Neighbour::advert(GLOBAL, answer).as_bytes().to_vec();
        let of_group = Neighbour::solicit(multicast).as_bytes().to_vec();
        let advert_of_group = Neighbour::advert(multicast, AdvertFlags::default()).as_bytes().to_vec();
        let router = [ROUTER_ADVERT, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 1, 0, 0, 0, 2].to_vec();
        let ask = vec![ROUTER_SOLICIT, 0, 0, 0, 0, 0, 0, 0];
        let ask_lladdr = with_option(&ask, LinkAddr::source(MAC).as_bytes());

        let (invalid, ok) = (Some(Malformed::NdInvalid), None);
        let cases = [
            (&solicit, HERE, group, 255, ok),
            (&solicit, HERE, group, 254, invalid), // passed through a router
            (&coded, HERE, group, 255, invalid),
            (&solicit, HERE, GLOBAL, 255, ok),
            (&solicit, NOBODY, group, 255, ok), // duplicate address detection
            (&solicit, NOBODY, GLOBAL, 255, invalid),
            (&solicit_lladdr, NOBODY, group, 255, invalid),
            (&of_group, HERE, group, 255, invalid),
            (&unsolicited, GLOBAL, ALL_NODES, 255, ok),
            (&answer, GLOBAL, HERE, 255, ok),
            (&answer, GLOBAL, ALL_NODES, 255, invalid),
            (&advert_of_group, GLOBAL, HERE, 255, invalid),
            (&router, HERE, ALL_NODES, 255, ok),
            (&router, GLOBAL, ALL_NODES, 255, invalid), // not from a link-local address
            (&ask, HERE, ALL_ROUTERS, 255, ok),
            (&ask, NOBODY, ALL_ROUTERS, 255, ok),
            (&ask_lladdr, NOBODY, ALL_ROUTERS, 255, invalid),
            (&ask_lladdr, HERE, ALL_ROUTERS, 255, ok),
        ];
        for (message, src, dst, hop_limit, want) in cases {
            let got = Nd::parse(message, src, dst, hop_limit);
            assert_eq!(got.as_ref().err(), want.as_ref(), "{message:02x?} from {src} to {dst}, hop limit {hop_limit}");
            assert!(want.is_some() || got.unwrap().is_some());
        }
    }

    #[test]
    fn a_message_has_its_length_and_whole_options() {
        let solicit = Neighbour::solicit(GLOBAL);
        let parse = |bytes: &[u8]| Nd::parse(bytes, HERE, GLOBAL, 255).err();
        assert_eq!(parse(&solicit.as_bytes()[..7]), Some(Malformed::Icmpv6Short));
        assert_eq!(parse(&solicit.as_bytes()[..23]), Some(Malformed::NdShort));
        assert_eq!(parse(&[134, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Some(Malformed::NdShort));
        let options: [(&[u8], _); 6] = [
            (&[14, 1, 0, 0, 0, 0, 0, 0], None),
            (&[1], Some(Malformed::NdOption)),
            (&[1, 0, 0, 0, 0, 0, 0, 0], Some(Malformed::NdOption)),
            (&[1, 1, 2, 0, 0, 0, 0], Some(Malformed::NdOption)),
            (&[1, 2, 2, 0, 0, 0, 0, 1], Some(Malformed::NdOption)),
            (&[14, 1, 0, 0, 0, 0, 0, 0, 1], Some(Malformed::NdOption)),
        ];
        for (option, want) in options {
            assert_eq!(parse(&with_option(solicit.as_bytes(), option)), want, "{option:?}");
        }
        assert!(matches!(Nd::parse(&[128, 0, 0, 0, 0, 0, 0, 0], HERE, GLOBAL, 1), Ok(None)));
    }

    #[test]
    fn an_option_of_another_length_is_not_an_ethernet_address() {
        let bytes = [[1, 2], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2], [5, 1], [0, 0], [0, 0], [5, 0xdc]];
        let bytes = bytes.as_flattened();
        let options = NdOptions::parse(bytes).unwrap();
        assert_eq!(options.source_link_addr(), None);
        assert_eq!(options.collect::<Vec<_>>(), [NdOption::Other { kind: 1, data: &[0; 14] }, NdOption::Mtu(1500)]);
    }

    #[test]
    fn a_router_says_how_to_send() {
        let bytes = [ROUTER_ADVERT, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 1, 0, 0, 0, 2];
        let advert = RouterAdvert::ref_from(&bytes).unwrap();
        let seen = (advert.hop_limit(), advert.lifetime_secs(), advert.reachable_ms(), advert.retrans_ms());
        assert_eq!(seen, (64, 1800, 1, 2));
    }

    #[test]
    fn the_owner_of_an_address_listens_in_its_group() {
        let group = solicited_node("2001:db8::12:3456".parse().unwrap());
        assert_eq!(group, "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
    }
}
