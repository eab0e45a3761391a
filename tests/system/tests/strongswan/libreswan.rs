//! Libreswan on one gateway, strongSwan on the other: IKE of both is UDP on the gateways' host sides.

use std::fs;
use std::path::PathBuf;

use libtest_mimic::Trial;
use system::{Need, Netns, Outcome, Process, fatpath, run, transfer, trial, unpacked, wait_until};

use super::both_have_sas;
use super::site::{EXAMPLE, PATIENCE, Setup, Site, Wan};

const NEEDS: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::PING,
    Need::SWANCTL,
    Need::CHARON,
    Need::CHARON_OPENSSL,
    Need::Unpacked { path: "usr/libexec/ipsec/pluto", package: "libreswan" },
    Need::Unpacked { path: "usr/bin/certutil", package: "libnss3-tools" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libnss3.so", package: "libnss3" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libldns.so.3", package: "libldns3" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libevent_pthreads-2.1.so.7", package: "libevent-pthreads-2.1-7" },
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("strongswan/libreswan_is_at_the_other_end_of_an_interface", NEEDS, || libreswan(Wan::Interface)),
        trial("strongswan/libreswan_is_at_the_other_end_of_a_udp_link", NEEDS, || libreswan(Wan::Udp)),
    ]
}

/// The left end's `ipsec.conf`, with both ends' settings of strongSwan's example.
fn config(wan: Wan) -> String {
    let (ids, encapsulation) = match wan {
        Wan::Interface => (["@left.example", "@right.example"], "auto"),
        Wan::Udp => (["192.0.2.1", "192.0.2.2"], "yes"),
    };
    format!(
        "conn net
    ikev2=insist
    authby=secret
    ike=aes_gcm256-sha2_384-ecp384
    esp=aes_gcm256-null
    encapsulation={encapsulation}
    left=192.0.2.1
    leftid={}
    leftsubnet=10.1.0.0/24
    leftupdown=%disabled
    right=192.0.2.2
    rightid={}
    rightsubnet=10.2.0.0/24
    auto=start
",
        ids[0], ids[1]
    )
}

/// Starts pluto for the gateway `left` in `netns`, with separate files.
fn pluto(site: &Site, netns: &Netns, wan: Wan) -> Outcome<Process> {
    let dir = site.scratch().file("pluto");
    fs::create_dir_all(dir.join("nss"))?;
    fs::write(dir.join("ipsec.conf"), config(wan))?;
    fs::write(dir.join("ipsec.secrets"), ": PSK \"these words are an example, not a key\"\n")?;
    let libraries: PathBuf = unpacked("usr/lib/x86_64-linux-gnu");
    let mut command = netns.command(unpacked("usr/bin/certutil"));
    command.args(["-N", "--empty-password", "-d"]).arg(format!("sql:{}", dir.join("nss").display()));
    run(command.env("LD_LIBRARY_PATH", &libraries))?;
    let mut command = netns.command("unshare");
    // Its helper programs and its files are expected in fixed places.
    let script = "mount -t tmpfs tmpfs /run; mount --bind \"$0\" /usr/libexec; exec \"$@\"";
    command.args(["--mount", "sh", "-ec", script]).arg(unpacked("usr/libexec"));
    command.arg(fatpath()).args(["exec", "--instance", "left", "--"]).arg(unpacked("usr/libexec/ipsec/pluto"));
    // Options behind the file's name are not set by the file.
    command.arg("--config").arg(dir.join("ipsec.conf")).args(["--nofork", "--stderrlog", "--no-dnssec", "--rundir"]);
    command.arg(&dir).arg("--ipsecdir").arg(&dir).arg("--dumpdir").arg(&dir).arg("--nssdir").arg(dir.join("nss"));
    command.arg("--secretsfile").arg(dir.join("ipsec.secrets"));
    command.env("LD_LIBRARY_PATH", &libraries).env("FATPATH_RUNDIR", site.scratch().path());
    let mut process = Process::spawn(&mut command, site.scratch())?;
    wait_until("pluto has its connection", PATIENCE, || {
        process.output().contains("\"net\": added") || process.output().contains("\"net\" #1") || !process.is_running()
    })?;
    if process.is_running() { Ok(process) } else { Err(format!("pluto has ended:\n{}", process.output()).into()) }
}

fn libreswan(wan: Wan) -> Outcome {
    let mut site = Site::prepare(&Setup { wan, ..EXAMPLE })?;
    site.start_charon(1)?;
    let pluto = pluto(&site, &site.ends[0].netns, wan)?;
    let explain = |failed: libtest_mimic::Failed| -> libtest_mimic::Failed {
        format!("{}\n--- pluto\n{}", site.explain(&failed).message().unwrap_or_default(), pluto.output()).into()
    };
    site.up().map_err(explain)?;
    both_have_sas(&site, wan == Wan::Udp).map_err(explain)?;
    let [left, right] = &site.ends;
    transfer(&left.netns, (&right.netns, "10.2.0.1".parse()?), 4 << 20).map_err(explain)?;
    transfer(&right.netns, (&left.netns, "10.1.0.1".parse()?), 4 << 20).map_err(explain)
}
