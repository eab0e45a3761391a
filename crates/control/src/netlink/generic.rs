//! `NETLINK_GENERIC`: families by name. The controller, which knows the others, is the only one so far
//! (`net/netlink/genetlink.c`).

use super::attr::{Attr, Kind, Policy, Strictness, parse, policy};
use super::error::{Error, errno};
use super::message::{HEADER_LEN, Writer, flag};
use super::session::{Dump, Progress, Protocol, Reply, Request};

/// The type of the controller's messages (`GENL_ID_CTRL`).
const ID_CTRL: u16 = 16;
/// The command that tells of a family, and the one that asks for it.
const NEWFAMILY: u8 = 1;
const GETFAMILY: u8 = 3;
/// Length of `struct genlmsghdr`.
const LEN: usize = 4;

mod attr {
    pub(super) const FAMILY_ID: u16 = 1;
    pub(super) const FAMILY_NAME: u16 = 2;
    pub(super) const VERSION: u16 = 3;
    pub(super) const HDRSIZE: u16 = 4;
    pub(super) const MAXATTR: u16 = 5;
    pub(super) const OPS: u16 = 6;
    pub(super) const MCAST_GROUPS: u16 = 7;
    pub(super) const OP_ID: u16 = 1;
    pub(super) const OP_FLAGS: u16 = 2;
    pub(super) const GRP_NAME: u16 = 1;
    pub(super) const GRP_ID: u16 = 2;
}

const POLICY: Policy<11> = policy(&[(attr::FAMILY_ID, Kind::Int(2)), (attr::FAMILY_NAME, Kind::NulStr(15))]);

/// A family, as the controller tells of it.
struct Family {
    id: u16,
    name: &'static str,
    version: u32,
    max_attr: u32,
    /// Commands, and `GENL_CMD_CAP_*`.
    ops: &'static [(u8, u32)],
    groups: &'static [(u32, &'static str)],
}

/// The families that there are.
const FAMILIES: [Family; 1] = [Family {
    id: ID_CTRL,
    name: "nlctrl",
    version: 2,
    max_attr: 10,
    // It does, it dumps, it has a policy.
    ops: &[(GETFAMILY, 0x0e)],
    groups: &[(16, "notify")],
}];

/// The protocol.
#[derive(Debug, Default)]
pub struct Generic;

impl Protocol for Generic {
    const GROUPS: u32 = 16;
    const ANYONE_LISTENS: bool = true;

    fn only_reads(_: &Request<'_>) -> bool {
        true
    }

    fn is_dump(request: &Request<'_>) -> bool {
        request.has(flag::DUMP)
    }

    fn handle(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
        let rest = getfamily(request)?;
        let attrs = parse(rest, (HEADER_LEN + LEN) as u32, &POLICY, Strictness::Liberal)?;
        let (id, name) = (attrs.get(attr::FAMILY_ID).map(Attr::u16), attrs.get(attr::FAMILY_NAME).and_then(Attr::text));
        let family = match (id, name) {
            (None, None) => return Err(Error::new(errno::EINVAL)),
            (_, Some(name)) => FAMILIES.iter().find(|family| family.name == name),
            (Some(id), None) => FAMILIES.iter().find(|family| family.id == id),
        };
        let family = family.ok_or(Error::new(errno::ENOENT))?;
        reply.send(ID_CTRL, 0, |w| family.write(w));
        Ok(())
    }

    fn dump(&mut self, request: &Request<'_>) -> Result<Dump<Self>, Error> {
        getfamily(request)?;
        let mut next = 0;
        Ok(Box::new(move |_, part| {
            for family in &FAMILIES[next..] {
                if !part.message(ID_CTRL, |w| family.write(w)) {
                    return Ok(Progress::More);
                }
                next += 1;
            }
            Ok(Progress::Done)
        }))
    }
}

/// What follows the header of a request for families.
fn getfamily<'a>(request: &Request<'a>) -> Result<&'a [u8], Error> {
    if request.kind() != ID_CTRL {
        return Err(Error::new(errno::ENOENT));
    }
    match request.payload() {
        [GETFAMILY, _, _, _, rest @ ..] => Ok(rest),
        [_, _, _, _, ..] => Err(Error::new(errno::EOPNOTSUPP)),
        _ => Err(Error::new(errno::EINVAL)),
    }
}

impl Family {
    /// Linux's `ctrl_fill_info`.
    fn write(&self, w: &mut Writer) {
        w.fixed(&[NEWFAMILY, 2, 0, 0]);
        w.put_str(attr::FAMILY_NAME, self.name);
        w.put_u16(attr::FAMILY_ID, self.id);
        w.put_u32(attr::VERSION, self.version);
        w.put_u32(attr::HDRSIZE, 0);
        w.put_u32(attr::MAXATTR, self.max_attr);
        w.nest(attr::OPS, |w| {
            for (nth, (id, flags)) in (1..).zip(self.ops) {
                w.nest(nth, |w| {
                    w.put_u32(attr::OP_ID, (*id).into());
                    w.put_u32(attr::OP_FLAGS, *flags);
                });
            }
        });
        w.nest(attr::MCAST_GROUPS, |w| {
            for (nth, (id, name)) in (1..).zip(self.groups) {
                w.nest(nth, |w| {
                    w.put_u32(attr::GRP_ID, *id);
                    w.put_str(attr::GRP_NAME, name);
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::{Header, Messages};
    use crate::netlink::{Groups, Outbox, Session};

    /// The types and payloads of what is answered to a message of that type.
    fn asked(kind: u16, flags: u16, body: impl FnOnce(&mut Writer)) -> Vec<(u16, Vec<u8>)> {
        let mut w = Writer::default();
        w.message(Header { kind, flags: flag::REQUEST | flags, seq: 1, port: 0 }, body);
        let (mut session, mut outbox) = (Session::new(false), Outbox::default());
        session.handle(w.as_bytes(), &mut Generic, Groups::default(), &mut outbox);
        let messages = outbox.iter().flat_map(|(_, bytes)| Messages::new(bytes));
        messages.map(|m| (m.header.kind, m.payload().to_vec())).collect()
    }

    #[test]
    fn a_family_is_found_by_name_and_by_number() {
        let by_name = asked(ID_CTRL, 0, |w| {
            w.fixed(&[GETFAMILY, 1, 0, 0]);
            w.put_str(attr::FAMILY_NAME, "nlctrl");
        });
        let by_number = asked(ID_CTRL, 0, |w| {
            w.fixed(&[GETFAMILY, 1, 0, 0]);
            w.put_u16(attr::FAMILY_ID, ID_CTRL);
        });
        let [(ID_CTRL, told)] = &by_name[..] else { panic!("{by_name:?}") };
        assert_eq!(by_name, by_number);
        // As a 6.18 kernel begins it.
        assert_eq!(
            told[..28],
            *b"\x01\x02\x00\x00\x0b\x00\x02\x00nlctrl\x00\x00\x06\x00\x01\x00\x10\x00\x00\x00\x08\x00\x03\x00"
        );
        let all = asked(ID_CTRL, flag::DUMP, |w| w.fixed(&[GETFAMILY, 1, 0, 0]));
        assert_eq!(all.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [ID_CTRL, 3]);
        assert_eq!(all[0].1, *told);
    }

    #[test]
    fn what_there_is_not_is_refused_as_linux_does() {
        let named = |name: &str| {
            asked(ID_CTRL, 0, |w| {
                w.fixed(&[GETFAMILY, 1, 0, 0]);
                w.put_str(attr::FAMILY_NAME, name);
            })
        };
        let cases = [
            (named("nosuch"), errno::ENOENT),
            (named("a name that is too long"), errno::EINVAL),
            (asked(ID_CTRL, 0, |w| w.fixed(&[GETFAMILY, 1, 0, 0])), errno::EINVAL),
            (asked(ID_CTRL, 0, |_| {}), errno::EINVAL),
            (asked(77, 0, |w| w.fixed(&[GETFAMILY, 1, 0, 0])), errno::ENOENT),
        ];
        for (answers, want) in cases {
            let [(2, payload)] = &answers[..] else { panic!("{answers:?}") };
            assert_eq!(payload[..4], (-want).to_ne_bytes());
        }
    }
}
