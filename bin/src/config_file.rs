//! Reads the configuration file, for `run` and `check`.

use std::fs;
use std::path::Path;

use control::Config;
use zeroize::Zeroizing;

use crate::error::CliError;

/// Reads and checks the file at `path`. Its text holds keys, and is zeroed when done with.
///
/// # Errors
/// Exit code 1 if the file cannot be read, 2 if it is wrong.
pub(crate) fn load(path: &Path) -> Result<Config, CliError> {
    let name = path.display().to_string();
    let bytes = fs::read(path).map_err(|err| CliError::failed(format!("{name}: {err}")))?;
    let bytes = Zeroizing::new(bytes);
    let text = std::str::from_utf8(&bytes).map_err(|err| {
        let line = 1 + bytes[..err.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        CliError::bad_config(format!("{name}:{line}: not UTF-8 text; use a TOML file."))
    })?;
    Config::from_toml(text, &name).map_err(|err| CliError::bad_config(err.to_string()))
}
