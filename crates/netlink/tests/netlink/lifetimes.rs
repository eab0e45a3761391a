//! Addresses whose lifetime ends.

use std::time::Duration;

use base::Instant;
use netlink::error::errno;
use netlink::message::{Header, Writer, flag};
use netlink::rtnl::Rtnl;
use netlink::rtnl::nums::*;
use netlink::{Groups, Outbox, carry_out};

use crate::common::node::{RecordingBackend, check, node};

/// Request that adds 10.1.0.`last`/24 or fd00::`last`/64 to eth0, with preferred and valid lifetimes in seconds.
fn add(v4: bool, last: u8, flags: u16, lifetime: Option<[u32; 2]>) -> Vec<u8> {
    let mut w = Writer::with_capacity(4096);
    let flags = flag::REQUEST | flag::CREATE | flags;
    w.message(Header { kind: RTM_NEWADDR, flags, ..Header::default() }, |w| {
        w.fixed(&if v4 { [AF_INET, 24, 0, 0] } else { [AF_INET6, 64, 0, 0] });
        w.fixed(&2_u32.to_ne_bytes());
        match v4 {
            true => w.put(IFA_LOCAL, &[10, 1, 0, last]),
            false => w.put(IFA_LOCAL, &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
        }
        if let Some([preferred, valid]) = lifetime {
            w.put(IFA_CACHEINFO, [preferred, valid, 0, 0].map(u32::to_ne_bytes).as_flattened());
        }
    });
    w.into_bytes()
}

/// Empty list of messages.
const NONE: [u16; 0] = [];

/// Addresses of eth0, each with its flags.
fn shown(node: &Rtnl<RecordingBackend>) -> Vec<(String, u32)> {
    let link = node.model.link(2).expect("it is there");
    link.addresses.iter().map(|address| (address.addr.to_string(), address.flags)).collect()
}

/// Advances the clock; returns the types of the notifications to the address groups.
fn pass(node: &mut Rtnl<RecordingBackend>, seconds: u64) -> Vec<u16> {
    node.backend.now = node.backend.now + Duration::from_secs(seconds);
    let (mut groups, mut outbox) = (Groups::default(), Outbox::default());
    [RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR].into_iter().for_each(|group| groups.set(group, true));
    node.expire(groups, &mut outbox);
    check(node);
    outbox.iter().map(|(_, message)| u16::from_ne_bytes([message[4], message[5]])).collect()
}

#[test]
fn address_is_deprecated_and_then_taken_away_with_its_routes() {
    for v4 in [true, false] {
        let mut node = node();
        let before = node.model.routes().count();
        assert_eq!(carry_out(&mut node, &add(v4, 7, flag::EXCL, Some([10, 30]))), Ok(()));
        let name = if v4 { "10.1.0.7/24" } else { "fd00::7/64" };
        assert_eq!(shown(&node), [(name.to_owned(), 0)], "it is not permanent");
        assert_eq!(node.until_expiry(), Some(Duration::from_secs(10)));
        assert_eq!(pass(&mut node, 9), NONE);
        assert_eq!(pass(&mut node, 1), [RTM_NEWADDR]);
        assert_eq!(shown(&node), [(name.to_owned(), IFA_F_DEPRECATED)]);
        assert_eq!(node.until_expiry(), Some(Duration::from_secs(20)));
        assert_eq!(pass(&mut node, 19), NONE);
        assert_eq!(pass(&mut node, 1), [RTM_DELADDR]);
        assert_eq!((shown(&node), node.model.routes().count()), (Vec::new(), before));
        assert_eq!(node.until_expiry(), None);
    }
}

#[test]
fn replacing_an_address_renews_its_lifetime() {
    for v4 in [true, false] {
        let mut node = node();
        assert_eq!(carry_out(&mut node, &add(v4, 7, flag::EXCL, Some([10, 10]))), Ok(()));
        assert_eq!(pass(&mut node, 9), NONE);
        assert_eq!(carry_out(&mut node, &add(v4, 7, flag::REPLACE, Some([0, 10]))), Ok(()));
        assert_eq!(shown(&node)[0].1, IFA_F_DEPRECATED);
        assert_eq!(pass(&mut node, 9), NONE, "ten seconds from then");
        assert_eq!(carry_out(&mut node, &add(v4, 7, flag::REPLACE, None)), Ok(()));
        assert_eq!(shown(&node)[0].1, IFA_F_PERMANENT);
        assert_eq!(pass(&mut node, 1000), NONE);
        assert_eq!((shown(&node).len(), node.until_expiry()), (1, None));
    }
}

#[test]
fn lifetime_that_cannot_be_is_refused() {
    let mut node = node();
    node.backend.now = Instant::ZERO + Duration::from_secs(5);
    for lifetime in [[0, 0], [6, 5], [u32::MAX, 5]] {
        for v4 in [true, false] {
            let refused = carry_out(&mut node, &add(v4, 7, flag::EXCL, Some(lifetime))).expect_err("it is no lifetime");
            assert_eq!(refused.errno, errno::EINVAL);
        }
    }
    assert!(shown(&node).is_empty());
}

#[test]
fn address_that_ends_is_not_saved() {
    let mut node = node();
    assert_eq!(carry_out(&mut node, &add(true, 7, flag::EXCL, Some([10, 30]))), Ok(()));
    assert_eq!(carry_out(&mut node, &add(true, 8, flag::EXCL, Some([0, u32::MAX]))), Ok(()));
    let saved = node.saved().unwrap_or_default();
    let labels: Vec<_> =
        saved.iter().map(|saved| saved.label.as_str()).filter(|it| it.starts_with("address")).collect();
    assert_eq!(labels, ["address 10.1.0.8/24 dev eth0"]);
}
