//! Delivery of answers and notifications, as far as the client has room.

use std::io::IoSlice;

use netlink::{Outbox, To};
use nlsock::{FromDaemon, protocol};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sockopt};

use super::{Client, Gone};
use crate::netlink::protocols::Protocols;

/// Limits of the socket buffer: room for the longest datagram, as the kernel accounts it; and the largest allowed size.
const MIN_ROOM: u32 = 256 << 10;
const MAX_ROOM: u32 = 16 << 20;

/// Parts of a dump that are written before other clients are served, for a client that may change the node.
const PARTS: usize = 4;

impl Client {
    /// Sends the client its answers in `outbox`. Parts of a dump wait until the client has room; other answers without
    /// room are lost, and the client gets an overrun later. `prompt`: the gateway will answer the next request soon.
    pub(in super::super) fn deliver(&mut self, outbox: &Outbox, prompt: bool) -> Result<(), Gone> {
        let mut parts = outbox.iter().filter(|(to, _)| *to == To::Dumper).count();
        let is_dump = parts > 0;
        let goes_on = self.is_dumping();
        let mut answers = outbox.iter().filter(|(to, _)| *to == To::Requester).count();
        for (to, bytes) in outbox.iter() {
            match to {
                To::Requester => {
                    answers -= 1;
                    let last = answers == 0 && !is_dump && !self.overrun && self.unserved.is_empty();
                    self.offer(FromDaemon::Answer { prompt, last }, bytes)?;
                }
                To::Dumper => {
                    parts -= 1;
                    let word = FromDaemon::Part { last: parts == 0 && !goes_on }.to_word();
                    if !self.waiting.is_empty() || !self.try_send(word, bytes)? {
                        self.waiting.push_back([&word, bytes].concat());
                    }
                }
                To::Group { .. } => {}
            }
        }
        let full = !self.waiting.is_empty();
        self.socket.netlink_mut().into_iter().for_each(|socket| socket.set_full(full));
        Ok(())
    }

    /// Notifies the client of an event in a group that it listens to, if it has room.
    pub(in super::super) fn notify(&mut self, group: u32, bytes: &[u8]) -> Result<(), Gone> {
        self.offer(FromDaemon::Group(group), bytes)
    }

    /// Sends a datagram, or loses it (Linux `netlink_attachskb` of the kernel's own messages).
    fn offer(&mut self, from: FromDaemon, bytes: &[u8]) -> Result<(), Gone> {
        if !self.is_through()? || !self.try_send(from.to_word(), bytes)? {
            self.lose();
        }
        Ok(())
    }

    /// Records that a message to the client was lost.
    pub(in super::super) fn lose(&mut self) {
        self.overrun = self.socket.netlink().is_some_and(|socket| socket.reports_overruns());
    }

    /// Tells whether nothing is pending for the client, overruns included. Pending messages are sent only when the
    /// socket has much room again.
    fn is_through(&mut self) -> Result<bool, Gone> {
        if self.waiting.is_empty() && !self.overrun {
            return Ok(true);
        }
        let now = Timespec::default();
        let fd = self.fd();
        let mut room = [PollFd::new(&fd, PollFlags::OUT)];
        let has_room = poll(&mut room, Some(&now)).is_ok() && room[0].revents().contains(PollFlags::OUT);
        if has_room {
            self.flush()?;
        }
        Ok(self.waiting.is_empty() && !self.overrun)
    }

    /// Sends pending parts and overruns, as long as the client has room.
    fn flush(&mut self) -> Result<(), Gone> {
        while let Some(waiting) = self.waiting.pop_front() {
            let (word, bytes) = waiting.split_first_chunk().ok_or(Gone)?;
            if !self.try_send::<{ nlsock::WORD }>(*word, bytes)? {
                self.waiting.push_front(waiting);
                return Ok(());
            }
        }
        self.socket.netlink_mut().into_iter().for_each(|socket| socket.set_full(false));
        if self.overrun && self.try_send(FromDaemon::Overrun.to_word(), &[])? {
            self.overrun = false;
        }
        Ok(())
    }

    /// Sends a datagram. False: the client has no room now.
    pub(super) fn try_send<const N: usize>(&mut self, word: [u8; N], bytes: &[u8]) -> Result<bool, Gone> {
        let parts = [IoSlice::new(&word), IoSlice::new(bytes)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match sendmsg(self.fd(), &parts, &mut SendAncillaryBuffer::default(), flags) {
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) if self.give_room() => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => return Ok(false),
                Err(_) => return Err(Gone),
            }
        }
    }

    /// Sends queued parts and continues the dump, until the client's buffer is full or the dump is complete.
    pub(in super::super) fn go_on(&mut self, protocols: &mut Protocols, outbox: &mut Outbox) -> Result<(), Gone> {
        self.flush()?;
        if !self.waiting.is_empty() {
            return Ok(());
        }
        let parts = if self.privileged { PARTS } else { 1 };
        for _ in 0..parts {
            let dumping = self.socket.netlink_mut().filter(|socket| socket.is_dumping());
            let Some(socket) = dumping else { return Ok(()) };
            outbox.clear();
            socket.continue_dump(protocols, outbox);
            self.is_scanning = outbox.is_empty() && self.is_dumping();
            self.deliver(outbox, false)?;
            if self.protocol() == Some(protocol::XFRM) {
                outbox.wipe();
            }
            if !self.waiting.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }
    /// Sets the socket buffer to the requested size. False if no size was requested.
    pub(super) fn give_room(&mut self) -> bool {
        let Some(bytes) = self.room.take() else { return false };
        self.grown = true;
        // The kernel doubles the value, for its overhead per datagram.
        let half = bytes.clamp(MIN_ROOM, MAX_ROOM) as usize / 2;
        let set = if self.privileged {
            sockopt::set_socket_send_buffer_size_force(self.fd(), half)
        } else {
            sockopt::set_socket_send_buffer_size(self.fd(), half)
        };
        // A kernel that refuses leaves the old size.
        if set.is_err() {
            let _ = sockopt::set_socket_send_buffer_size(self.fd(), half);
        }
        true
    }
}
