//! Address of a member.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// Address of a member: `http://HOST:PORT`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
}

/// Error: the text is no address of a member.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct BadEndpoint(String);

impl Endpoint {
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Host and port, as an HTTP header has them.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = || BadEndpoint(text.to_owned());
        let rest = text.strip_prefix("http://").ok_or_else(bad)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().map_err(|_| bad())?;
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) if inner.parse::<Ipv6Addr>().is_ok() => inner,
            None if !host.is_empty() && host.bytes().all(is_of_name) => host,
            _ => return Err(bad()),
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority())
    }
}

impl fmt::Display for BadEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Invalid address of a member {:?}: http://HOST:PORT", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_a_member_is_read() {
        for (text, host, port, authority) in [
            ("http://10.0.0.1:2379", "10.0.0.1", 2379, "10.0.0.1:2379"),
            ("http://etcd-1.example:2379/", "etcd-1.example", 2379, "etcd-1.example:2379"),
            ("http://[fd00::1]:2379", "fd00::1", 2379, "[fd00::1]:2379"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.host(), endpoint.port(), endpoint.authority()), (host, port, authority.to_owned()));
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
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
