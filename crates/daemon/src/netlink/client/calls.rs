//! Calls of the library that are not netlink messages: they configure the socket.

use nlsock::ToDaemon;

use super::{Client, Gone, Socket};
use crate::netlink::socket::open;

impl Client {
    /// Handles a library call that is not a netlink message, and returns the `errno` of a refusal.
    pub(super) fn call(
        &mut self,
        call: ToDaemon<'_>,
        port: impl Fn(u32, u32) -> Result<u32, i32>,
    ) -> Result<Result<(), i32>, Gone> {
        let outcome = match call {
            ToDaemon::Data(_) | ToDaemon::Sysctl { .. } | ToDaemon::Keep { .. } | ToDaemon::Adopt { .. } => {
                return Err(Gone);
            }
            ToDaemon::RecvLen(len) => {
                self.socket.netlink_mut().ok_or(Gone)?.set_recv_len(len);
                Ok(())
            }
            ToDaemon::RecvRoom(bytes) => {
                self.room = Some(bytes);
                if self.grown {
                    self.give_room();
                }
                Ok(())
            }
            ToDaemon::Port(port) => {
                self.socket.netlink_mut().ok_or(Gone)?.set_port(port);
                Ok(())
            }
            ToDaemon::Bypass(_) if !self.privileged => Err(nlsock::errno::EPERM),
            ToDaemon::Bypass(port) => {
                if !self.bypass.contains(&port) && self.bypass.len() < nlsock::MAX_BYPASS {
                    self.bypass.push(port);
                }
                Ok(())
            }
            ToDaemon::Hello { protocol } => return self.hello(protocol),
            ToDaemon::SetOption { option, value } => self.socket.netlink_mut().ok_or(Gone)?.set_option(option, value),
            ToDaemon::Bind { port: wish, groups } => {
                let socket = self.socket.netlink_mut().ok_or(Gone)?;
                match (socket.port(), wish) {
                    (0, _) => port(socket.protocol(), wish).and_then(|port| socket.bind(port, groups)),
                    (bound, 0) => socket.bind(bound, groups),
                    (_, wish) => socket.bind(wish, groups),
                }
            }
        };
        Ok(outcome)
    }

    /// Makes the socket one of `protocol`.
    fn hello(&mut self, protocol: u32) -> Result<Result<(), i32>, Gone> {
        if let Socket::New = self.socket {
            let opened = open(protocol, self.privileged);
            return Ok(opened
                .map(|socket| self.socket = Socket::Netlink(socket))
                .ok_or(nlsock::errno::EPROTONOSUPPORT));
        }
        // A child may repeat its parent's calls.
        if self.protocol() == Some(protocol) { Ok(Ok(())) } else { Err(Gone) }
    }
}
