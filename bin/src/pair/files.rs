//! Files of a pair: `NAME.toml`, and `NAME.ike` with the keys of IKE and the files of strongSwan.
//!
//! | file | |
//! |---|---|
//! | `NAME.toml` | the gateway |
//! | `NAME.ike/line` | this end's own line |
//! | `NAME.ike/peer` | the peer's line |
//! | `NAME.ike/private/own.pem` | this end's private key |
//! | `NAME.ike/pubkey/own.pem`, `peer.pem` | public keys |
//! | `NAME.ike/swanctl.conf`, `strongswan.conf` | the connection, and the daemon's settings |

use std::env;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::Prefix;
use client::{CliError, own_socket_path};

use super::keys;
use super::line::PairLine;

/// Environment variable of the directory of configuration files.
pub(crate) const CONF_DIR: &str = "FATPATH_CONFDIR";

/// Directory of the files that `pair` writes and `up` reads: `FATPATH_CONFDIR`, or `/etc/fatpath` for root, or a directory of
/// the user.
///
/// # Errors
/// A user without a home.
pub(crate) fn conf_dir() -> Result<PathBuf, CliError> {
    let variable = |name| env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(dir) = variable(CONF_DIR) {
        return Ok(dir);
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/etc/fatpath"));
    }
    let base = variable("XDG_CONFIG_HOME").filter(|dir| dir.is_absolute());
    let base = base.or_else(|| variable("HOME").map(|home| home.join(".config")));
    base.map(|base| base.join("fatpath")).ok_or_else(|| CliError::failed(format!("{CONF_DIR} and HOME are not set.")))
}

/// Socket of the IKE daemon of the gateway `name`, by which swanctl(8) configures it: `NAME.vici` in the run directory.
pub(crate) fn vici_socket(name: &str) -> PathBuf {
    own_socket_path(name).with_extension("vici")
}

/// Files of the gateway `name`.
#[derive(Clone, Debug)]
pub(crate) struct PairFiles {
    dir: PathBuf,
    name: String,
}

impl PairFiles {
    /// The files, which need not exist.
    ///
    /// # Errors
    /// As [`conf_dir`].
    pub(crate) fn of(name: &str) -> Result<Self, CliError> {
        Ok(Self { dir: conf_dir()?, name: name.to_owned() })
    }

    /// File of the gateway.
    pub(crate) fn toml(&self) -> PathBuf {
        self.dir.join(format!("{}.toml", self.name))
    }

    /// Directory with the files of IKE.
    pub(crate) fn ike(&self) -> PathBuf {
        self.dir.join(format!("{}.ike", self.name))
    }

    /// This end's line, if there is one.
    ///
    /// # Errors
    /// The file is unreadable or damaged.
    pub(super) fn own_line(&self) -> Result<Option<PairLine>, CliError> {
        read_line(&self.ike().join("line"))
    }

    /// The peer's line, if this pair has one.
    ///
    /// # Errors
    /// As [`own_line`](Self::own_line).
    pub(super) fn peer_line(&self) -> Result<Option<PairLine>, CliError> {
        read_line(&self.ike().join("peer"))
    }

    /// Names of other pairs here with their files.
    pub(super) fn others(&self) -> Vec<(String, Self)> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".ike")?.to_owned()));
        let others = names.filter(|name| *name != self.name);
        others.map(|name| (name.clone(), Self { dir: self.dir.clone(), name })).collect()
    }

    /// Makes the key and the line of this end. All files appear at once.
    ///
    /// # Errors
    /// They cannot be written; nothing is left.
    pub(super) fn create(&self, line: &PairLine, private: &str) -> Result<(), CliError> {
        make_dir(&self.dir, true)?;
        let new = self.dir.join(format!(".{}.ike.new", self.name));
        // Left by a call that was killed.
        let _ = fs::remove_dir_all(&new);
        let made = (|| {
            make_dir(&new, false)?;
            for dir in ["private", "pubkey"] {
                make_dir(&new.join(dir), false)?;
            }
            write(&new.join("private/own.pem"), private)?;
            write(&new.join("pubkey/own.pem"), &keys::public_pem(&line.key))?;
            write(&new.join("line"), &format!("{line}\n"))?;
            fs::rename(&new, self.ike()).map_err(|err| failed(&self.ike(), &err))
        })();
        made.inspect_err(|_| {
            let _ = fs::remove_dir_all(&new);
        })
    }

    /// Checks that a gateway could run with both lines, and changes nothing.
    ///
    /// # Errors
    /// The file of the gateway would be wrong.
    pub(super) fn check(&self, own: &PairLine, peer: &PairLine, addresses: &[IpAddr]) -> Result<(), CliError> {
        let trial = env::temp_dir().join(format!("fatpath-pair-{}.toml", std::process::id()));
        write(&trial, &self.gateway_toml(own, peer, addresses))?;
        let checked = daemon::check(std::slice::from_ref(&trial));
        let _ = fs::remove_file(&trial);
        // The file has another name for its user.
        checked.map(drop).map_err(|err| {
            let text = err.messages().replace(&trial.display().to_string(), &format!("{}.toml", self.name));
            CliError::failed(text.lines().next().unwrap_or_default().trim_start_matches("Error: ").to_owned())
        })
    }

    /// Whether the peer's files are there.
    pub(super) fn is_joined(&self) -> bool {
        self.ike().join("peer").exists() && self.toml().exists()
    }

    /// Writes the files that name the peer, [checked](Self::check) before. The file of the gateway appears last: without it, those
    /// before it are of a call that was killed.
    ///
    /// # Errors
    /// They cannot be written; nothing of the peer is left.
    pub(super) fn add_peer(&self, own: &PairLine, peer: &PairLine, addresses: &[IpAddr]) -> Result<(), CliError> {
        let ike = self.ike();
        let files = [
            ("pubkey/peer.pem", keys::public_pem(&peer.key)),
            ("swanctl.conf", self.swanctl_conf(own, peer)),
            ("strongswan.conf", self.strongswan_conf()),
            ("peer", format!("{peer}\n")),
        ];
        let new = self.dir.join(format!(".{}.new.toml", self.name));
        let remove = || {
            let _ = fs::remove_file(&new);
            for (name, _) in &files {
                let _ = fs::remove_file(ike.join(name));
            }
        };
        remove();
        let written = (|| {
            write(&new, &self.gateway_toml(own, peer, addresses))?;
            for (name, content) in &files {
                write(&ike.join(name), content)?;
            }
            // Not over a file that appeared meanwhile.
            fs::hard_link(&new, self.toml()).map_err(|err| failed(&self.toml(), &err))
        })();
        let _ = fs::remove_file(&new);
        written.inspect_err(|_| remove())
    }

    /// File of the gateway. `addresses` are this host's in its networks: the sources of its own packets to the peer's.
    fn gateway_toml(&self, own: &PairLine, peer: &PairLine, addresses: &[IpAddr]) -> String {
        let addresses: Vec<Prefix> = addresses.iter().copied().map(Prefix::host).collect();
        let addresses = match list(&addresses, "\"").as_str() {
            "" => String::new(),
            list => format!(", addresses = [{list}]"),
        };
        format!(
            "# Written by fatpath pair. It is yours from now on: fatpath changes nothing in it.\n\
             [[tunnel]]\n\
             name = \"{}\"\n\
             local = {{ address = \"{}\", nets = [{}]{addresses} }}\n\
             remote = {{ address = \"{}\", nets = [{}] }}\n\
             keys = \"ike\"\n",
            self.name,
            own.address,
            list(&own.nets, "\""),
            peer.address,
            list(&peer.nets, "\"")
        )
    }

    /// The connection, for swanctl(8).
    fn swanctl_conf(&self, own: &PairLine, peer: &PairLine) -> String {
        let name = &self.name;
        format!(
            "# swanctl.conf(5), written by fatpath pair; yours from now on. IKEv2 with raw public keys (RFC 7670).\n\
             connections {{\n  {name} {{\n    version = 2\n    mobike = no\n    encap = yes\n    dpd_delay = 10s\n\
             \x20   local_addrs = {}\n    remote_addrs = {}\n    proposals = aes256gcm16-prfsha384-ecp384\n\
             \x20   local {{\n      auth = pubkey\n      pubkeys = own.pem\n    }}\n\
             \x20   remote {{\n      auth = pubkey\n      pubkeys = peer.pem\n    }}\n\
             \x20   children {{\n      {name} {{\n        local_ts = {}\n        remote_ts = {}\n\
             \x20       esp_proposals = aes256gcm16-esn\n        start_action = trap\n        dpd_action = trap\n\
             \x20       rekey_time = 1h\n      }}\n    }}\n  }}\n}}\n",
            own.address,
            peer.address,
            list(&own.nets, ""),
            list(&peer.nets, "")
        )
    }

    /// Settings of the daemon.
    fn strongswan_conf(&self) -> String {
        let socket = vici_socket(&self.name);
        format!(
            "# strongswan.conf(5) of the daemon of this pair, written by fatpath pair; yours from now on.\n\
             charon-systemd {{\n\
             \x20 load = random nonce openssl kdf pem pkcs1 pkcs8 pubkey vici kernel-netlink socket-default\n\
             \x20 install_routes = no\n  install_virtual_ip = no\n  interfaces_ignore = {}\n\
             \x20 plugins {{\n    vici {{\n      socket = unix://{}\n    }}\n  }}\n\
             \x20 filelog {{\n    stderr {{\n      default = 1\n      # No lines for each packet, of which there is one in ten seconds.\n      enc = 0\n      net = 0\n    }}\n  }}\n  journal {{\n    default = -1\n  }}\n}}\n\n\
             swanctl {{\n  load = random openssl pem pkcs1 pkcs8 pubkey\n}}\n",
            self.name,
            socket.display()
        )
    }
}

fn list(nets: &[Prefix], quote: &str) -> String {
    nets.iter().enumerate().fold(String::new(), |mut text, (at, net)| {
        let comma = if at > 0 { ", " } else { "" };
        let _ = write!(text, "{comma}{quote}{net}{quote}");
        text
    })
}

fn read_line(path: &Path) -> Result<Option<PairLine>, CliError> {
    match fs::read_to_string(path) {
        Ok(text) => {
            PairLine::parse(&text).map(Some).map_err(|why| CliError::failed(format!("{}: {why}", path.display())))
        }
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
        Err(err) => Err(failed(path, &err)),
    }
}

fn make_dir(path: &Path, may_exist: bool) -> Result<(), CliError> {
    DirBuilder::new().mode(0o700).recursive(may_exist).create(path).map_err(|err| failed(path, &err))
}

/// Writes a file that only its user may read, which must not exist.
fn write(path: &Path, content: &str) -> Result<(), CliError> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.and_then(|mut file| {
        file.write_all(content.as_bytes())?;
        file.sync_all()
    })
    .map_err(|err| failed(path, &err))
}

fn failed(path: &Path, err: &std::io::Error) -> CliError {
    CliError::failed(format!("{}: {err}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> [PairLine; 2] {
        let line = |number: u8| PairLine {
            key: [number; 32],
            address: format!("192.0.2.{number}").parse().unwrap(),
            port: 4500,
            nets: vec![format!("10.{number}.0.0/24").parse().unwrap(), format!("fd00:{number}::/64").parse().unwrap()],
        };
        [line(1), line(2)]
    }

    #[test]
    fn file_of_the_gateway_has_few_lines_and_both_ends() {
        let files = PairFiles { dir: PathBuf::from("/nowhere"), name: "site".to_owned() };
        let [own, peer] = lines();
        let toml = files.gateway_toml(&own, &peer, &[]);
        assert!(toml.lines().count() <= 12, "{toml}");
        assert!(
            toml.contains("remote = { address = \"192.0.2.2\", nets = [\"10.2.0.0/24\", \"fd00:2::/64\"] }"),
            "{toml}"
        );
        let text = "nets = [\"10.1.0.0/24\", \"fd00:1::/64\"]";
        assert!(toml.contains(&format!("{text} }}\n")), "{toml}");
        let toml = files.gateway_toml(&own, &peer, &["10.1.0.7", "fd00:1::7"].map(|own| own.parse().unwrap()));
        assert!(toml.contains(&format!("{text}, addresses = [\"10.1.0.7/32\", \"fd00:1::7/128\"] }}\n")), "{toml}");
        let swanctl = files.swanctl_conf(&own, &peer);
        assert!(swanctl.contains("local_ts = 10.1.0.0/24, fd00:1::/64"), "{swanctl}");
        assert_eq!(swanctl.matches('{').count(), swanctl.matches('}').count());
    }
}
