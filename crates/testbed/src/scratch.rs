//! A directory for the files of one measurement or test.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::failure::{Failure, warn};

/// A directory for configurations with keys, control sockets and logs, removed with everything in it on drop.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory that its owner alone can read. It must not exist: no other user can have put a symbolic link
    /// into it.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn create(name: &str) -> Result<Self, Failure> {
        Self::with_mode(name, 0o700)
    }

    /// Makes a directory with a name of its own that all users can read: tests have gateways of other users.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new() -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::with_mode(&format!("fatpath-test-{}-{number}", process::id()), 0o755)
    }

    fn with_mode(name: &str, mode: u32) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(mode).create(&path);
        made.map_err(|err| Failure::step(format!("mkdir {}", path.display()), err))?;
        Ok(Self(path))
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of the file `name` in it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Path of the file `name` in a directory beside it, as for the configuration of a gateway whose sockets are in this one: the gateway
    /// may not write there.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn config(&self, name: &str) -> Result<PathBuf, Failure> {
        let beside = self.beside();
        match DirBuilder::new().mode(0o755).create(&beside) {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => {
                Err(Failure::step(format!("mkdir {}", beside.display()), err))
            }
            _ => Ok(beside.join(name)),
        }
    }

    fn beside(&self) -> PathBuf {
        self.0.with_extension("etc")
    }

    /// Writes a file anew that only its owner can read, and returns its path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.file(name);
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            file.write_all(text.as_bytes())
        };
        write().map_err(|err| Failure::step(format!("write {}", path.display()), err))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(err) = fs::remove_dir_all(&self.0) {
            warn(format!("{} not removed: {err}", self.0.display()));
        }
        // Few have it.
        let _ = fs::remove_dir_all(self.beside());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_files_are_private_and_go_with_their_directory() {
        use std::os::unix::fs::MetadataExt;
        let scratch = Scratch::create(&format!("fatpath-scratch-test-{}", std::process::id())).unwrap();
        let file = scratch.write("a.toml", "key").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(scratch.path()).unwrap().mode() & 0o777, 0o700);
        assert!(Scratch::create(scratch.path().file_name().unwrap().to_str().unwrap()).is_err());
        let dir = scratch.path().to_owned();
        drop(scratch);
        assert!(!dir.exists());
    }
}
