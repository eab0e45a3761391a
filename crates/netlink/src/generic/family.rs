//! Descriptions of families for the controller, and requests to families.

use crate::error::{Error, errno};
use crate::message::HEADER_LEN;
use crate::session::Request;

/// Length of `struct genlmsghdr`.
const LEN: usize = 4;

/// Offset of the attributes in a message.
pub(super) const ATTRS_AT: u32 = (HEADER_LEN + LEN) as u32;

/// Flag of an operation for administrators (`GENL_ADMIN_PERM`).
pub(super) const NEEDS_ADMIN: u32 = 1;
/// Flag of an operation that can be requested for one object (`GENL_CMD_CAP_DO`).
pub(super) const CAN_DO: u32 = 2;
/// Flag of an operation that can be requested as a dump (`GENL_CMD_CAP_DUMP`).
pub(super) const CAN_DUMP: u32 = 4;
/// Flag of an operation with an attribute policy (`GENL_CMD_CAP_HASPOL`).
pub(super) const HAS_POLICY: u32 = 8;

/// Description of a family.
#[derive(Debug)]
pub(super) struct Info {
    /// Number: the message type of the family's requests.
    pub(super) id: u16,
    pub(super) name: &'static str,
    pub(super) version: u8,
    pub(super) max_attr: u32,
    pub(super) ops: &'static [Op],
    /// Numbers and names of the family's multicast groups.
    pub(super) groups: &'static [(u32, &'static str)],
}

/// Operation of a family.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) command: u8,
    pub(super) flags: u32,
}

/// Request to a family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) command: u8,
    /// Flags of the message's header (`NLM_F_*`).
    pub(super) flags: u16,
    pub(super) attrs: &'a [u8],
}

impl<'a> Call<'a> {
    /// Parses the generic netlink header.
    ///
    /// # Errors
    /// `EINVAL`: the header is truncated.
    pub(super) fn of(request: &Request<'a>) -> Result<Self, Error> {
        match request.payload() {
            [command, _, _, _, attrs @ ..] => {
                Ok(Self { command: *command, flags: request.message.header.flags, attrs })
            }
            _ => Err(Error::new(errno::EINVAL)),
        }
    }
}
