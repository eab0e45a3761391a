//! A learning bridge with VLANs and trunks. It decides which ports a frame leaves by and with which tag; it sees no bytes.
//!
//! - [`Bridge`] is ports, VLANs, settings and the forwarding database. [`Bridge::receive`] decides about a frame that a port
//!   has received, and [`Bridge::send`] about one of the bridge's own port. [`Egress`] has the frame's destinations, and the
//!   [`Verdict`] says whether there are any, or by which [`Refusal`] the frame is dropped.
//! - [`Frame`] is the whole input of a decision. 802.1Q tags are in metadata from ingress to egress, so that a frame keeps its
//!   checksum and segmentation offloads. A tag of another protocol is payload.
//! - Addresses are learnt by VLAN, and age. A port learns [`PortConfig::FDB_LIMIT`] of them at most, unless set otherwise, so
//!   that a guest that invents addresses fills its own share. A frame costs two look-ups, however many addresses and VLANs
//!   there are; nothing is scanned but ports, for a flood.
//! - [`exceeds_mtu`] is the rule by which a port drops a long frame. Fat frames are never dropped for their length.
//!
//! The bridge does as Linux does (`br_input.c`, `br_forward.c`, `br_fdb.c`, `br_vlan.c` of 6.12), with its names and defaults:
//!
//! | frame | goes to |
//! |---|---|
//! | from a group or zero | nowhere |
//! | to 01-80-C2-00-00-01 | nowhere |
//! | to 01-80-C2-00-00-0x | the port's own device, unless a group mask has it; -00 is forwarded |
//! | outside the port's VLANs, or untagged without a PVID | nowhere |
//! | to a group | each port of its VLAN with multicast or broadcast flood, and up |
//! | to an address of the bridge or a port | up |
//! | to an address behind a port | that port, if it is in the VLAN, forwards, and is not isolated from the ingress |
//! | to an unknown address | each port of its VLAN with unicast flood |
//!
//! A *static* entry follows its address to another port, as on Linux; a *sticky* one stays, and so does a local one.
//!
//! **Trunks** lead to the same wire outside ([`PortConfig::trunk`]), and of each VLAN one of them is active: of those that forward
//! and are members of it, the one of the highest priority, and of equal ones that of the lowest link number. Unknown unicast
//! goes to the active trunk alone, neither to other trunks nor to ordinary ports; from the active trunk it is flooded to ordinary
//! ports. Groups and broadcasts go to ordinary ports and to the active trunk. Standby trunks send nothing, and drop the frames
//! that they receive, which the active trunk receives too. Dynamic entries behind a trunk are flushed when another trunk becomes
//! active in the VLAN. Without unicast flood a trunk leaves unknown unicast to ordinary flooding.
//!
//! Differences from Linux: learnt addresses are bounded by port rather than by bridge, and a learnt address that moves to a full
//! port is forgotten; the MTU is of the egress port, with four bytes for a tag that is payload, as in Open vSwitch, where Linux's
//! bridge always adds four; a request for several VLANs applies whole or not at all.
//!
//! Not here: STP itself (a program sets states), IGMP and MLD snooping (groups are flooded), states by VLAN, backup ports,
//! suppression of neighbour discovery, 802.1ad filtering, and flow tables.
#![forbid(unsafe_code)]

mod bridge;
mod error;
mod fdb;
mod forward;
mod frame;
mod list;
mod mtu;
mod port;
mod stats;
mod vid;
mod vlans;

pub use bridge::{Bridge, FdbRequest, FlushFilter};
pub use error::{BridgeError, FdbError};
pub use fdb::{FdbChange, FdbChanges, FdbEntry, FdbKind, TICK};
pub use frame::{Egress, Exit, Frame, Refusal, Upward, Verdict};
pub use mtu::exceeds_mtu;
pub use port::{GroupMask, Port, PortConfig, PortState, TrunkPriority};
pub use stats::{LearnStats, PortStats, VlanStats};
pub use vid::{Vid, VidSet};
pub use vlans::{VlanFlags, Vlans};
