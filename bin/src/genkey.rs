//! Fresh keys of SAs.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;

use client::CliError;

/// Key of AES-256-GCM with its salt, as hexadecimal digits behind `0x`.
pub(crate) fn key() -> Result<String, CliError> {
    let mut bytes = [0_u8; 36];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|err| CliError::system("/dev/urandom", &err))?;
    Ok(bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
