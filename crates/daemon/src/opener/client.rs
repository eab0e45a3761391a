//! Evidence that a client has asked for a link: its connection to a socket of the gateway, which the gateway shows to its opener.
//!
//! A gateway that was taken over has no such connection unless a program of root has made it. It can bind another socket of its own to
//! the path, too: one that it has connected to a daemon has a named peer, a listener, and a client has none. What is left is one end of
//! a pair of sockets that a privileged process has made and passed on, such as standard input of a program started by sshd(8).

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, getpeername, getsockname};

use crate::privilege::Peer;

/// Checks that `connection` is one to a socket bound to a path of `sockets`, of a process of root that holds `CAP_NET_ADMIN` and has not
/// hung up. A process of another user may have executed a program with more rights since it connected. The process `opener`, which connects
/// to back ends by the gateway's orders, is no client.
///
/// # Errors
/// The reason for which it does not count.
pub(super) fn check(connection: Option<&OwnedFd>, sockets: &[PathBuf], opener: u32) -> Result<(), String> {
    let Some(connection) = connection else {
        return Err("a program has to add it, as by `ip link add` or `fatpath load -c FILE`".to_owned());
    };
    let failed = |err: Errno| format!("its client's socket: {err}");
    let named = |address: SocketAddrUnix| Some(Path::new(OsStr::from_bytes(address.path()?.to_bytes())).to_owned());
    let own = getsockname(connection).and_then(SocketAddrUnix::try_from).map_err(failed)?;
    if !named(own).is_some_and(|path| sockets.contains(&path)) {
        return Err("its client has connected to another socket".to_owned());
    }
    let peer = getpeername(connection).map_err(failed)?;
    if peer.map(SocketAddrUnix::try_from).transpose().map_err(failed)?.is_some_and(|peer| is_chosen(&peer)) {
        return Err("its client's socket has a name, as a listener has".to_owned());
    }
    let mut state = [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::RDHUP)];
    if poll(&mut state, Some(&Timespec::default())).map_err(failed)? > 0 {
        return Err("its client has hung up".to_owned());
    }
    let peer = Peer::of(connection).map_err(failed)?;
    match (peer.uid, peer.holds_net_admin()) {
        _ if peer.pid == opener => Err("its client is the opener itself".to_owned()),
        (0, true) => Ok(()),
        (0, false) => Err("its client lacks CAP_NET_ADMIN, or has ended".to_owned()),
        _ => Err("its client is another user than root".to_owned()),
    }
}

/// Whether an address is one that a program has chosen: not empty, and not one of five digits that the kernel has chosen for a socket that passes
/// credentials (`unix_autobind`).
fn is_chosen(address: &SocketAddrUnix) -> bool {
    let is_autobound = |name: &[u8]| name.len() == 5 && name.iter().all(u8::is_ascii_hexdigit);
    address.path().is_some() || address.abstract_name().is_some_and(|name| !name.is_empty() && !is_autobound(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    use rustix::net::sockopt::set_socket_passcred;
    use rustix::net::{AddressFamily, SocketType, bind, connect};

    use super::*;

    /// Variable with the path that [`child_that_connects`] connects to.
    const PATH: &str = "FATPATH_TEST_PATH";

    #[test]
    #[ignore = "a process of its own runs it"]
    fn child_that_connects() {
        let _stream = UnixStream::connect(std::env::var_os(PATH).unwrap()).unwrap();
        std::thread::sleep(std::time::Duration::from_secs(60));
    }

    #[test]
    fn connection_counts_if_a_client_of_root_has_made_it() {
        let dir = std::env::temp_dir().join(format!("fatpath-client-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (own, other, client) = (dir.join("own"), dir.join("other"), dir.join("client"));
        let accepted = |listener: &UnixListener| OwnedFd::from(listener.accept().unwrap().0);
        let by = |opener: u32, connection: &OwnedFd| check(Some(connection), std::slice::from_ref(&own), opener);
        let why = |connection: &OwnedFd| by(0, connection).err().unwrap_or_default();
        let socket = || rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let to = |path: &PathBuf| SocketAddrUnix::new(path).unwrap();
        // A socket that this process has connected to a listener, and bound to the path.
        let listener = UnixListener::bind(&other).unwrap();
        let connected = socket();
        connect(&connected, &to(&other)).unwrap();
        bind(&connected, &to(&own)).unwrap();
        assert_eq!(why(&connected), "its client's socket has a name, as a listener has");
        assert_eq!(why(&accepted(&listener)), "its client has connected to another socket");
        std::fs::remove_file(&own).unwrap();
        let listener = UnixListener::bind(&own).unwrap();
        let stream = UnixStream::connect(&own).unwrap();
        let connection = accepted(&listener);
        let is_root = rustix::process::geteuid().is_root();
        let may = is_root && Peer::of(&connection).unwrap().holds_net_admin();
        assert_eq!(why(&connection).is_empty(), may);
        assert_eq!(by(std::process::id(), &connection).unwrap_err(), "its client is the opener itself");
        drop(stream);
        assert_eq!(why(&connection), "its client has hung up");
        // A client whose socket has a name.
        let named = socket();
        bind(&named, &to(&client)).unwrap();
        connect(&named, &to(&own)).unwrap();
        assert_eq!(why(&accepted(&listener)), "its client's socket has a name, as a listener has");
        // A client that the kernel has named.
        let autobound = socket();
        set_socket_passcred(&autobound, true).unwrap();
        connect(&autobound, &to(&own)).unwrap();
        assert_eq!(why(&accepted(&listener)).is_empty(), may);
        // Clients of root without the capability, and of another user.
        if may {
            std::fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
            // A process of its own, as capabilities are lost by execve(2).
            let own_program = std::env::current_exe().unwrap();
            for (options, want) in [
                (
                    ["--bounding-set=-net_admin", "--inh-caps=-net_admin"].as_slice(),
                    "its client lacks CAP_NET_ADMIN, or has ended",
                ),
                (&["--reuid=65534", "--clear-groups"], "its client is another user than root"),
            ] {
                let test = "opener::client::tests::child_that_connects";
                let mut client = Command::new("setpriv");
                client.args(options).arg(&own_program).args(["--exact", test, "--ignored"]).env(PATH, &own);
                let mut client = client.stdout(std::process::Stdio::null()).spawn().unwrap();
                let connection = accepted(&listener);
                let found = why(&connection);
                client.kill().and_then(|()| client.wait()).unwrap();
                assert_eq!(found, want);
            }
        }
        assert!(check(None, &[], 0).unwrap_err().contains("`ip link add`"));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
