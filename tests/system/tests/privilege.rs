//! Processes that may change a gateway: those that hold `CAP_NET_ADMIN` in its user namespace, root's and others.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, run, trial};

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces];
    vec![
        trial("privilege/gateway_of_root_requires_net_admin", NEEDS, of_root),
        trial("privilege/gateway_with_few_capabilities_judges_the_same", NEEDS, with_few_capabilities),
        trial("privilege/gateway_of_a_user_is_changed_by_its_user", NEEDS, of_user),
        trial("privilege/ip_of_a_user_with_net_admin_adds_a_route", NEEDS, ip),
    ]
}

const OF_ROOT: &str = "root OK OK
root_that_does_not_wait OK OK
root_without_capability EPERM OK
root_in_own_namespace EPERM OK
user EPERM OK
user_with_capability OK OK
user_with_all_but_it EPERM OK
user_in_own_namespace EPERM OK
request_from_before_the_judgement EPERM OK
child_of_user_with_capability EPERM OK
child_that_claims OK OK
child_without_capability_that_claims EPERM OK
child_of_another_than_the_claimant EPERM OK
child_request_from_before_the_judgement EPERM OK
";

/// A gateway under `setpriv` with these words, in a directory that any user may enter, as the directory of the build
/// need not be.
fn gateway(scratch: &Scratch, host: &Netns, words: &[&str]) -> Outcome<Gateway> {
    let program = scratch.file("fatpath");
    fs::copy(fatpath(), &program)?;
    fs::copy(fatpath().with_file_name("libfatpath_preload.so"), scratch.file("libfatpath_preload.so"))?;
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o1777))?;
    let mut command = host.command("setpriv");
    command.args(words).arg(program);
    Gateway::start_under(command, scratch, "x", "")
}

/// Outcomes of the processes of `netlink_privilege.py`.
fn outcomes(scratch: &Scratch, gateway: &Gateway) -> Outcome<String> {
    let script = scratch.file("program.py");
    fs::write(&script, include_str!("netlink_privilege.py"))?;
    run(Command::new("python3").arg(&script).arg(scratch.file("x.netlink")).arg(gateway.id().to_string()))
}

fn of_root() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let gateway = gateway(&scratch, &host, &[])?;
    assert_eq!(outcomes(&scratch, &gateway)?, OF_ROOT);
    Ok(())
}

fn with_few_capabilities() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    // As in the service's unit: without CAP_SYS_PTRACE, other processes' namespaces are not seen.
    let gateway = gateway(&scratch, &host, &["--no-new-privs", "--bounding-set=-all,+net_admin,+net_raw"])?;
    assert_eq!(outcomes(&scratch, &gateway)?, OF_ROOT);
    Ok(())
}

fn of_user() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let gateway = gateway(&scratch, &host, &user)?;
    // Only root without the right remains without it: all other processes are the gateway's own user's.
    let is_of_other = |line: &str| line.starts_with("root");
    let of_user: String = OF_ROOT
        .lines()
        .map(|line| if is_of_other(line) { format!("{line}\n") } else { format!("{}\n", line.replace("EPERM", "OK")) })
        .collect();
    assert_eq!(outcomes(&scratch, &gateway)?, of_user);
    Ok(())
}

fn ip() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = gateway(&scratch, &host, &[])?;
    let as_user = |words: &[&str]| {
        let mut command = host.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(words).arg(scratch.file("fatpath"));
        command.args(["exec", "--instance", "x", "--", "ip", "route", "add", "blackhole", "10.78.0.0/16"]);
        command.env("FATPATH_RUNDIR", scratch.path());
        command
    };
    let refused = as_user(&[]).output()?;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Operation not permitted"), "{refused:?}");
    run(&mut as_user(&["--inh-caps=+net_admin", "--ambient-caps=+net_admin"]))?;
    let mut show = Command::new(fatpath());
    show.args(["ip", "--instance", "x", "route", "show"]).env("FATPATH_RUNDIR", scratch.path());
    assert!(run(&mut show)?.contains("blackhole 10.78.0.0/16"));
    Ok(())
}
