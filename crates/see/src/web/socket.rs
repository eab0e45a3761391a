//! The Unix socket of the page.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::Mode;
use rustix::process::umask;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::net::UnixListener;

/// Listens at `path`, for its user and, as far as the umask permits, its group. Signals that end the process remove the socket.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err_and(|err| err.kind() == ErrorKind::ConnectionRefused) {
        // Left by a process that was killed.
        fs::remove_file(path)?;
    }
    let others = Mode::RWXO;
    let before = umask(others);
    umask(before | others);
    let listener = UnixListener::bind(path);
    umask(before);
    let listener = listener?;
    remove_at_end(path.to_owned())?;
    Ok(listener)
}

fn remove_at_end(path: PathBuf) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let wait = move || {
        for signal in signals.forever() {
            // The process ends now, whether or not the file can be removed.
            let _ = fs::remove_file(&path);
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}
