//! Family `ila`: mappings of locators (`net/ipv6/ila/ila_main.c`, `ila_xlat.c`), as `ip ila` changes and lists them.
//!
//! Differences from Linux: a checksum mode, identifier type or device that does not exist is refused, where Linux
//! accepts any number; a dump is a consistent snapshot and never fails with `EAGAIN`.
//!
//! Extensions: `NLM_F_REPLACE`, with the meaning that it has for routes; mappings of one address, by the attribute
//! `ILA_ATTR_IDENTIFIER`, which Linux defines and ignores; a group for events.

use ila::{CsumMode, IdentType, Identifier, Locator};

use super::family::{ATTRS_AT, CAN_DO, CAN_DUMP, Call, HAS_POLICY, Info, NEEDS_ADMIN, Op};
use crate::attr::{Attr, AttrPolicy, Kind, Strictness, parse, policy};
use crate::error::{Error, errno};
use crate::message::{HEADER_LEN, Writer, flag};
use crate::saved::{Saved, flags_of, kind_of, renumber_attribute};
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
    pub(super) const IDENTIFIER: u16 = 2;
    pub(super) const LOCATOR_MATCH: u16 = 3;
    pub(super) const IFINDEX: u16 = 4;
    pub(super) const CSUM_MODE: u16 = 7;
    pub(super) const IDENT_TYPE: u16 = 8;
    pub(super) const MAX: u16 = 9;
}

const POLICY: AttrPolicy<{ attr::MAX as usize + 1 }> = policy(&[
    (attr::LOCATOR, Kind::Int(8)),
    (attr::IDENTIFIER, Kind::Int(8)),
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
    groups: &[(EVENTS, "mappings")],
};

/// Group of events: mappings that requests add, replace or remove.
const EVENTS: u32 = 2;

/// Mapping, with device numbers as clients of netlink see them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mapping {
    /// Properties by which the mapping is unique.
    pub name: MappingName,
    /// New locator of translated destinations.
    pub locator: Locator,
    /// Treatment of checksums.
    pub csum_mode: CsumMode,
    /// Type of the identifiers.
    pub ident_type: IdentType,
}

/// Properties by which a mapping is unique.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MappingName {
    /// Locator of the destinations that are translated.
    pub locator_match: Locator,
    /// Identifier of the destination that is translated; `None` for all of the locator.
    pub identifier: Option<Identifier>,
    /// Number of the packets' input device; 0 for any.
    pub ifindex: u32,
}

/// Permissions of a request to add a mapping.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MayAdd {
    /// Whether it adds a mapping that is not there.
    pub new: bool,
    /// Whether it replaces one that is there, in one step.
    pub replace: bool,
}

impl MayAdd {
    /// Permissions by the flags of the request, as Linux has them for routes. Without `NLM_F_REPLACE` a mapping is added whatever the other
    /// flags, as in Linux's family; `NLM_F_REPLACE` with `NLM_F_EXCL` is a dump in generic netlink.
    const fn of(flags: u16) -> Self {
        let replace = flags & flag::REPLACE != 0;
        Self { new: !replace || flags & flag::CREATE != 0, replace }
    }
}

/// Owner of the mappings.
pub trait IlaBackend {
    /// Adds a mapping, or replaces the one of its name in one step, so that each packet meets either. Returns whether it has
    /// replaced one.
    ///
    /// # Errors
    /// `EEXIST`: there is a mapping of that name, and it may not be replaced. `ENOENT`: there is none, and none may be added.
    /// `ENODEV`: the device does not exist.
    fn add(&mut self, mapping: Mapping, may: MayAdd) -> Result<bool, Error>;

    /// Removes the mapping of a name, and returns it, if present.
    ///
    /// # Errors
    /// The owner does not answer.
    fn remove(&mut self, name: MappingName) -> Result<Option<Mapping>, Error>;

    /// The mapping of a name.
    ///
    /// # Errors
    /// The owner does not answer.
    fn get(&mut self, name: MappingName) -> Result<Option<Mapping>, Error>;

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
    let word = |kind| attrs.get(kind).map(|attr| u64::from_be(attr.u64()));
    let locator = |kind| Locator(word(kind).unwrap_or(0));
    let name = MappingName {
        locator_match: locator(attr::LOCATOR_MATCH),
        identifier: word(attr::IDENTIFIER).map(Identifier),
        ifindex: attrs.get(attr::IFINDEX).map_or(0, Attr::u32),
    };
    match call.command {
        ADD => {
            let csum_mode = attrs.get(attr::CSUM_MODE).map_or(Ok(CsumMode::default()), |attr| {
                CsumMode::from_number(attr.u8()).ok_or_else(|| attr.refused("Unknown checksum mode"))
            })?;
            let ident_type = attrs.get(attr::IDENT_TYPE).map_or(Ok(IdentType::default()), |attr| {
                IdentType::from_number(attr.u8()).ok_or_else(|| attr.refused("Unknown identifier type"))
            })?;
            let mapping = Mapping { name, locator: locator(attr::LOCATOR), csum_mode, ident_type };
            let replaced = backend.add(mapping, MayAdd::of(call.flags))?;
            let flags = if replaced { flag::REPLACE } else { flag::CREATE };
            reply.notify(EVENTS, ID, flags, |w| mapping.write(ADD, w));
            Ok(())
        }
        DEL => {
            if let Some(gone) = backend.remove(name)? {
                reply.notify(EVENTS, ID, 0, |w| gone.write(DEL, w));
            }
            Ok(())
        }
        FLUSH => {
            backend.flush()?;
            reply.notify(EVENTS, ID, 0, |w| w.fixed(&[FLUSH, VERSION, 0, 0]));
            Ok(())
        }
        _ => {
            let mapping = backend.get(name)?.ok_or(Error::new(errno::ESRCH))?;
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
    /// Writes a mapping, as Linux's `ila_fill_info`, with its identifier if it has one.
    fn write(&self, command: u8, w: &mut Writer) {
        let MappingName { locator_match, identifier, ifindex } = self.name;
        w.fixed(&[command, VERSION, 0, 0]);
        w.put(attr::LOCATOR, &self.locator.0.to_be_bytes());
        w.put(attr::LOCATOR_MATCH, &locator_match.0.to_be_bytes());
        w.put_u32(attr::IFINDEX, ifindex);
        w.put_u8(attr::CSUM_MODE, self.csum_mode as u8);
        w.put_u8(attr::IDENT_TYPE, self.ident_type as u8);
        if let Some(Identifier(identifier)) = identifier {
            w.put(attr::IDENTIFIER, &identifier.to_be_bytes());
        }
    }

    /// Request that adds the mapping. `dev` is the name of the mapping's device, if any.
    pub fn saved(&self, dev: Option<&str>) -> Saved {
        let dev = dev.map_or_else(String::new, |dev| format!(" dev {dev}"));
        let identifier = self.name.identifier.map_or_else(String::new, |it| format!(" identifier {it}"));
        let label = format!("ILA mapping {}{identifier}{dev}", self.name.locator_match);
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

/// Whether a message asks this family for a mapping that may be new.
pub(super) fn adds(message: &[u8]) -> bool {
    kind_of(message) == ID && message.get(HEADER_LEN) == Some(&ADD) && MayAdd::of(flags_of(message)).new
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
        fn add(&mut self, mapping: Mapping, may: MayAdd) -> Result<bool, Error> {
            if mapping.name.ifindex > 9 {
                return Err(Error::new(errno::ENODEV));
            }
            match self.0.iter_mut().find(|it| it.name == mapping.name) {
                Some(there) if may.replace => *there = mapping,
                Some(_) => return Err(Error::new(errno::EEXIST)),
                None if !may.new => return Err(Error::new(errno::ENOENT)),
                None => {
                    self.0.push(mapping);
                    return Ok(false);
                }
            }
            Ok(true)
        }

        fn remove(&mut self, name: MappingName) -> Result<Option<Mapping>, Error> {
            let gone = self.get(name);
            self.0.retain(|it| it.name != name);
            gone
        }

        fn get(&mut self, name: MappingName) -> Result<Option<Mapping>, Error> {
            Ok(self.0.iter().find(|it| it.name == name).copied())
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

    fn of_address(identifier: u64) -> impl Fn(&mut Writer) {
        move |w| {
            w.put(attr::IDENTIFIER, &identifier.to_be_bytes());
            all(M, 0, 1, 1)(w);
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
        let name = MappingName { locator_match: Locator(0), identifier: None, ifindex: 0 };
        assert_eq!(table.ila.0, [Mapping { name, locator: Locator(0), csum_mode, ident_type }]);
    }

    #[test]
    fn replacement_has_the_flags_and_errnos_of_routes() {
        const R: u16 = flag::REPLACE;
        const C: u16 = flag::CREATE;
        const X: u16 = flag::EXCL;
        // The outcome for a mapping that is missing, and for one that is there.
        let cases: [(u16, i32, i32); 8] = [
            (0, 0, errno::EEXIST),
            (C, 0, errno::EEXIST),
            (X, 0, errno::EEXIST),
            (C | X, 0, errno::EEXIST),
            (R, errno::ENOENT, 0),
            (R | C, 0, 0),
            (R | X, errno::EOPNOTSUPP, errno::EOPNOTSUPP),
            (R | C | X, errno::EOPNOTSUPP, errno::EOPNOTSUPP),
        ];
        for (flags, missing, there) in cases {
            let mut table = table();
            assert_eq!(answer(&mut table, true, &request(ADD, flags, all(M, 3, 1, 1))).0, missing, "{flags:#x}");
            assert_eq!(table.ila.0.len(), usize::from(missing == 0));
            table.ila.0.clear();
            answer(&mut table, true, &request(ADD, 0, all(M, 3, 1, 1)));
            answer(&mut table, true, &request(ADD, 0, all(M, 0, 1, 1)));
            let before = table.ila.0.clone();
            assert_eq!(answer(&mut table, true, &request(ADD, flags, all(M, 3, 2, 32))).0, there, "{flags:#x}");
            let (csum_mode, ident_type) = (CsumMode::NoAction, IdentType::UseFormat);
            let after = if there == 0 { Mapping { csum_mode, ident_type, ..before[0] } } else { before[0] };
            assert_eq!(table.ila.0, [after, before[1]], "{flags:#x}");
            // Without room for new ones, the replacement of one that is there is no addition.
            let is_replaced_alone = flags & (R | C) == R;
            assert_eq!(adds(&request(ADD, flags, |_| {})), !is_replaced_alone);
        }
        let device = request(ADD, R | C, all(M, 12, 1, 1));
        assert_eq!(answer(&mut table(), true, &device).0, errno::ENODEV);
    }

    #[test]
    fn mapping_of_address_is_one_beside_its_locators() {
        let mut table = table();
        let cases: [(&str, Vec<u8>, i32); 9] = [
            ("add of an address", request(ADD, 0, of_address(7)), 0),
            ("the same", request(ADD, 0, of_address(7)), errno::EEXIST),
            ("another address", request(ADD, 0, of_address(0)), 0),
            ("its locator", request(ADD, 0, all(M, 0, 2, 32)), 0),
            ("delete of a third", request(DEL, 0, of_address(8)), 0),
            ("get of a third", request(GET, 0, of_address(8)), errno::ESRCH),
            ("replacement of a third", request(ADD, flag::REPLACE, of_address(8)), errno::ENOENT),
            ("short identifier", request(ADD, 0, |w| w.put(attr::IDENTIFIER, &[1])), errno::ERANGE),
            ("delete of the locator's", request(DEL, 0, of_match(M)), 0),
        ];
        for (what, bytes, want) in cases {
            assert_eq!(answer(&mut table, true, &bytes).0, want, "{what}");
        }
        let identifiers = table.ila.0.iter().map(|mapping| mapping.name.identifier);
        assert_eq!(identifiers.collect::<Vec<_>>(), [Some(Identifier(7)), Some(Identifier(0))]);
        let (_, payloads) = answer(&mut table, true, &request(GET, 0, of_address(7)));
        assert!(payloads[0].ends_with(&[12, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 7]), "{payloads:?}");
        let (_, payloads) = answer(&mut table, true, &request(GET, flag::DUMP, |_| {}));
        assert_eq!(payloads.len(), 2);
    }

    #[test]
    fn events_are_sent_to_group_for_changes_alone() {
        let mut table = table();
        let mut session = Session::new(true);
        session.bind(1, 1 << (EVENTS - 1)).unwrap();
        let mut events = |bytes: &[u8]| {
            let mut outbox = Outbox::default();
            let listeners = session.groups();
            session.handle(bytes, &mut table, listeners, &mut outbox);
            let is_event = |to: &crate::To| *to == crate::To::Group { group: EVENTS, echoed: false };
            let events = outbox.iter().filter(|(to, _)| is_event(to)).flat_map(|(_, bytes)| Messages::new(bytes));
            events.map(|message| (message.payload()[0], message.header.flags)).collect::<Vec<_>>()
        };
        type Events = &'static [(u8, u16)];
        let cases: [(Vec<u8>, Events); 8] = [
            (request(ADD, 0, of_address(7)), &[(ADD, flag::CREATE)]),
            (request(ADD, 0, of_address(7)), &[]),
            (request(ADD, flag::REPLACE, of_address(7)), &[(ADD, flag::REPLACE)]),
            (request(ADD, flag::REPLACE, of_address(8)), &[]),
            (request(GET, 0, of_address(7)), &[]),
            (request(DEL, 0, of_address(8)), &[]),
            (request(DEL, 0, of_address(7)), &[(DEL, 0)]),
            (request(FLUSH, 0, |_| {}), &[(FLUSH, 0)]),
        ];
        for (bytes, want) in cases {
            assert_eq!(events(&bytes), want);
        }
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
        let name = MappingName { locator_match: Locator(M), identifier: None, ifindex: 3 };
        let mapping = Mapping { name, locator: Locator(5), csum_mode, ident_type: IdentType::Luid };
        let mut saved = mapping.saved(Some("wan"));
        assert_eq!(saved.label, "ILA mapping 2001:db8:0:1 dev wan");
        renumber(&mut saved.message, |old| (old == 3).then_some(7)).unwrap();
        let mut table = table();
        carry_out(&mut table, &saved.message).unwrap();
        assert_eq!(table.ila.0, [Mapping { name: MappingName { ifindex: 7, ..name }, ..mapping }]);
        assert_eq!(renumber(&mut saved.message, |_| None), Err(7));
        let name = MappingName { identifier: Some(Identifier(0x2000_0000_0000_0007)), ifindex: 0, ..name };
        let mapping = Mapping { name, ..mapping };
        let mut any = mapping.saved(None);
        assert_eq!(any.label, "ILA mapping 2001:db8:0:1 identifier 2000:0:0:7");
        carry_out(&mut table, &any.message).unwrap();
        assert_eq!(table.ila.0[1], mapping);
        assert_eq!(renumber(&mut any.message, |_| None), Ok(()));
    }
}
