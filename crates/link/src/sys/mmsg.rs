//! Many packets in one system call: `sendmmsg` and `recvmmsg`.
//!
//! Both batches live on the caller's stack and borrow the memory that the kernel reads or fills, so no pointer outlives
//! its call.
#![allow(clippy::unnecessary_cast, reason = "lengths in msghdr and flags have other types with musl")]

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use arrayvec::ArrayVec;

use super::{check, uninterrupted};

/// Maximum number of packets in one call.
pub(crate) const MAX_MESSAGES: usize = 64;

/// Maximum number of pieces of all packets in one call, and of one packet (`UIO_MAXIOV`).
pub(crate) const MAX_PIECES: usize = 1024;

/// Pieces of a receive slot.
pub(crate) const SLOT_PIECES: usize = 3;

/// Packets to be sent.
///
/// Invariant 1: every entry of `iov`, and every name and control pointer of `messages`, is a slice borrowed for `'a`.
/// Invariant 2: `messages[i]` has `msg_iovlen` entries of `iov`, which follow those of `messages[i - 1]`.
pub(crate) struct SendBatch<'a> {
    iov: ArrayVec<libc::iovec, MAX_PIECES>,
    messages: ArrayVec<libc::mmsghdr, MAX_MESSAGES>,
    borrowed: PhantomData<&'a [u8]>,
}

/// Reason why a packet was not added to a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NoRoom {
    /// The batch is full: send it first.
    Batch,
    /// The packet has more pieces than any batch takes.
    Packet,
}

impl<'a> SendBatch<'a> {
    pub(crate) fn new() -> Self {
        Self { iov: ArrayVec::new(), messages: ArrayVec::new(), borrowed: PhantomData }
    }

    /// Adds a packet that consists of `pieces`.
    pub(crate) fn push(
        &mut self,
        name: &'a [u8],
        control: &'a [u8],
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), NoRoom> {
        if self.messages.is_full() {
            return Err(NoRoom::Batch);
        }
        let before = self.iov.len();
        for piece in pieces {
            let entry = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
            if self.iov.try_push(entry).is_err() {
                self.iov.truncate(before);
                return Err(if before == 0 { NoRoom::Packet } else { NoRoom::Batch });
            }
        }
        let mut message = empty_message();
        message.msg_hdr.msg_name = name.as_ptr().cast_mut().cast();
        message.msg_hdr.msg_namelen = name.len() as libc::socklen_t;
        message.msg_hdr.msg_control = control.as_ptr().cast_mut().cast();
        message.msg_hdr.msg_controllen = control.len() as _;
        message.msg_hdr.msg_iovlen = (self.iov.len() - before) as _;
        self.messages.push(message);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Sends the packets, and returns how many were sent. An error is about the first packet.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        point_at_pieces(&mut self.messages, &mut self.iov);
        let (start, count) = (self.messages.as_mut_ptr(), self.messages.len() as u32);
        // SAFETY: `start` has `count` messages; by invariants 1 and 2 they point at memory that is borrowed until after
        // this call. The kernel writes `msg_len` alone.
        let sent =
            uninterrupted(|| check(unsafe { libc::sendmmsg(fd.as_raw_fd(), start, count, libc::MSG_NOSIGNAL as _) }))?;
        Ok(sent as usize)
    }
}

/// Lengths and flags of one received packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Bytes, over all pieces of the slot.
    pub(crate) len: usize,
    /// Bytes of the sender's address.
    pub(crate) name_len: usize,
    /// Bytes of control messages.
    pub(crate) control_len: usize,
    /// `MSG_TRUNC`: the packet had more bytes than the slot.
    pub(crate) truncated: bool,
}

/// Slots for packets to be received. The invariants are those of [`SendBatch`], with exclusive borrows.
pub(crate) struct RecvBatch<'a> {
    iov: ArrayVec<libc::iovec, { SLOT_PIECES * MAX_MESSAGES }>,
    messages: ArrayVec<libc::mmsghdr, MAX_MESSAGES>,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> RecvBatch<'a> {
    pub(crate) fn new() -> Self {
        Self { iov: ArrayVec::new(), messages: ArrayVec::new(), borrowed: PhantomData }
    }

    /// Adds a slot: the packet is received into these pieces, in order.
    ///
    /// # Panics
    /// When there are [`MAX_MESSAGES`] already.
    pub(crate) fn push<const N: usize>(
        &mut self,
        name: &'a mut [u8],
        control: &'a mut [u8],
        pieces: [&'a mut [u8]; N],
    ) {
        const { assert!(N <= SLOT_PIECES) };
        let before = self.iov.len();
        for piece in pieces {
            if !piece.is_empty() {
                self.iov.push(libc::iovec { iov_base: piece.as_mut_ptr().cast::<c_void>(), iov_len: piece.len() });
            }
        }
        let mut message = empty_message();
        message.msg_hdr.msg_name = name.as_mut_ptr().cast();
        message.msg_hdr.msg_namelen = name.len() as libc::socklen_t;
        message.msg_hdr.msg_control = control.as_mut_ptr().cast();
        message.msg_hdr.msg_controllen = control.len() as _;
        message.msg_hdr.msg_iovlen = (self.iov.len() - before) as _;
        self.messages.push(message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Receives waiting packets without blocking: one entry for each, in the order of the slots.
    pub(crate) fn recv(&mut self, fd: BorrowedFd<'_>) -> io::Result<ArrayVec<Received, MAX_MESSAGES>> {
        self.recv_with(fd, libc::MSG_DONTWAIT)
    }

    /// As [`recv`](Self::recv), from the error queue: the quoted payload of each packet that an error is about.
    pub(crate) fn recv_errors(&mut self, fd: BorrowedFd<'_>) -> io::Result<ArrayVec<Received, MAX_MESSAGES>> {
        self.recv_with(fd, libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE)
    }

    fn recv_with(&mut self, fd: BorrowedFd<'_>, flags: i32) -> io::Result<ArrayVec<Received, MAX_MESSAGES>> {
        point_at_pieces(&mut self.messages, &mut self.iov);
        let (start, count) = (self.messages.as_mut_ptr(), self.messages.len() as u32);
        let forever = std::ptr::null_mut();
        // SAFETY: `start` has `count` messages; by invariants 1 and 2 they point at memory that is exclusively borrowed
        // until after this call, and bytes of any value are valid there.
        let got =
            uninterrupted(|| check(unsafe { libc::recvmmsg(fd.as_raw_fd(), start, count, flags as _, forever) }))?;
        let received = self.messages.iter().take(got as usize).map(|message| Received {
            len: message.msg_len as usize,
            name_len: message.msg_hdr.msg_namelen as usize,
            control_len: message.msg_hdr.msg_controllen as usize,
            truncated: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        });
        Ok(received.collect())
    }
}

/// Establishes invariant 2 once the arrays do not move any more.
fn point_at_pieces(messages: &mut [libc::mmsghdr], iov: &mut [libc::iovec]) {
    let mut rest = iov;
    for message in messages {
        let (own, others) = rest.split_at_mut(message.msg_hdr.msg_iovlen as usize);
        message.msg_hdr.msg_iov = own.as_mut_ptr();
        rest = others;
    }
}

fn empty_message() -> libc::mmsghdr {
    // SAFETY: a structure of numbers and pointers, for which all zeros is the documented empty value.
    unsafe { std::mem::zeroed() }
}
