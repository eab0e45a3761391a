//! What is saved of a node makes the same node again.

#[path = "common/node.rs"]
mod node;

use std::collections::BTreeSet;

use control::netlink::rtnl::nums::*;
use control::netlink::rtnl::{Host, Link, Model, Rtnl, renumber};
use control::netlink::{Groups, Outbox, Session, carry_out};

use node::{Obedient, check, node};

const RECORDING: &str = include_str!("recordings/iproute2.txt");

fn recorded() -> Vec<Vec<u8>> {
    let requests = RECORDING.lines().filter_map(|line| line.strip_prefix("> ")?.split_once(' '));
    let bytes =
        |hex: &str| (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    requests.map(|(_, hex)| bytes(hex)).collect()
}

/// All that lasts of what clients see of a node.
fn seen(node: &mut Rtnl<Obedient>) -> String {
    let links = node.model.links_after(0).map(|(index, link)| {
        let Link { config, mtu, mac, up, addresses, group, alias, txqlen, .. } = link;
        format!(
            "{index} {} {:?} {mtu} {mac:?} {up} {addresses:#?} {group} {alias:?} {txqlen}\n",
            config.name, config.kind
        )
    });
    let links: String = links.collect();
    let routes: Vec<_> = node.model.routes().map(|(table, route)| (table, route.clone())).collect();
    let neighbours = node.host.neighbours().unwrap().into_iter();
    let kept: Vec<_> = neighbours.filter(|it| it.state == NUD_PERMANENT).collect();
    let rules: Vec<_> =
        node.saved().unwrap().into_iter().filter(|saved| saved.noun == "rule").map(|saved| saved.message).collect();
    format!("{links}{routes:#?}{kept:?}{rules:?}")
}

/// A node like another, from what is saved of that.
fn again(of: &mut Rtnl<Obedient>) -> Rtnl<Obedient> {
    let mut node = Rtnl { model: Model::default(), host: Obedient::default() };
    for saved in of.saved().unwrap() {
        assert_eq!(carry_out(&mut node, &saved.message), Ok(()), "{}", saved.label);
    }
    node
}

/// Has a node do all that was recorded, one thing after the other.
fn after_each(mut look: impl FnMut(&mut Rtnl<Obedient>)) {
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

/// Rules were not recorded.
const NOUNS: [&str; 4] = ["address", "link", "neighbour", "route"];

#[test]
fn a_node_is_the_same_again_after_every_recorded_request() {
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
            // No length makes it read or write beyond its end.
            for len in 0..saved.message.len() {
                let _ = renumber(&mut saved.message[..len].to_vec(), |_| Some(u32::MAX), |_| true);
            }
        }
    });
    assert_eq!(numbers.into_iter().collect::<Vec<_>>(), NOUNS);
}

#[test]
fn a_link_that_is_to_come_has_its_number_unless_that_is_taken() {
    let mut before = node();
    let saved = before.saved().unwrap().remove(0);
    for (taken, want) in [(false, 2), (true, 3)] {
        let mut node = if taken { node() } else { Rtnl { model: Model::default(), host: Obedient::default() } };
        let mut message = saved.message.clone();
        // Under another name, of the same length.
        let at = message.windows(4).position(|four| four == b"eth0").unwrap();
        message[at..at + 4].copy_from_slice(b"eth9");
        let is_taken = |number| node.model.link(number).is_some();
        renumber(&mut message, |_| None, is_taken).unwrap();
        assert_eq!(carry_out(&mut node, &message), Ok(()));
        assert_eq!(node.model.index_of("eth9"), Some(want));
    }
}
