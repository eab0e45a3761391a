//! ICMP and ICMPv6: echo replies, and the errors that a router sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::DropReason;
use offload::checksum;
use packet::{CopyReason, Csum, Cut, Esp, Memory, Meta, Packet, PktType};
use wire::ip::{Info, Version};
use wire::{Protocol, icmp, icmpv6, ipv4, ipv6};

/// Bytes of the fixed header of ICMP and ICMPv6.
const HEADER_LEN: usize = icmp::IcmpHeader::LEN;

/// Fault of a packet, in the terms of both protocols.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Problem {
    /// No route to the destination.
    NoRoute,
    /// The last hop does not answer, or the route is an *unreachable* route.
    HostUnreachable,
    /// Forbidden by a route or a policy.
    Prohibited,
    /// Protocol without a handler.
    ProtocolUnknown {
        /// Offset in the packet of the byte that names the protocol.
        at: usize,
    },
    /// Port without a socket.
    PortUnreachable,
    /// The packet is longer than the MTU, and may not be fragmented.
    TooBig {
        /// Longest IP packet that would fit, in bytes.
        mtu: usize,
    },
    /// TTL or hop limit ran out.
    TtlExceeded,
    /// The other fragments of this first fragment were not received in time.
    ReassemblyTimeExceeded,
    /// The packet's headers are wrong.
    Parameter {
        /// Code of ICMPv6; ICMP for IPv4 has one code for all faults.
        code: icmpv6::Problem,
        /// Offset in the packet of the faulty field.
        at: usize,
    },
}

impl Problem {
    /// Tells whether path MTU discovery needs the message, so that it is not rate-limited (Linux's `icmpv4_mask_allow`,
    /// `icmpv6_mask_allow`).
    pub const fn is_unlimited(self) -> bool {
        matches!(self, Self::TooBig { .. })
    }

    const fn v4(self) -> icmp::IcmpMessage {
        match self {
            Self::NoRoute => icmp::IcmpMessage::Unreachable(icmp::IcmpUnreachable::NET),
            Self::HostUnreachable => icmp::IcmpMessage::Unreachable(icmp::IcmpUnreachable::HOST),
            Self::Prohibited => icmp::IcmpMessage::Unreachable(icmp::IcmpUnreachable::PROHIBITED),
            Self::ProtocolUnknown { .. } => icmp::IcmpMessage::Unreachable(icmp::IcmpUnreachable::PROTOCOL),
            Self::PortUnreachable => icmp::IcmpMessage::Unreachable(icmp::IcmpUnreachable::PORT),
            Self::TooBig { mtu } => icmp::IcmpMessage::FragNeeded { mtu: mtu as u16 },
            Self::TtlExceeded => icmp::IcmpMessage::TimeExceeded(icmp::IcmpExceeded::TTL),
            Self::ReassemblyTimeExceeded => icmp::IcmpMessage::TimeExceeded(icmp::IcmpExceeded::REASSEMBLY),
            Self::Parameter { at, .. } => icmp::IcmpMessage::ParamProblem { code: 0, pointer: at as u8 },
        }
    }

    const fn v6(self) -> icmpv6::Icmpv6Message {
        match self {
            Self::NoRoute => icmpv6::Icmpv6Message::Unreachable(icmpv6::Icmpv6Unreachable::NO_ROUTE),
            Self::HostUnreachable => icmpv6::Icmpv6Message::Unreachable(icmpv6::Icmpv6Unreachable::ADDRESS),
            Self::Prohibited => icmpv6::Icmpv6Message::Unreachable(icmpv6::Icmpv6Unreachable::PROHIBITED),
            Self::ProtocolUnknown { at } => {
                icmpv6::Icmpv6Message::ParamProblem { code: icmpv6::Problem::NEXT_HEADER, pointer: at as u32 }
            }
            Self::PortUnreachable => icmpv6::Icmpv6Message::Unreachable(icmpv6::Icmpv6Unreachable::PORT),
            Self::TooBig { mtu } => icmpv6::Icmpv6Message::PacketTooBig { mtu: mtu as u32 },
            Self::TtlExceeded => icmpv6::Icmpv6Message::TimeExceeded(icmpv6::Icmpv6Exceeded::HOP_LIMIT),
            Self::ReassemblyTimeExceeded => icmpv6::Icmpv6Message::TimeExceeded(icmpv6::Icmpv6Exceeded::REASSEMBLY),
            Self::Parameter { code, at } => icmpv6::Icmpv6Message::ParamProblem { code, pointer: at as u32 },
        }
    }
}

/// Tells whether an error about a packet may be sent: not about an error message, a later fragment (except an IPv6 fragment with
/// malformed headers), a packet that is not from one host to one host, by its IP header and its link-layer header (RFC 1122 §3.2.2,
/// RFC 4443 §2.4 (e)), or the plaintext of ESP.
pub fn may_answer(packet: &Packet, info: &Info, problem: Problem) -> bool {
    let one_station = packet.meta.pkt_type == PktType::Host;
    let one_destination = match info.dst {
        IpAddr::V4(dst) => one_station && !(dst.is_multicast() || dst.is_broadcast()),
        IpAddr::V6(dst) => one_station && !dst.is_multicast() || is_owed_to_groups(packet, problem),
    };
    let mut kind = [0; HEADER_LEN];
    let is_error = match info.protocol {
        Protocol::ICMP | Protocol::ICMPV6 if info.has_transport() => {
            let has_all = packet.read_at(info.header_len, &mut kind);
            match info.version() {
                // A message too short to be distinguished from an error is treated as one.
                Version::V4 => !has_all || icmp::IcmpHeader::ref_from(&kind).map_or(true, icmp::IcmpHeader::is_error),
                // Except a first fragment without a byte of it (Linux's `is_ineligible`).
                Version::V6 if info.payload_len() == 0 => info.fragment.is_none(),
                Version::V6 => icmpv6::Icmpv6Header::ref_from(&kind).map_or(true, icmpv6::Icmpv6Header::is_error),
            }
        }
        _ => false,
    };
    // A router of IPv6 does not fragment: only the source itself can have made a later fragment wrong.
    let one_message =
        info.has_transport() || info.version() == Version::V6 && matches!(problem, Problem::Parameter { .. });
    // An error would quote the plaintext of ESP that a device is to encrypt, or has decrypted in place.
    let is_plaintext = matches!(packet.meta.esp, Some(Esp::Seal { .. } | Esp::Opened { .. }));
    crate::is_one_host(info.src) && one_destination && one_message && !is_error && !is_plaintext
}

/// Tells whether a problem is reported even if the packet went to a group: a path MTU, and an option whose type says so
/// (RFC 4443 §2.4 (e.3), RFC 8200 §4.2).
fn is_owed_to_groups(packet: &Packet, problem: Problem) -> bool {
    const ACTION: u8 = 0xc0;
    const REPORT: u8 = 0x80;
    match problem {
        Problem::TooBig { .. } => true,
        Problem::Parameter { code: icmpv6::Problem::OPTION, at } => {
            let mut kind = [0];
            packet.read_at(at, &mut kind) && kind[0] & ACTION == REPORT
        }
        _ => false,
    }
}

/// The error message about `packet`, whose summary `info` is, from `src`, which is of the same family. It quotes as much
/// of the packet as fits 576 bytes (RFC 1812 §4.3.2.3) or 1280 (RFC 4443 §2.4 (c)).
///
/// # Errors
/// [`DropReason::NoMemory`].
pub fn error(mem: &Memory, packet: &Packet, info: &Info, problem: Problem, src: IpAddr) -> Result<Packet, DropReason> {
    let longest = match info.version() {
        Version::V4 => icmp::MAX_ERROR_LEN,
        Version::V6 => icmpv6::MAX_ERROR_LEN,
    };
    let front = info.version().header_len() + HEADER_LEN;
    let quote = packet.len().min(longest - front);
    let mut error = Packet::new(mem, Memory::HEADROOM + front, quote)?;
    packet.read_at(0, error.put(quote).ok_or(DropReason::NoMemory)?);
    mem.copied(CopyReason::Tap, quote);
    let mut header = [0; HEADER_LEN];
    match info.version() {
        Version::V4 => icmp::IcmpHeader::new(problem.v4()).write(&mut header)?,
        Version::V6 => icmpv6::Icmpv6Header::new(problem.v6()).write(&mut header)?,
    };
    error.push(mem, HEADER_LEN)?.copy_from_slice(&header);
    finish(mem, error, src, info.src, 0xc0, &[])
}

/// The answer `from` this address to the echo request `packet`, whose summary `info` is: the same data, turned around
/// (RFC 792, RFC 4443 §4.2), over IPv4 with these options, whole words. Extension headers are not returned.
///
/// # Errors
/// The reason to drop the request: a wrong checksum, a message that is no echo request, no memory.
pub fn echo_reply(
    mem: &Memory,
    mut packet: Packet,
    info: &Info,
    from: IpAddr,
    options: &[u8],
) -> Result<Packet, DropReason> {
    if !check_ok(&packet, info) {
        return Err(DropReason::ChecksumWrong);
    }
    packet.pull(info.header_len);
    if !packet.may_pull(mem, HEADER_LEN)? {
        return Err(DropReason::IcmpIgnored);
    }
    packet.make_writable(mem, 0)?;
    let head = packet.head_mut().ok_or(DropReason::NoMemory)?;
    match info.version() {
        Version::V4 => match icmp::IcmpHeader::ref_from(head)?.message() {
            Some(icmp::IcmpMessage::EchoRequest { id, seq }) => {
                icmp::IcmpHeader::new(icmp::IcmpMessage::EchoReply { id, seq }).write(head)?;
            }
            _ => return Err(DropReason::IcmpIgnored),
        },
        Version::V6 => match icmpv6::Icmpv6Header::ref_from(head)?.message() {
            Some(icmpv6::Icmpv6Message::EchoRequest { id, seq }) => {
                icmpv6::Icmpv6Header::new(icmpv6::Icmpv6Message::EchoReply { id, seq }).write(head)?;
            }
            _ => return Err(DropReason::IcmpIgnored),
        },
    }
    packet.meta = Meta::default();
    // The reply has the DSCP of the request, and does not take part in ECN (RFC 3168 §6.1.1).
    finish(mem, packet, from, info.src, info.tos & !3, options)
}

/// Tells whether the checksum of an ICMP or ICMPv6 message is right.
pub fn check_ok(packet: &Packet, info: &Info) -> bool {
    match info.protocol {
        Protocol::ICMP => {
            matches!(packet.meta.csum, Csum::Unnecessary | Csum::Partial { .. })
                || wire::checksum::finish(checksum::sum_of(packet, info.header_len, info.total_len)) == 0
        }
        _ => checksum::verify(packet, info),
    }
}

/// Fills in the checksum of the message that `packet` begins with, and puts an IP header in front, an IPv4 one with options.
fn finish(
    mem: &Memory,
    mut packet: Packet,
    src: IpAddr,
    dst: IpAddr,
    tos: u8,
    options: &[u8],
) -> Result<Packet, DropReason> {
    let len = packet.len();
    let total = u16::try_from(len).map_err(|_| DropReason::PacketTooBig)?;
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            set_check(&mut packet, 0)?;
            push_v4(mem, &mut packet, src, dst, total, tos, options)?;
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            set_check(&mut packet, wire::checksum::pseudo_v6(src, dst, Protocol::ICMPV6, len))?;
            push_v6(mem, &mut packet, src, dst, total, tos)?;
        }
        _ => return Err(DropReason::NoRoute),
    }
    (packet.meta.csum, packet.meta.cut) = (Csum::None, Cut::Whole);
    Ok(packet)
}

fn set_check(packet: &mut Packet, pseudo: u32) -> Result<(), DropReason> {
    const CHECK: std::ops::Range<usize> = 2..4;
    let field = |packet: &mut Packet, value: u16| {
        let head = packet.head_mut().and_then(|head| head.get_mut(CHECK)).ok_or(DropReason::IcmpIgnored)?;
        head.copy_from_slice(&value.to_be_bytes());
        Ok::<(), DropReason>(())
    };
    field(packet, 0)?;
    let sum = wire::checksum::add(pseudo, checksum::sum_of(packet, 0, packet.len()));
    field(packet, wire::checksum::finish(sum))
}

fn push_v4(
    mem: &Memory,
    packet: &mut Packet,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    len: u16,
    tos: u8,
    options: &[u8],
) -> Result<(), DropReason> {
    let header_len = ipv4::Ipv4Header::LEN + options.len();
    let total = len.checked_add(header_len as u16).ok_or(DropReason::PacketTooBig)?;
    let mut header = ipv4::Ipv4Header::new(src, dst, Protocol::ICMP, total);
    header.set_tos(tos);
    header.set_header_len(header_len);
    let place = packet.push(mem, header_len)?;
    place[ipv4::Ipv4Header::LEN..].copy_from_slice(options);
    header.write(place)?;
    ipv4::fill_check(place)?;
    Ok(())
}

fn push_v6(
    mem: &Memory,
    packet: &mut Packet,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    len: u16,
    tos: u8,
) -> Result<(), DropReason> {
    let mut header = ipv6::Ipv6Header::new(src, dst, Protocol::ICMPV6, len);
    header.set_traffic_class(tos);
    header.write(packet.push(mem, ipv6::Ipv6Header::LEN)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use packet::geometry;
    use wire::ipv4::Ipv4;
    use wire::ipv6::Ipv6;

    use super::*;

    /// An IP packet of `protocol` from .1 to .2 with `payload`.
    fn ip(version: Version, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; version.header_len()];
        match version {
            Version::V4 => {
                let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
                let mut header = ipv4::Ipv4Header::new(src, dst, protocol, (20 + payload.len()) as u16);
                header.fill_check();
                header.write(&mut bytes).unwrap();
            }
            Version::V6 => {
                let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
                ipv6::Ipv6Header::new(src, dst, protocol, payload.len() as u16).write(&mut bytes).unwrap();
            }
        }
        bytes.extend_from_slice(payload);
        bytes
    }

    fn echo(version: Version, len: usize) -> Vec<u8> {
        let mut message = vec![0; 8 + len];
        message[8..].iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        match version {
            Version::V4 => {
                icmp::IcmpHeader::new(icmp::IcmpMessage::EchoRequest { id: 7, seq: 9 }).write(&mut message).unwrap();
                icmp::fill_check(&mut message).unwrap();
                ip(version, Protocol::ICMP, &message)
            }
            Version::V6 => {
                icmpv6::Icmpv6Header::new(icmpv6::Icmpv6Message::EchoRequest { id: 7, seq: 9 })
                    .write(&mut message)
                    .unwrap();
                let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
                icmpv6::fill_check(&mut message, src, dst).unwrap();
                ip(version, Protocol::ICMPV6, &message)
            }
        }
    }

    #[test]
    fn a_ping_comes_back_with_its_data_in_every_geometry() {
        let mem = Memory::heap();
        for version in [Version::V4, Version::V6] {
            for len in [0, 1, 56, 1473, 20_000] {
                let bytes = echo(version, len);
                let info = Info::parse(&bytes, bytes.len()).unwrap();
                for (shape, packet) in geometry::all(&mem, &bytes, &[20, 28, 40, 48]) {
                    let reply = echo_reply(&mem, packet, &info, info.dst, &[]).unwrap().to_vec();
                    let seen = Info::parse(&reply, reply.len()).unwrap();
                    assert_eq!((seen.src, seen.dst), (info.dst, info.src), "{version} {len} {shape}");
                    assert_eq!(seen.payload(&reply)[4..], info.payload(&bytes)[4..], "{version} {len} {shape}");
                    let reply = Packet::with_data(&mem, &reply).unwrap();
                    assert!(check_ok(&reply, &seen), "{version} {len} {shape}");
                }
            }
        }
    }

    #[test]
    fn a_ping_with_a_wrong_bit_is_dropped() {
        let mem = Memory::heap();
        for version in [Version::V4, Version::V6] {
            let mut bytes = echo(version, 100);
            bytes[90] ^= 4;
            let info = Info::parse(&bytes, bytes.len()).unwrap();
            let packet = Packet::with_data(&mem, &bytes).unwrap();
            assert_eq!(echo_reply(&mem, packet, &info, info.dst, &[]).unwrap_err(), DropReason::ChecksumWrong);
        }
    }

    #[test]
    fn an_error_quotes_what_fits_and_its_checksums_are_right() {
        let mem = Memory::heap();
        let udp = |len| vec![0x55; len];
        for (version, len, want) in [(Version::V4, 100, 148), (Version::V4, 3000, 576), (Version::V6, 3000, 1280)] {
            let bytes = ip(version, Protocol::UDP, &udp(len));
            let info = Info::parse(&bytes, bytes.len()).unwrap();
            let packet = Packet::with_data(&mem, &bytes).unwrap();
            let problem = Problem::TooBig { mtu: 1438 };
            assert!(may_answer(&packet, &info, problem));
            let made = error(&mem, &packet, &info, problem, info.dst).unwrap().to_vec();
            assert_eq!(made.len(), want);
            let seen = Info::parse(&made, made.len()).unwrap();
            assert_eq!(seen.payload(&made)[8..], bytes[..want - version.header_len() - 8]);
            let message = seen.payload(&made);
            match version {
                Version::V4 => {
                    assert_eq!(
                        icmp::IcmpHeader::ref_from(message).unwrap().message(),
                        Some(icmp::IcmpMessage::FragNeeded { mtu: 1438 })
                    );
                    assert!(Ipv4::parse(&made).unwrap().check_ok());
                }
                Version::V6 => {
                    assert_eq!(
                        icmpv6::Icmpv6Header::ref_from(message).unwrap().message(),
                        Some(icmpv6::Icmpv6Message::PacketTooBig { mtu: 1438 })
                    );
                    Ipv6::parse(&made).unwrap();
                }
            }
            assert!(check_ok(&Packet::with_data(&mem, &made).unwrap(), &seen));
        }
    }

    #[test]
    fn bad_or_timed_out_fragment_gets_its_own_icmp_code() {
        let mem = Memory::heap();
        let at = 42;
        let wrong = Problem::Parameter { code: icmpv6::Problem::FIELD, at };
        let exceeded = Problem::ReassemblyTimeExceeded;
        let cases = [
            (Version::V4, exceeded, [11, 1, 0, 0, 0, 0]),
            (Version::V6, exceeded, [3, 1, 0, 0, 0, 0]),
            (Version::V4, wrong, [12, 0, 42, 0, 0, 0]),
            (Version::V6, wrong, [4, 0, 0, 0, 0, 42]),
        ];
        for (version, problem, want) in cases {
            let bytes = ip(version, Protocol::UDP, &[0; 100]);
            let mut info = Info::parse(&bytes, bytes.len()).unwrap();
            let packet = Packet::with_data(&mem, &bytes).unwrap();
            let made = error(&mem, &packet, &info, problem, info.dst).unwrap().to_vec();
            let message = &made[version.header_len()..];
            assert_eq!([&message[..2], &message[4..8]].concat(), want, "{version} {problem:?}");
            assert!(may_answer(&packet, &info, problem) && !problem.is_unlimited());
            let offset = wire::FragOffset::from_bytes(64).unwrap();
            info.fragment = Some(wire::FragInfo { offset, more: false, id: 1 });
            let answered = version == Version::V6 && problem == wrong;
            assert_eq!(may_answer(&packet, &info, problem), answered, "a later fragment of {version}: {problem:?}");
        }
    }

    #[test]
    fn icmpv6_error_is_known_by_its_first_byte() {
        let mem = Memory::heap();
        let chain = Problem::Parameter { code: icmpv6::Problem::HEADER_CHAIN, at: 0 };
        let first = wire::FragInfo { offset: wire::FragOffset::ZERO, more: true, id: 1 };
        let cases: [(&[u8], _, _); 5] = [
            (&[128, 0, 0, 0], Some(first), true),
            (&[128], None, true),
            (&[1, 0, 0, 0], Some(first), false),
            (&[], Some(first), true),
            (&[], None, false),
        ];
        for (message, fragment, answered) in cases {
            let bytes = ip(Version::V6, Protocol::ICMPV6, message);
            let info = Info { fragment, ..Info::parse(&bytes, bytes.len()).unwrap() };
            let packet = Packet::with_data(&mem, &bytes).unwrap();
            assert_eq!(may_answer(&packet, &info, chain), answered, "{message:?}, {fragment:?}");
        }
    }

    #[test]
    fn error_that_could_cause_a_storm_is_not_sent() {
        let mem = Memory::heap();
        let unreachable = Problem::HostUnreachable;
        let answered = |bytes: &[u8], problem| {
            let info = Info::parse(bytes, bytes.len()).unwrap();
            may_answer(&Packet::with_data(&mem, bytes).unwrap(), &info, problem)
        };
        let with_v4 = |edit: &dyn Fn(&mut ipv4::Ipv4Header), protocol, payload: &[u8]| {
            let mut bytes = ip(Version::V4, protocol, payload);
            let header = ipv4::Ipv4Header::mut_from(&mut bytes).unwrap();
            edit(header);
            header.fill_check();
            bytes
        };
        let plain = with_v4(&|_| {}, Protocol::UDP, &[0; 20]);
        assert!(answered(&plain, unreachable));
        assert!(answered(&echo(Version::V4, 8), unreachable));
        for src in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::LOCALHOST, Ipv4Addr::new(224, 0, 0, 1)] {
            assert!(!answered(&with_v4(&|it| it.set_src(src), Protocol::UDP, &[0; 20]), unreachable), "from {src}");
        }
        for dst in [Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
            assert!(!answered(&with_v4(&|it| it.set_dst(dst), Protocol::UDP, &[0; 20]), unreachable), "to {dst}");
        }
        let later = wire::FragOffset::from_bytes(64).unwrap();
        assert!(!answered(&with_v4(&|it| it.set_fragment(later, false), Protocol::UDP, &[0; 20]), unreachable));
        let mut error = [0; 16];
        icmp::IcmpHeader::new(icmp::IcmpMessage::TimeExceeded(icmp::IcmpExceeded::TTL)).write(&mut error).unwrap();
        assert!(!answered(&with_v4(&|_| {}, Protocol::ICMP, &error), unreachable));
        assert!(!answered(&with_v4(&|_| {}, Protocol::ICMP, &error[..3]), unreachable));
        let mut group = ip(Version::V6, Protocol::UDP, &[0; 20]);
        ipv6::Ipv6Header::mut_from(&mut group).unwrap().set_dst("ff02::1".parse().unwrap());
        assert!(!answered(&group, unreachable));
        assert!(answered(&group, Problem::TooBig { mtu: 1280 }), "RFC 4443 §2.4 (e.3): path MTU discovery for groups");
    }
}
