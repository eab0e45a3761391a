//! `fatpath demo`: its report, and the removal of its resources.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;
use system::{Need, Outcome, Process, Scratch, fatpath, run, trial, wait_until};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];
const ROUTER_NEEDS: &[Need] = &[Need::Namespaces, Need::ETHTOOL];

/// Longest time that one short demo may take.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("demo/the_tunnel_is_measured_three_ways", NEEDS, || measures("demo", &[])),
        trial("demo/the_router_is_measured_three_ways", NEEDS, || measures("demo", &["--router"])),
        trial("demo/loops_without_a_datapath_are_measured", NEEDS, bare),
        trial("demo/works_without_privilege", ROUTER_NEEDS, unprivileged),
        trial("demo/esp_of_the_kernel_is_measured_or_named_as_missing", NEEDS, esp_of_this_kernel),
        trial("plot/result_becomes_a_chart_and_other_input_is_refused", &[], plot),
        trial("demo/large_datagrams_of_sockets_are_measured", NEEDS, large_datagrams),
        trial("demo/guests_of_a_switch_are_measured", NEEDS, switch),
        trial("demo/requests_with_and_without_ila_are_measured", NEEDS, requests),
        trial("demo/storm_of_changes_is_measured_and_drops_nothing_by_itself", NEEDS, storm),
        trial("demo/an_interrupt_leaves_nothing_behind", NEEDS, an_interrupt_leaves_nothing_behind),
    ]
}

/// As a user without any capability, mostly without the right to open `/dev/net/tun`.
fn unprivileged() -> Outcome {
    let scratch = Scratch::new()?;
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
    // The user may not enter the directory of the build.
    for name in ["fatpath", "fatpath-bench"] {
        fs::copy(fatpath().with_file_name(name), scratch.file(name))?;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all", "timeout"]);
    command.arg(PATIENCE.as_secs().to_string()).arg(scratch.file("fatpath")).current_dir("/");
    let (figures, text) = figures_of(&mut command, "demo", &[])?;
    for name in ["veth", "aes-gcm-256/thin", "aes-gcm-256/fat"] {
        let case = entry(&figures["cases"], |case| case["name"] == name);
        assert!(case.is_some_and(|case| case["gbps"].as_f64() > Some(0.0)), "{name} in {text}");
    }
    Ok(())
}

/// Whether this machine's kernel has ESP with AES-256-GCM, by an attempt to add such an SA. The attempt may load modules,
/// so that the demo finds them loaded.
fn kernel_has_esp() -> bool {
    let key = format!("0x{}", "5a".repeat(36));
    let mut command = Command::new("unshare");
    command.args(["--net", "ip", "xfrm", "state", "add", "src", "192.0.2.1", "dst", "192.0.2.2", "proto", "esp"]);
    command.args(["spi", "7", "mode", "tunnel", "aead", "rfc4106(gcm(aes))", &key, "128"]);
    run(&mut command).is_ok()
}

fn esp_of_this_kernel() -> Outcome {
    let has_esp = kernel_has_esp();
    // Without other peers on the path.
    let mut command = Command::new("timeout");
    command.arg(PATIENCE.as_secs().to_string()).arg(fatpath()).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let (figures, text) = figures_of(&mut command, "demo", &["--peers"])?;
    let case = entry(&figures["cases"], |case| case["name"] == "linux-esp");
    let missing = entry(&figures["missing"], |missing| missing["name"] == "linux-esp");
    if has_esp {
        assert!(case.is_some_and(|case| case["gbps"].as_f64() > Some(0.0)) && missing.is_none(), "{text}");
        let ratio = entry(&figures["ratios"], |ratio| ratio["of"] == "fat/linux-esp");
        assert!(ratio.is_some_and(|ratio| ratio["median"].as_f64() > Some(0.0)), "{text}");
    } else {
        let why = missing.and_then(|missing| missing["why"].as_str()).unwrap_or_default();
        assert!(case.is_none() && why.starts_with("the kernel has no ESP"), "{text}");
    }
    Ok(())
}

fn plot() -> Outcome {
    let scratch = Scratch::new()?;
    let (input, output) = (scratch.file("demo.json"), scratch.file("demo.svg"));
    fs::write(&input, r#"{"bench":"demo","rounds":5,"cases":[{"name":"aes-gcm-256/fat","gbps":9.25,"peak":1}]}"#)?;
    run(Command::new(fatpath()).arg("plot").arg(&input).arg("-o").arg(&output))?;
    let svg = fs::read_to_string(&output)?;
    assert!(svg.starts_with("<svg") && svg.contains("fatpath, aes-gcm-256") && svg.contains(">9.25<"), "{svg}");
    fs::write(&input, "[]")?;
    let failed = Command::new(fatpath()).arg("plot").arg(&input).output()?;
    let text = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success() && text.contains("not the output of `fatpath demo --json`"), "{failed:?}");
    assert_eq!(text.lines().count(), 1, "{text}");
    Ok(())
}

/// The figures of one short round.
fn figures(bench: &str, options: &[&str]) -> Outcome<(Value, String)> {
    figures_of(Command::new("timeout").arg(PATIENCE.as_secs().to_string()).arg(fatpath()), bench, options)
}

fn figures_of(fatpath: &mut Command, bench: &str, options: &[&str]) -> Outcome<(Value, String)> {
    let text = run(fatpath.args(["demo", "--json", "--seconds", "1", "--rounds", "1"]).args(options))?;
    let figures: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    assert_eq!((&figures["bench"], &figures["rounds"]), (&bench.into(), &1.into()), "{text}");
    Ok((figures, text))
}

fn measures(bench: &str, options: &[&str]) -> Outcome {
    let (figures, text) = figures(bench, options)?;
    for name in ["veth", "aes-gcm-256/thin", "aes-gcm-256/fat"] {
        let case = entry(&figures["cases"], |case| case["name"] == name);
        assert!(case.is_some_and(|case| case["gbps"].as_f64() > Some(0.0)), "{name} in {text}");
    }
    for of in ["fat/thin", "fat/veth"] {
        let ratio = entry(&figures["ratios"], |ratio| ratio["name"] == "aes-gcm-256" && ratio["of"] == of);
        assert!(ratio.is_some_and(|ratio| ratio["median"].as_f64() > Some(0.0)), "{of} in {text}");
    }
    Ok(())
}

fn bare() -> Outcome {
    let (figures, text) = figures("demo", &["--bare"])?;
    let case = entry(&figures["cases"], |case| case["name"] == "aes-gcm-256/bare").ok_or("no such case")?;
    assert!(case["gbps"].as_f64() > Some(0.0) && case["cpu_s_per_gb"].as_f64() > Some(0.0), "{text}");
    for (name, of) in [("aes-gcm-256", "fat/bare"), ("aes-gcm-256/cpu-per-byte", "bare/fat")] {
        let ratio = entry(&figures["ratios"], |ratio| ratio["name"] == name && ratio["of"] == of);
        assert!(ratio.is_some_and(|ratio| ratio["median"].as_f64() > Some(0.0)), "{name} {of} in {text}");
    }
    Ok(())
}

fn large_datagrams() -> Outcome {
    let (figures, text) = figures("demo-udp-fragments", &["--udp-fragments"])?;
    let ways = ["s0", "aes-gcm-256", "tunnel"].map(|name| ["fat", "thin"].map(|way| format!("{name}/{way}")));
    let rings = ["ring-256/on", "ring-256/off", "veth"].map(str::to_owned);
    for name in ways.as_flattened().iter().chain(&rings) {
        let case = entry(&figures["cases"], |case| case["name"] == **name);
        assert!(case.is_some_and(|case| case["gbps"].as_f64() > Some(0.0)), "{name} in {text}");
    }
    for name in ways.as_flattened() {
        let case = entry(&figures["cases"], |case| case["name"] == **name).ok_or("no such case")?;
        assert!(case["arrived"].as_f64() > Some(0.5) && case["cpu_s_per_gb"].as_f64() > Some(0.0), "{name} in {text}");
    }
    let fat = ["s0", "aes-gcm-256", "tunnel"].map(|name| ["fat/thin", "fat/veth"].map(|of| (name, of)));
    for (name, of) in fat.as_flattened().iter().chain(&[("ring-256", "on/off")]) {
        let ratio = entry(&figures["ratios"], |ratio| ratio["name"] == *name && ratio["of"] == *of);
        assert!(ratio.is_some_and(|ratio| ratio["median"].as_f64() > Some(0.0)), "{name} {of} in {text}");
    }
    assert_eq!(figures["ratios"].as_array().map(Vec::len), Some(7), "{text}");
    Ok(())
}

fn switch() -> Outcome {
    let (figures, text) = figures("demo-switch", &["--switch"])?;
    for name in ["bare", "thin", "fat", "esp", "wire", "wire-gro"].map(|name| format!("switch/{name}")) {
        let case = entry(&figures["cases"], |case| case["name"] == *name);
        assert!(case.is_some_and(|case| case["gbps"].as_f64() > Some(0.0)), "{name} in {text}");
    }
    assert!(entry(&figures["cases"], |case| case["name"] == "aes-gcm-256/fat").is_some(), "{text}");
    for of in ["fat/thin", "fat/bare", "wire-gro/wire", "esp/tunnel"] {
        let ratio = entry(&figures["ratios"], |ratio| ratio["name"] == "switch" && ratio["of"] == of);
        assert!(ratio.is_some_and(|ratio| ratio["median"].as_f64() > Some(0.0)), "{of} in {text}");
    }
    Ok(())
}

fn requests() -> Outcome {
    let (figures, text) = figures("demo-rr", &["--rr", "8"])?;
    for name in ["rr/none", "rr/lwt", "rr/hook"] {
        let case =
            entry(&figures["cases"], |case| case["name"] == name).ok_or_else(|| format!("no {name} in {text}"))?;
        let transactions = &case["transactions"];
        assert!(
            transactions["per_second"].as_f64() > Some(100.0) && transactions["cpu_us"].as_f64() > Some(0.0),
            "{text}"
        );
        let times = ["p50_us", "p90_us", "p99_us"].map(|percentile| transactions[percentile].as_f64().unwrap_or(0.0));
        assert!(times[0] > 0.0 && times.is_sorted(), "{text}");
    }
    for of in ["hook/none", "lwt/none"] {
        let ratio = entry(&figures["ratios"], |ratio| ratio["name"] == "rr" && ratio["of"] == of);
        assert!(ratio.is_some_and(|ratio| ratio["median"].as_f64() > Some(0.0)), "{of} in {text}");
    }
    Ok(())
}

fn storm() -> Outcome {
    let (figures, text) = figures("demo-storm", &["--storm", "500"])?;
    for (name, least) in [("aes-gcm-256/fat", None), ("aes-gcm-256/storm", Some(50.0))] {
        let case =
            entry(&figures["cases"], |case| case["name"] == name).ok_or_else(|| format!("no {name} in {text}"))?;
        assert!(case["gbps"].as_f64() > Some(0.0) && case["worker_cpu_s_per_gb"].as_f64() > Some(0.0), "{text}");
        assert!(case["changes_per_second"].as_f64() >= least, "{text}");
        // On a busy machine a device's queue may be full; no route and no SA is ever missing.
        let dropped = case["dropped"].as_object().ok_or_else(|| format!("nothing of drops in {text}"))?;
        assert!(dropped.keys().all(|reason| reason == "TxQueueFull"), "{text}");
    }
    for name in ["aes-gcm-256", "aes-gcm-256/worker-cpu-per-byte"] {
        let ratio = entry(&figures["ratios"], |ratio| ratio["name"] == name && ratio["of"] == "storm/fat");
        assert!(ratio.is_some_and(|ratio| ratio["median"].as_f64() > Some(0.0)), "{name} in {text}");
    }
    Ok(())
}

/// The entry of a list with that name.
fn entry(list: &Value, meant: impl Fn(&Value) -> bool) -> Option<&Value> {
    list.as_array()?.iter().find(|entry| meant(entry))
}

fn an_interrupt_leaves_nothing_behind() -> Outcome {
    let scratch = Scratch::new()?;
    let mut demo = Process::spawn(Command::new(fatpath()).args(["demo", "--seconds", "30"]), &scratch)?;
    let own = format!("fatpath-demo-{}", demo.id());
    let namespaces = || run(Command::new("ip").args(["netns", "list"])).unwrap_or_default();
    wait_until("the demo has namespaces", Duration::from_secs(20), || namespaces().contains(&own))?;
    // By now it may be anywhere in its set-up or its first measurement.
    thread::sleep(Duration::from_secs(1));
    demo.signal(Signal::INT)?;
    let status = demo.wait(Duration::from_secs(10))?;
    assert!(!status.success(), "{status}: {}", demo.output());
    assert!(!namespaces().contains(&own), "{}", namespaces());
    Ok(())
}
