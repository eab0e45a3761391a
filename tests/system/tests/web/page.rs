//! The page in a browser.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use serde_json::{Value, json};
use system::{
    Esp, Gateway, Mode, Need, Netns, OUTER_V4, Outcome, Process, Scratch, fatpath, have_several_workers, trial, veth,
    wait_until,
};

use super::browser::{Browser, CHROMIUM, DRIVER};
use super::served::{PATIENCE, Served};
use crate::tunnel;

/// Tab of WebDriver's table of keys.
const TAB: char = '\u{e004}';

/// Longest time from the death of a peer to its red tunnel: the goal, and the delay of a busy machine.
const RED_LIMIT: Duration = Duration::from_secs(4);

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::CURL, CHROMIUM, DRIVER];
    vec![
        trial("web/browser_shows_rates_and_a_killed_peer_in_red", NEEDS, live),
        trial("web/browser_lights_the_stages_of_fatpath_trace", NEEDS, stages),
        trial("web/page_fits_a_small_screen_and_both_themes", NEEDS, themes),
        trial("web/hostile_names_are_text_in_a_browser", NEEDS, hostile),
        trial("web/browser_reconnects_and_shows_the_age", NEEDS, reconnects),
    ]
}

/// Two gateways with a tunnel, and a page of the first one with results.
struct Site {
    scratch: Scratch,
    a: Netns,
    _b: Netns,
    near: Gateway,
    far: Gateway,
    web: Served,
    esp: Esp,
}

impl Site {
    fn start() -> Outcome<Self> {
        let (scratch, a, b) = (Scratch::new()?, Netns::new("a")?, Netns::new("b")?);
        veth((&a, "wan0"), (&b, "wan0"))?;
        let esp = Esp { udp: true, ..Esp::new(Mode::Tunnel, OUTER_V4, &[("10.1.0.0/24", "10.2.0.0/24")]) };
        let there = esp.reversed();
        let near = tunnel::start_with(&a, "a", &esp, 1, &scratch, &tunnel::config(&esp, 1))?;
        let far = tunnel::start_with(&b, "b", &there, 2, &scratch, &tunnel::config(&there, 2))?;
        let results = scratch.file("demo.json");
        let cases = r#"[{"name":"aes-gcm-256/fat","gbps":6.2},{"name":"aes-gcm-256/thin","gbps":0.55},{"name":"veth","gbps":21}]"#;
        std::fs::write(&results, format!(r#"{{"bench":"demo","rounds":5,"cases":{cases}}}"#))?;
        let web = Served::start(&scratch, &["-i", "a", "--results", results.to_str().ok_or("a path")?])?;
        Ok(Self { scratch, a, _b: b, near, far, web, esp })
    }

    /// A stream through the tunnel, and packets that are dropped.
    fn traffic(&self) -> Outcome<[Process; 2]> {
        self.a.sh("ip route add 10.9.0.0/24 dev tun0")?;
        let ping = |words: &[&str]| Process::spawn(self.a.command("ping").args(words), &self.scratch);
        Ok([ping(&["-i", "0.02", "-s", "1300", "-q", "10.2.0.1"])?, ping(&["-i", "0.1", "-q", "10.9.0.1"])?])
    }

    fn origin(&self) -> String {
        format!("http://{}/", self.web.address)
    }

    /// The page in a browser, once it has its rates.
    fn open<'a>(&'a self, browser: &Browser<'a>) -> Outcome {
        browser.open(&self.web.url())?;
        let rates =
            "return Number(document.querySelector('#topology path[data-from=\"link tun0\"]')?.dataset.rate) > 0";
        browser.wait_for("there are rates", PATIENCE, rates)
    }
}

/// Takes a picture for the documentation, which is short.
fn keep(browser: &Browser<'_>, name: &str, selector: &str) -> Outcome {
    let len = browser.picture(name, selector)?;
    println!("{name}: {len} bytes");
    assert!((5000..100_000).contains(&len), "{name}: {len} bytes");
    Ok(())
}

fn live() -> Outcome {
    let mut site = Site::start()?;
    let _traffic = site.traffic()?;
    let scratch = Scratch::new()?;
    let browser = Browser::start(&site.web.host, &scratch)?;
    site.open(&browser)?;
    assert_eq!(browser.script("return location.href")?, site.origin(), "the secret has left the address");
    let first = browser.script("return performance.getEntriesByName('first-picture')[0].startTime")?;
    let first = first.as_f64().ok_or("no first picture")?;
    println!("first picture after {first:.0} ms");
    // The goal is 300 ms, on a machine that does nothing else.
    assert!(first < 5000.0, "the first picture after {first} ms");
    let sizes = browser.script(
        "return performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))
            .filter((it) => !it.name.includes('/events')).reduce((sum, it) => sum + it.transferSize, 0)",
    )?;
    println!("{sizes} bytes transferred");
    assert!(sizes.as_f64() < Some(200_000.0), "{sizes} bytes");
    // Of the links, the tunnel, and the drops with their sentence.
    for (selector, want) in [
        ("#links", "tun0"),
        ("#links", "up"),
        ("#tunnels", "192.0.2.2"),
        ("#drops", "NoRoute"),
        ("#about", "worker 0"),
        ("#state", "live"),
    ] {
        browser.wait_for(
            &format!("{selector} has {want}"),
            PATIENCE,
            &format!("return document.querySelector('{selector}').textContent.includes('{want}')"),
        )?;
    }
    let sentence = cause_without_route()?;
    assert!(browser.text("#drops")?.contains(&sentence), "{sentence}: {}", browser.text("#drops")?);
    browser.view([1120, 900], "light")?;
    browser.wait_for(
        "a line of rates",
        PATIENCE,
        "return document.querySelector('#links polyline').points.length > 5",
    )?;
    let red = "const it = document.querySelector('#topology g[data-key^=\"tunnel\"] .box');
        const [r, g, b] = getComputedStyle(it).stroke.match(/\\d+/g).map(Number);
        return r > 150 && g < 130 && b < 130";
    assert_eq!(browser.script(red)?, false);
    browser.view([900, 760], "light")?;
    keep(&browser, "web-topology", "main section")?;
    let killed = Instant::now();
    site.far.kill()?;
    browser.wait_for("the tunnel is red", RED_LIMIT, red)?;
    println!("red after {:?}", killed.elapsed());
    assert!(browser.text("#tunnels")?.contains("Connection refused"), "{}", browser.text("#tunnels")?);
    // So is a tunnel whose SAs are gone, also without packets.
    let [src, dst] = OUTER_V4;
    let words = format!("ip --instance a xfrm state delete src {src} dst {dst} proto esp spi {:#x}", site.esp.spi_out);
    let mut delete = Command::new(fatpath());
    system::run(delete.args(words.split(' ')).env("FATPATH_RUNDIR", site.scratch.path()))?;
    let no_sa =
        "return document.querySelector('#tunnels tr.bad').textContent.includes('no SA for 10.1.0.0/24 > 10.2.0.0/24')";
    browser.wait_for("the tunnel has no SA", RED_LIMIT, no_sa)?;
    assert_eq!(browser.script(red)?, true);
    browser.check_logs(&site.origin())
}

/// Cause of a packet without a route, by `fatpath explain`.
fn cause_without_route() -> Outcome<String> {
    let text = system::run(Command::new(fatpath()).args(["explain", "NoRoute"]))?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("cause:"));
    Ok(line.ok_or(format!("no cause in {text}"))?.trim().to_owned())
}

fn stages() -> Outcome {
    let site = Site::start()?;
    let _traffic = site.traffic()?;
    let scratch = Scratch::new()?;
    let browser = Browser::start(&site.web.host, &scratch)?;
    site.open(&browser)?;
    browser.view([1120, 900], "light")?;
    for (filter, picture) in [("icmp and dst host 10.2.0.1", Some("web-trace")), ("icmp and dst host 10.9.0.1", None)] {
        browser.script("document.querySelector('#filter').value = ''")?;
        browser.write("#filter", filter)?;
        browser.click("#start")?;
        let traced = "return document.querySelector('#trace-state').textContent.startsWith('1 packet:')";
        browser.wait_for("a packet is traced", PATIENCE, traced)?;
        let lit = browser.script(
            "return [...document.querySelectorAll('#path g.lit')].map((stage) => stage.dataset.step)
                .filter((step) => step !== 'hand-over').sort()",
        )?;
        let mut command = Command::new(fatpath());
        command
            .args(["trace", "-i", "a", "-c", "20", "--json", "--filter", filter])
            .env("FATPATH_RUNDIR", site.scratch.path());
        let mut tracer = Process::spawn(&mut command, &site.scratch)?;
        // Steps behind a wait for the ciphers are in a second line of the same packet.
        tracer.wait(PATIENCE)?;
        let mut wanted: Vec<String> = Vec::new();
        let mut first = None;
        for line in tracer.output().lines().filter(|line| line.starts_with('{')) {
            let trace: Value = serde_json::from_str(line)?;
            let first = first.get_or_insert_with(|| trace["packet"].clone());
            let steps = trace["steps"].as_array().filter(|_| trace["packet"] == *first).into_iter().flatten();
            wanted.extend(steps.filter_map(|step| step["step"].as_str()?.split(' ').next()).map(str::to_owned));
        }
        let count = browser.script("return document.querySelectorAll('#steps li').length")?;
        // A hand-over depends on the flow.
        assert!(count == wanted.len() || have_several_workers(), "{filter}: {wanted:?}");
        wanted.retain(|step| step != "hand-over");
        wanted.sort();
        wanted.dedup();
        assert!(wanted.len() > 3, "{wanted:?}: {}", tracer.output());
        assert_eq!(lit, json!(wanted), "{filter}");
        let is_dropped = wanted.iter().any(|step| step == "drop" || step == "reject");
        let red = browser.script("return document.querySelectorAll('#path g.lit.bad').length")?;
        assert_eq!(red != 0, is_dropped, "{filter}: {wanted:?}");
        assert!(browser.text("#steps")?.contains(" bytes: "), "lengths and geometry: {}", browser.text("#steps")?);
        if let Some(picture) = picture {
            browser.view([900, 760], "light")?;
            keep(&browser, picture, "#path")?;
        }
    }
    // A wrong filter is a line, and a trace can be stopped.
    browser.script("document.querySelector('#filter').value = ''")?;
    browser.write("#filter", "nonsense")?;
    browser.click("#start")?;
    let refused = "return document.querySelector('#trace-state.bad')?.textContent.includes('is no term') === true";
    browser.wait_for("the filter is refused", PATIENCE, refused)?;
    browser.script("document.querySelector('#filter').value = 'esp and proto 1'")?;
    browser.click("#start")?;
    browser.wait_for("a trace runs", PATIENCE, "return !document.querySelector('#stop').disabled")?;
    browser.click("#stop")?;
    let stopped = "return document.querySelector('#trace-state').textContent === 'stopped'";
    browser.wait_for("it is stopped", PATIENCE, stopped)?;
    // Each step that the gateway may name has its stage.
    for step in [
        "input",
        "hook",
        "ila",
        "route",
        "local",
        "forward",
        "output",
        "up",
        "policy",
        "decrypt",
        "encrypt",
        "transmit",
        "resolve",
        "hand-over",
        "queued",
        "drop",
        "reject",
    ] {
        let found = browser.script(&format!("return document.querySelectorAll('#path [data-step={step}]').length"))?;
        assert_eq!(found, 1, "{step}");
    }
    browser.check_logs(&site.origin())
}

/// Lowest contrast of a text with what is behind it (WCAG 2.1, 1.4.3), and that text.
const CONTRAST: &str = r"
const channel = (value) => (value <= 10.31475 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const color = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const behind = (element) => {
  const box = element.namespaceURI.endsWith('svg') && element.closest('g')?.querySelector('.box');
  if (box) return color(getComputedStyle(box).fill);
  for (let at = element; at; at = at.parentElement) {
    const found = color(getComputedStyle(at).backgroundColor);
    if (found.length === 3 || found[3] === 1) return found;
  }
  return [255, 255, 255];
};
let worst = { ratio: 99, text: '' };
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || element.disabled || !element.getClientRects().length || ['TITLE', 'NOSCRIPT', 'OPTION'].includes(element.nodeName.toUpperCase())) continue;
  const style = getComputedStyle(element);
  const front = color(element.namespaceURI.endsWith('svg') ? style.fill : style.color);
  const [a, b] = [light(front), light(behind(element))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < worst.ratio) worst = { ratio, text: element.textContent.trim().slice(0, 40) };
}
return worst";

fn themes() -> Outcome {
    let mut site = Site::start()?;
    let _traffic = site.traffic()?;
    let scratch = Scratch::new()?;
    let browser = Browser::start(&site.web.host, &scratch)?;
    site.open(&browser)?;
    browser.write("#filter", "icmp and dst host 10.9.0.1")?;
    browser.click("#start")?;
    let traced = "return document.querySelector('#trace-state').textContent.startsWith('1 packet:')";
    browser.wait_for("a packet is traced", PATIENCE, traced)?;
    // A red tunnel, too.
    site.far.kill()?;
    browser.wait_for("a fault is shown", PATIENCE, "return document.querySelectorAll('#tunnels .bad').length > 0")?;
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        for size in [[1120, 900], [360, 740]] {
            browser.view(size, scheme)?;
            let drawn = format!(
                "dispatchEvent(new Event('resize')); const it = document.documentElement;
                 return innerWidth === {0} && it.scrollWidth <= {0}",
                size[0]
            );
            browser.wait_for("the page fits its width", PATIENCE, &drawn)?;
            // The images of the picture are as wide as the page.
            let svg = browser.script("return document.querySelector('#topology').getBoundingClientRect().right")?;
            assert!(svg.as_f64() <= Some(f64::from(size[0])), "{svg}");
            let worst = browser.script(CONTRAST)?;
            assert!(worst["ratio"].as_f64() >= Some(4.5), "{scheme} {size:?}: {worst}");
            println!("{scheme} {size:?}: lowest contrast {worst}");
        }
        backgrounds.push(browser.script("return getComputedStyle(document.body).backgroundColor")?);
        if scheme == "dark" {
            keep(&browser, "web-small-dark", "body")?;
        }
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
    browser.view([1120, 900], "light")?;
    // All controls, regions and pictures have names, and headings have an order.
    let nameless = browser.script(
        "const name = (it) => it.getAttribute('aria-label') || (it.labels && it.labels[0]?.textContent) ||
             (it.nodeName === 'BUTTON' && it.textContent) || it.getAttribute('alt');
         return [...document.querySelectorAll('input, select, button, [role=region], svg[role=img], img')]
             .filter((it) => !name(it)).map((it) => it.outerHTML)",
    )?;
    assert_eq!(nameless, json!([]));
    let headings = browser.script("return [...document.querySelectorAll('h1, h2')].map((it) => it.nodeName)")?;
    assert_eq!(headings, json!(["H1", "H2", "H2", "H2", "H2"]));
    assert_eq!(browser.script("return document.documentElement.lang")?, "en");
    let alt = browser.script("return document.querySelector('#results img').alt")?;
    assert!(alt.as_str().is_some_and(|alt| alt.contains("fatpath, aes-gcm-256: 6.20")), "{alt}");
    assert_eq!(browser.script("return document.querySelector('#results img').naturalWidth > 0")?, true);
    // Tab goes through all controls in the order of the page, and shows where it is.
    browser.script("document.activeElement.blur(); scrollTo(0, 0)")?;
    browser.script("document.querySelector('h1').tabIndex = -1; document.querySelector('h1').focus()")?;
    let mut order = Vec::new();
    for _ in 0..9 {
        browser.press(TAB)?;
        let at = browser.script(
            "const it = document.activeElement;
             return [it.id || it.getAttribute('aria-label'), getComputedStyle(it).outlineStyle !== 'none']",
        )?;
        assert_eq!(at[1], true, "{at} shows no focus");
        order.push(at[0].as_str().unwrap_or_default().to_owned());
    }
    let want =
        ["gateway", "Links", "Tunnels", "Drops", "filter", "packets", "start", "Picture of the data path", "packet"];
    assert_eq!(order, want);
    assert!(site.near.show("links").is_ok());
    browser.check_logs(&site.origin())
}

const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\">";

/// Answers questions as a gateway with hostile names does.
fn impostor(stream: UnixStream) {
    let stats = json!({ "rx_packets": 0, "rx_bytes": 0, "rx_wire_packets": 0, "rx_calls": 0, "rx_dropped": 0, "tx_packets": 0,
        "tx_bytes": 0, "tx_wire_packets": 0, "tx_calls": 0, "tx_dropped": 0 });
    let link = json!({ "index": 1, "name": HOSTILE, "kind": HOSTILE, "on": HOSTILE, "vrf": HOSTILE, "port": null, "guest": null,
        "table": null, "mtu": 1500, "up": false, "why_down": HOSTILE, "lladdr": null, "addresses": [], "offloads": [],
        "ring": null, "stats": stats });
    let worker = json!({ "worker": 0, "cpu": null, "busy_ns": 1, "idle_ns": 1, "wakeups": 1, "bursts": 1, "rx_packets": 1,
        "rx_wire_packets": 1, "rx_calls": 1, "tx_wire_packets": 1, "tx_calls": 1, "handed_over": 0, "taken_over": 0, "queued": 0,
        "sealing": 0, "opening": 0, "without_queue": [] });
    let summary = json!({ "version": HOSTILE, "pid": 1, "started_ms": 1, "routes": [],
        "sas": { "valid": 0, "dying": 0, "larval": 0, "inbound": 0, "outbound": 0, "undirected": 0 }, "sa_sums": 1,
        "policies": { "inbound": 0, "outbound": 0, "forward": 0 }, "mappings": 0, "flows": 0, "neighbours": [], "fragments": [],
        "memory": { "limit": null, "source": null, "used": 1, "live": 1, "reserve": 0, "growth": 0, "page_tables": 0, "tables": [],
        "queues": 0, "fragments": 0, "captures": 0, "pools": [] }, "workers": [worker] });
    let sum = json!({ "src": "192.0.2.1", "dst": "192.0.2.2", "reqid": 1, "dir": "out", "packets": 1, "bytes": 1 });
    let tunnel = json!({ "name": HOSTILE, "local": "192.0.2.1", "remote": "192.0.2.2" });
    let answers = [
        ("\"summary\"", json!({ "summary": summary })),
        ("\"links\"", json!({ "links": [link] })),
        ("\"drops\"", json!({ "drops": [{ "link": HOSTILE, "reason": HOSTILE, "count": 1 }] })),
        (
            "\"counters\"",
            json!({ "counters": { "counters": [], "copies": [], "forwarded_packets": 0, "forwarded_bytes": 0 } }),
        ),
        ("\"sa-sums\"", json!({ "sa-sums": { "sums": [sum], "left_out": 0, "policies": [], "tunnels": [tunnel] } })),
    ];
    let step = json!({ "time": 1.0, "step": HOSTILE, "dev": HOSTILE, "detail": HOSTILE, "flow": HOSTILE, "len": 1, "head": 1,
        "slots": 0, "children": 0, "truesize": 1, "csum": HOSTILE, "gso": null, "fragment": false });
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|len| len > 0) {
        let reply = match answers.iter().find(|(what, _)| line.contains(what)) {
            Some((_, shown)) => json!({ "reply": "show", "shown": shown }).to_string(),
            None => format!("{}\n{}", json!({ "reply": "tracing" }), json!({ "packet": 1, "steps": [step] })),
        };
        if (&stream).write_all(format!("{reply}\n").as_bytes()).is_err() {
            return;
        }
        line.clear();
    }
}

fn hostile() -> Outcome {
    let scratch = Scratch::new()?;
    let listener = UnixListener::bind(scratch.file("x.sock"))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || impostor(stream));
        }
    });
    let results = scratch.file("<img src=y onerror=z>.json");
    std::fs::write(
        &results,
        format!(r#"{{"bench":"x","rounds":1,"cases":[{{"name":{},"gbps":1}}]}}"#, json!(HOSTILE)),
    )?;
    let web = Served::start(&scratch, &["--results", results.to_str().ok_or("a path")?])?;
    let home = Scratch::new()?;
    let browser = Browser::start(&web.host, &home)?;
    browser.open(&web.url())?;
    let shown = format!("return document.querySelector('#links').textContent.includes({})", json!(HOSTILE));
    browser.wait_for("the name is text", PATIENCE, &shown)?;
    browser.click("#start")?;
    let traced = format!("return document.querySelector('#steps').textContent.includes({})", json!(HOSTILE));
    browser.wait_for("the step is text", PATIENCE, &traced)?;
    for place in ["#tunnels", "#drops", "#about", "#topology", "#packet"] {
        let text = browser.text(place)?;
        assert!(text.contains(HOSTILE), "{place}: {text}");
    }
    browser.wait_for("results", PATIENCE, "return document.querySelector('#results img')?.complete === true")?;
    assert!(browser.text("#results")?.contains("<img src=y onerror=z>.json"));
    // The only image is the chart, and the only scripts and styles are the page's.
    let elements = "return ['img', 'script', 'style', 'iframe', 'object', '[onerror]', '[style]']
        .map((it) => document.querySelectorAll(it).length)";
    assert_eq!(browser.script(elements)?, json!([1, 1, 0, 0, 0, 0, 0]));
    assert_eq!(browser.script("return document.title")?, "fatpath");
    browser.check_logs(&format!("http://{}/", web.address))
}

fn reconnects() -> Outcome {
    let mut site = Site::start()?;
    let traffic = site.traffic()?;
    let scratch = Scratch::new()?;
    let browser = Browser::start(&site.web.host, &scratch)?;
    site.open(&browser)?;
    let state = |text: &str| format!("return document.querySelector('#state').textContent.includes({})", json!(text));
    // The gateway ends and starts anew.
    site.near.kill()?;
    browser.wait_for("its end is shown", PATIENCE, &state("no gateway named a is running"))?;
    browser.wait_for("the age is shown", PATIENCE, &state("as of 2 s ago: "))?;
    assert!(browser.text("#links")?.contains("tun0"), "what it was is still there");
    assert_eq!(browser.script("return document.querySelector('#state').className")?, "bad");
    drop(traffic);
    let _near = tunnel::start_with(&site.a, "a", &site.esp, 1, &site.scratch, &tunnel::config(&site.esp, 1))?;
    browser.wait_for("it was started anew", PATIENCE, &state("; the gateway was started anew"))?;
    // A stream that breaks off is opened again.
    browser.script("window.before = source")?;
    site.web.process.signal(rustix::process::Signal::STOP)?;
    browser.wait_for("the age is shown", PATIENCE, &state("s ago: the"))?;
    thread::sleep(Duration::from_secs(4));
    site.web.process.signal(rustix::process::Signal::CONT)?;
    browser.wait_for("it is live again", PATIENCE, &state("live, "))?;
    // A server that is another one does not know the session.
    site.web.process.signal(rustix::process::Signal::KILL)?;
    site.web.process.wait(PATIENCE)?;
    browser.wait_for("the server is gone", PATIENCE, &state("the page's server does not answer"))?;
    let mut command = site.web.host.command(fatpath());
    let listen = site.web.address.to_string();
    command.args(["web", "--listen", &listen, "-i", "a"]).env("FATPATH_RUNDIR", site.scratch.path());
    let next = Process::spawn(&mut command, &site.scratch)?;
    wait_until("the page is served again", PATIENCE, || next.output().contains("/#"))?;
    browser.wait_for("another URL is needed", PATIENCE, &state("open the URL that `fatpath web` has printed"))?;
    let output = next.output();
    let token = output.trim().rsplit('#').next().unwrap_or_default();
    browser.open("about:blank")?;
    browser.open(&format!("http://{listen}/#{token}"))?;
    browser.wait_for("it is live again", PATIENCE, &state("live, "))
}
