//! Files of links in `/sys/class/net`: MTU, speed and operational state. The files of the caller's namespace are those of
//! other devices: on the gateway's host side of the TAP and TUN devices of its links, which have the largest MTU.
//!
//! The files are read-only here: `ip link set` changes the MTU of a link.

use nlsock::ethtool::{LINK_MODE_WORDS, LINK_MODE_WORDS_AT, LINK_SETTINGS_LEN, command};

use libc::c_int;

use super::ethtool;
use super::exchange::{LinkKey, link};
use crate::errno::Errno;
use crate::memory_file::in_memory;
use crate::sys;
use crate::sysctl::link_of;

/// Directory of the links' files.
const ROOT: &[u8] = b"/sys/class/net/";
/// Maximum length of the path of a file.
const MAX_PATH: usize = 4096;

/// Names of operational states, by number (RFC 2863; Linux `operstates`).
const STATES: [&str; 7] = ["unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up"];

/// Value of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Attribute {
    Mtu,
    Speed,
    State,
}

/// File of a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct LinkFile {
    link: Vec<u8>,
    attribute: Attribute,
}

impl LinkFile {
    /// File with the absolute path `path`.
    pub(crate) fn of_path(path: &[u8]) -> Option<Self> {
        let (link, name) = split(path.strip_prefix(ROOT)?)?;
        Self::new(link, name)
    }

    /// File of sysfs that is open as `fd`: the path is that of the device, below `/sys/devices`.
    pub(crate) fn of_hosts(fd: c_int) -> Option<Self> {
        if sys::file_system(fd) != Some(libc::SYSFS_MAGIC) {
            return None;
        }
        let mut room = [0; MAX_PATH];
        Self::of_device(link_of(fd, &mut room)?)
    }

    fn of_device(path: &[u8]) -> Option<Self> {
        let (path, name) = split(path)?;
        let (directory, link) = split(path)?;
        directory.ends_with(b"/net").then(|| Self::new(link, name))?
    }

    fn new(link: &[u8], name: &[u8]) -> Option<Self> {
        let attribute = match name {
            b"mtu" => Attribute::Mtu,
            b"speed" => Attribute::Speed,
            b"operstate" => Attribute::State,
            _ => return None,
        };
        let is_name = !link.is_empty() && !link.contains(&b'/') && link != b"." && link != b"..";
        is_name.then(|| Self { link: link.to_vec(), attribute })
    }

    /// Opens the file, as `open(2)` with these flags.
    ///
    /// # Errors
    /// `ENOENT`: the gateway has no such link; `EOPNOTSUPP`: the file is to be written; `EINVAL`: the link is down or has
    /// no speed, which Linux reports when the file is read (`speed_show`).
    pub(crate) fn open(&self, flags: c_int) -> Result<c_int, Errno> {
        let found = link(LinkKey::Name(&self.link)).map_err(|errno| match errno.0 {
            libc::ENODEV => Errno(libc::ENOENT),
            _ => errno,
        })?;
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let text = match self.attribute {
            Attribute::Mtu => found.mtu.to_string(),
            Attribute::Speed if found.flags & libc::IFF_UP as u32 == 0 => return Err(Errno(libc::EINVAL)),
            Attribute::Speed => speed(&self.link)?.to_string(),
            Attribute::State => (*STATES.get(usize::from(found.state)).unwrap_or(&STATES[0])).to_owned(),
        };
        in_memory(&[text.as_bytes(), b"\n"].concat(), flags)
    }
}

/// Speed of a link in Mb/s; -1 if it is unknown.
///
/// # Errors
/// `EINVAL`: the link has none.
fn speed(link: &[u8]) -> Result<i32, Errno> {
    /// Room for the settings and their three sets of link modes.
    const LEN: usize = LINK_SETTINGS_LEN + 3 * 4 * LINK_MODE_WORDS;
    let mut block = [0_u8; LEN];
    block[..4].copy_from_slice(&command::GLINKSETTINGS.to_ne_bytes());
    block[LINK_MODE_WORDS_AT] = LINK_MODE_WORDS as u8;
    // SAFETY: the block has the length that the command requires.
    unsafe { ethtool::serve(link, block.as_mut_ptr().cast()) }.map_err(|_| Errno(libc::EINVAL))?;
    let [_, _, _, _, a, b, c, d, ..] = block;
    Ok(i32::from_ne_bytes([a, b, c, d]))
}

/// Splits a path at its last slash.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = path.iter().rposition(|&byte| byte == b'/')?;
    Some((path.get(..at)?, path.get(at + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_links_are_found_by_path_and_by_device() {
        let mtu = LinkFile { link: b"eth0.5".to_vec(), attribute: Attribute::Mtu };
        assert_eq!(LinkFile::of_path(b"/sys/class/net/eth0.5/mtu"), Some(mtu.clone()));
        for other in ["/sys/class/net/mtu", "/sys/class/net//mtu", "/sys/class/net/../mtu", "/sys/class/net/a/b/mtu"] {
            assert_eq!(LinkFile::of_path(other.as_bytes()), None, "{other}");
        }
        for other in ["/sys/class/net/eth0/address", "/sys/class/net/eth0/queues/rx-0/speed", "/sys/x/mtu", "mtu"] {
            assert_eq!(LinkFile::of_path(other.as_bytes()), None, "{other}");
        }
        assert_eq!(LinkFile::of_device(b"/sys/devices/virtual/net/eth0.5/mtu"), Some(mtu.clone()));
        assert_eq!(LinkFile::of_device(b"/sys/devices/pci0/0000:00:03.0/virtio0/net/eth0.5/mtu"), Some(mtu));
        assert_eq!(LinkFile::of_device(b"/sys/devices/virtual/block/mtu"), None);
    }
}
