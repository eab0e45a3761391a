//! Privilege of a connection: the processes that may change the node over it.

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, recv};

use super::datagram::Received;
use super::heir::{Heir, MAX_HEIRS};
use super::{Client, Gone};
use crate::privilege::Peer;

impl Client {
    /// Makes the client privileged if its process holds `CAP_NET_ADMIN` and no datagram is queued behind the present
    /// one. From then on the sender is the program that holds the capability; earlier datagrams may be from another
    /// program in the same process, without the capability.
    ///
    /// If the client is privileged already, the sender of the present datagram becomes an [heir](Heir) under the same
    /// conditions. Linux, too, requires the capability of the opener and of the sender (`netlink_capable`).
    pub(super) fn claim(&mut self) {
        let Some(peer) = self.claimant.as_ref() else { return };
        if self.privileged {
            self.inherit();
        } else if peer.holds_net_admin() && self.is_drained() {
            self.privileged = true;
            self.socket.netlink_mut().into_iter().for_each(|socket| socket.set_privileged(true));
        }
    }

    /// Makes the sender of the present datagram an heir, if it holds `CAP_NET_ADMIN`, for datagrams that are not queued
    /// yet: a process that had its number, or another program in the same process, has sent none of those.
    fn inherit(&mut self) {
        let Some(sender) = self.sender.filter(|&sender| !self.is_authorized(sender)) else { return };
        self.heirs.retain(|heir| heir.peer.pid != sender && heir.peer.is_alive());
        let Some(peer) = Peer::with_pid(sender, self.uid).filter(Peer::holds_net_admin) else { return };
        // The length is determined after the check.
        let Ok(queued) = ioctl_fionread(self.fd()) else { return };
        if self.heirs.len() == MAX_HEIRS {
            self.heirs.remove(0);
        }
        self.heirs.push(Heir { peer, since: self.received.saturating_add(queued) });
    }

    /// Tells whether the present datagram, from the process `sender`, has the privilege of this connection.
    fn is_authorized(&self, sender: u32) -> bool {
        let is = |peer: &Peer| peer.pid == sender && peer.is_alive();
        self.claimant.as_ref().is_some_and(|peer| is(peer))
            || self.heirs.iter().any(|heir| heir.since < self.received && is(&heir.peer))
    }

    /// Tells whether no datagram is queued.
    pub(super) fn is_drained(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        matches!(recv(self.fd(), &mut [0; 0], flags), Err(Errno::AGAIN))
    }

    /// Checks the sender of a received datagram. Only the process that claimed the privilege and its [heirs](Heir) may
    /// use it.
    pub(in super::super) fn note_sender(&mut self, received: &Received) -> Result<(), Gone> {
        self.sender = received.sender;
        self.received = self.received.saturating_add(received.len as u64);
        if self.claimant.is_none() || !self.privileged {
            return Ok(());
        }
        let is_authorized = received.sender.is_some_and(|sender| self.is_authorized(sender));
        if self.is_file() && !is_authorized {
            return Err(Gone);
        }
        self.socket.netlink_mut().into_iter().for_each(|socket| socket.set_privileged(is_authorized));
        Ok(())
    }
}
