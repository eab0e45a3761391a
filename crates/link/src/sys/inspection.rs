//! Kinds of descriptors in an unread message of a Unix socket, found out by a thread that receives copies of them in a table
//! of its own.
//!
//! The sender of a descriptor decides how long calls on it take: a file of a FUSE file system blocks its status, its mapping
//! and each close (Linux `fuse_flush`), a socket with `SO_LINGER` its last close. So a thread that must not block receives
//! only descriptors of kinds whose calls do not block: eventfds, and files of memory. The message stays in the socket
//! meanwhile, and its receiver is the only reader, so that it receives the descriptors that were inspected.

use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

use rustix::fs::fstatfs;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use super::discard::{close_all_but, own_table};
use super::guest_memory::is_memory;

/// Maximum number of descriptors in a message (Linux `SCM_MAX_FD`).
const MAX_DESCRIPTORS: usize = 253;

/// Stack size of the thread.
const STACK: usize = 64 << 10;

/// Held by each thread that inspects for one receiver, until the thread has closed its copies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inspector(Arc<()>);

impl Inspector {
    /// Tells whether a thread has not closed its copies.
    pub(crate) fn is_busy(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Inspection of one message.
#[derive(Debug)]
pub(crate) struct Inspection(Receiver<Result<(), &'static str>>);

impl Inspection {
    /// Starts to inspect the message of `len` bytes that is next in `socket`, and may have `most` descriptors. `done` is an eventfd of this process, written to
    /// when there is a result, and when the copies are closed.
    ///
    /// # Errors
    /// A thread cannot be started, or has no table of its own.
    pub(crate) fn begin(
        inspector: &Inspector,
        socket: impl AsFd,
        len: usize,
        most: usize,
        done: &OwnedFd,
    ) -> io::Result<Self> {
        let (result, found) = sync_channel(1);
        let (ready, is_ready) = sync_channel(1);
        let (number, done_number) = (socket.as_fd().as_raw_fd(), done.as_raw_fd());
        let inspector = inspector.clone();
        let work = move || {
            let copied = own_table();
            let is_copied = copied.is_ok();
            let _ = ready.send(copied);
            if !is_copied || close_all_but([number, done_number]).is_err() {
                return;
            }
            // SAFETY: open in this thread's table until its end: the caller keeps it open until it is copied.
            let socket = unsafe { BorrowedFd::borrow_raw(number) };
            // SAFETY: as above.
            let done = unsafe { BorrowedFd::borrow_raw(done_number) };
            let rights = peek(socket, len);
            let _ = result.send(check_rights(&rights, most));
            let _ = rustix::io::write(done, &1_u64.to_ne_bytes());
            // May block this thread.
            drop(rights);
            drop(inspector);
            let _ = rustix::io::write(done, &1_u64.to_ne_bytes());
        };
        thread::Builder::new().name("inspect".to_owned()).stack_size(STACK).spawn(work)?;
        is_ready.recv().map_err(|_| io::ErrorKind::Other)??;
        Ok(Self(found))
    }

    /// Result, once there is one; an error says why the message is refused.
    pub(crate) fn result(&self) -> Option<Result<(), &'static str>> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("descriptors that cannot be inspected")),
        }
    }
}

/// Tells whether descriptors may be received.
fn check_rights(rights: &io::Result<Vec<OwnedFd>>, most: usize) -> Result<(), &'static str> {
    match rights {
        Err(_) => Err("descriptors that cannot be received"),
        Ok(rights) if rights.len() > most => Err("message with too many descriptors"),
        Ok(rights) if rights.iter().all(|fd| is_eventfd(fd.as_fd()) || is_file_of_memory(fd)) => Ok(()),
        Ok(_) => Err("descriptors that are neither eventfds nor files of memory"),
    }
}

/// Copies of the descriptors in the next message.
fn peek(socket: BorrowedFd<'_>, len: usize) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; len];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let peeked = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let rights = rights.flatten().collect();
    if peeked.flags.contains(ReturnFlags::CTRUNC) { Err(io::ErrorKind::InvalidData.into()) } else { Ok(rights) }
}

/// Tells whether a descriptor is an eventfd. The name is the kernel's, and not asked from a file system.
pub(crate) fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let name = fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()));
    name.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

fn is_file_of_memory(fd: &OwnedFd) -> bool {
    fstatfs(fd).is_ok_and(|kind| is_memory(&kind))
}
