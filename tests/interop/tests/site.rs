//! Site of a scenario: a host, the near gateway and the peer, a Linux kernel.
//!
//! ```text
//!  host ── lan0 ── near: Linux or fatpath ── wan0 ── peer: Linux
//! ```

use interop::Uml;
use system::{Esp, Gateway, Mode, Netns, Outcome, Scratch, veth};

/// Implementation of the near gateway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Near {
    Linux,
    Fatpath,
}

/// The protected networks, and one address in each that answers.
pub(crate) struct Inner {
    pub(crate) near_net: &'static str,
    pub(crate) near: &'static str,
    pub(crate) peer_net: &'static str,
    pub(crate) peer: &'static str,
}

pub(crate) const INNER_V4: Inner =
    Inner { near_net: "10.1.0.0/24", near: "10.1.0.2", peer_net: "10.2.0.0/24", peer: "10.2.0.1" };

pub(crate) const INNER_V6: Inner =
    Inner { near_net: "fd01::/64", near: "fd01::2", peer_net: "fd02::/64", peer: "fd02::1" };

impl Inner {
    /// The two that answer.
    pub(crate) const fn ends(&self) -> [&'static str; 2] {
        [self.near, self.peer]
    }

    /// The ends themselves, as in transport mode.
    pub(crate) const fn hosts([near, peer]: [&'static str; 2]) -> Self {
        Self { near_net: near, near, peer_net: peer, peer }
    }
}

const HOST: &str = "
    ip addr add 10.1.0.2/24 dev lan1
    ip addr add fd01::2/64 dev lan1
    ip route add default via 10.1.0.1
    ip route add default via fd01::1";

/// One call of `ip` for all: starting a program in a guest takes longer than running it. A route cannot have a
/// tentative source address.
const PEER: &str = "
ip -batch - <<END
addr add 192.0.2.2/24 dev eth0
addr add 2001:db8::2/64 dev eth0
addr add 10.2.0.1/32 dev lo
addr add fd02::1/128 dev lo nodad
route add 10.1.0.0/24 via 192.0.2.1 src 10.2.0.1
route add fd01::/64 via 2001:db8::1 src fd02::1
END
";

/// A kernel answers for an IPv6 address once it has handled the link-up event, which takes a while on a busy machine.
const SETTLED: &str = "
while ip -6 addr show tentative | grep -q inet6; do sleep 0.05; done
";

const NEAR_LINUX: &str = "
ip -batch - <<END
addr add 192.0.2.1/24 dev eth0
addr add 2001:db8::1/64 dev eth0
addr add 10.1.0.1/24 dev eth1
addr add fd01::1/64 dev eth1
route add 10.2.0.0/24 via 192.0.2.2
route add fd02::/64 via 2001:db8::2
END
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
";

/// Linux accepts ESP in UDP from a socket whose option UDP_ENCAP (100) is UDP_ENCAP_ESPINUDP (2).
const UDP_ENCAP: &str = r#"
    perl -e 'use Socket; socket(S, PF_INET, SOCK_DGRAM, 0) or die; bind(S, sockaddr_in(4500, INADDR_ANY)) or die;
        setsockopt(S, 17, 100, pack("i", 2)) or die; open(F, ">/tmp/encap"); close(F); sleep' &
    while [ ! -e /tmp/encap ]; do sleep 0.05; done
"#;

const LAN: &str = r#"
[[link]]
name = "lan0"
kind = "packet"
interface = "lan0"
addresses = ["10.1.0.1/24", "fd01::1/64"]
"#;

const WAN: &str = r#"
[[link]]
name = "wan0"
kind = "packet"
interface = "wan0"
addresses = ["192.0.2.1/24", "2001:db8::1/64"]

[[route]]
to = "10.2.0.0/24"
via = "192.0.2.2"
dev = "wan0"

[[route]]
to = "fd02::/64"
via = "2001:db8::2"
dev = "wan0"
"#;

const WAN_UDP: &str = r#"
[[link]]
name = "wan"
kind = "udp"
bind = "192.0.2.1:4500"

[[route]]
to = "192.0.2.2/32"
dev = "wan"

[[route]]
to = "10.2.0.0/24"
dev = "wan"

[[route]]
to = "fd02::/64"
dev = "wan"
"#;

enum NearEnd {
    Linux(Uml),
    Fatpath(Gateway),
}

/// The three connected nodes. Fields are dropped in this order.
pub(crate) struct Site {
    near: NearEnd,
    pub(crate) peer: Uml,
    pub(crate) host: Netns,
    _between: Netns,
    _scratch: Scratch,
}

impl Site {
    /// Builds it, with `esp` as the near end's view of the connection.
    pub(crate) fn new(near: Near, esp: &Esp) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let host = Netns::new("host")?;
        let between = Netns::new("near")?;
        veth((&host, "lan1"), (&between, "lan0"))?;
        host.sh(HOST)?;
        // The host's kernel only carries frames here.
        between.sh("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6")?;
        let mut peer = Uml::boot(&between, &["wan0"])?;
        peer.sh(&[PEER, SETTLED, if esp.udp { UDP_ENCAP } else { "" }, &esp.reversed().to_ip_xfrm()].concat())?;
        let near = match near {
            Near::Linux => NearEnd::Linux(near_linux(&between, esp)?),
            Near::Fatpath => NearEnd::Fatpath(near_fatpath(&between, &scratch, esp)?),
        };
        Ok(Self { near, peer, host, _between: between, _scratch: scratch })
    }

    /// The near end, where it is Linux.
    pub(crate) fn near_linux(&mut self) -> Outcome<&mut Uml> {
        match &mut self.near {
            NearEnd::Linux(uml) => Ok(uml),
            NearEnd::Fatpath(_) => Err("the near end is fatpath".into()),
        }
    }

    /// Fails unless the lower half of the sequence numbers has started over in both directions.
    pub(crate) fn has_wrapped(&mut self) -> Outcome {
        let NearEnd::Fatpath(gateway) = &self.near else { return Err("the near end is Linux".into()) };
        let shown = gateway.show("sa")?;
        let wrapped = ["\t seq-hi 0x1,", ", oseq-hi 0x1,"].iter().all(|half| shown.contains(half));
        if wrapped { Ok(()) } else { Err(format!("the numbers did not wrap:\n{shown}").into()) }
    }

    /// Fails if the peer has counted an IPsec error.
    pub(crate) fn peer_errors(&mut self) -> Outcome {
        let errors = self.peer.sh("awk '$2 != 0' /proc/net/xfrm_stat")?;
        if errors.is_empty() { Ok(()) } else { Err(format!("the peer counted:\n{errors}{}", self.evidence()).into()) }
    }

    /// Evidence of a failure at the near end.
    pub(crate) fn evidence(&mut self) -> String {
        let printed = match &mut self.near {
            NearEnd::Linux(uml) => uml.sh("awk '$2 != 0' /proc/net/xfrm_stat; nstat"),
            NearEnd::Fatpath(gateway) => {
                gateway.show("counters").and_then(|counters| Ok(counters + &gateway.show("drops")? + &gateway.log()))
            }
        };
        format!("\nthe near end:\n{}", printed.unwrap_or_else(|failed| format!("{failed:?}")))
    }
}

/// A second Linux kernel, joined by bridges.
fn near_linux(between: &Netns, esp: &Esp) -> Outcome<Uml> {
    let mut uml = Uml::boot(between, &["near0", "near1"])?;
    between.sh("for pair in 'wan0 near0' 'lan0 near1'; do
            set -- $pair
            ip link add br-$1 type bridge mcast_snooping 0
            ip link set br-$1 up
            ip link set $1 master br-$1
            ip link set $2 master br-$1
        done")?;
    uml.sh(&[NEAR_LINUX, SETTLED, if esp.udp { UDP_ENCAP } else { "" }, &esp.to_ip_xfrm()].concat())?;
    Ok(uml)
}

/// fatpath on the interfaces themselves; ESP in UDP goes by a socket of the host's kernel, which then has the address.
fn near_fatpath(between: &Netns, scratch: &Scratch, esp: &Esp) -> Outcome<Gateway> {
    if esp.udp {
        between.sh(&format!("ip addr add {}/24 dev wan0", esp.own))?;
    }
    let wan = if esp.udp { WAN_UDP } else { WAN };
    let toml = match esp.mode {
        Mode::Transport if !esp.behind => [wan, &esp.to_toml()].concat(),
        _ => [LAN, wan, &esp.to_toml()].concat(),
    };
    Gateway::start(between, scratch, "near", &toml)
}
