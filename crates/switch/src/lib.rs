//! A learning bridge with VLANs and trunks. It sees no bytes.
//!
//! # Decides
//! - Ports that a frame leaves by, and its tag: [`Bridge`] is ports, VLANs, settings and the forwarding database.
//!   [`Bridge::receive`] decides about a frame that a port has received, and [`Bridge::send`] about one of the bridge's
//!   bridge device. [`Egress`] has the frame's destinations, and the [`Verdict`] says whether there are any, or by which
//!   [`Refusal`] the frame is dropped.
//! - Addresses that are learnt, by VLAN and port, and their age. A frame costs two look-ups, however many addresses and
//!   VLANs there are; nothing is scanned but ports, for a flood.
//! - Longest frame of a port: its MTU, a header and a tag. Fat frames are never dropped for their length.
//! - Refusal of a bridge whose port is above the bridge itself ([`is_above`]).
//!
//! [`Frame`] is the whole input of a decision. 802.1Q tags are in metadata from ingress to egress, so that a frame
//! keeps its checksum and segmentation offloads. A tag of another protocol is payload.
//!
//! # Leaves to others
//! Tags, segmentation and transmission of frames (crate `datapath`); settings (crates `config` and `netlink`). STP is
//! left to a program, which sets states. No crate has IGMP and MLD snooping (groups are flooded), states by VLAN,
//! backup ports, suppression of neighbour discovery, 802.1ad filtering, or flow tables.
//!
//! # Limits
//! - [`Bridge::MAX_PORTS`]: 1023 ports.
//! - [`PortConfig::FDB_LIMIT`]: 1024 addresses that a port learns, unless set otherwise, so that a guest that invents
//!   addresses fills its own share.
//! - [`Bridge::AGEING_TIME`]: 300 seconds without a frame, unless set otherwise; one call removes at most 1024 expired
//!   entries (`EXPIRED_PER_CALL` in `fdb.rs`).
//! - 16 addresses whose moves are counted at a time (`MAX_WATCHED` in `loop_watch.rs`), and one sign of a loop of each
//!   kind in ten seconds.
//! - [`FdbChanges::MAX`]: 4096 changes that are kept for listeners; later ones are lost.
//! - [`TrunkPriority`]: 0 to 15. [`Vid`]: 1 to 4094.
//!
//! # Standards
//! IEEE 802.1Q §9.6 (VLAN identifiers), IEEE 802.1D §8.4 (states of ports) and Table 7-10 (groups that are not
//! forwarded), IEEE 802.1X (locked ports), IEEE 802.3 Annex 31B (PAUSE frames). No RFC. Follows Linux 6.12's
//! `br_input.c`, `br_forward.c`, `br_fdb.c` and `br_vlan.c`, with its names and defaults.
//!
//! # Forwarding
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
//! | any, of a bridge that is promiscuous | up, too |
//!
//! A *static* entry follows its address to another port, as on Linux; a *sticky* one stays, and so does a local one.
//!
//! **Trunks** lead to the same wire outside ([`PortConfig::trunk`]), and of each VLAN one of them is active: of those
//! that forward and are members of it, the one of the highest priority, and of equal ones that of the lowest link
//! number. Unknown unicast goes to the active trunk alone, neither to other trunks nor to ordinary ports; from the
//! active trunk it is flooded to ordinary ports. Groups and broadcasts go to ordinary ports and to the active trunk.
//! Standby trunks send nothing, and drop the frames that they receive, which the active trunk receives too. Dynamic
//! entries behind a trunk are flushed when another trunk becomes active in the VLAN. Without unicast flood a trunk
//! leaves unknown unicast to ordinary flooding.
//!
//! Differences from Linux: learnt addresses are bounded by port rather than by bridge, and a learnt address that moves
//! to a full port is forgotten; a request for several VLANs applies whole or not at all.
#![forbid(unsafe_code)]

mod above;
mod bridge;
mod error;
mod fdb;
mod forward;
mod frame;
mod list;
mod loop_watch;
mod mtu;
mod port;
mod stats;
mod vid;
mod vlans;

pub use above::is_above;
pub use bridge::{Bridge, FdbRequest, FlushFilter};
pub use error::{BridgeError, FdbError};
pub use fdb::{FdbChange, FdbChanges, FdbEntry, FdbKind, TICK};
pub use frame::{Egress, Exit, Frame, Refusal, Upward, Verdict};
pub use loop_watch::LoopSign;
pub use port::{GroupMask, Port, PortConfig, PortState, TrunkPriority};
pub use stats::{LearnStats, PortStats, VlanStats};
pub use vid::{Vid, VidSet};
pub use vlans::{VlanFlags, Vlans};
