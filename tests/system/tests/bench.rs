//! `fatpath bench`: the form of its reports.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libtest_mimic::Trial;
use serde_json::Value;
use system::{Need, Outcome, Scratch, fatpath, run, trial};

const FORWARD_NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("bench/esp_is_measured_beside_its_limit", &[], esp),
        trial("bench/vhost_is_measured_beside_copies_of_its_bytes", &[], vhost),
        trial("bench/trunk_is_measured_beside_no_offloads", &[], trunk),
        trial("bench/forward_names_testpmd_if_it_is_missing_or_fails", FORWARD_NEEDS, forward),
    ]
}

/// Lock of the running benchmark: two at once would disturb each other.
static RUNNING: Mutex<()> = Mutex::new(());

/// The right to run a benchmark, until it is dropped.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Figures of a short run of a benchmark.
fn measure(name: &str, slice_ms: u32) -> Outcome<Value> {
    let _running = alone();
    let slice = slice_ms.to_string();
    let text = run(Command::new(fatpath()).args(["bench", name, "--json", "--rounds", "1", "--slice", &slice]))?;
    serde_json::from_str(&text).map_err(|error| format!("{error}: {text}").into())
}

/// Runs briefly: the test checks the report's form, not its figures.
fn esp() -> Outcome {
    let figures = measure("esp", 3)?;
    assert_eq!((&figures["bench"], &figures["rounds"]), (&"esp".into(), &1.into()), "{figures}");
    for side in ["tx", "rx"] {
        for group in ["transport/null", "tunnel/aes-gcm-128", "tunnel/chacha20-poly1305", "tunnel/aes-gcm-256-64b"] {
            for case in ["baseline", "fat", "worker", "limit"] {
                let name = format!("{side}/{group}/{case}");
                let case = entry(&figures["cases"], |entry| entry["name"] == name.as_str()).ok_or(name)?;
                for figure in ["gbps", "ns_per_packet"] {
                    assert!(case[figure].as_f64() > Some(0.0), "{figure} in {case}");
                }
                assert_eq!(case["allocs_per_packet"], 0.0, "{case}");
            }
            for of in ["fat/baseline", "fat/limit", "worker/fat"] {
                let name = format!("{side}/{group}");
                let ratio = entry(&figures["ratios"], |entry| entry["name"] == name.as_str() && entry["of"] == of);
                assert!(ratio.is_some_and(|ratio| ratio["median"].as_f64() > Some(0.0)), "{name} {of} in {figures}");
            }
        }
    }
    let share = entry(&figures["ratios"], |entry| entry["name"] == "flood/wrong-icv" && entry["of"] == "mixed/share");
    assert!(share.is_some_and(|share| share["median"].as_f64() > Some(0.0)), "{figures}");
    Ok(())
}

/// Runs briefly, too. A back end with idle guests sleeps.
fn vhost() -> Outcome {
    let figures = measure("vhost", 9)?;
    assert_eq!((&figures["bench"], &figures["rounds"]), (&"vhost".into(), &1.into()), "{figures}");
    let case = |name: &str| {
        let name = format!("vhost/{name}");
        entry(&figures["cases"], |entry| entry["name"] == name.as_str()).cloned().ok_or(name)
    };
    for name in ["large", "copy-large", "small", "copy-small"] {
        let case = case(name)?;
        for figure in ["gbps", "ns_per_packet"] {
            assert!(case[figure].as_f64() > Some(0.0), "{figure} in {case}");
        }
        assert_eq!(case["mpps"].is_number(), name.ends_with("small"), "{case}");
        // Once into the guest's memory and once out of it.
        assert!(case["copied_bytes_per_byte"].as_f64().is_some_and(|copied| (copied - 2.0).abs() < 0.01), "{case}");
    }
    for of in ["large/copy-large", "small/copy-small"] {
        let ratio = entry(&figures["ratios"], |entry| entry["of"] == of);
        assert!(ratio.is_some_and(|ratio| ratio["median"].as_f64() > Some(0.0)), "{of} in {figures}");
    }
    let idle = case("idle")?;
    assert_eq!(
        (&idle["guests"], &idle["wakeups"], &idle["cpu_us"]),
        (&8.0.into(), &0.0.into(), &0.0.into()),
        "{figures}"
    );
    Ok(())
}

/// The trunk adapter's cases and ratios.
fn trunk() -> Outcome {
    let figures = measure("trunk", 3)?;
    for case in ["off", "checksum", "large-send", "cut", "linearized", "in-place"] {
        let name = format!("trunk/{case}");
        let case = entry(&figures["cases"], |entry| entry["name"] == name.as_str()).ok_or(name)?;
        for figure in ["gbps", "copied_bytes_per_byte", "segments_per_call", "copies_per_segment", "cpu_ns"] {
            assert!(case[figure].as_f64() > Some(0.0), "{figure} in {case}");
        }
    }
    for of in ["linearized/cut", "in-place/linearized", "large-send/off"] {
        let ratio = entry(&figures["ratios"], |entry| entry["name"] == "trunk" && entry["of"] == of);
        assert!(ratio.is_some_and(|ratio| ratio["median"].as_f64() > Some(0.0)), "{of} in {figures}");
    }
    Ok(())
}

/// DPDK's testpmd is absent, or ends at once: the row of that case has the reason, and the others are measured.
fn forward() -> Outcome {
    const FAILING: &str = "#!/bin/sh\necho no such driver >&2\nexit 3\n";
    let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new()?;
    let path = std::env::var("PATH")?;
    let without: Vec<&str> = path.split(':').filter(|dir| !Path::new(dir).join("dpdk-testpmd").exists()).collect();
    let without = without.join(":");
    let program = scratch.file("dpdk-testpmd");
    fs::write(&program, FAILING)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let with = format!("{}:{without}", scratch.file("").display());
    let bench = |path: &str, args: &[&str]| {
        let mut command = Command::new(fatpath());
        // In a slice of ten times that a packet leaves on a slow machine, too.
        command.args(["bench", "forward", "--rounds", "2", "--slice", "30"]).args(args).env("PATH", path);
        command
    };
    for (path, why) in [(&without, "not in PATH"), (&with, "no such driver")] {
        let text = run(&mut bench(path, &["--json"]))?;
        let figures: Value = serde_json::from_str(&text)?;
        let names: Vec<&str> =
            figures["cases"].as_array().into_iter().flatten().filter_map(|case| case["name"].as_str()).collect();
        assert_eq!(
            names,
            ["forward/tun", "forward/packet", "forward/xdp", "forward/vhost-user", "forward/esp", "forward/linux"],
            "{figures}"
        );
        let missing = &figures["missing"][0];
        assert_eq!(missing["name"], "forward/testpmd", "{figures}");
        assert!(missing["why"].as_str().is_some_and(|text| text.contains(why)), "{figures}");
        let of = |name: &str| entry(&figures["ratios"], |entry| entry["of"] == name).is_some();
        assert!(of("packet/linux") && !of("packet/testpmd"), "{figures}");
    }
    // Alone, it is an error.
    let alone = bench(&without, &["--only", "testpmd"]).output()?;
    assert_eq!(alone.status.code(), Some(1), "{alone:?}");
    assert!(String::from_utf8_lossy(&alone.stderr).contains("forward/testpmd: dpdk-testpmd: not in PATH"), "{alone:?}");
    Ok(())
}

/// The entry of a list with that name.
fn entry(list: &Value, meant: impl Fn(&Value) -> bool) -> Option<&Value> {
    list.as_array()?.iter().find(|entry| meant(entry))
}
