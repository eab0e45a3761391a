//! A model of IBM's virtual Ethernet adapter for POWER partitions, and of the hypervisor's LAN between such adapters.
//!
//! **A model**: it runs on no POWER machine, no driver but this one has met it, and there is no oracle for it. It is there to show
//! large send and checksum offload between a guest and the wire through a trunk adapter, and each rule of it in a test.
//!
//! - [`Adapter`] is the driver with its device: it refills five pools of receive buffers, agrees with the hypervisor about
//!   checksums and large send, sends packets and receives them. Names, sizes and defaults are those of Linux's `ibmveth`.
//! - [`Lan`] is the hypervisor: the second party, with rules of its own. It carries frames between buffers by copying them, knows
//!   trunks by priority and VLANs, and believes nothing that an adapter says.
//! - [`Attributes`] is the word by which both agree; [`BufDesc`] and [`RxEntry`] describe buffers and frames;
//!   [`IoMemory`] is the memory that both see.
//! - [`TrunkAdapter`] is an adapter as a link of a node, in this process; the datapath's own bridge has it as a port.
//!
//! Two conventions say that a frame is fat. In the **new style** a flag is set, the MSS is in the call that sends, and at byte 8 of the
//! receive buffer. In the **old style** the IPv4 checksum is 0xffff and the MSS is in the place of the TCP checksum: IPv6, which has no
//! such checksum, cannot be sent so.
//!
//! Decisions that differ from Linux's driver, each with a test: a tagged frame keeps its offloads; a frame that is longer than the MTU,
//! comes with its checksum, and has no mark is taken for a long one, where the driver takes its checksum for an MSS; an adapter that
//! receives an entry that cannot be is reset, where older drivers stop the system.
//!
//! Limits: one adapter sends by one queue at a time; interrupts are not modelled, an adapter is polled.
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

pub use adapter::{
    Adapter, AdapterConfig, AdapterCounters, FragListMode, MAX_TX_QUEUES, Style, TxError, TxOffloads, default_tx_queues,
};
pub use attributes::Attributes;
pub use descriptor::{BufDesc, FrameFlags, RxEntry};
pub use error::{Refusal, SettingError};
pub use io_memory::IoMemory;
pub use lan::{AdapterPlace, BUFFERS_PER_CALL, Firmware, Lan, LanCounters, MAX_VLANS, McastCommand, SendAnswer, Unit};
pub use pool::{MAX_COUNT, MAX_SIZE, OVERHEAD, PoolConfig};
pub use stats::Stats;
pub use trunk_adapter::{SharedLan, TrunkAdapter};
