//! Stand-in for the service manager (systemd): its notification socket, and its store of descriptors.

use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::fs::{FileType, fstat};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::{Netns, Outcome, Scratch};

/// Most descriptors of one message.
const MAX_DESCRIPTORS: usize = 16;

/// Behaviour of a manager.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Manners {
    /// As systemd with room in its store.
    #[default]
    Stores,
    /// As systemd with `FileDescriptorStoreMax=0`.
    StoresNothing,
    /// As systemd with a store of this size.
    StoresAtMost(usize),
    /// It hangs: it stores what it has got before, and confirms nothing.
    Hangs,
}

/// Descriptors in the store, with their names.
type Store = Arc<Mutex<(Manners, Vec<(String, OwnedFd)>)>>;

/// A manager, which ends when dropped.
#[derive(Debug)]
pub struct Manager {
    path: PathBuf,
    store: Store,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    /// A manager whose socket is in `scratch`.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn new(scratch: &Scratch) -> Outcome<Self> {
        let path = scratch.file("notify");
        let socket = notify_socket(&path)?;
        let store = Store::default();
        let of_thread = Arc::clone(&store);
        let thread = Some(thread::spawn(move || serve(&socket, &of_thread)));
        Ok(Self { path, store, thread })
    }

    /// Changes its behaviour.
    pub fn behave(&self, manners: Manners) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).0 = manners;
    }

    /// Stores a descriptor, as if a service had sent it.
    pub fn put(&self, name: &str, descriptor: OwnedFd) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).1.push((name.to_owned(), descriptor));
    }

    /// Removes the descriptors with this name.
    pub fn remove(&self, name: &str) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).1.retain(|(of, _)| of != name);
    }

    /// Empties the store.
    pub fn clear(&self) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).1.clear();
    }

    /// Duplicates of the stored descriptors with this name.
    ///
    /// # Errors
    /// One cannot be duplicated.
    pub fn stored(&self, name: &str) -> Outcome<Vec<OwnedFd>> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let named = store.1.iter().filter(|(of, _)| of == name);
        Ok(named.map(|(_, descriptor)| descriptor.try_clone()).collect::<Result<_, _>>()?)
    }

    /// Command that starts the program under test in `netns` as this manager's service, with the stored descriptors; the
    /// arguments follow. `state`: the place of the gateway's state.
    ///
    /// # Errors
    /// None.
    pub fn command(&self, netns: &Netns, state: &Path) -> Outcome<Command> {
        self.command_under(&[], netns, state)
    }

    /// As [`command`](Self::command), by the program `under`, whose arguments follow it.
    ///
    /// # Errors
    /// None.
    pub fn command_under(&self, under: &[&str], netns: &Netns, state: &Path) -> Outcome<Command> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = netns.command("perl");
        let numbers = store.1.iter().map(|(_, descriptor)| descriptor.as_raw_fd().to_string());
        let numbers = std::iter::once(process::id().to_string()).chain(numbers).collect::<Vec<_>>().join(" ");
        let names = store.1.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(":");
        command.args(["-e", EXEC, &numbers, &names]).arg(state).args(under).arg(crate::fatpath());
        command.env("NOTIFY_SOCKET", &self.path);
        Ok(command)
    }
}

/// Executes a program with descriptors of another process, from number 3 on, in its order: its arguments are the numbers of the
/// process and of its descriptors, their names, the place of the state, the program, and its arguments. No socket can be opened by
/// its name in `/proc`, so they are duplicated (pidfd_getfd(2)).
const EXEC: &str = r#"
use POSIX ();
# Numbers from 3 on are free.
POSIX::close($_) for 3 .. 99;
my ($pid, @numbers) = split / /, shift;
my ($names, $state) = (shift, shift);
my @places = map { open(my $place, "<", "/dev/null") or die; $place } @numbers;
my $process = syscall(434, $pid + 0, 0);
die "pidfd_open: $!" if $process < 0;
@places = ();
my @kept = map {
    my $own = syscall(438, $process, $_ + 0, 0);
    die "pidfd_getfd: $!" if $own < 0;
    open(my $kept, "<&=", $own) or die;
    fcntl($kept, 2, 0) or die;
    $kept
} @numbers;
@ENV{qw(LISTEN_PID LISTEN_FDS LISTEN_FDNAMES)} = ($$, scalar @numbers, $names) if @numbers;
exec(@ARGV, "--state", $state) or die "exec: $!";
"#;

impl Drop for Manager {
    fn drop(&mut self) {
        // An empty message ends the thread, unless its socket's file is gone.
        let ends = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"", &self.path));
        if let Some(thread) = self.thread.take().filter(|_| ends.is_ok()) {
            let _ = thread.join();
        }
    }
}

fn serve(socket: &UnixDatagram, store: &Store) {
    // Descriptors that a hanging manager holds.
    let mut held = Vec::new();
    loop {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let Ok(received) = received else { return };
        let descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let descriptors: Vec<OwnedFd> = descriptors.collect();
        let text = String::from_utf8_lossy(&bytes[..received.bytes]).into_owned();
        if text.is_empty() {
            return;
        }
        let has = |line: &str| text.lines().any(|found| found == line);
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored").to_owned();
        let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
        match store.0 {
            Manners::Hangs => held.extend(descriptors),
            Manners::Stores | Manners::StoresAtMost(_) if has("FDSTORE=1") => {
                let most = if let Manners::StoresAtMost(most) = store.0 { most } else { usize::MAX };
                for descriptor in descriptors {
                    if store.1.len() < most && !store.1.iter().any(|(_, other)| are_one_file(other, &descriptor)) {
                        store.1.push((name.clone(), descriptor));
                    }
                }
            }
            _ if has("FDSTOREREMOVE=1") => store.1.retain(|(of, _)| *of != name),
            _ => {}
        }
    }
}

/// Whether two descriptors are of one file of memory. systemd keeps the first of descriptors with one description.
fn are_one_file(one: &OwnedFd, other: &OwnedFd) -> bool {
    let file = |descriptor: &OwnedFd| {
        let stat = fstat(descriptor).ok().filter(|stat| FileType::from_raw_mode(stat.st_mode).is_file())?;
        Some((stat.st_dev, stat.st_ino))
    };
    // Eventfds have no type, and sockets have an inode each.
    file(one).is_some_and(|one| file(other) == Some(one))
}

/// Makes the socket of a manager's notifications, to which all users may send, as to systemd's.
///
/// # Errors
/// The system's.
pub fn notify_socket(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
    Ok(socket)
}
