//! Requests of a netlink client: recorded requests of iproute2 with mutated bytes, and datagrams of any bytes. The node
//! does not panic, and its FIB has the routes and addresses that clients see.

use netlink::{Outbox, Session};
use nlsock::ToDaemon;

use crate::node::{check, node};
use crate::recorded;
use crate::structured::structured;

/// An action of a client: its kind, a number, and mutated bytes at some places.
type Op = (u8, u16, Vec<(u16, u8)>);

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((privileged, ops)) = structured::<(bool, Vec<Op>)>(input) else { return };
    let mut node = node();
    let mut session = Session::new(privileged);
    session.bind(1, 0x1ff).expect("rtnetlink's groups are for everybody");
    let mut outbox = Outbox::default();
    for (kind, number, bytes) in ops {
        outbox.clear();
        let listeners = session.groups();
        match kind % 8 {
            0..4 => {
                let mut datagram = recorded::route(number).to_vec();
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
}
