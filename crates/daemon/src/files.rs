//! The gateway's own files: its sockets, its state and its configuration. A gateway with an [opener of links](crate::opener) has them read,
//! made and removed by that process, and reaches no directory of them itself; another one does the same here.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr;
use std::path::Path;

pub(crate) use crate::opener::files::SocketRole;
use crate::opener::files::{FileOrder, FileWork, identity};
use crate::opener::request;

/// Connections that wait for a listening socket.
const BACKLOG: i32 = 128;

/// Whether an opener works with the files.
pub(crate) fn are_of_opener() -> bool {
    request::has_opener()
}

/// Opens a file to be read.
///
/// # Errors
/// The system's, or the opener's.
pub(crate) fn read(path: &Path) -> io::Result<File> {
    if !are_of_opener() {
        // Such as a pipe, which has no directory of its own.
        return File::open(path);
    }
    one(path, FileWork::Read).map(File::from)
}

/// Opens the state to be read and written.
///
/// # Errors
/// As [`read`].
pub(crate) fn write(path: &Path) -> io::Result<File> {
    one(path, FileWork::Write).map(File::from)
}

/// Makes a file of the journal, to which is appended.
///
/// # Errors
/// As [`read`].
pub(crate) fn make(path: &Path) -> io::Result<File> {
    one(path, FileWork::Make).map(File::from)
}

/// Removes a file.
///
/// # Errors
/// As [`read`].
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    work(path, FileWork::Remove).map(drop)
}

/// Renames a file within its directory.
///
/// # Errors
/// As [`read`].
pub(crate) fn rename(path: &Path, to: &Path) -> io::Result<()> {
    let name = to.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidFilename)?;
    work(path, FileWork::Rename(name.to_owned())).map(drop)
}

/// Makes a socket at a path, in place of one without a listener.
///
/// # Errors
/// As [`read`]; `AddrInUse`: a program listens there, or the file is no socket.
pub(crate) fn listen(path: &Path, socket: SocketRole) -> io::Result<OwnedFd> {
    listen_at(path, socket).map(|(socket, _)| socket)
}

/// As [`listen`], for a guest. Returns also the device and inode of the socket's file.
///
/// # Errors
/// As [`listen`].
pub(crate) fn listen_for_guest(path: &Path) -> io::Result<(OwnedFd, (u64, u64))> {
    let (socket, file) = listen_at(path, SocketRole::Guest)?;
    Ok((socket, identity(&file)?))
}

/// Takes on the socket of a guest that an earlier gateway has made. Returns the device and inode of its file.
///
/// # Errors
/// As [`read`]; `ENOTSOCK`: the file is no socket.
pub(crate) fn adopt_of_guest(path: &Path) -> io::Result<(u64, u64)> {
    identity(&one(path, FileWork::Adopt)?)
}

/// Removes the file of a guest's socket, if it is the one with this device and inode, and no program listens there.
///
/// # Errors
/// As [`read`].
pub(crate) fn remove_of_guest(path: &Path, (device, inode): (u64, u64)) -> io::Result<()> {
    work(path, FileWork::RemoveSocket { device, inode }).map(drop)
}

/// Checks that a back end is one that this process, or its opener, connects to.
///
/// # Errors
/// `PermissionDenied`: it is none of the file of the start.
pub(crate) fn find_back_end(path: &Path) -> io::Result<()> {
    work(path, FileWork::Find).map(drop)
}

/// Connects to a listening socket.
///
/// # Errors
/// As [`read`]; `WouldBlock`: too many connections wait there.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    one(path, FileWork::Connect)
}

/// Admits the [viewers](crate::viewers) to the view socket of a gateway before.
///
/// # Errors
/// As [`read`]; `ESTALE`: only a new file can have their group.
pub(crate) fn admit_viewers(path: &Path) -> io::Result<()> {
    work(path, FileWork::AdmitViewers).map(drop)
}

/// Lets this process send to a program's socket.
///
/// # Errors
/// As [`read`]; there is no opener that may change it.
pub(crate) fn share(path: &Path) -> io::Result<()> {
    work(path, FileWork::Share).map(drop)
}

fn listen_at(path: &Path, socket: SocketRole) -> io::Result<(OwnedFd, OwnedFd)> {
    // The kernel's error for a long path has no words.
    SocketAddr::from_pathname(path)?;
    let mut made = work(path, FileWork::Bind(socket))?.into_iter();
    let made = made.next().zip(made.next()).ok_or_else(missing)?;
    // Clients find this process at the other end (SO_PEERCRED), and not an opener.
    if socket != SocketRole::Ike {
        rustix::net::listen(&made.0, BACKLOG)?;
    }
    Ok(made)
}

fn one(path: &Path, what: FileWork) -> io::Result<OwnedFd> {
    work(path, what)?.into_iter().next().ok_or_else(missing)
}

fn missing() -> io::Error {
    io::Error::other("the opener of links: a descriptor is missing")
}

fn work(path: &Path, work: FileWork) -> io::Result<Vec<OwnedFd>> {
    let path = std::path::absolute(path)?;
    let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    let dir = path.parent().unwrap_or(&path).to_owned();
    request::file(FileOrder { dir, name, work })
}
