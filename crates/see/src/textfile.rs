//! Files for node_exporter's textfile collector.

use std::fs::{self, File, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use client::CliError;

use crate::exposition::Format;
use crate::families::families;
use crate::scrape::Gateways;

/// Name of the file. node_exporter reads names with this ending, so not the file that is being written.
const NAME: &str = "fatpath.prom";

/// Mode of the file, whatever the umask is: node_exporter is another user.
const MODE: u32 = 0o644;

/// Writes the metrics into a file in `dir`, again and again after an interval, or once.
///
/// # Errors
/// The file cannot be written at the first time; later failures are log lines.
pub(crate) fn write_all(mut gateways: Gateways, dir: &Path, interval: Option<Duration>) -> Result<(), CliError> {
    let mut write = || write(dir, &Format::Classic.text(&families(&gateways.scrape())));
    write().map_err(|err| CliError::system(&dir.join(NAME).display().to_string(), &err))?;
    let Some(interval) = interval else { return Ok(()) };
    loop {
        thread::sleep(interval);
        if let Err(err) = write() {
            tracing::warn!("{}: {err}", dir.join(NAME).display());
        }
    }
}

/// Replaces the file as a whole: a reader has the old text or the new one. The new file is never one that another user has put there.
fn write(dir: &Path, text: &str) -> io::Result<()> {
    let new = dir.join(format!("{NAME}.{:016x}", RandomState::new().build_hasher().finish()));
    let mut file = File::create_new(&new)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.set_permissions(Permissions::from_mode(MODE)));
    let replaced = written.and_then(|()| fs::rename(&new, dir.join(NAME)));
    if replaced.is_err() {
        let _ = fs::remove_file(&new);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_replaced_and_nothing_else_is_left() {
        let dir = std::env::temp_dir().join(format!("fatpath-see-textfile-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        write(&dir, "one\n").unwrap();
        write(&dir, "two\n").unwrap();
        let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(
            (names.as_slice(), fs::read_to_string(dir.join(NAME)).unwrap().as_str()),
            (&[NAME.into()][..], "two\n")
        );
        assert_eq!(fs::metadata(dir.join(NAME)).unwrap().permissions().mode() & 0o777, MODE);
        // A link in the file's place is replaced, and not followed.
        let (place, elsewhere) = (dir.join(NAME), dir.join("elsewhere"));
        fs::write(&elsewhere, "theirs").unwrap();
        fs::remove_file(&place).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &place).unwrap();
        write(&dir, "three\n").unwrap();
        assert_eq!([&elsewhere, &place].map(|file| fs::read_to_string(file).unwrap()), ["theirs", "three\n"]);
        assert_eq!(write(&dir.join("none"), "").unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(&dir).unwrap();
    }
}
