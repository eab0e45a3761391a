//! Files that the process reaches after its start, by Landlock (landlock(7)): what describes the system, and the files of its own
//! configuration, sockets and state. A gateway with an opener has that one work with these, and reaches none of them; another one reads the
//! directories of its configuration, and writes those of its sockets and its state.
//!
//! The rules are about the directories that exist at the start, in which files may be replaced. A kernel with an older
//! ABI has fewer rights to restrict.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    Scope,
};
use rustix::fs::{FileType, fstat};

/// Newest ABI whose rights are restricted.
const NEWEST: ABI = ABI::V6;

/// Directories and files that are read: what the kernel says about itself, programs and their libraries, which are the same
/// for all users, and the settings of `ip`.
const READ: [&str; 10] = [
    "/proc",
    "/sys",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/iproute2",
];

/// Devices that are read and written.
const DEVICES: [&str; 2] = ["/dev/null", "/dev/net/tun"];

/// No places.
static EMPTY: BTreeSet<PathBuf> = BTreeSet::new();

/// Variable of the service manager's socket, whose name begins with `@` for one without a file.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Directories that the process reaches, with all below them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Places {
    read: BTreeSet<PathBuf>,
    write: BTreeSet<PathBuf>,
    /// Directories whose files the process itself reads, for programs that it starts.
    search: BTreeSet<PathBuf>,
    /// Directories whose files the process itself lists.
    list: BTreeSet<PathBuf>,
    /// Whether an opener reads and writes the first two.
    is_opener: bool,
}

impl Places {
    /// Places in which an opener works.
    pub(crate) fn of_opener() -> Self {
        Self { is_opener: true, ..Self::default() }
    }

    /// Adds the directory of a file that is read, and read again when it was replaced. An opener reads that file alone.
    pub(crate) fn read_beside(&mut self, file: &Path) {
        if self.is_opener {
            self.read.extend(std::path::absolute(file));
            return;
        }
        self.read.extend(dir_of(file));
        // The file of a symbolic link may be in another directory.
        self.read.extend(file.canonicalize().ok().as_deref().and_then(dir_of));
    }

    /// Adds a directory whose files the process itself reads.
    pub(crate) fn search(&mut self, dir: &Path) {
        self.search.extend(std::path::absolute(dir).ok());
    }

    /// Adds a directory whose files the process itself lists, and does not read.
    pub(crate) fn list(&mut self, dir: &Path) {
        self.list.extend(std::path::absolute(dir).ok());
    }

    /// Adds the directory of a file that is written, and of the file that a symbolic link there refers to.
    pub(crate) fn write_beside(&mut self, file: &Path) {
        self.write.extend(dir_of(file));
        self.write.extend(file.canonicalize().ok().as_deref().and_then(dir_of));
    }

    /// Adds a directory whose files are written, made and removed.
    pub(crate) fn write_in(&mut self, dir: &Path) {
        self.write.extend(std::path::absolute(dir));
    }

    /// Whether a file may be read.
    pub(crate) fn may_read(&self, file: &Path) -> bool {
        let own = self.read.iter().chain(if self.is_opener { &EMPTY } else { &self.write });
        let mut dirs = own.map(PathBuf::as_path).chain(READ.iter().map(Path::new).filter(|_| !self.is_opener));
        std::path::absolute(file).is_ok_and(|file| dirs.any(|dir| file.starts_with(dir)))
    }

    /// Whether a file may be made.
    pub(crate) fn may_write(&self, file: &Path) -> bool {
        std::path::absolute(file).is_ok_and(|file| self.write.iter().any(|dir| file.starts_with(dir)))
    }

    /// Whether an opener reads and writes the places.
    pub(super) const fn is_opener(&self) -> bool {
        self.is_opener
    }

    /// Paths that the process reads besides those of each gateway.
    pub(super) fn read_names(&self) -> Vec<String> {
        let own = if self.is_opener { &EMPTY } else { &self.search };
        self.read.union(own).map(|dir| dir.display().to_string()).collect()
    }

    /// Paths below which the process writes.
    pub(super) fn write_names(&self) -> Vec<String> {
        self.write.iter().map(|dir| dir.display().to_string()).collect()
    }

    /// Restricts this thread, and all threads and processes that it starts. Returns the ABI of the kernel; 0 if it has no
    /// Landlock.
    ///
    /// # Errors
    /// Text of the call that the kernel refuses.
    pub(super) fn restrict(&self) -> Result<i32, String> {
        let text = |err: landlock::RulesetError| err.to_string();
        let mut rules = Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))
            .and_then(|rules| rules.handle_access(AccessNet::from_all(NEWEST)))
            .and_then(|rules| rules.scope(Scope::Signal))
            .map_err(text)?;
        let has_abstract_manager =
            env::var_os(NOTIFY_SOCKET).is_some_and(|path| path.as_encoded_bytes().starts_with(b"@"));
        if !has_abstract_manager {
            rules = rules.scope(Scope::AbstractUnixSocket).map_err(text)?;
        }
        let mut rules = rules.create().map_err(text)?;
        let own = env::current_exe().ok();
        let programs = own.as_deref().and_then(Path::parent).into_iter();
        let [own_read, own_write] = if self.is_opener { [&EMPTY; 2] } else { [&self.read, &self.write] };
        let read = own_read.union(&self.search).map(PathBuf::as_path).chain(READ.iter().map(Path::new)).chain(programs);
        let write = own_write.iter().map(PathBuf::as_path).chain(DEVICES.iter().map(Path::new));
        let list = self.list.iter().map(|dir| (dir.as_path(), AccessFs::ReadDir.into()));
        let all = read.map(|path| (path, AccessFs::from_read(NEWEST))).chain(list);
        for (path, access) in all.chain(write.map(|path| (path, AccessFs::from_all(NEWEST)))) {
            // Without the file there is nothing to reach.
            let Ok(opened) = PathFd::new(path) else { continue };
            let is_dir =
                fstat(&opened).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
            let access = if is_dir { access } else { access & AccessFs::from_file(NEWEST) };
            rules =
                rules.add_rule(PathBeneath::new(opened, access)).map_err(|err| format!("{}: {err}", path.display()))?;
        }
        match rules.restrict_self().map_err(text)?.landlock {
            LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => Ok(0),
            LandlockStatus::Available { effective_abi, kernel_abi } => Ok(kernel_abi.unwrap_or(effective_abi as i32)),
        }
    }
}

/// Directory of a file.
fn dir_of(file: &Path) -> Option<PathBuf> {
    Some(std::path::absolute(file).ok()?.parent()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_directories_with_all_below_them() {
        let mut places = Places::default();
        places.read_beside(Path::new("/etc/fatpath/gw.toml"));
        places.write_in(Path::new("/run/fatpath"));
        for (file, want) in [
            ("/etc/fatpath/gw.toml", [true, false]),
            ("/etc/fatpath/other/gw.toml", [true, false]),
            ("/etc/shadow", [false, false]),
            ("/etc/fatpath-other/gw.toml", [false, false]),
            ("/run/fatpath/gw.netlink", [true, true]),
            ("/proc/self/status", [true, false]),
        ] {
            assert_eq!([places.may_read(Path::new(file)), places.may_write(Path::new(file))], want, "{file}");
        }
    }

    #[test]
    fn opener_reads_files_that_are_named_alone() {
        let mut places = Places::of_opener();
        places.read_beside(Path::new("/etc/fatpath/gw.toml"));
        places.write_in(Path::new("/run/fatpath"));
        places.search(Path::new("/usr/local/bin"));
        for (file, want) in [
            ("/etc/fatpath/gw.toml", [true, false]),
            ("/etc/fatpath/other.toml", [false, false]),
            ("/run/fatpath/gw.toml", [false, true]),
            ("/usr/share/gw.toml", [false, false]),
        ] {
            assert_eq!([places.may_read(Path::new(file)), places.may_write(Path::new(file))], want, "{file}");
        }
        assert_eq!(places.read_names(), ["/etc/fatpath/gw.toml"]);
    }

    #[test]
    fn restricted_thread_reaches_its_places_alone() {
        let dir = env::temp_dir().join(format!("fatpath-places-{}", std::process::id()));
        let (inside, outside) = (dir.join("inside"), dir.join("outside"));
        for dir in [&inside, &outside] {
            std::fs::create_dir_all(dir).unwrap();
            std::fs::write(dir.join("file"), "text").unwrap();
        }
        let mut places = Places::default();
        places.write_in(&inside);
        let (within, without) = (inside.join("new"), outside.join("file"));
        let thread = std::thread::spawn(move || {
            let abi = places.restrict().unwrap();
            (
                abi,
                std::fs::write(within, "text").is_ok(),
                std::fs::read(&without).is_ok(),
                std::fs::write(without, "").is_ok(),
            )
        });
        let (abi, writes, reads_outside, writes_outside) = thread.join().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        // A kernel without Landlock restricts nothing.
        assert_eq!((writes, reads_outside, writes_outside), (true, abi == 0, abi == 0), "ABI {abi}");
    }
}
