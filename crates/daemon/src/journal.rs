//! Journal: changes by netlink clients since the last write of the [state](crate::store), so that they survive a kill of the
//! gateway.
//!
//! A file of records, each of which is written, and not synced, before its client gets an acknowledgement: the page cache
//! outlives the process, and a machine that is booted anew has no use for the changes. [`Log`] is one file; a
//! [`Journal`] begins a new one, with the next number, each time that the state is written, which makes the older files
//! void. The last record of a file may be torn by the end of the process; a record before it cannot be.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netlink::Change;
use netlink::rtnl::Model;
use zeroize::Zeroizing;

use crate::confine;
use crate::files;
use crate::framing::{self, Damaged, put};
use crate::sa_name::SaName;

/// First bytes of a file.
const MAGIC: &[u8; 16] = b"fatpath journal1";

/// Length of a journal, in bytes, from which it is compacted in idle time.
const LONG: u64 = 4 << 20;

/// Length of a journal, in bytes, from which it is compacted while clients change the node.
const TOO_LONG: u64 = 256 << 20;

/// Time without a change that counts as idle.
const IDLE: Duration = Duration::from_secs(2);

/// Interval of attempts to write a state after the journal has failed.
const RETRY: Duration = Duration::from_secs(60);

const LINK: u8 = 1;
const REQUEST: u8 = 2;
const REFUSED: u8 = 3;
const SETTING: u8 = 4;
const NOTED: u8 = 5;

/// A record.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Record {
    /// The interface index of a link in the requests that follow; without a name, of no link.
    Link(u32, String),
    /// A request of a netlink protocol.
    Request(u32, Zeroizing<Vec<u8>>),
    /// The request before was refused.
    Refused,
    /// A value of a file below `/proc/sys/net`.
    Setting(String, Vec<u8>),
    /// The state has the numbers of the SA.
    Noted(SaName),
}

impl Record {
    fn parse(content: &[u8]) -> Option<Self> {
        let (&kind, rest) = content.split_first()?;
        Some(match kind {
            LINK => {
                let (index, name) = rest.split_first_chunk()?;
                Self::Link(u32::from_le_bytes(*index), String::from_utf8(name.to_vec()).ok()?)
            }
            REQUEST => {
                let (protocol, message) = rest.split_first_chunk()?;
                Self::Request(u32::from_le_bytes(*protocol), Zeroizing::new(message.to_vec()))
            }
            REFUSED if rest.is_empty() => Self::Refused,
            SETTING => {
                let at = rest.iter().position(|&byte| byte == 0)?;
                Self::Setting(String::from_utf8(rest[..at].to_vec()).ok()?, rest[at + 1..].to_vec())
            }
            NOTED => Self::Noted(SaName::from_bytes(rest)?),
            _ => return None,
        })
    }
}

/// The file `number` of the journal of a state.
fn path_of(state: &Path, number: u64) -> PathBuf {
    let mut name = state.as_os_str().to_owned();
    name.push(format!(".journal-{number}"));
    PathBuf::from(name)
}

/// Records of the files from `number` on, in order, and the number of the next file.
///
/// # Errors
/// A file cannot be read, or is damaged: its path, and the reason.
pub(crate) fn read(state: &Path, number: u64) -> Result<(Vec<Record>, u64), (PathBuf, String)> {
    let (mut records, mut next) = (Vec::new(), number);
    loop {
        let path = path_of(state, next);
        match read_file(&path, &mut records) {
            Ok(true) => next += 1,
            Ok(false) => return Ok((records, next)),
            Err(why) => return Err((path, why)),
        }
    }
}

/// Appends the records of a file to `records`; false if the file does not exist.
fn read_file(path: &Path, records: &mut Vec<Record>) -> Result<bool, String> {
    let mut file = match open(path) {
        Ok(file) => file,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(err) => return Err(err.to_string()),
    };
    let metadata = file.metadata().map_err(|err| err.to_string())?;
    if !metadata.is_file() || metadata.mode() & 0o077 != 0 || metadata.uid() != confine::owner_of_files() {
        return Err("other users have access, or it is no file".to_owned());
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default() + 1));
    file.read_to_end(&mut bytes).map_err(|err| err.to_string())?;
    parse(&bytes, records)?;
    Ok(true)
}

/// Appends the records in the content of a file to `records`.
///
/// # Errors
/// The content is no journal, or damaged: the reason.
pub(crate) fn parse(bytes: &[u8], records: &mut Vec<Record>) -> Result<(), String> {
    let Some(mut rest) = bytes.get(MAGIC.len()..) else { return Ok(()) };
    if !bytes.starts_with(MAGIC) {
        return Err("it is no journal of this version".to_owned());
    }
    loop {
        let at = bytes.len() - rest.len();
        let damaged = |_| format!("the record at byte {at} is damaged");
        let Some((content, after)) = framing::split(rest).map_err(damaged)? else { return Ok(()) };
        records.push(Record::parse(content).ok_or(Damaged).map_err(damaged)?);
        rest = after;
    }
}

/// Content of a file with records of these kinds and contents, whose checksums are right.
#[cfg(feature = "fuzzing")]
pub(crate) fn file_of(records: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    records.iter().for_each(|(kind, content)| put(&mut bytes, *kind, &[content]));
    bytes
}

/// Opens a file of the journal, and no target of a symbolic link; an opener follows links that the gateway's user cannot change.
fn open(path: &Path) -> io::Result<File> {
    if files::are_of_opener() {
        return files::read(path);
    }
    OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32).open(path)
}

/// Removes the files below `number`.
pub(crate) fn remove_below(state: &Path, number: u64) {
    for old in (0..number).rev() {
        match files::remove(&path_of(state, old)) {
            Ok(()) => {}
            // Older files have been removed before.
            Err(err) if err.kind() == io::ErrorKind::NotFound => return,
            Err(err) => tracing::warn!("{}: {err}", path_of(state, old).display()),
        }
    }
}

/// Removes all files of the journal of a state whose numbers begin at `number`.
pub(crate) fn remove_from(state: &Path, number: u64) {
    let mut next = number;
    while files::remove(&path_of(state, next)).is_ok() {
        next += 1;
    }
}

/// The file that is written at present.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Log {
    fn make(path: PathBuf) -> io::Result<Self> {
        match files::remove(&path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
        let mut file = files::make(&path)?;
        file.write_all(MAGIC)?;
        Ok(Self { path, file, len: MAGIC.len() as u64 })
    }
}

/// Outcome of a request that is not known yet.
#[derive(Debug)]
pub(crate) enum Pending {
    /// Nothing to write.
    Nothing,
    /// The request is written if it is carried out.
    Request(u32, Zeroizing<Vec<u8>>),
    /// The request has been written.
    Sa(SaName),
    /// The numbers of an SA change.
    Numbers,
}

/// Journal of the running gateway.
pub(crate) struct Journal {
    state: PathBuf,
    /// Number of the next file.
    next: u64,
    /// `None` after a failure.
    log: Option<Log>,
    /// Records that are written together.
    buffer: Zeroizing<Vec<u8>>,
    /// Names of links in this file, and the model's generation at which they were compared.
    links: HashMap<u32, String>,
    generation: Option<u32>,
    /// SAs that have been added since the last call of [`take_added`](Self::take_added).
    added: Vec<SaName>,
    last: Instant,
    is_due: bool,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("log", &self.log).finish_non_exhaustive()
    }
}

impl Journal {
    /// Journal of the state at `state`. It begins with the first call of [`rotate`](Self::rotate), and the file `next`.
    pub(crate) fn new(state: &Path, next: u64) -> Self {
        Self {
            state: state.to_owned(),
            next,
            log: None,
            buffer: Zeroizing::default(),
            links: HashMap::new(),
            generation: None,
            added: Vec::new(),
            last: Instant::now(),
            is_due: false,
        }
    }

    /// Begins a new file, and returns its number. The caller writes the present state, and then
    /// [removes](remove_below) the older files.
    ///
    /// # Errors
    /// The file cannot be made; the present one stays.
    pub(crate) fn rotate(&mut self) -> io::Result<u64> {
        self.last = Instant::now();
        let number = self.next;
        self.log = Some(Log::make(path_of(&self.state, number))?);
        self.next += 1;
        self.is_due = false;
        (self.links, self.generation) = (HashMap::new(), None);
        Ok(number)
    }

    /// Ends the journal until the next call of [`rotate`](Self::rotate): earlier changes are missing.
    pub(crate) fn fail(&mut self) {
        if let Some(log) = self.log.take() {
            // What the file has is of no use.
            let _ = files::remove(&log.path);
        }
    }

    /// Whether changes are written.
    pub(crate) const fn is_on(&self) -> bool {
        self.log.is_some()
    }

    /// Whether the state is to be written now; `written` is the state's length.
    pub(crate) fn is_due(&self, written: u64) -> bool {
        let Some(log) = &self.log else { return self.last.elapsed() >= RETRY };
        let is_idle = log.len >= LONG && log.len >= written / 2 && self.last.elapsed() >= IDLE;
        self.is_due || is_idle || log.len >= TOO_LONG && log.len >= written.saturating_mul(2)
    }

    /// SAs that have been added since the last call.
    pub(crate) fn take_added(&mut self) -> Vec<SaName> {
        std::mem::take(&mut self.added)
    }

    /// Returns SAs to [`take_added`](Self::take_added), whose numbers the state could not take.
    pub(crate) fn add_again(&mut self, names: Vec<SaName>) {
        self.added.extend(names);
    }

    /// Notes that the state has the numbers of SAs.
    pub(crate) fn note_numbers(&mut self, names: &[SaName]) {
        if !names.is_empty() {
            names.iter().for_each(|name| put(&mut self.buffer, NOTED, &[&name.to_bytes()]));
            self.write();
        }
    }

    /// Notes the indexes of links that have changed.
    pub(crate) fn note_links(&mut self, model: &Model) {
        if self.log.is_none() || self.generation == Some(model.generation()) {
            return;
        }
        self.generation = Some(model.generation());
        let now = model.links_after(0).map(|(id, link)| (model.ifindex(id).0, link.config.name.as_str()));
        let now: HashMap<u32, &str> = now.collect();
        let buffer = &mut self.buffer;
        self.links.retain(|index, _| {
            let stays = now.contains_key(index);
            if !stays {
                put(buffer, LINK, &[&index.to_le_bytes()]);
            }
            stays
        });
        for (index, name) in now {
            if self.links.get(&index).is_none_or(|known| known != name) {
                put(buffer, LINK, &[&index.to_le_bytes(), name.as_bytes()]);
                self.links.insert(index, name.to_owned());
            }
        }
    }

    /// Begins a request of `protocol`. A request for an SA is written now, so that the SA has a reservation of sequence
    /// numbers before it sends.
    pub(crate) fn begin(&mut self, protocol: u32, change: Change) -> Pending {
        match change {
            _ if self.log.is_none() => Pending::Nothing,
            Change::None | Change::PolicyByIndex => Pending::Nothing,
            Change::Numbers => Pending::Numbers,
            Change::Request(message) => Pending::Request(protocol, message),
            Change::Sa { request, dst, spi, mark } => {
                put(&mut self.buffer, REQUEST, &[&protocol.to_le_bytes(), &request]);
                self.write();
                Pending::Sa(SaName { dst, spi, mark })
            }
        }
    }

    /// Ends a request, which `is_done` or was refused.
    pub(crate) fn end(&mut self, pending: Pending, is_done: bool) {
        match (pending, is_done) {
            (Pending::Request(protocol, message), true) => {
                put(&mut self.buffer, REQUEST, &[&protocol.to_le_bytes(), &message]);
            }
            (Pending::Sa(name), true) => self.added.push(name),
            (Pending::Sa(_), false) => put(&mut self.buffer, REFUSED, &[]),
            (Pending::Numbers, true) => self.is_due = true,
            (Pending::Nothing | Pending::Request(..) | Pending::Numbers, _) => {}
        }
    }

    /// Notes the value of a file below `/proc/sys/net`.
    pub(crate) fn set(&mut self, name: &str, text: &[u8]) {
        put(&mut self.buffer, SETTING, &[name.as_bytes(), &[0], text]);
        self.write();
    }

    /// Writes the records of the last requests.
    pub(crate) fn write(&mut self) {
        let Some(log) = self.log.as_mut().filter(|_| !self.buffer.is_empty()) else {
            self.buffer.clear();
            return;
        };
        let written = log.file.write_all(&self.buffer);
        log.len += self.buffer.len() as u64;
        // The buffer may hold keys.
        zeroize::Zeroize::zeroize(&mut *self.buffer);
        self.last = Instant::now();
        if let Err(err) = written {
            tracing::error!(
                message_id = logging::id::NOT_SAVED,
                reason = %err,
                "{}: {err}; changes by programs are not kept over a crash until the state can be written again",
                log.path.display()
            );
            self.log = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("fatpath-journal-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir.join("x.state")
    }

    fn request(n: u8) -> Change {
        Change::Request(Zeroizing::new(vec![n; 100]))
    }

    fn sa(spi: u32) -> (Change, SaName) {
        let (dst, mark) = ("192.0.2.1".parse().unwrap(), xfrm::Mark { value: 1, mask: 3 });
        (Change::Sa { request: Zeroizing::new(vec![7; 300]), dst, spi, mark }, SaName { dst, spi, mark })
    }

    #[test]
    fn records_are_read_in_order_over_files_from_a_number_on() {
        let state = scratch("order");
        let mut journal = Journal::new(&state, 5);
        assert_eq!(journal.rotate().unwrap(), 5);
        let pending = journal.begin(0, request(1));
        journal.end(pending, true);
        let refused = journal.begin(0, request(2));
        journal.end(refused, false);
        journal.write();
        assert_eq!(journal.rotate().unwrap(), 6);
        let (change, name) = sa(9);
        let pending = journal.begin(6, change);
        // It is in the file before it is carried out.
        assert_eq!(read(&state, 6).unwrap().0, [Record::Request(6, Zeroizing::new(vec![7; 300]))]);
        journal.end(pending, false);
        assert_eq!(journal.take_added(), []);
        let pending = journal.begin(6, sa(9).0);
        journal.end(pending, true);
        assert_eq!(journal.take_added(), [name]);
        journal.set("ipv4/ip_forward", b"1\n");
        journal.note_numbers(&[name]);
        let sa = || Record::Request(6, Zeroizing::new(vec![7; 300]));
        let want = [
            Record::Request(0, Zeroizing::new(vec![1; 100])),
            sa(),
            Record::Refused,
            sa(),
            Record::Setting("ipv4/ip_forward".to_owned(), b"1\n".to_vec()),
            Record::Noted(name),
        ];
        let (found, last) = read(&state, 5).unwrap();
        assert_eq!((&found[..], last), (&want[..], 7));
        remove_below(&state, 6);
        assert_eq!(read(&state, 5).unwrap(), (vec![], 5));
        assert_eq!(read(&state, 6).unwrap().0, want[1..]);
        assert_eq!(fs::metadata(path_of(&state, 6)).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn torn_end_is_cut_off_and_damage_before_it_is_refused() {
        let state = scratch("torn");
        let mut journal = Journal::new(&state, 1);
        journal.rotate().unwrap();
        for n in 1..4 {
            let pending = journal.begin(0, request(n));
            journal.end(pending, true);
        }
        journal.write();
        let path = path_of(&state, 1);
        let whole = fs::read(&path).unwrap();
        let record = (whole.len() - MAGIC.len()) / 3;
        for len in 0..=whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let found = read(&state, 1).unwrap().0.len();
            assert_eq!(found, len.saturating_sub(MAGIC.len()) / record, "{len} bytes");
        }
        // A changed byte is never taken for a torn end.
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            let (named, why) = read(&state, 1).unwrap_err();
            assert!(named == path && (why.contains("damaged") || why.contains("no journal")), "byte {at}: {why}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read(&state, 1).unwrap_err().1.contains("other users"));
    }

    #[test]
    fn journal_that_cannot_be_written_is_off_until_the_next_file() {
        let state = scratch("full");
        let mut journal = Journal::new(&state, 1);
        journal.rotate().unwrap();
        journal.log.as_mut().unwrap().file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let pending = journal.begin(0, request(1));
        journal.end(pending, true);
        journal.write();
        assert!(!journal.is_on() && !journal.is_due(0));
        let pending = journal.begin(0, request(2));
        assert!(matches!(pending, Pending::Nothing));
        assert_eq!(journal.rotate().unwrap(), 2);
        let pending = journal.begin(0, request(3));
        journal.end(pending, true);
        journal.write();
        assert_eq!(read(&state, 2).unwrap().0, [Record::Request(0, Zeroizing::new(vec![3; 100]))]);
    }
}
