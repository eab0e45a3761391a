//! strongSwan with its own ESP, libipsec: a TUN device and ESP in UDP, keyed by its own IKE.

use std::fs;
use std::time::Duration;

use testbed::{Daemon, Failure, Scratch, Stop, command, tool};

use super::running::{Ground, Running, Setting};
use crate::demo::machine::{missing, program};
use crate::demo::topology::Side;

/// Path of the IKE daemon on Debian.
const CHARON: &str = "/usr/lib/ipsec/charon";
/// strongSwan's plugin for ESP in user space.
const LIBIPSEC: &str = "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so";
/// Longest time until the daemon accepts commands.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Fails with the first missing program.
pub(super) fn check() -> Result<(), Failure> {
    program("swanctl", "--help", "swanctl", "apt-get install strongswan-swanctl")?;
    program("unshare", "--version", "unshare", "apt-get install util-linux")?;
    for (file, how) in [
        (CHARON, "apt-get install strongswan-charon libstrongswan-standard-plugins"),
        (LIBIPSEC, "apt-get install libcharon-extra-plugins"),
    ] {
        if !fs::exists(file).unwrap_or(false) {
            return Err(missing(file, how));
        }
    }
    Ok(())
}

/// Starts strongSwan at both ends, and initiates the tunnel from one end.
pub(super) fn start<'t>(ground: Ground<'t>, running: &mut Running<'t>) -> Result<(), Failure> {
    let Ground { topology, scratch, stop } = ground;
    let secret = tool("od", &["-An", "-N16", "-tx8", "/dev/urandom"], stop)?.split_whitespace().collect::<String>();
    for side in Side::BOTH {
        let host = topology.host(side);
        running.settings.push(Setting::address(host, format!("{}/32 dev lo", side.host()), stop)?);
        let end = End::write(side, scratch, &secret)?;
        let (name, file) = (format!("strongswan {}", side.letter()), format!("swan-{}", side.letter()));
        let run = || {
            // Two daemons would share one file in /run, so each has a separate /run.
            let mut command = command("unshare");
            command.args(["--mount", "sh", "-c", "mount -t tmpfs tmpfs /run && exec \"$0\"", CHARON]);
            command.env("STRONGSWAN_CONF", &end.conf);
            command
        };
        running.daemons.push(Daemon::start(name, &file, scratch, topology.gateway(side), run)?);
    }
    for side in Side::BOTH {
        let daemon = &mut running.daemons[side as usize];
        let end = End::at(side, scratch);
        let doing = format!("{} to take its connections", daemon.name());
        stop.wait(&doing, START_LIMIT, || {
            daemon.check()?;
            Ok(fs::exists(&end.socket).unwrap_or(false).then_some(()))
        })?;
        end.swanctl(&["--load-all", "--file", &end.connections], stop)?;
    }
    End::at(Side::A, scratch).swanctl(&["--initiate", "--child", "demo"], stop)
}

/// The files of one end.
struct End {
    conf: String,
    connections: String,
    socket: String,
}

impl End {
    fn at(side: Side, scratch: &Scratch) -> Self {
        let file = |suffix: &str| scratch.path().join(format!("swan-{}.{suffix}", side.letter())).display().to_string();
        Self { conf: file("conf"), connections: file("connections"), socket: file("vici") }
    }

    fn write(side: Side, scratch: &Scratch, secret: &str) -> Result<Self, Failure> {
        let end = Self::at(side, scratch);
        scratch.write(&format!("swan-{}.conf", side.letter()), &conf(&end.socket))?;
        scratch.write(&format!("swan-{}.connections", side.letter()), &connections(side, secret))?;
        // A daemon that was killed leaves its socket behind.
        let _ = fs::remove_file(&end.socket);
        Ok(end)
    }

    fn swanctl(&self, args: &[&str], stop: &Stop) -> Result<(), Failure> {
        let (conf, uri) = (format!("STRONGSWAN_CONF={}", self.conf), format!("unix://{}", self.socket));
        let words = [&[conf.as_str(), "swanctl"], args, &["--uri", &uri]].concat();
        tool("env", &words, stop).map(drop)
    }
}

/// strongswan.conf(5): the plugins for IKE, and libipsec in front of the kernel's ESP.
fn conf(socket: &str) -> String {
    format!(
        "charon {{
  load = random nonce openssl kdf pem pkcs1 pubkey vici kernel-libipsec kernel-netlink socket-default
  plugins {{
    vici {{ socket = unix://{socket} }}
    kernel-libipsec {{ load = yes }}
  }}
  filelog {{ stderr {{ default = 0 }} }}
}}
swanctl {{ load = random openssl pem pkcs1 pubkey }}
"
    )
}

/// swanctl.conf(5): one tunnel between the hosts' networks.
fn connections(side: Side, secret: &str) -> String {
    let other = side.other();
    format!(
        "connections {{
  demo {{
    version = 2
    local_addrs = {}
    remote_addrs = {}
    proposals = aes256gcm16-prfsha256-ecp256
    local {{
      auth = psk
      id = {}
    }}
    remote {{
      auth = psk
      id = {}
    }}
    children {{
      demo {{
        local_ts = {}
        remote_ts = {}
        esp_proposals = aes256gcm16
      }}
    }}
  }}
}}
secrets {{
  ike-demo {{
    secret = {secret}
  }}
}}
",
        side.wire(),
        other.wire(),
        side.wire(),
        other.wire(),
        side.network(),
        other.network()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_ends_fit_each_other() {
        let [a, b] = Side::BOTH.map(|side| connections(side, "s3"));
        for (local, remote) in [("local_addrs", "remote_addrs"), ("local_ts", "remote_ts")] {
            let of = |text: &str, key: &str| {
                let line = text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(" = "));
                line.map(str::to_owned)
            };
            assert!(of(&a, local).is_some());
            assert_eq!((of(&a, local), of(&a, remote)), (of(&b, remote), of(&b, local)));
        }
    }
}
