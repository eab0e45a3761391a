//! Files of `/proc/sys/net` for the node.
//!
//! Values that a running node can change are in [`Settings`]. A name that Linux has and whose value is fixed here reads as that
//! value, and refuses any other (`EOPNOTSUPP`). Other names do not exist. Texts are read, bounded and written as by Linux
//! (`kernel/sysctl.c`, `net/ipv4/ip_fragment.c`, `net/ipv6/reassembly.c`, `net/xfrm/xfrm_sysctl.c`): a value that Linux
//! does not take is `EINVAL`, and each file holds one number and the end of a line.

mod number;
mod settings;
mod table;

use std::collections::BTreeMap;

use crate::error::errno;
use crate::rtnl::Model;
use config::settings::Settings;
use settings::Setting;
pub use settings::reloaded;
use table::{CONF, ENTRIES, Entry, LINK, NEIGH, Value};

/// Effect of writing a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Written {
    /// The node is to become so.
    Settings(Settings),
    /// The cache of paths to IPv4 destinations is flushed (Linux `ipv4_sysctl_rtcache_flush`).
    ForgetPaths,
}

/// Directory or file of the tree.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// A directory.
    Dir,
    /// A file.
    File(File),
}

/// A file.
#[derive(Clone, Copy, Debug)]
pub struct File {
    entry: &'static Entry,
    /// MTU of the link that it is about.
    mtu: u32,
}

impl Found {
    /// Mode, with its type (`S_IFMT`).
    pub const fn mode(self) -> u32 {
        match self {
            Self::Dir => 0o40555,
            Self::File(file) => 0o100_000 | file.entry.mode,
        }
    }
}

/// Directory or file `name`, below `/proc/sys/net` and without a slash at either end: the empty name is the directory itself.
pub fn find(name: &str, model: &Model) -> Option<Found> {
    let parts: Vec<&str> = name.split('/').filter(|_| !name.is_empty()).collect();
    let mut found = None;
    for entry in ENTRIES {
        let mut pattern = entry.name.split('/');
        let mut link = None;
        let matches = parts.iter().all(|part| {
            pattern.next().is_some_and(|pattern| {
                let index = if pattern.starts_with('{') { model.index_of(part) } else { None };
                link = link.or(index);
                stands_for(pattern, part, index.is_some())
            })
        });
        if matches {
            found = Some(match pattern.next() {
                Some(_) => Found::Dir,
                None => {
                    Found::File(File { entry, mtu: link.and_then(|index| model.link(index)).map_or(0, |it| it.mtu) })
                }
            });
            break;
        }
    }
    found
}

fn stands_for(pattern: &str, part: &str, is_link: bool) -> bool {
    match pattern {
        CONF => is_link || part == "all" || part == "default",
        NEIGH => is_link || part == "default",
        LINK => is_link,
        _ => pattern == part,
    }
}

/// The names in the directory `dir`, in order, from the first behind `after` on, with whether they are directories; about
/// `limit` bytes of them. `None`: there is no such directory.
pub fn list(dir: &str, after: &str, limit: usize, model: &Model) -> Option<Vec<(String, bool)>> {
    if !matches!(find(dir, model)?, Found::Dir) {
        return None;
    }
    let depth = dir.split('/').filter(|part| !part.is_empty()).count();
    let mut names = BTreeMap::new();
    for entry in ENTRIES {
        let mut pattern = entry.name.split('/');
        let parts = dir.split('/').filter(|part| !part.is_empty());
        let is_link = |part: &str| model.index_of(part).is_some();
        let mut prefix = pattern.by_ref().take(depth).zip(parts);
        if !prefix.all(|(pattern, part)| stands_for(pattern, part, pattern.starts_with('{') && is_link(part))) {
            continue;
        }
        let Some(next) = pattern.next() else { continue };
        let is_dir = pattern.next().is_some();
        let beside: &[&str] = match next {
            CONF => &["all", "default"],
            NEIGH => &["default"],
            LINK => &[],
            name => &[name],
        };
        names.extend(beside.iter().map(|name| ((*name).to_owned(), is_dir)));
        if next.starts_with('{') {
            names.extend(model.links_after(0).map(|(_, link)| (link.config.name.clone(), is_dir)));
        }
    }
    let mut room = limit;
    let rest = names.into_iter().filter(|(name, _)| name.as_str() > after);
    let taken = rest.take_while(|(name, _)| {
        let has_room = room > 0;
        room = room.saturating_sub(name.len() + 1);
        has_room
    });
    Some(taken.collect())
}

impl File {
    /// Whether it may be written.
    pub const fn is_writable(self) -> bool {
        self.entry.mode & 0o200 != 0
    }

    /// Reads its contents.
    ///
    /// # Errors
    /// `EACCES`: it may not be read.
    pub fn read(self, settings: &Settings) -> Result<String, i32> {
        self.value(settings).map(|value| format!("{value}\n")).ok_or(errno::EACCES)
    }

    fn value(self, settings: &Settings) -> Option<i128> {
        match self.entry.value {
            Value::Setting(setting) => Some(setting.get(settings)),
            Value::Fixed { value, .. } => Some(value.into()),
            Value::Mtu => Some(self.mtu.into()),
            Value::Flush => None,
        }
    }

    /// Effect of `text`, written at the beginning, where a node has `settings`.
    ///
    /// # Errors
    /// `EINVAL` if Linux would not take it; `EOPNOTSUPP` if no node of this kind can be so.
    pub fn write(self, mut settings: Settings, text: &[u8]) -> Result<Written, i32> {
        let bounds = match self.entry.value {
            Value::Setting(setting) => {
                setting.write(&mut settings, text)?;
                return Ok(Written::Settings(settings));
            }
            Value::Flush => return Ok(Written::ForgetPaths),
            Value::Fixed { min, max, .. } => min.into()..=max.into(),
            // From the minimum MTU of IPv6 to the MTU of the link (Linux `addrconf_sysctl_mtu`).
            Value::Mtu => 1280..=self.mtu.into(),
        };
        let value = Some(number::within(bounds, text)?);
        if value == self.value(&settings) { Ok(Written::Settings(settings)) } else { Err(errno::EOPNOTSUPP) }
    }
}

/// Settings that programs have set and files leave as they usually are, by name, which outlive a restart.
pub fn saved(now: &Settings, of_files: &Settings) -> impl Iterator<Item = (&'static str, String)> {
    let set = named_settings().filter(|(_, setting)| !is_said(*setting, of_files) && is_said(*setting, now));
    set.map(|(name, setting)| (name, setting.get(now).to_string()))
}

/// Whether files say otherwise than usual.
fn is_said(setting: Setting, of_files: &Settings) -> bool {
    setting.get(of_files) != setting.get(&Settings::default())
}

/// Settings of a node that is as its files say, after what was [saved], and how many of these were set, and how many were not
/// because files say otherwise.
///
/// # Errors
/// The name of one that cannot be set, and an `errno`.
pub fn restored<'a>(
    of_files: Settings,
    saved: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<(Settings, [usize; 2]), (&'a str, i32)> {
    let (mut now, mut left) = (of_files, Vec::new());
    let mut count = [0; 2];
    for (name, text) in saved {
        let (_, setting) = named_settings().find(|(known, _)| *known == name).ok_or((name, errno::ENOENT))?;
        match is_said(setting, &of_files) {
            true => count[1] += 1,
            false => left.push((name, setting, text)),
        }
    }
    count[0] = left.len();
    // One may have to wait for another: what is high is above what is low.
    while let Some(at) = left.iter().position(|(_, setting, text)| setting.write(&mut now, text.as_bytes()).is_ok()) {
        left.remove(at);
    }
    match left.first() {
        Some(&(name, setting, text)) => {
            Err((name, setting.write(&mut now, text.as_bytes()).err().unwrap_or(errno::EINVAL)))
        }
        None => Ok((now, count)),
    }
}

/// All that can be set.
fn settings() -> impl Iterator<Item = Setting> {
    named_settings().map(|(_, setting)| setting)
}

fn named_settings() -> impl Iterator<Item = (&'static str, Setting)> {
    ENTRIES.iter().filter_map(|entry| match entry.value {
        Value::Setting(setting) => Some((entry.name, setting)),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
