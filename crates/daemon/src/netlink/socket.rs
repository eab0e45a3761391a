//! Netlink sockets, each of one protocol. A new protocol is named here, in [`Protocols`] and in [`nlsock::protocol`].

use std::fmt;
use std::ops::DerefMut;

use netlink::{Groups, Outbox, Protocol, Session, SocketState};
use nlsock::protocol;

use super::protocols::{Generic, Protocols, Route, Xfrm};

/// Netlink protocol over the worker.
trait Served: Protocol + Sized + 'static {
    /// Number of the protocol.
    const NUMBER: u32;

    /// State that the protocol's requests read and change.
    fn of(protocols: &mut Protocols) -> &mut Self;
}

impl Served for Route {
    const NUMBER: u32 = protocol::ROUTE;

    fn of(protocols: &mut Protocols) -> &mut Self {
        &mut protocols.rtnl
    }
}

impl Served for Xfrm {
    const NUMBER: u32 = protocol::XFRM;

    fn of(protocols: &mut Protocols) -> &mut Self {
        &mut protocols.xfrm
    }
}

impl Served for Generic {
    const NUMBER: u32 = protocol::GENERIC;

    fn of(protocols: &mut Protocols) -> &mut Self {
        protocols.generic()
    }
}

/// New socket of a protocol; `None` for a protocol that the gateway does not serve.
pub(super) fn open(protocol: u32, privileged: bool) -> Option<Box<dyn NetlinkSocket>> {
    const SERVED: [(u32, Open); protocol::SERVED.len()] = [entry::<Route>(), entry::<Xfrm>(), entry::<Generic>()];
    let found = SERVED.iter().find(|(number, _)| *number == protocol);
    found.map(|(_, open)| open(privileged))
}

/// Makes a socket for a client that is privileged or not.
type Open = fn(bool) -> Box<dyn NetlinkSocket>;

/// Number of a protocol, and the function that opens a socket.
const fn entry<P: Served>() -> (u32, Open) {
    (P::NUMBER, |privileged| Box::new(Session::<P>::new(privileged)))
}

/// Kernel side of a client's netlink socket.
pub(super) trait NetlinkSocket: DerefMut<Target = SocketState> + fmt::Debug + Send {
    /// Number of the protocol.
    fn protocol(&self) -> u32;

    /// Tells whether a dump is in progress.
    fn is_dumping(&self) -> bool;

    /// Carries out the requests of a datagram ([`Session::handle`]).
    fn handle(&mut self, datagram: &[u8], protocols: &mut Protocols, listeners: Groups, outbox: &mut Outbox) -> bool;

    /// Writes the next datagram of the dump in progress, if there is one.
    fn continue_dump(&mut self, protocols: &mut Protocols, outbox: &mut Outbox);
}

impl<P: Served> NetlinkSocket for Session<P> {
    fn protocol(&self) -> u32 {
        P::NUMBER
    }

    fn is_dumping(&self) -> bool {
        Self::is_dumping(self)
    }

    fn handle(&mut self, datagram: &[u8], protocols: &mut Protocols, listeners: Groups, outbox: &mut Outbox) -> bool {
        Self::handle(self, datagram, P::of(protocols), listeners, outbox)
    }

    fn continue_dump(&mut self, protocols: &mut Protocols, outbox: &mut Outbox) {
        Self::continue_dump(self, P::of(protocols), outbox);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_of_the_library_are_served_and_no_others() {
        for number in 0..=255 {
            let named = protocol::SERVED.iter().find(|(served, _)| *served == number);
            let opened = open(number, false);
            assert_eq!(opened.as_deref().map(NetlinkSocket::protocol), named.map(|(number, _)| *number), "{number}");
        }
    }
}
