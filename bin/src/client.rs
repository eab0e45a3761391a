//! The client's end of the control socket.

use std::env;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use control::{Reply, Request};

use crate::error::CliError;

/// How long a gateway may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The longest answer, in bytes: hundreds of thousands of routes.
const MAX_REPLY_LEN: u64 = 256 << 20;

/// Where the control socket of `instance` is: in `/run/fatpath`, or where `FATPATH_RUNDIR` says.
pub(crate) fn socket_path(instance: &str) -> PathBuf {
    rundir().join(format!("{instance}.sock"))
}

/// Where programs under `fatpath exec` reach `instance`.
pub(crate) fn netlink_path(instance: &str) -> PathBuf {
    nlsock::socket_path(&rundir(), instance)
}

/// Why a socket of `instance` cannot be connected to, and what to do about it.
pub(crate) fn unreachable(instance: &str, path: &Path, err: &io::Error) -> CliError {
    CliError::failed(match err.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => format!(
            "{}: no gateway named {instance} is running; \
             start one with `fatpath run -c FILE --instance {instance}`.",
            path.display()
        ),
        ErrorKind::PermissionDenied => {
            format!("{}: permission denied; use the account that runs the gateway, as with sudo.", path.display())
        }
        _ => format!("{}: {err}", path.display()),
    })
}

fn rundir() -> PathBuf {
    let dir = env::var_os("FATPATH_RUNDIR").filter(|dir| !dir.is_empty());
    PathBuf::from(dir.unwrap_or_else(|| "/run/fatpath".into()))
}

/// A connection to a running gateway.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Client {
    /// Connects to `instance`.
    ///
    /// # Errors
    /// If it is not running, and how to start it; or if this user may not speak to it.
    pub(crate) fn connect(instance: &str) -> Result<Self, CliError> {
        Self::connect_at(instance, socket_path(instance))
    }

    /// Connects to `instance`, whose control socket is at `path`.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub(crate) fn connect_at(instance: &str, path: PathBuf) -> Result<Self, CliError> {
        let stream = UnixStream::connect(&path).map_err(|err| unreachable(instance, &path, &err))?;
        let client = Self { stream: BufReader::new(stream), path };
        client.limit(Some(ANSWER_LIMIT)).map_err(|err| client.failed(&err))?;
        Ok(client)
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// If the gateway refuses the request, says why in its own words; else if it does not answer.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Reply, CliError> {
        let mut line = String::new();
        let answered = match self.stream.get_mut().write_all(request.to_line().as_bytes()) {
            // One that has no room for this client has said so before it was asked.
            Err(err) if err.kind() != ErrorKind::BrokenPipe => Err(err),
            _ => self.stream.by_ref().take(MAX_REPLY_LEN).read_line(&mut line),
        };
        match answered {
            Ok(0) => return Err(self.failed(&"the gateway ended before it answered")),
            Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(self.failed(&format!("no answer within {} seconds", ANSWER_LIMIT.as_secs())));
            }
            Err(err) => return Err(self.failed(&err)),
            Ok(_) => {}
        }
        match Reply::from_line(&line).map_err(|err| self.failed(&err))? {
            Reply::Error { message } => Err(CliError::failed(message)),
            reply => Ok(reply),
        }
    }

    /// That the gateway answered something else than it was asked.
    pub(crate) fn confused(&self) -> CliError {
        self.failed(&"the answer is to another question; are both of the same version?")
    }

    /// What follows the last reply, without a limit of time; and the connection, to end it from elsewhere.
    pub(crate) fn into_stream(self) -> io::Result<(BufReader<UnixStream>, UnixStream)> {
        self.limit(None)?;
        let other = self.stream.get_ref().try_clone()?;
        Ok((self.stream, other))
    }

    fn limit(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(limit)?;
        self.stream.get_ref().set_write_timeout(limit)
    }

    fn failed(&self, what: &dyn std::fmt::Display) -> CliError {
        CliError::failed(format!("{}: {what}", self.path.display()))
    }
}
