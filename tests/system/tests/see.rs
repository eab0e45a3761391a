//! Summaries and metrics of gateways: `fatpath show summary`, sums of SAs, and `fatpath metrics` with Debian's Prometheus.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use system::{
    Esp, Gateway, Mode, Need, Netns, OUTER_V4, Outcome, Process, Scratch, fatpath, run, trial, unpacked, veth,
    wait_until,
};

use crate::{large_file, tunnel};

const PATIENCE: Duration = Duration::from_secs(20);

/// Address of the exporter, in a namespace of its own.
const LISTEN: &str = "127.0.0.1:9847";

const PROMETHEUS: Need = Need::Unpacked { path: "usr/bin/prometheus", package: "prometheus" };
const PROMTOOL: Need = Need::Unpacked { path: "usr/bin/promtool", package: "prometheus" };

pub(crate) fn trials() -> Vec<Trial> {
    const TUNNEL: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];
    const METRICS: &[Need] = &[Need::Namespaces, Need::CURL, PROMTOOL];
    const SCRAPED: &[Need] = &[Need::Namespaces, Need::Tun, Need::CURL, Need::PYTHON, PROMETHEUS, PROMTOOL];
    vec![
        trial("see/summary_has_numbers_of_entries_and_workers", TUNNEL, summary),
        trial("see/tunnel_without_sas_is_shown", TUNNEL, without_sa),
        trial("see/monitor_that_only_looks_acquires_no_sa", TUNNEL, looking_monitor),
        trial("see/tunnel_has_its_name_and_its_end", METRICS, names),
        trial("see/metrics_pass_promtool_and_are_in_a_file", METRICS, file),
        trial("see/request_of_another_site_is_refused", &[Need::Namespaces, Need::CURL], requests),
        trial("see/idle_connections_cost_their_places_alone", &[Need::Namespaces, Need::CURL], connections),
        trial("see/gateway_with_malformed_replies_is_one_log_line", &[Need::Namespaces, Need::CURL], malformed),
        trial("see/gateway_that_hangs_hides_no_other", &[Need::Namespaces, Need::CURL], hung),
        trial("see/killed_gateway_is_down_for_a_later_exporter", &[Need::Namespaces, Need::CURL], killed),
        trial("see/scrapes_cost_a_worker_little", &[Need::Namespaces, Need::Tun, Need::CURL], costs),
        trial("see/alert_rules_pass_their_tests", &[PROMTOOL], rules),
        trial("see/rate_of_a_tunnel_has_no_dip_at_rekeys", SCRAPED, rekeys),
    ]
}

/// Two gateways `a` and `b` with a tunnel, each with TUN device `tun0`.
struct Site {
    scratch: Scratch,
    a: Netns,
    b: Netns,
    esp: Esp,
}

impl Site {
    fn new() -> Outcome<Self> {
        let (scratch, a, b) = (Scratch::new()?, Netns::new("a")?, Netns::new("b")?);
        veth((&a, "wan0"), (&b, "wan0"))?;
        let esp = Esp { udp: true, ..Esp::new(Mode::Tunnel, OUTER_V4, &[("10.1.0.0/24", "10.2.0.0/24")]) };
        Ok(Self { scratch, a, b, esp })
    }

    fn start(&self) -> Outcome<[Gateway; 2]> {
        let there = self.esp.reversed();
        let a = tunnel::start_with(&self.a, "a", &self.esp, 1, &self.scratch, &tunnel::config(&self.esp, 1))?;
        let b = tunnel::start_with(&self.b, "b", &there, 2, &self.scratch, &tunnel::config(&there, 2))?;
        Ok([a, b])
    }

    /// Runs `ip xfrm state` on a gateway, for an SA from `a` to `b`.
    fn state(&self, gateway: &str, verb: &str, spi: u32) -> Outcome {
        let [src, dst] = OUTER_V4;
        let mut words = vec![
            "ip".to_owned(),
            "--instance".to_owned(),
            gateway.to_owned(),
            "xfrm".to_owned(),
            "state".to_owned(),
            verb.to_owned(),
        ];
        words.extend(format!("src {src} dst {dst} proto esp spi {spi:#x}").split(' ').map(str::to_owned));
        if verb == "add" {
            let keys = format!("reqid 1 mode tunnel replay-window 32 aead rfc4106(gcm(aes)) {} 128", Esp::key(spi, 36));
            words.extend(
                format!("{keys} encap espinudp 4500 4500 0.0.0.0 limit time-hard 3600").split(' ').map(str::to_owned),
            );
        }
        run(Command::new(fatpath()).args(words).env("FATPATH_RUNDIR", self.scratch.path())).map(drop)
    }
}

fn json(gateway: &Gateway, what: &str) -> Outcome<Value> {
    Ok(serde_json::from_str(&gateway.show(&format!("--json {what}"))?)?)
}

fn summary() -> Outcome {
    let site = Site::new()?;
    let [a, _b] = site.start()?;
    site.a.sh("ping -c 3 -i 0.2 10.2.0.1")?;
    let shown = json(&a, "summary")?;
    let sas = &shown["sas"];
    assert_eq!((&sas["valid"], &sas["dying"], &sas["larval"]), (&2.into(), &0.into(), &0.into()), "{shown}");
    let policies = json(&a, "policies")?.as_array().map_or(0, Vec::len) as u64;
    let counted = ["inbound", "outbound", "forward"].map(|dir| shown["policies"][dir].as_u64().unwrap_or_default());
    assert_eq!(counted.iter().sum::<u64>(), policies, "{shown}");
    // Some that packets do not use, such as those of multicast, are not among those that are shown.
    let routes = json(&a, "memory")?["tables"][0]["entries"].as_u64().unwrap_or_default();
    let by_table = shown["routes"].as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(by_table.iter().filter_map(|table| table["count"].as_u64()).sum::<u64>(), routes, "{shown}");
    let of = |name: &str| shown["workers"][0][name].as_u64().unwrap_or_default();
    assert!(of("bursts") >= 6 && of("wakeups") > 0, "{shown}");
    assert!(of("busy_ns") > 0 && of("busy_ns") < of("idle_ns"), "{shown}");
    assert!(of("rx_wire_packets") >= of("rx_calls") && of("tx_calls") > 0, "{shown}");
    assert!(shown["memory"]["used"].as_u64() > Some(0) && shown["started_ms"].as_u64() > Some(1 << 40), "{shown}");
    let text = a.show("summary")?;
    assert!(text.contains("sa valid 2 dying 0 larval 0") && text.contains("worker 0: bursts"), "{text}");
    Ok(())
}

fn without_sa() -> Outcome {
    let site = Site::new()?;
    let [a, _b] = site.start()?;
    site.a.sh("ping -c 3 -i 0.2 10.2.0.1")?;
    let sum = |dir: &str| -> Outcome<Value> {
        let shown = json(&a, "sa --sums")?;
        let sums = shown["sums"].as_array().ok_or("no sums")?;
        Ok(sums.iter().find(|sum| sum["dir"] == dir).ok_or(format!("no {dir} in {shown}"))?.clone())
    };
    let before = sum("out")?;
    assert_eq!((&before["packets"], &before["reqid"]), (&3.into(), &1.into()), "{before}");
    assert!(!a.show("sa --sums")?.contains("policy without sa"));
    site.state("a", "delete", site.esp.spi_out)?;
    assert_eq!(sum("out")?, before, "an SA that ends leaves its sum");
    let text = a.show("sa --sums")?;
    assert!(text.contains("policy without sa: src 10.1.0.0/24 dst 10.2.0.0/24 dir out"), "{text}");
    let policies = a.show("policies")?;
    assert_eq!(policies.matches("without sa").count(), 1, "{policies}");
    let refused = a.show("links --sums").unwrap_err();
    assert!(refused.message().is_some_and(|text| text.contains("only `fatpath show sa` has sums")));
    Ok(())
}

/// `fatpath metrics` for gateways in `scratch`, in a namespace of its own.
struct Exporter {
    host: Netns,
    process: Process,
}

impl Exporter {
    fn start(scratch: &Scratch, options: &[&str]) -> Outcome<Self> {
        let host = Netns::new("m")?;
        let mut command = host.command(fatpath());
        command.args(["metrics", "--listen", LISTEN]).args(options).env("FATPATH_RUNDIR", scratch.path());
        let mut process = Process::spawn(&mut command, scratch)?;
        wait_until("the exporter listens", PATIENCE, || {
            process.output().contains("metrics at http://") || !process.is_running()
        })?;
        if process.is_running() { Ok(Self { host, process }) } else { Err(process.output().into()) }
    }

    /// Standard output of curl.
    fn curl(&self, words: &[&str]) -> Outcome<String> {
        run(self.host.command("curl").args(["--silent", "--show-error", "--max-time", "30"]).args(words))
    }

    fn metrics(&self) -> Outcome<String> {
        self.curl(&[&format!("http://{LISTEN}/metrics")])
    }
}

/// Complaints of `promtool check metrics` about a text, but for names that are Linux's.
fn complaints(text: &str, scratch: &Scratch) -> Outcome<Vec<String>> {
    let file = scratch.file("metrics");
    fs::write(&file, text)?;
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" check metrics <\"$1\""]).arg(unpacked("usr/bin/promtool")).arg(&file);
    let output = command.output()?;
    let printed = [output.stdout, output.stderr].concat();
    let lines = String::from_utf8_lossy(&printed).lines().map(str::to_owned).collect::<Vec<_>>();
    Ok(lines
        .into_iter()
        .filter(|line| !(line.starts_with("fatpath_netstat_") && line.contains("snake_case")))
        .collect())
}

const LAN: &str = "[[link]]\nname = \"lan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n";

fn file() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let gateway = Gateway::start(&host, &scratch, "x", LAN)?;
    let dir = scratch.file("textfiles");
    fs::create_dir(&dir)?;
    let mut once = Command::new(fatpath());
    once.args(["metrics", "--interval", "0", "--textfile"]).arg(&dir).env("FATPATH_RUNDIR", scratch.path());
    run(&mut once)?;
    let text = fs::read_to_string(dir.join("fatpath.prom"))?;
    assert_eq!(complaints(&text, &scratch)?, Vec::<String>::new());
    for sample in [
        "fatpath_up{gateway=\"x\"} 1",
        "fatpath_link_up{gateway=\"x\",link=\"lan\"} 1",
        "fatpath_link_info{gateway=\"x\",link=\"lan\",kind=\"udp\",vrf=\"\",master=\"\"} 1",
        "fatpath_link_receive_bytes_total{gateway=\"x\",link=\"lan\"} 0",
        "fatpath_sas{gateway=\"x\",state=\"valid\"} 0",
        "fatpath_netstat_Ip_InReceives{gateway=\"x\"} 0",
    ] {
        assert!(text.lines().any(|line| line == sample), "no {sample} in {text}");
    }
    drop(gateway);
    // A gateway that was named and is gone is down.
    once.args(["-i", "x"]);
    run(&mut once)?;
    let text = fs::read_to_string(dir.join("fatpath.prom"))?;
    assert!(text.contains("fatpath_up{gateway=\"x\"} 0") && !text.contains("fatpath_link_up"), "{text}");
    assert_eq!(fs::read_dir(&dir)?.count(), 1);
    Ok(())
}

fn requests() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let gateway = Gateway::start(&host, &scratch, "x", LAN)?;
    let exporter = Exporter::start(&scratch, &[])?;
    let url = format!("http://{LISTEN}/metrics");
    let code = |words: &[&str]| -> Outcome<String> {
        let words = [&["--output", "/dev/null", "--write-out", "%{http_code}"][..], words].concat();
        exporter.curl(&words)
    };
    for (words, want) in [
        (&[url.as_str()][..], "200"),
        (&["--head", &url], "200"),
        (&["--header", "Host: evil.example", &url], "421"),
        (&["--request", "POST", "--data", "x", &url], "405"),
        (&[&format!("http://{LISTEN}/x")], "404"),
        (&["--header", &format!("X: {}", "x".repeat(70_000)), &url], "431"),
    ] {
        assert_eq!(
            code(words)?,
            want,
            "{:?}",
            words.iter().map(|word| &word[..word.len().min(40)]).collect::<Vec<_>>()
        );
    }
    let classic = exporter.metrics()?;
    assert!(
        classic.contains("# TYPE fatpath_drop_packets_total counter") || classic.contains("fatpath_up"),
        "{classic}"
    );
    assert!(!classic.contains("# EOF"), "{classic}");
    let open = exporter.curl(&["--header", "Accept: application/openmetrics-text", &url])?;
    assert!(open.ends_with("# EOF\n") && open.contains("# TYPE fatpath_link_receive_bytes counter"), "{open}");
    drop(gateway);
    let gone = exporter.metrics()?;
    assert!(gone.contains("fatpath_up{gateway=\"x\"} 0"), "{gone}");
    Ok(())
}

/// A number from the environment, or another one.
fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Rounds with a scrape each second, and without, and the seconds of each.
const ROUNDS: u32 = 3;
const ROUND_SECONDS: u32 = 5;

/// Time of a worker that a scrape each second takes, with large tables. For the figures of docs/see.md, by a release build on an idle
/// machine: `FATPATH_TEST_SAS=100000 FATPATH_TEST_ROUTES=1000000 FATPATH_TEST_MICROS=100`.
fn costs() -> Outcome {
    let (sas, routes) = (number("FATPATH_TEST_SAS", 20_000), number("FATPATH_TEST_ROUTES", 100_000));
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let toml = format!("[host]\nside = \"off\"\n{}", large_file::large(0, sas));
    let gateway = Gateway::start(&host, &scratch, "x", &toml)?;
    // A start with all of them may take longer than a test waits.
    let mut lines = String::new();
    for n in 0..routes {
        let [_, a, b, c] = n.to_be_bytes();
        lines += &format!("route add {}.{b}.{c}.0/24 dev tun0\n", 11 + a);
    }
    let batch = scratch.file("routes");
    fs::write(&batch, lines)?;
    let mut ip = Command::new(fatpath());
    run(ip.args(["ip", "--instance", "x", "-batch"]).arg(&batch).env("FATPATH_RUNDIR", scratch.path()))?;
    let exporter = Exporter::start(&scratch, &[])?;
    let text = exporter.metrics()?;
    assert!(text.contains(&format!("fatpath_sas{{gateway=\"x\",state=\"valid\"}} {sas}")), "{sas} SAs");
    let busy = || -> Outcome<f64> {
        let workers = json(&gateway, "summary")?["workers"].take();
        let of_each = workers.as_array().into_iter().flatten().filter_map(|worker| worker["busy_ns"].as_f64());
        Ok(of_each.sum())
    };
    let round = |scrapes: bool| -> Outcome<f64> {
        let before = busy()?;
        let began = Instant::now();
        for second in 1..=ROUND_SECONDS {
            if scrapes {
                exporter.metrics()?;
            }
            thread::sleep((Duration::from_secs(1) * second).saturating_sub(began.elapsed()));
        }
        Ok((busy()? - before) / began.elapsed().as_nanos() as f64)
    };
    let mut shares = [0.0; 2];
    for _ in 0..ROUNDS {
        shares[0] += round(false)? / f64::from(ROUNDS);
        shares[1] += round(true)? / f64::from(ROUNDS);
    }
    let cost = 100.0 * (shares[1] - shares[0]);
    let counters: Value = json(&gateway, "counters")?;
    let longest = counters["counters"].as_array().into_iter().flatten();
    let longest = longest.filter(|counter| counter["name"] == "ViewSliceMaxMicros").find_map(|it| it["value"].as_u64());
    let longest = longest.ok_or("no counter of the longest slice")?;
    println!(
        "see/costs: {sas} SAs, {routes} routes: a scrape each second takes {cost:.3} % of a worker, its longest slice {longest} us"
    );
    assert!(cost <= 0.5, "{cost:.3} %: {shares:?}");
    assert!(longest <= u64::from(number("FATPATH_TEST_MICROS", 1000)), "{longest} us");
    Ok(())
}

fn connections() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start(&host, &scratch, "x", LAN)?;
    let exporter = Exporter::start(&scratch, &[])?;
    let address: SocketAddr = LISTEN.parse()?;
    let held = exporter.host.enter(|| -> std::io::Result<Vec<TcpStream>> {
        // Clients that send nothing, or half a request.
        let parts = [&b""[..], b"GET /metrics HTT", b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"];
        let connect = |at: usize| {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(parts[at % 2])?;
            Ok(stream)
        };
        let mut held = (0..16).map(connect).collect::<std::io::Result<Vec<_>>>()?;
        let mut refused = TcpStream::connect(address)?;
        refused.write_all(parts[2])?;
        refused.set_read_timeout(Some(PATIENCE))?;
        let mut reply = [0; 12];
        refused.read_exact(&mut reply)?;
        assert_eq!(&reply, b"HTTP/1.1 503", "the seventeenth is refused");
        held.push(refused);
        Ok(held)
    })?;
    wait_until("places are free after their time", PATIENCE * 2, || {
        exporter.metrics().is_ok_and(|text| text.contains("fatpath_up{gateway=\"x\"} 1"))
    })?;
    drop(held);
    Ok(())
}

/// Without a key manager packets that need an SA are dropped, and a monitor of the view socket is none.
fn looking_monitor() -> Outcome {
    let site = Site::new()?;
    let [a, _b] = site.start()?;
    site.state("a", "delete", site.esp.spi_out)?;
    let larval = || -> Outcome<Value> {
        site.a.sh("ping -c 1 -W 1 10.2.0.1 || true")?;
        Ok(json(&a, "summary")?["sas"]["larval"].clone())
    };
    let monitor = |socket: &str| -> Outcome<UnixStream> {
        let mut stream = UnixStream::connect(site.scratch.file(socket))?;
        stream.write_all(b"{\"request\":\"monitor\"}\n")?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        assert!(line.contains("monitoring"), "{line}");
        Ok(stream)
    };
    assert_eq!(larval()?, 0);
    let looks = monitor("a.view.sock")?;
    assert_eq!(larval()?, 0);
    let full = monitor("a.sock")?;
    assert_eq!(larval()?, 1);
    drop((looks, full));
    Ok(())
}

fn names() -> Outcome {
    const TUNNEL: &str = r#"
[[tunnel]]
name = "site"
local = { address = "127.0.0.1", nets = ["10.1.0.0/24"] }
remote = { address = "127.0.0.2", nets = ["10.2.0.0/24"] }
keys = "ike"
"#;
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let gateway = Gateway::start(&host, &scratch, "x", TUNNEL)?;
    let ends = "src 127.0.0.1 dst 127.0.0.2 proto esp spi 0x1000";
    let add = format!(
        "ip --instance x xfrm state add {ends} reqid 7 mode tunnel aead rfc4106(gcm(aes)) {} 128 limit time-hard 1000",
        Esp::key(1, 36)
    );
    run(Command::new(fatpath()).args(add.split(' ')).env("FATPATH_RUNDIR", scratch.path()))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let exporter = Exporter::start(&scratch, &[])?;
    let text = exporter.metrics()?;
    for sample in [
        r#"fatpath_peer_info{gateway="x",src="127.0.0.1",dst="127.0.0.2",name="site"} 1"#,
        r#"fatpath_peer_info{gateway="x",src="127.0.0.2",dst="127.0.0.1",name="site"} 1"#,
    ] {
        assert!(text.lines().any(|line| line == sample), "no {sample} in {text}");
    }
    let labels = r#"{gateway="x",src="127.0.0.1",dst="127.0.0.2",reqid="7",dir="out"}"#;
    let name = format!("fatpath_sa_expires_timestamp_seconds{labels} ");
    let at: u64 =
        text.lines().find_map(|line| line.strip_prefix(&name)).ok_or(format!("no {name} in {text}"))?.parse()?;
    assert!((now + 990..=now + 1001).contains(&at), "{at} at {now}");
    assert_eq!(complaints(&text, &scratch)?, Vec::<String>::new());
    let shown = gateway.show("sa --sums")?;
    assert!(shown.contains(" expires in 99"), "{shown}");
    Ok(())
}

fn signal(gateway: &Gateway, signal: Signal) -> Outcome {
    Ok(kill_process(Pid::from_raw(gateway.id().try_into()?).ok_or("no process number")?, signal)?)
}

fn hung() -> Outcome {
    let (scratch, hosts) = (Scratch::new()?, [Netns::new("x")?, Netns::new("y")?]);
    let hung = Gateway::start(&hosts[0], &scratch, "x", LAN)?;
    let _live = Gateway::start(&hosts[1], &scratch, "y", LAN)?;
    let exporter = Exporter::start(&scratch, &[])?;
    let has = |text: &str, up: [u8; 2]| {
        let [x, y] = up;
        text.contains(&format!("fatpath_up{{gateway=\"x\"}} {x}"))
            && text.contains(&format!("fatpath_up{{gateway=\"y\"}} {y}"))
    };
    signal(&hung, Signal::STOP)?;
    // Also for requests at once, which share a scrape.
    let texts: Vec<Outcome<String>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| exporter.metrics())).collect();
        threads.into_iter().map(|it| it.join().unwrap_or_else(|_| Err("a request panicked".into()))).collect()
    });
    for text in texts {
        let text = text?;
        assert!(has(&text, [0, 1]), "{text}");
    }
    signal(&hung, Signal::CONT)?;
    wait_until("the other answers again", PATIENCE, || exporter.metrics().is_ok_and(|text| has(&text, [1, 1])))?;
    let log = exporter.process.output();
    assert_eq!(log.matches("x: no answer within 2 seconds").count(), 1, "{log}");
    Ok(())
}

/// A gateway that was killed is down for an exporter that starts later, too.
fn killed() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let mut gateway = Gateway::start(&host, &scratch, "x", LAN)?;
    gateway.kill()?;
    let exporter = Exporter::start(&scratch, &[])?;
    wait_until("it is down", PATIENCE, || {
        exporter.metrics().is_ok_and(|text| text.contains("fatpath_up{gateway=\"x\"} 0"))
    })
}

fn malformed() -> Outcome {
    let scratch = Scratch::new()?;
    let listener = UnixListener::bind(scratch.file("bad.sock"))?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            let _ = BufReader::new(&stream).read_line(&mut line);
            let _ = stream.write_all(b"{\"reply\":\"show\",\"shown\":\n\nmore");
        }
    });
    let exporter = Exporter::start(&scratch, &["-i", "bad"])?;
    for _ in 0..3 {
        let text = exporter.metrics()?;
        assert!(text.contains("fatpath_up{gateway=\"bad\"} 0"), "{text}");
    }
    let log = exporter.process.output();
    assert_eq!(log.matches("reply not understood").count(), 1, "{log}");
    assert_eq!(log.lines().count(), 2, "{log}");
    Ok(())
}

/// Sends datagrams of 1000 bytes for a time, 200 a second, and prints the number of datagrams.
const SENDER: &str = r#"
import socket, sys, time
end = time.monotonic() + float(sys.argv[1])
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sent, start = 0, time.monotonic()
while time.monotonic() < end:
    sender.sendto(bytes(1000), ("10.2.0.1", 9))
    sent += 1
    time.sleep(max(0, start + sent / 200 - time.monotonic()))
print(sent)
"#;

/// Number of rekeys.
const REKEYS: u32 = 5;

/// Query of Prometheus's API: the way, and its parameters.
type Query<'a> = dyn Fn(&str, &[String]) -> Outcome<Value> + 'a;

/// Checks that each query of the dashboard has a series. Only drops may have none.
fn dashboard(query: &Query<'_>) -> Outcome {
    let dashboard: Value = serde_json::from_str(include_str!("../../../dashboards/fatpath.json"))?;
    let panels = dashboard["panels"].as_array().ok_or("no panels")?;
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions: Vec<&str> = targets.filter_map(|target| target["expr"].as_str()).collect();
    assert!(expressions.len() >= panels.len(), "{expressions:?}");
    for expression in expressions {
        let expression = expression.replace("$gateway", ".+").replace("$__rate_interval", "10s");
        let found = query("query", &[format!("query={expression}")])?;
        let series = found.as_array().ok_or(format!("{expression}: {found}"))?;
        assert!(!series.is_empty() || expression.contains("fatpath_drop_packets_total"), "{expression}");
    }
    Ok(())
}

fn rules() -> Outcome {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/prometheus");
    let mut command = Command::new(unpacked("usr/bin/promtool"));
    let output = command.args(["test", "rules", "fatpath.rules.test.yml"]).current_dir(dir).output()?;
    assert!(output.status.success(), "{output:?}");
    // Each alert is in a test.
    let [rules, tests] = ["fatpath.rules.yml", "fatpath.rules.test.yml"]
        .map(|name| fs::read_to_string(format!("{dir}/{name}")).unwrap_or_default());
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 9, "{alerts:?}");
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
    }
    Ok(())
}

fn rekeys() -> Outcome {
    const STREAM: Duration = Duration::from_secs(32);
    let site = Site::new()?;
    let [a, _b] = site.start()?;
    let scratch = &site.scratch;
    let exporter = Exporter::start(scratch, &["-i", "a", "-i", "b"])?;
    let config = format!(
        "global:\n  scrape_interval: 1s\nscrape_configs:\n- job_name: fatpath\n  static_configs:\n  - targets: ['{LISTEN}']\n"
    );
    let config_file = scratch.file("prometheus.yml");
    fs::write(&config_file, config)?;
    let mut command = exporter.host.command(unpacked("usr/bin/prometheus"));
    command.arg(format!("--config.file={}", config_file.display()));
    command.arg(format!("--storage.tsdb.path={}", scratch.file("tsdb").display()));
    command.args(["--web.listen-address=127.0.0.1:9090", "--log.level=warn"]);
    let prometheus = Process::spawn(&mut command, scratch)?;
    let query: &Query<'_> = &|way: &str, words: &[String]| -> Outcome<Value> {
        let url = format!("http://127.0.0.1:9090/api/v1/{way}");
        let mut all = vec!["--get"];
        for word in words {
            all.extend(["--data-urlencode", word]);
        }
        all.push(&url);
        let answer: Value = serde_json::from_str(&exporter.curl(&all)?)?;
        Ok(answer["data"]["result"].clone())
    };
    let is_scraped = || {
        let up = query("query", &["query=fatpath_up == 1".to_owned()]);
        up.is_ok_and(|up| up.as_array().is_some_and(|up| up.len() == 2))
    };
    wait_until("Prometheus has scraped both gateways", PATIENCE, is_scraped)
        .map_err(|err| format!("{}: {}", err.message().unwrap_or_default(), prometheus.output()))?;
    let sums = |gateway: &Gateway| -> Outcome<u64> {
        let shown = json(gateway, "sa --sums")?;
        let sums = shown["sums"].as_array().ok_or("no sums")?;
        let out = sums.iter().find(|sum| sum["dir"] == "out").ok_or("no sum")?;
        out["bytes"].as_u64().ok_or_else(|| "no bytes".into())
    };
    let before = sums(&a)?;
    let script = scratch.file("sender.py");
    fs::write(&script, SENDER)?;
    let seconds = STREAM.as_secs().to_string();
    let mut sender = Process::spawn(site.a.command("python3").arg(&script).arg(seconds), scratch)?;
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let began = now();
    let mut spi = site.esp.spi_out;
    for rekey in 1..=REKEYS {
        thread::sleep(Duration::from_secs(4));
        let next = 0x2000 + rekey;
        site.state("b", "add", next)?;
        site.state("a", "add", next)?;
        thread::sleep(Duration::from_secs(1));
        site.state("a", "delete", spi)?;
        site.state("b", "delete", spi)?;
        spi = next;
    }
    assert!(sender.wait(STREAM + PATIENCE)?.success(), "{}", sender.output());
    let sent: u64 = sender.output().trim().parse()?;
    let (want, got) = (sent * 1028, sums(&a)? - before);
    let is_near = |a: f64, b: f64, part: f64| (a / b - 1.0).abs() <= part;
    assert!(is_near(got as f64, want as f64, 0.01), "{got} bytes in the sum, {want} sent");
    // While the stream ran at its full rate: the rate of the tunnel is that of the device before it.
    let (from, to) = (began + 12, began + STREAM.as_secs() - 2);
    let rates = |series: &str| -> Outcome<Vec<f64>> {
        let words =
            [format!("query=rate({series}[10s])"), format!("start={from}"), format!("end={to}"), "step=1".to_owned()];
        let found = query("query_range", &words)?;
        let values = found[0]["values"].as_array().ok_or(format!("{series}: {found}"))?.clone();
        assert_eq!(found.as_array().map(Vec::len), Some(1), "{series}: {found}");
        Ok(values.iter().filter_map(|pair| pair[1].as_str()?.parse().ok()).collect())
    };
    let of_tunnel = rates("fatpath_sa_bytes_total{gateway=\"a\",dir=\"out\"}")?;
    let of_device = rates("fatpath_link_receive_bytes_total{gateway=\"a\",link=\"tun0\"}")?;
    assert!(of_tunnel.len() as u64 >= to - from, "{of_tunnel:?}");
    // A busy machine may take a tenth of a second from one answer of a scrape to the next.
    let is_dip = |(tunnel, device): &(&f64, &f64)| **tunnel <= 0.0 || !is_near(**tunnel, **device, 0.03);
    let dips: Vec<_> = of_tunnel.iter().zip(&of_device).filter(is_dip).collect();
    assert!(dips.is_empty(), "of the tunnel and of the device: {dips:?}");
    dashboard(query)?;
    // Each sample was scraped in OpenMetrics, by Prometheus's Accept.
    let lost = query("query", &["query=min_over_time(up[20s])".to_owned()])?;
    assert_eq!(lost[0]["value"][1], "1", "{lost}: {}", prometheus.output());
    assert_eq!(complaints(&exporter.metrics()?, scratch)?, Vec::<String>::new());
    Ok(())
}
