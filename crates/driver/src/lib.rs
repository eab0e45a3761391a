//! Kinds of links that have a driver, as plain data: the settings that a configuration gives, and that a driver opens.
//!
//! This crate decides which [kinds](DriverKind) there are, their settings, limits and words. It leaves the reading of settings
//! to the crate of configurations, and the opening of devices and sockets to the crate of links: nothing here does I/O. Limits
//! are those of the kernel and of vhost-user; they are constants here, and checked where settings are read or opened.
#![forbid(unsafe_code)]

mod kind;
mod xdp_mode;

pub use kind::DriverKind;
pub use xdp_mode::XdpMode;
