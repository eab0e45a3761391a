//! The end of the gateway that is replaced.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base::Instant;
use client::passing::MAX_DESCRIPTORS;
use rustix::net::sockopt::{self, Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, recv};
use rustix::process::geteuid;

use super::duplicates;
use super::guests::PassedGuests;
use super::held::{PassedLink, Socket};
use super::message::{FORMAT, Message, receive, send};
use crate::command::{Handle, same};
use crate::confine;
use crate::events::Event;
use crate::host::HostSide;
use crate::node::Node;
use crate::service;
use crate::store::{Keep, Keeper};

/// Longest time that the next gateway may take to read a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Sockets and place of the state for the next gateway, besides links and the host side.
#[derive(Debug)]
pub(crate) struct Offer {
    /// Listening sockets.
    pub(crate) listeners: Vec<(Socket, OwnedFd)>,
    /// File of the state.
    pub(crate) state: Option<PathBuf>,
    /// Writer of the state.
    pub(crate) keeper: Option<Keeper>,
    /// Channel of the next gateway, of which there is one at a time.
    pub(crate) next: Mutex<Weak<OwnedFd>>,
}

/// Decides on the request of the process at the other end of `stream` to replace this gateway.
///
/// # Errors
/// Text of the refusal.
pub(crate) fn admit(stream: &UnixStream, format: u32, worker: &Handle, offer: &Offer) -> Result<(), String> {
    if format != FORMAT {
        return Err(format!("this gateway hands over in format {FORMAT}, and was asked for {format}; restart it"));
    }
    let peer = sockopt::socket_peercred(stream).map_err(|err| format!("SO_PEERCRED: {err}"))?;
    if !peer.uid.is_root() && (confine::is_of_root() || peer.uid != geteuid()) {
        return Err("only the gateway's own user and root may replace it".to_owned());
    }
    if service::has_manager() {
        return Err(
            "this gateway is a service, whose manager would count its end as a failure; restart the service".to_owned()
        );
    }
    match &offer.keeper {
        // The next gateway tries a copy of it.
        Some(keeper) => keeper.keep(Keep::Later).map(drop).map_err(|err| format!("the state is not written: {err}")),
        None => admit_without_state(worker),
    }
}

/// Decides on the replacement of a gateway that keeps no state.
///
/// # Errors
/// Text of the refusal: something would be lost.
pub(crate) fn admit_without_state(worker: &Handle) -> Result<(), String> {
    let has = worker.call(|node| {
        let ipsec = &node.datapath.ipsec;
        [!ipsec.sad().is_empty(), !ipsec.spd().is_empty()]
    });
    let why = match has.map_err(|gone| gone.to_string())? {
        [true, _] => "its SAs would begin their sequence numbers again",
        [false, true] => "policies that programs may have added would be lost",
        [false, false] => return Ok(()),
    };
    Err(format!("this gateway keeps no state (--state none), so {why}"))
}

/// Notes the channel of the next gateway.
///
/// # Errors
/// Text of the refusal: there is another one.
pub(crate) fn begin(channel: &Arc<OwnedFd>, offer: &Offer) -> Result<(), String> {
    let mut next = offer.next.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(other) = next.upgrade() {
        return Err(format!("process {} replaces it already", successor(&other).unwrap_or_default()));
    }
    *next = Arc::downgrade(channel);
    Ok(())
}

/// Passes links and sockets to the next gateway, and has the main thread hand over as soon as that gateway takes over.
///
/// # Errors
/// The next gateway has ended, or sends something else.
pub(crate) fn serve(
    channel: Arc<OwnedFd>,
    worker: &Handle,
    host_side: &HostSide,
    offer: &Offer,
    events: &Sender<Event>,
) -> io::Result<()> {
    set_socket_timeout(&*channel, Timeout::Send, Some(WRITE_TIMEOUT))?;
    pass_links(&channel, worker)?;
    for (socket, listener) in &offer.listeners {
        send(&*channel, &Message::Socket(*socket), &[listener.as_fd()])?;
    }
    if let Some(ike) = duplicates::ike(worker) {
        send(&*channel, &Message::Socket(Socket::Ike), &[ike.as_fd()])?;
    }
    // A namespace in a user namespace cannot be entered again.
    if let Ok(Some(entrance)) = host_side.entrance()
        && entrance.user.is_none()
    {
        send(&*channel, &Message::Socket(Socket::HostSide), &[entrance.network.as_fd()])?;
    }
    send(&*channel, &Message::Passed, &[])?;
    match receive(&*channel)? {
        // It has given up.
        None => Ok(()),
        Some((Message::TakeOver { has_host_side }, _)) => {
            // The main thread ends.
            let _ = events.send(Event::TakeOver { to: channel, has_host_side });
            Ok(())
        }
        Some((other, _)) => Err(io::Error::other(format!("{other:?} is no message of the next gateway"))),
    }
}

fn pass_links(channel: &OwnedFd, worker: &Handle) -> io::Result<()> {
    let links = duplicates::links(worker).map_err(|gone| io::Error::other(gone.to_string()))?;
    for PassedLink { name, settings, resource, mtu, station, descriptors } in links {
        let mut chunks: Vec<&[OwnedFd]> = descriptors.chunks(MAX_DESCRIPTORS).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        let last = chunks.len() - 1;
        for (number, chunk) in chunks.into_iter().enumerate() {
            let (name, settings, resource) = (name.clone(), settings.clone(), resource.clone());
            let message = Message::Link { name, settings, resource, mtu, station, has_more: number != last };
            let descriptors: Vec<BorrowedFd<'_>> = chunk.iter().map(AsFd::as_fd).collect();
            send(channel, &message, &descriptors)?;
        }
    }
    Ok(())
}

/// Whether the next gateway, which has asked to take over, still waits.
pub(crate) fn is_waiting(to: &OwnedFd) -> bool {
    let mut byte = [0_u8; 1];
    recv(to, byte.as_mut_slice(), RecvFlags::PEEK | RecvFlags::DONTWAIT)
        .is_err_and(|err| err == rustix::io::Errno::AGAIN)
}

/// Process of the next gateway.
pub(crate) fn successor(to: &OwnedFd) -> Option<i32> {
    sockopt::socket_peercred(to).ok().map(|peer| peer.pid.as_raw_nonzero().get())
}

/// Tells the next gateway that this one goes on, for the reason `why`.
pub(crate) fn go_on(to: &OwnedFd, why: &str) {
    // The next gateway may have ended.
    let _ = send(to, &Message::GoesOn(why.to_owned()), &[]);
}

/// Passes the connections of guests to the next gateway. The workers are paused. Those that cannot be passed are closed.
pub(crate) fn pass_guests(to: &OwnedFd, worker: &Handle) {
    let guests = PassedGuests::of(worker);
    let sent = guests.all().chunks(MAX_DESCRIPTORS).try_for_each(|chunk| send(to, &Message::Guests, chunk));
    if let Err(err) = sent {
        tracing::warn!("guests reconnect: {err}");
    }
}

/// Tells the next gateway that this one has stopped, with the memory of its SAs.
///
/// # Errors
/// The next gateway has ended.
pub(crate) fn hand_over(to: &OwnedFd, at: Instant, sas: Option<&OwnedFd>) -> io::Result<()> {
    let sas: Vec<BorrowedFd<'_>> = sas.into_iter().map(AsFd::as_fd).collect();
    send(to, &Message::Stopped { at: at.as_nanos() }, &sas)
}

/// Closes the links and sockets of all shards, whose workers are paused. Devices stay.
pub(crate) fn close_links(worker: &Handle) {
    let close = |node: &mut Node| {
        for slot in &mut node.slots {
            if let Some(mut slot) = slot.take() {
                // The next gateway has memberships of its own by the same socket.
                let _ = slot.link.set_promiscuous(false);
            }
        }
        node.host_devices.clear();
        node.ike = None;
    };
    // A worker that has ended has no links.
    let _ = worker.change(close, same);
}
