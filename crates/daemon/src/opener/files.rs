//! Files that an opener reads, makes and removes for its gateway, which reaches none of them itself: the gateway's sockets, its state, its
//! configuration and the sockets of guests.
//!
//! A gateway that was taken over sends any order, and its user may write some directory. So an opener of root works in the directories of
//! the start alone, on names that are the gateway's, and follows no symbolic link that the gateway's user can have made.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, chownat, fstat};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};
use rustix::process::{geteuid, umask};
use serde::{Deserialize, Serialize};

use crate::confine::{Places, UserIds};
use crate::viewers;

/// Ending of the record of the host side's namespace, behind the gateway's name.
const OF_HOST_SIDE: &str = "namespace";

/// Beginning of the ending of sockets of programs that receive IKE messages.
const OF_PROGRAM: &str = "ike-";

/// Beginning of the ending of a file of the journal, before its number.
const OF_JOURNAL: &str = ".journal-";

/// A directory of the gateway's start, and the files in it that are the gateway's.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Directory {
    /// Absolute path.
    pub(crate) path: PathBuf,
    pub(crate) files: Named,
}

/// Files by their names.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Named {
    /// This configuration file, which is read.
    Configuration(String),
    /// Sockets of the gateway, and of programs that connect to it.
    Sockets,
    /// The state with this name, and its journal.
    State(String),
    /// Sockets of guests, in a directory of theirs.
    Guests,
    /// The socket of a guest with this name, in a directory with files of gateways.
    Guest(String),
    /// The socket of a guest of an earlier gateway with this name, which this one's file does not have. It is removed.
    EarlierGuest(String),
    /// The back end with this name, which a link connects to.
    BackEnd(String),
}

/// An order about a file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct FileOrder {
    /// Absolute path of the directory.
    pub(crate) dir: PathBuf,
    pub(crate) name: String,
    pub(crate) work: FileWork,
}

/// Work with a file. The answer has its descriptors.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum FileWork {
    /// Open it to be read.
    Read,
    /// Open it to be read and written.
    Write,
    /// Make a file for its user alone, to which is appended.
    Make,
    /// Make a socket that is bound to it, in place of one of an earlier gateway. The second descriptor refers to the file.
    Bind(SocketRole),
    /// Tell whether [`Connect`](Self::Connect) is admitted.
    Find,
    /// Connect to a listening socket. `EAGAIN`: its queue is full.
    Connect,
    /// Give it another name in the directory.
    Rename(String),
    /// Remove it.
    Remove,
    /// Take on the socket of a guest that an earlier gateway has made. The descriptor refers to the file.
    Adopt,
    /// Remove it, if it is the socket with this device and inode, and no program listens there.
    RemoveSocket { device: u64, inode: u64 },
    /// Let the gateway's user send to a program's socket.
    Share,
    /// Admit the viewers to the view socket of a gateway before.
    AdmitViewers,
}

/// A socket that an opener makes for its gateway.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum SocketRole {
    /// Socket of control clients.
    Control,
    /// Socket of clients that only look.
    View,
    /// Socket of netlink clients.
    Netlink,
    /// Socket of key managers.
    Ike,
    /// Socket of a guest.
    Guest,
}

/// Properties of the sockets of a role.
struct RoleProperties {
    /// Endings of its names, behind the gateway's; none for a socket with a name of its own.
    endings: &'static [&'static str],
    kind: SocketType,
    /// Mode of the file; `None`: as the file mode creation mask has it.
    mode: Option<u32>,
    /// Whether a program that listens there keeps the name. The control socket stands for the gateway's others.
    is_kept_in_use: bool,
}

impl SocketRole {
    /// Roles of sockets in the directory of the gateway's own.
    const OF_GATEWAY: [Self; 4] = [Self::Control, Self::View, Self::Netlink, Self::Ike];

    const fn properties(self) -> RoleProperties {
        let (endings, kind, mode, is_kept_in_use): (&[&str], _, _, _) = match self {
            // For its user alone.
            Self::Control => (&["sock"], SocketType::STREAM, Some(0o700), true),
            // For its user alone until the viewers are admitted.
            Self::View => (&["view.sock"], SocketType::STREAM, Some(0o600), true),
            // For all users. Until the gateway runs it has another name.
            Self::Netlink => (&["netlink", "starting"], SocketType::SEQPACKET, Some(0o666), false),
            Self::Ike => (&["ike"], SocketType::DGRAM, Some(0o700), false),
            Self::Guest => (&[], SocketType::STREAM, None, true),
        };
        RoleProperties { endings, kind, mode, is_kept_in_use }
    }

    /// Whether a file is named as a socket of this role.
    fn has_name(self, instance: &str, name: &str) -> bool {
        ending(instance, name).is_some_and(|ending| self.properties().endings.contains(&ending))
    }
}

impl Directory {
    /// Whether a gateway with that name may have this done.
    pub(crate) fn admits(&self, instance: &str, FileOrder { dir, name, work }: &FileOrder) -> bool {
        *dir == self.path && is_name(name) && self.files.admits(instance, name, work)
    }
}

impl Named {
    fn admits(&self, instance: &str, name: &str, work: &FileWork) -> bool {
        match (self, work) {
            (Self::Configuration(own), FileWork::Read) => name == own,
            (Self::Sockets, FileWork::Bind(role)) => role.has_name(instance, name),
            (Self::Sockets, FileWork::Remove) => is_of_gateway(instance, name),
            (Self::Sockets, FileWork::Rename(to)) => is_of_gateway(instance, name) && is_of_gateway(instance, to),
            (Self::Sockets, FileWork::Share) => is_of_program(instance, name),
            (Self::Sockets, FileWork::AdmitViewers) => SocketRole::View.has_name(instance, name),
            (Self::State(own), FileWork::Read) => name == own || is_journal(own, name),
            (Self::State(own), FileWork::Write) => name == own,
            (Self::State(own), FileWork::Make | FileWork::Remove) => is_journal(own, name),
            // Of those that the opener has made or taken on.
            (Self::Sockets | Self::State(_) | Self::Guests | Self::Guest(_), FileWork::RemoveSocket { .. }) => true,
            (Self::Guests, FileWork::Bind(SocketRole::Guest) | FileWork::Adopt) => true,
            (Self::Guest(own), FileWork::Bind(SocketRole::Guest) | FileWork::Adopt) => name == own,
            (Self::EarlierGuest(own), FileWork::Adopt | FileWork::RemoveSocket { .. }) => name == own,
            (Self::BackEnd(own), FileWork::Find | FileWork::Connect) => name == own,
            _ => false,
        }
    }
}

/// Places in which an opener with these directories works, by itself.
pub(crate) fn places(directories: &[Directory]) -> Places {
    let mut places = Places::default();
    for Directory { path, files } in directories {
        match files {
            Named::Configuration(name) => places.read_beside(&path.join(name)),
            Named::State(name) => places.write_beside(&path.join(name)),
            Named::Sockets | Named::Guests | Named::Guest(_) | Named::EarlierGuest(_) => places.write_in(path),
            // Connections are no matter of Landlock.
            Named::BackEnd(_) => {}
        }
    }
    places
}

/// Whether a text is the name of a file, and no path.
fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

/// The part of a file's name behind the gateway's and a dot.
fn ending<'a>(instance: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(instance)?.strip_prefix('.')
}

/// Whether a file is named as one of the gateway's, or of a program that connects to it.
fn is_of_gateway(instance: &str, name: &str) -> bool {
    let is_socket = SocketRole::OF_GATEWAY.iter().any(|role| role.has_name(instance, name));
    is_socket || ending(instance, name) == Some(OF_HOST_SIDE) || is_of_program(instance, name)
}

/// Whether a file is named as the socket of a program that connects to the gateway.
fn is_of_program(instance: &str, name: &str) -> bool {
    is_name(name) && ending(instance, name).is_some_and(|ending| ending.starts_with(OF_PROGRAM))
}

fn is_journal(state: &str, name: &str) -> bool {
    let number = name.strip_prefix(state).and_then(|rest| rest.strip_prefix(OF_JOURNAL));
    number.is_some_and(|number| number.parse::<u64>().is_ok_and(|parsed| parsed.to_string() == number))
}

/// Carries out an order, which is admitted. `user`: the gateway's, if that is another one than this process's.
///
/// # Errors
/// The system's; `PermissionDenied`: `user` may change the directory.
pub(crate) fn carry_out(FileOrder { dir, name, work }: &FileOrder, user: Option<UserIds>) -> io::Result<Vec<OwnedFd>> {
    let given = dir.join(name);
    let dir = match user {
        Some(user) => user.beyond_reach(dir)?,
        None => dir.clone(),
    };
    let path = dir.join(name);
    match work {
        FileWork::Read => open(&path, user, OpenOptions::new().read(true)),
        FileWork::Write => open(&path, user, OpenOptions::new().read(true).write(true)),
        FileWork::Make => Ok(vec![OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?.into()]),
        // Clients, and the judge of their connections, know this path. The user can change it as little as the resolved one.
        FileWork::Bind(socket) => make_socket(&given, *socket),
        FileWork::Find => Ok(Vec::new()),
        FileWork::Connect => Ok(vec![connected(&resolved(&path, user)?)?]),
        FileWork::Rename(to) => fs::rename(&path, dir.join(to)).map(|()| Vec::new()),
        FileWork::Remove => fs::remove_file(path).map(|()| Vec::new()),
        FileWork::Adopt => Ok(vec![socket_file(&path)?.into()]),
        FileWork::RemoveSocket { device, inode } => {
            let found = fs::symlink_metadata(&path)?;
            // Another program may have put a socket of its own there, also with the number of a file that is gone.
            if (found.dev(), found.ino()) == (*device, *inode) && is_stale(&path) {
                fs::remove_file(path)?;
            }
            Ok(Vec::new())
        }
        FileWork::Share => share(&path, user).map(|()| Vec::new()),
        FileWork::AdmitViewers => viewers::admit(&socket_file(&path)?).map(|()| Vec::new()),
    }
}

/// Device and inode of an open file.
pub(crate) fn identity(file: &OwnedFd) -> io::Result<(u64, u64)> {
    let found = fstat(file)?;
    Ok((found.st_dev, found.st_ino))
}

/// Path without symbolic links, all of which are ones that `user` cannot change.
fn resolved(path: &Path, user: Option<UserIds>) -> io::Result<PathBuf> {
    user.map_or_else(|| fs::canonicalize(path), |user| user.beyond_reach(path))
}

/// Opens a file, also at a symbolic link that `user` cannot change.
fn open(path: &Path, user: Option<UserIds>, options: &mut OpenOptions) -> io::Result<Vec<OwnedFd>> {
    // Nothing is waited for.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits() as i32).open(resolved(path, user)?)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok(vec![file.into()])
}

/// Makes a socket at a path; one without a listener is replaced. A file of another kind stays.
fn make_socket(path: &Path, role: SocketRole) -> io::Result<Vec<OwnedFd>> {
    let RoleProperties { kind, mode, .. } = role.properties();
    let made = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path)?;
    let bind_it = || {
        // The file has no other mode at any time.
        let before = mode.map(|mode| umask(Mode::from_raw_mode(!mode & 0o777)));
        let bound = bind(&made, &address);
        before.map(umask);
        bound
    };
    match bind_it() {
        Err(Errno::ADDRINUSE) if is_free(path, role) => {
            fs::remove_file(path)?;
            bind_it()?;
        }
        bound => bound?,
    }
    let file =
        OpenOptions::new().read(true).custom_flags((OFlags::PATH | OFlags::NOFOLLOW).bits() as i32).open(path)?;
    if role == SocketRole::View {
        match viewers::admit(&file) {
            Err(err) if err.raw_os_error() != Some(Errno::STALE.raw_os_error()) => return Err(err),
            _ => {}
        }
    }
    Ok(vec![made, file.into()])
}

/// Whether the socket of a path may be replaced by one of that role.
fn is_free(path: &Path, role: SocketRole) -> bool {
    if role.properties().is_kept_in_use { is_stale(path) } else { socket_file(path).is_ok() }
}

/// Whether a path has a socket at which no program listens.
fn is_stale(path: &Path) -> bool {
    let probed = || {
        let file = socket_file(path)?;
        // A full queue of a listener is not waited for.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&probe, &SocketAddrUnix::new(path_of(&file))?).map_err(io::Error::from)
    };
    probed().is_err_and(|err| err.kind() == io::ErrorKind::ConnectionRefused)
}

/// The file itself, and no target of a symbolic link, if it is a socket.
fn socket_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    if file.metadata()?.file_type().is_socket() { Ok(file) } else { Err(Errno::NOTSOCK.into()) }
}

/// Path of an open file, whatever has its name by now.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A socket that is connected to that of a path. A full queue of the listener is not waited for: orders of others wait meanwhile.
fn connected(path: &Path) -> io::Result<OwnedFd> {
    let file = socket_file(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path_of(&file))?)?;
    ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Gives a program's socket, which belongs to this process's user, to the group of the gateway's user, which may send to it then.
fn share(path: &Path, user: Option<UserIds>) -> io::Result<()> {
    let file = socket_file(path)?;
    let found = file.metadata()?;
    let Some(user) = user.filter(|_| found.uid() == geteuid().as_raw()) else { return Err(Errno::PERM.into()) };
    give_to_group(&file, user.gid, found.mode() & 0o7777 | 0o020)
}

/// Gives a file to a group, with a mode.
fn give_to_group(file: &File, group: u32, mode: u32) -> io::Result<()> {
    chownat(file.as_fd(), "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    fs::set_permissions(path_of(file), fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_gateway_alone_are_admitted() {
        let at = |files| Directory { path: PathBuf::from("/run/fatpath"), files };
        let admits = |directory: &Directory, name: &str, work: FileWork| {
            directory.admits("gw", &FileOrder { dir: "/run/fatpath".into(), name: name.to_owned(), work })
        };
        let sockets = at(Named::Sockets);
        for (name, want) in [
            ("gw.sock", true),
            ("gw.view.sock", true),
            ("gw.netlink", true),
            ("gw.starting", true),
            ("gw.ike-0123456789abcdef-41194", true),
            ("gw.ike-../x", false),
            ("gw.ike-/x", false),
            ("gw2.sock", false),
            ("gw", false),
            ("gw.", false),
            ("gw.toml", false),
            ("gw.state", false),
            ("../gw.sock", false),
            ("", false),
            (".", false),
            ("..", false),
        ] {
            assert_eq!(admits(&sockets, name, FileWork::Remove), want, "{name}");
        }
        assert!(admits(&sockets, "gw.starting", FileWork::Rename("gw.netlink".to_owned())));
        assert!(!admits(&sockets, "gw.starting", FileWork::Rename("other.netlink".to_owned())));
        assert!(!admits(&sockets, "gw.sock", FileWork::Read) && !admits(&sockets, "gw.sock", FileWork::Connect));
        assert!(!admits(&sockets, "guest.sock", FileWork::Bind(SocketRole::Guest)));
        assert!(!admits(&sockets, "gw.sock", FileWork::Bind(SocketRole::Guest)));
        for (name, role) in [
            ("gw.sock", SocketRole::Control),
            ("gw.view.sock", SocketRole::View),
            ("gw.starting", SocketRole::Netlink),
            ("gw.ike", SocketRole::Ike),
        ] {
            for other in SocketRole::OF_GATEWAY {
                assert_eq!(admits(&sockets, name, FileWork::Bind(other)), role == other, "{name} {other:?}");
            }
            assert!(!admits(&sockets, name, FileWork::Adopt));
            assert_eq!(admits(&sockets, name, FileWork::AdmitViewers), role == SocketRole::View, "{name}");
        }
        assert!(!admits(&sockets, "other.sock", FileWork::Bind(SocketRole::Control)));
        for (name, want) in [("gw.ike-0123456789abcdef-41194", true), ("gw.sock", false), ("gw.ike", false)] {
            assert_eq!(admits(&sockets, name, FileWork::Share), want, "{name}");
        }
        let guest = at(Named::Guest("guest.sock".to_owned()));
        for (name, want) in [("guest.sock", true), ("other.sock", false), ("other.vici", false)] {
            assert_eq!(admits(&guest, name, FileWork::Bind(SocketRole::Guest)), want, "{name}");
            assert_eq!(admits(&guest, name, FileWork::Adopt), want, "{name}");
        }
        let earlier = at(Named::EarlierGuest("guest.sock".to_owned()));
        for (name, want) in [("guest.sock", true), ("other.sock", false)] {
            assert_eq!(admits(&earlier, name, FileWork::Adopt), want, "{name}");
            assert_eq!(admits(&earlier, name, FileWork::RemoveSocket { device: 1, inode: 2 }), want, "{name}");
            assert!(
                !admits(&earlier, name, FileWork::Bind(SocketRole::Guest)) && !admits(&earlier, name, FileWork::Remove)
            );
        }
        let back_end = at(Named::BackEnd("vm1".to_owned()));
        for work in [FileWork::Find, FileWork::Connect] {
            assert!(admits(&back_end, "vm1", work.clone()) && !admits(&back_end, "other.sock", work.clone()));
            assert!(!admits(&guest, "guest.sock", work.clone()) && !admits(&sockets, "gw.sock", work));
        }
        assert!(!admits(&back_end, "vm1", FileWork::Bind(SocketRole::Guest)));
        let state = at(Named::State("gw.state".to_owned()));
        for (name, work, want) in [
            ("gw.state", FileWork::Write, true),
            ("gw.state", FileWork::Remove, false),
            ("gw.state", FileWork::Make, false),
            ("gw.state.journal-7", FileWork::Make, true),
            ("gw.state.journal-7", FileWork::Remove, true),
            ("gw.state.journal-7", FileWork::Write, false),
            ("gw.state.journal-07", FileWork::Remove, false),
            ("gw.state.journal-+7", FileWork::Remove, false),
            ("gw.state.journal-", FileWork::Remove, false),
            ("gw.state.journal-7/../../x", FileWork::Remove, false),
            ("other.state", FileWork::Read, false),
        ] {
            assert_eq!(admits(&state, name, work.clone()), want, "{name} {work:?}");
        }
        let configuration = at(Named::Configuration("gw.toml".to_owned()));
        assert!(admits(&configuration, "gw.toml", FileWork::Read));
        assert!(!admits(&configuration, "other.toml", FileWork::Read));
        assert!(!admits(&configuration, "gw.toml", FileWork::Write));
        let guests = at(Named::Guests);
        assert!(
            admits(&guests, "vm1", FileWork::Bind(SocketRole::Guest)) && !admits(&guests, "vm1", FileWork::Connect)
        );
        assert!(!admits(&guests, "vm1", FileWork::Remove) && !admits(&guests, "vm1", FileWork::Read));
        let elsewhere =
            FileOrder { dir: "/run".into(), name: "vm1".to_owned(), work: FileWork::Bind(SocketRole::Guest) };
        assert!(!guests.admits("gw", &elsewhere));
    }

    /// A directory of its own, removed at the end.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("fatpath-files-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn order(&self, name: &str, work: FileWork) -> FileOrder {
            FileOrder { dir: self.0.clone(), name: name.to_owned(), work }
        }

        fn done(&self, name: &str, work: FileWork) -> io::Result<Vec<OwnedFd>> {
            carry_out(&self.order(name, work), None)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn socket_without_a_listener_is_replaced() {
        let dir = Dir::new("stale");
        let path = dir.0.join("gw.sock");
        for (socket, mode) in [(SocketRole::Control, 0o700), (SocketRole::Netlink, 0o666), (SocketRole::Ike, 0o700)] {
            let first = dir.done("gw.sock", FileWork::Bind(socket)).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{socket:?}");
            if socket == SocketRole::Control {
                rustix::net::listen(&first[0], 1).unwrap();
                let busy = dir.done("gw.sock", FileWork::Bind(socket)).unwrap_err();
                assert_eq!(busy.kind(), io::ErrorKind::AddrInUse);
            }
            drop(first);
            drop(dir.done("gw.sock", FileWork::Bind(socket)).unwrap());
            fs::remove_file(&path).unwrap();
            fs::write(&path, "text").unwrap();
            assert!(dir.done("gw.sock", FileWork::Bind(socket)).is_err());
            assert_eq!(fs::read_to_string(&path).unwrap(), "text");
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn socket_of_another_program_is_not_removed() {
        let dir = Dir::new("another");
        let made = dir.done("vm1", FileWork::Bind(SocketRole::Guest)).unwrap();
        let (device, inode) = identity(&made[1]).unwrap();
        let adopted = dir.done("vm1", FileWork::Adopt).unwrap();
        assert_eq!(identity(&adopted[0]).unwrap(), (device, inode));
        let remove = |inode| dir.done("vm1", FileWork::RemoveSocket { device, inode }).unwrap();
        remove(inode + 1);
        assert!(dir.0.join("vm1").exists(), "another file");
        rustix::net::listen(&made[0], 1).unwrap();
        drop(dir.done("vm1", FileWork::Connect).unwrap());
        remove(inode);
        assert!(dir.0.join("vm1").exists(), "a program listens there");
        rustix::net::shutdown(&made[0], rustix::net::Shutdown::Both).unwrap();
        remove(inode);
        assert!(!dir.0.join("vm1").exists());
    }

    #[test]
    fn link_and_file_are_not_taken_on_as_sockets() {
        let dir = Dir::new("taken-on");
        let number = |name: &str| dir.done(name, FileWork::Adopt).unwrap_err().raw_os_error();
        let _real = dir.done("real", FileWork::Bind(SocketRole::Guest)).unwrap();
        std::os::unix::fs::symlink("real", dir.0.join("link")).unwrap();
        fs::write(dir.0.join("file"), "").unwrap();
        for name in ["link", "file"] {
            assert_eq!(number(name), Some(Errno::NOTSOCK.raw_os_error()), "{name}");
        }
        assert_eq!(number("none"), Some(Errno::NOENT.raw_os_error()));
    }

    #[test]
    fn full_queue_of_a_back_end_is_not_waited_for() {
        let dir = Dir::new("full");
        let made = dir.done("vm1", FileWork::Bind(SocketRole::Guest)).unwrap();
        rustix::net::listen(&made[0], 0).unwrap();
        let first = dir.done("vm1", FileWork::Connect).unwrap();
        let flags = rustix::fs::fcntl_getfl(&first[0]).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "the gateway waits for replies");
        let full = dir.done("vm1", FileWork::Connect).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(Errno::AGAIN.raw_os_error()));
    }

    #[test]
    fn fifo_is_not_waited_for() {
        let dir = Dir::new("fifo");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, dir.0.join("gw.toml"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(dir.done("gw.toml", FileWork::Read).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn link_is_not_shared() {
        let dir = Dir::new("links");
        let real = dir.done("real", FileWork::Bind(SocketRole::Guest)).unwrap();
        rustix::net::listen(&real[0], 1).unwrap();
        std::os::unix::fs::symlink("real", dir.0.join("link")).unwrap();
        let refused = dir.done("link", FileWork::Share).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::NOTSOCK.raw_os_error()));
        // The link is one that the gateway's user cannot change.
        dir.done("link", FileWork::Connect).unwrap();
        dir.done("link", FileWork::Remove).unwrap();
        assert!(dir.0.join("real").exists());
    }
}
