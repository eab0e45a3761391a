//! The client's end of the control socket, and of the view socket, which only shows.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ctl::{Reply, Request};

use crate::{CliError, passing};

/// Time limit for a gateway's reply.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Maximum length of a reply, in bytes: hundreds of thousands of routes.
const MAX_REPLY_LEN: u64 = 256 << 20;

/// Run directory of root's gateways.
pub const ROOTS_RUN_DIR: &str = "/run/fatpath";

/// Directory of the state of root's gateways.
const ROOTS_STATE_DIR: &str = "/var/lib/fatpath";

/// Path of the control socket for a gateway in this process: in the first run directory of its user.
pub fn own_socket_path(instance: &str) -> PathBuf {
    let [own, _] = run_dirs(&Variables::of_process());
    control_socket(&own, instance)
}

/// Path of the control socket for a gateway of root.
pub fn roots_socket_path(instance: &str) -> PathBuf {
    let [own, _] = run_dirs(&Variables { is_root: true, ..Variables::of_process() });
    control_socket(&own, instance)
}

/// Directory of the state that gateways of root, if it `is_root`, or of this user keep, if no other place is named; `None` for a user
/// without a home.
pub fn state_dir(is_root: bool) -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|dir| !dir.is_empty());
    let variables = Variables { is_root, ..Variables::of_process() };
    state_dir_of(&variables, variable("XDG_STATE_HOME"), variable("HOME"))
}

fn state_dir_of(variables: &Variables, of_user: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    if let Some(given) = &variables.given {
        return Some(given.into());
    }
    if variables.is_root {
        return Some(PathBuf::from(ROOTS_STATE_DIR));
    }
    // The specification of XDG directories ignores relative paths.
    let of_user = of_user.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let base = of_user.or_else(|| home.map(|home| PathBuf::from(home).join(".local/state")))?;
    Some(base.join("fatpath"))
}

/// Path of the control socket of `instance`.
pub fn socket_path(instance: &str) -> PathBuf {
    control_socket(&run_dir_of(instance, run_dirs(&Variables::of_process())), instance)
}

/// Path of the netlink socket of `instance`, for programs under `fatpath exec`.
pub fn netlink_path(instance: &str) -> PathBuf {
    nlsock::socket_path(&run_dir_of(instance, run_dirs(&Variables::of_process())), instance)
}

/// End of the name of a view socket.
const VIEW_END: &str = ".view.sock";

/// Path of the view socket of the gateway with the control socket `control`.
pub fn view_socket(control: &Path) -> PathBuf {
    control.with_extension(&VIEW_END[1..])
}

fn control_socket(dir: &Path, instance: &str) -> PathBuf {
    dir.join(format!("{instance}.sock"))
}

/// Environment variables that determine the run directories.
#[derive(Clone, Debug)]
struct Variables {
    /// `FATPATH_RUNDIR`.
    given: Option<OsString>,
    /// `XDG_RUNTIME_DIR`.
    of_user: Option<OsString>,
    is_root: bool,
}

impl Variables {
    fn of_process() -> Self {
        let variable = |name| env::var_os(name).filter(|dir| !dir.is_empty());
        let is_root = rustix::process::geteuid().is_root();
        Self { given: variable("FATPATH_RUNDIR"), of_user: variable("XDG_RUNTIME_DIR"), is_root }
    }
}

/// Run directories: for gateways that this user starts, and for root's gateways. The two are the same for root, and if
/// `FATPATH_RUNDIR` is set.
fn run_dirs(variables: &Variables) -> [PathBuf; 2] {
    if let Some(given) = &variables.given {
        return [given.into(), given.into()];
    }
    let of_user = variables.of_user.as_ref().filter(|_| !variables.is_root);
    let roots = PathBuf::from(ROOTS_RUN_DIR);
    [of_user.map_or(roots.clone(), |dir| Path::new(dir).join("fatpath")), roots]
}

/// Run directory that contains a gateway's sockets, with preference for this user's own; this user's own if none
/// contains them.
fn run_dir_of(instance: &str, dirs: [PathBuf; 2]) -> PathBuf {
    let [own, _] = &dirs;
    let own = own.clone();
    let has_socket =
        |dir: &PathBuf| control_socket(dir, instance).exists() || nlsock::socket_path(dir, instance).exists();
    dirs.into_iter().find(has_socket).unwrap_or(own)
}

/// Names and control sockets of the gateways in this user's run directory and in root's, sorted by name; of two with the
/// same name, this user's. A socket may be left over from a gateway that was killed.
pub fn gateways() -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for dir in run_dirs(&Variables::of_process()) {
        // A directory that does not exist or may not be read has no gateways for this user.
        let Ok(files) = std::fs::read_dir(&dir) else { continue };
        for path in files.filter_map(Result::ok).map(|file| file.path()) {
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some(name) =
                name.filter(|name| !name.ends_with(VIEW_END)).and_then(|name| name.strip_suffix(".sock"))
                && !found.iter().any(|(known, _)| known == name)
            {
                found.push((name.to_owned(), path.clone()));
            }
        }
    }
    found.sort();
    found
}

/// Whether a process accepts connections at `path`, or refuses them to this user alone.
pub fn is_running(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(err) => err.kind() == ErrorKind::PermissionDenied,
    }
}

/// Whether this user may look at the gateway with the control socket `path`, at that or at its view socket. So it may if no gateway
/// listens at the socket any more.
pub fn may_look(path: &Path) -> bool {
    let is_permitted = |path: &Path| match UnixStream::connect(path) {
        Ok(_) => Ok(true),
        Err(err) if err.kind() == ErrorKind::ConnectionRefused => Ok(true),
        Err(err) => Err(err),
    };
    match is_permitted(path) {
        Err(err) if err.kind() == ErrorKind::PermissionDenied => is_permitted(&view_socket(path)).unwrap_or(false),
        outcome => outcome.unwrap_or(false),
    }
}

/// Parses a gateway's name, which becomes a file name: letters, digits, `-`, `_` and `.`, at most 64, the first no
/// dot. The control socket of a name that ends in `.view` would be another gateway's view socket.
///
/// # Errors
/// The reason for which it is no name.
pub fn instance_name(name: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(allowed) {
        return Err("use 1 to 64 letters, digits, '-', '_' and '.', beginning with no dot".to_owned());
    }
    if name.ends_with(".view") {
        return Err("a name cannot end in `.view`, which is the view socket of another gateway".to_owned());
    }
    Ok(name.to_owned())
}

/// Environment variable with the name of the gateway, for commands without one.
const INSTANCE_VARIABLE: &str = "FATPATH_INSTANCE";

/// Name of a gateway: `named`, else that of `FATPATH_INSTANCE` in the environment, else `default`.
///
/// # Errors
/// The variable has no name of a gateway.
pub fn instance_or_default(named: Option<&str>) -> Result<String, CliError> {
    match (named, env::var_os(INSTANCE_VARIABLE)) {
        (Some(name), _) => Ok(name.to_owned()),
        (None, None) => Ok("default".to_owned()),
        (None, Some(name)) => instance_name(&name.to_string_lossy())
            .map_err(|why| CliError::failed(format!("{INSTANCE_VARIABLE}={}: {why}.", name.display()))),
    }
}

/// Error for a socket of `instance` that refuses connections, with a remedy.
pub fn unreachable(instance: &str, path: &Path, err: &io::Error) -> CliError {
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

/// Connection to a running gateway.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
    /// Time limit for a reply.
    limit: Duration,
}

impl Client {
    /// Connects to `instance`.
    ///
    /// # Errors
    /// The gateway does not run; the error contains the command that starts it. Or this user may not connect.
    pub fn connect(instance: &str) -> Result<Self, CliError> {
        Self::connect_at(instance, socket_path(instance))
    }

    /// Connects to `instance`; `None` if no gateway of that name runs.
    ///
    /// # Errors
    /// This user may not connect.
    pub fn connect_running(instance: &str) -> Result<Option<Self>, CliError> {
        match UnixStream::connect(socket_path(instance)) {
            Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
            _ => Self::connect(instance).map(Some),
        }
    }

    /// Connects to `instance`, whose control socket is at `path`.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_at(instance: &str, path: PathBuf) -> Result<Self, CliError> {
        Self::connect_within(instance, path, ANSWER_LIMIT)
    }

    /// Connects to `instance`, whose control socket is at `path`, with a time limit for replies.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_within(instance: &str, path: PathBuf, limit: Duration) -> Result<Self, CliError> {
        let stream = UnixStream::connect(&path).map_err(|err| unreachable(instance, &path, &err))?;
        Self::over(stream, path, limit)
    }

    fn over(stream: UnixStream, path: PathBuf, limit: Duration) -> Result<Self, CliError> {
        let client = Self { stream: BufReader::new(stream), path, limit };
        client.set_limit(Some(limit)).map_err(|err| client.failed(&err))?;
        Ok(client)
    }

    /// Connects to `instance` for requests that [only look](Request::only_looks): to its view socket if this user may not connect to
    /// its control socket.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn look(instance: &str) -> Result<Self, CliError> {
        Self::look_within(instance, socket_path(instance), ANSWER_LIMIT)
    }

    /// As [`look`](Self::look), at the control socket `path` or the view socket beside it, with a time limit for replies.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn look_within(instance: &str, path: PathBuf, limit: Duration) -> Result<Self, CliError> {
        match UnixStream::connect(&path) {
            Err(err) if err.kind() == ErrorKind::PermissionDenied => {
                let view = view_socket(&path);
                let found = UnixStream::connect(&view).map(|stream| (stream, view));
                // The control socket is the one to name: it exists.
                let (stream, path) = found.map_err(|_| unreachable(instance, &path, &err))?;
                Self::over(stream, path, limit)
            }
            connected => Self::over(connected.map_err(|err| unreachable(instance, &path, &err))?, path, limit),
        }
    }

    /// As [`look_within`](Self::look_within), at the view socket first: what its clients ask for is made in shorter slices, so that packets
    /// wait less.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn view_within(name: &str, path: PathBuf, limit: Duration) -> Result<Self, CliError> {
        let view = view_socket(&path);
        match UnixStream::connect(&view) {
            Ok(stream) => Self::over(stream, view, limit),
            Err(_) => Self::look_within(name, path, limit),
        }
    }

    /// Whether the connection is to a view socket, which shows long tables in part only ([`VIEW_ROWS`](ctl::request::VIEW_ROWS)).
    pub fn is_viewer(&self) -> bool {
        self.path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(VIEW_END))
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// The gateway's own error text if it refuses the request; else the failure of the connection.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, CliError> {
        self.ask_with(request, &[])
    }

    /// Sends a request with descriptors and waits for its reply.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_with(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<Reply, CliError> {
        match passing::send(self.stream.get_ref(), request.to_line().as_bytes(), descriptors) {
            // A gateway with too many clients sends its refusal before the request, and closes.
            Err(err) if err.kind() != ErrorKind::BrokenPipe => Err(self.unanswered(&err)),
            _ => self.next_reply(),
        }
    }

    /// Waits for a reply behind another one to the same request.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn next_reply(&mut self) -> Result<Reply, CliError> {
        let mut line = String::new();
        match self.stream.by_ref().take(MAX_REPLY_LEN).read_line(&mut line) {
            Ok(0) => return Err(self.failed(&"the gateway ended before it answered")),
            Err(err) => return Err(self.unanswered(&err)),
            Ok(_) => {}
        }
        match Reply::from_line(&line).map_err(|err| self.failed(&err))? {
            Reply::Error { message } => Err(CliError::failed(message)),
            reply => Ok(reply),
        }
    }

    /// Error for a reply that does not match the request.
    pub fn confused(&self) -> CliError {
        self.failed(&"the answer is to another question; are both of the same version?")
    }

    /// Stream behind the last reply, without a time limit; and a second handle of the connection, with which another
    /// thread can end it.
    ///
    /// # Errors
    /// Errors of setsockopt(2) and dup(2).
    pub fn into_stream(self) -> io::Result<(BufReader<UnixStream>, UnixStream)> {
        self.set_limit(None)?;
        let other = self.stream.get_ref().try_clone()?;
        Ok((self.stream, other))
    }

    fn set_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(limit)?;
        self.stream.get_ref().set_write_timeout(limit)
    }

    fn unanswered(&self, err: &io::Error) -> CliError {
        match err.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                self.failed(&format!("no answer within {} seconds", self.limit.as_secs()))
            }
            _ => self.failed(err),
        }
    }

    fn failed(&self, what: &dyn std::fmt::Display) -> CliError {
        CliError::failed(format!("{}: {what}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_directory_is_the_users_that_is_not_root() {
        let variables = |given: &str, of_user: &str, is_root| Variables {
            given: (!given.is_empty()).then(|| given.into()),
            of_user: (!of_user.is_empty()).then(|| of_user.into()),
            is_root,
        };
        for (variables, want) in [
            (variables("", "/run/user/7", false), ["/run/user/7/fatpath", "/run/fatpath"]),
            (variables("", "/run/user/0", true), ["/run/fatpath", "/run/fatpath"]),
            (variables("", "", false), ["/run/fatpath", "/run/fatpath"]),
            (variables("/tmp/x", "/run/user/7", false), ["/tmp/x", "/tmp/x"]),
        ] {
            assert_eq!(run_dirs(&variables), want.map(PathBuf::from), "{variables:?}");
        }
    }

    #[test]
    fn view_socket_is_beside_the_control_socket() {
        for (control, view) in
            [("/run/x/left.sock", "/run/x/left.view.sock"), ("/run/x/a.b.sock", "/run/x/a.b.view.sock")]
        {
            assert_eq!(view_socket(Path::new(control)), Path::new(view));
        }
    }

    #[test]
    fn gateway_is_searched_in_the_users_directory_first() {
        let root = env::temp_dir().join(format!("fatpath-run-dirs-{}", std::process::id()));
        let dirs = ["own", "roots"].map(|name| root.join(name));
        for (at, names) in [["both.sock", "own.netlink"], ["both.sock", "roots.netlink"]].into_iter().enumerate() {
            std::fs::create_dir_all(&dirs[at]).unwrap();
            names.iter().for_each(|name| std::fs::write(dirs[at].join(name), "").unwrap());
        }
        for (instance, want) in [("both", 0), ("own", 0), ("roots", 1), ("none", 0)] {
            assert_eq!(run_dir_of(instance, dirs.clone()), dirs[want], "{instance}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
