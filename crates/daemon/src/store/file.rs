//! The file: a database with the requests that make a node.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use client::CliError;
use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use zeroize::Zeroizing;

use super::names::{Checkpoint, SaName};
use crate::random::random;

/// Number of the format; a file of another version has another one.
const FORMAT: u32 = 3;

/// The first version's number: it knew no settings.
const FIRST_FORMAT: u32 = 1;

/// The last version's number that knew no ILA mappings.
const FORMAT_WITHOUT_ILA: u32 = 2;

/// The format, by the name `format`.
const FATPATH: TableDefinition<'_, &str, u32> = TableDefinition::new("fatpath");
/// The links that requests speak of, by their numbers.
const LINKS: TableDefinition<'_, u32, &str> = TableDefinition::new("links");
/// Requests of `NETLINK_ROUTE`, in order, each with the name of its object.
const ROUTE: TableDefinition<'_, u64, (&str, &[u8])> = TableDefinition::new("route");
/// Requests of `NETLINK_XFRM`, in order, but for SAs.
const XFRM: TableDefinition<'_, u64, (&str, &[u8])> = TableDefinition::new("xfrm");
/// Requests for SAs, in order, each with the name of its SA.
const SAS: TableDefinition<'_, u64, (&str, &[u8], &[u8])> = TableDefinition::new("sas");
/// Settings made by `sysctl`, by names below `/proc/sys/net`.
const SETTINGS: TableDefinition<'_, &str, &str> = TableDefinition::new("settings");
/// Requests of `NETLINK_GENERIC` that add ILA mappings.
const ILA: TableDefinition<'_, u64, (&str, &[u8])> = TableDefinition::new("ila");
/// Counters at which SAs continue: sent, received, bytes, packets.
const CHECKPOINTS: TableDefinition<'_, &[u8], (u64, u64, u64, u64)> = TableDefinition::new("marks");

/// Bytes of pages that the database keeps in memory beside what it writes at once: none, for keys are in them, also of SAs that
/// are gone.
const CACHE: usize = 0;

/// A request, with the name of its object. It may have keys in it.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Kept {
    pub(crate) label: String,
    pub(crate) message: Zeroizing<Vec<u8>>,
}

/// All that is kept.
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
    database: Database,
}

impl Store {
    /// Opens the file at `path`, or makes it.
    ///
    /// # Errors
    /// Exit code 1 if it cannot be opened or made, or if others may use it; 2 if it is not such a file.
    pub(crate) fn open(path: &Path) -> Result<Self, CliError> {
        let failed = |what: &dyn std::fmt::Display| CliError::failed(format!("{}: {what}", path.display()));
        if !path.try_exists().map_err(|err| failed(&err))? {
            make(path).map_err(|err| failed(&err))?;
        }
        let file = File::options().read(true).write(true).open(path).map_err(|err| failed(&err))?;
        let metadata = file.metadata().map_err(|err| failed(&err))?;
        if !metadata.is_file() {
            return Err(failed(&"is no file; name another with --state."));
        }
        if metadata.mode() & 0o077 != 0 || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(failed(&"holds keys, and others may use it; give it to this user alone (chown, chmod 600)."));
        }
        if metadata.len() == 0 {
            return Err(unusable(path, &"it is empty"));
        }
        let database = FileBackend::new(file).and_then(|file| {
            Builder::new().set_cache_size(CACHE).set_check_integrity_on_open(true).create_with_backend(file)
        });
        let database = database.map_err(|err| match err {
            DatabaseError::DatabaseAlreadyOpen => failed(&"another gateway has it; name another with --state."),
            err => unusable(path, &err),
        })?;
        let store = Self { path: path.to_owned(), database };
        match store.format().map_err(|err| unusable(path, &err))? {
            FIRST_FORMAT..=FORMAT => Ok(store),
            other => Err(unusable(path, &format!("it is of format {other}, and this version supports {FORMAT}"))),
        }
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn format(&self) -> Result<u32, redb::Error> {
        let table = self.database.begin_read()?.open_table(FATPATH)?;
        Ok(table.get("format")?.map_or(0, |format| format.value()))
    }

    /// Content of the file.
    ///
    /// # Errors
    /// It is damaged.
    pub(crate) fn read(&self) -> Result<State, CliError> {
        self.try_read().map_err(|err| unusable(&self.path, &err))
    }

    fn try_read(&self) -> Result<State, redb::Error> {
        let read = self.database.begin_read()?;
        let mut state = State::default();
        for entry in read.open_table(LINKS)?.iter()? {
            let (number, name) = entry?;
            state.links.insert(number.value(), name.value().to_owned());
        }
        let format = self.format()?;
        let ila = Some((ILA, &mut state.ila)).filter(|_| format > FORMAT_WITHOUT_ILA);
        for (table, requests) in [(ROUTE, &mut state.route), (XFRM, &mut state.xfrm)].into_iter().chain(ila) {
            for entry in read.open_table(table)?.iter()? {
                let (_, entry) = entry?;
                let (label, message) = entry.value();
                requests.push(Kept { label: label.to_owned(), message: Zeroizing::new(message.to_vec()) });
            }
        }
        for entry in read.open_table(SAS)?.iter()? {
            let (_, entry) = entry?;
            let (label, name, message) = entry.value();
            let kept = Kept { label: label.to_owned(), message: Zeroizing::new(message.to_vec()) };
            state.sas.push((sa_name(name)?, kept));
        }
        if format != FIRST_FORMAT {
            for entry in read.open_table(SETTINGS)?.iter()? {
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

    /// Replaces the content by `state`; after an error or a crash, the old content is there.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn replace(&self, state: &State) -> Result<(), redb::Error> {
        let write = self.database.begin_write()?;
        write.delete_table(LINKS)?;
        write.delete_table(ROUTE)?;
        write.delete_table(XFRM)?;
        write.delete_table(SAS)?;
        write.delete_table(ILA)?;
        write.delete_table(SETTINGS)?;
        write.delete_table(CHECKPOINTS)?;
        {
            write.open_table(FATPATH)?.insert("format", FORMAT)?;
            let mut links = write.open_table(LINKS)?;
            for (number, name) in &state.links {
                links.insert(number, name.as_str())?;
            }
            for (table, requests) in [(ROUTE, &state.route), (XFRM, &state.xfrm), (ILA, &state.ila)] {
                let mut table = write.open_table(table)?;
                for (at, Kept { label, message }) in requests.iter().enumerate() {
                    table.insert(at as u64, (label.as_str(), message.as_slice()))?;
                }
            }
            let mut sas = write.open_table(SAS)?;
            for (at, (name, Kept { label, message })) in state.sas.iter().enumerate() {
                sas.insert(at as u64, (label.as_str(), &name.to_bytes()[..], message.as_slice()))?;
            }
        }
        {
            let mut settings = write.open_table(SETTINGS)?;
            for (name, text) in &state.settings {
                settings.insert(name.as_str(), text.as_str())?;
            }
        }
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
        let write = self.database.begin_write()?;
        put_checkpoints(&write, checkpoints)?;
        Ok(write.commit()?)
    }
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

/// Makes an empty file, which is there as a whole or not at all; or finds one that another process has made meanwhile.
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
    Ok(Store { path: path.to_owned(), database }.replace(&State::default())?)
}

/// A file of another kind, or a damaged one, and the remedy.
fn unusable(path: &Path, why: &dyn std::fmt::Display) -> CliError {
    CliError::bad_config(format!(
        "{}: no state that can be restored: {why}. Move it away to start without what it held.",
        path.display()
    ))
}

#[cfg(test)]
mod tests;
