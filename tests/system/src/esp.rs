//! One ESP connection, written for fatpath and for Linux.

use std::fmt::Write;
use std::net::IpAddr;

/// The outer IPv4 addresses of the two ends (RFC 5737).
pub const OUTER_V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// The outer IPv6 addresses of the two ends (RFC 3849).
pub const OUTER_V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

/// Part of a packet that ESP protects.
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

/// Algorithms, by the names that both ends take, with the lengths of the keys in octets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Suite {
    /// An AEAD algorithm.
    Aead {
        /// Name of the algorithm.
        name: &'static str,
        /// Length of its key with the salt.
        key_len: u32,
        /// Length of the integrity check value, in bits.
        icv_bits: u16,
    },
    /// A cipher and an authentication algorithm.
    Separate {
        /// The cipher's name and its key's length.
        enc: (&'static str, u32),
        /// Name of the authentication algorithm, and its key's length.
        auth: (&'static str, u32),
        /// Length of the integrity check value in bits, if it is not Linux's default.
        trunc_bits: Option<u16>,
    },
}

impl Suite {
    /// AES-256-GCM (RFC 4106).
    pub const GCM: Self = Self::gcm(36, 128);

    /// AES-GCM with a key of `key_len` octets, salt included.
    #[must_use]
    pub const fn gcm(key_len: u32, icv_bits: u16) -> Self {
        Self::Aead { name: "rfc4106(gcm(aes))", key_len, icv_bits }
    }

    fn to_toml(self, spi: u32) -> String {
        match self {
            Self::Aead { name, key_len, icv_bits } => {
                format!("aead = {{ name = \"{name}\", key = \"{}\", icv = {icv_bits} }}\n", Esp::key(spi, key_len))
            }
            Self::Separate { enc: (enc, enc_len), auth: (auth, auth_len), trunc_bits } => {
                let (key, auth_key) = (Esp::key(spi, enc_len), Esp::key(!spi, auth_len));
                let auth = match trunc_bits {
                    Some(bits) => format!("auth-trunc = {{ name = \"{auth}\", key = \"{auth_key}\", icv = {bits} }}\n"),
                    None => format!("auth = {{ name = \"{auth}\", key = \"{auth_key}\" }}\n"),
                };
                format!("enc = {{ name = \"{enc}\", key = \"{key}\" }}\n{auth}")
            }
        }
    }

    fn to_ip_xfrm(self, spi: u32) -> String {
        match self {
            Self::Aead { name, key_len, icv_bits } => format!("aead {name} {} {icv_bits}", Esp::key(spi, key_len)),
            Self::Separate { enc: (enc, enc_len), auth: (auth, auth_len), trunc_bits } => {
                // A batch's line has empty words only in quotes.
                let key = if enc_len == 0 { "\"\"".to_owned() } else { Esp::key(spi, enc_len) };
                let auth_key = Esp::key(!spi, auth_len);
                match trunc_bits {
                    Some(bits) => format!("enc {enc} {key} auth-trunc {auth} {auth_key} {bits}"),
                    None => format!("enc {enc} {key} auth {auth} {auth_key}"),
                }
            }
        }
    }
}

/// An ESP connection from the point of view of one end.
#[derive(Clone, Debug)]
pub struct Esp {
    /// Tunnel or transport.
    pub mode: Mode,
    /// This end's outer address.
    pub own: IpAddr,
    /// The other end's outer address.
    pub peer: IpAddr,
    /// Protected traffic: prefixes on this side and on the other.
    pub inner: Vec<(String, String)>,
    /// SPI of packets that this end sends.
    pub spi_out: u32,
    /// SPI of packets that this end receives.
    pub spi_in: u32,
    /// Algorithms of the SAs.
    pub suite: Suite,
    /// Extended sequence numbers.
    pub esn: bool,
    /// Size of the replay window in packets.
    pub window: u32,
    /// Last sequence number before the first packet of both directions, of less than 33 bits.
    pub start: u32,
    /// Encapsulation in UDP, port 4500 at both ends (RFC 3948).
    pub udp: bool,
    /// Whether this end is a gateway for hosts behind it: its SAs have a direction, and decrypted packets are
    /// forwarded.
    pub behind: bool,
}

impl Esp {
    /// A connection between the ends `own` and `peer` that protects packets between the networks of `inner`.
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
            suite: Suite::GCM,
            esn: false,
            window: 32,
            start: 0,
            udp: false,
            behind: false,
        }
    }

    /// The same connection from the point of view of the other end.
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

    /// A key of one direction: `0x` and `len` octets. It follows from the SPI.
    #[must_use]
    pub fn key(spi: u32, len: u32) -> String {
        (0..len).fold("0x".to_owned(), |mut key, index| {
            let _ = write!(key, "{:02x}", spi.wrapping_mul(7).wrapping_add(index * 5) as u8);
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
                "[[sa]]\nsrc = \"{src}\"\ndst = \"{dst}\"\nspi = {spi:#x}\nmode = \"{mode}\"\nreqid = 1\n{}{}{}{}{}\n",
                self.suite.to_toml(spi),
                match (self.behind, src == self.own) {
                    (true, true) => "dir = \"out\"\n".to_owned(),
                    (true, false) => format!("dir = \"in\"\nreplay-window = {}\n", self.window),
                    (false, _) => format!("replay-window = {}\n", self.window),
                },
                match self.start {
                    0 => String::new(),
                    start if src == self.own => format!("replay-oseq = {start}\n"),
                    start => format!("replay-seq = {start}\n"),
                },
                match (self.esn, self.is_mixed()) {
                    (true, true) => "flags = [\"esn\", \"af-unspec\"]\n",
                    (true, false) => "flags = [\"esn\"]\n",
                    (false, true) => "flags = [\"af-unspec\"]\n",
                    (false, false) => "",
                },
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

    /// The same for Linux: a shell script with one call of `ip`.
    #[must_use]
    pub fn to_ip_xfrm(&self) -> String {
        let mode = self.mode.name();
        let mut script = "ip -batch - <<END\n".to_owned();
        for (src, dst, spi) in self.states() {
            let _ = writeln!(
                script,
                "xfrm state add src {src} dst {dst} proto esp spi {spi:#x} reqid 1 mode {mode} \
                 replay-window {} {} {} {} {} {}",
                self.window,
                match self.start {
                    0 => String::new(),
                    start if src == self.own => format!("replay-oseq {start}"),
                    start => format!("replay-seq {start}"),
                },
                if self.esn { "flag esn" } else { "" },
                self.suite.to_ip_xfrm(spi),
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

    /// Tells whether the inner family differs from the outer one.
    fn is_mixed(&self) -> bool {
        self.inner.iter().any(|(own, _)| own.contains(':') == self.own.is_ipv4())
    }

    /// Source, destination and SPI of both directions.
    fn states(&self) -> [(IpAddr, IpAddr, u32); 2] {
        [(self.own, self.peer, self.spi_out), (self.peer, self.own, self.spi_in)]
    }

    /// Direction, selectors and the ends of the template of each policy.
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
