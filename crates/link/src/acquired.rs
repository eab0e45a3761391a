//! Descriptors of a link, for which most kinds take capabilities.

use std::os::fd::OwnedFd;

/// Descriptors that the links of all shards are [made from](crate::from_descriptors).
#[derive(Debug, Default)]
pub struct Acquired {
    /// - TUN and TAP: the queues, at least one for each shard.
    /// - UDP: a socket for each shard, then the socket that keeps others out of their group, if there is one.
    /// - Packet sockets: a socket for each shard, then the BPF link of an exclusive one.
    /// - AF_XDP: the map of sockets, the BPF link of the program, a packet socket for each shard with a queue, and a socket for each queue.
    /// - Guests and front ends: none.
    pub descriptors: Vec<OwnedFd>,
    /// Reason why the program of AF_XDP does not run in the driver, if that was tried.
    pub why_generic: Option<String>,
}

impl From<Vec<OwnedFd>> for Acquired {
    fn from(descriptors: Vec<OwnedFd>) -> Self {
        Self { descriptors, why_generic: None }
    }
}
