//! Descriptors of the gateway, which users without privileges cannot use up.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, run, trial, wait_until};

/// Few enough descriptors to make the gateway's shares small: 64 for all read-only clients, and 32 for each of
/// their users.
const LIMIT: &str = "256";

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces];
    vec![
        trial("descriptors/sent_ones_are_not_kept", NEEDS, sent),
        trial("descriptors/full_table_serves_root_and_is_logged_once", NEEDS, full),
    ]
}

/// A gateway that may have [`LIMIT`] descriptors, in a namespace whose loopback is up.
fn limited(scratch: &Scratch, netns: &Netns) -> Outcome<Gateway> {
    let mut command = netns.command("prlimit");
    command.arg(format!("--nofile={LIMIT}")).arg(fatpath());
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
    Gateway::start_under(command, scratch, "x", "")
}

fn sent() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let mut gateway = limited(&scratch, &netns)?;
    let script = scratch.file("program.py");
    fs::write(&script, include_str!("netlink_descriptors.py"))?;
    let (socket, id) = (scratch.file("x.netlink"), gateway.id().to_string());
    let printed = run(netns.command("prlimit").arg("--nofile=4096").arg("python3").arg(&script).arg(socket).arg(id))?;
    let kept: i32 = printed.trim().parse()?;
    assert!(kept <= 40, "{kept} descriptors are kept");
    // The control socket and files have descriptors of the reserve.
    gateway.show("links")?;
    gateway.reload("[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n")?;
    gateway
        .wait_until("the reload is through", |gateway| gateway.show("links").is_ok_and(|links| links.contains("wan")))
}

/// The lowest free descriptor number of a process.
fn first_free(process: u32) -> Outcome<u32> {
    let is_used = |number: &u32| Path::new(&format!("/proc/{process}/fd/{number}")).is_symlink();
    (0..).find(|number| !is_used(number)).ok_or_else(|| "none is free".into())
}

fn full() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let gateway = limited(&scratch, &netns)?;
    let id = gateway.id();
    // Without CAP_SYS_RESOURCE, limits of a process are set by its own user.
    let user = fs::read_to_string(format!("/proc/{id}/status"))?;
    let user =
        user.lines().find_map(|line| line.strip_prefix("Uid:\t")?.split('\t').next()).ok_or("no user")?.to_owned();
    let limit = |limit: u32| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups", "prlimit"]);
        run(command.args(["--pid", &id.to_string(), &format!("--nofile={limit}:{LIMIT}")]))
    };
    // The gateway may be about to close the connection by which it was found to run.
    let mut free = 0;
    wait_until("the gateway has no free descriptor", PATIENCE, || {
        let before = free;
        free = first_free(id).unwrap_or_default();
        let is_limited = limit(free).is_ok();
        sleep(Duration::from_millis(300));
        is_limited && free == before
    })?;
    gateway.show("links")?;
    // The control socket's client has had a descriptor of the reserve, which is free when the client has gone.
    wait_until("the client has gone", PATIENCE, || first_free(id).is_ok_and(|number| number < free))?;
    limit(first_free(id)?)?;
    let script = scratch.file("program.py");
    fs::write(&script, include_str!("netlink_full.py"))?;
    let printed = run(netns.command("python3").arg(&script).arg(scratch.file("x.netlink")))?;
    assert_eq!(printed, "all as expected\n", "{}", gateway.log());
    for name in ["netlink", "control socket"] {
        let text = format!("{name}: Too many open files (os error 24): only privileged clients are accepted");
        assert_eq!(gateway.log().matches(&text).count(), 1, "{}", gateway.log());
    }
    limit(LIMIT.parse()?)?;
    gateway.show("links")?;
    assert!(gateway.log().contains("control socket: descriptors are available again"), "{}", gateway.log());
    Ok(())
}
