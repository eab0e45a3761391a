//! Family `nlctrl`, which describes the families.

use super::family::{ATTRS_AT, CAN_DO, CAN_DUMP, Call, HAS_POLICY, Info, Op};
use crate::attr::{Attr, AttrPolicy, Kind, Strictness, parse, policy};
use crate::error::{Error, errno};
use crate::message::Writer;
use crate::session::{Dump, Progress, Protocol, Reply};

/// Type of the controller's messages (`GENL_ID_CTRL`).
pub(super) const ID: u16 = 16;
/// Reply that describes a family.
const NEWFAMILY: u8 = 1;
/// Request for a family.
pub(super) const GETFAMILY: u8 = 3;

pub(super) mod attr {
    pub(in super::super) const FAMILY_ID: u16 = 1;
    pub(in super::super) const FAMILY_NAME: u16 = 2;
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

const POLICY: AttrPolicy<11> = policy(&[(attr::FAMILY_ID, Kind::Int(2)), (attr::FAMILY_NAME, Kind::NulStr(15))]);

pub(super) const INFO: Info = Info {
    id: ID,
    name: "nlctrl",
    version: 2,
    max_attr: 10,
    ops: &[Op { command: GETFAMILY, flags: CAN_DO | CAN_DUMP | HAS_POLICY }],
    groups: &[(16, "notify")],
};

/// Sends the description of one family, selected by name or number.
pub(super) fn handle(families: &[&'static Info], call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let attrs = parse(call.attrs, ATTRS_AT, &POLICY, Strictness::Liberal)?;
    let id = attrs.get(attr::FAMILY_ID).map(Attr::u16);
    let name = attrs.get(attr::FAMILY_NAME).and_then(Attr::text);
    let family = match (id, name) {
        (None, None) => return Err(Error::new(errno::EINVAL)),
        (_, Some(name)) => families.iter().find(|family| family.name == name),
        (Some(id), None) => families.iter().find(|family| family.id == id),
    };
    let family = family.ok_or(Error::new(errno::ENOENT))?;
    reply.send(ID, 0, |w| write(family, w));
    Ok(())
}

/// Dumps the descriptions of all `families`.
pub(super) fn dump<P: Protocol>(families: &'static [&'static Info]) -> Dump<P> {
    let mut next = 0;
    Box::new(move |_, part| {
        for family in &families[next..] {
            if !part.message(ID, |w| write(family, w)) {
                return Ok(Progress::More);
            }
            next += 1;
        }
        Ok(Progress::Done)
    })
}

/// Writes a family's description, as Linux's `ctrl_fill_info`.
fn write(family: &Info, w: &mut Writer) {
    w.fixed(&[NEWFAMILY, 2, 0, 0]);
    w.put_str(attr::FAMILY_NAME, family.name);
    w.put_u16(attr::FAMILY_ID, family.id);
    w.put_u32(attr::VERSION, family.version.into());
    w.put_u32(attr::HDRSIZE, 0);
    w.put_u32(attr::MAXATTR, family.max_attr);
    w.nest(attr::OPS, |w| {
        for (nth, op) in (1..).zip(family.ops) {
            w.nest(nth, |w| {
                w.put_u32(attr::OP_ID, op.command.into());
                w.put_u32(attr::OP_FLAGS, op.flags);
            });
        }
    });
    if family.groups.is_empty() {
        return;
    }
    w.nest(attr::MCAST_GROUPS, |w| {
        for (nth, (id, name)) in (1..).zip(family.groups) {
            w.nest(nth, |w| {
                w.put_u32(attr::GRP_ID, *id);
                w.put_str(attr::GRP_NAME, name);
            });
        }
    });
}
