//! One ESP connection, written for fatpath and for Linux.

use std::fmt::Write;
use std::net::IpAddr;

/// The outer IPv4 addresses of the two ends (RFC 5737).
pub const OUTER_V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// The outer IPv6 addresses of the two ends (RFC 3849).
pub const OUTER_V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

/// What ESP protects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// A whole packet between networks.
    Tunnel,
    /// The payload of a packet between the two ends.
    Transport,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Transport => "transport",
        }
    }
}

/// An ESP connection with AES-256-GCM (RFC 4106), as one of its ends sees it.
#[derive(Clone, Debug)]
pub struct Esp {
    /// Tunnel or transport.
    pub mode: Mode,
    /// This end's outer address.
    pub own: IpAddr,
    /// The other end's outer address.
    pub peer: IpAddr,
    /// What is protected: prefixes on this side and on the other.
    pub inner: Vec<(String, String)>,
    /// SPI of what this end sends.
    pub spi_out: u32,
    /// SPI of what this end receives.
    pub spi_in: u32,
    /// Length of the integrity check value, in bits.
    pub icv_bits: u16,
    /// Extended sequence numbers, with a window of 1024.
    pub esn: bool,
    /// In UDP, port 4500 at both ends (RFC 3948).
    pub udp: bool,
    /// This end is a host that fatpath stands in front of: its SAs name their direction, and what it opens it forwards.
    pub behind: bool,
}

impl Esp {
    /// A connection between the ends `own` and `peer` that protects what passes between the networks of `inner`.
    ///
    /// # Panics
    /// An end is no address.
    #[must_use]
    pub fn new(mode: Mode, [own, peer]: [&str; 2], inner: &[(&str, &str)]) -> Self {
        let address = |text: &str| text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        Self {
            mode,
            own: address(own),
            peer: address(peer),
            inner: inner.iter().map(|&(own, peer)| (own.to_owned(), peer.to_owned())).collect(),
            spi_out: 0x1001,
            spi_in: 0x1002,
            icv_bits: 128,
            esn: false,
            udp: false,
            behind: false,
        }
    }

    /// The same connection as the other end sees it.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self {
            own: self.peer,
            peer: self.own,
            inner: self.inner.iter().map(|(own, peer)| (peer.clone(), own.clone())).collect(),
            spi_out: self.spi_in,
            spi_in: self.spi_out,
            behind: false,
            ..self.clone()
        }
    }

    /// The key of one direction, `0x` and 36 octets: AES-256 and the salt (RFC 4106 §8.1). It follows from the SPI.
    #[must_use]
    pub fn key(spi: u32) -> String {
        (0..36_u32).fold("0x".to_owned(), |mut key, index| {
            let _ = write!(key, "{:02x}", (spi.wrapping_mul(7) + index * 5) as u8);
            key
        })
    }

    /// The `[[sa]]` and `[[policy]]` tables of fatpath's configuration.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mode = self.mode.name();
        let mut toml = String::new();
        for (src, dst, spi) in self.states() {
            let _ = write!(
                toml,
                "[[sa]]\nsrc = \"{src}\"\ndst = \"{dst}\"\nspi = {spi:#x}\nmode = \"{mode}\"\nreqid = 1\n\
                 aead = {{ name = \"rfc4106(gcm(aes))\", key = \"{}\", icv = {} }}\n{}{}{}\n",
                Self::key(spi),
                self.icv_bits,
                match (self.behind, src == self.own) {
                    (true, true) => "dir = \"out\"\n",
                    (true, false) => "dir = \"in\"\nreplay-window = 64\n",
                    (false, _) if self.esn => "replay-window = 1024\n",
                    (false, _) => "replay-window = 64\n",
                },
                if self.esn { "flags = [\"esn\"]\n" } else { "" },
                if self.udp { "encap = { type = \"espinudp\", sport = 4500, dport = 4500 }\n" } else { "" },
            );
        }
        for (dir, src, dst, tunnel_src, tunnel_dst) in self.policies() {
            let _ = write!(
                toml,
                "[[policy]]\ndir = \"{dir}\"\nsrc = \"{src}\"\ndst = \"{dst}\"\n\
                 tmpl = [{{ src = \"{tunnel_src}\", dst = \"{tunnel_dst}\", proto = \"esp\", mode = \"{mode}\", reqid = 1 }}]\n\n",
            );
        }
        toml
    }

    /// The same for Linux: a shell script that has one `ip` do it all.
    #[must_use]
    pub fn to_ip_xfrm(&self) -> String {
        let mode = self.mode.name();
        let mut script = "ip -batch - <<END\n".to_owned();
        for (src, dst, spi) in self.states() {
            let _ = writeln!(
                script,
                "xfrm state add src {src} dst {dst} proto esp spi {spi:#x} reqid 1 mode {mode} {} \
                 aead rfc4106(gcm(aes)) {} {} {} {}",
                if self.esn { "replay-window 1024 flag esn" } else { "replay-window 32" },
                Self::key(spi),
                self.icv_bits,
                if self.udp { format!("encap espinudp 4500 4500 {}", unspecified(src)) } else { String::new() },
                self.selector(src == self.own),
            );
        }
        for (dir, src, dst, tunnel_src, tunnel_dst) in self.policies() {
            let _ = writeln!(
                script,
                "xfrm policy add dir {dir} src {src} dst {dst} \
                 tmpl src {tunnel_src} dst {tunnel_dst} proto esp reqid 1 mode {mode}",
            );
        }
        script + "END\n"
    }

    /// Source, destination and SPI of both directions.
    fn states(&self) -> [(IpAddr, IpAddr, u32); 2] {
        [(self.own, self.peer, self.spi_out), (self.peer, self.own, self.spi_in)]
    }

    /// Direction, what is selected and the ends of its template.
    fn policies(&self) -> Vec<(&'static str, &str, &str, IpAddr, IpAddr)> {
        let directions: &[&str] = match (self.mode, self.behind) {
            (Mode::Tunnel, _) => &["out", "in", "fwd"],
            (Mode::Transport, false) => &["out", "in"],
            (Mode::Transport, true) => &["out", "fwd"],
        };
        let mut policies = Vec::new();
        for (own, peer) in &self.inner {
            for &dir in directions {
                policies.push(match dir {
                    "out" => (dir, own.as_str(), peer.as_str(), self.own, self.peer),
                    _ => (dir, peer.as_str(), own.as_str(), self.peer, self.own),
                });
            }
        }
        policies
    }

    /// The selector of a Linux state: needed where the inner family is not the outer one.
    fn selector(&self, outbound: bool) -> String {
        match &self.inner[..] {
            [(own, peer)] if outbound => format!("sel src {own} dst {peer}"),
            [(own, peer)] => format!("sel src {peer} dst {own}"),
            _ => String::new(),
        }
    }
}

fn unspecified(like: IpAddr) -> &'static str {
    if like.is_ipv4() { "0.0.0.0" } else { "::" }
}
