//! Family `ila`: mappings of locators (`net/ipv6/ila/ila_main.c`, `ila_xlat.c`), as `ip ila` changes and lists them.
//!
//! Differences from Linux: a checksum mode, identifier type or device that does not exist is refused, where Linux
//! accepts any number; a dump is a consistent snapshot and never fails with `EAGAIN`.

use ila::{CsumMode, IdentType, Locator};

use super::family::{ATTRS_AT, CAN_DO, CAN_DUMP, Call, HAS_POLICY, Info, NEEDS_ADMIN, Op};
use crate::attr::{Attr, AttrPolicy, Kind, Strictness, parse, policy};
use crate::error::{Error, errno};
use crate::message::{HEADER_LEN, Writer};
use crate::saved::{Saved, kind_of, renumber_attribute};
use crate::session::{Dump, Progress, Protocol, Reply};

/// Type of the family's messages. Programs look the number up by the family's name.
const ID: u16 = 19;
const VERSION: u8 = 1;

const ADD: u8 = 1;
const DEL: u8 = 2;
const GET: u8 = 3;
const FLUSH: u8 = 4;

mod attr {
    pub(super) const LOCATOR: u16 = 1;
    pub(super) const LOCATOR_MATCH: u16 = 3;
    pub(super) const IFINDEX: u16 = 4;
    pub(super) const CSUM_MODE: u16 = 7;
    pub(super) const IDENT_TYPE: u16 = 8;
    pub(super) const MAX: u16 = 9;
}

const POLICY: AttrPolicy<{ attr::MAX as usize + 1 }> = policy(&[
    (attr::LOCATOR, Kind::Int(8)),
    (attr::LOCATOR_MATCH, Kind::Int(8)),
    (attr::IFINDEX, Kind::Int(4)),
    (attr::CSUM_MODE, Kind::Int(1)),
    (attr::IDENT_TYPE, Kind::Int(1)),
]);

pub(super) const INFO: Info = Info {
    id: ID,
    name: "ila",
    version: VERSION,
    max_attr: attr::MAX as u32,
    ops: &[
        Op { command: ADD, flags: CAN_DO | HAS_POLICY | NEEDS_ADMIN },
        Op { command: DEL, flags: CAN_DO | HAS_POLICY | NEEDS_ADMIN },
        Op { command: FLUSH, flags: CAN_DO | HAS_POLICY | NEEDS_ADMIN },
        Op { command: GET, flags: CAN_DO | CAN_DUMP | HAS_POLICY },
    ],
    groups: &[],
};

/// Mapping, with device numbers as clients of netlink see them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mapping {
    /// Locator of the destinations that are translated.
    pub locator_match: Locator,
    /// New locator of translated destinations.
    pub locator: Locator,
    /// Number of the packets' input device; 0 for any.
    pub ifindex: u32,
    /// Treatment of checksums.
    pub csum_mode: CsumMode,
    /// Type of the identifiers.
    pub ident_type: IdentType,
}

/// Owner of the mappings.
pub trait IlaBackend {
    /// Adds a mapping.
    ///
    /// # Errors
    /// `EEXIST`: the locator has a mapping for the device. `ENODEV`: the device does not exist.
    fn add(&mut self, mapping: Mapping) -> Result<(), Error>;

    /// Removes the mapping of a locator for a device, if present.
    ///
    /// # Errors
    /// The owner does not answer.
    fn remove(&mut self, locator_match: Locator, ifindex: u32) -> Result<(), Error>;

    /// The mapping of a locator for a device.
    ///
    /// # Errors
    /// The owner does not answer.
    fn get(&mut self, locator_match: Locator, ifindex: u32) -> Result<Option<Mapping>, Error>;

    /// All mappings, as a consistent snapshot.
    ///
    /// # Errors
    /// The owner does not answer.
    fn all(&mut self) -> Result<Vec<Mapping>, Error>;

    /// Removes all mappings.
    ///
    /// # Errors
    /// The owner does not answer.
    fn flush(&mut self) -> Result<(), Error>;
}

pub(super) fn handle(backend: &mut impl IlaBackend, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let attrs = parse(call.attrs, ATTRS_AT, &POLICY, Strictness::Liberal)?;
    let locator = |kind| Locator(attrs.get(kind).map_or(0, |attr| u64::from_be(attr.u64())));
    let locator_match = locator(attr::LOCATOR_MATCH);
    let ifindex = attrs.get(attr::IFINDEX).map_or(0, Attr::u32);
    match call.command {
        ADD => {
            let csum_mode = attrs.get(attr::CSUM_MODE).map_or(Ok(CsumMode::default()), |attr| {
                CsumMode::from_number(attr.u8()).ok_or_else(|| attr.refused("Unknown checksum mode"))
            })?;
            let ident_type = attrs.get(attr::IDENT_TYPE).map_or(Ok(IdentType::default()), |attr| {
                IdentType::from_number(attr.u8()).ok_or_else(|| attr.refused("Unknown identifier type"))
            })?;
            backend.add(Mapping { locator_match, locator: locator(attr::LOCATOR), ifindex, csum_mode, ident_type })
        }
        DEL => backend.remove(locator_match, ifindex),
        FLUSH => backend.flush(),
        _ => {
            let mapping = backend.get(locator_match, ifindex)?.ok_or(Error::new(errno::ESRCH))?;
            reply.send(ID, 0, |w| mapping.write(GET, w));
            Ok(())
        }
    }
}

/// Dumps the mappings that exist when the dump begins.
pub(super) fn dump<P: Protocol>(backend: &mut impl IlaBackend) -> Result<Dump<P>, Error> {
    let mut left = backend.all()?.into_iter().peekable();
    Ok(Box::new(move |_, part| {
        while let Some(mapping) = left.peek() {
            if !part.message(ID, |w| mapping.write(GET, w)) {
                return Ok(Progress::More);
            }
            left.next();
        }
        Ok(Progress::Done)
    }))
}

impl Mapping {
    /// Writes a mapping, as Linux's `ila_fill_info`.
    fn write(&self, command: u8, w: &mut Writer) {
        w.fixed(&[command, VERSION, 0, 0]);
        w.put(attr::LOCATOR, &self.locator.0.to_be_bytes());
        w.put(attr::LOCATOR_MATCH, &self.locator_match.0.to_be_bytes());
        w.put_u32(attr::IFINDEX, self.ifindex);
        w.put_u8(attr::CSUM_MODE, self.csum_mode as u8);
        w.put_u8(attr::IDENT_TYPE, self.ident_type as u8);
    }

    /// Request that adds the mapping. `dev` is the name of the mapping's device, if any.
    pub fn saved(&self, dev: Option<&str>) -> Saved {
        let dev = dev.map_or_else(String::new, |dev| format!(" dev {dev}"));
        let label = format!("ILA mapping {}{dev}", self.locator_match);
        Saved::new("ILA mapping", label, ID, 0, |w| self.write(ADD, w))
    }
}

/// Replaces the number of the device in a request that adds a mapping.
///
/// # Errors
/// The number, if it has no device now.
pub fn renumber(message: &mut [u8], now: impl Fn(u32) -> Option<u32>) -> Result<(), u32> {
    renumber_attribute(message, 4, attr::IFINDEX, |old| if old == 0 { Some(0) } else { now(old) })
}

/// Whether a message asks this family for a change.
pub(crate) fn is_change(message: &[u8]) -> bool {
    kind_of(message) == ID && message.get(HEADER_LEN).is_some_and(|command| matches!(*command, ADD | DEL | FLUSH))
}

/// Whether a message asks this family for a new mapping.
pub(super) fn adds(message: &[u8]) -> bool {
    kind_of(message) == ID && message.get(HEADER_LEN) == Some(&ADD)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::generic::Generic;
    use crate::message::{Header, Messages, flag};
    use crate::{Groups, Outbox, Session, carry_out};

    /// Mappings without a worker. Devices 1 to 9 exist.
    #[derive(Debug, Default)]
    pub(in super::super) struct Table(Vec<Mapping>);

    impl IlaBackend for Table {
        fn add(&mut self, mapping: Mapping) -> Result<(), Error> {
            if mapping.ifindex > 9 {
                return Err(Error::new(errno::ENODEV));
            }
            if self.get(mapping.locator_match, mapping.ifindex)?.is_some() {
                return Err(Error::new(errno::EEXIST));
            }
            self.0.push(mapping);
            Ok(())
        }

        fn remove(&mut self, locator_match: Locator, ifindex: u32) -> Result<(), Error> {
            self.0.retain(|it| (it.locator_match, it.ifindex) != (locator_match, ifindex));
            Ok(())
        }

        fn get(&mut self, locator_match: Locator, ifindex: u32) -> Result<Option<Mapping>, Error> {
            Ok(self.0.iter().find(|it| (it.locator_match, it.ifindex) == (locator_match, ifindex)).copied())
        }

        fn all(&mut self) -> Result<Vec<Mapping>, Error> {
            Ok(self.0.clone())
        }

        fn flush(&mut self) -> Result<(), Error> {
            self.0.clear();
            Ok(())
        }
    }

    fn request(command: u8, flags: u16, body: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut w = Writer::default();
        w.message(Header { kind: ID, flags: flag::REQUEST | flag::ACK | flags, seq: 1, port: 0 }, |w| {
            w.fixed(&[command, 1, 0, 0]);
            body(w);
        });
        w.into_bytes()
    }

    /// `errno` of the acknowledgement, and the payloads of the messages before it.
    fn answer(table: &mut Generic<Table>, privileged: bool, bytes: &[u8]) -> (i32, Vec<Vec<u8>>) {
        let mut session = Session::new(privileged);
        let mut outbox = Outbox::default();
        session.handle(bytes, table, Groups::default(), &mut outbox);
        while session.is_dumping() {
            session.continue_dump(table, &mut outbox);
        }
        let mut payloads = Vec::new();
        for (_, datagram) in outbox.iter() {
            for message in Messages::new(datagram) {
                match message.header.kind {
                    2 | 3 => {
                        let errno = message.payload().first_chunk().map_or(0, |errno| i32::from_ne_bytes(*errno));
                        return (-errno, payloads);
                    }
                    kind => assert_eq!(kind, ID),
                }
                payloads.push(message.payload().to_vec());
            }
        }
        panic!("no end");
    }

    const M: u64 = 0x2001_0db8_0000_0001;

    fn of_match(locator_match: u64) -> impl Fn(&mut Writer) {
        move |w| w.put(attr::LOCATOR_MATCH, &locator_match.to_be_bytes())
    }

    fn all(locator_match: u64, ifindex: u32, mode: u8, ident_type: u8) -> impl Fn(&mut Writer) {
        move |w| {
            w.put(attr::LOCATOR_MATCH, &locator_match.to_be_bytes());
            w.put(attr::LOCATOR, &0xfd00_0000_0000_0007_u64.to_be_bytes());
            w.put_u32(attr::IFINDEX, ifindex);
            w.put_u8(attr::CSUM_MODE, mode);
            w.put_u8(attr::IDENT_TYPE, ident_type);
        }
    }

    fn table() -> Generic<Table> {
        Generic { ila: Table::default() }
    }

    #[test]
    fn requests_are_answered_with_errnos_of_linux() {
        let mut table = table();
        let cases: [(&str, bool, Vec<u8>, i32); 16] = [
            ("get of none", true, request(GET, 0, of_match(M)), errno::ESRCH),
            ("delete of none", true, request(DEL, 0, of_match(M)), 0),
            ("add without rights", false, request(ADD, 0, all(M, 0, 1, 1)), errno::EPERM),
            ("delete without rights", false, request(DEL, 0, of_match(M)), errno::EPERM),
            ("flush without rights", false, request(FLUSH, 0, |_| {}), errno::EPERM),
            ("add", true, request(ADD, 0, all(M, 0, 1, 1)), 0),
            ("add again, otherwise", true, request(ADD, 0, all(M, 0, 2, 32)), errno::EEXIST),
            ("add for a device", true, request(ADD, 0, all(M, 3, 1, 1)), 0),
            ("add for no device", true, request(ADD, 0, all(M, 12, 1, 1)), errno::ENODEV),
            ("add of an unknown mode", true, request(ADD, 0, all(9, 0, 4, 1)), errno::EINVAL),
            ("add of an unknown type", true, request(ADD, 0, all(9, 0, 1, 8)), errno::EINVAL),
            ("short locator", true, request(ADD, 0, |w| w.put(attr::LOCATOR_MATCH, &[1, 2])), errno::ERANGE),
            ("get without rights", false, request(GET, 0, of_match(M)), 0),
            ("get of another device", true, request(GET, 0, all(M, 4, 0, 0)), errno::ESRCH),
            ("unknown command", true, request(5, 0, |_| {}), errno::EOPNOTSUPP),
            ("add as a dump", true, request(ADD, flag::DUMP, |_| {}), errno::EOPNOTSUPP),
        ];
        for (what, privileged, bytes, want) in cases {
            assert_eq!(answer(&mut table, privileged, &bytes).0, want, "{what}");
        }
        assert_eq!(table.ila.0.len(), 2);
        assert_eq!(answer(&mut table, true, &request(FLUSH, 0, |_| {})).0, 0);
        assert!(table.ila.0.is_empty());
    }

    #[test]
    fn missing_attributes_are_zero_or_linux_defaults() {
        let mut table = table();
        assert_eq!(answer(&mut table, true, &request(ADD, 0, |_| {})).0, 0);
        let csum_mode = CsumMode::NoAction;
        let ident_type = IdentType::UseFormat;
        let (locator_match, locator, ifindex) = (Locator(0), Locator(0), 0);
        assert_eq!(table.ila.0, [Mapping { locator_match, locator, ifindex, csum_mode, ident_type }]);
    }

    #[test]
    fn mapping_is_written_as_linux_does() {
        let mut table = table();
        answer(&mut table, true, &request(ADD, 0, all(M, 3, 3, 1)));
        let (_, payloads) = answer(&mut table, true, &request(GET, 0, all(M, 3, 0, 0)));
        let want = [
            &[GET, 1, 0, 0][..],
            &[12, 0, 1, 0, 0xfd, 0, 0, 0, 0, 0, 0, 7],
            &[12, 0, 3, 0, 0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 1],
            &[8, 0, 4, 0, 3, 0, 0, 0],
            &[5, 0, 7, 0, 3, 0, 0, 0],
            &[5, 0, 8, 0, 1, 0, 0, 0],
        ];
        assert_eq!(payloads, [want.concat()]);
    }

    #[test]
    fn dump_is_of_moment_at_which_it_begins() {
        let mut table = table();
        for n in 0..1000 {
            answer(&mut table, true, &request(ADD, 0, all(n, 0, 1, 1)));
        }
        let mut session = Session::new(false);
        let mut outbox = Outbox::default();
        session.handle(&request(GET, flag::DUMP, |_| {}), &mut table, Groups::default(), &mut outbox);
        assert!(session.is_dumping());
        answer(&mut table, true, &request(FLUSH, 0, |_| {}));
        while session.is_dumping() {
            session.continue_dump(&mut table, &mut outbox);
        }
        let messages: Vec<_> = outbox.iter().flat_map(|(_, bytes)| Messages::new(bytes)).collect();
        let seen = messages.iter().filter(|message| message.header.kind == ID).map(|message| {
            assert!(message.header.has(flag::MULTI));
            u64::from_be_bytes(message.payload()[20..28].try_into().unwrap())
        });
        assert_eq!(seen.collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
        assert!(outbox.iter().all(|(_, bytes)| bytes.len() < 4096));
    }

    #[test]
    fn saved_request_brings_mapping_about_again() {
        let csum_mode = CsumMode::NeutralMapAuto;
        let mapping = Mapping {
            locator_match: Locator(M),
            locator: Locator(5),
            ifindex: 3,
            csum_mode,
            ident_type: IdentType::Luid,
        };
        let mut saved = mapping.saved(Some("wan"));
        assert_eq!(saved.label, "ILA mapping 2001:db8:0:1 dev wan");
        renumber(&mut saved.message, |old| (old == 3).then_some(7)).unwrap();
        let mut table = table();
        carry_out(&mut table, &saved.message).unwrap();
        assert_eq!(table.ila.0, [Mapping { ifindex: 7, ..mapping }]);
        assert_eq!(renumber(&mut saved.message, |_| None), Err(7));
        let mut any = Mapping { ifindex: 0, ..mapping }.saved(None);
        assert_eq!(renumber(&mut any.message, |_| None), Ok(()));
    }
}
