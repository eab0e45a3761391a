//! Rtnetlink sockets of a kernel: dumps, requests with their acknowledgements, and notifications (rtnetlink(7)).

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use netlink::message::{Message, Messages, Writer, kind};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recv, send, socket_with,
};

use super::host::rtnl;

/// Largest part of a dump in bytes.
pub(crate) const BUFFER: usize = 64 << 10;
/// Timeout of the kernel's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Socket's buffer in bytes.
const ROOM: usize = 1 << 20;

/// Opens a socket in the network namespace of the calling thread. It receives the notifications of `groups`, of which
/// group `n` is bit `n - 1`.
///
/// # Errors
/// Errors of socket(2) and bind(2).
pub(crate) fn socket(groups: u32) -> Result<OwnedFd, Errno> {
    // Netlink protocol 0 is rtnetlink.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Socket for requests.
#[derive(Debug)]
pub(crate) struct Rtnetlink {
    socket: OwnedFd,
    /// Port of the socket, which notifications of its requests have.
    pub(crate) port: u32,
    seq: u32,
    buffer: Vec<u8>,
}

impl Rtnetlink {
    /// Requests by a socket that receives no notifications.
    ///
    /// # Errors
    /// Errors of setsockopt(2) and getsockname(2).
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        for of in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, of, Some(PATIENCE))?;
        }
        set_socket_recv_buffer_size(&socket, ROOM)?;
        let port = SocketAddrNetlink::try_from(getsockname(&socket)?)?.pid();
        Ok(Self { socket, port, seq: 0, buffer: vec![0; BUFFER] })
    }

    /// Requests in the network namespace of the calling thread.
    ///
    /// # Errors
    /// As [`socket`] and [`Self::new`].
    pub(crate) fn open() -> io::Result<Self> {
        Self::new(socket(0)?)
    }

    /// Passes each message of a dump to `each`.
    ///
    /// # Errors
    /// The kernel refuses, or the socket does not answer.
    pub(crate) fn dump(&mut self, of: u16, mut each: impl FnMut(&Message<'_>)) -> io::Result<()> {
        let mut writer = Writer::default();
        self.seq = self.seq.wrapping_add(1);
        rtnl::write_dump(&mut writer, of, self.seq);
        self.send(writer.as_bytes())?;
        loop {
            let len = self.receive()?;
            for message in Messages::new(&self.buffer[..len]) {
                match message.header.kind {
                    _ if message.header.seq != self.seq => {}
                    kind::DONE => return Ok(()),
                    kind::ERROR => return Err(io::Error::from_raw_os_error(rtnl::errno_of(&message))),
                    _ => each(&message),
                }
            }
        }
    }

    /// Makes one request.
    ///
    /// # Errors
    /// The kernel refuses, or the socket does not answer.
    pub(crate) fn ask(&mut self, write: impl FnOnce(&mut Writer, u32)) -> io::Result<()> {
        let mut write = Some(write);
        let answers = self.ask_all(1, |writer, seq, _| {
            if let Some(write) = write.take() {
                write(writer, seq);
            }
        })?;
        match answers.first() {
            None | Some(&(_, 0)) => Ok(()),
            Some(&(_, errno)) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Makes `count` requests in one datagram, each written by `write` with its sequence number and position. Returns
    /// the position of each answered request with 0 or an `errno`.
    ///
    /// # Errors
    /// The socket does not answer.
    pub(crate) fn ask_all(
        &mut self,
        count: usize,
        mut write: impl FnMut(&mut Writer, u32, usize),
    ) -> io::Result<Vec<(usize, i32)>> {
        let mut writer = Writer::default();
        let first = self.seq.wrapping_add(1);
        for at in 0..count {
            self.seq = self.seq.wrapping_add(1);
            write(&mut writer, self.seq, at);
        }
        self.send(writer.as_bytes())?;
        let mut answers = Vec::new();
        while answers.len() < count {
            let len = self.receive()?;
            for message in Messages::new(&self.buffer[..len]) {
                let at = message.header.seq.wrapping_sub(first) as usize;
                if message.header.kind == kind::ERROR && at < count {
                    answers.push((at, rtnl::errno_of(&message)));
                }
            }
        }
        Ok(answers)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        rustix::io::retry_on_intr(|| send(&self.socket, bytes, SendFlags::empty()))?;
        Ok(())
    }

    fn receive(&mut self) -> io::Result<usize> {
        let Self { socket, buffer, .. } = self;
        let (len, _) = rustix::io::retry_on_intr(|| recv(&*socket, buffer.as_mut_slice(), RecvFlags::empty()))?;
        Ok(len.min(buffer.len()))
    }
}
