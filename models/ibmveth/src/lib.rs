//! A model of IBM's virtual Ethernet adapter for POWER partitions, and of the hypervisor's LAN between such adapters.
//!
//! **A model**: it does not run on POWER, no other driver has been tested with it, and there is no oracle for it. Its
//! purpose is to show large send and checksum offload between a guest and the wire through a trunk adapter, with a test
//! for each rule.
//!
//! # Decides
//! - [`Adapter`] is driver and device: it refills five pools of receive buffers, negotiates checksums and large send
//!   with the hypervisor, and sends and receives packets. Names, sizes and defaults are those of Linux's `ibmveth`.
//! - [`Lan`] is the hypervisor. It copies frames between buffers, knows trunks by priority and VLANs, and trusts no
//!   value of an adapter.
//! - [`Attributes`] is the negotiated word; [`BufDesc`] and [`RxEntry`] describe buffers and frames; [`IoMemory`] is
//!   the shared memory.
//! - [`TrunkAdapter`] is an adapter as a link of a node, in this process; the datapath's own bridge has it as a port.
//!
//! # Leaves to others
//! The `Link` trait (crate [`link`]), and the bridge (crate `switch`).
//!
//! # Limits
//! - [`MAX_COUNT`]: 4096 buffers of a pool, each of at most [`MAX_SIZE`] (128 KiB); [`BUFFERS_PER_CALL`]: 8 are added
//!   by one call.
//! - [`MAX_VLANS`]: 20 VLANs of an adapter, besides that of its untagged frames.
//! - [`MAX_TX_QUEUES`]: 16 transmit queues, of which one sends at a time.
//! - [`Firmware::MAX_DESCRIPTORS`]: 128 descriptors of a frame, [`Firmware::DESCRIPTORS`] (6) by default; 65 536 bytes
//!   (`MAX_FRAME` in `lan/forward.rs`).
//! - Interrupts are not modelled, an adapter is polled.
//!
//! # Standards
//! Checksums are those of RFC 9293 §3.1 (TCP) over RFC 791 §3.1 (IPv4) and RFC 8200 §8.1 (IPv6), tags those of IEEE
//! 802.1Q. The adapter itself has no RFC; it follows Linux's `ibmveth.c`.
//!
//! # Fat frames
//! Two conventions mark a fat frame. In the **new style** a flag is set, and the MSS is an argument of the send call,
//! and at byte 8 of the receive buffer. In the **old style** the IPv4 checksum is 0xffff and the MSS is in place of the
//! TCP checksum: IPv6, which has no header checksum, cannot be sent so.
//!
//! Differences from Linux's driver, each with a test: a tagged frame keeps its offloads; a frame longer than the MTU
//! with its checksum and without a mark is a long frame, where the driver takes its checksum for an MSS; an adapter
//! that receives an invalid entry is reset, where older drivers stop the system.
#![forbid(unsafe_code)]

mod adapter;
mod attributes;
mod descriptor;
mod error;
mod frame;
mod io_memory;
mod lan;
mod pool;
mod stats;
mod trunk_adapter;

pub use adapter::{Adapter, AdapterConfig, AdapterCounters, FragListMode, MAX_TX_QUEUES, Style, TxError, TxOffloads};
pub use attributes::Attributes;
pub use descriptor::{BufDesc, FrameFlags, RxEntry};
pub use error::{Refusal, SettingError};
pub use io_memory::IoMemory;
pub use lan::{AdapterPlace, BUFFERS_PER_CALL, Firmware, Lan, LanCounters, MAX_VLANS, McastCommand, SendAnswer, Unit};
pub use pool::{MAX_COUNT, MAX_SIZE, OVERHEAD, PoolConfig};
pub use stats::Stats;
pub use trunk_adapter::{SharedLan, TrunkAdapter};
