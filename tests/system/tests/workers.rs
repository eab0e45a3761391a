//! Several workers: packets, counters and changes are those of one.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use serde_json::Value;
use system::{
    Cable, Gateway, Need, Netns, Outcome, PING_SIZES, Process, Scratch, fatpath, lossless, macvlan, run, transfer,
    trial, veth, wait_until,
};

use crate::router::{A_V4, A_V6, B_V4, B_V6, PlainSite, Port, ping_both_ways};

const NEEDS: &[Need] = &[Need::Namespaces, Need::PING];
const TUN_NEEDS: &[Need] = &[Need::Namespaces, Need::PING, Need::Tun];

/// Table of a file with two workers.
const TWO: &str = "\n[worker]\ncount = 2\n";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("workers/two_forward_pings_streams_and_fragments_over_veth", NEEDS, || forward(veth)),
        trial("workers/two_forward_pings_streams_and_fragments_over_macvlan", NEEDS, || forward(macvlan)),
        trial("workers/both_receive_and_hand_over_what_one_owns", NEEDS, both),
        trial("workers/two_lose_no_datagram_while_routes_and_neighbours_change", NEEDS, changes),
        trial("workers/two_shape_a_stream_by_one_discipline", &[Need::Namespaces], shape),
        trial("workers/two_have_a_queue_each_of_tun_and_again_when_it_is_made_anew", TUN_NEEDS, tun),
        trial("workers/sockets_of_the_host_side_have_both_workers_packets", NEEDS, sockets),
        trial("workers/two_bridge_and_route_behind_the_bridge", NEEDS, bridge),
        trial("workers/two_have_a_pair_each_of_a_guests_queues", NEEDS, guest),
        trial("workers/trace_shows_the_way_through_both_workers", NEEDS, trace),
        trial("workers/features_of_one_worker_are_refused_by_name", NEEDS, refusals),
        trial("workers/reload_moves_workers_that_sleep_to_other_cpus", &[Need::Namespaces], other_cpus),
    ]
}

/// A site whose gateway has two workers.
fn site(cable: Cable) -> Outcome<PlainSite> {
    PlainSite::on(cable, &(PlainSite::config_by(true, Port::Packet) + TWO))
}

/// The program's own command on the gateway of a site.
fn ours(site: &PlainSite, words: &str) -> Outcome<String> {
    let mut command = Command::new(fatpath());
    command.args(words.split_whitespace());
    run(command.env("FATPATH_RUNDIR", site.scratch.path()).env("FATPATH_INSTANCE", "plain"))
}

/// A number of each worker, as `fatpath show --json workers` has it.
fn of_workers(gateway: &Gateway, what: &str) -> Outcome<Vec<u64>> {
    let shown: Value = serde_json::from_str(&gateway.show("--json workers")?)?;
    let workers = shown.as_array().ok_or_else(|| format!("no list: {shown}"))?;
    workers.iter().map(|worker| Ok(worker[what].as_u64().ok_or_else(|| format!("no {what} in {worker}"))?)).collect()
}

fn forward(cable: Cable) -> Outcome {
    let site = site(cable)?;
    for (a, b) in [(A_V4, B_V4), (A_V6, B_V6)] {
        ping_both_ways(&site.a, b.parse()?, &site.b, a.parse()?)?;
        // Fragments for the node itself are reassembled by one of the workers.
        let node: IpAddr = if a == A_V4 { "10.1.0.1" } else { "fd01::1" }.parse()?;
        site.a.sh(&system::ping_script(node, PING_SIZES))?;
        thread::scope(|scope| {
            let streams: Vec<_> = [(&site.a, &site.b, b), (&site.b, &site.a, a)]
                .into_iter()
                .cycle()
                .take(6)
                .map(|(from, to, address)| scope.spawn(move || transfer(from, (to, address.parse()?), 2 << 20)))
                .collect();
            streams.into_iter().try_for_each(|stream| stream.join().expect("a stream"))
        })?;
    }
    let drops = site.gateway.show("drops")?;
    assert!(!drops.contains("ShardQueueFull"), "{drops}");
    Ok(())
}

/// Sends UDP of `flows` source ports from host to host.
fn send_flows(site: &PlainSite, flows: usize) -> Outcome {
    let to = site.b.enter(|| UdpSocket::bind((B_V4, 0)))?;
    let target = to.local_addr()?;
    site.a.enter(|| (0..flows).try_for_each(|_| UdpSocket::bind("0.0.0.0:0")?.send_to(&[7; 100], target).map(drop)))?;
    to.set_read_timeout(Some(Duration::from_secs(5)))?;
    (0..flows).try_for_each(|_| to.recv(&mut [0; 200]).map(drop))?;
    Ok(())
}

fn both() -> Outcome {
    const FLOWS: usize = 200;
    let site = site(veth)?;
    site.a.sh(&system::ping_script(B_V4.parse()?, &[56]))?;
    send_flows(&site, FLOWS)?;
    let received = of_workers(&site.gateway, "rx_packets")?;
    assert!(received.len() == 2 && received.iter().all(|&packets| packets > 20), "{received:?}");
    // Each worker counts apart, and a reader sees one node.
    let links = site.gateway.link("left")?;
    assert!(links["stats"]["rx_packets"].as_u64().is_some_and(|packets| packets >= FLOWS as u64), "{links}");
    let counters = site.gateway.show("counters")?;
    let forwarded = counters.lines().find_map(|line| line.strip_prefix("IpForwDatagrams")).unwrap_or_default();
    assert!(forwarded.trim().parse::<usize>().is_ok_and(|packets| packets >= FLOWS), "{counters}");
    // A worker that meets an unknown neighbour hands the packet to the first one.
    let [out, taken] = ["handed_over", "taken_over"].map(|what| of_workers(&site.gateway, what));
    let (out, taken): (u64, u64) = (out?.iter().sum(), taken?.iter().sum());
    assert!(out > 0 && out == taken, "{out} handed over, {taken} taken over");
    let text = site.gateway.show("workers")?;
    assert!(text.starts_with("WORKER") && text.lines().count() == 3, "{text}");
    let names = site.gateway_ns.sh(&format!("cat /proc/{}/task/*/comm", site.gateway.id()))?;
    assert!(names.contains("worker0\n") && names.contains("worker1\n"), "{names}");
    Ok(())
}

fn changes() -> Outcome {
    let site = site(veth)?;
    let sent = lossless(&site.a, (&site.b, B_V4.parse()?), (400, 2000), || {
        for _ in 0..30 {
            for line in [
                "ip route add 10.2.0.2/32 dev right",
                "ip neigh replace 10.3.0.9 lladdr 02:00:00:00:00:09 dev spare",
                "ip route del 10.2.0.2/32 dev right",
                "ip neigh del 10.3.0.9 dev spare",
                "ip addr add 10.9.0.1/24 dev spare",
                "ip addr del 10.9.0.1/24 dev spare",
            ] {
                ours(&site, line)?;
            }
        }
        Ok(())
    })?;
    assert!(sent > 1000, "{sent} datagrams");
    Ok(())
}

fn shape() -> Outcome {
    const LEN: usize = 4 << 20;
    let site = site(veth)?;
    ours(&site, "exec -- tc qdisc add dev right root tbf rate 40mbit burst 32k limit 1m")?;
    let start = Instant::now();
    thread::scope(|scope| {
        let streams = [(); 4].map(|()| scope.spawn(|| transfer(&site.a, (&site.b, B_V4.parse()?), LEN / 4)));
        streams.into_iter().try_for_each(|stream| stream.join().expect("a stream"))
    })?;
    // Each worker by itself would send twice as much.
    let taken = start.elapsed();
    assert!(taken > Duration::from_millis(750), "{taken:?}");
    let shown: Value = serde_json::from_str(&ours(&site, "exec -- tc -j -s qdisc show dev right")?)?;
    assert!(shown[0]["bytes"].as_u64().is_some_and(|bytes| bytes >= LEN as u64), "{shown}");
    ours(&site, "exec -- tc qdisc del dev right root")?;
    transfer(&site.a, (&site.b, B_V4.parse()?), LEN)
}

fn tun() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("host")?);
    let link = |name: &str, number: u8| {
        format!("[[link]]\nname = \"{name}\"\nkind = \"tun\"\naddresses = [\"10.{number}.0.1/24\"]\n")
    };
    let gateway = Gateway::start(&netns, &scratch, "tun", &(link("tun1", 1) + &link("tun2", 2) + TWO))?;
    let ping = "ip addr add 10.1.0.2/24 dev tun1 && ping -n -q -c 3 -i 0.1 -W 2 10.1.0.1";
    netns.sh(ping)?;
    assert!(!gateway.show("workers")?.contains("no queue"), "{}", gateway.show("workers")?);
    let queues = |name: &str| netns.sh(&format!("ls -d /sys/class/net/{name}/queues/rx-* | wc -l"));
    assert_eq!(queues("tun1")?.trim(), "2");
    netns.sh("ip link del tun1 && ip tuntap add tun1 mode tun multi_queue")?;
    wait_until("the link is open on the new device", Duration::from_secs(10), || {
        gateway.link("tun1").is_ok_and(|link| link["up"] == true && link["why_down"].is_null())
    })?;
    netns.sh("ip link set tun1 up")?;
    netns.sh(ping)?;
    // All flows pass, whichever worker has their queue.
    netns.sh("for port in $(seq 40); do ping -n -q -c 1 -W 2 10.1.0.1 >/dev/null || exit 1; done")?;
    assert_eq!(queues("tun1")?.trim(), "2");
    Ok(())
}

/// Programs under `exec` have sockets with the gateway's addresses, whichever worker receives a flow.
fn sockets() -> Outcome {
    let site = site(veth)?;
    let inside = |script: &str| -> Outcome<String> {
        let mut command = Command::new(fatpath());
        command.args(["exec", "--instance", "plain", "--", "sh", "-ec", script]);
        run(command.env("FATPATH_RUNDIR", site.scratch.path()))
    };
    // From the sockets of the gateway, and to them: 40 flows each, of both families.
    for to in [A_V4, A_V6, B_V4] {
        inside(&format!("for flow in $(seq 10); do ping -n -q -c 1 -W 5 {to} >/dev/null; done"))?;
    }
    let server = "import socket, threading
server = socket.create_server(('::', 7), family=socket.AF_INET6, dualstack_ipv6=True)
print('ready', flush=True)
def serve(peer):
    while data := peer.recv(65536):
        peer.sendall(data)
while True:
    threading.Thread(target=serve, args=[server.accept()[0]], daemon=True).start()";
    let client = |to: &str| {
        format!(
            "python3 -c \"
import socket
for flow in range(20):
    with socket.create_connection(('{to}', 7), 10) as peer:
        sent = bytes([flow]) * 100000
        peer.sendall(sent)
        got = b''
        while len(got) < len(sent):
            got += peer.recv(65536)
        assert got == sent
\""
        )
    };
    let mut command = Command::new(fatpath());
    command.args(["exec", "--instance", "plain", "--", "python3", "-c", server]);
    command.env("FATPATH_RUNDIR", site.scratch.path());
    let server = Process::spawn(&mut command, &site.scratch)?;
    wait_until("the server listens", Duration::from_secs(10), || server.output().contains("ready"))?;
    for (netns, to) in [(&site.a, "10.1.0.1"), (&site.b, "10.2.0.1"), (&site.a, "fd01::1"), (&site.a, "10.2.0.1")] {
        netns.sh(&client(to))?;
    }
    let received = of_workers(&site.gateway, "rx_packets")?;
    assert!(received.iter().all(|&packets| packets > 100), "{received:?}");
    Ok(())
}

/// The two interfaces are ports of a bridge with an address: the first worker bridges for both.
fn bridge() -> Outcome {
    let (scratch, a, b, gateway) = (Scratch::new()?, Netns::new("a")?, Netns::new("b")?, Netns::new("gateway")?);
    veth((&gateway, "left"), (&a, "eth0"))?;
    veth((&gateway, "right"), (&b, "eth0"))?;
    let port = |name: &str| {
        format!("[[link]]\nname = \"{name}\"\nkind = \"packet\"\ninterface = \"{name}\"\nmaster = \"br0\"\n")
    };
    let bridge = "[[link]]\nname = \"br0\"\nkind = \"bridge\"\naddresses = [\"10.1.0.1/24\"]\n".to_owned();
    let toml = bridge + &port("left") + &port("right") + TWO;
    let gateway = Gateway::start(&gateway, &scratch, "bridge", &toml)?;
    a.sh("ip addr add 10.1.0.2/24 dev eth0")?;
    b.sh("ip addr add 10.1.0.3/24 dev eth0")?;
    let to_b: IpAddr = "10.1.0.3".parse()?;
    a.sh(&system::ping_script(to_b, PING_SIZES))?;
    a.sh(&system::ping_script("10.1.0.1".parse()?, PING_SIZES))?;
    thread::scope(|scope| {
        let streams = [(); 4].map(|()| scope.spawn(|| transfer(&a, (&b, to_b), 1 << 20)));
        streams.into_iter().try_for_each(|stream| stream.join().expect("a stream"))
    })?;
    let (fdb, drops) = (gateway.show("fdb")?, gateway.show("drops")?);
    assert!(
        fdb.contains("dev left") && fdb.contains("dev right") && !drops.contains("ShardQueueFull"),
        "{fdb}\n{drops}"
    );
    Ok(())
}

/// A guest with a pair of queues for each worker, and one that has a single pair.
fn guest() -> Outcome {
    const HOSTS: u32 = 40;
    let (scratch, a) = (Scratch::new()?, Netns::new("a")?);
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    veth((&left, "lan"), (&a, "eth0"))?;
    a.sh("ip addr add 10.1.0.2/16 dev eth0 && ip route add 10.5.0.0/24 via 10.1.0.1")?;
    a.sh(&format!("for host in $(seq {HOSTS}); do ip addr add 10.1.1.$host/16 dev eth0; done"))?;
    let lan = "[[link]]\nname = \"lan\"\nkind = \"packet\"\ninterface = \"lan\"\naddresses = [\"10.1.0.1/16\"]\n";
    let vm = |kind: &str, queues: u32, host: u32| {
        let socket = scratch.file("vm.sock");
        format!(
            "[[link]]\nname = \"vm0\"\nkind = \"{kind}\"\nsocket = \"{}\"\nqueues = {queues}\n\
             addresses = [\"10.5.0.{host}/24\"]\n",
            socket.display()
        )
    };
    let gateway = Gateway::start(&left, &scratch, "left", &(lan.to_owned() + &vm("vhost-user", 2, 1) + TWO))?;
    let route = "[[route]]\nto = \"10.1.0.0/16\"\nvia = \"10.5.0.1\"\n";
    let ping_all = || {
        a.sh(&format!(
            "for host in $(seq {HOSTS}); do ping -n -q -c 1 -W 5 -I 10.1.1.$host 10.5.0.2 >/dev/null || exit 1; done"
        ))
    };
    let is_down = |why: &str| gateway.link("vm0").is_ok_and(|link| link["up"] == false && link["why_down"] == why);
    let chains = || -> Outcome<Vec<u64>> {
        let link = gateway.link("vm0")?;
        let queues = link["guest"]["queues"].as_array().cloned().unwrap_or_default();
        Ok(queues.iter().filter_map(|queue| queue["chains"].as_u64()).collect())
    };
    for (round, pairs) in [2, 1, 2].into_iter().enumerate() {
        let before = chains()?;
        let name = format!("right{round}");
        let other = Gateway::start(&right, &scratch, &name, &(vm("virtio-user", pairs, 2) + route))?;
        wait_until("the guest runs", Duration::from_secs(10), || {
            gateway.link("vm0").is_ok_and(|link| link["up"] == true)
        })?;
        ping_all()?;
        let handed_over = of_workers(&gateway, "handed_over")?[1];
        ping_all()?;
        let handed_over = of_workers(&gateway, "handed_over")?[1] - handed_over;
        let shown = gateway.show("workers")?;
        let after = chains()?;
        let used: Vec<bool> = after.iter().zip(&before).map(|(after, before)| after > before).collect();
        if pairs == 2 {
            // Packets to the guest by the pairs of both workers, none of which hands over one to a known neighbour.
            assert_eq!((used.get(..1), used.get(2..3)), (Some(&[true][..]), Some(&[true][..])), "{before:?} {after:?}");
            assert!(!shown.contains("no queue"), "{shown}");
            assert!(handed_over < u64::from(HOSTS) / 8, "{handed_over}");
        } else {
            assert_eq!(used, [true, true, false, false], "{before:?} {after:?}");
            assert!(shown.contains("no queue") && shown.contains("vm0"), "{shown}");
            assert!(handed_over > u64::from(HOSTS) / 8, "{handed_over}");
        }
        drop(other);
        wait_until("the guest is gone", Duration::from_secs(10), || is_down("no carrier"))?;
        assert!(gateway.show("workers")?.contains("vm0"), "no worker has a queue but the first");
    }
    let drops = gateway.show("drops")?;
    assert!(!drops.contains("ShardQueueFull"), "{drops}");
    Ok(())
}

/// Packets that leave by a link with a queueing discipline pass the first worker.
fn trace() -> Outcome {
    const FLOWS: usize = 60;
    let shaped = "qdisc = { kind = \"tbf\", rate = \"1gbit\", burst = \"1mb\", limit = \"1mb\" }\naddresses = [\"10.2.";
    let config = PlainSite::config_by(true, Port::Packet).replace("addresses = [\"10.2.", shaped) + TWO;
    let site = PlainSite::on(veth, &config)?;
    site.a.sh(&system::ping_script(B_V4.parse()?, &[56]))?;
    let mut command = Command::new(fatpath());
    command.args(["trace", "--json", "--filter", "udp and dst host 10.2.0.2", "-c", &FLOWS.to_string()]);
    command.env("FATPATH_RUNDIR", site.scratch.path()).env("FATPATH_INSTANCE", "plain");
    let mut traced = Process::spawn(&mut command, &site.scratch)?;
    // It has begun, once packets are traced.
    wait_until("the trace runs", Duration::from_secs(10), || {
        send_flows(&site, 1).is_ok() && !traced.output().is_empty()
    })?;
    send_flows(&site, FLOWS + FLOWS / 2)?;
    traced.wait(Duration::from_secs(10))?;
    let mut handed_over = 0;
    let mut numbers = Vec::new();
    let text = traced.output();
    for line in text.lines() {
        let packet: Value = serde_json::from_str(line)?;
        let steps = packet["steps"].as_array().into_iter().flatten().filter_map(|step| step["step"].as_str());
        let steps: Vec<&str> = steps.collect();
        // Each from its receipt to the queue of the link, whichever worker received it.
        assert_eq!((steps.first(), steps.last()), (Some(&"input"), Some(&"queued")), "{line}");
        handed_over += steps.iter().filter(|step| **step == "hand-over").count();
        numbers.push(packet["packet"].as_u64());
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), FLOWS, "a packet has one trace: {text}");
    assert!(handed_over > FLOWS / 10 && handed_over < FLOWS, "{handed_over}");
    Ok(())
}

fn refusals() -> Outcome {
    let site = site(veth)?;
    let config = PlainSite::config_by(true, Port::Packet);
    // A reload cannot change the number, and changes nothing then.
    for workers in ["", "\n[worker]\ncount = 3\n"] {
        site.gateway.reload(&(config.clone() + workers))?;
        let want = "only a start can change it: restart the gateway";
        wait_until("the reload is refused", Duration::from_secs(10), || {
            site.gateway.log().matches(want).count() > usize::from(!workers.is_empty())
        })?;
    }
    site.gateway.reload(&(config.clone() + "\n[crypto]\nworkers = 1\n[worker]\ncount = \"auto\"\n"))?;
    wait_until("the reload names the feature", Duration::from_secs(10), || {
        site.gateway.log().contains("worker.count is 1 beside threads of `[crypto]`, and 2 when the gateway started")
    })?;
    assert_eq!(of_workers(&site.gateway, "worker")?, [0, 1]);
    // A file that names a CPU this process may not use, or a feature of one worker.
    for (workers, want) in [
        ("[worker]\ncount = 2\ncpus = [0, 8191]", "worker.cpus: this process may not run on CPU 8191"),
        ("[crypto]\nworkers = 1\n[worker]\ncount = 2", "several workers cannot have threads of `[crypto]` yet"),
    ] {
        let scratch = Scratch::new()?;
        let started = Gateway::start(&site.gateway_ns, &scratch, "second", &format!("{workers}\n"));
        let said = started.map(drop).map_err(|failed| failed.message().unwrap_or_default().to_owned());
        assert!(said.as_ref().is_err_and(|said| said.contains(want)), "{workers}: {said:?}");
    }
    Ok(())
}

/// CPUs of this process.
fn own_cpus() -> Outcome<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// A reload binds threads of a gateway that has nothing to do.
fn other_cpus() -> Outcome {
    let [first, second, ..] = own_cpus()?[..] else {
        return Err("two CPUs are needed".into());
    };
    let site = site(veth)?;
    let bound = |name: &str| -> Outcome<String> {
        let script = format!(
            "for task in /proc/{}/task/*; do grep -qx {name} $task/comm && sed -n 's/^Cpus_allowed_list:\\t//p' $task/status; done; true",
            site.gateway.id()
        );
        Ok(site.gateway_ns.sh(&script)?.trim().to_owned())
    };
    for cpus in [[first, second], [second, first]] {
        let [of_first, of_second] = cpus;
        let worker = format!("\n[worker]\ncount = 2\ncpus = [{of_first}, {of_second}]\n");
        site.gateway.reload(&(PlainSite::config_by(true, Port::Packet) + &worker))?;
        wait_until("the workers are on the CPUs of the file", Duration::from_secs(10), || {
            let names = ["worker0", "worker1"].map(|name| bound(name).unwrap_or_default());
            names == cpus.map(|cpu| cpu.to_string())
        })?;
    }
    Ok(())
}
