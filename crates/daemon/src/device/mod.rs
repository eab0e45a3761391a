//! Devices of TUN and TAP links in the gateway's own network namespace, outside of its host side.
//!
//! - [`owner`] marks the devices that the gateway makes with its name. They stay when it ends, so that packets into
//!   them are lost instead of sent in clear by another route; [`remove`] removes them.
//! - [`settings`] sets addresses and routes of the file on a device.
//! - [`wall`] computes the routes that drop packets beside the routes over devices, and [`guard`] keeps them while the
//!   routes change.

mod guard;
mod owner;
mod remove;
mod settings;
mod wall;

pub(crate) use guard::{guard, hold_guard, look_again};
pub(crate) use owner::{
    Prepared, claim, keeps, keeps_now, note_remade, owner, owner_of, prepare, set_owner, tun_devices,
};
pub use remove::{Removed, remove};
pub(crate) use settings::{DeviceSettings, change};
#[cfg(test)]
pub(crate) use wall::wall_of;
pub(crate) use wall::{has_room_for_wall, is_present, is_wall_of};

/// Protocol of the addresses and routes that a file has for a device, a number that Linux gives to no program.
pub(crate) const PROTOCOL: u8 = 103;
/// Protocol of the routes that drop packets.
const WALL_PROTOCOL: u8 = 104;
