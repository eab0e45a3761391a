//! Directory of a CA: its certificate and key, and those that it made. Files are made if they are missing, and never overwritten.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use client::CliError;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};

use crate::etcd::{CertFiles, check_issuer, read_key};

/// Life of the CA's certificate.
const LIFE_OF_CA: Duration = Duration::days(3650);

/// Time by which clocks of machines may differ.
const CLOCK_SKEW: Duration = Duration::hours(1);

/// Longest common name (`ub-common-name` of RFC 5280).
const MAX_COMMON_NAME: usize = 64;

/// Bearer of a certificate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bearer<'a> {
    /// User of etcd, by its common name.
    User(&'a str),
    /// Member of etcd, by its address. Without a common name: etcd takes it for a user's.
    Member(&'a str),
}

/// A CA in a directory.
#[derive(Debug)]
pub(crate) struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    life: Duration,
    made: Vec<PathBuf>,
}

fn failed(path: &Path, err: impl std::fmt::Display) -> CliError {
    CliError::failed(format!("{}: {err}", path.display()))
}

impl Authority {
    /// Opens the CA of a fleet in a directory, and makes what is missing of both. Certificates are valid for a number of days.
    ///
    /// # Errors
    /// The directory or the key is open to others, or a file cannot be made.
    pub(crate) fn open(dir: &Path, fleet: &str, days: u32) -> Result<Self, CliError> {
        make_dir(dir)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "fatpath");
        params.distinguished_name.push(DnType::OrganizationalUnitName, format!("CA of fleet {fleet}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = OffsetDateTime::now_utc() - CLOCK_SKEW;
        params.not_after = OffsetDateTime::now_utc() + LIFE_OF_CA;
        let (cert, key) = (dir.join("ca.pem"), dir.join("ca.key"));
        if cert.exists() && !key.exists() {
            return Err(failed(&key, "missing: the CA's key is needed to make certificates"));
        }
        let mut made = Vec::new();
        let pair = key_pair(&key, &mut made)?;
        if !cert.exists() {
            let certificate = params.self_signed(&pair).map_err(|err| failed(&cert, err))?;
            make_file(&cert, &certificate.pem(), &mut made)?;
        }
        Ok(Self { dir: dir.to_owned(), issuer: Issuer::new(params, pair), life: Duration::days(days.into()), made })
    }

    /// File of the CA's certificate.
    pub(crate) fn cacert(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Files of a certificate by its name.
    pub(crate) fn files(&self, name: &str) -> CertFiles {
        CertFiles { cert: self.dir.join(format!("{name}.pem")), key: self.dir.join(format!("{name}.key")) }
    }

    /// Makes the certificate of a name unless it exists; with the key that exists, or a new one.
    ///
    /// # Errors
    /// A file cannot be made, or the CA in the directory is another one.
    pub(crate) fn make(&mut self, name: &str, bearer: Bearer<'_>) -> Result<(), CliError> {
        let CertFiles { cert, key } = self.files(name);
        if cert.exists() {
            return Ok(());
        }
        let params = params_of(bearer, self.life).map_err(|why| failed(&cert, why))?;
        let pair = key_pair(&key, &mut self.made)?;
        let certificate: Certificate = params.signed_by(&pair, &self.issuer).map_err(|err| failed(&cert, err))?;
        let cacert = self.cacert();
        check_issuer(certificate.der(), &cacert)
            .map_err(|why| failed(&cacert, format!("no CA that `init` has made for this fleet: {why}")))?;
        make_file(&cert, &certificate.pem(), &mut self.made)
    }

    /// Files that were made.
    pub(crate) fn into_made(self) -> Vec<PathBuf> {
        self.made
    }
}

fn params_of(bearer: Bearer<'_>, life: Duration) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = OffsetDateTime::now_utc() - CLOCK_SKEW;
    params.not_after = OffsetDateTime::now_utc() + life;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    match bearer {
        Bearer::User(name) if name.len() > MAX_COMMON_NAME => {
            return Err(format!("Invalid common name {name:?}: {} bytes, and {MAX_COMMON_NAME} at most", name.len()));
        }
        Bearer::User(name) => params.distinguished_name.push(DnType::CommonName, name),
        Bearer::Member(host) => {
            params.distinguished_name.push(DnType::OrganizationName, "fatpath");
            // Members are clients of each other.
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            for host in [host, "localhost", "127.0.0.1", "::1"] {
                let name = match host.parse::<IpAddr>() {
                    Ok(addr) => SanType::IpAddress(addr),
                    Err(_) => SanType::DnsName(host.try_into().map_err(|_| format!("Invalid name {host:?}"))?),
                };
                if !params.subject_alt_names.contains(&name) {
                    params.subject_alt_names.push(name);
                }
            }
        }
    }
    Ok(params)
}

/// Makes a directory that its owner alone may enter, unless it is there.
fn make_dir(dir: &Path) -> Result<(), CliError> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map_err(|err| failed(dir, err)),
    }
    let metadata = fs::metadata(dir).map_err(|err| failed(dir, err))?;
    let mode = metadata.mode() & 0o7777;
    if !metadata.is_dir() || mode & 0o077 != 0 {
        let why = format!("Group or others may use this directory of keys (mode {mode:04o}): `chmod 700`");
        return Err(failed(dir, why));
    }
    Ok(())
}

/// The key of a file, or a new one in it (ECDSA with P-256).
fn key_pair(path: &Path, made: &mut Vec<PathBuf>) -> Result<KeyPair, CliError> {
    if path.exists() {
        let text = String::from_utf8(read_key(path).map_err(CliError::failed)?).map_err(|err| failed(path, err))?;
        return KeyPair::from_pem(&text).map_err(|err| failed(path, err));
    }
    let pair = KeyPair::generate().map_err(|err| failed(path, err))?;
    make_file(path, &pair.serialize_pem(), made)?;
    Ok(pair)
}

/// Makes a file whole or not at all, which must not exist.
fn make_file(path: &Path, text: &str, made: &mut Vec<PathBuf>) -> Result<(), CliError> {
    let part = path.with_extension("part");
    let write = || {
        match fs::remove_file(&part) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        // A link, unlike a new name, does not replace a file.
        let linked = fs::hard_link(&part, path);
        fs::remove_file(&part)?;
        linked
    };
    write().map_err(|err| failed(path, err))?;
    made.push(path.to_owned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn dir(test: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("fatpath-fleet-ca-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    #[test]
    fn certificate_is_made_if_missing_and_never_overwritten() {
        let dir = dir("made");
        let mut authority = Authority::open(&dir, "f", 1).unwrap();
        authority.make("root", Bearer::User("root")).unwrap();
        authority.make("member-::1", Bearer::Member("::1")).unwrap();
        assert_eq!(authority.into_made().len(), 6);
        assert_eq!(mode(&dir), 0o700);
        let first = contents(&dir);
        assert!(first.iter().all(|(path, _)| mode(path) == 0o600), "{first:?}");
        assert_eq!(first.len(), 6);
        let mut authority = Authority::open(&dir, "f", 1).unwrap();
        authority.make("root", Bearer::User("root")).unwrap();
        authority.make("reader", Bearer::User("f/reader")).unwrap();
        assert_eq!(authority.into_made(), [dir.join("reader.key"), dir.join("reader.pem")]);
        // A certificate that is gone is made again, for the key that is there.
        fs::remove_file(dir.join("root.pem")).unwrap();
        let mut authority = Authority::open(&dir, "f", 1).unwrap();
        authority.make("root", Bearer::User("root")).unwrap();
        assert_eq!(authority.into_made(), [dir.join("root.pem")]);
        let now = contents(&dir);
        let of_key = |all: &[(PathBuf, Vec<u8>)]| all.iter().find(|(path, _)| path.ends_with("root.key")).cloned();
        assert_eq!(of_key(&now), of_key(&first));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn ca_of_another_fleet_signs_nothing() {
        let dir = dir("other");
        Authority::open(&dir, "f", 1).unwrap();
        let mut other = Authority::open(&dir, "g", 1).unwrap();
        let why = other.make("root", Bearer::User("root")).unwrap_err().message;
        assert!(why.contains("ca.pem: no CA"), "{why}");
        assert!(!dir.join("root.pem").exists());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn open_directory_or_key_and_long_name_are_refused() {
        let dir = dir("open");
        let mut authority = Authority::open(&dir, "f", 1).unwrap();
        let long = "n".repeat(65);
        let why = authority.make("node", Bearer::User(&long)).unwrap_err().message;
        assert!(why.contains("64 at most"), "{why}");
        for (path, good, bad) in [(dir.clone(), 0o700, 0o750), (dir.join("ca.key"), 0o600, 0o640)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(bad)).unwrap();
            let why = Authority::open(&dir, "f", 1).unwrap_err().message;
            assert!(why.contains(&path.display().to_string()) && why.contains("mode"), "{why}");
            fs::set_permissions(&path, fs::Permissions::from_mode(good)).unwrap();
        }
        fs::remove_file(dir.join("ca.key")).unwrap();
        assert!(Authority::open(&dir, "f", 1).unwrap_err().message.contains("ca.key: missing"));
        fs::remove_dir_all(dir).unwrap();
    }
}
