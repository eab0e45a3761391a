//! A current Linux kernel as the other end, in a guest by software emulation: its own ESP, with static keys and under
//! strongSwan.
//!
//! ```text
//!  curl ─ fatpath exec ─ UDP ─ tap0 ══ eth0 ─ UDP ─ the kernel's ESP ─ httpd
//! ```

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use serde_json::Value;
use system::{
    Auth, CharonFiles, ESP_GUEST_NEEDS, Esp, Guest, Initramfs, Mode, Netns, OUTER_V4, Outcome, Scratch, fatpath, run,
    trial,
};

use crate::trial::{NOBODY, programs, rootless_toml};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("linux_peer/demo_in_a_guest_measures_esp_of_its_kernel", ESP_GUEST_NEEDS, demo),
        trial("linux_peer/curl_of_a_user_passes_esp_of_a_guests_kernel", ESP_GUEST_NEEDS, curl),
    ]
}

/// Path of a program of this host.
fn found(name: &str) -> Outcome<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories = std::env::split_paths(&path);
    directories.find_map(|dir| Some(dir.join(name)).filter(|path| path.is_file())).ok_or_else(|| name.to_owned().into())
}

/// The programs under test without what debuggers read, and two programs of this host that those of busybox do not replace.
fn stripped(scratch: &Scratch, names: &[&str]) -> Outcome<Vec<PathBuf>> {
    let mut programs = vec![found("ip")?, found("unshare")?];
    for name in names {
        let program = scratch.file(name);
        run(Command::new("strip").args(["--strip-debug", "-o"]).arg(&program).arg(fatpath().with_file_name(name)))?;
        programs.push(program);
    }
    Ok(programs)
}

fn paths(owned: &[PathBuf]) -> Vec<&Path> {
    owned.iter().map(PathBuf::as_path).collect()
}

/// Checks that the guest's kernel is one of Linux 6.12 or newer.
fn check_release(guest: &mut Guest) -> Outcome {
    let release = guest.sh("uname -r")?;
    let mut numbers = release.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    assert!(version >= (6, 12), "{release}");
    println!("Linux {}", release.trim());
    Ok(())
}

/// The case and the reason of its absence in the result of `fatpath demo --json`.
fn case(text: &str, name: &str) -> Outcome<(Option<f64>, String)> {
    // A line of progress may precede it.
    let json = text.lines().find(|line| line.starts_with('{')).ok_or_else(|| format!("no result in:\n{text}"))?;
    let figures: Value = serde_json::from_str(json)?;
    let named = |list: &str| figures[list].as_array()?.iter().find(|entry| entry["name"] == name).cloned();
    let why = named("missing").and_then(|missing| Some(missing["why"].as_str()?.to_owned())).unwrap_or_default();
    Ok((named("cases").and_then(|case| case["gbps"].as_f64()), why))
}

fn demo() -> Outcome {
    let scratch = Scratch::new()?;
    let programs = stripped(&scratch, &["fatpath", "fatpath-bench"])?;
    let initramfs = Initramfs::with_kernel_esp(&scratch, &paths(&programs), &[])?;
    let mut guest = Guest::with_kernel_esp(&scratch, &initramfs, "linux", None)?;
    guest.wait_for_boot()?;
    check_release(&mut guest)?;
    let text = guest.sh("fatpath demo --peers --json --seconds 2 --rounds 1")?;
    println!("{text}");
    for name in ["linux-esp", "aes-gcm-256/fat", "veth"] {
        assert!(case(&text, name)?.0 > Some(0.0), "{name} in {text}");
    }
    // Of the kernel nothing is left in the demo's namespaces, nor in this one.
    assert_eq!(guest.sh("for list in netns 'xfrm state' 'xfrm policy'; do /programs/ip $list; done")?, "");

    guest.sh("rmmod esp4")?;
    let text = guest.sh("fatpath demo --peers --json --seconds 1 --rounds 1")?;
    let (gbps, why) = case(&text, "linux-esp")?;
    assert!(gbps.is_none() && why.contains("modprobe xfrm_user esp4"), "{text}");
    Ok(())
}

/// Files of this host for strongSwan's daemon in a guest.
fn strongswan() -> Outcome<Vec<PathBuf>> {
    // The C library opens libgcc_s when a thread is cancelled.
    let libgcc = PathBuf::from("/lib/x86_64-linux-gnu/libgcc_s.so.1");
    let mut files = vec![PathBuf::from("/usr/lib/ipsec/charon"), found("swanctl")?, libgcc];
    let names = [
        "random",
        "nonce",
        "openssl",
        "kdf",
        "pem",
        "pkcs1",
        "pubkey",
        "x509",
        "vici",
        "kernel-netlink",
        "socket-default",
    ];
    for name in names {
        let plugin = PathBuf::from(format!("/usr/lib/ipsec/plugins/libstrongswan-{name}.so"));
        // Some are parts of the library itself, as Debian builds it.
        if plugin.exists() {
            files.push(plugin);
        }
    }
    Ok(files)
}

/// Addresses of the guest, and a page at the inner one.
const SETUP: &str = "ip link set eth0 up; ip addr add 192.0.2.2/24 dev eth0; ip addr add 10.2.0.1/32 dev lo
    ip route add 10.1.0.0/24 via 192.0.2.1 src 10.2.0.1
    mkdir -p /tmp/www /etc; echo through ESP of Linux >/tmp/www/index.html
    httpd -p 10.2.0.1:8080 -h /tmp/www";

/// Number of SAs of the guest's kernel that have carried bytes.
const COUNTED: &str = "/programs/ip -s xfrm state | grep -c '[1-9][0-9]*(bytes)'";

fn curl() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("user")?);
    netns.sh("ip tuntap add tap0 mode tap; ip link set tap0 up; ip addr add 192.0.2.1/24 dev tap0")?;
    let (programs_of_guest, files) = (stripped(&scratch, &[])?, strongswan()?);
    let initramfs = Initramfs::with_kernel_esp(&scratch, &paths(&programs_of_guest), &paths(&files))?;
    let mut guest = Guest::with_kernel_esp(&scratch, &initramfs, "linux", Some((&netns, "tap0")))?;
    guest.wait_for_boot()?;
    check_release(&mut guest)?;
    guest.sh(SETUP)?;

    // Static keys. The socket of port 4500 that takes ESP in UDP is the daemon's, which has no connection yet.
    let right = CharonFiles::new(&scratch, "right", Auth::Psk)?;
    for (name, text) in right.contents()? {
        let text = String::from_utf8(text)?;
        guest.sh(&format!("cat >/etc/{name} <<'END'\n{text}\nEND"))?;
    }
    guest.sh("export STRONGSWAN_CONF=/etc/strongswan.conf; /usr/lib/ipsec/charon >/tmp/charon.log 2>&1 &
        for try in $(seq 300); do [ ! -e /run/charon.vici ] || break; sleep 0.1; done; [ -e /run/charon.vici ]")?;
    let esp = Esp { udp: true, ..Esp::new(Mode::Tunnel, OUTER_V4, &[("10.1.0.0/24", "10.2.0.0/24")]) };
    // The shell prefers an `ip` of its own.
    guest.sh(&esp.reversed().to_ip_xfrm().replacen("ip ", "/programs/ip ", 1))?;
    let programs = programs()?;
    fetch(&netns, &programs, &rootless_toml(&esp.to_toml()), "", "through ESP of Linux\n")?;
    assert_eq!(guest.sh(COUNTED)?.trim(), "2", "{}", guest.sh("/programs/ip -s xfrm state")?);

    // Keys by IKE between the guest's strongSwan and one that the user runs on the own gateway.
    guest.sh("for what in state policy; do /programs/ip xfrm $what flush; done
        echo through IKE >/tmp/www/index.html
        export STRONGSWAN_CONF=/etc/strongswan.conf SWANCTL_DIR=/etc
        /usr/sbin/swanctl --load-all --file /etc/swanctl.conf")?;
    let begun = user_charon(&programs)?;
    let fetched = fetch(&netns, &programs, &rootless_toml(""), &begun, "through IKE\n");
    let log = |guest: &mut Guest| guest.sh("cat /tmp/charon.log").unwrap_or_default();
    fetched
        .map_err(|failed| format!("{}\nthe guest's charon:\n{}", failed.message().unwrap_or(""), log(&mut guest)))?;
    // The user's daemon has ended by now, and tells the guest to delete the SAs.
    let log = log(&mut guest);
    for line in ["selected proposal: ESP:AES_GCM_16_256/EXT_SEQ", "CHILD_SA net{"] {
        assert!(log.contains(line), "no {line} in\n{log}");
    }
    Ok(())
}

/// Script that starts strongSwan's daemon on the gateway of `fatpath exec` as a user without any capability, with the
/// example's connections. IKE is on port 4500 alone, since such a user cannot open port 500.
fn user_charon(programs: &Scratch) -> Outcome<String> {
    let left = CharonFiles::new(programs, "left", Auth::Psk)?;
    left.with_own_socket()?;
    left.change("swanctl.conf", "mobike = no", "mobike = no\n    local_port = 4500\n    remote_port = 4500")?;
    let (vici, conf) = (left.file("vici"), left.file("strongswan.conf"));
    let directory = vici.parent().ok_or("a file has a directory")?.to_owned();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777))?;
    // `mount` has the set-user-ID bit, and the daemon writes its process number to /run.
    let mount = programs.file("mount");
    run(Command::new("install").args(["-m", "755"]).arg(found("mount")?).arg(&mount))?;
    Ok(format!(
        "export STRONGSWAN_CONF={} SWANCTL_DIR={}
        unshare --mount sh -c '{} -t tmpfs tmpfs /run && exec /usr/lib/ipsec/charon' >/dev/null 2>{log} &
        charon=$!
        for try in $(seq 300); do [ ! -e {vici} ] || break; sleep 0.1; done
        swanctl --load-all --file {} --uri unix://{vici} >&2 || exit 1",
        conf.display(),
        directory.display(),
        mount.display(),
        left.file("swanctl.conf").display(),
        vici = vici.display(),
        log = directory.join("charon.log").display(),
    ))
}

/// Fetches the guest's page as a user without any capability: `before` is a script that runs under the same
/// `fatpath exec` before curl.
fn fetch(netns: &Netns, programs: &Scratch, toml: &str, before: &str, page: &str) -> Outcome {
    let config = programs.file("left.toml");
    fs::write(&config, toml)?;
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644))?;
    let script = format!(
        "{before}\ncurl -sS --retry 20 --retry-connrefused --max-time 40 http://10.2.0.1:8080/index.html
        status=$?; [ -z \"$charon\" ] || kill $charon; exit $status"
    );
    let mut command = netns.command("setpriv");
    command.args(NOBODY).args(["env", "-u", "XDG_RUNTIME_DIR"]).arg(programs.file("fatpath"));
    command.args(["exec", "-c"]).arg(&config).args(["--", "sh", "-c", &script]).current_dir("/");
    let output = command.output()?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), page, "{output:?}");
    assert!(output.status.success(), "{output:?}");
    Ok(())
}
