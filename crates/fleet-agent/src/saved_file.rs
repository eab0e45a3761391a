//! The last state on disk: a database that an agent reads before it asks the store.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use fleet::{Changes, History, Saved, SavedObject, Stamp};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

/// Number of the format.
const FORMAT: u32 = 1;

/// Format and history, by the names `format` and `history`.
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

/// Objects by their keys: number of the history, revision, and value.
const OBJECTS: TableDefinition<'_, &str, (u32, u64, &[u8])> = TableDefinition::new("objects");

/// The open file.
#[derive(Debug)]
pub(crate) struct SavedFile(Database);

fn failed(err: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(err)
}

impl SavedFile {
    /// Opens or makes the file. One of another format, or that is damaged, is kept aside with `.old` behind its name.
    ///
    /// # Errors
    /// The file cannot be made, or another agent has it open.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        match Self::open_valid(path) {
            Err(redb::Error::DatabaseAlreadyOpen) => Err(failed(redb::Error::DatabaseAlreadyOpen)),
            Err(redb::Error::Io(err)) if err.kind() == io::ErrorKind::PermissionDenied => Err(err),
            Err(err) => {
                tracing::warn!("{}: {err}: starting without the saved state", path.display());
                fs::rename(path, old_name(path))?;
                Self::open_valid(path).map_err(failed)
            }
            Ok(file) => Ok(file),
        }
    }

    fn open_valid(path: &Path) -> Result<Self, redb::Error> {
        let database = Database::create(path)?;
        let write = database.begin_write()?;
        {
            let mut meta = write.open_table(META)?;
            let format = meta.get("format")?.map(|format| format.value().to_vec());
            match format {
                Some(format) if format == FORMAT.to_le_bytes() => {}
                Some(_) => return Err(redb::Error::Corrupted("unknown format".to_owned())),
                None => {
                    meta.insert("format", &FORMAT.to_le_bytes()[..])?;
                }
            }
            write.open_table(OBJECTS)?;
        }
        write.commit()?;
        Ok(Self(database))
    }

    /// The whole state.
    ///
    /// # Errors
    /// The file is damaged.
    pub(crate) fn load(&self) -> io::Result<Saved> {
        self.try_load().map_err(failed)
    }

    fn try_load(&self) -> Result<Saved, redb::Error> {
        let read = self.0.begin_read()?;
        let history = read.open_table(META)?.get("history")?;
        let history = history.map(|history| serde_json::from_slice::<History>(history.value()));
        let history = history.transpose().map_err(|err| redb::Error::Corrupted(err.to_string()))?;
        let mut saved = Saved { history: history.unwrap_or_default(), objects: Vec::new() };
        for object in read.open_table(OBJECTS)?.iter()? {
            let (key, object) = object?;
            let (history, revision, value) = object.value();
            let stamp = Stamp { history, revision };
            saved.objects.push(SavedObject { key: key.value().to_owned(), stamp, value: value.to_vec() });
        }
        Ok(saved)
    }

    /// Writes changes, whole or not at all.
    ///
    /// # Errors
    /// The disk is full, or fails.
    pub(crate) fn save(&self, changes: &Changes) -> io::Result<()> {
        self.try_save(changes).map_err(failed)
    }

    fn try_save(&self, changes: &Changes) -> Result<(), redb::Error> {
        let write = self.0.begin_write()?;
        {
            let history = serde_json::to_vec(&changes.history).unwrap_or_default();
            write.open_table(META)?.insert("history", &history[..])?;
            let mut objects = write.open_table(OBJECTS)?;
            for SavedObject { key, stamp, value } in &changes.changed {
                objects.insert(key.as_str(), (stamp.history, stamp.revision, &value[..]))?;
            }
            for key in &changes.removed {
                objects.remove(key.as_str())?;
            }
        }
        write.commit()?;
        Ok(())
    }
}

/// Name of a file that is kept aside.
fn old_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".old");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(key: &str, revision: u64) -> SavedObject {
        SavedObject { key: key.to_owned(), stamp: Stamp { history: 1, revision }, value: b"{}".to_vec() }
    }

    #[test]
    fn state_is_read_as_it_was_written() {
        let dir = std::env::temp_dir().join(format!("fatpath-fleet-saved-{}", std::process::id()));
        let path = dir.join("left.fleet");
        let mut history = History::default();
        history.judge(Some("u"), 7, 0, false);
        {
            let file = SavedFile::open(&path).unwrap();
            assert_eq!(file.load().unwrap(), Saved::default());
            assert!(SavedFile::open(&path).is_err(), "another agent has it");
            let changed = vec![object("a", 1), object("b", 2)];
            file.save(&Changes { history: history.clone(), changed, removed: Vec::new() }).unwrap();
            let removed = vec!["a".to_owned()];
            file.save(&Changes { history: history.clone(), changed: vec![object("b", 3)], removed }).unwrap();
        }
        let file = SavedFile::open(&path).unwrap();
        assert_eq!(file.load().unwrap(), Saved { history, objects: vec![object("b", 3)] });
        drop(file);
        fs::write(&path, b"no database").unwrap();
        let file = SavedFile::open(&path).unwrap();
        assert_eq!(file.load().unwrap(), Saved::default());
        assert_eq!(fs::read(dir.join("left.fleet.old")).unwrap(), b"no database");
        fs::remove_dir_all(dir).unwrap();
    }
}
