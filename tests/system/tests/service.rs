//! The program as a service manager meets it: the unit in `examples/systemd`, and what it is told.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, run, trial};

const UNIT: &str = include_str!("../../../examples/systemd/fatpath@.service");
const CHARON_UNIT: &str = include_str!("../../../examples/systemd/fatpath-charon@.service");

/// A link for which no more is needed than what the unit leaves.
const FILE: &str = "[[link]]\nname = \"tun7\"\nkind = \"tun\"\naddresses = [\"10.7.0.1/24\"]\n";

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];
    vec![
        trial("service/the_unit_is_one_that_systemd_accepts", &[Need::SYSTEMD_ANALYZE], the_unit_is_accepted),
        trial(
            "service/the_unit_of_strongswan_is_one_that_systemd_accepts",
            &[Need::SYSTEMD_ANALYZE, Need::CHARON, Need::SWANCTL],
            the_unit_of_strongswan_is_accepted,
        ),
        trial("service/the_capabilities_that_the_unit_leaves_are_enough", NEEDS, the_capabilities_are_enough),
        trial("service/the_manager_is_told_of_start_reload_and_end", NEEDS, the_manager_is_told),
    ]
}

fn the_unit_is_accepted() -> Outcome {
    let scratch = Scratch::new()?;
    assert_eq!(verify(&scratch, "fatpath@left.service", UNIT)?, "");
    // It is looked at closely enough to find a word that is wrong.
    let wrong = UNIT.replace("RestartPreventExitStatus=2", "RestartPreventExitStatuses=2");
    let said = verify(&scratch, "fatpath@left.service", &wrong)?;
    assert!(said.contains("RestartPreventExitStatuses"), "{said}");
    Ok(())
}

fn the_unit_of_strongswan_is_accepted() -> Outcome {
    let scratch = Scratch::new()?;
    // It is bound to the other.
    verify(&scratch, "fatpath@left.service", UNIT)?;
    assert_eq!(verify(&scratch, "fatpath-charon@left.service", CHARON_UNIT)?, "");
    Ok(())
}

/// What systemd says of a unit, where `fatpath` is the program that is tested.
fn verify(scratch: &Scratch, name: &str, unit: &str) -> Outcome<String> {
    let program = fatpath().to_str().ok_or("a path that is no text")?;
    let file = scratch.file(name);
    fs::write(&file, unit.replace("/usr/local/bin/fatpath", program))?;
    let mut command = Command::new("systemd-analyze");
    let output = command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&file).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.is_empty() && !output.status.success() { Err(output.status.to_string().into()) } else { Ok(said) }
}

fn the_capabilities_are_enough() -> Outcome {
    let listed = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).ok_or("no such line")?;
    let bounds: Vec<String> = listed.split(' ').map(|name| name.replace("CAP_", "+").to_lowercase()).collect();
    let (scratch, host) = (Scratch::new()?, Netns::new("service")?);
    let mut command = host.command("setpriv");
    command.args(["--no-new-privs", &format!("--bounding-set=-all,{}", bounds.join(","))]).arg(fatpath());
    let mut gateway = Gateway::start_under(command, &scratch, "left", FILE)?;
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.id()))?;
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).ok_or("no capabilities")?;
    assert_eq!(u64::from_str_radix(held, 16)?.count_ones() as usize, bounds.len(), "{held}");
    run(host.command("ip").args(["link", "show", "tun7"]))?;
    assert!(gateway.terminate()?.success(), "{}", gateway.log());
    Ok(())
}

fn the_manager_is_told() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("service")?);
    let socket = scratch.file("notify");
    let manager = UnixDatagram::bind(&socket)?;
    manager.set_read_timeout(Some(Duration::from_secs(20)))?;
    let next = || {
        let mut message = [0; 4096];
        let n = manager.recv(&mut message)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&message[..n]).into_owned())
    };
    let mut command = host.command(fatpath());
    command.env("NOTIFY_SOCKET", &socket);
    let mut gateway = Gateway::start_under(command, &scratch, "left", FILE)?;
    assert_eq!(next()?.trim_end(), "READY=1\nSTATUS=running with 1 link: tun7");
    gateway.reload("")?;
    let reloading = next()?;
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(next()?.trim_end(), "READY=1\nSTATUS=running with no links");
    gateway.reload("mtoo = 1")?;
    assert!(next()?.starts_with("RELOADING=1\n"));
    let refused = next()?;
    assert!(refused.starts_with("READY=1\nSTATUS=running with no links; not reloaded: "), "{refused}");
    assert!(refused.contains("left.toml:1: mtoo"), "{refused}");
    assert!(gateway.terminate()?.success(), "{}", gateway.log());
    assert_eq!(next()?.trim_end(), "STOPPING=1");
    Ok(())
}
