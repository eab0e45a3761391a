//! Packets: a linear head, page slots, children, and the pages they point into.
//!
//! This crate decides how bytes are held and when they may be written. It knows no protocol.
//!
//! - A [`Packet`] is head, slots ([`MAX_FRAGS`] at most) and children, with [`Meta`] beside the bytes.
//! - A [`Buf`] is a stretch of one page. Whether it may be written is asked of the buffer and cannot be forgotten by a
//!   transform: exclusive stretches of one page do not overlap, a shared one is never written, and a foreign one
//!   (a guest's memory) never, wherever it went.
//! - [`Memory`] is what a worker allocates from: pools of small and large pages, last in first out, and the ledger of
//!   copied bytes, each with its [`CopyReason`].
//! - A [`Burst`] is packets that came at once: each is asked for, with the record of its page, while a few are in front of
//!   it.
//! - A pool may be a slab ([`Pool::slab`]), the frames that a device receives into. Its pages are like any other, but
//!   scarce: code that holds packets for long copies them ([`Buf::is_scarce`]).
//! - [`Meta::cut`] says whether a packet is whole, fat, several in one buffer, or a fragment. It is one value: a fragment
//!   cannot be fat.
//!
//! Every operation that may fail leaves the packet's bytes as they were. `geometry` (a feature, for tests) makes every
//! shape of the same bytes. The model is Linux's `sk_buff` and `skb_shared_info`.

mod allocations;
mod buf;
mod burst;
mod copies;
mod csum;
mod frames;
mod free_batch;
#[cfg(feature = "geometry")]
pub mod geometry;
mod linear;
mod meta;
mod packet;
mod page;
mod pieces;
mod pool;
mod push_pull;
mod slab;

pub use allocations::Allocations;
pub use buf::{Buf, PageName};
pub use burst::Burst;
pub use copies::{Copied, Copies, CopyReason};
pub use free_batch::FreeBatch;
pub use meta::{Csum, Cut, Esp, EspStatus, Frames, Gso, GsoKind, Meta, PackedOrigin, PktType, SecPath};
pub use packet::{MAX_FRAGS, PACKET_OVERHEAD, Packet};
pub use page::{PoolDry, prefetch, prefetch_to_write};
pub use pieces::Piece;
pub use pool::{Memory, Pool};
pub use push_pull::SlotsFull;
pub use slab::Backing;
