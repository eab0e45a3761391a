//! Packets: a linear head, page fragments, children, and the pages that they point into.
//!
//! # Decides
//! Representation of bytes, and writability of buffers.
//!
//! - A [`Packet`] is head, slots (page fragments) and children, with metadata ([`Meta`]).
//! - A [`Buf`] is a range of one page. Whether it may be written is part of the buffer and cannot be forgotten by a
//!   transform: exclusive buffers of one page do not overlap, a shared one is never written, and neither is a foreign
//!   one (a guest's memory).
//! - [`Memory`] is a worker's allocator: pools of small and large pages, last in first out, and statistics of copied
//!   bytes, each with its [`CopyReason`].
//! - A [`Burst`] is packets received at once: each is prefetched, with the record of its page, a few packets ahead.
//! - A pool may be a slab ([`Pool::slab`]), the frames that a device receives into. Code that holds packets for long
//!   copies them out of a device's frames ([`Buf::is_scarce_frame`]).
//! - [`Meta::cut`] tells whether a packet is whole, fat, several in one buffer, or a fragment. It is one value: a
//!   fragment cannot be fat.
//!
//! [`Budget`] is the limit of the process's memory, against which [`Allocations`] counts: above it pools give no page.
//!
//! A failed operation leaves the packet's bytes as they were. `geometry` (a feature, for tests) makes every shape of
//! the same bytes.
//!
//! # Leaves to others
//! All protocols (crate `wire`), and the meaning of [`Meta`] (crates `offload`, `ipsec` and `datapath`).
//!
//! # Limits
//! [`MAX_FRAGS`]: 48 page fragments of a packet, without its children. A page has less than 1 GiB; a small one
//! [`Memory::SMALL`] bytes (2048), a large one [`Memory::LARGE`] (66 KiB), each with [`Memory::HEADROOM`] (128) in
//! front of a packet.
//!
//! # Standards
//! RFC 1071 §2 (checksums of packets whose ends move). The model is Linux's `sk_buff` and `skb_shared_info`.

mod allocations;
mod budget;
mod buf;
mod burst;
mod copies;
mod csum;
mod frames;
mod free_batch;
#[cfg(feature = "geometry")]
pub mod geometry;
mod linear;
mod live;
mod meta;
mod packet;
mod page;
mod pieces;
mod pool;
mod push_pull;
mod slab;

pub use allocations::Allocations;
pub use budget::{Budget, OverBudget};
pub use buf::{Buf, PageName};
pub use burst::Burst;
pub use copies::{Copied, Copies, CopyReason};
pub use free_batch::FreeBatch;
pub use meta::{Csum, Cut, Esp, EspStatus, Frames, Gso, GsoKind, Maker, Meta, PackedOrigin, PktType, SecPath};
pub use packet::{MAX_FRAGS, PACKET_OVERHEAD, Packet};
pub use page::{PoolDry, prefetch, prefetch_to_write};
pub use pieces::Piece;
pub use pool::{Memory, Pool};
pub use push_pull::SlotsFull;
pub use slab::Backing;
