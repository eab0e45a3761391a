//! Orders about links and their devices, sent to the opener of links. A gateway without one carries them out itself, by the
//! same functions.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use link::Acquired;

use super::child::Child;
use super::files::{self, Directory, FileOrder, FileWork};
use super::inherited;
use super::links::LinkOpener;
use super::order::{Change, Gateway, LinkAnswer, LinkOrder, Opening};
use super::process::OpenerWork;
use crate::confine;
use crate::device;

/// Changes in one order.
const BATCH: usize = 64;

/// Directories in one order, each of which is at most as long as a path.
const DIRECTORIES: usize = 6;

/// The opener of links of this process's gateway.
static OPENER: Mutex<Option<Arc<Child>>> = Mutex::new(None);

/// Opener of links in the process of a gateway that has no other.
static HERE: OnceLock<Mutex<LinkOpener>> = OnceLock::new();

thread_local! {
    /// Connection of the client whose request this thread carries out.
    static CLIENT: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
}

/// Request of a client, until this value is dropped: links that this thread opens meanwhile are opened by that client's right.
#[derive(Debug)]
pub(crate) struct ForClient(());

impl ForClient {
    /// Begins a request of the client at the other end of `connection`.
    ///
    /// # Errors
    /// Error of fcntl(2).
    pub(crate) fn begin(connection: BorrowedFd<'_>) -> io::Result<Self> {
        let connection = connection.try_clone_to_owned()?;
        CLIENT.with_borrow_mut(|client| *client = Some(connection));
        Ok(Self(()))
    }
}

impl Drop for ForClient {
    fn drop(&mut self) {
        CLIENT.with_borrow_mut(|client| *client = None);
    }
}

/// The opener of links, which ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Started(Arc<Child>);

impl Started {
    /// The opener.
    pub(crate) fn child(&self) -> &Child {
        &self.0
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        *opener() = None;
    }
}

/// Whether an opener for the gateway has a capability, or is to have another user than the gateway.
pub(crate) fn is_needed(gateway: &Gateway) -> bool {
    let rights = gateway.rights.iter().map(|rights| confine::of_links(rights, gateway.has_host_side));
    gateway.user.is_some() || rights.into_iter().any(|rights| !confine::held(rights).is_empty())
}

/// Takes over the opener of links of a gateway that has started anew as this one, if it had one: configuration and state are read by it
/// then.
///
/// # Errors
/// Text of the failure.
pub(crate) fn resume() -> Result<Option<Started>, String> {
    if !Child::is_passed_on(OpenerWork::Links) {
        return Ok(None);
    }
    let child = Child::start(OpenerWork::Links)?;
    if child.is_of_another_user()? {
        confine::note_changed_before(inherited::user());
    }
    Ok(Some(installed(child)))
}

/// Starts the opener of links, which has the capabilities of this process's links, and reaches these directories, from then on. Returns
/// also its restrictions that could not be set.
///
/// # Errors
/// Text of the failure.
pub(crate) fn start(gateway: Gateway, directories: &[Directory]) -> Result<(Started, Vec<String>), String> {
    let child = Child::start(OpenerWork::Links)?;
    for some in directories.chunks(DIRECTORIES) {
        child.ask::<LinkAnswer>(&LinkOrder::Directories(some.to_vec()), &[])?;
    }
    match child.ask(&LinkOrder::Begin(gateway), &[])?.0 {
        LinkAnswer::Begun { missing, .. } => Ok((installed(child), missing)),
        other => Err(unexpected(&other)),
    }
}

fn installed(child: Child) -> Started {
    let child = Arc::new(child);
    *opener() = Some(Arc::clone(&child));
    Started(child)
}

/// Whether this process has an opener of links.
pub(crate) fn has_opener() -> bool {
    opener().is_some()
}

/// Carries out work with a file: in the opener, or here, where the process's own rights are its limit.
///
/// # Errors
/// The system's, or the opener's.
pub(crate) fn file(order: FileOrder) -> io::Result<Vec<OwnedFd>> {
    let Some(child) = opener().clone() else { return files::carry_out(&order, None) };
    let asked = match order.work {
        // A worker may send these.
        FileWork::Find | FileWork::Connect | FileWork::Remove | FileWork::RemoveSocket { .. } | FileWork::Share => {
            child.ask_shortly(&LinkOrder::File(order), &[])
        }
        _ => child.ask(&LinkOrder::File(order), &[]),
    };
    let (answer, descriptors) = asked.map_err(io::Error::other)?;
    match answer {
        LinkAnswer::Done(numbers) if numbers == [0] => Ok(descriptors),
        LinkAnswer::Done(numbers) => Err(failed(&numbers)),
        other => Err(io::Error::other(unexpected(&other))),
    }
}

/// A link's descriptors, and whether its device is the gateway's own.
///
/// # Errors
/// Text of the failure, with the link's name.
pub(crate) fn open(opening: Opening) -> Result<(Acquired, bool), String> {
    let name = opening.name.clone();
    let (answer, descriptors) = CLIENT.with_borrow(|client| {
        let client: Vec<_> = client.iter().map(AsFd::as_fd).collect();
        ask(LinkOrder::Open(opening), &client)
    })?;
    let LinkAnswer::Opened { is_own, is_remade, why_generic } = answer else { return Err(unexpected(&answer)) };
    if is_remade {
        device::note_remade(&name);
    }
    Ok((Acquired { descriptors, why_generic }, is_own))
}

/// Tells the opener of a link that is made from the descriptors of an earlier gateway. Returns whether its device is the gateway's own.
///
/// # Errors
/// Text of the failure, with the link's name.
pub(crate) fn adopt(opening: Opening) -> Result<bool, String> {
    match ask(LinkOrder::Adopt(opening), &[])?.0 {
        LinkAnswer::Opened { is_own, .. } => Ok(is_own),
        other => Err(unexpected(&other)),
    }
}

/// Tells the opener that the gateway's start is over: from now on a link of a kind that no file has takes a client's right.
///
/// # Errors
/// There is no answer.
pub(crate) fn ready() -> Result<(), String> {
    let child = opener().clone();
    child.map_or(Ok(()), |child| child.ask::<LinkAnswer>(&LinkOrder::Ready, &[]).map(drop))
}

/// Makes changes in the gateway's own network namespace, in order. Returns the error of each that the kernel has refused.
///
/// # Errors
/// The opener refuses, or there is no answer.
pub(crate) fn change(changes: Vec<Change>) -> io::Result<Vec<Option<io::Error>>> {
    let mut errors = Vec::new();
    for batch in changes.chunks(BATCH) {
        let numbers = numbers(LinkOrder::Change(batch.to_vec()), &[])?.0;
        errors.extend(numbers.into_iter().map(|number| (number != 0).then(|| io::Error::from_raw_os_error(number))));
    }
    Ok(errors)
}

/// Makes one change.
///
/// # Errors
/// The kernel or the opener refuses, or there is no answer.
pub(crate) fn change_one(change: Change) -> io::Result<()> {
    one(LinkOrder::Change(vec![change]), &[]).map(drop)
}

/// Port of the netlink socket that makes changes, which their notifications have.
///
/// # Errors
/// There is no socket.
pub(crate) fn port() -> io::Result<u32> {
    match ask(LinkOrder::Port, &[]).map_err(io::Error::other)?.0 {
        LinkAnswer::Begun { port, .. } => Ok(port),
        other => Err(io::Error::other(unexpected(&other))),
    }
}

/// Carries out an order.
fn ask(order: LinkOrder, with: &[BorrowedFd<'_>]) -> Result<(LinkAnswer, Vec<OwnedFd>), String> {
    let child = opener().clone();
    if let Some(child) = child {
        return match order {
            LinkOrder::Open(_) | LinkOrder::Begin(_) => child.ask(&order, with),
            _ => child.ask_shortly(&order, with),
        };
    }
    let with = with.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>();
    let with = with.map_err(|err| format!("descriptors: {err}"))?;
    let new = || {
        let rights = confine::rights().cloned();
        let (instance, keeps_devices) = device::owner();
        let gateway = Gateway { instance, keeps_devices, rights, ..Gateway::default() };
        Mutex::new(LinkOpener::new(gateway, Vec::new()))
    };
    HERE.get_or_init(new).lock().unwrap_or_else(PoisonError::into_inner).carry_out(order, with)
}

/// Numbers of the errors of an order's calls, and its descriptors.
fn numbers(order: LinkOrder, with: &[BorrowedFd<'_>]) -> io::Result<(Vec<i32>, Vec<OwnedFd>)> {
    match ask(order, with).map_err(io::Error::other)? {
        (LinkAnswer::Done(numbers), descriptors) => Ok((numbers, descriptors)),
        (other, _) => Err(io::Error::other(unexpected(&other))),
    }
}

/// Carries out an order of one call.
///
/// # Errors
/// The system's, or the opener's.
pub(super) fn one(order: LinkOrder, with: &[BorrowedFd<'_>]) -> io::Result<Vec<OwnedFd>> {
    match numbers(order, with)? {
        (numbers, descriptors) if numbers == [0] => Ok(descriptors),
        (numbers, _) => Err(failed(&numbers)),
    }
}

/// Error of the one call of an order.
fn failed(numbers: &[i32]) -> io::Error {
    numbers.first().map_or_else(
        || io::Error::other("the opener of links: an answer without a result"),
        |&number| io::Error::from_raw_os_error(number),
    )
}

fn opener() -> MutexGuard<'static, Option<Arc<Child>>> {
    OPENER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unexpected(answer: &LinkAnswer) -> String {
    format!("the opener of links: unexpected answer {answer:?}")
}
