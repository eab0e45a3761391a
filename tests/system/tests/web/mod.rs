//! `fatpath web`: refusals, events of gateways, and clients that do harm.

mod browser;
mod page;
mod served;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::Signal;
use serde_json::Value;
use system::{
    Esp, Gateway, Mode, Need, Netns, OUTER_V4, Outcome, Process, Scratch, fatpath, run, trial, veth, wait_until,
};

use crate::tunnel;
use served::{PATIENCE, Served, next_line};

/// Limit of open pages, and of other connections.
const PLACES: usize = 16;

const LAN: &str = "[[link]]\nname = \"lan\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n";

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];
    const SOCKET: &[Need] = &[Need::Namespaces, Need::Tun, Need::CURL];
    let mut trials = vec![
        trial("web/request_without_session_or_of_another_site_is_refused", NEEDS, requests),
        trial("web/page_is_served_on_loopback_or_a_unix_socket_alone", SOCKET, listeners),
        trial("web/events_have_rates_and_the_end_of_a_gateway", NEEDS, events),
        trial("web/tunnel_without_sas_or_peer_is_faulty", NEEDS, faulty_tunnel),
        trial("web/sixteen_pages_leave_room_for_requests", NEEDS, pages),
        trial("web/idle_and_slow_clients_cost_their_places_alone", NEEDS, slow_clients),
        trial("web/malformed_reply_of_a_gateway_is_one_line", &[Need::Namespaces], malformed),
        trial("web/trace_has_the_steps_of_fatpath_trace", NEEDS, traces),
        trial("web/results_are_charts_or_say_what_is_wrong", &[Need::Namespaces], results),
    ];
    trials.extend(page::trials());
    trials
}

/// A gateway with packets that it answers, and packets that it drops.
struct Site {
    scratch: Scratch,
    host: Netns,
    gateway: Gateway,
    _pings: [Process; 2],
}

impl Site {
    fn start() -> Outcome<Self> {
        let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
        let gateway = Gateway::start(&host, &scratch, "x", LAN)?;
        host.sh("ip addr add 10.1.0.2/24 dev lan; ip link set lan up; ip route add 10.9.0.0/24 dev lan")?;
        let ping = |to: &str| Process::spawn(host.command("ping").args(["-i", "0.05", "-q", to]), &scratch);
        let pings = [ping("10.1.0.1")?, ping("10.9.0.1")?];
        Ok(Self { scratch, host, gateway, _pings: pings })
    }
}

fn requests() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start(&host, &scratch, "x", LAN)?;
    let web = Served::start(&scratch, &[])?;
    assert_eq!(web.token.len(), 64, "{}", web.token);
    let origin = "Origin: http://HOST";
    let json = "Content-Type: application/json";
    let asked = r#"{"gateway":"x","filter":"","packets":1}"#;
    // The page itself shows no gateway. All that does is refused without the session.
    for path in ["/", "/page.css", "/page.js", "/icon.svg"] {
        let reply = web.request(&[&format!("GET {path} HTTP/1.1"), "Host: HOST"], "")?;
        assert_eq!(reply.code, 200, "{path}");
        let policy = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";
        assert_eq!(reply.header("content-security-policy"), Some(policy));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("cross-origin-resource-policy"), Some("same-origin"));
        assert!(!reply.body.contains(&web.token) && !reply.body.contains("10.1.0.1"));
        assert_eq!(web.request(&[&format!("HEAD {path} HTTP/1.1"), "Host: HOST"], "")?.body, "");
    }
    let wrong = "0".repeat(64);
    let bearer = format!("Authorization: Bearer {}", web.token);
    for (head, body, want) in [
        (&["GET /events HTTP/1.1", "Host: HOST"][..], "", 403),
        (&["GET /results HTTP/1.1", "Host: HOST", &bearer], "", 403),
        (&["GET /results/0.svg HTTP/1.1", "Host: HOST", "Cookie: fatpath-0=0"], "", 403),
        (&["POST /trace HTTP/1.1", "Host: HOST", origin, json], asked, 403),
        (&["POST /session HTTP/1.1", "Host: HOST", origin], &wrong, 403),
        (&["POST /session HTTP/1.1", "Host: HOST", origin], "", 403),
        (&["POST /session HTTP/1.1", "Host: HOST"], &web.token, 403),
        (&["POST /session HTTP/1.1", "Host: HOST", "Origin: null"], &web.token, 403),
        (&["POST /session HTTP/1.1", "Host: HOST", "Origin: http://evil.example"], &web.token, 403),
        (&["POST /session HTTP/1.1", "Host: HOST", "Origin: http://127.0.0.1:3000"], &web.token, 403),
        (&["GET /session HTTP/1.1", "Host: HOST"], "", 405),
        // A name of another site that leads here.
        (&["GET / HTTP/1.1", "Host: evil.example"], "", 421),
        (&["GET / HTTP/1.1", "Host: evil.example:9848"], "", 421),
        (&["GET / HTTP/1.1", "Host: localhost.evil.example"], "", 421),
        (&["GET / HTTP/1.1", "Host: HOST", "Host: evil.example"], "", 421),
        (&["GET / HTTP/1.1"], "", 421),
        (&["GET http://evil.example/ HTTP/1.1", "Host: HOST"], "", 421),
        (&["POST /session HTTP/1.1", "Host: evil.example", "Origin: http://evil.example"], &web.token, 421),
        (&["GET / HTTP/1.1", "Host: localhost"], "", 200),
        (&["GET / HTTP/1.1", "Host: [::1]:9848"], "", 200),
        (&["PUT / HTTP/1.1", "Host: HOST"], "", 405),
        (&["POST / HTTP/1.1", "Host: HOST", origin], "", 405),
        (&["OPTIONS /trace HTTP/1.1", "Host: HOST", "Origin: http://evil.example"], "", 405),
    ] {
        let reply = web.request(head, body)?;
        assert_eq!(reply.code, want, "{head:?}: {reply:?}");
        assert_eq!(reply.header("set-cookie"), None, "{head:?}");
        assert!(reply.header("access-control-allow-origin").is_none() && !reply.body.contains(&web.token));
    }
    let reply = web.request(&["POST /session HTTP/1.1", "Host: HOST", origin], &web.token)?;
    let cookie = reply.header("set-cookie").ok_or("no cookie")?;
    assert!(cookie.starts_with("fatpath-") && cookie.ends_with("; Path=/; SameSite=Strict; HttpOnly"), "{cookie}");
    assert!(!cookie.contains(&web.token), "the cookie is another secret");
    let cookie = format!("Cookie: a=b; {}", web.cookie()?);
    let long = format!("X: {}", "x".repeat(70_000));
    let long_filter = format!(r#"{{"gateway":"x","filter":"{}","packets":1}}"#, "x".repeat(70_000));
    for (head, body, want) in [
        (&["GET /results HTTP/1.1", "Host: HOST", &cookie][..], "", 200),
        (&["GET /results HTTP/1.1", "Host: HOST", &cookie, "Sec-Fetch-Site: same-origin"], "", 200),
        // A page of another site, or of another port of this host, to which browsers send the cookie.
        (&["GET /events HTTP/1.1", "Host: HOST", &cookie, "Sec-Fetch-Site: cross-site"], "", 403),
        (&["GET /events HTTP/1.1", "Host: HOST", &cookie, "Sec-Fetch-Site: same-site"], "", 403),
        (&["GET /events HTTP/1.1", "Host: evil.example", &cookie], "", 421),
        (&["POST /trace HTTP/1.1", "Host: HOST", &cookie, json], asked, 403),
        (&["POST /trace HTTP/1.1", "Host: HOST", &cookie, json, "Origin: http://evil.example"], asked, 403),
        (&["POST /trace HTTP/1.1", "Host: HOST", &cookie, "Content-Type: text/plain", origin], asked, 415),
        (&["POST /trace HTTP/1.1", "Host: HOST", &cookie, json, origin], "{", 400),
        (&["POST /trace HTTP/1.1", "Host: HOST", &cookie, json, origin], &asked.replace('1', "0"), 400),
        (&["POST /trace HTTP/1.1", "Host: HOST", &cookie, json, origin], &asked.replace('1', "101"), 400),
        (&["POST /trace HTTP/1.1", "Host: HOST", &cookie, json, origin], &asked.replace('x', "../x"), 404),
        (&["POST /trace HTTP/1.1", "Host: HOST", &cookie, json, origin], &long_filter, 413),
        (&["GET /trace HTTP/1.1", "Host: HOST", &cookie], "", 405),
        (&["GET /results/0.svg HTTP/1.1", "Host: HOST", &cookie], "", 404),
        (&["GET /../x.sock HTTP/1.1", "Host: HOST", &cookie], "", 404),
        (&["GET / HTTP/1.1", "Host: HOST", &long], "", 431),
    ] {
        let reply = web.request(head, body)?;
        let short: Vec<&str> = head.iter().map(|line| &line[..line.len().min(60)]).collect();
        assert_eq!(reply.code, want, "{short:?}: {reply:?}");
    }
    Ok(())
}

fn listeners() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start(&host, &scratch, "x", LAN)?;
    for address in ["0.0.0.0:9848", "192.0.2.1:9848", "[::]:9848", "[2001:db8::1]:9848", "[::ffff:192.0.2.1]:9848"] {
        let mut command = host.command(fatpath());
        let output = command.args(["web", "--listen", address]).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains("is not an address of loopback"), "{error}");
    }
    let path = scratch.file("web.sock");
    let start = || -> Outcome<Process> {
        let mut command = host.command(fatpath());
        command.arg("web").arg("--socket").arg(&path).env("FATPATH_RUNDIR", scratch.path());
        Process::spawn(&mut command, &scratch)
    };
    let ready = |process: &mut Process| {
        wait_until("the page is served", PATIENCE, || process.output().contains("/#") || !process.is_running())
    };
    let code = |words: &[&str]| -> Outcome<String> {
        let mut command = Command::new("curl");
        command.args(["--silent", "--max-time", "20", "--output", "/dev/null", "--write-out", "%{http_code}"]);
        run(command.arg("--unix-socket").arg(&path).args(words))
    };
    let mut killed = start()?;
    ready(&mut killed)?;
    let data = fs::symlink_metadata(&path)?;
    assert!(data.file_type().is_socket() && data.permissions().mode() & 0o007 == 0, "{:o}", data.permissions().mode());
    killed.signal(Signal::KILL)?;
    killed.wait(PATIENCE)?;
    // What it left behind is replaced; a socket that is in use, or another file, is not.
    let mut process = start()?;
    ready(&mut process)?;
    let output = process.output();
    assert!(output.contains(&format!("ssh -L 9848:{}", path.display())), "{output}");
    let token =
        output.lines().find_map(|line| line.strip_prefix("http://localhost:9848/#")).ok_or("no URL")?.to_owned();
    let mut second = start()?;
    assert!(!second.wait(PATIENCE)?.success() && second.output().contains("in use"), "{}", second.output());
    // A port of another host is forwarded to it.
    assert_eq!(code(&["http://localhost:8000/"])?, "200");
    assert_eq!(code(&["http://evil.example/"])?, "421");
    assert_eq!(code(&["http://localhost:8000/results"])?, "403");
    let origin = "Origin: http://localhost:8000";
    assert_eq!(code(&["--header", origin, "--data", &token, "http://localhost:8000/session"])?, "200");
    process.signal(Signal::TERM)?;
    process.wait(PATIENCE)?;
    assert!(!path.exists(), "it removes its socket");
    fs::write(&path, "precious")?;
    let mut third = start()?;
    assert!(!third.wait(PATIENCE)?.success() && third.output().starts_with("Error: "), "{}", third.output());
    assert_eq!(fs::read_to_string(&path)?, "precious");
    Ok(())
}

fn link<'a>(event: &'a Value, name: &str) -> &'a Value {
    let links = event["picture"]["links"].as_array();
    links.and_then(|links| links.iter().find(|link| link["name"] == name)).unwrap_or(&Value::Null)
}

fn events() -> Outcome {
    let mut site = Site::start()?;
    let web = Served::start(&site.scratch, &[])?;
    let cookie = web.cookie()?;
    let asked = Instant::now();
    let mut events = web.events(&cookie, "x")?.map_err(|reply| format!("{reply:?}"))?;
    let first = events.next()?;
    assert!(link(&first, "lan")["up"] == true, "the first event has the links: {first}");
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    let has_rates = |event: &Value| {
        let drop =
            event["picture"]["drops"].as_array().and_then(|drops| drops.iter().find(|it| it["reason"] == "NoRoute"));
        let drops = drop.is_some_and(|drop| drop["rate"].as_f64() > Some(1.0) && !drop["remedy"].is_null());
        link(event, "lan")["received"].as_f64() > Some(1000.0) && drops && event["failure"].is_null()
    };
    let live = events.until(PATIENCE, has_rates)?;
    assert_eq!((&live["gateways"], &live["gateway"]), (&serde_json::json!(["x"]), &"x".into()));
    assert!(live["age_ms"].as_u64() < Some(1000), "{live}");
    let busy = live["picture"]["workers"][0]["busy"].as_f64();
    assert!(busy > Some(0.0) && busy < Some(1.0), "{live}");
    site.gateway.kill()?;
    let gone = events.until(Duration::from_secs(5), |event| !event["failure"].is_null())?;
    let failure = gone["failure"].as_str().unwrap_or_default();
    assert!(failure.contains("no gateway named x is running") && !failure.contains('\n'), "{failure}");
    assert!(link(&gone, "lan")["up"] == true, "the last answer stays: {gone}");
    let _next = Gateway::start(&site.host, &site.scratch, "x", LAN)?;
    let again = events.until(PATIENCE, |event| event["failure"].is_null())?;
    assert!(again["picture"]["started_ms"].as_u64() > live["picture"]["started_ms"].as_u64(), "{again}");
    let log = web.process.output();
    assert_eq!((log.matches("no gateway named x").count(), log.matches("answers again").count()), (1, 1), "{log}");
    // No page, no questions.
    drop(events);
    let mut other = web.events(&cookie, "y")?.map_err(|reply| format!("{reply:?}"))?;
    let none = other.next()?;
    assert!(
        none["failure"].as_str().is_some_and(|why| why.contains("no gateway y")) && none["picture"].is_null(),
        "{none}"
    );
    Ok(())
}

fn faulty_tunnel() -> Outcome {
    let (scratch, a, b) = (Scratch::new()?, Netns::new("a")?, Netns::new("b")?);
    veth((&a, "wan0"), (&b, "wan0"))?;
    let esp = Esp { udp: true, ..Esp::new(Mode::Tunnel, OUTER_V4, &[("10.1.0.0/24", "10.2.0.0/24")]) };
    let there = esp.reversed();
    let _near = tunnel::start_with(&a, "a", &esp, 1, &scratch, &tunnel::config(&esp, 1))?;
    let mut far = tunnel::start_with(&b, "b", &there, 2, &scratch, &tunnel::config(&there, 2))?;
    let web = Served::start(&scratch, &["-i", "a"])?;
    let cookie = web.cookie()?;
    let mut events = web.events(&cookie, "a")?.map_err(|reply| format!("{reply:?}"))?;
    let _ping = Process::spawn(a.command("ping").args(["-i", "0.1", "-q", "10.2.0.1"]), &scratch)?;
    let fault = |event: &Value| event["picture"]["tunnels"][0]["fault"].as_str().map(str::to_owned);
    let sent = |event: &Value| event["picture"]["tunnels"][0]["sent"].as_f64();
    let up = events.until(PATIENCE, |event| fault(event).is_none() && sent(event) > Some(0.0))?;
    assert_eq!(up["picture"]["tunnels"][0]["remote"], OUTER_V4[1], "{up}");
    // The peer's kernel answers for the port of a process that is gone.
    far.kill()?;
    let refused = events.until(Duration::from_secs(4), |event| fault(event).is_some())?;
    assert_eq!(fault(&refused).as_deref(), Some("Connection refused"), "{refused}");
    let [src, dst] = OUTER_V4;
    let words = format!("ip --instance a xfrm state delete src {src} dst {dst} proto esp spi {:#x}", esp.spi_out);
    run(Command::new(fatpath()).args(words.split(' ')).env("FATPATH_RUNDIR", scratch.path()))?;
    events.until(Duration::from_secs(4), |event| {
        fault(event).as_deref() == Some("no SA for 10.1.0.0/24 > 10.2.0.0/24 dir out")
    })?;
    Ok(())
}

fn pages() -> Outcome {
    let site = Site::start()?;
    let web = Served::start(&site.scratch, &[])?;
    let cookie = web.cookie()?;
    let mut open = Vec::new();
    for _ in 0..PLACES {
        open.push(web.events(&cookie, "x")?.map_err(|reply| format!("{reply:?}"))?);
    }
    let refused = web.events(&cookie, "x")?.err().ok_or("the seventeenth is served")?;
    assert_eq!((refused.code, refused.header("retry-after")), (503, Some("5")), "{refused:?}");
    for events in &mut open {
        events.until(PATIENCE, |event| link(event, "lan")["received"].as_f64() > Some(0.0))?;
    }
    // One of them starts a trace.
    let mut trace = web.trace(&cookie, "x", "icmp", 1)?;
    assert_eq!(next_line(&mut trace)?["tracing"], true);
    assert!(next_line(&mut trace)?["packet"].is_u64());
    assert_eq!(web.get("/results", &cookie)?.code, 200);
    // All pages together are one client of the gateway. A summary is asked for once a second.
    let shows = || -> Outcome<u64> {
        let shown: Value = serde_json::from_str(&site.gateway.show("--json counters")?)?;
        let all = shown["counters"].as_array().ok_or("no counters")?;
        let found = all.iter().find(|it| it["name"] == "ShowSlices").and_then(|it| it["value"].as_u64());
        Ok(found.ok_or("no slices")?)
    };
    let (before, began) = (shows()?, Instant::now());
    thread::sleep(Duration::from_secs(4));
    let (after, seconds) = (shows()?, began.elapsed().as_secs_f64());
    let of_pages = (after - before) as f64 / seconds;
    assert!(of_pages < 40.0, "{of_pages} slices a second for 16 pages");
    drop(open.pop());
    wait_until("its place is free", PATIENCE, || web.events(&cookie, "x").is_ok_and(|events| events.is_ok()))?;
    Ok(())
}

/// Resident memory of a process in KiB.
fn resident(id: u32) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn slow_clients() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let mut file = String::new();
    // Events of a hundred links are long.
    for at in 0..100 {
        file += &format!("[[link]]\nname = \"lan{at}\"\nkind = \"udp\"\nbind = \"127.0.0.1:{}\"\n", 5000 + at);
    }
    let _gateway = Gateway::start(&host, &scratch, "x", &file)?;
    let web = Served::start(&scratch, &[])?;
    let cookie = web.cookie()?;
    let mut live = web.events(&cookie, "x")?.map_err(|reply| format!("{reply:?}"))?;
    let long = live.next()?.to_string().len();
    assert!(long > 20_000, "{long}");
    // Pages that do not read their events: 15 and the live one are all.
    let slow = (1..PLACES).map(|_| -> Outcome<TcpStream> {
        let mut stream = web.connect()?;
        set_socket_recv_buffer_size(&stream, 4096)?;
        let head = format!("GET /events?gateway=x HTTP/1.1\r\nHost: {}\r\nCookie: {cookie}\r\n\r\n", web.address);
        stream.write_all(head.as_bytes())?;
        Ok(stream)
    });
    let slow = slow.collect::<Outcome<Vec<_>>>()?;
    // Clients that send nothing, or half a request, or half a body.
    let parts = [
        &b""[..],
        b"GET / HTT",
        b"POST /session HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Length: 9\r\n\r\nx",
    ];
    let idle = (0..PLACES).map(|at| -> Outcome<TcpStream> {
        let mut stream = web.connect()?;
        stream.write_all(parts[at % parts.len()])?;
        if at % 2 == 0 {
            stream.shutdown(Shutdown::Write)?;
        }
        Ok(stream)
    });
    let idle = idle.collect::<Outcome<Vec<_>>>()?;
    let before = resident(web.process.id())?;
    // The open page goes on, and places of others are free after their time.
    let began = Instant::now();
    let mut count = 0;
    while began.elapsed() < Duration::from_secs(8) {
        live.next()?;
        count += 1;
    }
    assert!(count >= 4, "{count} events in 8 seconds");
    wait_until("requests are served", PATIENCE * 2, || web.get("/results", &cookie).is_ok_and(|it| it.code == 200))?;
    let opens = || web.events(&cookie, "x").is_ok_and(|events| events.is_ok());
    wait_until("pages that read nothing are closed", Duration::from_secs(90), opens)?;
    let after = resident(web.process.id())?;
    assert!(after < before + 4096, "{before} KiB before, {after} KiB after");
    drop((slow, idle));
    Ok(())
}

fn malformed() -> Outcome {
    let scratch = Scratch::new()?;
    let listener = UnixListener::bind(scratch.file("bad.sock"))?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = [0; 4096];
            let _ = stream.read(&mut bytes);
            let _ = stream.write_all(b"{\"reply\":\"show\",\"shown\":\x1b[2J<img>\n\nmore");
        }
    });
    let web = Served::start(&scratch, &["-i", "bad"])?;
    let cookie = web.cookie()?;
    let mut events = web.events(&cookie, "bad")?.map_err(|reply| format!("{reply:?}"))?;
    let event = events.until(PATIENCE, |event| !event["failure"].is_null())?;
    let failure = event["failure"].as_str().unwrap_or_default();
    assert!(failure.contains("reply not understood") && !failure.contains(['\n', '\x1b']), "{failure}");
    let mut trace = web.trace(&cookie, "bad", "", 1)?;
    let error = next_line(&mut trace)?;
    assert!(error["error"].as_str().is_some_and(|why| why.contains("reply not understood")), "{error}");
    thread::sleep(Duration::from_secs(3));
    let log = web.process.output();
    assert_eq!((log.matches("reply not understood").count(), log.lines().count()), (1, 2), "{log}");
    Ok(())
}

fn traces() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start(&host, &scratch, "x", LAN)?;
    host.sh("ip addr add 10.1.0.2/24 dev lan; ip link set lan up; ip route add 10.9.0.0/24 dev lan")?;
    let web = Served::start(&scratch, &[])?;
    let cookie = web.cookie()?;
    // Without those of a hand-over, which depends on the flow.
    let words = |steps: &Value| -> Vec<String> {
        let steps = steps.as_array().map_or(&[][..], Vec::as_slice);
        let words = steps.iter().filter_map(|step| step["step"].as_str()).filter(|step| *step != "hand-over");
        let mut words: Vec<String> = words.map(str::to_owned).collect();
        words.dedup();
        words
    };
    for to in ["10.1.0.1", "10.9.0.1"] {
        let mut stream = web.trace(&cookie, "x", &format!("icmp and dst host {to}"), 1)?;
        assert_eq!(next_line(&mut stream)?["tracing"], true);
        // A further one is refused in one line.
        let mut other = web.trace(&cookie, "x", "", 1)?;
        assert_eq!(next_line(&mut other)?["error"], "another trace is running");
        host.sh(&format!("ping -c 1 -W 1 {to} || true"))?;
        let traced = next_line(&mut stream)?;
        let mut end = next_line(&mut stream)?;
        while end["end"].is_null() {
            assert_eq!(end["packet"], traced["packet"], "{end}");
            end = next_line(&mut stream)?;
        }
        assert!(end["end"].as_str().is_some_and(|end| end.starts_with("1 packet:")), "{end}");
        let mut command = Command::new(fatpath());
        command.args(["trace", "-i", "x", "-c", "1", "--json", "--filter", &format!("icmp and dst host {to}")]);
        let mut tracer = Process::spawn(command.env("FATPATH_RUNDIR", scratch.path()), &scratch)?;
        // The page's trace, which may not have ended at the gateway, gives way.
        let is_traced = wait_until("it has traced a packet", PATIENCE, || {
            let _ = host.sh(&format!("ping -c 1 -W 1 {to} || true"));
            tracer.output().contains("\"steps\"")
        });
        is_traced.map_err(|why| format!("{why:?}: {}", tracer.output()))?;
        let output = tracer.output();
        let printed: Value = serde_json::from_str(output.lines().next().unwrap_or_default())?;
        assert_eq!(words(&traced["steps"]), words(&printed["steps"]), "{to}");
        assert!(!words(&traced["steps"]).is_empty(), "{traced}");
        let _ = tracer.wait(PATIENCE);
    }
    let mut wrong = web.trace(&cookie, "x", "<img>\nx", 1)?;
    let error = next_line(&mut wrong)?;
    assert!(error["error"].as_str().is_some_and(|why| why.contains("is no term") && !why.contains('\n')), "{error}");
    // One that waits longer than other requests may take goes on.
    let mut patient = web.trace(&cookie, "x", "icmp", 1)?;
    assert_eq!(next_line(&mut patient)?["tracing"], true);
    thread::sleep(Duration::from_secs(12));
    host.sh("ping -c 1 -W 1 10.1.0.1")?;
    assert!(next_line(&mut patient)?["packet"].is_u64());
    drop(patient);
    // A client that goes away ends its trace, which the next one may come before.
    let next = || {
        let mut trace = web.trace(&cookie, "x", "esp", 1).ok()?;
        let begins = next_line(&mut trace).is_ok_and(|line| line["tracing"] == true);
        begins.then_some(trace)
    };
    let mut gone = None;
    wait_until("a trace begins", PATIENCE, || {
        gone = next();
        gone.is_some()
    })?;
    drop(gone);
    wait_until("another trace begins", PATIENCE, || next().is_some())
}

fn results() -> Outcome {
    let scratch = Scratch::new()?;
    let [good, bad] = ["good.json", "bad <b>.json"].map(|name| scratch.file(name));
    fs::write(
        &good,
        r#"{"bench":"demo","rounds":3,"cases":[{"name":"<img src=x>","gbps":2.5},{"name":"veth","gbps":40}]}"#,
    )?;
    fs::write(&bad, "no JSON\n")?;
    let missing = scratch.file("missing.json");
    let files = [&good, &bad, &missing].map(|file| file.display().to_string());
    let options: Vec<&str> = files.iter().flat_map(|file| ["--results", file.as_str()]).collect();
    let web = Served::start(&scratch, &options)?;
    let cookie = web.cookie()?;
    let list: Value = serde_json::from_str(&web.get("/results", &cookie)?.body)?;
    assert_eq!((&list[0]["name"], &list[1]["name"]), (&"good.json".into(), &"bad <b>.json".into()), "{list}");
    assert!(
        list[0]["text"].as_str().is_some_and(|text| text.contains("the wire, no encryption: 40.0; <img src=x>: 2.50"))
    );
    assert!(list[1]["error"].as_str().is_some_and(|why| why.contains("not the output of `fatpath demo --json`")));
    assert!(list[2]["error"].as_str().is_some_and(|why| why.contains("No such file")), "{list}");
    let chart = web.get("/results/0.svg", &cookie)?;
    assert_eq!((chart.code, chart.header("content-type")), (200, Some("image/svg+xml")));
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
    assert_eq!(chart.header("content-security-policy"), Some(policy));
    assert!(chart.body.contains("&lt;img src=x&gt;") && !chart.body.contains("<img"), "{}", chart.body);
    // As `fatpath plot` draws it.
    assert_eq!(chart.body, run(Command::new(fatpath()).arg("plot").arg(&good))?);
    for at in [1, 2, 3] {
        assert_eq!(web.get(&format!("/results/{at}.svg"), &cookie)?.code, 404);
    }
    // A file is read again for each page.
    fs::write(&bad, fs::read(&good)?)?;
    assert_eq!(web.get("/results/1.svg", &cookie)?.code, 200);
    Ok(())
}
