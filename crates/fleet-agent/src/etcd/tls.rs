//! TLS to a member: the files of certificates, which are read for each connection, so that renewed ones need no restart.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use time::OffsetDateTime;

use super::subject::common_name;

/// Largest file of certificates.
const MAX_FILE: u64 = 1 << 20;

/// Files of TLS, in PEM.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct TlsFiles {
    /// Certificates of the members' CA.
    cacert: PathBuf,
    /// Certificate of this program, and its key.
    pair: Option<CertFiles>,
}

/// Files of a certificate and its key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct CertFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// Contents of the files, for one connection.
#[derive(Debug)]
pub(super) struct ClientTls {
    pub(super) config: Arc<ClientConfig>,
    /// Common name of this program's certificate: the user for etcd.
    pub(super) user: Option<String>,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl TlsFiles {
    pub(crate) const fn new(cacert: PathBuf, pair: Option<CertFiles>) -> Self {
        Self { cacert, pair }
    }

    /// Files of this program's certificate.
    pub(crate) const fn pair(&self) -> Option<&CertFiles> {
        self.pair.as_ref()
    }

    /// The same CA without a certificate of this program.
    pub(crate) fn without_pair(&self) -> Self {
        Self { cacert: self.cacert.clone(), pair: None }
    }

    /// Common name of this program's certificate.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub(crate) fn user(&self) -> Result<Option<String>, String> {
        let Some(CertFiles { cert, .. }) = &self.pair else { return Ok(None) };
        let chain = read_certificates(cert)?;
        Ok(chain.first().and_then(|cert| common_name(cert)))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// The file, and what is wrong with it: among others, a key that others may read, and a certificate that has expired.
    pub(super) fn read(&self) -> Result<ClientTls, String> {
        let provider = provider();
        let roots = Arc::new(read_roots(&self.cacert)?);
        let of_ca = |err: &dyn std::fmt::Display| format!("{}: {err}", self.cacert.display());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|err| of_ca(&err))?;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|err| err.to_string())?
            .with_webpki_verifier(verifier);
        let (mut config, user) = match &self.pair {
            None => (builder.with_no_client_auth(), None),
            Some(CertFiles { cert, key }) => {
                let chain = read_certificates(cert)?;
                check_time(&chain, roots, provider).map_err(|why| format!("{}: {why}", cert.display()))?;
                let user = chain.first().and_then(|cert| common_name(cert));
                let secret = PrivateKeyDer::from_pem_slice(&read_key(key)?);
                let secret = secret.map_err(|err| format!("{}: {err}", key.display()))?;
                let config = builder.with_client_auth_cert(chain, secret);
                let config = config.map_err(|err| format!("{} and {}: {err}", cert.display(), key.display()))?;
                (config, user)
            }
        };
        // A session of an earlier connection would have the earlier certificate.
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(ClientTls { config: Arc::new(config), user })
    }
}

/// Reads a private key, which its owner alone may read.
///
/// # Errors
/// The file cannot be read, or others may read it.
pub(crate) fn read_key(path: &Path) -> Result<Vec<u8>, String> {
    let named = |err: std::io::Error| format!("{}: {err}", path.display());
    let file = File::open(path).map_err(named)?;
    let metadata = file.metadata().map_err(named)?;
    if !metadata.is_file() {
        return Err(format!("{}: no regular file", path.display()));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let path = path.display();
        return Err(format!("{path}: Group or others may use this private key (mode {mode:04o}): `chmod 600 {path}`"));
    }
    let mut text = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut text).map_err(named)?;
    Ok(text)
}

/// Checks that a certificate was made by the CA of a file.
///
/// # Errors
/// It was not, or has expired.
pub(crate) fn check_issuer(cert: &CertificateDer<'_>, cacert: &Path) -> Result<(), String> {
    let roots = Arc::new(read_roots(cacert)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
    let verifier = verifier.map_err(|err| err.to_string())?;
    verifier.verify_client_cert(cert, &[], UnixTime::now()).map(drop).map_err(|err| tls_error(&err, "certificate"))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = fs::read(path).map_err(|err| format!("{}: {err}", path.display()))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(format!("{}: no certificate in PEM", path.display())),
        Ok(certificates) => Ok(certificates),
        Err(err) => Err(format!("{}: {err}", path.display())),
    }
}

fn read_roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|err| format!("{}: {err}", path.display()))?;
    }
    Ok(roots)
}

/// Checks the time of this program's certificates. Their CA is the member's to check: clients of a member may have another CA than the member.
fn check_time(
    chain: &[CertificateDer<'static>],
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
) -> Result<(), String> {
    let [own, intermediates @ ..] = chain else { return Ok(()) };
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
    let verifier = verifier.map_err(|err| err.to_string())?;
    match verifier.verify_client_cert(own, intermediates, UnixTime::now()) {
        Err(err) if is_about_time(&err) => Err(tls_error(&err, "the certificate")),
        _ => Ok(()),
    }
}

const fn is_about_time(err: &rustls::Error) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    let rustls::Error::InvalidCertificate(err) = err else { return false };
    matches!(err, Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. })
}

/// Text of an error about a certificate, the same one at each attempt.
pub(super) fn tls_error(err: &rustls::Error, whose: &str) -> String {
    use CertificateError::{ExpiredContext, NotValidYetContext};
    match err {
        rustls::Error::InvalidCertificate(ExpiredContext { not_after, .. }) => {
            format!("{whose} expired at {}", date(*not_after))
        }
        rustls::Error::InvalidCertificate(NotValidYetContext { not_before, .. }) => {
            format!("{whose} is not valid before {}", date(*not_before))
        }
        rustls::Error::InvalidCertificate(err) => format!("{whose} is not valid: {err}"),
        err => err.to_string(),
    }
}

/// Date and time of day.
fn date(at: UnixTime) -> String {
    let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
    let Ok(at) = OffsetDateTime::from_unix_timestamp(seconds) else { return format!("{seconds} s after 1970") };
    let (hour, minute, second) = at.time().as_hms();
    format!("{:04}-{:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", at.year(), u8::from(at.month()), at.day())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    /// Files of a CA and of a certificate by it, which is valid from so many seconds before until so many seconds after now.
    fn files(test: &str, before: i64, after: i64) -> (PathBuf, TlsFiles) {
        let dir = std::env::temp_dir().join(format!("fatpath-fleet-{test}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "f/node/a");
        params.not_before = OffsetDateTime::now_utc() - time::Duration::seconds(before);
        params.not_after = OffsetDateTime::now_utc() + time::Duration::seconds(after);
        let cert = params.self_signed(&key).unwrap();
        let pair = CertFiles { cert: dir.join("a.pem"), key: dir.join("a-key.pem") };
        fs::write(&pair.cert, cert.pem()).unwrap();
        fs::write(&pair.key, key.serialize_pem()).unwrap();
        fs::set_permissions(&pair.key, fs::Permissions::from_mode(0o600)).unwrap();
        let files = TlsFiles::new(pair.cert.clone(), Some(pair));
        (dir, files)
    }

    #[test]
    fn files_are_read_with_the_users_name() {
        let (dir, files) = files("read", 60, 60);
        assert_eq!(files.read().unwrap().user.as_deref(), Some("f/node/a"));
        assert_eq!(files.user().unwrap().as_deref(), Some("f/node/a"));
        assert_eq!(files.without_pair().read().unwrap().user, None);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn key_that_others_may_read_is_refused_by_name() {
        let (dir, files) = files("mode", 60, 60);
        let key = dir.join("a-key.pem");
        for mode in [0o640, 0o604, 0o660, 0o610] {
            fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
            let why = files.read().unwrap_err();
            assert!(why.contains("a-key.pem") && why.contains(&format!("mode {mode:04o}")), "{why}");
        }
        fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
        assert!(files.read().is_ok());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn certificate_out_of_its_time_is_named() {
        for (before, after, want) in [(60, -1, "expired at"), (-60, 120, "is not valid before")] {
            let (dir, files) = files("time", before, after);
            let why = files.read().unwrap_err();
            assert!(why.contains("a.pem") && why.contains(want) && why.ends_with(" UTC"), "{why}");
            fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    fn file_that_is_missing_or_no_pem_is_named() {
        let (dir, files) = files("missing", 60, 60);
        for name in ["a.pem", "a-key.pem"] {
            let (path, aside) = (dir.join(name), dir.join("aside"));
            fs::rename(&path, &aside).unwrap();
            assert!(files.read().unwrap_err().contains(name));
            fs::write(&path, "no PEM").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(files.read().unwrap_err().contains(name));
            fs::rename(&aside, &path).unwrap();
        }
        assert!(files.read().is_ok());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn date_is_of_the_calendar() {
        let at = |seconds| date(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)));
        assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(at(1_709_210_096), "2024-02-29 12:34:56 UTC");
    }
}
