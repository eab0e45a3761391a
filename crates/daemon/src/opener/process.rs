//! An opener: `fatpath opener`, started by the gateway before its own confinement. It ends when the gateway has closed the
//! socket that is its standard input: by no signal that a terminal or a service manager sends to all processes of the gateway.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use client::{CliError, raise_descriptor_limit};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::set_no_new_privs;
use serde::Serialize;
use serde::de::DeserializeOwned;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::message::{Incoming, receive, send};

/// Orders that an opener carries out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OpenerWork {
    /// Links and their devices, in the gateway's own network namespace.
    Links,
    /// The host side: a network namespace, and devices in it.
    HostSide,
}

impl OpenerWork {
    /// All kinds of work.
    pub const ALL: [Self; 2] = [Self::Links, Self::HostSide];

    /// Argument of `fatpath opener`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Links => "links",
            Self::HostSide => "host-side",
        }
    }

    /// Name of the socket beside those of the service manager.
    pub(crate) const fn passed_name(self) -> &'static str {
        match self {
            Self::Links => "opener-links",
            Self::HostSide => "opener-host-side",
        }
    }

    /// Subject of the orders.
    pub(super) const fn subject(self) -> &'static str {
        match self {
            Self::Links => "links",
            Self::HostSide => "the host side",
        }
    }
}

/// Longest reason of a refusal in characters: an answer has room for it, also with its escapes.
const LONGEST_TEXT: usize = 2000;

/// Keeps other processes of this user from reading and tracing this one (prctl(2), `PR_SET_DUMPABLE`).
pub(crate) fn close_memory() {
    // Where it fails, Landlock still keeps the gateway from files of other processes.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Result of an order: the answer and its descriptors, or the reason of a refusal.
pub(crate) type Carried<A> = Result<(A, Vec<OwnedFd>), String>;

/// Carries out the gateway's orders on standard input by `carry_out` until end of file; `refused` makes the answer of a refusal.
/// An order that cannot be read is refused. `closes_memory`: no other process of this user reads this one's memory from the
/// start on.
///
/// # Errors
/// Standard input is no socket of a gateway.
pub(crate) fn serve<O: DeserializeOwned, A: Serialize>(
    mut carry_out: impl FnMut(O, Vec<OwnedFd>) -> Carried<A>,
    refused: fn(String) -> A,
    closes_memory: bool,
) -> Result<(), CliError> {
    let socket = io::stdin();
    let failed = |err: io::Error| CliError::failed(format!("the gateway's socket: {err}"));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default()).map_err(failed)?;
    }
    set_no_new_privs(true).map_err(|err| failed(err.into()))?;
    // An opener of the gateway's user has its memory for itself, with what it may do.
    if closes_memory {
        close_memory();
    }
    // Below it a device has fewer queues.
    let _ = raise_descriptor_limit();
    loop {
        let (number, carried) = match receive::<O>(&socket).map_err(failed)? {
            Incoming::End => return Ok(()),
            Incoming::Rest => continue,
            Incoming::Malformed(number, why) => (number, Err(format!("no order: {why}"))),
            Incoming::Whole(number, order, descriptors) => (number, carry_out(order, descriptors)),
        };
        let short = |why: String| why.chars().take(LONGEST_TEXT).collect();
        let (answer, descriptors) = carried.unwrap_or_else(|why| (refused(short(why)), Vec::new()));
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        // The gateway may have ended.
        if send(&socket, number, &answer, &descriptors).is_err() {
            return Ok(());
        }
    }
}
