//! Saved state of a node, which restores an equal node.

use std::collections::BTreeSet;

use base::IfIndex;
use netlink::error::errno;
use netlink::message::{HEADER_LEN, Header, Writer, flag};
use netlink::rtnl::nums::*;
use netlink::rtnl::{Backend, LOOPBACK, Link, Model, Route, Rtnl, renumber, without};
use netlink::xfrm::saved_defaults;
use netlink::{Error, Groups, Outbox, Session, carry_out, flags_of, set_flags};

use crate::common::node::{RecordingBackend, check, node};
use crate::common::recording::recorded;
use packet::Allocations;

#[global_allocator]
static ALLOCATIONS: Allocations = Allocations;

/// Persistent state of a node, as netlink clients see it.
fn seen(node: &mut Rtnl<RecordingBackend>) -> String {
    let number = |id: u32| node.model.ifindex(id).0;
    let links = node.model.links_after(0).map(|(id, link)| {
        let Link { config, mtu, mac, up, addresses, group, alias, txqlen, master, qdisc, .. } = link;
        let (index, master) = (number(id), master.map(|master| (number(master.index), master.table)));
        format!(
            "{index} {} {:?} {mtu} {mac:?} {up} {addresses:#?} {group} {alias:?} {txqlen} {master:?} {qdisc:?}\n",
            config.name, config.kind
        )
    });
    let links: String = links.collect();
    let routes = node.model.routes();
    let routes: Vec<_> =
        routes.map(|(table, route)| (table, Route { dev: number(route.dev), ..route.clone() })).collect();
    let neighbours = node.backend.neighbours().unwrap().into_iter();
    let kept: Vec<_> = neighbours.filter(|it| it.state == NUD_PERMANENT).collect();
    let rules: Vec<_> =
        node.saved().unwrap().into_iter().filter(|saved| saved.noun == "rule").map(|saved| saved.message).collect();
    format!("{links}{routes:#?}{kept:?}{rules:?}")
}

/// Node restored from the saved state of another one.
fn again(of: &mut Rtnl<RecordingBackend>) -> Rtnl<RecordingBackend> {
    let mut node = Rtnl { model: Model::default(), backend: RecordingBackend::default() };
    for saved in of.saved().unwrap() {
        assert_eq!(carry_out(&mut node, &saved.message), Ok(()), "{}", saved.label);
    }
    node
}

/// Replays all recorded requests on a node, and calls `look` after each.
fn after_each(mut look: impl FnMut(&mut Rtnl<RecordingBackend>)) {
    let mut node = node();
    let mut session = Session::new(true);
    for datagram in recorded() {
        session.handle(&datagram, &mut node, Groups::default(), &mut Outbox::default());
        while session.is_dumping() {
            session.continue_dump(&mut node, &mut Outbox::default());
        }
        look(&mut node);
    }
}

/// Nouns of recorded requests; rules were not recorded.
const NOUNS: [&str; 5] = ["address", "link", "neighbour", "qdisc", "route"];

#[test]
fn saved_state_after_each_request_restores_an_equal_node() {
    let mut saved = BTreeSet::new();
    after_each(|node| {
        saved.extend(node.saved().unwrap().into_iter().map(|saved| saved.noun));
        let mut copy = again(node);
        assert_eq!(seen(&mut copy), seen(node));
        check(&copy);
    });
    assert_eq!(saved.into_iter().collect::<Vec<_>>(), NOUNS);
}

#[test]
fn links_keep_their_names_where_their_numbers_change() {
    let mut numbers = BTreeSet::new();
    after_each(|node| {
        for saved in node.saved().unwrap() {
            let mut message = saved.message.clone();
            renumber(&mut message, |old| Some(old + 70), |_| true).unwrap();
            if message != saved.message {
                numbers.insert(saved.noun);
                assert_eq!(message.len(), saved.message.len());
            }
            if message != saved.message && saved.noun != "link" {
                let number = renumber(&mut message, |_| None, |_| false).unwrap_err();
                assert!(node.model.link(number - 70).is_some(), "{}: {number}", saved.label);
                renumber(&mut message, |old| Some(old - 70), |_| false).unwrap();
                assert_eq!(message, saved.message);
            }
            // Truncated to any length, the message is not accessed beyond its end.
            for len in 0..saved.message.len() {
                let _ = renumber(&mut saved.message[..len].to_vec(), |_| Some(u32::MAX), |_| true);
            }
        }
    });
    // The request for a link on an interface of the host, such as eth0, contains no index.
    let with_numbers = NOUNS.into_iter().filter(|noun| *noun != "link");
    assert_eq!(numbers.into_iter().collect::<Vec<_>>(), with_numbers.collect::<Vec<_>>());
}

#[test]
fn saved_link_keeps_its_number_unless_taken() {
    let mut before = node();
    let saved = before.saved().unwrap().remove(0);
    for (taken, want) in [(false, 2), (true, 3)] {
        let mut node =
            if taken { node() } else { Rtnl { model: Model::default(), backend: RecordingBackend::default() } };
        let mut message = saved.message.clone();
        // A second link under another name of the same length.
        let at = message.windows(4).position(|four| four == b"eth0").unwrap();
        message[at..at + 4].copy_from_slice(b"eth9");
        let is_taken = |number| node.model.is_taken(number);
        renumber(&mut message, |_| None, is_taken).unwrap();
        assert_eq!(carry_out(&mut node, &message), Ok(()));
        assert_eq!(node.model.index_of("eth9"), Some(want));
    }
}

/// Request for link 1, with one attribute.
fn of_lo(kind: u16, flags: u16, fixed: &[u8], attribute: u16, data: &[u8]) -> Vec<u8> {
    let mut message = vec![0; HEADER_LEN];
    message.extend_from_slice(fixed);
    message.extend_from_slice(&(4 + data.len() as u16).to_ne_bytes());
    message.extend_from_slice(&attribute.to_ne_bytes());
    message.extend_from_slice(data);
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    message
}

#[test]
fn lo_is_up_again_with_its_addresses() {
    let up =
        of_lo(RTM_NEWLINK, flag::REQUEST, &[0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0], IFLA_GROUP, &[7, 0, 0, 0]);
    let made = flag::REQUEST | flag::CREATE | flag::EXCL;
    let address = of_lo(RTM_NEWADDR, made, &[AF_INET, 32, 0, 0, 1, 0, 0, 0], IFA_LOCAL, &[10, 255, 0, 1]);
    for requests in [vec![&up], vec![&address], vec![&address, &up], vec![&up, &address]] {
        let mut before = node();
        for request in &requests {
            assert_eq!(carry_out(&mut before, request), Ok(()));
        }
        let mut copy = again(&mut before);
        assert_eq!(seen(&mut copy), seen(&mut before), "{requests:?}");
        check(&copy);
        let lo = copy.model.link(LOOPBACK).unwrap();
        assert_eq!(
            (lo.up, lo.addresses.len()),
            match requests.len() {
                2 => (true, 3),
                _ if requests[0] == &up => (true, 2),
                _ => (false, 1),
            }
        );
    }
}

/// Request for the link with index `index`, with these attributes.
fn of_link(kind: u16, flags: u16, index: u32, up: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut fixed = vec![0; 4];
    for word in [index, up, up] {
        fixed.extend(word.to_ne_bytes());
    }
    for (at, (attribute, data)) in attributes.iter().enumerate() {
        let padding = vec![0; data.len().next_multiple_of(4) - data.len()];
        let head = [(4 + data.len() as u16).to_ne_bytes(), attribute.to_ne_bytes()].concat();
        if at + 1 < attributes.len() {
            fixed.extend([&head[..], data, &padding].concat());
        }
    }
    let (last, data) = attributes.last().unwrap();
    of_lo(kind, flag::REQUEST | flags, &fixed, *last, data)
}

/// Request for a VRF with that name and table.
fn vrf(name: &[u8; 4], table: u32) -> Vec<u8> {
    let data = [8_u16.to_ne_bytes(), IFLA_VRF_TABLE.to_ne_bytes()].concat();
    let data = [&data[..], &table.to_ne_bytes()].concat();
    let kind = [8_u16.to_ne_bytes(), IFLA_INFO_KIND.to_ne_bytes(), *b"vr", *b"f\0"].concat();
    let info = [&kind[..], &12_u16.to_ne_bytes(), &IFLA_INFO_DATA.to_ne_bytes(), &data];
    of_link(RTM_NEWLINK, flag::CREATE | flag::EXCL, 0, 0, &[(IFLA_IFNAME, name), (IFLA_LINKINFO, &info.concat())])
}

#[test]
fn rules_are_there_again_with_their_selectors() {
    let mut before = node();
    let rule = |priority: u32, [dst_len, src_len, tos, action]: [u8; 4], inverted: u8, more: &dyn Fn(&mut Writer)| {
        let mut w = Writer::default();
        let flags = flag::REQUEST | flag::CREATE | flag::EXCL;
        w.message(Header { kind: RTM_NEWRULE, flags, seq: 1, port: 0 }, |w| {
            w.fixed(&[AF_INET, dst_len, src_len, tos, 100, 0, 0, action, inverted, 0, 0, 0]);
            w.put_u32(FRA_PRIORITY, priority);
            more(w);
        });
        w.into_bytes()
    };
    let ports = |first: u16, last: u16| [first.to_ne_bytes(), last.to_ne_bytes()].concat();
    let rules = [
        rule(70, [16, 24, 0x10, 1], 2, &|w| {
            w.put(FRA_DST, &[10, 2, 0, 0]);
            w.put(FRA_SRC, &[10, 1, 0, 0]);
            w.put_str(FRA_IIFNAME, "eth0");
            w.put_u8(FRA_IP_PROTO, 17);
            w.put(FRA_SPORT_RANGE, &ports(5, 6));
            w.put(FRA_DPORT_RANGE, &ports(53, 53));
            w.put_u32(FRA_SUPPRESS_PREFIXLEN, 8);
        }),
        rule(71, [0, 0, 0, 2], 0, &|w| w.put_u32(FRA_GOTO, 90)),
        rule(72, [0, 0, 0, 1], 0, &|w| w.put_str(FRA_IIFNAME, "late")),
        rule(73, [0, 0, 0, 3], 0, &|_| {}),
    ];
    for request in &rules {
        assert_eq!(carry_out(&mut before, request), Ok(()), "{request:?}");
    }
    let mut copy = again(&mut before);
    assert_eq!(copy.model.rules(true), before.model.rules(true));
    assert_eq!(copy.model.rules(true).len(), 3 + rules.len());
    assert_eq!(seen(&mut copy), seen(&mut before));
}

/// Index of a VRF that is the next link of a node with eth0.
const RED: u32 = IfIndex::FIRST_OWN + 3;

#[test]
fn vrfs_are_there_again_with_their_links_rules_and_routes() {
    let [none, to_red, to_blue] =
        [0_u32, RED, RED + 1].map(|index| of_link(RTM_NEWLINK, 0, 2, 0, &[(IFLA_MASTER, &index.to_ne_bytes())]));
    let address = of_lo(
        RTM_NEWADDR,
        flag::REQUEST | flag::CREATE | flag::EXCL,
        &[AF_INET, 24, 0, 0, 2, 0, 0, 0],
        IFA_LOCAL,
        &[10, 1, 0, 1],
    );
    let up = of_link(RTM_NEWLINK, 0, RED, IFF_UP, &[(IFLA_MTU, &2000_u32.to_ne_bytes())]);
    let delete = of_link(RTM_DELLINK, 0, RED, 0, &[(IFLA_GROUP, &[0; 4])]);
    let any = [AF_INET, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let no_rule = of_lo(RTM_DELRULE, flag::REQUEST, &any, FRA_PRIORITY, &1000_u32.to_ne_bytes());
    let (red, blue) = (vrf(b"red\0", 10), vrf(b"blue", 20));
    // Requests, then the table of eth0 and the number of rules that look up VRF tables.
    let steps = [
        (vec![&red, &address, &to_red, &up], Some(10), 2),
        (vec![&red, &blue, &address, &to_red, &to_blue], Some(20), 2),
        (vec![&red, &address, &to_red, &none], None, 2),
        (vec![&red, &blue, &address, &to_red, &delete], None, 2),
        (vec![&red, &no_rule, &address, &to_red], Some(10), 1),
    ];
    for (requests, table, l3mdev_rules) in steps {
        let mut before = node();
        for request in &requests {
            assert_eq!(carry_out(&mut before, request), Ok(()), "{request:?}");
            check(&before);
        }
        assert_eq!(before.model.link(2).unwrap().master.and_then(|master| master.table), table);
        let connected = before.model.routes().find(|(_, route)| route.kind == RTN_UNICAST && route.dev == 2);
        assert_eq!(connected.map(|(id, _)| id.0), Some(table.unwrap_or(254)));
        assert_eq!(before.backend.l3mdev.iter().sum::<usize>(), l3mdev_rules);
        let mut copy = again(&mut before);
        assert_eq!(seen(&mut copy), seen(&mut before));
        assert_eq!(copy.backend.l3mdev, before.backend.l3mdev);
        check(&copy);
        // Interface indexes may differ after a restart.
        for saved in before.saved().unwrap().iter().filter(|saved| saved.noun == "link of a VRF") {
            let mut message = saved.message.clone();
            renumber(&mut message, |old| Some(old + 70), |_| true).unwrap();
            let vrf = before.model.link(2).unwrap().master.unwrap().index;
            let numbers = [72, before.model.ifindex(vrf).0 + 70].map(u32::to_ne_bytes);
            assert!(numbers.iter().all(|number| message.windows(4).any(|four| four == *number)), "{message:?}");
        }
    }
}

#[test]
fn saved_link_with_a_reserved_number_gets_another() {
    let saved = node().saved().unwrap().remove(0);
    let last = IfIndex::FIRST_OWN + 65535;
    for (number, want) in
        [(2, 2), (IfIndex::FIRST_OWN - 1, IfIndex::FIRST_OWN - 1), (last, last), (last + 1, 0), (u32::MAX, 0)]
    {
        let mut message = saved.message.clone();
        message[HEADER_LEN + 4..][..4].copy_from_slice(&u32::to_ne_bytes(number));
        renumber(&mut message, |_| None, |_| false).unwrap();
        assert_eq!(message[HEADER_LEN + 4..][..4], u32::to_ne_bytes(want));
    }
}

const EQUALS: [u8; 4] = [RTN_BLACKHOLE, RTN_UNREACHABLE, RTN_PROHIBIT, RTN_THROW];

/// Request for a route of that kind; all have the same prefix and metric.
fn route(kind: u8, flags: u16) -> Vec<u8> {
    let mut node = Rtnl { model: Model::default(), backend: RecordingBackend::default() };
    let mut message = 36_u32.to_ne_bytes().to_vec();
    message.extend(RTM_NEWROUTE.to_ne_bytes());
    message.extend((flag::REQUEST | flag::CREATE | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend([AF_INET, 16, 0, 0, 254, 4, 0, kind, 0, 0, 0, 0]);
    message.extend([8_u16.to_ne_bytes(), RTA_DST.to_ne_bytes(), [10, 99], [0, 0]].concat());
    assert_eq!(carry_out(&mut node, &message), Ok(()));
    message
}

fn kinds(node: &Rtnl<RecordingBackend>) -> Vec<u8> {
    node.model.routes().map(|(_, route)| route.kind).collect()
}

fn of_kinds(kinds: &[u8]) -> Rtnl<RecordingBackend> {
    let mut node = Rtnl { model: Model::default(), backend: RecordingBackend::default() };
    kinds.iter().for_each(|&kind| carry_out(&mut node, &route(kind, flag::APPEND)).unwrap());
    node
}

#[test]
fn saved_routes_next_to_an_existing_one_keep_their_order() {
    // All orders of four routes, with one or two of them existing.
    let mut orders = vec![vec![]];
    for _ in 0..4 {
        let more = |order: &Vec<u8>| {
            let left = EQUALS.into_iter().filter(|kind| !order.contains(kind));
            left.map(|kind| [&order[..], &[kind]].concat()).collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(more).collect();
    }
    assert_eq!(orders.len(), 24);
    for order in orders {
        for there in [&order[..1], &order[1..2], &order[2..3], &order[3..], &order[1..3]] {
            let mut before = of_kinds(there);
            let canonical = |mut message: Vec<u8>| {
                set_flags(&mut message, 0);
                message
            };
            let of_files: Vec<_> =
                before.saved().unwrap().iter().map(|saved| canonical(saved.message.to_vec())).collect();
            let all = of_kinds(&order).saved().unwrap();
            let saved = without(all, |saved| of_files.contains(&canonical(saved.message.to_vec())));
            assert_eq!(saved.len(), 4 - there.len());
            for saved in saved {
                assert_eq!(carry_out(&mut before, &saved.message), Ok(()));
            }
            assert_eq!(kinds(&before), order, "{there:?}");
        }
    }
}

/// Other clients wait for a snapshot, and not for its requests.
#[test]
fn snapshot_allocates_nothing_for_a_route() {
    let mut node = Rtnl { model: Model::default(), backend: RecordingBackend::default() };
    let request = route(RTN_BLACKHOLE, flag::EXCL);
    let mut allocations = [0, 0];
    for (count, allocations) in [1_u16, 2000].into_iter().zip(&mut allocations) {
        for n in node.model.routes().count() as u16..count {
            let mut message = request.clone();
            let last = message.len() - 4;
            message[last..last + 2].copy_from_slice(&n.to_be_bytes());
            carry_out(&mut node, &message).unwrap();
        }
        let before = Allocations::of_thread();
        let snapshot = node.snapshot().unwrap();
        *allocations = Allocations::of_thread() - before;
        assert_eq!(snapshot.requests().iter().filter(|saved| saved.noun == "route").count(), usize::from(count));
    }
    assert_eq!(allocations[0], allocations[1]);
    // What changes later is not in it.
    let snapshot = node.snapshot().unwrap();
    let before = node.saved().unwrap();
    carry_out(&mut node, &route(RTN_THROW, flag::APPEND)).unwrap();
    assert_eq!(snapshot.requests(), before);
    assert_ne!(node.saved().unwrap(), before);
}

#[test]
fn saved_routes_are_refused_next_to_an_unknown_route() {
    let all = of_kinds(&EQUALS).saved().unwrap();
    let saved = without(all.clone(), |_| false);
    assert_eq!(saved, all);
    let flags: Vec<_> = saved.iter().map(|saved| flags_of(&saved.message) & (flag::EXCL | flag::APPEND)).collect();
    assert_eq!(flags, [flag::EXCL, flag::APPEND, flag::APPEND, flag::APPEND]);
    let mut other = of_kinds(&[RTN_THROW]);
    assert_eq!(carry_out(&mut other, &saved[0].message), Err(Error::new(errno::EEXIST)));
}

#[test]
fn a_saved_default_leaves_the_other_directions_as_they_are() {
    // `struct xfrm_userpolicy_default`: in, fwd, out; 1 is `XFRM_USERPOLICY_BLOCK`.
    for (block, want) in
        [([true, false, false], [1, 0, 0]), ([false, true, false], [0, 0, 1]), ([true, false, true], [1, 1, 0])]
    {
        assert_eq!(saved_defaults(block).message[HEADER_LEN..][..3], want);
    }
}

#[test]
fn encapsulation_of_a_route_is_saved() {
    let mut near = node();
    let encap = ila::RouteEncap {
        locator: ila::Locator(0xfd00_0000_0000_0007),
        csum_mode: ila::CsumMode::NeutralMap,
        ident_type: ila::IdentType::Luid,
        hook_type: ila::HookType::Input,
    };
    let dev = near.model.links_after(LOOPBACK).next().map(|(index, _)| near.model.ifindex(index)).unwrap();
    let mut w = Writer::default();
    let header = Header { kind: RTM_NEWROUTE, flags: flag::REQUEST | flag::CREATE, seq: 1, port: 0 };
    w.message(header, |w| {
        w.fixed(&[AF_INET6, 16, 0, 0, RT_TABLE_MAIN as u8, RTPROT_STATIC, 0, RTN_UNICAST, 0, 0, 0, 0]);
        w.put_ip(RTA_DST, "3333::".parse().unwrap());
        w.put_u32(RTA_OIF, dev.0);
        w.nest(RTA_ENCAP, |w| {
            w.put(1, &encap.locator.0.to_be_bytes());
            w.put_u8(7, encap.csum_mode as u8);
            w.put_u8(8, encap.ident_type as u8);
            w.put_u8(9, encap.hook_type as u8);
        });
        w.put_u16(RTA_ENCAP_TYPE, 3);
    });
    assert_eq!(carry_out(&mut near, &w.into_bytes()), Ok(()));
    let now = again(&mut near);
    let found: Vec<_> = now.model.routes().filter_map(|(_, route)| route.encap).collect();
    assert_eq!(found, [encap]);
}
