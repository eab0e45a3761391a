//! Interface indexes, by which clients refer to links.

use base::{IfIndex, PortId};
use ctl::state::LinkStats;
use netlink::error::errno;
use netlink::message::{HEADER_LEN, Header, Writer, flag};
use netlink::rtnl::nums::*;
use netlink::rtnl::{LOOPBACK, LinkNow, Rtnl};
use netlink::{Error, Groups, Outbox, carry_out};

use crate::common::node::{RecordingBackend, check, node};

/// Request with a `struct ifinfomsg` for the link with index `index`.
fn of_link(kind: u16, flags: u16, index: u32, attributes: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut w = Writer::with_capacity(4096);
    w.message(Header { kind, flags: flag::REQUEST | flags, ..Header::default() }, |w| {
        w.fixed(&[0; 4]);
        [index, 0, 0].iter().for_each(|word| w.fixed(&word.to_ne_bytes()));
        attributes(w);
    });
    w.into_bytes()
}

/// Request for a new link of kind `kind` with the interface index `wish`; 0 for any.
fn add(name: &str, kind: &str, wish: u32) -> Vec<u8> {
    of_link(RTM_NEWLINK, flag::CREATE | flag::EXCL, wish, |w| {
        w.put_str(IFLA_IFNAME, name);
        w.nest(IFLA_LINKINFO, |w| {
            w.put_str(IFLA_INFO_KIND, kind);
            if kind == "vrf" {
                w.nest(IFLA_INFO_DATA, |w| w.put_u32(IFLA_VRF_TABLE, 10));
            }
        });
        if kind == "udp" {
            w.put(IFLA_ADDRESS, &[192, 0, 2, 1]);
        }
    })
}

/// Request for the address 10.1.0.1/24 on the link with index `index`.
fn add_address(index: u32) -> Vec<u8> {
    let mut w = Writer::with_capacity(4096);
    let flags = flag::REQUEST | flag::CREATE | flag::EXCL;
    w.message(Header { kind: RTM_NEWADDR, flags, ..Header::default() }, |w| {
        w.fixed(&[AF_INET, 24, 0, 0]);
        w.fixed(&index.to_ne_bytes());
        w.put(IFA_LOCAL, &[10, 1, 0, 1]);
    });
    w.into_bytes()
}

fn number_of(node: &Rtnl<RecordingBackend>, name: &str) -> Option<u32> {
    node.model.index_of(name).map(|id| node.model.ifindex(id).0)
}

fn refused(outcome: Result<(), Error>) -> (i32, String) {
    let error = outcome.expect_err("it is refused");
    (error.errno, error.text.map(|text| text.to_string()).unwrap_or_default())
}

#[test]
fn links_of_the_host_have_its_numbers_and_others_their_own() {
    let mut node = node();
    node.backend.host_index = Some(77);
    for (name, kind, wish) in [("red", "vrf", 0), ("wan", "udp", 0), ("eth1", "packet", 0), ("tun0", "tun", 20)] {
        assert_eq!(carry_out(&mut node, &add(name, kind, wish)), Ok(()), "{name}");
    }
    let numbers = ["lo", "eth0", "red", "wan", "eth1", "tun0"].map(|name| number_of(&node, name).unwrap());
    let own = IfIndex::FIRST_OWN;
    assert_eq!(numbers, [1, 2, own + 3, own + 4, 77, 20]);
    for (id, number) in (LOOPBACK..).zip(numbers) {
        assert_eq!(node.model.id_of(number), id);
    }
    // Each index refers to its link alone, and all other indexes refer to none.
    for none in [3, 4, 5, own, own + 1, own + 2, own + 5, own + 7, u32::MAX] {
        assert!(node.model.link(node.model.id_of(none)).is_none(), "{none}");
        assert_eq!(refused(carry_out(&mut node, &add_address(none))).0, errno::ENODEV, "{none}");
    }
    assert_eq!(carry_out(&mut node, &add_address(77)), Ok(()));
    let address = node.model.link(node.model.index_of("eth1").unwrap()).unwrap().addresses[0].addr;
    assert_eq!(address.to_string(), "10.1.0.1/24");
    check(&node);
}

#[test]
fn requested_link_number_is_granted_or_refused_by_name() {
    let mut node = node();
    let own = IfIndex::FIRST_OWN;
    assert_eq!(carry_out(&mut node, &add("red", "vrf", own + 9)), Ok(()));
    assert_eq!(number_of(&node, "red"), Some(own + 9));
    let first =
        "fatpath numbers links that are no interface of the host from 1000000002; up to 1000065535 as is wished";
    let of_host = "fatpath numbers eth1 as the host does, and its interface has number 10 there";
    let taken = "eth1: its interface has number 2 on the host, which is link eth0's";
    let reserved =
        "eth1: its interface has number 1000000009 on the host, and fatpath's own numbers begin at 1000000000";
    let cases = [
        ("blue", "vrf", 9, None, errno::EINVAL, first),
        ("blue", "vrf", own + 65536, None, errno::EINVAL, first),
        // This index is derived from the id of eth0.
        ("blue", "vrf", own + 2, None, errno::EBUSY, "number 1000000002 stands for the place of another link"),
        ("wan", "udp", u32::MAX, None, errno::EINVAL, first),
        ("eth1", "packet", 9, None, errno::EINVAL, of_host),
        // The index is in use, as with two links on one interface.
        ("eth1", "packet", 0, Some(2), errno::EBUSY, taken),
        ("eth1", "packet", 0, Some(own + 9), errno::EBUSY, reserved),
    ];
    for (name, kind, wish, host_index, errno, text) in cases {
        node.backend.host_index = host_index;
        assert_eq!(refused(carry_out(&mut node, &add(name, kind, wish))), (errno, text.to_owned()));
        assert_eq!(node.model.index_of(name), None, "{name}");
    }
}

#[test]
fn numbers_are_given_in_turn_and_begin_anew() {
    let mut node = node();
    let own = IfIndex::FIRST_OWN;
    let remove = |number| of_link(RTM_DELLINK, 0, number, |_| ());
    for number in 3..6 {
        assert_eq!(carry_out(&mut node, &add("red", "vrf", 0)), Ok(()));
        assert_eq!(number_of(&node, "red"), Some(own + number), "the number of a removed link is not given again");
        assert_eq!(carry_out(&mut node, &remove(own + number)), Ok(()));
    }
    assert_eq!(carry_out(&mut node, &add("last", "vrf", own + 65535)), Ok(()));
    assert_eq!(carry_out(&mut node, &add("red", "vrf", 0)), Ok(()));
    assert_eq!(number_of(&node, "red"), Some(own + 3), "after the highest number come free ones from the lowest on");
    assert_eq!(carry_out(&mut node, &add("blue", "vrf", 0)), Ok(()));
    assert_eq!(number_of(&node, "blue"), Some(own + 4));
    check(&node);
}

/// Interface index of the link in a message.
fn link_of(message: &[u8], kind: u16) -> u32 {
    let word = |at: usize| u32::from_ne_bytes(message[at..at + 4].try_into().unwrap());
    if kind != RTM_NEWROUTE {
        return word(HEADER_LEN + 4);
    }
    // Attributes follow `struct rtmsg`.
    let mut at = HEADER_LEN + 12;
    while message[at + 2..at + 4] != RTA_OIF.to_ne_bytes() {
        at += usize::from(u16::from_ne_bytes([message[at], message[at + 1]])).next_multiple_of(4);
    }
    word(at + 4)
}

/// Types of messages, each with the index of its link.
fn notified(outbox: &Outbox) -> Vec<(u16, u32)> {
    let kind = |message: &[u8]| u16::from_ne_bytes([message[4], message[5]]);
    outbox.iter().map(|(_, message)| (kind(message), link_of(message, kind(message)))).collect()
}

#[test]
fn link_that_is_another_interface_now_is_announced_as_new() {
    let mut node = node();
    assert_eq!(carry_out(&mut node, &add_address(2)), Ok(()));
    let now = LinkNow {
        id: PortId(2),
        host_index: Some(9),
        running: true,
        mtu: 1500,
        mac: None,
        stats: LinkStats::default(),
        queues: None,
        promiscuity: 0,
        allmulti: 0,
        bridging: None,
        carrier: [2, 1],
    };
    let mut all = Groups::default();
    (1..=RTNLGRP_MAX).for_each(|group| all.set(group, true));
    let mut outbox = Outbox::default();
    node.notify_link(&now, all, &mut outbox);
    let mut notifications = notified(&outbox);
    let routes = notifications.split_off(3);
    assert_eq!(notifications, [(RTM_DELLINK, 2), (RTM_NEWLINK, 9), (RTM_NEWADDR, 9)]);
    let (last, routes) = routes.split_last().unwrap();
    assert_eq!(*last, (RTM_NEWLINK, 9));
    assert!(routes.len() >= 2 && routes.iter().all(|route| *route == (RTM_NEWROUTE, 9)), "{routes:?}");
    // Addresses and routes of the link stay, and only the new index refers to the link.
    check(&node);
    assert_eq!(refused(carry_out(&mut node, &add_address(2))).0, errno::ENODEV);
    assert_eq!(refused(carry_out(&mut node, &add_address(9))).0, errno::EEXIST);
    outbox.clear();
    node.notify_link(&now, all, &mut outbox);
    assert_eq!(notified(&outbox), [(RTM_NEWLINK, 9)]);
}
