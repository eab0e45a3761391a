//! Requests of a netlink client: recorded requests of iproute2 with mutated bytes, and datagrams of any bytes. The node
//! does not panic, and its FIB has the routes and addresses that clients see.
#![no_main]

#[path = "../../crates/netlink/tests/common/node.rs"]
mod node;

use std::sync::LazyLock;

use netlink::{Outbox, Session};
use libfuzzer_sys::fuzz_target;
use node::{check, node};
use nlsock::ToDaemon;

static RECORDED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let text = include_str!("../../crates/netlink/tests/recordings/iproute2.txt");
    let requests = text.lines().filter_map(|line| line.strip_prefix("> ")?.split_once(' '));
    let byte = |hex: &str, at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("recorded in hexadecimal digits");
    requests.map(|(_, hex)| (0..hex.len()).step_by(2).map(|at| byte(hex, at)).collect()).collect()
});

/// An action of a client: its kind, a number, and mutated bytes at some places.
type Op = (u8, u16, Vec<(u16, u8)>);

fuzz_target!(|input: (bool, Vec<Op>)| {
    let (privileged, ops) = input;
    let mut node = node();
    let mut session = Session::new(privileged);
    session.bind(1, 0x1ff).expect("rtnetlink's groups are for everybody");
    let mut outbox = Outbox::default();
    for (kind, number, bytes) in ops {
        outbox.clear();
        let listeners = session.groups();
        match kind % 8 {
            0..4 => {
                let mut datagram = RECORDED[usize::from(number) % RECORDED.len()].clone();
                for (at, byte) in bytes {
                    let at = usize::from(at) % datagram.len();
                    datagram[at] = byte;
                }
                session.handle(&datagram, &mut node, listeners, &mut outbox);
            }
            4 => {
                let datagram: Vec<u8> = bytes.iter().flat_map(|&(at, byte)| [at as u8, byte]).collect();
                // Same form as on the socket.
                for call in ToDaemon::calls(&datagram) {
                    if let Some(ToDaemon::Data(messages)) = call {
                        session.handle(messages, &mut node, listeners, &mut outbox);
                    }
                }
            }
            5 => drop(session.set_option(number.into(), bytes.len() as u32)),
            6 => session.set_recv_len(number.into()),
            _ => session.continue_dump(&mut node, &mut outbox),
        }
        check(&node);
        assert!(privileged || !node.model.has_changed());
    }
});
