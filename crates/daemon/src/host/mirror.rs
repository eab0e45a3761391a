//! Reconciles the host side's content with the desired content, by a netlink socket in the namespace.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use base::IfAddr;
use netlink::message::{Messages, Writer, kind};
use netlink::rtnl::nums::RTM_GETADDR;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, getsockname, recv, send};

use super::content::{Content, Step};
use super::rtnl::{self, Listed};

/// Number of requests in a datagram: their answers fit into the socket's buffer.
const BATCH: usize = 64;
/// Largest part of a dump in bytes.
const BUFFER: usize = 64 << 10;
/// Timeout of the kernel's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Socket's buffer in bytes.
const ROOM: usize = 1 << 20;

/// The gateway's objects in a namespace, and a socket to change them.
#[derive(Debug)]
pub(super) struct Mirror {
    socket: OwnedFd,
    /// Port of the socket, which notifications of its requests have.
    pub(super) port: u32,
    seq: u32,
    /// Desired content.
    pub(super) desired: Content,
    /// The last refused step and its error.
    pub(super) refused: Option<String>,
    buffer: Vec<u8>,
}

impl Mirror {
    /// Mirror with empty content, by a netlink socket in the namespace.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        for of in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, of, Some(PATIENCE))?;
        }
        set_socket_recv_buffer_size(&socket, ROOM)?;
        let port = SocketAddrNetlink::try_from(getsockname(&socket)?)?.pid();
        Ok(Self { socket, port, seq: 0, desired: Content::default(), refused: None, buffer: vec![0; BUFFER] })
    }

    /// The present devices.
    pub(super) fn devices(&mut self) -> io::Result<Vec<Listed>> {
        let mut listed = Vec::new();
        self.dump(netlink::rtnl::nums::RTM_GETLINK, |message| listed.extend(rtnl::read_link(message)))?;
        Ok(listed)
    }

    /// Deletes a device.
    pub(super) fn remove(&mut self, index: u32) -> io::Result<()> {
        let mut writer = Writer::default();
        self.seq = self.seq.wrapping_add(1);
        rtnl::write_removal(&mut writer, index, self.seq);
        match self.request(writer.as_bytes(), 1)?.first() {
            None | Some(&(_, 0)) => Ok(()),
            Some(&(_, errno)) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Reconciles the kernel with the desired content. Returns the steps that it took.
    ///
    /// # Errors
    /// The socket does not answer. Steps that the kernel refuses are noted, and left.
    pub(super) fn reconcile(&mut self) -> io::Result<Vec<Step>> {
        let steps = self.read()?.steps_to(&self.desired);
        self.carry_out(&steps)?;
        Ok(steps)
    }

    /// Carries out steps. Adding an object that exists, or removing one that does not, counts as success.
    ///
    /// # Errors
    /// The socket does not answer.
    pub(super) fn carry_out(&mut self, steps: &[Step]) -> io::Result<()> {
        for batch in steps.chunks(BATCH) {
            let mut writer = Writer::default();
            let first = self.seq.wrapping_add(1);
            for step in batch {
                self.seq = self.seq.wrapping_add(1);
                rtnl::write_step(&mut writer, step, self.seq);
            }
            for (seq, errno) in self.request(writer.as_bytes(), batch.len())? {
                let step = batch.get(seq.wrapping_sub(first) as usize);
                let Some(step) = step.filter(|_| errno > 0) else { continue };
                let errno = Errno::from_raw_os_error(errno);
                let is_done = match step {
                    Step::AddAddress(_) | Step::AddRoute(_) | Step::AddRule(_) => errno == Errno::EXIST,
                    Step::RemoveAddress(_) | Step::RemoveRoute(_) | Step::RemoveRule(_) => {
                        matches!(errno, Errno::SRCH | Errno::ADDRNOTAVAIL | Errno::NOENT | Errno::NODEV)
                    }
                    Step::Device(..) => false,
                };
                if !is_done {
                    tracing::debug!("host side: {step}: {errno}");
                    self.refused = Some(format!("{step}: {errno}"));
                }
            }
        }
        Ok(())
    }

    /// Dumps the present content.
    pub(super) fn read(&mut self) -> io::Result<Content> {
        let ours: BTreeSet<u32> = self.desired.devices.keys().copied().collect();
        let mut content = Content::default();
        for kind in rtnl::DUMPS {
            self.dump(kind, |message| rtnl::read(message, &ours, &mut content))?;
        }
        Ok(content)
    }

    /// Dumps the addresses of a device.
    pub(super) fn addresses(&mut self, index: u32) -> io::Result<Vec<IfAddr>> {
        let mut content = Content::default();
        self.dump(RTM_GETADDR, |message| rtnl::read(message, &BTreeSet::from([index]), &mut content))?;
        Ok(content.addresses.into_iter().map(|address| address.addr).collect())
    }

    fn dump(&mut self, of: u16, mut each: impl FnMut(&netlink::message::Message<'_>)) -> io::Result<()> {
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

    /// Sends requests, the last with the current sequence number, and waits for `count` acknowledgements: sequence
    /// numbers with 0 or an `errno`.
    fn request(&mut self, bytes: &[u8], count: usize) -> io::Result<Vec<(u32, i32)>> {
        self.send(bytes)?;
        let first = self.seq.wrapping_sub(count as u32 - 1);
        let mut answers = Vec::new();
        while answers.len() < count {
            let len = self.receive()?;
            for message in Messages::new(&self.buffer[..len]) {
                let is_ours = (message.header.seq.wrapping_sub(first) as usize) < count;
                if message.header.kind == kind::ERROR && is_ours {
                    answers.push((message.header.seq, rtnl::errno_of(&message)));
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
