//! Files of `/proc/sys/net`: reads and writes of programs.

use config::settings::Settings;
use netlink::sysctl::{self, Found, Written};
use nlsock::{Answer, Sysctl as Ask, errno};
use packet::Budget;

use super::protocols::Protocols;
use crate::path_hash;

/// Largest list of names in one reply, in bytes.
const NAMES: usize = 32 << 10;

/// A file that is open for writing, by a client that may write it.
#[derive(Debug)]
pub(super) struct OpenFile {
    name: String,
    /// Whether a write has succeeded, after which further text is ignored (Linux `proc_first_pos_non_zero_ignore`).
    is_behind: bool,
    /// First error of a write whose result the client did not wait for.
    failed: Option<i32>,
}

impl OpenFile {
    /// Writes `text`. `is_awaited`: the client waits for the result; an empty `text` queries the result of earlier
    /// writes.
    pub(super) fn write(&mut self, text: &[u8], is_awaited: bool, protocols: &mut Protocols) -> Result<(), i32> {
        if text.is_empty() {
            return self.failed.take().map_or(Ok(()), Err);
        }
        let written = if self.is_behind { Ok(()) } else { write(&self.name, text, protocols) };
        self.is_behind |= written.is_ok();
        if !is_awaited {
            self.failed = self.failed.or(written.err());
        }
        written
    }
}

/// Handles a call: returns the requested text, or the opened file.
pub(super) fn ask(
    what: Ask,
    name: &[u8],
    may_write: bool,
    protocols: &Protocols,
) -> (Answer, Vec<u8>, Option<OpenFile>) {
    let mut answer = Answer { error: 0, port: 0 };
    let (mut text, mut opened) = (Vec::new(), None);
    match found(what, name, may_write, protocols) {
        Err(errno) => answer.error = errno,
        Ok(Reply::Mode(mode)) => answer.port = mode,
        Ok(Reply::Text(found)) => text = found,
        Ok(Reply::Opened(name)) => opened = Some(OpenFile { name, is_behind: false, failed: None }),
    }
    (answer, text, opened)
}

enum Reply {
    Mode(u32),
    Text(Vec<u8>),
    Opened(String),
}

fn found(what: Ask, name: &[u8], may_write: bool, protocols: &Protocols) -> Result<Reply, i32> {
    // Link names are text.
    let name = std::str::from_utf8(name).map_err(|_| errno::ENOENT)?;
    let (name, after) = name.split_once('\0').unwrap_or((name, ""));
    let model = &protocols.rtnl.model;
    let found = sysctl::find(name, model).ok_or(errno::ENOENT)?;
    match (what, found) {
        (Ask::Look, _) => Ok(Reply::Mode(found.mode())),
        (Ask::Read, Found::File(file)) => {
            file.read(protocols.sysctl.settings()).map(|text| Reply::Text(text.into_bytes()))
        }
        (Ask::List, Found::Dir) => {
            let names = sysctl::list(name, after, NAMES, model).ok_or(errno::ENOENT)?;
            let line = |(name, is_dir): (String, bool)| format!("{}{name}\0", if is_dir { 'd' } else { '-' });
            Ok(Reply::Text(names.into_iter().map(line).collect::<String>().into_bytes()))
        }
        (Ask::List, Found::File(_)) => Err(errno::ENOTDIR),
        (Ask::Read | Ask::Open, Found::Dir) => Err(errno::EISDIR),
        (Ask::Open, Found::File(file)) if may_write && file.is_writable() => Ok(Reply::Opened(name.to_owned())),
        (Ask::Open, Found::File(_)) => Err(errno::EACCES),
    }
}

/// Writes `text` to the file `name`.
///
/// # Errors
/// The `errno` of a refusal.
pub(crate) fn write(name: &str, text: &[u8], protocols: &mut Protocols) -> Result<(), i32> {
    // The link of the file may have been removed.
    let Some(Found::File(file)) = sysctl::find(name, &protocols.rtnl.model) else { return Err(errno::ENOENT) };
    match file.write(*protocols.sysctl.settings(), text)? {
        Written::Settings(settings) => {
            // A threshold that rises is memory that packets may take.
            let sizes = |settings: &Settings| [settings.reassembly.v4, settings.reassembly.v6].map(|it| it.high_thresh);
            let now = sizes(protocols.sysctl.settings());
            if sizes(&settings).iter().zip(now).any(|(new, old)| *new > old) && Budget::admit().is_err() {
                return Err(netlink::error::errno::ENOMEM);
            }
            protocols.rtnl.model.set_strict_vrfs(settings.vrf_strict_mode)?;
            protocols.rtnl.model.set_max_routes(settings.tables.routes);
            protocols.rtnl.model.set_path_hash(path_hash::of(settings.path_hash));
            protocols.sysctl.set(settings)?;
            if let Some(journal) = &mut protocols.journal {
                journal.set(name, text);
            }
            Ok(())
        }
        Written::ForgetPaths => protocols.sysctl.forget_paths(),
    }
}

#[cfg(test)]
mod tests {
    use netlink::rtnl::Model;

    use super::*;

    fn shown(name: &str) -> String {
        match sysctl::find(name, &Model::default()) {
            Some(Found::File(file)) => file.read(&Settings::default()).unwrap(),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn fixed_sysctls_show_the_constants_of_fib() {
        let neighbours = fib::Limits::default();
        for family in ["ipv4", "ipv6"] {
            let fixed = [
                ("neigh/default/mcast_solicit", neighbours.multicast_probes.into()),
                ("neigh/default/ucast_solicit", neighbours.unicast_probes.into()),
                ("neigh/default/retrans_time_ms", neighbours.retransmit.as_millis()),
                ("neigh/default/base_reachable_time_ms", neighbours.reachable.as_millis()),
                ("neigh/default/delay_first_probe_time", neighbours.delay.as_secs().into()),
                ("neigh/default/gc_stale_time", neighbours.failed.as_secs().into()),
                ("neigh/default/unres_qlen_bytes", neighbours.waiting_bytes as u128),
                ("neigh/default/gc_thresh3", neighbours.entries as u128),
                ("route/mtu_expires", fib::PATH_MTU_EXPIRES.as_secs().into()),
            ];
            for (name, value) in fixed {
                assert_eq!(shown(&format!("{family}/{name}")), format!("{value}\n"), "{name}");
            }
        }
        assert_eq!(shown("ipv4/route/min_pmtu"), format!("{}\n", fib::MIN_PATH_MTU_V4));
    }
}
