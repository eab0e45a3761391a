//! Ed25519 keys of IKE, in the forms that strongSwan reads (RFC 8410).

use std::io;

use client::CliError;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustix::rand::{GetRandomFlags, getrandom};
use zeroize::Zeroizing;

use super::base64;

/// PKCS #8 of a private key, before its 32 bytes.
const PRIVATE: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// SubjectPublicKeyInfo of a public key, before its 32 bytes.
const PUBLIC: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A fresh key: the private one as PEM, and the public one.
///
/// # Errors
/// The system has no random numbers.
pub(super) fn generate() -> Result<(Zeroizing<String>, [u8; 32]), CliError> {
    let mut seed = Zeroizing::new([0; 32]);
    let mut filled = 0;
    while filled < seed.len() {
        let more = getrandom(&mut seed[filled..], GetRandomFlags::empty());
        filled += more.map_err(|err| CliError::system("getrandom", &io::Error::from(err)))?;
    }
    let pair =
        Ed25519KeyPair::from_seed_unchecked(&*seed).map_err(|err| CliError::failed(format!("Ed25519: {err}")))?;
    let mut public = [0; 32];
    public.copy_from_slice(pair.public_key().as_ref());
    let mut bytes = Zeroizing::new(Vec::with_capacity(PRIVATE.len() + seed.len()));
    bytes.extend_from_slice(&PRIVATE);
    bytes.extend_from_slice(&*seed);
    Ok((pem("PRIVATE KEY", &bytes), public))
}

/// A public key as PEM.
pub(super) fn public_pem(key: &[u8; 32]) -> String {
    pem("PUBLIC KEY", &[&PUBLIC[..], key].concat()).to_string()
}

/// Text of at most one line of PEM, which has room for 48 bytes.
fn pem(label: &str, bytes: &[u8]) -> Zeroizing<String> {
    // With enough room the text is not copied when it grows.
    let mut text = Zeroizing::new(String::with_capacity(200));
    for part in ["-----BEGIN ", label, "-----\n"] {
        text.push_str(part);
    }
    base64::push_padded(&mut text, bytes);
    for part in ["\n-----END ", label, "-----\n"] {
        text.push_str(part);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_form_of_rfc_8410() {
        let (private, public) = generate().unwrap();
        // The beginnings of the examples in RFC 8410 §10.
        assert!(private.starts_with("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEI"), "no PKCS #8");
        assert!(public_pem(&public).starts_with("-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA"));
        assert!(private.lines().all(|line| line.len() <= 64));
        assert_ne!(generate().unwrap().1, public);
    }
}
