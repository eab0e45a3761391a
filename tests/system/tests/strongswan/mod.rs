//! Unmodified strongSwan with its kernel-netlink plugin: the example of `docs/strongswan.md`.

mod libreswan;
mod moves;
mod site;

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{
    Auth, Capture, CharonFiles, Manager, Need, Outcome, Process, Scratch, fatpath, lossless, run, transfer, trial,
    wait_until,
};

use site::{EXAMPLE, End, PATIENCE, Setup, Site, Wan};

const NEEDS: &[Need] =
    &[Need::Namespaces, Need::Tun, Need::PING, Need::SWANCTL, Need::CHARON, Need::CHARON_OPENSSL, Need::PKI];

const CAPTURED: &[Need] =
    &[Need::Namespaces, Need::Tun, Need::TCPDUMP, Need::SWANCTL, Need::CHARON, Need::CHARON_OPENSSL, Need::PING];

const TSHARK: &[Need] =
    &[Need::Namespaces, Need::Tun, Need::TSHARK, Need::SWANCTL, Need::CHARON, Need::CHARON_OPENSSL, Need::PING];

pub(crate) fn trials() -> Vec<Trial> {
    let mut all = vec![
        trial("strongswan/a_packet_brings_up_the_tunnel_that_it_needs", NEEDS, trap),
        trial("strongswan/ends_with_certificates_authenticate_each_other", NEEDS, certificates),
        trial("strongswan/certificate_of_an_unknown_authority_is_refused", NEEDS, foreign_certificate),
        trial("strongswan/rekeying_under_10k_packets_a_second_loses_none", NEEDS, rekey),
        trial("strongswan/rekeying_under_a_stream_drops_nothing", NEEDS, rekey_of_a_stream),
        trial("strongswan/an_interface_of_ones_own_carries_ike_and_raw_esp", NEEDS, || interface(false)),
        trial("strongswan/an_interface_of_ones_own_carries_ike_and_raw_esp_over_ipv6", NEEDS, || interface(true)),
        trial("strongswan/ike_and_esp_in_udp_pass_over_ipv6", NEEDS, udp_over_v6),
        trial("strongswan/a_policy_between_the_gateways_themselves_lets_ike_pass", CAPTURED, between_gateways),
        trial("strongswan/tshark_sees_esp_on_either_kind_of_link", TSHARK, tshark),
        trial("strongswan/without_host_side_ike_passes_by_a_socket", NEEDS, || without_host_side(Wan::Udp)),
        trial("strongswan/without_host_side_ike_of_an_interface_passes_by_a_socket", NEEDS, || {
            without_host_side(Wan::Interface)
        }),
        trial("strongswan/peer_is_notified_of_a_new_address", NEEDS, moves::address),
        trial("strongswan/a_peer_whose_nat_gives_it_another_port_is_followed", NEEDS, moves::port),
        trial("strongswan/an_sa_that_is_about_to_end_is_replaced", NEEDS, expire),
        trial("strongswan/a_peer_that_is_gone_is_noticed_and_found_again", NEEDS, dead_peer),
        trial("strongswan/routes_may_be_its_own_in_a_table_of_its_own", NEEDS, own_routes),
        trial("strongswan/it_runs_on_over_a_kill_of_the_gateway", NEEDS, || runs_on(true)),
        trial("strongswan/it_runs_on_over_a_kill_without_a_host_side", NEEDS, || runs_on(false)),
        trial("strongswan/its_sas_go_on_over_an_orderly_restart", NEEDS, sas_go_on),
        trial("strongswan/its_sas_go_on_as_the_gateway_is_replaced", NEEDS, || replaced(true)),
        trial("strongswan/gateway_without_host_side_is_replaced_beside_it", NEEDS, || replaced(false)),
        trial("strongswan/it_takes_over_policies_that_were_kept_over_a_restart", NEEDS, kept_policies),
        trial("strongswan/nothing_leaves_in_clear_when_it_ends_on_an_interface", CAPTURED, ends_without_clear_packets),
    ];
    all.extend(libreswan::trials());
    all
}

const CERTIFICATES: Setup = Setup { auth: Auth::Certificates, ..EXAMPLE };

fn trap() -> Outcome {
    let site = Site::new(&EXAMPLE)?;
    let [left, _] = &site.ends;
    let policies = site.xfrm(left, "policy")?;
    assert!(policies.contains("src 10.1.0.0/24 dst 10.2.0.0/24"), "{policies}");
    assert_eq!(site.xfrm(left, "state")?, "", "no SA is acquired yet");
    site.up()?;
    both_have_sas(&site, true)?;
    left.netns.sh("ping -c 20 -i 0.05 -W 2 10.2.0.1").map_err(|failed| site.explain(&failed))?;
    Ok(())
}

fn without_host_side(wan: Wan) -> Outcome {
    let site = Site::new(&Setup { wan, host_side: false, ..EXAMPLE })?;
    site.up()?;
    for end in &site.ends {
        assert_eq!(end.gateway.show("host")?, "host side off\n");
    }
    both_have_sas(&site, wan == Wan::Udp)
}

/// Fails unless both ends have an SA for each way, in UDP or not. Replaced SAs may still be there: they receive packets
/// in flight.
fn both_have_sas(site: &Site, in_udp: bool) -> Outcome {
    for end in &site.ends {
        let states = site.xfrm(end, "state list nokeys")?;
        let sas = states.matches("aead rfc4106(gcm(aes)) <<Keys hidden>> 128").count();
        assert!(sas >= 2, "{states}");
        let encap = states.matches("encap type espinudp sport 4500 dport 4500").count();
        assert_eq!(encap, if in_udp { sas } else { 0 }, "{states}");
    }
    Ok(())
}

fn certificates() -> Outcome {
    let site = Site::new(&CERTIFICATES)?;
    site.up()?;
    both_have_sas(&site, true)?;
    for (end, peer) in [(&site.ends[0], "right.example"), (&site.ends[1], "left.example")] {
        let sas = end.swanctl(&["--list-sas"])?;
        assert!(sas.contains(&format!("remote '{peer}' @ 192.0.2.")), "{sas}");
        assert!(end.log().contains(&format!("authentication of '{peer}' with ECDSA_WITH_SHA384_DER successful")));
    }
    site.ends[1].netns.sh("ping -c 5 -i 0.05 -W 2 10.1.0.1").map_err(|failed| site.explain(&failed))?;
    Ok(())
}

/// The right end has the requested name, in a certificate of an authority that the left end does not have.
fn foreign_certificate() -> Outcome {
    let mut site = Site::prepare(&CERTIFICATES)?;
    let elsewhere = Scratch::new()?;
    for (name, content) in CharonFiles::new(&elsewhere, "right", Auth::Certificates)?.contents()? {
        if ["private/", "x509/"].iter().any(|directory| name.starts_with(directory)) {
            fs::write(site.ends[1].files.file(&name), content)?;
        }
    }
    site.start()?;
    let refused = site.ends[0].swanctl(&["--initiate", "--child", "net", "--timeout", "10"]);
    assert!(refused.is_err(), "{refused:?}");
    assert!(
        site.ends[0].log().contains("no trusted ECDSA public key found for 'right.example'"),
        "{}",
        site.ends[0].log()
    );
    for end in &site.ends {
        assert_eq!(site.xfrm(end, "state")?, "");
    }
    Ok(())
}

/// Datagrams both ways without loss while the tunnel is rekeyed.
fn carries(site: &Site) -> Outcome {
    let [left, right] = &site.ends;
    site.up()?;
    let (to_right, to_left) = ("10.2.0.1".parse()?, "10.1.0.1".parse()?);
    let before = drops(site)?;
    lossless(&left.netns, (&right.netns, to_right), (1200, 5000), || rekeys(site))?;
    lossless(&right.netns, (&left.netns, to_left), (1200, 5000), || rekeys(site))?;
    assert_eq!(drops(site)?, before);
    transfer(&left.netns, (&right.netns, to_right), 4 << 20)?;
    transfer(&right.netns, (&left.netns, to_left), 4 << 20)
}

fn interface(v6: bool) -> Outcome {
    let site = Site::new(&Setup { wan: Wan::Interface, v6, ..EXAMPLE })?;
    carries(&site).map_err(|failed| site.explain(&failed))?;
    both_have_sas(&site, false)?;
    let states = site.xfrm(&site.ends[0], "state")?;
    assert_eq!(states.contains("src 2001:db8::1 dst 2001:db8::2"), v6, "{states}");
    Ok(())
}

/// All traffic between the gateways is protected, except IKE.
fn between_gateways() -> Outcome {
    let mut site = Site::prepare(&Setup { wan: Wan::Interface, ..EXAMPLE })?;
    for end in &site.ends {
        end.files.edit("swanctl.conf", |text| {
            text.replace("10.1.0.0/24", "192.0.2.1/32").replace("10.2.0.0/24", "192.0.2.2/32")
        })?;
    }
    let capture = Capture::start(&site.ends[1].netns, "eth0", "ip", site.scratch())?;
    site.start()?;
    let [left, right] = &site.ends;
    let ping = |from: &End, to: &str| {
        let mut command = from.netns.command(fatpath());
        command.args(["exec", "--instance", from.name, "--", "ping", "-q", "-c", "1", "-W", "1", to]);
        run(command.env("FATPATH_RUNDIR", site.scratch().path()))
    };
    wait_until("a ping comes through", PATIENCE, || ping(left, "192.0.2.2").is_ok())
        .map_err(|failed| site.explain(&failed))?;
    both_have_sas(&site, false)?;
    // Rekeying works while the policies are in force.
    rekeys(&site).map_err(|failed| site.explain(&failed))?;
    ping(right, "192.0.2.1").map_err(|failed| site.explain(&failed))?;
    let seen = run(Command::new("tcpdump").args(["-nr"]).arg(capture.finish()?))?;
    assert!(seen.contains("ESP(spi=") && seen.contains(".500 > 192.0.2.") && !seen.contains("ICMP"), "{seen}");
    Ok(())
}

/// Capture by tshark on the host side's device of the link: an interface has ESP, a UDP link has the packets of
/// sockets, here IKE.
fn tshark() -> Outcome {
    for (wan, protocol) in [(Wan::Interface, "esp"), (Wan::Udp, "isakmp")] {
        let site = Site::new(&Setup { wan, ..EXAMPLE })?;
        site.up()?;
        let [left, _] = &site.ends;
        let mut command = left.netns.command(fatpath());
        command.args(["exec", "--instance", "left", "--", "tshark", "-n", "-l", "-i", "wan", "-Y", protocol]);
        command.args(["-T", "fields", "-e", "ip.src"]).env("FATPATH_RUNDIR", site.scratch().path());
        let tshark = Process::spawn(&mut command, site.scratch())?;
        wait_until("tshark sees packets of both ends", PATIENCE, || {
            thread::sleep(Duration::from_millis(200));
            let passed = match wan {
                Wan::Interface => left.netns.sh("ping -q -c 1 -W 2 10.2.0.1").is_ok(),
                Wan::Udp => left.swanctl(&["--rekey", "--child", "net"]).is_ok(),
            };
            let printed = tshark.output();
            passed && ["192.0.2.1", "192.0.2.2"].iter().all(|end| printed.lines().any(|line| line == *end))
        })
        .map_err(|failed| format!("{}:\n{}", failed.message().unwrap_or_default(), tshark.output()))?;
    }
    Ok(())
}

fn udp_over_v6() -> Outcome {
    let site = Site::new(&Setup { v6: true, ..EXAMPLE })?;
    carries(&site).map_err(|failed| site.explain(&failed))?;
    both_have_sas(&site, true)?;
    let states = site.xfrm(&site.ends[0], "state")?;
    assert!(states.contains("src 2001:db8::1 dst 2001:db8::2"), "{states}");
    Ok(())
}

/// Rekeys the tunnel six times, initiated by either end in turn, each when both ends have the previous keys.
fn rekeys(site: &Site) -> Outcome {
    let [left, right] = &site.ends;
    let made = |end: &End| end.log().matches("] inbound CHILD_SA net{").count();
    for end in [left, right, left, right, left, right] {
        let before = [made(left), made(right)];
        end.swanctl(&["--rekey", "--child", "net"])?;
        wait_until("both ends have other keys", PATIENCE, || made(left) > before[0] && made(right) > before[1])?;
        // The old SAs are deleted, so that the other end does not rekey them too.
        thread::sleep(Duration::from_millis(300));
    }
    Ok(())
}

/// Drops of the gateways.
fn drops(site: &Site) -> Outcome<[String; 2]> {
    let [left, right] = &site.ends;
    Ok([left.gateway.show("drops")?, right.gateway.show("drops")?])
}

fn rekey() -> Outcome {
    let site = Site::new(&EXAMPLE)?;
    site.up()?;
    let [left, right] = &site.ends;
    let before = drops(&site)?;
    let to = (&right.netns, "10.2.0.1".parse()?);
    let arrived =
        lossless(&left.netns, to, (1200, 10_000), || rekeys(&site)).map_err(|failed| site.explain(&failed))?;
    assert!(arrived > 10_000, "{arrived} datagrams");
    assert_eq!(drops(&site)?, before);
    Ok(())
}

/// The stream has no rate limit.
fn rekey_of_a_stream() -> Outcome {
    let site = Site::new(&EXAMPLE)?;
    site.up()?;
    let [left, right] = &site.ends;
    let before = drops(&site)?;
    let over = AtomicBool::new(false);
    let (done, streams) = thread::scope(|scope| {
        let streams = scope.spawn(|| -> Outcome<u32> {
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                transfer(&left.netns, (&right.netns, "10.2.0.1".parse()?), 32 << 20)?;
                transfer(&right.netns, (&left.netns, "10.1.0.1".parse()?), 32 << 20)?;
                count += 2;
            }
            Ok(count)
        });
        let done = rekeys(&site);
        over.store(true, Ordering::Relaxed);
        (done, streams.join().unwrap_or_else(|_| Err("the streams panicked".into())))
    });
    done?;
    let streams = streams.map_err(|failed| site.explain(&failed))?;
    assert!(streams >= 2, "{streams} streams");
    assert_eq!(drops(&site)?, before);
    Ok(())
}

fn expire() -> Outcome {
    let site = Site::new(&Setup {
        connections: &[("rekey_time = 1h", "rekey_time = 4s\n        life_time = 1m\n        rand_time = 1s")],
        ..EXAMPLE
    })?;
    site.up()?;
    let [left, right] = &site.ends;
    let spis = |end: &End| -> Outcome<Vec<String>> {
        let states = site.xfrm(end, "state list nokeys")?;
        Ok(states.lines().filter(|line| line.contains("spi 0x")).map(str::to_owned).collect())
    };
    let first = spis(left)?;
    // The gateway reports the soft limit, and charon rekeys in time.
    wait_until("all SAs are others", PATIENCE, || {
        spis(left).is_ok_and(|now| now.len() >= 2 && now.iter().all(|spi| !first.contains(spi)))
    })
    .map_err(|failed| site.explain(&failed))?;
    for end in [left, right] {
        let log = end.log();
        assert!(!log.contains("hard"), "{log}");
    }
    left.netns.sh("ping -c 5 -i 0.05 -W 2 10.2.0.1").map_err(|failed| site.explain(&failed))?;
    let shown = left.gateway.show("sa")?;
    assert!(shown.matches("mode tunnel").count() >= 2, "{shown}");
    assert!(left.gateway.show("policies")?.contains("src 10.1.0.0/24 dst 10.2.0.0/24"));
    Ok(())
}

fn dead_peer() -> Outcome {
    let mut site = Site::new(&EXAMPLE)?;
    site.up()?;
    // The peer loses all state without a message.
    drop(site.ends[1].charon.take());
    site.xfrm(&site.ends[1], "state flush")?;
    site.xfrm(&site.ends[1], "policy flush")?;
    site.start_charon(1)?;
    wait_until("the tunnel is made anew", Duration::from_secs(60), || {
        site.ends[0].netns.sh("ping -c 1 -W 1 10.2.0.1").is_ok()
    })
    .map_err(|failed| site.explain(&failed))?;
    Ok(())
}

fn own_routes() -> Outcome {
    let mut site = Site::prepare(&Setup { wan: Wan::Interface, ..EXAMPLE })?;
    let left = &site.ends[0];
    // There is no other route to it.
    site.ip(left, "route del 10.2.0.0/24")?;
    left.files.change("strongswan.conf", "install_routes = no", "install_routes = yes")?;
    site.start()?;
    site.up()?;
    let left = &site.ends[0];
    let rules = site.ip(left, "rule")?;
    assert!(rules.contains("220:\tfrom all lookup 220"), "{rules}");
    let routes = site.ip(left, "route show table 220")?;
    assert_eq!(routes.trim(), "10.2.0.0/24 via 192.0.2.2 dev wan proto static src 10.1.0.254");
    left.netns.sh("ping -c 5 -i 0.05 -W 2 10.2.0.1").map_err(|failed| site.explain(&failed))?;
    Ok(())
}

/// The gateway is killed twice, and the key manager stays: the SAs are gone, which it is told, and makes new ones.
fn runs_on(host_side: bool) -> Outcome {
    let mut site = Site::prepare(&Setup { host_side, ..EXAMPLE })?;
    site.restart_with_state(0)?;
    site.start()?;
    site.up()?;
    let mut before = String::new();
    for _ in 0..2 {
        let left = &mut site.ends[0];
        left.gateway.kill()?;
        let begun = Instant::now();
        site.start_with_state(0)?;
        let ping = || site.ends[0].netns.sh("ping -c 1 -W 0.3 10.2.0.1").is_ok();
        wait_until("the tunnel is back", Duration::from_secs(5), ping).map_err(|failed| site.explain(&failed))?;
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        both_have_sas(&site, true)?;
        let sas = site.xfrm(&site.ends[0], "state")?;
        assert_eq!((sas.matches(" reqid ").count(), sas == before), (2, false), "{sas}");
        before = sas;
    }
    Ok(())
}

/// The gateway ends in order and starts again, as a service, and the key manager stays: it has its SAs, and makes no others.
fn sas_go_on() -> Outcome {
    let mut site = Site::prepare(&EXAMPLE)?;
    let manager = Manager::new(site.scratch())?;
    let command = |site: &Site| manager.command(&site.ends[0].netns, &site.state(&site.ends[0]));
    site.ends[0].gateway.terminate()?;
    site.start_by(0, command(&site)?)?;
    site.start()?;
    site.up()?;
    both_have_sas(&site, true)?;
    let made = |site: &Site| site.ends[0].log().matches("] inbound CHILD_SA net{").count();
    let before = (spis(&site)?, made(&site));
    for _ in 0..2 {
        site.ends[0].gateway.terminate()?;
        site.start_by(0, command(&site)?)?;
        site.ends[0].netns.sh("ping -c 20 -i 0.05 -W 1 10.2.0.1").map_err(|failed| site.explain(&failed))?;
        assert_eq!((spis(&site)?, made(&site)), before, "{}", site.ends[0].gateway.log());
    }
    rekeys(&site).map_err(|failed| site.explain(&failed))?;
    site.ends[0].netns.sh("ping -c 5 -i 0.05 -W 2 10.2.0.1").map_err(|failed| site.explain(&failed))?;
    // Replaced SAs receive packets in flight for a while.
    let are_others = || spis(&site).is_ok_and(|now| !now.iter().any(|spi| before.0.contains(spi)));
    wait_until("all SAs are others", PATIENCE, are_others).map_err(|failed| site.explain(&failed))
}

/// Lines with the SPIs of the first end's SAs.
fn spis(site: &Site) -> Outcome<Vec<String>> {
    let states = site.xfrm(&site.ends[0], "state list nokeys")?;
    Ok(states.lines().filter(|line| line.contains("spi 0x")).map(str::to_owned).collect())
}

/// The gateway is replaced under pings, twice, and the key manager stays: it has its SAs, and makes no others until it rekeys.
fn replaced(host_side: bool) -> Outcome {
    let mut site = Site::prepare(&Setup { host_side, ..EXAMPLE })?;
    site.restart_with_state(0)?;
    site.start()?;
    site.up()?;
    both_have_sas(&site, true)?;
    let before = spis(&site)?;
    for _ in 0..2 {
        let gap = site.replace(0, "10.2.0.1".parse()?).map_err(|failed| site.explain(&failed))?;
        println!("host side {host_side}: no answer for {gap:?}");
        assert!(gap < Duration::from_secs(1), "{gap:?}: {}", site.ends[0].gateway.log());
        assert_eq!(spis(&site)?, before, "{}", site.ends[0].gateway.log());
        let states = site.ip(&site.ends[1], "-s xfrm state")?;
        let counts = states.lines().filter(|line| line.contains("failed ")).map(str::trim);
        assert!(counts.clone().all(|line| line == "replay-window 0 replay 0 failed 0"), "{states}");
    }
    rekeys(&site).map_err(|failed| site.explain(&failed))?;
    site.ends[0].netns.sh("ping -c 5 -i 0.05 -W 2 10.2.0.1").map_err(|failed| site.explain(&failed))?;
    Ok(())
}

fn kept_policies() -> Outcome {
    let mut site = Site::prepare(&EXAMPLE)?;
    site.restart_with_state(0)?;
    site.start()?;
    site.up()?;
    let policies = site.xfrm(&site.ends[0], "policy")?;
    let printed = site.save(&site.ends[0])?;
    // The setting is the timeout of an acquire.
    assert!(printed.contains("policies, 1 setting, but not 2 SAs with a time limit"), "{printed}");
    site.restart_with_state(0)?;
    assert_eq!(site.xfrm(&site.ends[0], "policy")?, policies, "before the daemon is there");
    // The SAs' names are kept for a key manager, and no keys.
    let names = site.xfrm(&site.ends[0], "state")?;
    assert!(names.matches("proto esp spi ").count() == 2 && !names.contains("aead "), "{names}");
    site.start_charon(0)?;
    site.up()?;
    let now = site.xfrm(&site.ends[0], "policy")?;
    assert_eq!(now.matches("dir ").count(), policies.matches("dir ").count(), "{now}");
    both_have_sas(&site, true)
}

/// Tunnel of the left end in one table, whose policies wait for charon's.
const WAITING: &str = r#"
[[tunnel]]
name = "net"
local = { address = "192.0.2.1", nets = ["10.1.0.0/24"] }
remote = { address = "192.0.2.2", nets = ["10.2.0.0/24"] }
keys = "ike"
"#;

/// Packets of the left network on the wire, and ARP requests for neighbours in the right one.
const CLEAR: &str = "ip src net 10.1.0.0/24 or (arp[6:2] = 1 and arp dst net 10.2.0.0/24)";

/// Charon's policies replace those of the file, which are back when it unloads its connection, is killed or ends.
fn ends_without_clear_packets() -> Outcome {
    let mut site = Site::prepare(&Setup { wan: Wan::Interface, ..EXAMPLE })?;
    let example = site.ends[0].toml.clone();
    let reload = |site: &mut Site, toml: &str| -> Outcome {
        let gateway = &mut site.ends[0].gateway;
        let logged = gateway.log().len();
        gateway.reload(toml)?;
        gateway.wait_until("the file is loaded", |gateway| gateway.log()[logged..].contains("reloaded, running with"))
    };
    reload(&mut site, &(example.clone() + WAITING))?;
    let capture = |site: &Site| Capture::start(&site.ends[1].netns, "eth0", CLEAR, site.scratch());
    let seen = |capture: Capture| run(Command::new("tcpdump").args(["-nr"]).arg(capture.finish()?));
    let captured = capture(&site)?;
    let mut ping = site.ends[0].netns.command("ping");
    let ping = Process::spawn(ping.args(["-n", "-q", "-i", "0.002", "10.2.0.1"]), site.scratch())?;
    thread::sleep(Duration::from_millis(300));
    site.start()?;
    let none = site.ends[0].files.file("none.conf");
    fs::write(&none, "")?;
    for end in ["unload", "kill", "terminate", "last"] {
        site.up()?;
        both_have_sas(&site, false)?;
        let policies = site.xfrm(&site.ends[0], "policy")?;
        assert!(
            policies.contains("dir out priority") && !policies.contains("dir out priority 4294967294"),
            "{policies}"
        );
        let charon = site.ends[0].charon.as_mut().ok_or("no charon")?;
        match end {
            "unload" => drop(charon.swanctl(&["--load-conns", "--file", &none.display().to_string()])?),
            "kill" => charon.end(Signal::KILL)?,
            _ => charon.end(Signal::TERM)?,
        }
        thread::sleep(Duration::from_millis(500));
        if end == "unload" {
            // The IKE_SA stays, with the SAs; the policy of the trap is gone with its connection.
            let _ = site.ends[0].swanctl(&["--terminate", "--ike", "net", "--force"]);
        }
        if end != "kill" {
            let file = "dir out priority 4294967294";
            wait_until("the policies of the file are back", PATIENCE, || {
                site.xfrm(&site.ends[0], "policy").is_ok_and(|policies| policies.contains(file))
            })
            .map_err(|failed| site.explain(&failed))?;
        }
        thread::sleep(Duration::from_millis(500));
        if end != "last" {
            drop(site.ends[0].charon.take());
            site.start_charon(0)?;
        }
    }
    assert_eq!(seen(captured)?, "", "packets in clear");
    // What leaves in clear is seen: without the table.
    let captured = capture(&site)?;
    reload(&mut site, &example)?;
    thread::sleep(Duration::from_millis(500));
    drop(ping);
    let count = seen(captured)?.lines().count();
    assert!(count > 20, "{count} packets");
    Ok(())
}
