//! Memory of a large configuration file: its peak, and its return to the system.

use std::fmt::Write;
use std::fs;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, trial};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];

const ROUTES: u32 = 100_000;
const SAS: u32 = 2_000;

/// Limit of the peak, in bytes for each route. A parsed document of the whole file takes about twice as many.
const MOST_FOR_ROUTE: u64 = 1_100;

/// Bytes that may remain allocated: the C library keeps the ends of its heaps, and pages of code were loaded.
const MOST_LEFT: u64 = 12 << 20;

pub(crate) const SMALL: &str = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"10.1.0.254/24\"]\n";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("large_file/small_file_loaded_after_it_frees_memory", NEEDS, small_after_large),
        trial("large_file/show_is_made_in_slices_of_a_millisecond", NEEDS, slices),
    ]
}

/// An amount of memory of a process, in bytes, by its name in `/proc/PID/status`.
fn bytes(gateway: &Gateway, name: &str) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
    let kilobytes: u64 = line.trim_matches(|c: char| !c.is_ascii_digit()).parse()?;
    Ok(kilobytes << 10)
}

pub(crate) fn large(routes: u32, sas: u32) -> String {
    let mut toml = SMALL.to_owned();
    for n in 0..routes {
        let [_, a, b, c] = n.to_be_bytes();
        let _ = write!(toml, "[[route]]\nto = \"{}.{b}.{c}.0/24\"\ndev = \"tun0\"\n", 11 + a);
    }
    for spi in 0x1000..0x1000 + sas {
        let _ = write!(
            toml,
            "[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = {spi}\nmode = \"tunnel\"\n\
             aead = {{ name = \"rfc4106(gcm(aes))\", key = \"0x{spi:040x}\", icv = 128 }}\n"
        );
    }
    toml
}

fn small_after_large() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("gateway")?);
    let mut gateway = Gateway::start(&netns, &scratch, "gw", SMALL)?;
    let large = large(ROUTES, SAS);
    let load = |gateway: &mut Gateway, toml: &str, times: usize| {
        gateway.reload(toml)?;
        gateway.wait_until("it has reloaded", |gateway| gateway.log().matches("reloaded").count() == times)
    };
    // The first reload allocates memory that later ones use again.
    load(&mut gateway, SMALL, 1)?;
    let before = bytes(&gateway, "VmRSS:")?;
    load(&mut gateway, &large, 2)?;
    let most = bytes(&gateway, "VmHWM:")? - before;
    assert!(most < u64::from(ROUTES) * MOST_FOR_ROUTE, "{most} bytes were taken");
    load(&mut gateway, SMALL, 3)?;
    let left = bytes(&gateway, "VmRSS:")?.saturating_sub(before);
    assert!(left < MOST_LEFT, "{left} bytes are left of {most}");
    assert!(!gateway.log().contains("not reloaded"), "{}", gateway.log());
    Ok(())
}

/// Each table is shown whole, and no request keeps the worker from packets for more than a millisecond of its own
/// processor time.
fn slices() -> Outcome {
    const ROUTES: u32 = 200_000;
    const SAS: u32 = 50_000;
    const POLICIES: u32 = 20_000;
    const VLANS: u32 = 500;
    let (scratch, netns) = (Scratch::new()?, Netns::new("gateway")?);
    let mut toml = format!("[host]\nside = \"off\"\n{}", large(ROUTES, SAS));
    for n in 0..POLICIES {
        let [_, a, b, c] = n.to_be_bytes();
        let _ = write!(
            toml,
            "[[policy]]\ndir = \"out\"\nsrc = \"10.1.0.0/24\"\ndst = \"{}.{b}.{c}.0/24\"\naction = \"block\"\n",
            11 + a
        );
    }
    toml.push_str("[[link]]\nname = \"tap0\"\nkind = \"tap\"\n");
    for id in 1..=VLANS {
        let _ = write!(toml, "[[link]]\nname = \"tap0.{id}\"\nkind = \"vlan\"\nlink = \"tap0\"\nid = {id}\n");
    }
    let gateway = Gateway::start(&netns, &scratch, "gw", &toml)?;
    let lines = |what: &str| gateway.show(what);
    let routes = lines("routes")?.lines().filter(|line| line.contains("dev tun0")).count();
    assert!(routes > ROUTES as usize, "{routes} routes");
    assert_eq!(lines("sa")?.matches("spi 0x").count(), SAS as usize);
    assert_eq!(lines("policies")?.matches("dir out").count(), POLICIES as usize);
    assert_eq!(lines("links")?.matches("kind vlan").count(), VLANS as usize);
    for what in ["drops", "neighbours", "fragments", "flows"] {
        lines(what)?;
    }
    let counters = lines("counters")?;
    let count = |name: &str| {
        let line = counters.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
            .ok_or(format!("no {name}: {counters}"))
    };
    let (slices, longest) = (count("ShowSlices")?, count("ShowSliceMaxMicros")?);
    assert!(slices > 300 && longest <= 1000, "{slices} slices, the longest of {longest} us");
    Ok(())
}
