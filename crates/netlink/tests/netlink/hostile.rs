//! Malformed requests: the node survives them, and the datapath has the same state that netlink clients see.

use config::model::LinkKind;
use driver::DriverKind;
use netlink::error::errno;
use netlink::message::{Header, Messages, Writer, flag};
use netlink::rtnl::Rtnl;
use netlink::rtnl::nums::*;
use netlink::{Groups, Outbox, Session, To};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common::node::{RecordingBackend, check, node};
use crate::common::recording::recorded;

/// Session that has joined all groups.
fn session(privileged: bool) -> Session<Rtnl<RecordingBackend>> {
    let mut session = Session::new(privileged);
    session.bind(9, 0).unwrap();
    session.set_option(nlsock::option::EXT_ACK, 1).unwrap();
    session
}

/// Replies to a datagram: type, sequence number, payload.
fn answers(
    session: &mut Session<Rtnl<RecordingBackend>>,
    node: &mut Rtnl<RecordingBackend>,
    datagram: &[u8],
) -> Vec<(u16, u32, Vec<u8>)> {
    let mut outbox = Outbox::default();
    session.handle(datagram, node, Groups::default(), &mut outbox);
    while session.is_dumping() {
        session.continue_dump(node, &mut outbox);
    }
    let own = outbox.iter().filter(|(to, _)| to.is_own()).flat_map(|(_, bytes)| Messages::new(bytes));
    own.map(|m| (m.header.kind, m.header.seq, m.payload().to_vec())).collect()
}

/// The `errno`, positive, and the text of the only reply to a request.
fn refusal(node: &mut Rtnl<RecordingBackend>, privileged: bool, datagram: &[u8]) -> (i32, String) {
    let answers = answers(&mut session(privileged), node, datagram);
    let [(2 | 3, _, payload)] = &answers[..] else { panic!("{answers:?}") };
    let (error, rest) = payload.split_first_chunk().unwrap();
    let text = rest.iter().map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { byte as char } else { '.' });
    (-i32::from_ne_bytes(*error), text.collect())
}

fn request(kind: u16, flags: u16, body: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut w = Writer::default();
    w.message(Header { kind, flags: flag::REQUEST | flag::ACK | flags, seq: 7, port: 0 }, body);
    w.as_bytes().to_vec()
}

/// `ip route add 10.9.0.0/16 dev eth0`, with the additional attributes that `more` writes.
fn route(more: impl FnOnce(&mut Writer)) -> Vec<u8> {
    request(RTM_NEWROUTE, flag::CREATE | flag::EXCL, |w| {
        w.fixed(&[AF_INET, 16, 0, 0, RT_TABLE_MAIN as u8, 3, RT_SCOPE_LINK, RTN_UNICAST]);
        w.fixed(&[0; 4]);
        w.put(RTA_DST, &[10, 9, 0, 0]);
        w.put_u32(RTA_OIF, 2);
        more(w);
    })
}

#[test]
fn unprivileged_client_may_dump_but_not_change() {
    let mut node = node();
    for datagram in recorded() {
        let kind = u16::from_ne_bytes([datagram[4], datagram[5]]);
        let answers = answers(&mut session(false), &mut node, &datagram);
        if kind & 3 == 2 {
            assert!(!answers.is_empty());
            continue;
        }
        assert_eq!(answers.len(), Messages::new(&datagram).count());
        for (kind, _, payload) in answers {
            assert_eq!((kind, &payload[..4]), (2, &(-errno::EPERM).to_ne_bytes()[..]));
        }
    }
    assert!(!node.model.has_changed());
}

#[test]
fn nexthop_requests_are_errors_and_dumps_too() {
    for (kind, flags) in [
        (RTM_GETNEXTHOP, flag::DUMP),
        (RTM_GETNEXTHOPBUCKET, flag::DUMP),
        (RTM_GETNEXTHOP, 0),
        (RTM_GETNEXTHOPBUCKET, 0),
        (RTM_GETNEXTHOP - 2, flag::CREATE | flag::REPLACE),
        (RTM_GETNEXTHOP - 1, 0),
    ] {
        // `struct nhmsg`, then `NHA_ID` 5.
        let datagram = request(kind, flags, |w| {
            w.fixed(&[0; 8]);
            w.put_u32(1, 5);
        });
        let (mut session, mut outbox) = (Session::new(true), Outbox::default());
        session.bind(9, 0).unwrap();
        session.handle(&datagram, &mut node(), Groups::default(), &mut outbox);
        assert!(!session.is_dumping());
        // `struct nlmsgerr` with the request, without `NLMSG_DONE`.
        let head = [16 + 4 + datagram.len() as u32, 2, 7, 9, (-95_i32).cast_unsigned()].map(u32::to_ne_bytes).concat();
        let want = [&head[..], &datagram].concat();
        let answers: Vec<_> = outbox.iter().map(|(to, bytes)| (to, bytes.to_vec())).collect();
        assert_eq!(answers, [(To::Requester, want)], "{kind} {flags:#x}");
    }
}

#[test]
fn dump_with_filter_looks_at_few_routes_at_a_time() {
    const ROUTES: u32 = 50_000;
    let (mut node, mut maker) = (node(), session(true));
    let mut outbox = Outbox::default();
    for number in 0..ROUTES {
        let datagram = request(RTM_NEWROUTE, flag::CREATE, |w| {
            let protocol = if number == ROUTES - 1 { 77 } else { 3 };
            w.fixed(&[AF_INET, 32, 0, 0, RT_TABLE_MAIN as u8, protocol, RT_SCOPE_UNIVERSE, RTN_BLACKHOLE]);
            w.fixed(&[0; 4]);
            w.put(RTA_DST, &(0x0a00_0000 + number).to_be_bytes());
        });
        outbox.clear();
        maker.handle(&datagram, &mut node, Groups::default(), &mut outbox);
    }
    let mut session = session(false);
    session.set_option(nlsock::option::GET_STRICT_CHK, 1).unwrap();
    let dump = request(RTM_GETROUTE, flag::DUMP, |w| {
        w.fixed(&[AF_INET, 0, 0, 0, RT_TABLE_MAIN as u8, 77, 0, 0, 0, 0, 0, 0]);
    });
    outbox.clear();
    session.handle(&dump, &mut node, Groups::default(), &mut outbox);
    assert!(outbox.is_empty() && session.is_dumping(), "the first part has looked in vain");
    let mut parts = 1;
    while session.is_dumping() {
        session.continue_dump(&mut node, &mut outbox);
        parts += 1;
    }
    assert!((4..10).contains(&parts), "{parts}");
    let found = outbox.iter().flat_map(|(_, bytes)| Messages::new(bytes)).map(|message| message.header.kind);
    assert_eq!(found.collect::<Vec<_>>(), [RTM_NEWROUTE, 3]);
}

#[test]
fn unsupported_request_is_refused_by_name() {
    // `RTM_NEWACTION`, `RTM_NEWNEXTHOP`, `RTM_DELNEXTHOP`, `RTM_GETNEIGHTBL`; family 4 is IPX.
    let requests = [
        (48, AF_INET, "fatpath has no actions"),
        (104, AF_INET, "fatpath has no next hop objects"),
        (105, AF_INET, "fatpath has no next hop objects"),
        (66, AF_INET, "fatpath has no neighbour tables"),
        (RTM_NEWROUTE, 4, "fatpath cannot set routes of family 4"),
        (RTM_DELROUTE, 4, "fatpath cannot remove routes of family 4"),
        (RTM_GETROUTE, 4, "fatpath cannot show routes of family 4"),
    ];
    for (kind, family, want) in requests {
        let datagram = request(kind, 0, |w| w.fixed(&[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        let (errno, text) = refusal(&mut node(), true, &datagram);
        assert_eq!((errno, text.contains(want)), (errno::EOPNOTSUPP, true), "{kind}: {text}");
    }
}

#[test]
fn unsupported_attribute_is_refused_by_name() {
    let attributes: [(u16, &[u8], &str); 5] = [
        (RTA_METRICS, &[8, 0, 2, 0, 0, 5, 0, 0], "fatpath has no route metrics"),
        (RTA_FLOW, &[1, 0, 0, 0], "fatpath has no realms"),
        (RTA_ENCAP_TYPE, &[2, 0], "fatpath has no lightweight tunnels but ILA"),
        (RTA_NH_ID, &[1, 0, 0, 0], "fatpath has no next hop objects"),
        (RTA_EXPIRES, &[1, 0, 0, 0], "fatpath has no routes that expire"),
    ];
    for (kind, data, want) in attributes {
        let (errno, text) = refusal(&mut node(), true, &route(|w| w.put(kind, data)));
        assert_eq!(errno, errno::EOPNOTSUPP, "{want}");
        assert!(text.contains(want), "{text}");
    }
}

/// `struct rtnexthop` with these attributes, by the link with interface index 2.
fn next_hop(len: u16, flags: u8, attributes: &[u8]) -> Vec<u8> {
    [&len.to_ne_bytes()[..], &[flags, 0], &2_u32.to_ne_bytes(), attributes].concat()
}

#[test]
fn malformed_paths_are_refused_by_name() {
    const SURPLUS: &str = "Invalid nexthop configuration - extra data after nexthop";
    let encap = [6, 0, 21, 0, 3, 0, 0, 0];
    let realm = [8, 0, 11, 0, 1, 0, 0, 0];
    let cases: [(Vec<u8>, i32, &str); 7] = [
        (next_hop(7, 0, &[]), errno::EINVAL, SURPLUS),
        (next_hop(9, 0, &[]), errno::EINVAL, SURPLUS),
        (next_hop(u16::MAX, 0, &[]), errno::EINVAL, SURPLUS),
        ([next_hop(8, 0, &[]), vec![8, 0, 0]].concat(), errno::EINVAL, SURPLUS),
        (next_hop(8, 1, &[]), errno::EINVAL, "can not contain DEAD or LINKDOWN"),
        (next_hop(16, 0, &encap), errno::EOPNOTSUPP, "fatpath translates on no route with several paths"),
        (next_hop(16, 0, &realm), errno::EOPNOTSUPP, "fatpath has no realms"),
    ];
    for (data, want, text) in cases {
        let (errno, said) = refusal(&mut node(), true, &route(|w| w.put(RTA_MULTIPATH, &data)));
        assert_eq!((errno, said.contains(text)), (want, true), "{data:?}: {said}");
    }
}

/// A next hop of a link's subnet, behind a more specific route that is no link route; and one that is this node.
#[test]
fn gateway_is_looked_for_among_routes_of_its_scope() {
    let mut node = node();
    for (index, addr, len) in [(2, [10, 1, 0, 1], 24), (1, [10, 251, 0, 1], 32)] {
        let message = request(RTM_NEWADDR, flag::CREATE | flag::EXCL, |w| {
            w.fixed(&[AF_INET, len, 0, 0, index, 0, 0, 0]);
            w.put(IFA_LOCAL, &addr);
        });
        assert_eq!(refusal(&mut node, true, &message).0, 0);
    }
    let error = |kind, scope, addr: [u8; 4]| {
        request(RTM_NEWROUTE, flag::CREATE | flag::EXCL, |w| {
            w.fixed(&[AF_INET, 32, 0, 0, RT_TABLE_MAIN as u8, 3, scope, kind, 0, 0, 0, 0]);
            w.put(RTA_DST, &addr);
        })
    };
    for (kind, scope, last) in
        [(RTN_BLACKHOLE, RT_SCOPE_UNIVERSE, 8), (RTN_BLACKHOLE, RT_SCOPE_LINK, 7), (RTN_PROHIBIT, RT_SCOPE_LINK, 6)]
    {
        assert_eq!(refusal(&mut node, true, &error(kind, scope, [10, 1, 0, last])).0, 0);
    }
    let via = |net: u8, addr: [u8; 4], flags: u32| {
        request(RTM_NEWROUTE, flag::CREATE | flag::EXCL, |w| {
            w.fixed(&[AF_INET, 16, 0, 0, RT_TABLE_MAIN as u8, 3, RT_SCOPE_UNIVERSE, RTN_UNICAST]);
            w.fixed(&flags.to_ne_bytes());
            w.put(RTA_DST, &[10, net, 0, 0]);
            w.put(RTA_GATEWAY, &addr);
            w.put_u32(RTA_OIF, 2);
        })
    };
    for (net, addr, flags, want) in [
        (90, [10, 1, 0, 8], 0, 0),
        (91, [10, 1, 0, 7], 0, errno::EINVAL),
        (92, [10, 1, 0, 6], 0, errno::EACCES),
        (93, [10, 251, 0, 1], RTNH_F_ONLINK, errno::EINVAL),
        (94, [255, 255, 255, 255], RTNH_F_ONLINK, errno::EINVAL),
        (95, [10, 251, 0, 2], RTNH_F_ONLINK, 0),
    ] {
        assert_eq!(refusal(&mut node, true, &via(net, addr, flags)).0, want, "{addr:?}");
    }
    check(&node);
}

/// `ip rule add from all …` has a source address of length 0.
#[test]
fn rule_with_an_address_of_length_0_is_without_it() {
    let rule = |kind, src_len, addr: &[u8]| {
        request(kind, flag::CREATE | flag::EXCL, |w| {
            w.fixed(&[AF_INET, 0, src_len, 0, 100, 0, 0, 1, 0, 0, 0, 0]);
            w.put_u32(FRA_PRIORITY, 60);
            w.put(FRA_SRC, addr);
            w.put(FRA_DST, addr);
        })
    };
    let mut node = node();
    for kind in [RTM_NEWRULE, RTM_DELRULE] {
        let (errno, text) = refusal(&mut node, true, &rule(kind, 33, &[10, 1, 0, 0]));
        assert!(errno == errno::EINVAL && text.contains("Invalid src address"), "{text}");
        assert_eq!(refusal(&mut node, true, &rule(kind, 0, &[0; 4])).0, 0, "{kind}");
    }
    assert_eq!(refusal(&mut node, true, &rule(RTM_DELRULE, 0, &[])).0, errno::ENOENT);
}

/// Mode `eui64` is no change where the link-local addresses are as in that mode; no link makes addresses in another mode.
#[test]
fn addrgenmode_eui64_is_taken_where_it_is_so_already() {
    let set = |node: &mut Rtnl<RecordingBackend>, mode: u8| {
        let message = request(RTM_NEWLINK, 0, |w| {
            w.fixed(&[0; 4]);
            w.fixed(&2_u32.to_ne_bytes());
            w.fixed(&[0; 8]);
            w.nest(IFLA_AF_SPEC, |w| w.nest(AF_INET6.into(), |w| w.put_u8(IFLA_INET6_ADDR_GEN_MODE, mode)));
        });
        refusal(node, true, &message).0
    };
    let change = |node: &mut Rtnl<RecordingBackend>, kind, addr: &str| {
        let message = request(kind, flag::CREATE, |w| {
            w.fixed(&[AF_INET6, 64, IFA_F_NODAD as u8, 0, 2, 0, 0, 0]);
            w.put_ip(IFA_LOCAL, addr.parse().unwrap());
        });
        assert_eq!(refusal(node, true, &message).0, 0, "{addr}");
    };
    let (eui64, other) = ("fe80::ff:fe00:101", "fe80::1");
    let mut node = node();
    let modes = |node: &mut Rtnl<RecordingBackend>| [0, 1, 2, 3].map(|mode| set(node, mode));
    let refused = errno::EOPNOTSUPP;
    assert_eq!(modes(&mut node), [0, 0, refused, refused], "no link-local address");
    change(&mut node, RTM_NEWADDR, other);
    assert_eq!(modes(&mut node), [refused, 0, refused, refused], "{other}");
    change(&mut node, RTM_NEWADDR, eui64);
    assert_eq!(modes(&mut node), [0, 0, refused, refused], "{other} and {eui64}");
    change(&mut node, RTM_DELADDR, other);
    assert_eq!(modes(&mut node), [0, 0, refused, refused], "{eui64}");
    check(&node);
}

/// A setting without effect does not take the other settings of its request with it.
#[test]
fn bridge_request_with_snooping_and_a_delay_is_carried_out() {
    let mut node = node();
    let bridge = |kind, index: u32, snooping, delay| {
        request(kind, if index == 0 { flag::CREATE | flag::EXCL } else { 0 }, |w| {
            w.fixed(&[0; 4]);
            w.fixed(&index.to_ne_bytes());
            w.fixed(&[0; 8]);
            w.put_str(IFLA_IFNAME, "br0");
            w.nest(IFLA_LINKINFO, |w| {
                w.put_str(IFLA_INFO_KIND, "bridge");
                w.nest(IFLA_INFO_DATA, |w| {
                    w.put_u8(IFLA_BR_MCAST_SNOOPING, snooping);
                    w.put_u32(IFLA_BR_FORWARD_DELAY, delay);
                });
            });
        })
    };
    assert_eq!(refusal(&mut node, true, &bridge(RTM_NEWLINK, 0, 1, 400)).0, 0);
    let id = node.model.index_of("br0").unwrap();
    let delay = |node: &Rtnl<RecordingBackend>| match &node.model.link(id).unwrap().config.kind {
        LinkKind::Bridge(config) => config.forward_delay.as_millis(),
        kind => panic!("{kind:?}"),
    };
    assert_eq!(delay(&node), 4000);
    // Linux has no limits while the spanning tree protocol is off.
    for (ticks, want) in [(0, 0), (1500, 15_000), (u32::MAX, 42_949_672_950)] {
        let index = node.model.ifindex(id).0;
        assert_eq!(refusal(&mut node, true, &bridge(RTM_NEWLINK, index, 1, ticks)).0, 0, "{ticks}");
        assert_eq!(delay(&node), want, "{ticks}");
    }
    let saved = node.saved().unwrap();
    let attr = [&8_u16.to_ne_bytes()[..], &IFLA_BR_FORWARD_DELAY.to_ne_bytes(), &u32::MAX.to_ne_bytes()].concat();
    let is_saved = saved.iter().any(|saved| saved.message.windows(8).any(|bytes| bytes == attr));
    assert!(is_saved, "{saved:?}");
}

#[test]
fn new_udp_link_is_bound_to_its_local_address() {
    let add = |address: Option<&[u8]>| {
        request(RTM_NEWLINK, flag::CREATE | flag::EXCL, |w| {
            w.fixed(&[0; 16]);
            w.put_str(IFLA_IFNAME, "wan");
            if let Some(address) = address {
                w.put(IFLA_ADDRESS, address);
            }
            w.nest(IFLA_LINKINFO, |w| w.put_str(IFLA_INFO_KIND, "udp"));
        })
    };
    for wrong in [None, Some(&[] as &[u8]), Some(&[0; 4]), Some(&[0; 6]), Some(&[0; 16]), Some(&[224, 0, 0, 1])] {
        let (errno, text) = refusal(&mut node(), true, &add(wrong));
        assert!(
            errno == errno::EOPNOTSUPP && text.contains("address that its socket is bound to"),
            "{wrong:?}: {text}"
        );
    }
    let v6 = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    for (address, want) in [(&[192, 0, 2, 1][..], "192.0.2.1:4500"), (&v6, "[2001:db8::1]:4500")] {
        let mut node = node();
        assert_eq!(refusal(&mut node, true, &add(Some(address))).0, 0);
        let index = node.model.index_of("wan").unwrap();
        let link = node.model.link(index).unwrap();
        assert_eq!(link.config.kind, LinkKind::Driver(DriverKind::Udp { bind: want.parse().unwrap() }));
        assert_eq!(link.addresses.len(), 1);
        check(&node);
    }
}

#[test]
fn malformed_requests_get_linuxs_errno() {
    let cases: [(&str, Vec<u8>, i32); 8] = [
        ("no header", request(RTM_NEWROUTE, flag::CREATE, |w| w.fixed(&[AF_INET, 0, 0, 0])), errno::EINVAL),
        ("a short number", route(|w| w.put(RTA_PRIORITY, &[1])), errno::ERANGE),
        ("a short address", route(|w| w.put(RTA_GATEWAY, &[1, 2])), errno::ERANGE),
        ("a torn nest", route(|w| w.put(RTA_METRICS, &[1, 2])), errno::ERANGE),
        ("no such link", route(|w| w.put_u32(RTA_OIF, 77)), errno::ENODEV),
        (
            "no such type",
            request(RTM_NEWROUTE, flag::CREATE, |w| w.fixed(&[AF_INET, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0])),
            errno::EINVAL,
        ),
        ("no name", request(RTM_NEWLINK, flag::CREATE, |w| w.fixed(&[0; 16])), errno::EINVAL),
        ("nobody's address", request(RTM_DELADDR, 0, |w| w.fixed(&[AF_INET, 32, 0, 0, 9, 0, 0, 0])), errno::ENODEV),
    ];
    for (what, datagram, want) in cases {
        assert_eq!(refusal(&mut node(), true, &datagram).0, want, "{what}");
    }
    // A payload without a family is ignored.
    assert_eq!(refusal(&mut node(), true, &request(RTM_NEWROUTE, 0, |_| {})).0, 0);
}

#[test]
fn dump_resumes_at_its_position_after_changes() {
    let mut node = node();
    let mut session = session(true);
    let with = |third: u8, kind: u16| {
        let mut datagram = route(|_| {});
        datagram[4..6].copy_from_slice(&kind.to_ne_bytes());
        (datagram[17], datagram[34]) = (24, third);
        datagram
    };
    for third in 0..200 {
        assert_eq!(answers(&mut session, &mut node, &with(third, RTM_NEWROUTE)).len(), 1);
    }
    let mut other = self::session(true);
    let dump = request(RTM_GETROUTE, flag::DUMP, |w| w.fixed(&[AF_INET, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    let (mut outbox, mut seen, mut turn) = (Outbox::default(), Vec::new(), 0);
    session.handle(&dump, &mut node, Groups::default(), &mut outbox);
    loop {
        for (_, bytes) in outbox.iter() {
            assert!(bytes.len() <= 3776);
            let routes = Messages::new(bytes).filter(|m| m.header.kind == RTM_NEWROUTE && m.payload()[8..12] == [0; 4]);
            seen.extend(routes.filter(|m| m.payload()[1] == 24).map(|m| m.payload()[26]));
        }
        outbox.clear();
        if !session.is_dumping() {
            break;
        }
        // Odd routes are removed, from the end; even ones stay.
        let odd = 199 - 2 * turn;
        turn += 1;
        assert_eq!(answers(&mut other, &mut node, &with(odd, RTM_DELROUTE)).len(), 1);
        session.continue_dump(&mut node, &mut outbox);
    }
    assert!(turn > 1, "{turn}");
    let evens: Vec<u8> = seen.iter().copied().filter(|third| third % 2 == 0).collect();
    assert_eq!(evens, (0..200).step_by(2).collect::<Vec<u8>>());
    check(&node);
}

#[test]
fn dump_of_100000_routes_has_each_stable_route_once() {
    const COUNT: u32 = 100_000;
    let mut node = node();
    let mut session = session(true);
    // Even routes stay, odd ones are added and removed.
    let with = |number: u32, kind: u16| {
        let mut datagram = route(|_| {});
        datagram[4..6].copy_from_slice(&kind.to_ne_bytes());
        datagram[17] = 32;
        datagram[32..36].copy_from_slice(&(0x0a00_0000 + number).to_be_bytes());
        datagram
    };
    for number in (0..2 * COUNT).filter(|number| number % 2 == 0 || number % 10 == 1) {
        assert_eq!(answers(&mut session, &mut node, &with(number, RTM_NEWROUTE)).len(), 1);
    }
    let mut other = self::session(true);
    let dump = request(RTM_GETROUTE, flag::DUMP, |w| w.fixed(&[AF_INET, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    session.set_recv_len(32 << 10);
    let (mut outbox, mut seen, mut parts, mut state) = (Outbox::default(), vec![0_u8; 2 * COUNT as usize], 0, 1_u64);
    session.handle(&dump, &mut node, Groups::default(), &mut outbox);
    loop {
        for message in outbox.iter().flat_map(|(_, bytes)| Messages::new(bytes)) {
            assert!(!message.header.has(flag::DUMP_INTR), "Linux says that of no dump of routes");
            let payload = message.payload();
            if message.header.kind == RTM_NEWROUTE && payload[1] == 32 {
                let to = payload.windows(8).find(|it| it[..4] == [8, 0, 1, 0]).map(|it| [it[4], it[5], it[6], it[7]]);
                let number = u32::from_be_bytes(to.unwrap()).wrapping_sub(0x0a00_0000);
                seen.get_mut(number as usize).into_iter().for_each(|times| *times += 1);
            }
        }
        outbox.clear();
        if !session.is_dumping() {
            break;
        }
        parts += 1;
        for turn in 0..64_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let odd = (state >> 33) as u32 % COUNT * 2 + 1;
            let kind = if turn % 2 == 0 { RTM_NEWROUTE } else { RTM_DELROUTE };
            // Both requests fail if the route exists, or does not exist, already.
            assert_eq!(answers(&mut other, &mut node, &with(odd, kind)).len(), 1);
        }
        session.continue_dump(&mut node, &mut outbox);
    }
    assert!(parts > 100, "{parts} parts");
    let wrong = |(number, times): &(usize, &u8)| if number % 2 == 0 { **times != 1 } else { **times > 1 };
    assert_eq!(seen.iter().enumerate().find(wrong), None);
    assert!(seen.iter().skip(1).step_by(2).any(|&times| times == 1), "some of the others are seen");
    check(&node);
}

#[test]
fn address_with_two_peers_stays_until_both_are_removed() {
    let mut node = node();
    let mut session = session(true);
    let request = |kind, peer: u8| {
        request(kind, flag::CREATE | flag::EXCL, |w| {
            w.fixed(&[AF_INET, 32, 0, 0, 2, 0, 0, 0]);
            w.put(IFA_LOCAL, &[10, 8, 0, 1]);
            w.put(IFA_ADDRESS, &[10, 8, 0, peer]);
        })
    };
    for (kind, peer, left) in [(RTM_NEWADDR, 2, 1), (RTM_NEWADDR, 3, 2), (RTM_DELADDR, 2, 1), (RTM_DELADDR, 3, 0)] {
        answers(&mut session, &mut node, &request(kind, peer));
        assert_eq!(node.backend.addresses.len(), left, "{kind} {peer}");
        check(&node);
    }
}

#[test]
fn datagram_full_of_dump_requests_gets_a_bounded_answer() {
    let dump = request(RTM_GETLINK, flag::DUMP, |w| w.fixed(&[0; 16]));
    let datagram = dump.repeat((64 << 10) / dump.len());
    let (mut node, mut outbox) = (node(), Outbox::default());
    session(false).handle(&datagram, &mut node, Groups::default(), &mut outbox);
    let size: usize = outbox.iter().map(|(_, bytes)| bytes.len()).sum();
    let refused = outbox.iter().flat_map(|(_, bytes)| Messages::new(bytes));
    let refused = refused.filter(|m| m.payload().starts_with(&(-errno::ENOBUFS).to_ne_bytes())).count();
    assert!(size < 512 << 10 && refused > 100, "{size} bytes, {refused} refused");
    // The next datagram is processed again.
    assert!(answers(&mut session(false), &mut node, &dump).len() > 1);
}

/// Recorded request, with replaced bytes and optional truncation.
type Mutated = (Index, Vec<(Index, u8)>, Option<Index>);

fn mutated() -> impl Strategy<Value = Mutated> {
    let changes = prop::collection::vec((any::<Index>(), any::<u8>()), 0..4);
    (any::<Index>(), changes, prop::option::weighted(0.1, any::<Index>()))
}

proptest! {
    #[test]
    fn mutated_requests_leave_datapath_and_model_equal(requests in prop::collection::vec(mutated(), 1..60)) {
        let recorded = recorded();
        let mut node = node();
        let mut session = session(true);
        for (which, changes, end) in requests {
            let mut datagram = which.get(&recorded).clone();
            for (at, byte) in changes {
                let at = at.index(datagram.len());
                datagram[at] = byte;
            }
            if let Some(end) = end {
                datagram.truncate(end.index(datagram.len()));
            }
            answers(&mut session, &mut node, &datagram);
            check(&node);
        }
    }
}
