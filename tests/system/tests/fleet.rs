//! `fatpath-fleet` with a real etcd: three members and three agents, each in a namespace, and gateways.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial, unpacked, veth, wait_until};

use crate::ila::{CLIENT, ECHO, gateway_netns};

const PATIENCE: Duration = Duration::from_secs(30);

/// Longest time until a change reaches all gateways while a member is lost.
const FAILOVER: Duration = Duration::from_secs(10);

const NODES: usize = 3;

pub(crate) fn trials() -> Vec<Trial> {
    const ETCD: Need = Need::Unpacked { path: "usr/bin/etcd", package: "etcd-server" };
    const ETCDCTL: Need = Need::Unpacked { path: "usr/bin/etcdctl", package: "etcd-client" };
    const NEEDS: &[Need] = &[Need::Namespaces, ETCD, ETCDCTL];
    vec![
        trial("fleet/change_reaches_all_gateways_without_a_member", NEEDS, members),
        trial("fleet/agent_and_gateway_start_without_a_store", NEEDS, without_store),
        trial("fleet/compaction_is_followed_by_a_look_at_all_keys", NEEDS, compaction),
        trial("fleet/emptied_store_withdraws_nothing", NEEDS, emptied),
        trial("fleet/long_values_keep_no_agent_from_reading", NEEDS, long_values),
        trial("fleet/drain_empties_a_node_and_names_what_stays", NEEDS, drain),
        trial("fleet/status_and_metrics_tell_age_lag_and_size", NEEDS, metrics),
        trial(
            "fleet/networks_of_vrfs_are_routes_of_other_nodes",
            &[Need::Namespaces, Need::PING, ETCD, ETCDCTL],
            networks,
        ),
        trial("fleet/connection_goes_on_while_its_task_moves", &[Need::Namespaces, Need::PYTHON, ETCD, ETCDCTL], moves),
    ]
}

/// Members of etcd, agents, and gateways.
struct Fleet {
    scratch: Scratch,
    _hub: Netns,
    sites: Vec<Netns>,
    members: Vec<Option<Process>>,
    agents: Vec<Option<Process>>,
    gateways: Vec<Gateway>,
}

fn program() -> PathBuf {
    fatpath().with_file_name("fatpath-fleet")
}

fn address(node: usize) -> String {
    format!("10.9.0.{}", node + 1)
}

impl Fleet {
    /// Starts the members and the gateways, which `gateway` makes, and then the agents.
    fn start(gateway: impl Fn(usize, &Scratch) -> Outcome<Gateway>) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let hub = Netns::new("hub")?;
        hub.sh("ip link add br0 type bridge; ip link set br0 up")?;
        let mut sites = Vec::new();
        for node in 0..NODES {
            let site = Netns::new(&format!("site{node}"))?;
            veth((&hub, &format!("site{node}")), (&site, "ctl0"))?;
            hub.sh(&format!("ip link set site{node} master br0"))?;
            site.sh(&format!("ip addr add {}/24 dev ctl0", address(node)))?;
            sites.push(site);
        }
        let mut fleet =
            Self { scratch, _hub: hub, sites, members: Vec::new(), agents: Vec::new(), gateways: Vec::new() };
        for node in 0..NODES {
            let member = fleet.spawn_member(node)?;
            fleet.members.push(Some(member));
        }
        fleet.wait_for_store()?;
        for node in 0..NODES {
            fleet.gateways.push(gateway(node, &fleet.scratch)?);
            fs::write(fleet.config(node), fleet.toml(node))?;
        }
        fleet.command(0, &["init", "-c", &fleet.config(0)])?;
        for node in 0..NODES {
            let agent = fleet.spawn_agent(node)?;
            fleet.agents.push(Some(agent));
        }
        let is_known = |fleet: &Self, node| fleet.status(node).is_ok_and(|status| status["nodes"] == NODES);
        for node in 0..NODES {
            wait_until("the agents know each other", PATIENCE, || is_known(&fleet, node))
                .map_err(|failed| fleet.with_logs(&failed))?;
        }
        Ok(fleet)
    }

    fn config(&self, node: usize) -> String {
        self.scratch.file(&format!("fleet{node}.toml")).display().to_string()
    }

    fn toml(&self, node: usize) -> String {
        let members: Vec<_> = (0..NODES).map(|node| format!("\"http://{}:2379\"", address(node))).collect();
        format!(
            "fleet = \"f\"\nnode = \"n{node}\"\netcd = [{}]\ninsecure-transport = true\n\
             locators = \"fd00:0:{}::/48\"\nunderlay = \"fd99::{}\"\n\
             instance = \"g{node}\"\nquota-mib = 16\nstate = \"{}\"\n[domains]\ntasks = \"2001:db8::/48\"\n",
            members.join(", "),
            node + 1,
            node + 1,
            self.scratch.file(&format!("state{node}")).display()
        )
    }

    fn spawn_member(&self, node: usize) -> Outcome<Process> {
        let all: Vec<_> = (0..NODES).map(|node| format!("m{node}=http://{}:2380", address(node))).collect();
        let own = address(node);
        let data = self.scratch.file(&format!("etcd{node}"));
        let mut command = self.sites[node].command(unpacked("usr/bin/etcd"));
        command.args(["--name", &format!("m{node}"), "--initial-cluster", &all.join(",")]);
        command.arg("--data-dir").arg(data);
        for what in ["--listen-client-urls", "--advertise-client-urls"] {
            command.args([what, &format!("http://{own}:2379")]);
        }
        for what in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
            command.args([what, &format!("http://{own}:2380")]);
        }
        Process::spawn(&mut command, &self.scratch)
    }

    fn spawn_agent(&self, node: usize) -> Outcome<Process> {
        let mut command = self.sites[node].command(program());
        command.args(["run", "-c", &self.config(node)]).env("FATPATH_RUNDIR", self.scratch.path());
        Process::spawn(&mut command, &self.scratch)
    }

    /// Runs a command of `fatpath-fleet` at a node.
    fn command(&self, node: usize, args: &[&str]) -> Outcome<String> {
        run(self.sites[node].command(program()).args(args).env("FATPATH_RUNDIR", self.scratch.path()))
    }

    fn etcdctl(&self, args: &[&str]) -> Outcome<String> {
        let members: Vec<_> = (0..NODES).map(|node| format!("http://{}:2379", address(node))).collect();
        let mut command: Command = self.sites[0].command(unpacked("usr/bin/etcdctl"));
        run(command.env("ETCDCTL_API", "3").args(["--endpoints", &members.join(",")]).args(args))
    }

    fn wait_for_store(&self) -> Outcome {
        wait_until("etcd has a leader", PATIENCE, || self.etcdctl(&["get", "x"]).is_ok())
            .map_err(|failed| self.with_logs(&failed))
    }

    fn add(&self, task: usize, node: usize) -> Outcome {
        let sir = format!("2001:db8:0:{task:x}::/64");
        let locator = format!("fd00:0:{}:{task:x}", node + 1);
        self.command(0, &["add", "-c", &self.config(0), &sir, &format!("n{node}"), &locator]).map(drop)
    }

    fn move_task(&self, by: usize, task: usize, to: usize, command: &[&str]) -> Outcome {
        let sir = format!("2001:db8:0:{task:x}::/64");
        let locator = format!("fd00:0:{}:{task:x}", to + 1);
        let node = format!("n{to}");
        let config = self.config(by);
        let mut args = vec!["move", "-c", &config, &sir, &node, &locator, "--"];
        args.extend(command);
        self.command(by, &args).map(drop)
    }

    fn status(&self, node: usize) -> Outcome<Value> {
        Ok(serde_json::from_str(&self.command(node, &["status", "--json", "--instance", &format!("g{node}")])?)?)
    }

    /// Locator to which a gateway translates a SIR prefix or a locator.
    fn target(&self, node: usize, matched: &str) -> Option<String> {
        let shown = self.gateways[node].show("ila").ok()?;
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(matched))?;
        line.split_whitespace().nth(1).map(str::to_owned)
    }

    /// Waits until each gateway has the mapping of a task that is at a node.
    fn wait_for(&self, task: usize, at: usize, limit: Duration) -> Outcome {
        let sir = format!("2001:db8:0:{task:x}");
        let locator = format!("fd00:0:{}:{task:x}", at + 1);
        for node in 0..NODES {
            let is_there = || {
                let (matched, target) = if node == at { (&locator, &sir) } else { (&sir, &locator) };
                self.target(node, matched).as_ref() == Some(target)
            };
            wait_until(&format!("g{node} has task {task} at n{at}"), limit, is_there)
                .map_err(|failed| self.with_logs(&failed))?;
        }
        Ok(())
    }

    /// Mappings of a gateway but for forwarders, which go after 30 seconds.
    fn mappings(&self, node: usize) -> Outcome<Vec<String>> {
        let shown = self.gateways[node].show("ila")?;
        let is_forwarder = |line: &&str| line.split_whitespace().take(2).all(|word| word.starts_with("fd00:"));
        Ok(shown.lines().filter(|line| !is_forwarder(line)).map(str::to_owned).collect())
    }

    /// Lets time go by, in which no gateway loses a mapping.
    fn keeps_all(&self, what: &str, time: Duration) -> Outcome {
        let before: Vec<_> = (0..NODES).map(|node| self.mappings(node)).collect::<Outcome<_>>()?;
        let end = Instant::now() + time;
        while Instant::now() < end {
            for (node, before) in before.iter().enumerate() {
                let now = self.mappings(node)?;
                let lost: Vec<_> = before.iter().filter(|line| !now.contains(line)).collect();
                if !lost.is_empty() {
                    return Err(self.with_logs(&format!("{what}: g{node} has lost {lost:?}").into()));
                }
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn with_logs(&self, failed: &libtest_mimic::Failed) -> libtest_mimic::Failed {
        let mut text = failed.message().unwrap_or_default().to_owned();
        for (node, agent) in self.agents.iter().enumerate() {
            let log = agent.as_ref().map(Process::output).unwrap_or_default();
            text += &format!("\nagent {node}:\n{log}");
        }
        for (node, member) in self.members.iter().enumerate() {
            let log = member.as_ref().map(Process::output).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(5).collect();
            text += &format!("\nmember {node}:\n{}", last.join("\n"));
        }
        text.into()
    }

    /// Member that an agent is connected to.
    fn member_of(&self, node: usize) -> Outcome<usize> {
        let status = self.status(node)?;
        let member = status["member"].as_str().unwrap_or_default();
        let found = (0..NODES).find(|member_node| member.contains(&format!("{}:", address(*member_node))));
        found.ok_or_else(|| format!("no member in {status}").into())
    }
}

/// Configuration of a gateway with one link, on which nothing answers.
fn plain(node: usize) -> String {
    let link = "[[link]]\nname = \"wan0\"\nkind = \"packet\"\ninterface = \"wan0\"\n";
    format!("{link}addresses = [\"fd99::{}/64\"]\n", node + 1)
}

fn plain_gateway(node: usize, scratch: &Scratch) -> Outcome<(Netns, Gateway)> {
    let netns = gateway_netns(&format!("g{node}"))?;
    netns.sh("ip link add wan0 type veth peer name wan1; ip link set wan0 up; ip link set wan1 up")?;
    let gateway = Gateway::start(&netns, scratch, &format!("g{node}"), &plain(node))?;
    Ok((netns, gateway))
}

fn plain_fleet() -> Outcome<(Vec<Netns>, Fleet)> {
    let netns = std::cell::RefCell::new(Vec::new());
    let fleet = Fleet::start(|node, scratch| {
        let (of_gateway, gateway) = plain_gateway(node, scratch)?;
        netns.borrow_mut().push(of_gateway);
        Ok(gateway)
    })?;
    Ok((netns.into_inner(), fleet))
}

/// Each member in turn is killed, or cut off; then two are, and nothing changes until they are back.
fn members() -> Outcome {
    let (_netns, mut fleet) = plain_fleet()?;
    for task in 1..=5 {
        fleet.add(task, task % NODES)?;
    }
    for task in 1..=5 {
        fleet.wait_for(task, task % NODES, PATIENCE)?;
    }
    // An agent's socket is none of a gateway.
    let mut status = Command::new(fatpath());
    let shown = run(status.arg("status").env("FATPATH_RUNDIR", fleet.scratch.path()))?;
    assert_eq!(shown.lines().filter(|line| line.contains(": running")).count(), NODES, "{shown}");
    let routes = fleet.gateways[0].show("routes")?;
    assert!(routes.contains("fd00:0:2::/48") && routes.contains("fd00:0:3::/48"), "{routes}");
    // The member of an agent is killed: the agent takes another one.
    let killed = fleet.member_of(1)?;
    fleet.members[killed] = None;
    fleet.keeps_all("a member is killed", Duration::from_secs(1))?;
    let writer = (killed + 1) % NODES;
    wait_until("a change is written", PATIENCE, || fleet.move_task(writer, 1, 2, &[]).is_ok())?;
    fleet.wait_for(1, 2, FAILOVER)?;
    fleet.members[killed] = Some(fleet.spawn_member(killed)?);
    // A site is cut off: its agent keeps what it has, and follows when the site is back.
    fleet.sites[2].sh("ip link set ctl0 down")?;
    let is_lost = || fleet.status(2).is_ok_and(|status| status["member"].is_null());
    wait_until("the agent notices", PATIENCE, is_lost).map_err(|failed| fleet.with_logs(&failed))?;
    wait_until("a change is written", PATIENCE, || fleet.move_task(0, 1, 1, &[]).is_ok())
        .map_err(|failed| fleet.with_logs(&failed))?;
    let follows = || fleet.target(0, "2001:db8:0:1").as_deref() == Some("fd00:0:2:1");
    wait_until("the other sites follow", FAILOVER, follows).map_err(|failed| fleet.with_logs(&failed))?;
    let has_come = || fleet.target(1, "2001:db8:0:1").is_none() && fleet.target(1, "fd00:0:2:1").is_some();
    wait_until("the other sites follow", FAILOVER, has_come).map_err(|failed| fleet.with_logs(&failed))?;
    fleet.keeps_all("a site is cut off", Duration::from_secs(12))?;
    assert_eq!(fleet.target(2, "fd00:0:3:1").as_deref(), Some("2001:db8:0:1"));
    fleet.sites[2].sh("ip link set ctl0 up")?;
    fleet.wait_for(1, 1, PATIENCE)?;
    // Without a majority nothing is written, and nothing is lost.
    fleet.wait_for_store()?;
    fleet.members[0] = None;
    fleet.members[1] = None;
    fleet.keeps_all("there is no majority", Duration::from_secs(12))?;
    assert!(fleet.move_task(2, 1, 0, &[]).is_err());
    for node in [0, 1] {
        fleet.members[node] = Some(fleet.spawn_member(node)?);
    }
    fleet.wait_for_store()?;
    wait_until("a change is written", PATIENCE, || fleet.move_task(2, 1, 0, &[]).is_ok())
        .map_err(|failed| fleet.with_logs(&failed))?;
    fleet.wait_for(1, 0, PATIENCE)
}

/// All members are down; an agent is killed and starts again, and its gateway too: the mappings are those of the file.
fn without_store() -> Outcome {
    let (netns, mut fleet) = plain_fleet()?;
    for task in 1..=5 {
        fleet.add(task, 0)?;
    }
    for task in 1..=5 {
        fleet.wait_for(task, 0, PATIENCE)?;
    }
    // The file is written once a second.
    thread::sleep(Duration::from_millis(1500));
    let before = fleet.mappings(1)?;
    fleet.members.iter_mut().for_each(|member| *member = None);
    fleet.agents[1] = None;
    fleet.gateways[1].kill()?;
    fleet.gateways[1] = Gateway::start(&netns[1], &fleet.scratch, "g1", &plain(1))?;
    assert_eq!(fleet.mappings(1)?, Vec::<String>::new());
    fleet.agents[1] = Some(fleet.spawn_agent(1)?);
    let is_back = |fleet: &Fleet| fleet.mappings(1).is_ok_and(|now| now == before);
    wait_until("the mappings are back", PATIENCE, || is_back(&fleet)).map_err(|failed| fleet.with_logs(&failed))?;
    // The gateway alone starts again.
    fleet.gateways[1].kill()?;
    fleet.gateways[1] = Gateway::start(&netns[1], &fleet.scratch, "g1", &plain(1))?;
    wait_until("the mappings are back", PATIENCE, || is_back(&fleet)).map_err(|failed| fleet.with_logs(&failed))?;
    fleet.keeps_all("there is no store", Duration::from_secs(5))?;
    for node in 0..NODES {
        fleet.members[node] = Some(fleet.spawn_member(node)?);
    }
    fleet.wait_for_store()?;
    fleet.add(6, 2)?;
    fleet.wait_for(6, 2, Duration::from_secs(60))?;
    // A mapping that the mover deletes goes after ten seconds.
    fleet.command(0, &["remove", "-c", &fleet.config(0), "2001:db8:0:6::/64"])?;
    let is_gone = || fleet.target(0, "2001:db8:0:6").is_none();
    let begun = Instant::now();
    wait_until("the mapping is withdrawn", PATIENCE, is_gone).map_err(|failed| fleet.with_logs(&failed))?;
    assert!(begun.elapsed() > Duration::from_secs(8), "{:?}", begun.elapsed());
    fleet.wait_for(5, 0, PATIENCE)
}

/// An agent sleeps while its member is killed and the changes are compacted: it looks at all keys.
fn compaction() -> Outcome {
    let (_netns, mut fleet) = plain_fleet()?;
    for task in 1..=3 {
        fleet.add(task, 0)?;
        fleet.wait_for(task, 0, PATIENCE)?;
    }
    let Some(agent) = &fleet.agents[2] else { return Err("no agent".into()) };
    let member = fleet.member_of(2)?;
    agent.signal(Signal::STOP)?;
    fleet.members[member] = None;
    wait_until("a change is written", PATIENCE, || fleet.add(4, 1).is_ok())?;
    wait_until("a change is written", PATIENCE, || fleet.move_task(0, 1, 1, &[]).is_ok())?;
    let written: Value = serde_json::from_str(&fleet.etcdctl(&["get", "x", "-w", "json"])?)?;
    fleet.etcdctl(&["compact", &written["header"]["revision"].to_string()])?;
    if let Some(agent) = &fleet.agents[2] {
        agent.signal(Signal::CONT)?;
    }
    fleet.wait_for(4, 1, PATIENCE)?;
    fleet.wait_for(1, 1, PATIENCE)?;
    let log = fleet.agents[2].as_ref().map(Process::output).unwrap_or_default();
    assert!(log.contains("changes are compacted: reading all keys"), "{log}");
    fleet.keeps_all("after a compaction", Duration::from_secs(12))?;
    fleet.members[member] = Some(fleet.spawn_member(member)?);
    Ok(())
}

/// The members lose their disks: the store is another one, without a key. Nothing is withdrawn until an operator says so.
fn emptied() -> Outcome {
    let (_netns, mut fleet) = plain_fleet()?;
    for task in 1..=5 {
        fleet.add(task, 0)?;
    }
    for task in 1..=5 {
        fleet.wait_for(task, 0, PATIENCE)?;
    }
    fleet.members.iter_mut().for_each(|member| *member = None);
    for node in 0..NODES {
        fs::remove_dir_all(fleet.scratch.file(&format!("etcd{node}")))?;
    }
    for node in 0..NODES {
        fleet.members[node] = Some(fleet.spawn_member(node)?);
    }
    fleet.wait_for_store()?;
    let is_held = |text: &str| {
        let is = |node| fleet.status(node).is_ok_and(|status| status["held"].as_str().is_some_and(|held| held == text));
        (0..NODES).all(is)
    };
    wait_until("the withdrawals are held", Duration::from_secs(60), || is_held("the store has no meta"))
        .map_err(|failed| fleet.with_logs(&failed))?;
    fleet.keeps_all("the store is empty", Duration::from_secs(25))?;
    fleet.command(0, &["init", "-c", &fleet.config(0)])?;
    wait_until("the store is another one", PATIENCE, || is_held("the store has another identity"))
        .map_err(|failed| fleet.with_logs(&failed))?;
    // A new task is added all the same, and an old one is written again as it was.
    fleet.add(6, 1)?;
    fleet.add(1, 0)?;
    fleet.wait_for(6, 1, PATIENCE)?;
    fleet.keeps_all("the store has another identity", Duration::from_secs(12))?;
    for node in 0..NODES {
        fleet.command(node, &["approve", "--instance", &format!("g{node}")])?;
    }
    let is_as_store = |node: usize| fleet.mappings(node).is_ok_and(|now| now.len() == 2);
    for node in 0..NODES {
        wait_until("the mappings are the store's", Duration::from_secs(60), || is_as_store(node))
            .map_err(|failed| fleet.with_logs(&failed))?;
    }
    fleet.wait_for(1, 0, PATIENCE)?;
    fleet.wait_for(6, 1, PATIENCE)
}

/// Values of a node are longer together than any message: they are left alone, and all else is read and followed.
fn long_values() -> Outcome {
    const NUMBER: usize = 50;
    let (_netns, mut fleet) = plain_fleet()?;
    fleet.add(1, 0)?;
    fleet.wait_for(1, 0, PATIENCE)?;
    let value = fleet.scratch.file("value");
    fs::write(&value, vec![b'x'; 1_400_000])?;
    let put = format!(
        "for n in $(seq {NUMBER}); do {} --endpoints http://{}:2379 put /fatpath/v1/f/vrf/n9/red/10.$n.0.0/16 <{}; done",
        unpacked("usr/bin/etcdctl").display(),
        address(0),
        value.display()
    );
    run(fleet.sites[0].command("sh").env("ETCDCTL_API", "3").args(["-ec", &put]))?;
    fleet.agents[1] = None;
    fleet.agents[1] = Some(fleet.spawn_agent(1)?);
    let has_read = |fleet: &Fleet, node: usize| {
        let is = |status: Value| status["member"].is_string() && status["refused_objects"]["malformed"] == NUMBER;
        fleet.status(node).is_ok_and(is)
    };
    for node in 0..NODES {
        wait_until("the agent has read all", Duration::from_secs(60), || has_read(&fleet, node))
            .map_err(|failed| fleet.with_logs(&failed))?;
    }
    fleet.add(2, 0)?;
    fleet.wait_for(2, 0, PATIENCE)
}

/// Hosts in VRF red of two sites ping each other by the routes that the agents make. The routes outlive the store, follow the file, and
/// come when a VRF does.
fn networks() -> Outcome {
    let (red, hosts) = (Netns::new("red")?, [Netns::new("host0")?, Netns::new("host1")?]);
    red.sh("ip link add br0 type bridge; ip link set br0 up")?;
    let kept = std::cell::RefCell::new(Vec::new());
    let files = std::cell::RefCell::new(Vec::new());
    let mut fleet = Fleet::start(|node, scratch| {
        let netns = gateway_netns(&format!("g{node}"))?;
        netns.sh("ip link add wan0 type veth peer name wan1; ip link set wan0 up; ip link set wan1 up")?;
        let mut toml = plain(node);
        if let Some(host) = hosts.get(node) {
            let number = node + 1;
            let lan = format!("10.{number}.0");
            veth((host, "eth0"), (&netns, "lan0"))?;
            host.sh(&format!("ip addr add {lan}.2/24 dev eth0; ip route add default via {lan}.1"))?;
            host.sh(&format!(
                "ip addr add fd0a:{number}::2/64 dev eth0 nodad; ip route add default via fd0a:{number}::1"
            ))?;
            veth((&red, &format!("g{node}")), (&netns, "red0"))?;
            red.sh(&format!("ip link set g{node} master br0"))?;
            let link = |name: &str, v4: &str, v6: &str| {
                let head = format!(
                    "[[link]]\nname = \"{name}\"\nkind = \"packet\"\ninterface = \"{name}\"\nmaster = \"red\"\n"
                );
                format!("{head}addresses = [\"{v4}/24\", \"{v6}/64\"]\n")
            };
            toml += "[[link]]\nname = \"red\"\nkind = \"vrf\"\ntable = 1000\n";
            toml += &link("lan0", &format!("{lan}.1"), &format!("fd0a:{number}::1"));
            toml += &link("red0", &format!("10.99.0.{number}"), &format!("fd0b::{number}"));
        }
        let gateway = Gateway::start(&netns, scratch, &format!("g{node}"), &toml)?;
        kept.borrow_mut().push(netns);
        files.borrow_mut().push(toml);
        Ok(gateway)
    })?;
    let of_node = |node: usize, prefixes: &str| {
        let of_vrf = |via: &str, prefixes: &str| {
            format!("[[networks]]\nvrf = \"red\"\nvia = \"{via}\"\nprefixes = [{prefixes}]\n")
        };
        let number = node + 1;
        let v6 = of_vrf(&format!("fd0b::{number}"), &format!("\"fd0a:{number}::/64\""));
        of_vrf(&format!("10.99.0.{number}"), prefixes) + &v6
    };
    let restart = |fleet: &mut Fleet, node: usize, networks: &str| -> Outcome {
        fs::write(fleet.config(node), fleet.toml(node) + networks)?;
        fleet.agents[node] = None;
        fleet.agents[node] = Some(fleet.spawn_agent(node)?);
        Ok(())
    };
    // The lease of the former agent has to end first.
    restart(&mut fleet, 0, &of_node(0, "\"10.1.0.0/24\""))?;
    restart(&mut fleet, 1, &of_node(1, "\"10.2.0.0/24\", \"10.3.0.0/16\""))?;
    let routes = |fleet: &Fleet, node: usize| fleet.gateways[node].show("routes").unwrap_or_default();
    let has = |fleet: &Fleet, node: usize, line: &str| routes(fleet, node).lines().any(|it| it.starts_with(line));
    let both = |fleet: &Fleet| has(fleet, 0, "10.2.0.0/24 via 10.99.0.2") && has(fleet, 1, "10.1.0.0/24 via 10.99.0.1");
    let six = |fleet: &Fleet| has(fleet, 0, "fd0a:2::/64 via fd0b::2") && has(fleet, 1, "fd0a:1::/64 via fd0b::1");
    wait_until("both gateways have the routes", Duration::from_secs(60), || both(&fleet) && six(&fleet)).map_err(
        |failed| fleet.with_logs(&format!("{}: {}", failed.message().unwrap_or_default(), routes(&fleet, 0)).into()),
    )?;
    hosts[0].sh("ping -n -q -c 3 -i 0.2 -W 5 10.2.0.2; ping -n -q -c 3 -i 0.2 -W 5 fd0a:2::2")?;
    hosts[1].sh("ping -n -q -c 3 -i 0.2 -W 5 -s 4000 10.1.0.2; ping -n -q -c 3 -i 0.2 -W 5 -s 4000 fd0a:1::2")?;
    assert!(has(&fleet, 0, "10.3.0.0/16 via 10.99.0.2"), "{}", routes(&fleet, 0));
    assert!(!has(&fleet, 1, "10.2.0.0/24 via"), "{}", routes(&fleet, 1));
    // The third gateway has no VRF of that name, which is named; then the VRF comes.
    let status = fleet.status(2)?;
    assert_eq!((&status["missing_vrfs"][0], &status["networks"]), (&"red".into(), &5.into()), "{status}");
    for line in [
        "link add red type vrf table 1000",
        "link set red up",
        "link set wan0 master red",
        "addr add 10.99.0.3/24 dev wan0",
    ] {
        let mut command = Command::new(fatpath());
        command.args(["-i", "g2", "ip"]).args(line.split(' '));
        run(command.env("FATPATH_RUNDIR", fleet.scratch.path()))?;
    }
    let has_come = || has(&fleet, 2, "10.1.0.0/24 via 10.99.0.1") && has(&fleet, 2, "10.3.0.0/16 via 10.99.0.2");
    wait_until("the routes come with the VRF", PATIENCE, has_come).map_err(|failed| {
        fleet.with_logs(&format!("{}: {}", failed.message().unwrap_or_default(), routes(&fleet, 2)).into())
    })?;
    assert_eq!(fleet.status(2)?["missing_vrfs"], Value::Array(Vec::new()));
    // Routes go with a link that is set down, and come back with it. As on Linux the link has lost its IPv6 address then.
    let on_first = |line: &str| {
        let mut command = Command::new(fatpath());
        command.args(["-i", "g0", "ip"]).args(line.split(' '));
        run(command.env("FATPATH_RUNDIR", fleet.scratch.path()))
    };
    on_first("link set red0 down")?;
    assert!(!both(&fleet), "{}", routes(&fleet, 0));
    on_first("link set red0 up")?;
    wait_until("the routes come back", PATIENCE, || both(&fleet)).map_err(|failed| fleet.with_logs(&failed))?;
    // A bad value is named, and the route stays.
    let key = "/fatpath/v1/f/vrf/n1/red/10.2.0.0/24";
    let good = fleet.etcdctl(&["get", "--print-value-only", key])?;
    assert_eq!(good.trim(), "{\"v\":1,\"via\":\"10.99.0.2\",\"metric\":100}");
    fleet.etcdctl(&["put", key, "{\"v\":1,\"via\":\"fd00::1\",\"metric\":100}"])?;
    let is_named =
        || fleet.status(0).is_ok_and(|it| it["refused"]["vrf/n1/red/10.2.0.0/24"] == "the value is malformed");
    wait_until("the bad value is named", PATIENCE, is_named)?;
    assert!(both(&fleet));
    fleet.etcdctl(&["put", key, good.trim()])?;
    // Without a store, a gateway that starts again gets its routes of the file.
    thread::sleep(Duration::from_millis(1500));
    fleet.members.iter_mut().for_each(|member| *member = None);
    fleet.agents[0] = None;
    fleet.gateways[0].kill()?;
    fleet.gateways[0] = Gateway::start(&kept.borrow()[0], &fleet.scratch, "g0", &files.borrow()[0])?;
    assert!(!both(&fleet));
    fleet.agents[0] = Some(fleet.spawn_agent(0)?);
    wait_until("the routes are back", PATIENCE, || both(&fleet) && six(&fleet))
        .map_err(|failed| fleet.with_logs(&failed))?;
    hosts[0].sh("ping -n -q -c 3 -i 0.2 -W 5 10.2.0.2; ping -n -q -c 3 -i 0.2 -W 5 fd0a:2::2")?;
    for node in 0..NODES {
        fleet.members[node] = Some(fleet.spawn_member(node)?);
    }
    fleet.wait_for_store()?;
    // What the file has no longer goes after ten seconds, and the rest stays.
    restart(&mut fleet, 1, &of_node(1, "\"10.2.0.0/24\""))?;
    let is_gone = || !has(&fleet, 0, "10.3.0.0/16 via");
    wait_until("the network is withdrawn", Duration::from_secs(90), is_gone)
        .map_err(|failed| fleet.with_logs(&failed))?;
    assert!(both(&fleet));
    hosts[1].sh("ping -n -q -c 3 -i 0.2 -W 5 10.1.0.2")?;
    Ok(())
}

/// Numbers of an agent: of a store that answers, that is nearly full, and that is gone, and of an agent that is gone.
fn metrics() -> Outcome {
    let (_netns, mut fleet) = plain_fleet()?;
    // A malformed value is counted by its reason.
    fleet.etcdctl(&["put", "/fatpath/v1/f/ila/tasks/2001:db8:0:1::/64", "{"])?;
    let metric = |fleet: &Fleet, name: &str| -> Option<f64> {
        let text = fleet.command(0, &["metrics", "--instance", "g0"]).ok()?;
        let line = text.lines().find(|line| line.starts_with(&format!("fatpath_fleet_{name}")))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    let is_refused = || metric(&fleet, "refused_objects{gateway=\"g0\",reason=\"malformed\"}") == Some(1.0);
    wait_until("the object is counted", PATIENCE, is_refused).map_err(|failed| fleet.with_logs(&failed))?;
    let is_in_step = || {
        let status = fleet.status(0).unwrap_or_default();
        status["behind"] == 0 && status["answer_age_ms"].as_u64().is_some_and(|ms| ms < 3_000)
    };
    wait_until("the agent is in step", PATIENCE, is_in_step).map_err(|failed| fleet.with_logs(&failed))?;
    for (name, least, most) in [
        ("up", 1.0, 1.0),
        ("gateway_connected", 1.0, 1.0),
        ("store_connected", 1.0, 1.0),
        ("store_size_bytes", 4096.0, 1e9),
        ("store_quota_bytes", 16_777_216.0, 16_777_216.0),
        ("nodes", 3.0, 3.0),
    ] {
        let value = metric(&fleet, &format!("{name}{{"));
        assert!(value.is_some_and(|value| (least..=most).contains(&value)), "{name}: {value:?}");
    }
    // Values of other programs fill the store.
    let value = "x".repeat(60_000);
    for number in 0..300 {
        fleet.etcdctl(&["put", &format!("/other/{number}"), &value])?;
    }
    let text = || fleet.command(0, &["status", "--instance", "g0"]);
    let warns = || text().is_ok_and(|text| text.contains("%: compact and defragment etcd, or raise its quota"));
    wait_until("the size is a warning", PATIENCE, warns).map_err(|failed| fleet.with_logs(&failed))?;
    let log = fleet.agents[0].as_ref().map(Process::output).unwrap_or_default();
    assert!(log.contains("% of its quota: compact and defragment it"), "{log}");
    // The age of the last answer grows without a store, and a file for node_exporter has it.
    let dir = fleet.scratch.path().display().to_string();
    fleet.members.iter_mut().for_each(|member| *member = None);
    let is_old = || metric(&fleet, "store_answer_age_seconds{").is_some_and(|age| age > 4.0);
    wait_until("the last answer is old", PATIENCE, is_old)?;
    fleet.command(0, &["metrics", "--instance", "g0", "--textfile", &dir])?;
    let file = fleet.scratch.file("fatpath-fleet-g0.prom");
    assert!(fs::read_to_string(&file)?.contains("fatpath_fleet_up{gateway=\"g0\"} 1\n"));
    fleet.agents[0] = None;
    fleet.command(0, &["metrics", "--instance", "g0", "--textfile", &dir])?;
    assert!(fs::read_to_string(&file)?.ends_with("fatpath_fleet_up{gateway=\"g0\"} 0\n"));
    Ok(())
}

/// All tasks of a node move, also after a drain that was killed; a node that is not alive is refused by name.
fn drain() -> Outcome {
    let (_netns, mut fleet) = plain_fleet()?;
    for task in 1..=4 {
        fleet.add(task, 0)?;
        fleet.wait_for(task, 0, PATIENCE)?;
    }
    let config = fleet.config(1);
    let drain = |more: &[&str]| fleet.command(1, &[&["drain", "-c", &config, "n0"], more].concat());
    let failure = |outcome: Outcome<String>| match outcome {
        Ok(printed) => Err(format!("not refused: {printed}")),
        Err(failed) => Ok(failed.message().unwrap_or_default().to_owned()),
    };
    let why = failure(drain(&["--to", "n9"]))?;
    assert!(why.contains("Unknown node n9: the fleet has none of that name"), "{why}");
    // The command of one task fails: the task stays, and is named. That of another one takes longer than a PING may.
    let script = "case $FATPATH_TASK in *:2::/64) exit 3;; *:3::/64) sleep 5;; esac; test $FATPATH_FROM = n0; test -n $FATPATH_LOCATOR";
    let why = failure(drain(&["--to", "n1", "--", "sh", "-ec", script]))?;
    assert!(why.contains("sh: exit status: 3") && why.contains("n0: not empty, 1 tasks are left"), "{why}");
    for task in [1, 3, 4] {
        fleet.wait_for(task, 1, PATIENCE)?;
    }
    fleet.wait_for(2, 0, PATIENCE)?;
    // A drain is killed while its command runs: the next one goes on with that move.
    let mut command = fleet.sites[1].command(program());
    command.args(["drain", "-c", &config, "n0", "--to", "n1", "--", "sleep", "600"]);
    let killed = Process::spawn(command.env("FATPATH_RUNDIR", fleet.scratch.path()), &fleet.scratch)?;
    let is_moving = || {
        let value = fleet.etcdctl(&["get", "--print-value-only", "/fatpath/v1/f/ila/tasks/2001:db8:0:2::/64"]);
        value.is_ok_and(|value| value.contains("\"moving\""))
    };
    wait_until("the task moves", PATIENCE, is_moving)?;
    drop(killed);
    // The command of a move that had begun fails: the task may have moved, so its place is not written back.
    let why = failure(drain(&["--to", "n1", "--", "false"]))?;
    assert!(why.contains("2001:db8:0:2::/64: false: exit status: 1; the move to n1 had begun before"), "{why}");
    assert!(is_moving());
    let printed = drain(&["--to", "n2"])?;
    assert_eq!(printed, "2001:db8:0:2::/64 n1 fd00:0:2:2\n");
    fleet.wait_for(2, 1, PATIENCE)?;
    // An empty node is drained already. Without `--to` the tasks of another one are spread over those that are alive.
    assert_eq!(drain(&[])?, "");
    let printed = fleet.command(0, &["drain", "-c", &config, "n1"])?;
    assert_eq!(printed.matches(" n0 ").count(), 2, "{printed}");
    assert_eq!(printed.matches(" n2 ").count(), 2, "{printed}");
    // The two others are not alive.
    fleet.agents[0] = None;
    fleet.agents[1] = None;
    let is_dead = |node: usize| {
        let found = fleet.etcdctl(&["get", &format!("/fatpath/v1/f/alive/n{node}")]);
        found.is_ok_and(|found| found.trim().is_empty())
    };
    wait_until("the leases end", Duration::from_secs(60), || is_dead(0) && is_dead(1))?;
    let why = failure(fleet.command(0, &["drain", "-c", &config, "n2"]))?;
    assert!(why.contains("n2: no other node is alive"), "{why}");
    let why = failure(fleet.command(0, &["drain", "-c", &config, "n2", "--to", "n1"]))?;
    assert!(why.contains("Invalid node n1: its agent is not alive"), "{why}");
    Ok(())
}

/// A task moves between two nodes, and a connection to it goes on.
fn moves() -> Outcome {
    const MOVES: usize = 10;
    let (switch, task, client) = (Netns::new("switch")?, Netns::new("task")?, Netns::new("client")?);
    switch.sh("ip link add br0 type bridge; ip link set br0 up")?;
    let kept = std::cell::RefCell::new(Vec::new());
    let fleet = Fleet::start(|node, scratch| {
        let name = format!("g{node}");
        let netns = gateway_netns(&name)?;
        veth((&switch, &name), (&netns, "wan0"))?;
        switch.sh(&format!("ip link set {name} master br0"))?;
        let (host, interface) = if node == 2 { (&client, "eth0") } else { (&task, ["eth1", "eth2"][node]) };
        veth((host, interface), (&netns, "lan0"))?;
        let lan = if node == 2 { "fd0c::1/64" } else { "2001:db8:0:a::ffff/64" };
        let route = if node == 2 { "" } else { "[[route]]\nto = \"fd0c::/64\"\nvia = \"fd99::3\"\n" };
        let link = |name, addr: &str| {
            format!(
                "[[link]]\nname = \"{name}\"\nkind = \"packet\"\ninterface = \"{name}\"\naddresses = [\"{addr}\"]\n"
            )
        };
        let toml = format!("{}{}{route}", link("lan0", lan), link("wan0", &format!("fd99::{}/64", node + 1)));
        let gateway = Gateway::start(&netns, scratch, &name, &toml)?;
        kept.borrow_mut().push(netns);
        Ok(gateway)
    })?;
    let to_interface = |from: &str, to: &str| {
        format!(
            "ip addr flush dev {from} scope global; ip addr add 2001:db8:0:a::1/64 dev {to} nodad; \
             ip route replace default via 2001:db8:0:a::ffff dev {to}"
        )
    };
    task.sh(&to_interface("eth2", "eth1"))?;
    client.sh("ip addr add fd0c::2/64 dev eth0 nodad; ip route add default via fd0c::1")?;
    fleet.add(10, 0)?;
    fleet.wait_for(10, 0, PATIENCE)?;
    let _echo = Process::spawn(task.command("python3").args(["-c", ECHO]), &fleet.scratch)?;
    let listens = || task.sh("ss -Hltn 'sport = 7'").is_ok_and(|printed| !printed.is_empty());
    wait_until("the task listens", PATIENCE, listens)?;
    let mut talk = Process::spawn(client.command("python3").args(["-c", CLIENT]), &fleet.scratch)?;
    let mut goes_on = |what: &str| {
        let before = talk.output().lines().count();
        let goes = wait_until(what, PATIENCE, || talk.output().lines().count() > before + 20 || !talk.is_running());
        match goes {
            Ok(()) if talk.is_running() => Ok(()),
            _ => Err(fleet.with_logs(&format!("{what}: {}", talk.output().lines().last().unwrap_or_default()).into())),
        }
    };
    goes_on("blocks come back by the first node")?;
    for number in 0..MOVES {
        let to = 1 - number % 2;
        let [from_if, to_if] = if to == 1 { ["eth1", "eth2"] } else { ["eth2", "eth1"] };
        let script = format!("ip netns exec {} sh -ec '{}'", task.name(), to_interface(from_if, to_if));
        fleet.move_task(2, 10, to, &["sh", "-ec", &script])?;
        fleet.wait_for(10, to, PATIENCE)?;
        goes_on(&format!("blocks come back after move {number}"))?;
    }
    Ok(())
}
