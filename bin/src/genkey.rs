//! `fatpath genkey`: a fresh key of an SA.

use std::fmt::Write as _;
use std::io;

use client::{CliError, print};
use rustix::rand::{GetRandomFlags, getrandom};
use xfrm::{Aead, Auth, Enc, Name};
use zeroize::Zeroizing;

use crate::cli::GenkeyArgs;

/// Prints a key from the system's random numbers.
///
/// # Errors
/// The system has no random numbers, or standard output cannot be written.
pub(crate) fn main(args: &GenkeyArgs) -> Result<(), CliError> {
    let mut line = key(args.cipher)?;
    line.push('\n');
    print(line.as_bytes())
}

/// A key of `len` bytes from the system's random numbers, as a file takes it.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn key(len: usize) -> Result<Zeroizing<String>, CliError> {
    let mut key = Zeroizing::new(vec![0; len]);
    let mut filled = 0;
    while filled < key.len() {
        let more = getrandom(&mut key[filled..], GetRandomFlags::empty());
        filled += more.map_err(|err| CliError::system("getrandom", &io::Error::from(err)))?;
    }
    // There is room for a newline, so that the key is not copied elsewhere.
    let mut text = Zeroizing::new(String::with_capacity(2 * key.len() + 3));
    text.push_str("0x");
    for byte in key.iter() {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// Length in bytes of a key of an algorithm: its longest, or for an HMAC that of the whole code (RFC 4868 §2.1.1).
///
/// # Errors
/// The name is unknown, or the algorithm has no key.
pub(crate) fn key_len(name: &str) -> Result<usize, String> {
    let longest = |lens: &[usize]| lens.iter().copied().max();
    let aead = Aead::by_name(name).and_then(|aead| longest(aead.spec().key_lens));
    let enc = Enc::by_name(name).and_then(|enc| longest(enc.spec().key_lens));
    let auth =
        Auth::by_name(name).and_then(|auth| longest(auth.spec().key_lens).or(Some(auth.full_bits() as usize / 8)));
    match aead.or(enc).or(auth) {
        Some(0) => Err("has no key".to_owned()),
        Some(len) => Ok(len),
        None => Err(format!("use {}", names().join(", "))),
    }
}

/// Names of all algorithms with a key.
fn names() -> Vec<&'static str> {
    let aead = Aead::ALL.iter().map(|name| name.name());
    let enc = Enc::ALL.iter().filter(|enc| **enc != Enc::Null).map(|name| name.name());
    aead.chain(enc).chain(Auth::ALL.iter().map(|name| name.name())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_len_is_one_that_the_algorithm_takes() {
        for (name, len) in [
            ("rfc4106(gcm(aes))", 36),
            ("rfc4309(ccm(aes))", 35),
            ("rfc7539esp(chacha20,poly1305)", 36),
            ("cbc(aes)", 32),
            ("hmac(sha256)", 32),
            ("hmac(sha1)", 20),
            ("xcbc(aes)", 16),
        ] {
            assert_eq!(key_len(name), Ok(len), "{name}");
        }
        assert!(names().iter().all(|name| key_len(name).is_ok()));
        assert_eq!(key_len("ecb(cipher_null)"), Err("has no key".to_owned()));
        assert!(key_len("aes256gcm16").is_err_and(|text| text.starts_with("use rfc4106(gcm(aes)), ")));
    }
}
