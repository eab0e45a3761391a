//! Reads configuration files, for `run`, `check` and `load`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use client::CliError;
use config::Config;
use zeroize::Zeroizing;

use crate::ip_batch::{self, IpLines};

/// Largest buffer that is allocated at first, in bytes, whatever length the system reports.
const MAX_GUESS: u64 = 1 << 20;

/// Largest file in bytes: many times the size of a file with 100 000 SAs. The limit ends a read from an endless device.
const MAX_LEN: usize = 256 << 20;

/// Content of all configuration files together.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The TOML file, if there is one.
    pub(crate) file: Option<PathBuf>,
    /// Content of the TOML file.
    pub(crate) config: Config,
    /// Lines of `ip`, which run after the TOML file is applied.
    pub(crate) lines: Vec<IpLines>,
}

/// Reads and checks the TOML file at `path`. Its text holds keys, and is zeroed after use.
///
/// # Errors
/// Exit code 1 if the file cannot be read or holds `ip` lines, 2 if its content is wrong.
pub fn load(path: &Path) -> Result<Config, CliError> {
    let bytes = read(path)?;
    if ip_batch::are_in(&bytes) {
        return Err(CliError::failed(ip_batch::only_at_start(&path.display().to_string())));
    }
    parse(path, &bytes)
}

/// Reads and checks files, at most one of which is TOML.
///
/// # Errors
/// As [`load`]; and exit code 1 if two files are TOML.
pub(crate) fn load_all(paths: &[PathBuf]) -> Result<Sources, CliError> {
    let mut sources = Sources::default();
    for path in paths {
        let bytes = read(path)?;
        if ip_batch::are_in(&bytes) {
            sources.lines.push(IpLines::new(path.display().to_string(), bytes)?);
            continue;
        }
        if let Some(first) = sources.file.replace(path.clone()) {
            let (first, second) = (first.display(), path.display());
            return Err(CliError::failed(format!("{first} and {second} are TOML, both; put them into one file.")));
        }
        sources.config = parse(path, &bytes)?;
    }
    Ok(sources)
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, CliError> {
    read_to_end(path).map_err(|err| CliError::failed(format!("{}: {err}", path.display())))
}

/// Content of a file, with room for another byte; leaves no other copy of the content in memory.
fn read_to_end(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len().min(MAX_GUESS);
    let mut bytes = Zeroizing::new(vec![0; size as usize + 1]);
    let mut len = 0;
    loop {
        if len == bytes.len() {
            let mut larger = Zeroizing::new(vec![0; 2 * len]);
            larger[..len].copy_from_slice(&bytes);
            bytes = larger;
        }
        if len > MAX_LEN {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 256 MiB, and no configuration"));
        }
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Config, CliError> {
    let name = path.display().to_string();
    let text = std::str::from_utf8(bytes).map_err(|err| {
        let line = 1 + bytes[..err.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        CliError::bad_config(format!("{name}:{line}: not UTF-8 text; use a TOML file."))
    })?;
    Config::from_toml(text, &name).map_err(|err| CliError::bad_config(err.to_string()))
}
