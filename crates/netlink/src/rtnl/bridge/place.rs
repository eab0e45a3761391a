//! Position of a link in a bridge.

use base::LinkId;

use crate::error::{Error, errno};
use crate::rtnl::entry::Master;
use crate::rtnl::model::Model;

/// Bridge of a link, and the link if it is a port. `None` for a link without bridge.
pub(super) fn place_of(model: &Model, index: u32) -> Result<Option<(LinkId, Option<LinkId>)>, Error> {
    let link = model.link(index).ok_or(Error::new(errno::ENODEV))?;
    Ok(match link.master {
        _ if link.is_bridge() => Some((LinkId(index), None)),
        Some(Master { index: bridge, table: None }) => Some((LinkId(bridge), Some(LinkId(index)))),
        _ => None,
    })
}
