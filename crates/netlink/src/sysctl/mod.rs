//! Files of `/proc/sys/net` for the node.
//!
//! [`Settings`] contains the values that a running node can change. A file that exists in Linux and has a fixed value
//! here reads as that value, and refuses any other (`EOPNOTSUPP`). Other names do not exist. Parsing, bounds and
//! formatting are Linux's (`kernel/sysctl.c`, `net/ipv4/ip_fragment.c`, `net/ipv6/reassembly.c`,
//! `net/xfrm/xfrm_sysctl.c`): a value that Linux refuses is `EINVAL`, and each file contains one number and a newline.

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
    /// New settings for the node.
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
    /// MTU of the link in the file's path.
    mtu: u32,
}

impl Found {
    /// Mode, with the file type (`S_IFMT`).
    pub const fn mode(self) -> u32 {
        match self {
            Self::Dir => 0o40555,
            Self::File(file) => 0o100_000 | file.entry.mode,
        }
    }
}

/// Finds the directory or file `name` below `/proc/sys/net`, without a slash at either end: the empty name is the
/// directory itself.
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

/// Names in the directory `dir`, sorted, from the first name after `after` on, each with whether the name is a
/// directory; about `limit` bytes of names. `None`: the directory does not exist.
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
    /// Whether the file is writable.
    pub const fn is_writable(self) -> bool {
        self.entry.mode & 0o200 != 0
    }

    /// Reads the file.
    ///
    /// # Errors
    /// `EACCES`: the file is not readable.
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

    /// Effect of writing `text` at the beginning of the file, where a node has `settings`.
    ///
    /// # Errors
    /// `EINVAL` if Linux refuses the value; `EOPNOTSUPP` if the value is not supported here.
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

/// Settings to save: those that clients have changed from the default and configuration files have not, by name.
pub fn saved(now: &Settings, of_files: &Settings) -> impl Iterator<Item = (&'static str, String)> {
    let set = named_settings().filter(|(_, setting)| !is_said(*setting, of_files) && is_said(*setting, now));
    set.map(|(name, setting)| (name, setting.get(now).to_string()))
}

/// Whether files change the setting from its default.
fn is_said(setting: Setting, of_files: &Settings) -> bool {
    setting.get(of_files) != setting.get(&Settings::default())
}

/// Settings of a node after a restart: its files' settings, then the [saved] ones; with the number of saved settings
/// that were applied, and the number that were not because a file sets them.
///
/// # Errors
/// The name of a setting that cannot be applied, and an `errno`.
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
    // A setting may depend on another: a high threshold is never below its low threshold.
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

/// All settings that can be written.
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
