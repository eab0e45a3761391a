//! Large UDP datagrams between sockets on the gateways' host sides, in four set-ups:
//!
//! - `s0`: ESP in transport mode over IPv6 on packet links, AES-128-GCM with an ICV of 96 bits: each datagram is sealed
//!   whole and then fragmented, as Linux does;
//! - `aes-gcm-256`: the same with AES-256-GCM;
//! - `ring-256`: the same, received by an XDP link with a ring of 256 frames, with and without coalescing of fragments;
//! - `tunnel`: a tunnel of ESP in UDP, by udp links: each datagram is fragmented and then sealed, in one train.

use std::net::IpAddr;
use std::time::Duration;

use testbed::Failure;

use super::config::{Keys, worker};
use super::datagrams::{self, DatagramEnds};
use super::gateway::Gateway;
use super::meter::Cost;
use super::sample::DemoSample;
use super::site::{Site, explain, gbps, readings};
use super::topology::Side;

/// Key of `s0`, one for both directions, and salt: 16 and 4 bytes.
const S0_KEY: &str = "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b";

/// Limit of datagrams in flight: every queue of the kernel has room for their fragments.
const WINDOW: u64 = 8;
/// The same limit for a set-up in which the sender overruns a small ring.
const RING_WINDOW: u64 = 256;

/// Time for which a small ring is overrun before the measurement: by then it is exhausted, unless fragments are
/// coalesced.
const RING_WARM_UP: Duration = Duration::from_secs(3);

/// A set-up.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum FragmentsSetting {
    S0Thin,
    S0Fat,
    GcmThin,
    GcmFat,
    TunnelThin,
    TunnelFat,
    RingOn,
    RingOff,
}

impl FragmentsSetting {
    pub(super) const ALL: [Self; 8] = [
        Self::S0Thin,
        Self::S0Fat,
        Self::GcmThin,
        Self::GcmFat,
        Self::TunnelThin,
        Self::TunnelFat,
        Self::RingOn,
        Self::RingOff,
    ];

    /// Ratios: name, quantity, and the two set-ups; `None` is veth alone.
    pub(super) const RATIOS: [(&'static str, &'static str, Self, Option<Self>); 7] = [
        ("s0", "fat/thin", Self::S0Fat, Some(Self::S0Thin)),
        ("s0", "fat/veth", Self::S0Fat, None),
        ("aes-gcm-256", "fat/thin", Self::GcmFat, Some(Self::GcmThin)),
        ("aes-gcm-256", "fat/veth", Self::GcmFat, None),
        ("tunnel", "fat/thin", Self::TunnelFat, Some(Self::TunnelThin)),
        ("tunnel", "fat/veth", Self::TunnelFat, None),
        ("ring-256", "on/off", Self::RingOn, Some(Self::RingOff)),
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::S0Thin => "s0/thin",
            Self::S0Fat => "s0/fat",
            Self::GcmThin => "aes-gcm-256/thin",
            Self::GcmFat => "aes-gcm-256/fat",
            Self::TunnelThin => "tunnel/thin",
            Self::TunnelFat => "tunnel/fat",
            Self::RingOn => "ring-256/on",
            Self::RingOff => "ring-256/off",
        }
    }

    const fn is_fat(self) -> bool {
        !matches!(self, Self::S0Thin | Self::GcmThin | Self::TunnelThin)
    }

    const fn is_tunnel(self) -> bool {
        matches!(self, Self::TunnelThin | Self::TunnelFat)
    }

    /// Address of a side's socket.
    fn address(self, side: Side) -> IpAddr {
        let n = side as u16 + 1;
        if self.is_tunnel() { side.gateway().into() } else { [0xfc00, n, 0, 0, 0, 0, 0, 1].into() }
    }
}

/// The ceiling: the hosts' sockets over veth, without a gateway.
pub(super) fn veth(site: &Site) -> Result<DemoSample, Failure> {
    let [sender, receiver] = Side::BOTH.map(|side| site.topology.host(side).open());
    let [from, to] = Side::BOTH.map(|side| side.wire().into());
    let (sender, receiver, warm_up) = (&sender?, &receiver?, Duration::ZERO);
    let ends = DatagramEnds { sender, receiver, from, to, window: WINDOW, may_starve: false, warm_up };
    let sent = datagrams::builtin(ends, site.length, &site.stop, || Ok(()))?;
    Ok(DemoSample {
        gbps: gbps(sent.stream),
        arrived: Some(sent.arrived),
        changes: None,
        transactions: None,
        cost: None,
    })
}

/// One stream between sockets of the gateways' host sides.
pub(super) fn measure(site: &Site, setting: FragmentsSetting) -> Result<DemoSample, Failure> {
    let keys = Keys::random()?;
    let start = |side| {
        let config = gateway_toml(setting, side, keys.of_sides());
        Gateway::launch(&site.topology, &site.scratch, side, &config, &site.stop)
    };
    let mut gateways = [start(Side::A)?, start(Side::B)?];
    let [sender, receiver] = [gateways[0].host_side()?, gateways[1].host_side()?];
    let [from, to] = Side::BOTH.map(|side| setting.address(side));
    let (window, warm_up) = match setting {
        FragmentsSetting::RingOn | FragmentsSetting::RingOff => (RING_WINDOW, RING_WARM_UP),
        _ => (WINDOW, Duration::ZERO),
    };
    let (sender, receiver, may_starve) = (&sender, &receiver, setting == FragmentsSetting::RingOff);
    let ends = DatagramEnds { sender, receiver, from, to, window, may_starve, warm_up };
    let mut before = None;
    let begins = || readings(&gateways).map(|read| before = Some(read));
    let sent = datagrams::builtin(ends, site.length, &site.stop, begins);
    let sent = sent.map_err(|failure| explain(failure, &mut gateways))?;
    let before = before.ok_or_else(|| Failure::step("measure", "it has not begun"))?;
    let after = readings(&gateways)?;
    let cost = Some(Cost::of_gateways(&before, &after, sent.stream));
    Ok(DemoSample { gbps: gbps(sent.stream), arrived: Some(sent.arrived), changes: None, transactions: None, cost })
}

/// The file of one side's gateway.
fn gateway_toml(setting: FragmentsSetting, side: Side, keys: [&str; 2]) -> String {
    let fat = setting.is_fat();
    let mtu = if fat { "largest" } else { "link" };
    let [own, peer] = [setting.address(side), setting.address(side.other())];
    let link = match setting {
        FragmentsSetting::TunnelThin | FragmentsSetting::TunnelFat => format!(
            "kind = \"udp\"\nbind = \"{}:4500\"\n\n[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"{own}/32\"]\n\n\
             [[route]]\nto = \"{peer}/32\"\ndev = \"wan\"\n\n[[route]]\nto = \"{}/32\"\ndev = \"wan\"\n",
            side.wire(),
            side.other().wire()
        ),
        FragmentsSetting::RingOn | FragmentsSetting::RingOff if side == Side::B => format!(
            "kind = \"xdp\"\nmode = \"generic\"\nring = 256\ninterface = \"bare\"\naddresses = [\"{own}/16\"]\n"
        ),
        _ => format!("kind = \"packet\"\ninterface = \"bare\"\naddresses = [\"{own}/16\"]\n"),
    };
    let mut toml = format!("[host]\nmtu = \"{mtu}\"\n\n[[link]]\nname = \"wan\"\noffloads = {fat}\n{link}");
    if setting == FragmentsSetting::RingOff {
        toml += "\n[reassembly]\ncoalesce = \"off\"\n";
    }
    toml += &worker(side);
    for from in Side::BOTH {
        toml += &sa(setting, from, keys[from as usize]);
    }
    for (dir, from) in [("out", side), ("in", side.other())] {
        toml += &policy(setting, dir, from);
    }
    toml
}

/// Ends of the SA of packets from `from`.
fn sa_ends(setting: FragmentsSetting, from: Side) -> [IpAddr; 2] {
    let end = |side: Side| if setting.is_tunnel() { side.wire().into() } else { setting.address(side) };
    [end(from), end(from.other())]
}

fn sa(setting: FragmentsSetting, from: Side, key: &str) -> String {
    let ([src, dst], spi) = (sa_ends(setting, from), 0x1000 + from as u32);
    let is_s0 = matches!(setting, FragmentsSetting::S0Thin | FragmentsSetting::S0Fat);
    let (key, icv) = if is_s0 { (S0_KEY, 96) } else { (key, 128) };
    let mode = if setting.is_tunnel() { "tunnel" } else { "transport" };
    let encap = match setting.is_tunnel() {
        true => {
            "encap = { type = \"espinudp\", sport = 4500, dport = 4500 }\nreplay-window = 1024\nflags = [\"esn\"]\n"
        }
        false => "",
    };
    format!(
        "\n[[sa]]\nsrc = \"{src}\"\ndst = \"{dst}\"\nspi = {spi:#x}\nmode = \"{mode}\"\n\
         aead = {{ name = \"rfc4106(gcm(aes))\", key = \"0x{key}\", icv = {icv} }}\n{encap}"
    )
}

/// The policy for packets from the socket of `from` to the other socket, in one direction as seen from this gateway.
fn policy(setting: FragmentsSetting, dir: &str, from: Side) -> String {
    let ([tmpl_src, tmpl_dst], mode) =
        (sa_ends(setting, from), if setting.is_tunnel() { "tunnel" } else { "transport" });
    let [src, dst] = [setting.address(from), setting.address(from.other())];
    let len = if setting.is_tunnel() { 32 } else { 128 };
    format!(
        "\n[[policy]]\ndir = \"{dir}\"\nsrc = \"{src}/{len}\"\ndst = \"{dst}/{len}\"\n\
         tmpl = [{{ src = \"{tmpl_src}\", dst = \"{tmpl_dst}\", mode = \"{mode}\" }}]\n"
    )
}

#[cfg(test)]
mod tests {
    use config::Config;

    use super::*;

    #[test]
    fn files_of_all_settings_are_accepted() {
        let keys = ["1".repeat(72), "2".repeat(72)];
        for setting in FragmentsSetting::ALL {
            for side in Side::BOTH {
                let toml = gateway_toml(setting, side, [&keys[0], &keys[1]]);
                let config =
                    Config::from_toml(&toml, "demo.toml").unwrap_or_else(|err| panic!("{setting:?}: {err}\n{toml}"));
                assert_eq!((config.sas.len(), config.policies.len()), (2, 2));
                assert_eq!(config.sas[0].algorithm == config.sas[1].algorithm, setting.name().starts_with("s0"));
            }
        }
    }
}
