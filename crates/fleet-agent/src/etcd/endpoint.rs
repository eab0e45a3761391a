//! Address of a member.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::tls::TlsFiles;

/// Address of a member: `https://HOST:PORT` with the files of TLS, or `http://HOST:PORT`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
    /// Files of TLS; `None` for plain text.
    tls: Option<Arc<TlsFiles>>,
}

/// Error: the text is no address of a member, or does not fit the files of TLS.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct BadEndpoint(String);

impl Endpoint {
    /// Parses an address. `https://` needs the files of TLS, and `http://` takes none.
    ///
    /// # Errors
    /// The text is no address, or its scheme does not fit the files.
    pub(crate) fn parse(text: &str, tls: Option<&Arc<TlsFiles>>) -> Result<Self, BadEndpoint> {
        let bad = |why: &str| BadEndpoint(format!("Invalid address of a member {text:?}: {why}"));
        let form = || bad("https://HOST:PORT, or http://HOST:PORT");
        let (rest, tls) = match (text.strip_prefix("https://"), text.strip_prefix("http://"), tls) {
            (Some(rest), _, Some(files)) => (rest, Some(Arc::clone(files))),
            (Some(_), _, None) => return Err(bad("https:// needs cacert, the certificate of the members' CA")),
            (None, Some(rest), None) => (rest, None),
            (None, Some(_), Some(_)) => return Err(bad("cacert, cert and key are for https:// alone")),
            (None, None, _) => return Err(form()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or_else(form)?;
        let port = port.parse().map_err(|_| form())?;
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) if inner.parse::<Ipv6Addr>().is_ok() => inner,
            None if !host.is_empty() && host.bytes().all(is_of_name) => host,
            _ => return Err(form()),
        };
        Ok(Self { host: host.to_owned(), port, tls })
    }

    /// The same member by other files, if it is reached by TLS.
    pub(crate) fn with_files(&self, files: &Arc<TlsFiles>) -> Self {
        Self { tls: self.tls.as_ref().map(|_| Arc::clone(files)), ..self.clone() }
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Files of TLS; `None` for plain text.
    pub(crate) const fn tls(&self) -> Option<&Arc<TlsFiles>> {
        self.tls.as_ref()
    }

    /// Scheme of its URLs.
    pub(crate) const fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Whether the member is on this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|addr| addr.is_loopback())
    }

    /// Host and port, as an HTTP header has them.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority())
    }
}

impl fmt::Display for BadEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_a_member_is_read() {
        let files = Arc::new(TlsFiles::new("ca.pem".into(), None));
        for (text, host, port, authority, is_loopback) in [
            ("http://10.0.0.1:2379", "10.0.0.1", 2379, "10.0.0.1:2379", false),
            ("http://etcd-1.example:2379/", "etcd-1.example", 2379, "etcd-1.example:2379", false),
            ("http://[fd00::1]:2379", "fd00::1", 2379, "[fd00::1]:2379", false),
            ("http://127.0.0.2:2379", "127.0.0.2", 2379, "127.0.0.2:2379", true),
            ("http://[::1]:2379", "::1", 2379, "[::1]:2379", true),
            ("http://localhost:2379", "localhost", 2379, "localhost:2379", true),
        ] {
            let endpoint = Endpoint::parse(text, None).unwrap();
            assert_eq!((endpoint.host(), endpoint.port(), endpoint.authority()), (host, port, authority.to_owned()));
            assert_eq!(endpoint.is_loopback(), is_loopback, "{text}");
            let encrypted = Endpoint::parse(&text.replace("http", "https"), Some(&files)).unwrap();
            assert_eq!((encrypted.host(), encrypted.to_string()), (host, format!("https://{authority}")));
        }
        for text in [
            "",
            "10.0.0.1:2379",
            "http://10.0.0.1",
            "http://:2379",
            "http://a b:1",
            "http://[x]:1",
            "http://fd00::1:2379",
            "http://a:99999",
            "https://10.0.0.1:2379",
        ] {
            assert!(Endpoint::parse(text, None).is_err(), "{text}");
        }
        assert!(Endpoint::parse("http://10.0.0.1:2379", Some(&files)).is_err());
    }
}
