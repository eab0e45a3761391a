//! `NETLINK_GENERIC`: families by name (`net/netlink/genetlink.c`). A family is a file of this module and a line of the
//! table.

mod controller;
mod family;
pub mod ila;

use std::fmt;

use super::error::{Error, errno};
use super::message::flag;
use super::session::{Dump, Protocol, Reply, Request};
use family::{CAN_DO, CAN_DUMP, Call, Info, NEEDS_ADMIN, Op};

/// State of all families.
pub struct Generic<I> {
    /// Mappings of ILA.
    pub ila: I,
}

/// Descriptions of the families, in the order of their numbers.
const INFOS: [&Info; 2] = [&controller::INFO, &ila::INFO];

/// A family's functions.
struct Family<I> {
    info: &'static Info,
    /// Carries out a request whose command is in the family's table of operations.
    handle: fn(&mut Generic<I>, &Call<'_>, &mut Reply<'_>) -> Result<(), Error>,
    /// Begins a dump.
    dump: fn(&mut Generic<I>) -> Result<DumpOf<I>, Error>,
}

type DumpOf<I> = Dump<Generic<I>>;

impl<I: ila::IlaBackend + 'static> Generic<I> {
    /// The table of families, in the order of [`INFOS`].
    const FAMILIES: [Family<I>; 2] = [
        Family {
            info: &controller::INFO,
            handle: |_, call, reply| controller::handle(&INFOS, call, reply),
            dump: |_| Ok(controller::dump(&INFOS)),
        },
        Family {
            info: &ila::INFO,
            handle: |generic, call, reply| ila::handle(&mut generic.ila, call, reply),
            dump: |generic| ila::dump(&mut generic.ila),
        },
    ];

    /// Family and command of a request (Linux `genl_family_rcv_msg`).
    fn find<'a>(request: &Request<'a>) -> Result<(&'static Family<I>, &'static Op, Call<'a>), Error> {
        let family = const { &Self::FAMILIES }.iter().find(|family| family.info.id == request.kind());
        let family = family.ok_or(Error::new(errno::ENOENT))?;
        let call = Call::of(request)?;
        let op = family.info.ops.iter().find(|op| op.command == call.command);
        Ok((family, op.ok_or(Error::new(errno::EOPNOTSUPP))?, call))
    }
}

impl<I: ila::IlaBackend + 'static> Protocol for Generic<I> {
    const GROUPS: u32 = 16;
    const ANYONE_LISTENS: bool = true;

    fn only_reads(request: &Request<'_>) -> bool {
        Self::find(request).map_or(true, |(_, op, _)| op.flags & NEEDS_ADMIN == 0)
    }

    fn adds(request: &Request<'_>) -> bool {
        ila::adds(request.message.bytes)
    }

    fn is_dump(request: &Request<'_>) -> bool {
        request.has(flag::DUMP)
    }

    fn handle(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
        let (family, op, call) = Self::find(request)?;
        if op.flags & CAN_DO == 0 {
            return Err(Error::new(errno::EOPNOTSUPP));
        }
        (family.handle)(self, &call, reply)
    }

    fn dump(&mut self, request: &Request<'_>) -> Result<Dump<Self>, Error> {
        let (family, op, _) = Self::find(request)?;
        if op.flags & CAN_DUMP == 0 {
            return Err(Error::new(errno::EOPNOTSUPP));
        }
        (family.dump)(self)
    }
}

impl<I: fmt::Debug> fmt::Debug for Generic<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generic").field("ila", &self.ila).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::controller::{GETFAMILY, ID, attr};
    use super::ila::tests::Table;
    use super::*;
    use crate::message::{Header, Messages, Writer};
    use crate::{Groups, Outbox, Session};

    /// Types and payloads of the replies to a message of type `kind`.
    fn query(kind: u16, flags: u16, body: impl FnOnce(&mut Writer)) -> Vec<(u16, Vec<u8>)> {
        let mut w = Writer::default();
        w.message(Header { kind, flags: flag::REQUEST | flags, seq: 1, port: 0 }, body);
        let (mut session, mut outbox) = (Session::new(false), Outbox::default());
        session.handle(w.as_bytes(), &mut Generic { ila: Table::default() }, Groups::default(), &mut outbox);
        let messages = outbox.iter().flat_map(|(_, bytes)| Messages::new(bytes));
        messages.map(|m| (m.header.kind, m.payload().to_vec())).collect()
    }

    #[test]
    fn a_family_is_found_by_name_and_by_number() {
        let by_name = query(ID, 0, |w| {
            w.fixed(&[GETFAMILY, 1, 0, 0]);
            w.put_str(attr::FAMILY_NAME, "nlctrl");
        });
        let by_number = query(ID, 0, |w| {
            w.fixed(&[GETFAMILY, 1, 0, 0]);
            w.put_u16(attr::FAMILY_ID, ID);
        });
        let [(ID, reply)] = &by_name[..] else { panic!("{by_name:?}") };
        assert_eq!(by_name, by_number);
        // First bytes of the reply of a 6.18 kernel.
        assert_eq!(
            reply[..28],
            *b"\x01\x02\x00\x00\x0b\x00\x02\x00nlctrl\x00\x00\x06\x00\x01\x00\x10\x00\x00\x00\x08\x00\x03\x00"
        );
        let all = query(ID, flag::DUMP, |w| w.fixed(&[GETFAMILY, 1, 0, 0]));
        assert_eq!(all.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [ID, ID, 3]);
        assert_eq!(all[0].1, *reply);
    }

    #[test]
    fn unknown_family_or_command_is_refused_as_by_linux() {
        let named = |name: &str| {
            query(ID, 0, |w| {
                w.fixed(&[GETFAMILY, 1, 0, 0]);
                w.put_str(attr::FAMILY_NAME, name);
            })
        };
        let cases = [
            (named("nosuch"), errno::ENOENT),
            (named("a name that is too long"), errno::EINVAL),
            (query(ID, 0, |w| w.fixed(&[GETFAMILY, 1, 0, 0])), errno::EINVAL),
            (query(ID, 0, |_| {}), errno::EINVAL),
            (query(77, 0, |w| w.fixed(&[GETFAMILY, 1, 0, 0])), errno::ENOENT),
        ];
        for (answers, want) in cases {
            let [(2, payload)] = &answers[..] else { panic!("{answers:?}") };
            assert_eq!(payload[..4], (-want).to_ne_bytes());
        }
    }
}
