//! IKEv2 with a Linux kernel: strongSwan on it, over its own IPsec, and strongSwan on fatpath.
//!
//! ```text
//!  host ── tun0 ── fatpath with charon ── eth0 ── Linux with charon
//! ```

use std::fs;
use std::time::Duration;

use interop::Uml;
use libtest_mimic::Trial;
use system::{
    Auth, Charon, CharonFiles, Gateway, Need, Netns, Outcome, PING_SIZES, Scratch, outer_v6, ping_script,
    strongswan_example, trial, wait_until,
};

use crate::scenario::{stream_to_host, stream_to_peer};

const NEEDS: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::UML,
    Need::MODPROBE,
    Need::PING,
    Need::FPING,
    Need::SWANCTL,
    Need::CHARON,
    Need::CHARON_OPENSSL,
    Need::PKI,
];

const HOST: &str = "10.1.0.1";
const PEER: &str = "10.2.0.1";

/// Longest time that an exchange of IKE may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// End that initiates.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Initiator {
    Fatpath,
    Linux,
}

/// Link of fatpath towards Linux.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wan {
    /// A UDP socket of the host.
    Udp,
    /// An exclusive interface, for raw ESP.
    Interface,
}

/// One kind of connection.
#[derive(Clone, Copy, Debug)]
struct Kind {
    auth: Auth,
    wan: Wan,
    /// Whether the outer addresses are IPv6.
    v6: bool,
    initiator: Initiator,
}

const UDP: Kind = Kind { auth: Auth::Psk, wan: Wan::Udp, v6: false, initiator: Initiator::Fatpath };
const RAW: Kind = Kind { wan: Wan::Interface, ..UDP };

pub(crate) fn trials() -> Vec<Trial> {
    let from_linux = |kind| Kind { initiator: Initiator::Linux, ..kind };
    let certificates = Kind { auth: Auth::Certificates, ..UDP };
    [
        ("strongswan/a_packet_of_fatpath_brings_up_a_tunnel_to_linux", UDP),
        ("strongswan/a_packet_of_linux_brings_up_a_tunnel_to_fatpath", from_linux(UDP)),
        ("strongswan/fatpath_initiates_to_linux_with_certificates", certificates),
        ("strongswan/linux_initiates_to_fatpath_with_certificates", from_linux(certificates)),
        ("strongswan/fatpath_initiates_to_linux_for_raw_esp", RAW),
        ("strongswan/linux_initiates_to_fatpath_for_raw_esp", from_linux(RAW)),
        ("strongswan/fatpath_initiates_to_linux_for_raw_esp_over_ipv6", Kind { v6: true, ..RAW }),
        ("strongswan/linux_initiates_to_fatpath_for_esp_in_udp_over_ipv6", from_linux(Kind { v6: true, ..UDP })),
    ]
    .into_iter()
    .map(|(name, kind)| trial(name, NEEDS, move || run(kind)))
    .collect()
}

/// Addresses, and the daemon as on any Linux host: it makes its own routes, and ESP is the kernel's.
const LINUX: &str = "
ip addr add 192.0.2.2/24 dev eth0
ip addr add 2001:db8::2/64 dev eth0 nodad
ip addr add 10.2.0.1/32 dev lo
export STRONGSWAN_CONF=$PWD/strongswan.conf SWANCTL_DIR=$PWD
/usr/lib/ipsec/charon >charon.log 2>&1 &
for attempt in $(seq 600); do
    [ ! -S /run/charon.vici ] || break
    sleep 0.05
done
swanctl --load-all
";

/// Both ends. Fields are dropped in this order.
struct Site {
    charon: Charon,
    gateway: Gateway,
    linux: Uml,
    host: Netns,
    scratch: Scratch,
}

impl Site {
    fn new(kind: Kind) -> Outcome<Self> {
        let own = |text: String| if kind.v6 { outer_v6(&text) } else { text };
        let scratch = Scratch::new()?;
        let host = Netns::new("near")?;
        let mut linux = Uml::boot(&host, &["eth0"])?;
        let file = match kind.wan {
            Wan::Udp => {
                host.sh("ip addr add 192.0.2.1/24 dev eth0; ip addr add 2001:db8::1/64 dev eth0 nodad")?;
                "left.toml"
            }
            Wan::Interface => {
                // The host's kernel only carries frames here.
                host.sh("echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6")?;
                "interface/left.toml"
            }
        };
        let gateway = Gateway::start(&host, &scratch, "left", &own(strongswan_example(file)?))?;
        host.sh("ip addr add 10.1.0.1/24 dev tun0; ip route add 10.2.0.0/24 dev tun0")?;

        let files = |end| match kind.wan {
            Wan::Udp => CharonFiles::new(&scratch, end, kind.auth),
            Wan::Interface => CharonFiles::on_interface(&scratch, end),
        };
        let right = files("right")?;
        right.edit("swanctl.conf", own)?;
        right.change("strongswan.conf", "install_routes = no", "install_routes = yes")?;
        for (name, content) in right.contents()? {
            linux.put(&name, &content)?;
        }
        linux.sh(LINUX)?;

        let left = files("left")?;
        left.edit("swanctl.conf", own)?;
        left.with_own_socket()?;
        let charon = Charon::start(&host, &scratch, "left", &left)?;
        Ok(Self { charon, gateway, linux, host, scratch })
    }

    /// A failure, with the logs and the states of both ends.
    fn explain(&mut self, failed: &libtest_mimic::Failed) -> libtest_mimic::Failed {
        let shown = |what| self.gateway.show(what).unwrap_or_default();
        let near = [self.charon.log(), self.gateway.log(), shown("sa"), shown("counters"), shown("drops")].join("\n");
        let far =
            self.linux.sh("tail -n +1 charon.log; ip xfrm state list nokeys; ip xfrm policy; cat /proc/net/xfrm_stat");
        let far = far.unwrap_or_else(|failed| failed.message().unwrap_or_default().to_owned());
        format!("{}\n--- fatpath\n{near}\n--- Linux\n{far}", failed.message().unwrap_or_default()).into()
    }

    /// Sends a packet from one of the ends that brings up the tunnel. The first packets wait for it, or are lost.
    fn up(&mut self, kind: Kind) -> Outcome {
        wait_until("a packet comes through", PATIENCE, || match kind.initiator {
            Initiator::Fatpath => self.host.sh(&format!("ping -c 1 -W 1 {PEER}")).is_ok(),
            Initiator::Linux => self.linux.sh(&format!("ping -c 1 -W 1 {HOST}")).is_ok(),
        })?;
        let linux = if kind.v6 { "2001:db8::2" } else { "192.0.2.2" };
        let line = match kind.initiator {
            Initiator::Fatpath => format!("initiating IKE_SA net[1] to {linux}"),
            Initiator::Linux => format!("{linux} is initiating an IKE_SA"),
        };
        if self.charon.log().contains(&line) { Ok(()) } else { Err(format!("not in the log: {line}").into()) }
    }

    fn traffic(&mut self) -> Outcome {
        // The first packet of the link's MTU gives the host the tunnel's MTU by an ICMP error, and may be lost (RFC
        // 1191).
        let _ = self.host.sh(&ping_script(PEER.parse()?, &[1410]));
        self.host.sh(&ping_script(PEER.parse()?, PING_SIZES))?;
        self.linux.sh(&ping_script(HOST.parse()?, &[0, 1400, 1473, 9000]))?;
        stream_to_host(&self.host, &mut self.linux, HOST.parse()?)?;
        stream_to_peer(&self.host, &mut self.linux, HOST.parse()?)
    }

    /// Rekeys a few times at either end while packets are in flight.
    fn rekey(&mut self) -> Outcome {
        fs::write(self.scratch.file("rekeying"), "")?;
        // Not ping: it waits for the last answer no longer than twice as long as for any other.
        let round = format!("fping -q -c 50 -p 10 -t 3000 {PEER}");
        let rounds = format!("while [ -e rekeying ]; do {round} 2>round; grep -q ' 50/50/0%' round || exit 1; done");
        let mut pings = self.host.command("sh");
        let mut pings = pings.args(["-c", &rounds]).current_dir(self.scratch.path()).spawn()?;
        let rekeyed = (1..=4).try_for_each(|number| self.rekey_once(number));
        fs::remove_file(self.scratch.file("rekeying"))?;
        let all_came = pings.wait()?.success();
        rekeyed?;
        if all_came { Ok(()) } else { Err(fs::read_to_string(self.scratch.file("round"))?.into()) }
    }

    /// One rekeying, initiated by each end in turn.
    fn rekey_once(&mut self, number: u32) -> Outcome {
        let words = ["--rekey", "--child", "net"];
        match number % 2 {
            1 => self.charon.swanctl(&words)?,
            _ => self.linux.sh(&format!("swanctl {}", words.join(" ")))?,
        };
        wait_until("Linux has new keys", PATIENCE, || {
            let made = self.linux.sh("grep -c 'inbound CHILD_SA net{.*} established' charon.log");
            made.is_ok_and(|made| made.trim() == number.to_string())
        })?;
        // The old SAs are deleted in the meantime.
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    }

    fn has_two_sas(&mut self, wan: Wan) -> Outcome {
        let linux = self.linux.sh("ip xfrm state list nokeys")?;
        let fatpath = self.gateway.show("sa")?;
        for states in [&linux, &fatpath] {
            let encap = states.matches("encap type espinudp sport 4500 dport 4500").count();
            if encap != if wan == Wan::Udp { 2 } else { 0 } || states.matches("rfc4106(gcm(aes))").count() != 2 {
                return Err(format!("not two SAs:\n{linux}\n{fatpath}").into());
            }
        }
        Ok(())
    }

    /// Error counters of IPsec in Linux. A packet that waited for the first SA, or was dropped without one, is counted.
    fn errors(&mut self) -> Outcome<String> {
        self.linux.sh("cat /proc/net/xfrm_stat")
    }
}

fn run(kind: Kind) -> Outcome {
    let mut site = Site::new(kind)?;
    let mut all = || {
        site.up(kind)?;
        site.has_two_sas(kind.wan)?;
        let errors = site.errors()?;
        site.traffic()?;
        site.rekey()?;
        site.traffic()?;
        let now = site.errors()?;
        if now == errors { Ok(()) } else { Err(format!("Linux counted errors:\n{errors}\nand now:\n{now}").into()) }
    };
    all().map_err(|failed| site.explain(&failed))
}
