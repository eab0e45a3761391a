//! The file: a database with the requests that make a node.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use client::CliError;
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{
    Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
};
use zeroize::Zeroizing;

use crate::confine;
use crate::files;
use crate::random::random;
use crate::sa_name::{Checkpoint, SaName};

/// Number of the format; a file of another version has another one. Earlier versions than 5 would take the ILA mapping of an address for
/// one of its locator, and the tables are those of 4.
const FORMAT: u32 = 5;

/// Number of the first format, which has no settings.
const FIRST_FORMAT: u32 = 1;

/// Number of the last format without ILA mappings.
const FORMAT_WITHOUT_ILA: u32 = 2;

/// Number of the last format without the machine's boot.
const FORMAT_WITHOUT_BOOT: u32 = 3;

/// The format, by the name `format`.
const FATPATH: TableDefinition<'_, &str, u32> = TableDefinition::new("fatpath");
/// Tables of one state.
struct Tables {
    /// The links that requests refer to, by their numbers.
    links: TableDefinition<'static, u32, &'static str>,
    /// Requests of `NETLINK_ROUTE`, in order, each with the name of its object.
    route: TableDefinition<'static, u64, (&'static str, &'static [u8])>,
    /// Requests of `NETLINK_XFRM`, in order, but for SAs.
    xfrm: TableDefinition<'static, u64, (&'static str, &'static [u8])>,
    /// Requests for SAs, in order, each with the name of its SA.
    sas: TableDefinition<'static, u64, (&'static str, &'static [u8], &'static [u8])>,
    /// Settings made by `sysctl`, by names below `/proc/sys/net`.
    settings: TableDefinition<'static, &'static str, &'static str>,
    /// Requests of `NETLINK_GENERIC` that add ILA mappings.
    ila: TableDefinition<'static, u64, (&'static str, &'static [u8])>,
}

/// State that `fatpath save` has written.
const SAVED: Tables = Tables {
    links: TableDefinition::new("links"),
    route: TableDefinition::new("route"),
    xfrm: TableDefinition::new("xfrm"),
    sas: TableDefinition::new("sas"),
    settings: TableDefinition::new("settings"),
    ila: TableDefinition::new("ila"),
};

/// Later state, which lasts until the machine is booted.
const LATER: Tables = Tables {
    links: TableDefinition::new("later links"),
    route: TableDefinition::new("later route"),
    xfrm: TableDefinition::new("later xfrm"),
    sas: TableDefinition::new("later sas"),
    settings: TableDefinition::new("later settings"),
    ila: TableDefinition::new("later ila"),
};

/// Boot of the machine in which the state was written, by the name `boot`.
const BOOT: TableDefinition<'_, &str, &str> = TableDefinition::new("boot");
/// By the name `journal` the number of the first file of the journal that is not in the state; by the name `later`
/// whether the later state is the one that counts in this boot (1), or the saved one (0).
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// Counters at which SAs continue: sent, received, bytes, packets.
const CHECKPOINTS: TableDefinition<'_, &[u8], (u64, u64, u64, u64)> = TableDefinition::new("marks");

/// Bytes of pages that the database caches: none, for the pages contain keys, also of deleted SAs.
const CACHE: usize = 0;

/// Longest wait for the lock of the file. The kernel closes the descriptors of a killed process one after the other: its sockets may be
/// closed, so that another gateway starts, and its devices take longer, before the file is closed.
const LOCK_LIMIT: Duration = Duration::from_secs(3);

/// Time between two attempts to lock the file.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// A request, with the name of its object. It may have keys in it.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Kept {
    pub(crate) label: String,
    pub(crate) message: Zeroizing<Vec<u8>>,
}

/// Content of the file for a start.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Found {
    pub(crate) state: State,
    /// Number of the first file of the journal that is not in the state.
    pub(crate) journal: u64,
    /// Whether the state was written in this boot of the machine, so that the journal continues it.
    pub(crate) is_of_boot: bool,
    /// SAs of the saved state, whose checkpoints stay.
    pub(crate) saved_sas: Vec<SaName>,
}

/// Reason for writing a state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Keep {
    /// `fatpath save`: the state outlasts this boot of the machine.
    Saved,
    /// The state of this boot; what was saved stays beside it.
    Later,
}

/// All saved state.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct State {
    pub(crate) links: BTreeMap<u32, String>,
    pub(crate) route: Vec<Kept>,
    pub(crate) sas: Vec<(SaName, Kept)>,
    pub(crate) xfrm: Vec<Kept>,
    pub(crate) ila: Vec<Kept>,
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) checkpoints: HashMap<SaName, Checkpoint>,
}

/// The open file, which no other gateway can open.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    /// None once the file is closed.
    database: Option<Database>,
    /// The file itself, which tells its length; it has the lock, too.
    file: Option<File>,
}

impl Store {
    /// The default place of the file of the gateway `instance`, for a user that has one.
    pub(crate) fn default_path(instance: &str) -> Option<PathBuf> {
        Some(client::state_dir(confine::is_of_root())?.join(format!("{instance}.state")))
    }

    /// Opens the file of the gateway `instance` in the default place, or makes it, and its directory; `None` with a
    /// warning if that is impossible. `run_dir` is made by the gateway with other rights.
    ///
    /// # Errors
    /// As [`open`](Self::open), for a file that exists.
    pub(crate) fn open_default(instance: &str, run_dir: Option<&Path>) -> Result<Option<Self>, CliError> {
        let missing = |why: &dyn std::fmt::Display| {
            tracing::warn!(
                "no state is kept: {why}; after a restart peers drop packets of SAs with static keys, and changes by programs are lost; \
                 --state FILE names another place, --state none turns it off"
            );
            Ok(None)
        };
        let Some(path) = Self::default_path(instance) else {
            return missing(&"there is neither HOME nor XDG_STATE_HOME");
        };
        // A file that exists may hold policies that have to be restored.
        if !exists(&path).unwrap_or(false) {
            let dir = path.parent().unwrap_or(&path);
            let mode = if run_dir == Some(dir) { 0o777 } else { 0o700 };
            let made = fs::DirBuilder::new().recursive(true).mode(mode).create(dir);
            if let Err(err) = made {
                return missing(&format!("{}: {err}", dir.display()));
            }
            if let Err(err) = make(&path) {
                return missing(&format!("{}: {err}", path.display()));
            }
        }
        Self::open(&path).map(Some)
    }

    /// Opens the file at `path`, or makes it. Waits a moment for a gateway that has it open: one that was just killed.
    ///
    /// # Errors
    /// Exit code 1 if it cannot be opened or created, or if other users have access; 2 if it is not such a file.
    pub(crate) fn open(path: &Path) -> Result<Self, CliError> {
        Self::open_within(path, LOCK_LIMIT)
    }

    /// Opens the file at `path`, or makes it. Waits for a gateway that has it open at most for `limit`.
    fn open_within(path: &Path, limit: Duration) -> Result<Self, CliError> {
        let failed = |what: &dyn std::fmt::Display| CliError::failed(format!("{}: {what}", path.display()));
        if !exists(path).map_err(|err| failed(&err))? {
            make(path).map_err(|err| failed(&err))?;
        }
        let begun = Instant::now();
        loop {
            let file = open_private(path, files::write)?;
            let own = file.try_clone().map_err(|err| failed(&err))?;
            let database = FileBackend::new(file).and_then(|file| {
                Builder::new().set_cache_size(CACHE).set_check_integrity_on_open(true).create_with_backend(file)
            });
            match database {
                Ok(database) => return Self::of(path, database, Some(own)),
                Err(DatabaseError::DatabaseAlreadyOpen) if begun.elapsed() < limit => thread::sleep(LOCK_INTERVAL),
                Err(DatabaseError::DatabaseAlreadyOpen) => {
                    return Err(failed(&"in use by another gateway; name another with --state."));
                }
                Err(err) => return Err(unusable(path, &err)),
            }
        }
    }

    /// Opens a copy in memory of the file at `path`, which a running gateway may have open and write: such a copy may be
    /// torn. The file is not changed.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and a file that does not exist.
    pub(crate) fn open_copy(path: &Path) -> Result<Self, CliError> {
        let failed = |err: io::Error| CliError::failed(format!("{}: {err}", path.display()));
        let mut bytes = Zeroizing::new(Vec::new());
        open_private(path, open_at_once)?.read_to_end(&mut bytes).map_err(failed)?;
        let backend = InMemoryBackend::new();
        backend.set_len(bytes.len() as u64).and_then(|()| backend.write(0, &bytes)).map_err(failed)?;
        let builder =
            Builder::new().set_cache_size(CACHE).set_check_integrity_on_open(true).create_with_backend(backend);
        Self::of(path, builder.map_err(|err| unusable(path, &err))?, None)
    }

    fn of(path: &Path, database: Database, file: Option<File>) -> Result<Self, CliError> {
        let store = Self { path: path.to_owned(), database: Some(database), file };
        match store.format().map_err(|err| unusable(path, &err))? {
            FIRST_FORMAT..=FORMAT => Ok(store),
            other => Err(unusable(path, &format!("format {other}, and this version supports {FORMAT}"))),
        }
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn database(&self) -> Result<&Database, redb::Error> {
        self.database.as_ref().ok_or(redb::Error::DatabaseClosed)
    }

    /// Closes the file, so that another gateway can open it. Nothing can be read or written from then on.
    pub(crate) fn close(&mut self) {
        self.database = None;
        self.file = None;
    }

    fn format(&self) -> Result<u32, redb::Error> {
        let table = self.database()?.begin_read()?.open_table(FATPATH)?;
        Ok(table.get("format")?.map_or(0, |format| format.value()))
    }

    /// Length of the file in bytes; 0 if it is not known.
    pub(crate) fn len(&self) -> u64 {
        self.file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len())
    }

    /// Content of the file for a start in the machine's boot `boot`.
    ///
    /// # Errors
    /// It is damaged.
    pub(crate) fn read(&self, boot: &str) -> Result<Found, CliError> {
        self.try_read(boot).map_err(|err| unusable(&self.path, &err))
    }

    fn try_read(&self, boot: &str) -> Result<Found, redb::Error> {
        let read = self.database()?.begin_read()?;
        let format = self.format()?;
        let mut found = Found::default();
        if format > FORMAT_WITHOUT_BOOT {
            let numbers = read.open_table(NUMBERS)?;
            let number = |name| Ok::<u64, redb::Error>(numbers.get(name)?.map_or(0, |number| number.value()));
            found.journal = number("journal")?;
            found.is_of_boot = read.open_table(BOOT)?.get("boot")?.is_some_and(|of| of.value() == boot);
            if found.is_of_boot && number("later")? == 1 {
                found.state = self.read_tables(&read, &LATER, format)?;
                for entry in read.open_table(SAVED.sas)?.iter()? {
                    let (_, entry) = entry?;
                    found.saved_sas.push(sa_name(entry.value().1)?);
                }
                return Ok(found);
            }
        }
        found.state = self.read_tables(&read, &SAVED, format)?;
        found.saved_sas = found.state.sas.iter().map(|(name, _)| *name).collect();
        Ok(found)
    }

    fn read_tables(&self, read: &ReadTransaction, tables: &Tables, format: u32) -> Result<State, redb::Error> {
        let mut state = State::default();
        for entry in read.open_table(tables.links)?.iter()? {
            let (number, name) = entry?;
            state.links.insert(number.value(), name.value().to_owned());
        }
        let ila = Some((tables.ila, &mut state.ila)).filter(|_| format > FORMAT_WITHOUT_ILA);
        for (table, requests) in
            [(tables.route, &mut state.route), (tables.xfrm, &mut state.xfrm)].into_iter().chain(ila)
        {
            for entry in read.open_table(table)?.iter()? {
                let (_, entry) = entry?;
                let (label, message) = entry.value();
                requests.push(Kept { label: label.to_owned(), message: Zeroizing::new(message.to_vec()) });
            }
        }
        for entry in read.open_table(tables.sas)?.iter()? {
            let (_, entry) = entry?;
            let (label, name, message) = entry.value();
            let kept = Kept { label: label.to_owned(), message: Zeroizing::new(message.to_vec()) };
            state.sas.push((sa_name(name)?, kept));
        }
        if format != FIRST_FORMAT {
            for entry in read.open_table(tables.settings)?.iter()? {
                let (name, text) = entry?;
                state.settings.insert(name.value().to_owned(), text.value().to_owned());
            }
        }
        for entry in read.open_table(CHECKPOINTS)?.iter()? {
            let (name, checkpoint) = entry?;
            let (oseq, seq, bytes, packets) = checkpoint.value();
            state.checkpoints.insert(sa_name(name.value())?, Checkpoint { oseq, seq, used: [bytes, packets] });
        }
        Ok(state)
    }

    /// Writes `state`, which the machine's boot `boot` has reached before the file `journal` of the journal, and all
    /// checkpoints; after an error or a crash, the old content is there.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn replace(&self, state: &State, keep: Keep, boot: &str, journal: u64) -> Result<(), redb::Error> {
        let write = self.database()?.begin_write()?;
        let later = match keep {
            Keep::Saved => {
                put_tables(&write, &SAVED, state)?;
                put_tables(&write, &LATER, &State::default())?;
                0
            }
            Keep::Later => {
                put_tables(&write, &LATER, state)?;
                1
            }
        };
        write.open_table(FATPATH)?.insert("format", FORMAT)?;
        write.open_table(BOOT)?.insert("boot", boot)?;
        {
            let mut numbers = write.open_table(NUMBERS)?;
            numbers.insert("journal", journal)?;
            numbers.insert("later", later)?;
        }
        write.delete_table(CHECKPOINTS)?;
        put_checkpoints(&write, state.checkpoints.iter())?;
        Ok(write.commit()?)
    }

    /// Replaces checkpoints.
    ///
    /// # Errors
    /// The system's error; the old checkpoints are there then.
    pub(crate) fn checkpoint<'a>(
        &self,
        checkpoints: impl Iterator<Item = (&'a SaName, &'a Checkpoint)>,
    ) -> Result<(), redb::Error> {
        let write = self.database()?.begin_write()?;
        put_checkpoints(&write, checkpoints)?;
        Ok(write.commit()?)
    }
}

fn put_tables(write: &redb::WriteTransaction, tables: &Tables, state: &State) -> Result<(), redb::Error> {
    write.delete_table(tables.links)?;
    write.delete_table(tables.route)?;
    write.delete_table(tables.xfrm)?;
    write.delete_table(tables.sas)?;
    write.delete_table(tables.ila)?;
    write.delete_table(tables.settings)?;
    let mut links = write.open_table(tables.links)?;
    for (number, name) in &state.links {
        links.insert(number, name.as_str())?;
    }
    for (table, requests) in [(tables.route, &state.route), (tables.xfrm, &state.xfrm), (tables.ila, &state.ila)] {
        let mut table = write.open_table(table)?;
        for (at, Kept { label, message }) in requests.iter().enumerate() {
            table.insert(at as u64, (label.as_str(), message.as_slice()))?;
        }
    }
    let mut sas = write.open_table(tables.sas)?;
    for (at, (name, Kept { label, message })) in state.sas.iter().enumerate() {
        sas.insert(at as u64, (label.as_str(), &name.to_bytes()[..], message.as_slice()))?;
    }
    let mut settings = write.open_table(tables.settings)?;
    for (name, text) in &state.settings {
        settings.insert(name.as_str(), text.as_str())?;
    }
    Ok(())
}

fn put_checkpoints<'a>(
    write: &redb::WriteTransaction,
    checkpoints: impl Iterator<Item = (&'a SaName, &'a Checkpoint)>,
) -> Result<(), redb::Error> {
    let mut table = write.open_table(CHECKPOINTS)?;
    for (name, &Checkpoint { oseq, seq, used: [bytes, packets] }) in checkpoints {
        table.insert(&name.to_bytes()[..], (oseq, seq, bytes, packets))?;
    }
    Ok(())
}

fn sa_name(bytes: &[u8]) -> Result<SaName, redb::Error> {
    SaName::from_bytes(bytes).ok_or_else(|| redb::Error::Corrupted("an SA's name has another length".to_owned()))
}

/// Whether a file exists. An opener makes none: the gateway that has started it did, before.
fn exists(path: &Path) -> io::Result<bool> {
    if files::are_of_opener() { Ok(true) } else { path.try_exists() }
}

/// Opens a file to be read. A FIFO is refused later, and not waited for.
fn open_at_once(path: &Path) -> io::Result<File> {
    if files::are_of_opener() {
        return files::read(path);
    }
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    File::options().read(true).custom_flags(nonblocking).open(path)
}

/// Opens a file with keys.
///
/// # Errors
/// Exit code 1 if it cannot be opened, or if other users have access; 2 if it is empty.
fn open_private(path: &Path, open: fn(&Path) -> io::Result<File>) -> Result<File, CliError> {
    let failed = |what: &dyn std::fmt::Display| CliError::failed(format!("{}: {what}", path.display()));
    let file = open(path).map_err(|err| failed(&err))?;
    let metadata = file.metadata().map_err(|err| failed(&err))?;
    if !metadata.is_file() {
        return Err(failed(&"is no file; name another with --state."));
    }
    if metadata.mode() & 0o077 != 0 || metadata.uid() != confine::owner_of_files() {
        return Err(failed(&"holds keys, and other users have access; restrict it to this user (chown, chmod 600)."));
    }
    if metadata.len() == 0 {
        return Err(unusable(path, &"it is empty"));
    }
    Ok(file)
}

/// Creates an empty file atomically, or finds one that another process has created in the meantime.
fn make(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}", random()?));
    let new = PathBuf::from(name);
    let made = make_new(&new).and_then(|()| match fs::hard_link(&new, path) {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => Err(err.into()),
        _ => Ok(()),
    });
    match fs::remove_file(&new) {
        Err(err) if made.is_ok() => return Err(err.into()),
        _ => made?,
    }
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

fn make_new(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let database = Builder::new().set_cache_size(CACHE).create_with_backend(FileBackend::new(file)?)?;
    let store = Store { path: path.to_owned(), database: Some(database), file: None };
    let empty = State::default();
    store.replace(&empty, Keep::Later, "", 0)?;
    Ok(store.replace(&empty, Keep::Saved, "", 0)?)
}

/// A file of another kind, or a damaged one, and the remedy.
fn unusable(path: &Path, why: &dyn std::fmt::Display) -> CliError {
    CliError::bad_config(format!(
        "{}: no state that can be restored: {why}. Move the file away to start without the saved state.",
        path.display()
    ))
}

#[cfg(test)]
mod tests;
