//! The configuration files of the demo's gateways.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;

use rustix::thread::{CpuSet, sched_getaffinity};
use testbed::Failure;

use super::topology::{Deployment, Side, TUNNEL_MTU};

/// `rfc4106(gcm(aes))` with a 256-bit key: 32 bytes of key and 4 of salt (RFC 4106 §8.1).
const KEY_BYTES: usize = 36;

/// The keys of the two directions. Sequence numbers start anew with each pair of gateways, so each pair has new keys:
/// AES-GCM must never see one key and nonce twice (RFC 4106 §2).
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// Keys by sending side, in hexadecimal.
    hex: [String; 2],
}

impl Keys {
    /// Reads both keys from the kernel's random number generator.
    pub(crate) fn random() -> Result<Self, Failure> {
        let mut bytes = [0; 2 * KEY_BYTES];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut bytes))
            .map_err(|err| Failure::step("read /dev/urandom", err))?;
        Ok(Self::from_bytes(&bytes))
    }

    /// The keys in hexadecimal, by sending side.
    pub(crate) fn of_sides(&self) -> [&str; 2] {
        self.hex.each_ref().map(String::as_str)
    }

    /// The key of what a side sends, with its salt.
    pub(super) fn bytes(&self, sender: Side) -> Vec<u8> {
        let digits = self.hex[sender as usize].as_bytes().chunks(2);
        digits
            .map(|pair| pair.iter().fold(0, |byte, &digit| byte << 4 | (digit as char).to_digit(16).unwrap_or(0) as u8))
            .collect()
    }

    fn from_bytes(bytes: &[u8; 2 * KEY_BYTES]) -> Self {
        let (a, b) = bytes.split_at(KEY_BYTES);
        let hex = |key: &[u8]| key.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        Self { hex: [hex(a), hex(b)] }
    }
}

/// The file of one side's gateway: two links, a route, one SA and policies for each direction.
pub(super) fn gateway_toml(deployment: Deployment, side: Side, fat: bool, keys: &Keys) -> String {
    rest_of_toml(links(deployment, side, fat), deployment, side, keys)
}

/// Same as [`gateway_toml`] for a tunnel with the links `inner` towards the host.
pub(super) fn gateway_toml_of(inner: &str, side: Side, fat: bool, keys: &Keys) -> String {
    rest_of_toml(inner.to_owned() + &udp_link(side, fat), Deployment::Tunnel, side, keys)
}

fn rest_of_toml(mut toml: String, deployment: Deployment, side: Side, keys: &Keys) -> String {
    toml += &route(deployment, side);
    for from in Side::BOTH {
        toml += &sa(deployment, from, &keys.hex[from as usize]);
    }
    toml += &worker(side);
    toml += &policy("out", side);
    for dir in ["in", "fwd"] {
        toml += &policy(dir, side.other());
    }
    toml
}

/// A processor for each gateway's worker, on a machine with more than one: otherwise both workers may share one while
/// another is idle.
pub(crate) fn worker(side: Side) -> String {
    let ours = sched_getaffinity(None).unwrap_or_default();
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| ours.is_set(cpu)).collect();
    match all.get(side as usize) {
        Some(cpu) if all.len() > 1 => format!("\n[worker]\ncpu = {cpu}\n"),
        _ => String::new(),
    }
}

fn links(deployment: Deployment, side: Side, fat: bool) -> String {
    let (inner, wire) = (side.gateway(), side.wire());
    match deployment {
        Deployment::Tunnel => format!(
            r#"[[link]]
name = "tun0"
kind = "tun"
mtu = {TUNNEL_MTU}
addresses = ["{inner}/24"]
offloads = {fat}

{}"#,
            udp_link(side, fat)
        ),
        Deployment::Router => format!(
            r#"[[link]]
name = "lan"
kind = "packet"
interface = "lan"
addresses = ["{inner}/24"]
offloads = {fat}

[[link]]
name = "wan"
kind = "packet"
interface = "wan"
addresses = ["{wire}/24"]
offloads = {fat}
"#
        ),
    }
}

fn udp_link(side: Side, fat: bool) -> String {
    format!("[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"{}:4500\"\noffloads = {fat}\n", side.wire())
}

/// Route to the other host's network; a tunnel gateway has no network on the wire, so its peer's address needs a route
/// as well.
fn route(deployment: Deployment, side: Side) -> String {
    let (network, peer) = (side.other().network(), side.other().wire());
    match deployment {
        Deployment::Tunnel => {
            format!("\n[[route]]\nto = \"{network}\"\ndev = \"wan\"\n\n[[route]]\nto = \"{peer}/32\"\ndev = \"wan\"\n")
        }
        Deployment::Router => format!("\n[[route]]\nto = \"{network}\"\nvia = \"{peer}\"\ndev = \"wan\"\n"),
    }
}

/// The SA of the packets that `from` sends.
fn sa(deployment: Deployment, from: Side, key: &str) -> String {
    let (src, dst) = (from.wire(), from.other().wire());
    let spi = 0x1000 * (from as u32 + 1);
    let mut toml = format!(
        r#"
[[sa]]
src = "{src}"
dst = "{dst}"
spi = {spi:#x}
mode = "tunnel"
reqid = 1
aead = {{ name = "rfc4106(gcm(aes))", key = "0x{key}", icv = 128 }}
replay-window = 1024
flags = ["esn"]
"#
    );
    if deployment == Deployment::Tunnel {
        toml += "encap = { type = \"espinudp\", sport = 4500, dport = 4500 }\n";
    }
    toml
}

/// The policy for packets from the host of `from` to the other host, in one direction as seen from this gateway.
fn policy(dir: &str, from: Side) -> String {
    let (src, dst) = (from.network(), from.other().network());
    let (tmpl_src, tmpl_dst) = (from.wire(), from.other().wire());
    let mut toml = String::new();
    // Writing to a String does not fail.
    let _ = write!(
        toml,
        r#"
[[policy]]
dir = "{dir}"
src = "{src}"
dst = "{dst}"
action = "allow"
tmpl = [{{ src = "{tmpl_src}", dst = "{tmpl_dst}", proto = "esp", mode = "tunnel", reqid = 1, level = "required" }}]
"#
    );
    toml
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;
    use xfrm::{Dir, PolicyConfig};

    fn keys() -> Keys {
        Keys::from_bytes(&std::array::from_fn(|i| i as u8))
    }

    #[test]
    fn each_direction_has_its_own_key() {
        let keys = keys();
        assert_eq!(keys.hex[0].len(), 2 * KEY_BYTES);
        assert!(keys.hex[0].starts_with("000102") && keys.hex[1].starts_with("242526"), "{keys:?}");
        assert_ne!(Keys::random().unwrap().hex, Keys::random().unwrap().hex);
    }

    fn parsed(deployment: Deployment, side: Side, fat: bool) -> Config {
        Config::from_toml(&gateway_toml(deployment, side, fat, &keys()), "demo.toml").unwrap()
    }

    #[test]
    fn the_files_are_configurations_of_two_links_thin_or_fat() {
        for (deployment, kinds) in [(Deployment::Tunnel, ["tun", "udp"]), (Deployment::Router, ["packet", "packet"])] {
            for (side, fat) in [(Side::A, true), (Side::A, false), (Side::B, true), (Side::B, false)] {
                let config = parsed(deployment, side, fat);
                let words: Vec<&str> = config.links.iter().map(|link| link.kind.word()).collect();
                assert_eq!(words, kinds);
                assert_eq!(config.links[1].name, "wan");
                assert!(config.links.iter().all(|link| link.offloads == fat), "{config:?}");
            }
        }
    }

    #[test]
    fn the_two_gateways_fit_each_other() {
        for deployment in [Deployment::Tunnel, Deployment::Router] {
            let (a, b) = (parsed(deployment, Side::A, true), parsed(deployment, Side::B, true));
            assert_eq!(a.sas, b.sas);
            assert!(a.sas.iter().all(|sa| sa.encap.is_some() == (deployment == Deployment::Tunnel)), "{:?}", a.sas);
            let one = |config: &Config, dir| -> PolicyConfig {
                let found: Vec<_> = config.policies.iter().filter(|policy| policy.dir == dir).cloned().collect();
                assert_eq!(found.len(), 1, "{dir}");
                found[0].clone()
            };
            for (sender, receiver) in [(&a, &b), (&b, &a)] {
                let out = one(sender, Dir::Out);
                assert!(sender.sas.iter().any(|sa| Some(sa.src) == out.templates[0].src), "{out:?}");
                for dir in [Dir::In, Dir::Fwd] {
                    assert_eq!(one(receiver, dir), PolicyConfig { dir, ..out.clone() });
                }
            }
        }
    }
}
