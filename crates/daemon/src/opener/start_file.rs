//! Links of the file that the gateway was started with, as it is now: a reload by a signal has no client whose right counts, and the
//! gateway may not write that file, neither by its directory nor by its mode.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use config::Config;
use config::model::LinkConfig;
use driver::DriverKind;
use rustix::fs::OFlags;
use zeroize::Zeroizing;

use super::files::{FileOrder, FileWork, SocketRole};
use crate::confine::UserIds;

/// Largest file that is read.
const MOST_BYTES: u64 = 256 << 20;

/// Name and kind of a link.
pub(super) type NamedLink = (String, DriverKind);

/// The file, and its links when it was read last.
#[derive(Debug, Default)]
pub(super) struct StartFile {
    path: Option<PathBuf>,
    /// User of the gateway, if it is another one than this process's.
    user: Option<UserIds>,
    read: Option<(Version, Vec<NamedLink>)>,
}

/// Device, inode, size, and time of change in seconds and nanoseconds.
type Version = (u64, u64, u64, i64, i64);

impl StartFile {
    pub(super) fn new(path: Option<PathBuf>, user: Option<UserIds>) -> Self {
        Self { path, user, read: None }
    }

    /// Whether the file has the link. A file that cannot be read, or that is wrong, has none: the gateway does not apply it either.
    pub(super) fn has(&mut self, link: &NamedLink) -> bool {
        self.links().contains(link)
    }

    /// Whether the file has a link whose socket the order makes or connects to.
    pub(super) fn admits(&mut self, FileOrder { dir, name, work }: &FileOrder) -> bool {
        let path = dir.join(name);
        let is_it = |socket: &str| Path::new(socket) == path;
        match work {
            FileWork::Bind(SocketRole::Guest) | FileWork::Adopt => self
                .links()
                .iter()
                .any(|(_, kind)| matches!(kind, DriverKind::VhostUser { socket, .. } if is_it(socket))),
            FileWork::Find | FileWork::Connect => self
                .links()
                .iter()
                .any(|(_, kind)| matches!(kind, DriverKind::VirtioUser { socket, .. } if is_it(socket))),
            _ => false,
        }
    }

    fn links(&mut self) -> &[NamedLink] {
        let Some(path) = &self.path else { return &[] };
        let Ok(path) = self.user.map_or_else(|| Ok(path.clone()), |user| user.beyond_reach(path)) else { return &[] };
        let Ok(version) = std::fs::metadata(&path).map(|found| version(&found)) else { return &[] };
        if self.read.as_ref().is_none_or(|(read, _)| *read != version) {
            let links = links_of(&path).unwrap_or_default();
            let known = links.into_iter().filter_map(|link| Some((link.name, link.kind.driver()?.clone())));
            self.read = Some((version, known.collect()));
        }
        self.read.as_ref().map_or(&[], |(_, links)| links.as_slice())
    }
}

/// Links of a TOML file. A FIFO is not waited for, and the text, which has keys, is zeroed.
fn links_of(path: &Path) -> Option<Vec<LinkConfig>> {
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path).ok()?;
    let size = file.metadata().ok().filter(Metadata::is_file)?.len();
    if size > MOST_BYTES {
        return None;
    }
    let mut text = Zeroizing::new(String::with_capacity(size as usize + 1));
    file.take(size).read_to_string(&mut text).ok()?;
    Config::with_warnings(&text, &path.display().to_string()).ok().map(|(config, _)| config.links)
}

fn version(file: &Metadata) -> Version {
    (file.dev(), file.ino(), file.size(), file.ctime(), file.ctime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_file_has_the_links_of_its_present_content() {
        let path = std::env::temp_dir().join(format!("fatpath-start-file-{}", std::process::id()));
        let tun = |name: &str| (name.to_owned(), DriverKind::Tun { queues: 1 });
        let text = |name: &str| format!("[[link]]\nname = \"{name}\"\nkind = \"tun\"\n");
        let mut file = StartFile::new(Some(path.clone()), None);
        assert!(!file.has(&tun("t0")), "it is not there");
        std::fs::write(&path, text("t0")).unwrap();
        assert!(file.has(&tun("t0")) && !file.has(&tun("t1")));
        assert!(!file.has(&("t0".to_owned(), DriverKind::Tap { queues: 1 })));
        std::fs::write(&path, text("t1") + &text("t2")).unwrap();
        assert!(!file.has(&tun("t0")) && file.has(&tun("t2")));
        std::fs::write(&path, text("t1") + "mtoo = 1\n").unwrap();
        assert!(!file.has(&tun("t1")), "it is wrong");
        std::fs::remove_file(&path).unwrap();
        assert!(!StartFile::default().has(&tun("t0")));
    }
}
