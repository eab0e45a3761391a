//! Reconciles the host side's content with the desired content: reads it by a netlink socket in the namespace, and has the
//! opener change it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use base::IfAddr;
use netlink::message::Message;
use netlink::rtnl::nums::{RTM_GETADDR, RTM_GETLINK};
use rustix::io::Errno;

use super::content::{Content, Step};
use super::opener::BATCH;
use super::order::{Answer, Order};
use super::rtnl::{self, Listed};
use crate::opener::child::Child;
use crate::rtnetlink::Rtnetlink;

/// The gateway's objects in a namespace, and a socket to read them.
#[derive(Debug)]
pub(super) struct Mirror {
    socket: Rtnetlink,
    /// Desired content.
    pub(super) desired: Content,
    /// The last refused step and its error.
    pub(super) refused: Option<String>,
}

impl Mirror {
    /// Mirror with empty content, by a netlink socket in the namespace.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: Rtnetlink::new(socket)?, desired: Content::default(), refused: None })
    }

    /// The present devices.
    pub(super) fn devices(&mut self) -> io::Result<Vec<Listed>> {
        let mut listed = Vec::new();
        self.dump(RTM_GETLINK, |message| listed.extend(rtnl::read_link(message)))?;
        Ok(listed)
    }

    /// Reconciles the kernel with the desired content. Returns the steps that it took.
    ///
    /// # Errors
    /// The socket or the opener does not answer. Steps that the kernel refuses are noted, and left.
    pub(super) fn reconcile(&mut self, opener: &Child) -> io::Result<Vec<Step>> {
        let steps = self.read()?.steps_to(&self.desired);
        self.carry_out(opener, &steps)?;
        Ok(steps)
    }

    /// Carries out steps. Adding an object that exists, or removing one that does not, counts as success.
    ///
    /// # Errors
    /// The opener does not answer.
    pub(super) fn carry_out(&mut self, opener: &Child, steps: &[Step]) -> io::Result<()> {
        for batch in steps.chunks(BATCH) {
            for (step, errno) in batch.iter().zip(changed(opener, &Order::Change(batch.to_vec()))?) {
                if errno <= 0 {
                    continue;
                }
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

    fn dump(&mut self, of: u16, each: impl FnMut(&Message<'_>)) -> io::Result<()> {
        self.socket.dump(of, each)
    }
}

/// Deletes a device of the namespace.
///
/// # Errors
/// The kernel refuses, or the opener does not answer.
pub(super) fn remove(opener: &Child, index: u32) -> io::Result<()> {
    match changed(opener, &Order::Remove(index))?.first() {
        None | Some(0) => Ok(()),
        Some(&number) => Err(io::Error::from_raw_os_error(number)),
    }
}

/// The `errno` of each step of an order, or 0.
fn changed(opener: &Child, order: &Order) -> io::Result<Vec<i32>> {
    match opener.ask::<Answer>(order, &[]).map_err(io::Error::other)?.0 {
        Answer::Changed(numbers) => Ok(numbers),
        _ => Err(io::Error::other("unexpected answer of the opener of the host side")),
    }
}
