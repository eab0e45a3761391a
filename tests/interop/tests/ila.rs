//! ILA against a Linux kernel: two hosts in SIR space, one behind a gateway and one behind a Linux router, each of which translates what
//! it sends to the other.

use std::net::IpAddr;

use interop::Uml;
use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, PING_SIZES, Scratch, ping_script, transfer, trial, veth, wait_until};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::UML, Need::MODPROBE, Need::PING];

/// Host `a` is fd01::2 and travels as fd11::2; host `b` is fd02::2 and travels as fd12::2, or as other addresses of these locators.
const A: &str = "fd01::2";
const B: &str = "fd02::2";

/// Bytes of each TCP transfer.
const STREAM_LEN: usize = 1 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("fatpath/ila_translates_as_linux_in_each_mode", NEEDS, each_mode)]
}

/// The gateway in front of `a`, with mappings of that mode.
fn gateway(mode: &str) -> String {
    let link = |name: &str, addr: &str| {
        format!(
            "[[link]]\nname = \"{name}\"\nkind = \"packet\"\ninterface = \"{name}\"\naddresses = [\"{addr}/64\"]\n\n"
        )
    };
    let mapping = |from: &str, to: &str, dev: &str| {
        format!(
            "[[ila]]\nloc_match = \"{from}:0:0:0\"\nloc = \"{to}:0:0:0\"\ndev = \"{dev}\"\ncsum-mode = \"{mode}\"\n\n"
        )
    };
    let links = link("lan0", "fd01::1") + &link("wan0", "fd99::1");
    let route = "[[route]]\nto = \"fd12::/64\"\nvia = \"fd99::2\"\n\n";
    format!("{links}{route}{}{}", mapping("fd02", "fd12", "lan0"), mapping("fd11", "fd01", "wan0"))
}

/// The router in front of `b`: eth0 leads there, eth1 to the gateway.
const LINUX: &str = "
/run/modprobe ila
for scope in all default eth0 eth1; do echo 0 >/proc/sys/net/ipv6/conf/$scope/accept_dad; done
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
ip addr add fd02::1/64 dev eth0 nodad
ip addr add fd99::2/64 dev eth1 nodad
ip link set eth0 up
ip link set eth1 up
ip route add fd11::/64 via fd99::1 dev eth1
";

/// Lines that give the router mappings of that mode.
fn mappings(mode: &str) -> String {
    format!(
        "ip ila add loc_match fd01:0:0:0 loc fd11:0:0:0 csum-mode {mode} dev eth0
        ip ila add loc_match fd12:0:0:0 loc fd02:0:0:0 csum-mode {mode} dev eth1"
    )
}

const NO_MAPPINGS: &str = "ip ila del loc_match fd01:0:0:0 dev eth0; ip ila del loc_match fd12:0:0:0 dev eth1";

fn each_mode() -> Outcome {
    let (scratch, a, near) = (Scratch::new()?, Netns::new("a")?, Netns::new("near")?);
    // The kernel of `near` is host `b`, and leaves the gateway's interfaces to the gateway.
    veth((&a, "eth0"), (&near, "lan0"))?;
    a.sh("ip addr add fd01::2/64 dev eth0 nodad; ip route add default via fd01::1")?;
    let mut linux = Uml::boot(&near, &["far0", "wan0"])?;
    near.sh("for name in lan0 wan0; do echo 1 >/proc/sys/net/ipv6/conf/$name/disable_ipv6; done
        ip addr add fd02::2/64 dev far0 nodad; ip route add default via fd02::1")?;
    linux.sh(LINUX)?;
    let gateway_of = |mode: &str| Gateway::start(&near, &scratch, "near", &gateway(mode));
    let mut running = gateway_of("no-action")?;
    let (to_a, to_b): (IpAddr, IpAddr) = (A.parse()?, B.parse()?);
    for mode in ["no-action", "neutral-map-auto", "adj-transport"] {
        linux.sh(&mappings(mode))?;
        running.reload(&gateway(mode))?;
        running.wait_until("it has the mappings", |it| {
            it.show("ila").is_ok_and(|shown| shown.matches(&format!(" {mode} ")).count() == 2)
        })?;
        wait_until("packets pass", std::time::Duration::from_secs(20), || {
            a.sh(&format!("ping -n -q -c 1 -W 1 {B}")).is_ok()
        })
        .map_err(|failed| explain(&failed, &running, mode))?;
        // What has an extension header adj-transport leaves alone, at both ends.
        let sizes: &[u16] = if mode == "adj-transport" { &[0, 56, 1400] } else { PING_SIZES };
        a.sh(&ping_script(to_b, sizes)).map_err(|failed| explain(&failed, &running, mode))?;
        near.sh(&ping_script(to_a, sizes)).map_err(|failed| explain(&failed, &running, mode))?;
        transfer(&a, (&near, to_b), STREAM_LEN).map_err(|failed| explain(&failed, &running, mode))?;
        transfer(&near, (&a, to_a), STREAM_LEN).map_err(|failed| explain(&failed, &running, mode))?;
        linux.sh(NO_MAPPINGS)?;
    }
    Ok(())
}

fn explain(failed: &libtest_mimic::Failed, gateway: &Gateway, mode: &str) -> libtest_mimic::Failed {
    let shown = ["counters", "drops", "ila"].map(|what| gateway.show(what).unwrap_or_default()).concat();
    format!("{mode}: {}\n{shown}\n{}", failed.message().unwrap_or_default(), gateway.log()).into()
}
