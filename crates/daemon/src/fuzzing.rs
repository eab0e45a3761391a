//! Parsers and requests that no other crate calls, for the fuzz targets.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use base::{PortId, ShardCount};
use datapath::{Datapath, SocketBinding, SocketQuestion};
use netlink::generic::ila::{IlaBackend as _, Mapping, MappingName};
use netlink::{Outbox, Session};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use wire::FlowKey;
use zeroize::Zeroizing;

use crate::host::SocketDiag;
use crate::ip_batch::{self, IpLines};
use crate::netlink::Shared;
use crate::node::{Clock, since_boot};
use crate::store::sealed::{self, SealedSas};
use crate::store::{Found, replay, resume};
use crate::traces::parse_filter;
use crate::worker::{SharedWorker, Worker};
use crate::{command, dry_run, journal};

/// Checks a file as lines of `ip`, if it looks like such, without running them. Tells whether a gateway would run them.
pub fn check_ip_lines(text: &[u8]) -> bool {
    ip_batch::are_in(text) && IpLines::new("lines".to_owned(), Zeroizing::new(text.to_vec())).is_ok()
}

/// Checks the filter of a trace, on a gateway with one link. Tells whether it is valid.
pub fn check_trace_filter(text: &str) -> bool {
    parse_filter(text, |name| (name == "lan").then_some(PortId(2))).is_ok()
}

/// Reads a journal, and carries out its records on a gateway in memory without a configuration.
///
/// # Panics
/// The system has no descriptors or threads left.
pub fn restore_journal(file: &[u8]) {
    let mut records = Vec::new();
    if journal::parse(file, &mut records).is_err() {
        return;
    }
    on_a_gateway(|shared, _| {
        // A record that cannot be carried out is refused by name.
        let _ = replay(records, &Found::default().state, Path::new("journal"), &mut shared.lock());
    });
}

/// Reads the SAs of an earlier gateway, and restores them on a gateway in memory without a configuration. Tells whether they could
/// be read.
///
/// # Panics
/// The system has no descriptors or threads left.
pub fn restore_sealed_sas(memory: &[u8]) -> bool {
    let Ok(sas) = SealedSas::parse(memory, since_boot()) else { return false };
    on_a_gateway(|shared, handle| {
        let _ = resume(sas, &mut shared.lock(), handle).expect("a worker that runs");
    });
    true
}

/// Memory with SAs of records of these kinds and contents, whose checksums are right.
pub fn sealed_sas_of(records: &[(u8, Vec<u8>)]) -> Vec<u8> {
    sealed::bytes_of(records)
}

/// Runs `action` with a gateway in memory.
fn on_a_gateway(action: impl FnOnce(&Shared, &command::Handle)) {
    let (handle, inboxes) = command::channel(ShardCount::ONE).expect("descriptors");
    let clock = Clock::start();
    let shards = ShardCount::ONE.all().zip(inboxes).zip(Datapath::shards(ShardCount::ONE));
    let workers: Vec<_> = shards
        .map(|((shard, inbox), datapath)| {
            let handle = handle.clone();
            thread::spawn(move || {
                let worker = Worker::of_shard(inbox, clock, datapath, Some((shard, Arc::new(handle))))?;
                SharedWorker::new(worker).run()
            })
        })
        .collect();
    let shared = Shared::new(&handle, dry_run::open);
    action(&shared, &handle);
    drop(shared);
    handle.stop().expect("a worker that runs");
    workers.into_iter().for_each(|worker| worker.join().expect("no panic").expect("a worker that ends in order"));
}

/// Sends a client's datagrams of `NETLINK_GENERIC` to a gateway in memory, whose only link is `lo`.
///
/// # Panics
/// The worker has other ILA mappings than clients see, or a client without privilege has made some. The system has no descriptors or
/// threads left.
pub fn request_generic(privileged: bool, datagrams: &[Vec<u8>]) {
    on_a_gateway(|shared, handle| {
        let mut protocols = shared.lock();
        let mut session = Session::new(privileged);
        session.bind(1, u32::MAX).expect("groups are for everybody");
        let mut outbox = Outbox::default();
        for datagram in datagrams {
            outbox.clear();
            let listeners = session.groups();
            session.handle(datagram, protocols.generic(), listeners, &mut outbox);
            while session.is_dumping() {
                outbox.clear();
                session.continue_dump(protocols.generic(), &mut outbox);
            }
        }
        let mut seen = protocols.generic().ila.all().expect("room for a copy");
        let of_worker = handle.call(|node| node.datapath.ila().snapshot()).expect("a worker that runs");
        let shown = |mapping: &ila::Mapping| {
            let ila::Mapping { locator_match, identifier, locator, link, csum_mode, ident_type } = *mapping;
            let name = MappingName { locator_match, identifier, ifindex: link.map_or(0, |link| link.0) };
            Mapping { name, locator, csum_mode, ident_type }
        };
        assert_eq!(seen, of_worker.iter().map(shown).collect::<Vec<_>>());
        if !privileged {
            assert_eq!(seen.pop(), None);
        }
    });
}

/// Judges an order to an opener, of links or of the host side, without carrying it out. Tells whether it was one.
///
/// # Panics
/// An order about an object of others is admitted.
pub fn judge_order(message: &[u8]) -> bool {
    let [is_of_links, is_of_host_side] = [crate::opener::fuzzing::judge(message), crate::host::check_order(message)];
    is_of_links || is_of_host_side
}

/// Content of a journal with records of these kinds and contents, whose checksums are right.
pub fn journal_of(records: &[(u8, Vec<u8>)]) -> Vec<u8> {
    journal::file_of(records)
}

/// Looks a socket up in a kernel whose answers are these datagrams. The first word behind each type is replaced by the
/// number of the question that it follows.
///
/// # Errors
/// The answers end before one that can be read, or an answer is an error.
///
/// # Panics
/// The system has no descriptors left.
pub fn look_up_socket(flow: FlowKey, answers: &[Vec<u8>]) -> io::Result<SocketBinding> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (kernel, own): (OwnedFd, OwnedFd) = pair.expect("descriptors");
    for (answer, seq) in answers.iter().zip(1_u32..) {
        let mut answer = answer.clone();
        if let Some(place) = answer.get_mut(8..12) {
            place.copy_from_slice(&seq.to_ne_bytes());
        }
        // A datagram that does not fit is lost.
        let _ = send(kernel.as_fd(), &answer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
    let question = SocketQuestion { flow, link: PortId(2), vrf: PortId(3) };
    SocketDiag::of_peer(own).binding(&question, 2, 3)
}
