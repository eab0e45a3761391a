//! Network namespaces by `ip netns`, and code that runs inside one.

use std::fs::File;
use std::os::fd::AsFd;
use std::panic;
use std::path::Path;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::failure::{Failure, warn};
use crate::process::tool;
use crate::stop::Stop;

/// Directory in which iproute2 binds its namespaces.
const NETNS_RUN_DIR: &str = "/var/run/netns";

/// A named network namespace, removed on drop. Its devices go with it.
#[derive(Debug)]
pub struct Namespace {
    name: Name,
    file: File,
}

/// The name only: the namespace may exist from here on and is removed on drop.
#[derive(Debug)]
struct Name(String);

impl Namespace {
    /// Makes the namespace and sets its loopback up.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn create(name: String) -> Result<Self, Failure> {
        let name = Name(name);
        // Not interruptible: a half-created namespace is harder to remove than a whole one.
        tool("ip", &["netns", "add", &name.0], &Stop::never())?;
        let path = Path::new(NETNS_RUN_DIR).join(&name.0);
        let file = File::open(&path).map_err(|err| Failure::step(format!("open {}", path.display()), err))?;
        let namespace = Self { name, file };
        namespace.ip("link set lo up", &Stop::never())?;
        Ok(namespace)
    }

    /// Name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name.0
    }

    /// Runs `ip -n NAME` with the words of `args`.
    ///
    /// # Errors
    /// The error of `ip`, or a signal has arrived.
    pub fn ip(&self, args: &str, stop: &Stop) -> Result<(), Failure> {
        let mut words = vec!["-n", self.name()];
        words.extend(args.split_whitespace());
        tool("ip", &words, stop).map(drop)
    }

    /// As [`Opened::enter`].
    ///
    /// # Errors
    /// The error of `inside`, or the namespace cannot be entered.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
        enter(&self.file, self.name(), inside)
    }

    /// The same namespace, as one that another value removes.
    ///
    /// # Errors
    /// It has been removed.
    pub fn open(&self) -> Result<Opened, Failure> {
        Opened::at(&Path::new(NETNS_RUN_DIR).join(self.name()))
    }
}

/// A network namespace that another value or program removes.
#[derive(Debug)]
pub struct Opened {
    name: String,
    file: File,
}

impl Opened {
    /// The namespace that is bound to `path`.
    ///
    /// # Errors
    /// The error of open(2).
    pub fn at(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|err| Failure::step(format!("open {name}"), err))?;
        Ok(Self { name, file })
    }

    /// Runs `inside` on a new thread that has entered the namespace (setns(2) moves a thread, not a process).
    /// Sockets opened and processes started there stay in it.
    ///
    /// # Errors
    /// The error of `inside`, or the namespace cannot be entered.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
        enter(&self.file, &self.name, inside)
    }
}

fn enter<T: Send>(file: &File, name: &str, inside: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    let result = thread::scope(|scope| {
        let entered = scope.spawn(|| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|err| Failure::step(format!("setns {name}"), err))?;
            inside()
        });
        entered.join()
    });
    result.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
}

impl Drop for Name {
    fn drop(&mut self) {
        if !Path::new(NETNS_RUN_DIR).join(&self.0).exists() {
            return;
        }
        if let Err(failure) = tool("ip", &["netns", "del", &self.0], &Stop::never()) {
            warn(failure);
        }
    }
}
