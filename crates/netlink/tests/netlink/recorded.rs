//! Recorded replies of Linux to iproute2, command by command, compared with fatpath's replies to the same requests.

use std::collections::{BTreeMap, VecDeque};

use netlink::message::{Header, Messages};
use netlink::rtnl::Rtnl;
use netlink::{Groups, Outbox, Session};

use crate::common::node::{RecordingBackend, node};

const RECORDING: &str = include_str!("../recordings/iproute2.txt");

/// Offset of `rtm_type`, and the type of a subnet-router anycast address's route.
const ROUTE_TYPE_AT: usize = 23;
const RTN_ANYCAST: u8 = 4;

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes().chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// Message without values that differ between runs: sequence and port numbers, time stamps. `None` for messages for
/// links, and for anycast addresses of a router.
fn comparable(header: Header, message: &[u8]) -> Option<Vec<u8>> {
    let mut message = message.to_vec();
    message[8..16].fill(0);
    let attributes = match header.kind {
        2 => {
            message[28..36].fill(0);
            return Some(message);
        }
        16 => return None,
        20 | 21 => 24,
        // The recorded namespace does not forward, so it has no subnet-router anycast addresses.
        24 if message[ROUTE_TYPE_AT] == RTN_ANYCAST => return None,
        24 | 25 => 28,
        _ => return Some(message),
    };
    let mut at = attributes;
    while at + 4 <= message.len() {
        let len = usize::from(u16::from_ne_bytes([message[at], message[at + 1]]));
        match (header.kind, message[at + 2]) {
            (20, 6) => message[at + 12..at + 20].fill(0),
            (24, 12) => message[at + 4..at + len].fill(0),
            _ => {}
        }
        at += len.next_multiple_of(4);
    }
    Some(message)
}

/// Replies of a session to a datagram, with all parts of a dump.
fn answers(
    session: &mut Session<Rtnl<RecordingBackend>>,
    node: &mut Rtnl<RecordingBackend>,
    datagram: &[u8],
) -> Vec<Vec<u8>> {
    let mut outbox = Outbox::default();
    session.handle(datagram, node, Groups::default(), &mut outbox);
    while session.is_dumping() {
        session.continue_dump(node, &mut outbox);
    }
    let own = outbox.iter().filter(|(to, _)| to.is_own());
    own.flat_map(|(_, bytes)| Messages::new(bytes)).filter_map(|m| comparable(m.header, m.bytes)).collect()
}

/// A message in hexadecimal digits, and the text of an error.
fn shown(message: &[u8]) -> String {
    let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
    let text: String =
        message.iter().filter(|byte| byte.is_ascii_graphic() || **byte == b' ').map(|&b| b as char).collect();
    format!("{hex} {text}")
}

#[test]
fn iproute2_gets_linuxs_answers() {
    let mut node = node();
    let mut sessions: BTreeMap<&str, Session<Rtnl<RecordingBackend>>> = BTreeMap::new();
    let mut got: BTreeMap<&str, VecDeque<Vec<u8>>> = BTreeMap::new();
    let (mut command, mut wrong, mut commands) = ("", Vec::new(), 0);
    for line in RECORDING.lines().skip(2).chain(["# "]) {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["<", fd, messages @ ..] = &words[..] {
            for message in messages.iter().map(|hex| bytes(hex)) {
                // The grouping of replies into datagrams depends on the client.
                let ours = got.get_mut(fd).and_then(VecDeque::pop_front).unwrap_or_default();
                if ours != message {
                    wrong.push(format!("{command}\n  Linux {}\n  we    {}", shown(&message), shown(&ours)));
                }
            }
            continue;
        }
        // A program may send on one socket before it has read all replies from another.
        let done = match &words[..] {
            ["#", ..] => std::mem::take(&mut got),
            [">", fd, _] => got.remove_entry(fd).into_iter().collect(),
            _ => BTreeMap::new(),
        };
        let more = done.into_values().flatten();
        wrong.extend(more.map(|more| format!("{command}\n  we, besides: {}", shown(&more))));
        match &words[..] {
            ["#", ..] => (command, commands) = (line, commands + 1),
            ["socket", fd] => {
                let mut session = Session::new(true);
                session.bind(4711, 0).unwrap();
                session.set_recv_len(32768);
                sessions.insert(fd, session);
            }
            ["option", fd, option, value] => {
                let session = sessions.get_mut(fd).unwrap();
                session.set_option(option.parse().unwrap(), value.parse().unwrap()).unwrap();
            }
            [">", fd, hex] => {
                let answers = answers(sessions.get_mut(fd).unwrap(), &mut node, &bytes(hex));
                got.insert(fd, answers.into());
            }
            _ => panic!("{line}"),
        }
    }
    assert!(wrong.is_empty(), "{} of {commands} commands:\n{}", wrong.len(), wrong.join("\n"));
    assert!(commands > 150, "{commands}");
}
