//! Debian packages of the tested programs (`scripts/package`): what they hold, and their installation, upgrade and removal
//! under systemd, which is the first process of a machine in namespaces.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use redb::{Database, TableDefinition};
use system::{
    Capture, Esp, Gateway, Mode, Need, Netns, OUTER_V4, Outcome, Process, Scratch, fatpath, ping_script, run, trial,
    unpacked, veth, wait_until,
};

use crate::tunnel;

const TOOLS: &[Need] = &[
    Need::Program { name: "dpkg-shlibdeps", package: "dpkg-dev" },
    Need::Program { name: "objcopy", package: "binutils" },
    Need::Program { name: "lintian", package: "lintian" },
];

#[rustfmt::skip]
const NEEDS: &[Need] = &[
    Need::Namespaces, Need::Tun, Need::PING, Need::TCPDUMP,
    Need::Program { name: "dpkg-shlibdeps", package: "dpkg-dev" },
    Need::Program { name: "objcopy", package: "binutils" },
    Need::File { path: "/lib/systemd/systemd", package: "systemd" },
];

const CONTAINER: &[Need] = &[Need::Namespaces, Need::Tun, Need::SETPRIV];

const PARSER: Need = Need::Unpacked { path: "sbin/apparmor_parser", package: "apparmor" };

const PATIENCE: Duration = Duration::from_secs(30);

/// Largest package without debug data.
const MAX_LEN: u64 = 12 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("package/lintian_accepts_it_and_debug_data_is_apart", TOOLS, contents),
        trial("package/upgrade_under_traffic_keeps_tunnels_and_purge_leaves_nothing", NEEDS, lifetime),
        trial("package/full_disk_keeps_the_installed_version", NEEDS, full_disk),
        trial("package/gateway_that_does_not_start_after_an_upgrade_is_named", NEEDS, failed_restart),
        trial("package/agent_of_a_fleet_runs_with_one_capability", NEEDS, agent),
        trial("package/removal_takes_devices_out_of_a_units_namespace", NEEDS, namespace_of_a_unit),
        trial("package/wrong_variables_are_refused_by_name", TOOLS, refused),
        trial("package/privileges_of_the_container_examples_suffice", CONTAINER, container),
        trial("package/apparmor_profile_is_accepted", &[PARSER], profile),
    ]
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `scripts/package` with the tested programs, into `out`.
fn script(out: &Path) -> Command {
    let mut command = Command::new(repository().join("scripts/package"));
    command.env("OUT", out).env("BINDIR", fatpath().parent().expect("a program is in a directory"));
    command
}

/// Directory of the packages, which are made once.
fn packages() -> Outcome<&'static Path> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
        let _ = fs::remove_dir_all(&out);
        match run(script(&out)
            .env("VERSION", "0.1.0")
            .env("COMPRESSION", "gzip")
            .env("SOURCE_DATE_EPOCH", "1000000000"))
        {
            Ok(_) => Ok(out),
            Err(failed) => Err(failed.message().unwrap_or_default().to_owned()),
        }
    });
    made.as_deref().map_err(|message| message.as_str().into())
}

/// Path of the package `name`.
fn package(name: &str) -> Outcome<PathBuf> {
    let start = format!("{name}_0.1.0_");
    for entry in fs::read_dir(packages()?)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&start)) {
            return Ok(path);
        }
    }
    Err(format!("no package {name}").into())
}

/// Writes the package `fatpath` with another version to `directory`, as `VERSION.deb`.
fn with_version(directory: &Path, version: &str) -> Outcome {
    let tree = directory.join(format!("tree-{version}"));
    run(Command::new("dpkg-deb").arg("-R").arg(package("fatpath")?).arg(&tree))?;
    let control = tree.join("DEBIAN/control");
    let text = fs::read_to_string(&control)?.replace("Version: 0.1.0", &format!("Version: {version}"));
    fs::write(&control, text)?;
    let deb = directory.join(format!("{version}.deb"));
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Znone", "-b"])
        .arg(&tree)
        .arg(&deb)
        .env("SOURCE_DATE_EPOCH", "1000000000"))?;
    Ok(fs::remove_dir_all(tree)?)
}

fn contents() -> Outcome {
    let names = [
        "fatpath",
        "fatpath-bench",
        "fatpath-see",
        "fatpath-fleet",
        "fatpath-dbgsym",
        "fatpath-bench-dbgsym",
        "fatpath-see-dbgsym",
        "fatpath-fleet-dbgsym",
    ];
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning"]);
    for name in names {
        lintian.arg(package(name)?);
    }
    assert_eq!(run(&mut lintian)?, "");
    let scratch = Scratch::new()?;
    for name in names {
        run(Command::new("dpkg-deb").arg("-x").arg(package(name)?).arg(scratch.file(name)))?;
    }
    let sections = |file: &Path| run(Command::new("objdump").arg("-h").arg(file));
    for (name, file) in [
        ("fatpath", "usr/bin/fatpath"),
        ("fatpath", "usr/lib/fatpath/libfatpath_preload.so"),
        ("fatpath-bench", "usr/bin/fatpath-bench"),
        ("fatpath-see", "usr/bin/fatpath-see"),
        ("fatpath-fleet", "usr/bin/fatpath-fleet"),
    ] {
        let file = scratch.file(name).join(file);
        assert!(!sections(&file)?.contains(".debug_info"), "{}", file.display());
        let notes = run(Command::new("readelf").arg("-n").arg(&file))?;
        let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).ok_or("no build ID")?;
        let debug = format!("{name}-dbgsym/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
        assert!(sections(&scratch.file(&debug))?.contains(".debug_info"), "{debug}");
    }
    let of_fleet =
        run(Command::new("find").arg(scratch.file("fatpath-fleet")).args(["-type", "f", "-printf", "%P\n"]))?;
    for file in [
        "/systemd/system/fatpath-fleet@.service\n",
        "usr/share/man/man1/fatpath-fleet.1.gz\n",
        "usr/share/man/man1/fatpath-fleet-run.1.gz\n",
        "usr/share/bash-completion/completions/fatpath-fleet\n",
        "usr/share/zsh/vendor-completions/_fatpath-fleet\n",
        "usr/share/fish/vendor_completions.d/fatpath-fleet.fish\n",
    ] {
        assert!(of_fleet.contains(file), "{file}: {of_fleet}");
    }
    let elsewhere = run(Command::new("find").arg(scratch.file("fatpath")).args(["-name", "*fleet*"]))?;
    assert_eq!(elsewhere, "");
    let dirs = scratch.file("fatpath-see/usr/lib");
    let plugin =
        run(Command::new("find").arg(dirs).args(["-path", "*/wireshark/extcap/fatpath-extcap", "-printf", "%l"]))?;
    assert_eq!(plugin, "../../../../bin/fatpath-see");
    // A debug build is larger than a release, and gzip packs less than xz does.
    let len = fs::metadata(package("fatpath")?)?.len();
    assert!(len <= MAX_LEN, "{len} bytes");
    let control =
        run(Command::new("dpkg-deb").arg("-f").arg(package("fatpath")?).args(["Depends", "Suggests", "Version"]))?;
    for wanted in ["libc6 (>= ", "libgcc-s1 (>= ", "iproute2", "charon-systemd", "Version: 0.1.0\n"] {
        assert!(control.contains(wanted), "{control}");
    }
    // Nothing in them depends on the time and the user of the build, as `make release-check` shows for whole builds.
    for name in names {
        for part in ["--fsys-tarfile", "--ctrl-tarfile"] {
            let tar = scratch.file("tar");
            let list = "dpkg-deb $2 $1 >$3; tar -tvf $3 --utc --numeric-owner";
            let mut command = Command::new("sh");
            command.args(["-ec", list, "sh"]).arg(package(name)?).arg(part).arg(&tar);
            for line in run(&mut command)?.lines() {
                assert!(line.contains(" 0/0 ") && line.contains(" 2001-09-09 01:46 "), "{name}: {line}");
            }
        }
    }
    Ok(())
}

fn refused() -> Outcome {
    let scratch = Scratch::new()?;
    for (name, value, wanted) in [
        ("VERSION", "next", "package: VERSION=next: no version of a Debian package\n"),
        ("SOURCE_DATE_EPOCH", "now", "package: SOURCE_DATE_EPOCH=now: no number of seconds\n"),
        ("SBOM", "/nowhere", "package: SBOM=/nowhere: missing\n"),
        (
            "BINDIR",
            "/nowhere",
            "install: /nowhere/fatpath: missing; `make build` builds it, BINDIR names another directory\n",
        ),
    ] {
        let out = scratch.file("out");
        let output = script(&out).env(name, value).output()?;
        assert!(!output.status.success() && !out.exists(), "{name}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), wanted);
    }
    Ok(())
}

/// The parser of Debian 12 does not know the rule `userns`, for which the profile exists; it checks all but that rule. The
/// package installs the profile only where the kernel has the restriction.
fn profile() -> Outcome {
    let scratch = Scratch::new()?;
    let text = fs::read_to_string(repository().join("packaging/apparmor"))?;
    assert!(text.contains("\n  userns,\n"), "{text}");
    let older = text.replace("\n  userns,\n", "\n").replace("abi/4.0", "abi/3.0").replace("@BINDIR@", "/usr/bin");
    let file = scratch.file("profile");
    let parse = |text: &str| -> Outcome<std::process::Output> {
        fs::write(&file, text)?;
        let mut parser = Command::new(unpacked("sbin/apparmor_parser"));
        parser.args(["-Q", "-K", "--base"]).arg(unpacked("etc/apparmor.d")).arg(&file);
        Ok(parser.output()?)
    };
    let output = parse(&older)?;
    assert!(output.status.success(), "{output:?}");
    assert!(!parse(&older.replace("flags=", "flag="))?.status.success(), "a wrong keyword is found");
    Ok(())
}

/// A gateway with the capabilities of the examples starts, and with none if it has UDP links alone; the command of the health
/// check succeeds. A TUN device takes the capability that the examples add.
fn container() -> Outcome {
    let read = |path: &str| fs::read_to_string(repository().join(path));
    let (compose, daemonset) = (read("examples/container/compose.yaml")?, read("examples/container/daemonset.yaml")?);
    assert!(compose.contains("    cap_add: [NET_ADMIN]\n") && compose.contains("    cap_drop: [ALL]\n"), "{compose}");
    assert!(daemonset.contains("drop: [ALL]\n") && daemonset.contains("add: [NET_ADMIN]\n"), "{daemonset}");
    let image = read("Containerfile")?;
    assert!(
        image.contains("CMD [\"fatpath\", \"status\"]\n") && image.contains("ENTRYPOINT [\"fatpath\", \"run\"]\n"),
        "{image}"
    );
    for (device, capabilities, starts) in
        [("none", "-all", true), ("tun", "-all,+net_admin", true), ("tun", "-all", false)]
    {
        let (scratch, host) = (Scratch::new()?, Netns::new("container")?);
        host.sh("ip addr add 192.0.2.1/32 dev lo")?;
        let mut toml = read("examples/tunnel-left.toml")?;
        if device == "none" {
            let addresses = r#"nets = ["10.1.0.1/32", "fd00:1::1/128"] }"#;
            let local = toml.lines().find(|line| line.starts_with("local = ")).ok_or("no local end")?.to_owned();
            let start = local.split("nets = ").next().unwrap_or_default();
            toml = toml.replace(&local, &format!("device = \"none\"\n{start}{addresses}"));
        }
        let mut command = host.command("setpriv");
        command.args(["--no-new-privs", "--bounding-set", capabilities, "--inh-caps", capabilities]).arg(fatpath());
        match Gateway::start_under(command, &scratch, "left", &toml) {
            Ok(_gateway) => {
                assert!(starts, "{device} {capabilities}");
                let mut status = Command::new(fatpath());
                let shown = run(status.args(["status", "-i", "left"]).env("FATPATH_RUNDIR", scratch.path()))?;
                assert!(shown.starts_with("left: running, "), "{shown}");
            }
            Err(failed) => {
                let text = failed.message().unwrap_or_default();
                assert!(!starts && text.contains("Operation not permitted"), "{device} {capabilities}: {text}");
            }
        }
    }
    Ok(())
}

/// Start of a machine in a network namespace. Its arguments are a directory, the size of the layer that takes changes, and
/// the directory with the packages.
const BOOT: &str = r#"set -e
mount -t tmpfs -o size="$2" none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
root=$1/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
for place in run tmp media mnt; do
    mount -t tmpfs -o mode=755 none "$root/$place"
done
mkdir "$root/media/packages" "$root/run/systemd" "$root/run/systemd/system" "$root/run/systemd/system/fatpath@.service.d"
mount --bind "$3" "$root/media/packages"
mount --bind "$1/upper" "$root/mnt"
if [ "$VERSION" = 2 ]; then
    mount -t cgroup2 cgroup "$root/sys/fs/cgroup"
else
    mount -t tmpfs none "$root/sys/fs/cgroup"
    mkdir "$root/sys/fs/cgroup/systemd"
    mount -t cgroup -o none,name=systemd,xattr cgroup "$root/sys/fs/cgroup/systemd"
fi
# Images of containers forbid services and leave out documentation.
rm -f "$root/usr/sbin/policy-rc.d" "$root"/etc/dpkg/dpkg.cfg.d/*
printf '[Unit]\nDescription=test\nDefaultDependencies=no\nAllowIsolate=yes\n' >"$root/run/systemd/system/test.target"
# There is no journal.
printf '[Service]\nStandardOutput=append:/run/%%i.log\nStandardError=append:/run/%%i.log\n' >"$root/run/systemd/system/fatpath@.service.d/log.conf"
cd "$root"
mkdir run/old
pivot_root . run/old
umount -l run/old
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C \
    /lib/systemd/systemd --system --unit=test.target --log-target=console --log-level=info --show-status=0
"#;

/// Enters a cgroup of its own, and starts [`BOOT`] as the first process of new namespaces.
const NAMESPACES: &str = r#"set -e
echo $$ >"$CGROUP/cgroup.procs"
exec ip netns exec "$NETNS" unshare --mount --pid --fork --kill-child --cgroup --uts --ipc sh -c "$BOOT" boot "$@"
"#;

/// A machine whose first process is systemd: its root is a layer over this machine's, which is not changed.
struct Machine {
    process: Process,
    /// Number of the first process.
    init: u32,
    netns: Netns,
    cgroup: PathBuf,
}

impl Machine {
    /// Boots it; its changes have room for `mib` MiB. The directory `packages` is its `/media/packages`.
    fn boot(mib: u32, packages: &Path, scratch: &Scratch) -> Outcome<Self> {
        let netns = Netns::new("machine")?;
        let layer = scratch.file("layer");
        fs::create_dir(&layer)?;
        let all = Path::new("/sys/fs/cgroup");
        let is_v2 = all.join("cgroup.controllers").exists();
        let parent = if is_v2 { all.to_owned() } else { all.join("systemd") };
        let cgroup = parent.join(netns.name());
        fs::create_dir(&cgroup).map_err(|error| format!("{}: {error}", cgroup.display()))?;
        let mut command = Command::new("sh");
        command.env("CGROUP", &cgroup).env("NETNS", netns.name()).env("BOOT", BOOT);
        command.env("VERSION", if is_v2 { "2" } else { "1" }).args(["-ec", NAMESPACES, "namespaces"]);
        command.arg(&layer).arg(format!("{mib}m")).arg(packages);
        let process = Process::spawn(&mut command, scratch)?;
        let mut machine = Self { process, init: 0, netns, cgroup };
        let mut said = String::new();
        wait_until("systemd runs", PATIENCE, || {
            let id = machine.process.id();
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
            let Some(init) = children.split_whitespace().next().and_then(|id| id.parse().ok()) else { return false };
            machine.init = init;
            match machine.sh("systemctl is-system-running") {
                Ok(text) => text.trim() == "running",
                Err(failed) => {
                    said = failed.message().unwrap_or_default().to_owned();
                    false
                }
            }
        })
        .map_err(|_| format!("systemd does not run: {said}\n{}", machine.process.output()))?;
        Ok(machine)
    }

    /// Command for a program of this machine, as root.
    fn command(&self, program: &str) -> Command {
        let init = self.init.to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &init, "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup"]);
        command.arg(format!("--root=/proc/{init}/root")).arg(program).current_dir("/").env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
        command
    }

    /// Output of a shell script, up to the first command that fails.
    fn sh(&self, script: &str) -> Outcome<String> {
        run(self.command("sh").args(["-ec", script]))
    }

    /// Both streams of `dpkg`, which does not wait for the disk, and leaves the work of other packages' triggers.
    fn dpkg(&self, options: &str) -> Outcome<String> {
        self.sh(&format!("dpkg --force-unsafe-io --no-triggers {options} </dev/null 2>&1"))
    }

    /// First process of a unit; 0 if none runs.
    fn main_pid(&self, unit: &str) -> Outcome<u32> {
        Ok(self.sh(&format!("systemctl show -p MainPID --value {unit}"))?.trim().parse()?)
    }

    /// Files of the changed layer with `fatpath` in their paths.
    fn left(&self) -> Outcome<Vec<String>> {
        let found = self.sh("cd /mnt; find . -path '*fatpath*' ! -path './tmp/*' | sort")?;
        Ok(found.lines().map(str::to_owned).collect())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The end of the first process ends all others, and frees the groups.
        let init = i32::try_from(self.init).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(init) = init {
            let _ = rustix::process::kill_process(init, rustix::process::Signal::KILL);
        }
        let _ = self.process.wait(PATIENCE);
        let remove = || {
            let all = Command::new("find")
                .arg(&self.cgroup)
                .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"])
                .output();
            all.is_ok() && !self.cgroup.exists()
        };
        let _ = wait_until("the groups are empty", Duration::from_secs(5), remove);
    }
}

/// A TCP connection through the tunnel that carries a number each 10 ms, and back.
fn echo_until(done: &AtomicBool, a: &Netns, b: &Netns) -> Outcome<(u32, Duration)> {
    let to = SocketAddr::from((Ipv4Addr::new(10, 2, 0, 1), 7777));
    let listener = b.enter(|| TcpListener::bind(to))?;
    thread::scope(|scope| {
        let server = scope.spawn(move || -> std::io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            let mut bytes = [0; 4];
            while stream.read_exact(&mut bytes).is_ok() {
                stream.write_all(&bytes)?;
            }
            Ok(())
        });
        let mut stream = a.enter(|| TcpStream::connect_timeout(&to, PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let (mut number, mut longest) = (0_u32, Duration::ZERO);
        while !done.load(Ordering::Relaxed) {
            let sent = Instant::now();
            stream.write_all(&number.to_be_bytes())?;
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes)?;
            assert_eq!(u32::from_be_bytes(bytes), number);
            longest = longest.max(sent.elapsed());
            number += 1;
            thread::sleep(Duration::from_millis(10));
        }
        drop(stream);
        server.join().map_err(|_| "the server has panicked")??;
        Ok((number, longest))
    })
}

/// Rewrites the saved state at `file` as one of a later version of fatpath would be.
fn make_newer(file: &Path) -> Outcome {
    let database = Database::open(file).map_err(|error| error.to_string())?;
    let write = database.begin_write().map_err(|error| error.to_string())?;
    let table = TableDefinition::<&str, u32>::new("fatpath");
    write
        .open_table(table)
        .and_then(|mut table| Ok(table.insert("format", 99).map(drop)?))
        .map_err(|error| error.to_string())?;
    write.commit().map_err(|error| error.to_string())?;
    Ok(())
}

fn lifetime() -> Outcome {
    let (scratch, debs, b) = (Scratch::new()?, Scratch::new()?, Netns::new("b")?);
    for version in ["0.1.0", "0.1.1", "0.1.2", "0.1.3"] {
        with_version(debs.path(), version)?;
    }
    let machine = Machine::boot(512, debs.path(), &scratch)?;
    let a = &machine.netns;
    veth((a, "wan0"), (&b, "wan0"))?;

    // A gateway of another installation keeps running beside the package.
    machine.sh("dpkg-deb -x /media/packages/0.1.0.deb /tmp/hand; mkdir /tmp/rundir; printf '[[link]]\\nname = \"lo\"\\naddresses = [\"10.9.0.1/32\"]\\n' >/tmp/hand.toml")?;
    let mut hand = machine.command("/tmp/hand/usr/bin/fatpath");
    hand.args(["run", "-i", "hand", "-c", "/tmp/hand.toml"]).env("FATPATH_RUNDIR", "/tmp/rundir");
    let mut hand = Process::spawn(&mut hand, &scratch)?;
    wait_until("the gateway started by hand runs", PATIENCE, || machine.sh("test -S /tmp/rundir/hand.sock").is_ok())?;

    let printed = machine.dpkg("-i /media/packages/0.1.0.deb")?;
    let lines: Vec<&str> = printed.lines().filter(|line| line.starts_with("fatpath: ")).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("fatpath: the gateway hand (process "), "{printed}");
    assert!(lines[0].ends_with("it keeps running its version until you restart it"), "{printed}");
    assert!(hand.is_running());
    assert_eq!(machine.sh("systemctl list-units --all --plain --no-legend 'fatpath*'")?, "");
    assert_eq!(machine.sh("find /etc/systemd -name '*fatpath*'")?, "");
    let modes = machine.sh("cd /; stat -c '%n %a %U' etc/fatpath var/lib/fatpath usr/bin/fatpath usr/lib/fatpath/*.so usr/lib/systemd/system/fatpath*")?;
    assert_eq!(
        modes,
        "etc/fatpath 700 root\nvar/lib/fatpath 700 root\nusr/bin/fatpath 755 root\n\
         usr/lib/fatpath/libfatpath_preload.so 644 root\nusr/lib/systemd/system/fatpath-charon@.service 644 root\n\
         usr/lib/systemd/system/fatpath-pair@.service 644 root\nusr/lib/systemd/system/fatpath@.service 644 root\n"
    );
    assert!(machine.sh("systemctl cat fatpath@left")?.contains("ExecStart=/usr/bin/fatpath run "));

    // A tunnel from the installed files, and a second gateway.
    let esp = Esp { udp: true, ..Esp::new(Mode::Tunnel, OUTER_V4, &[("10.1.0.0/24", "10.2.0.0/24")]) };
    let _right = tunnel::start(&b, "right", &esp.reversed(), 2, &scratch)?;
    let toml = scratch.file("left.toml");
    fs::write(&toml, tunnel::config(&esp, 1))?;
    a.sh(&format!("ip addr add {}/24 dev wan0", esp.own))?;
    let mut copy = machine.command("sh");
    copy.args(["-c", "umask 077; cat >/etc/fatpath/left.toml; cp /tmp/hand.toml /etc/fatpath/second.toml"]);
    let output = copy.stdin(fs::File::open(&toml)?).output()?;
    assert!(output.status.success(), "{output:?}");
    machine.sh("systemctl enable --now fatpath@left fatpath@second 2>&1").map_err(|failed| {
        format!("{}\n{}", failed.message().unwrap_or_default(), machine.sh("cat /run/*.log").unwrap_or_default())
    })?;
    a.sh("ip addr replace 10.1.0.1/24 dev tun0
        ip link set tun0 mtu 1438 up
        ip route replace 10.2.0.0/24 dev tun0")?;
    a.sh(&ping_script("10.2.0.1".parse()?, &[56, 4000]))?;
    let before = [machine.main_pid("fatpath@left")?, machine.main_pid("fatpath@second")?];
    let user = machine.sh("id -u fatpath")?;
    for pid in before {
        let ids = machine.sh(&format!("grep ^Uid: /proc/{pid}/status"))?;
        assert_eq!(ids.split_whitespace().skip(1).collect::<Vec<_>>(), [user.trim(); 4]);
    }

    // Upgrade under a TCP connection and pings.
    // Between two runs the port is closed, and the kernel says so by ICMP errors, which quote ESP.
    let capture =
        Capture::start(a, "wan0", "ip and not udp port 4500 and not icmp[icmptype] = icmp-unreach", &scratch)?;
    let mut ping = a.command("ping");
    let mut ping = Process::spawn(ping.args(["-n", "-i", "0.02", "10.2.0.1"]), &scratch)?;
    let done = AtomicBool::new(false);
    let (echoed, printed) = thread::scope(|scope| {
        let echoes = scope.spawn(|| echo_until(&done, a, &b));
        thread::sleep(Duration::from_millis(300));
        let printed = machine.dpkg("-i /media/packages/0.1.1.deb");
        thread::sleep(Duration::from_millis(300));
        done.store(true, Ordering::Relaxed);
        (echoes.join(), printed)
    });
    let (printed, (echoes, longest)) = (printed?, echoed.map_err(|_| "the client has panicked")??);
    assert!(!printed.contains("has not started") && !printed.contains("keeps running the earlier"), "{printed}");
    let after = [machine.main_pid("fatpath@left")?, machine.main_pid("fatpath@second")?];
    for (before, after) in before.iter().zip(after) {
        assert!(after != 0 && after != *before, "{before} {after}: {printed}");
    }
    let program = machine.sh(
        "for unit in left second; do readlink /proc/$(systemctl show -p MainPID --value fatpath@$unit)/exe; done",
    )?;
    assert_eq!(program, "/usr/bin/fatpath\n/usr/bin/fatpath\n");
    ping.signal(rustix::process::Signal::INT)?;
    ping.wait(PATIENCE)?;
    println!(
        "package: upgrade: {echoes} echoes, the longest took {longest:?}; {}",
        ping.output().lines().rev().nth(1).unwrap_or_default()
    );
    assert!(ping.output().contains(" received"), "{}", ping.output());
    a.sh(&ping_script("10.2.0.1".parse()?, &[56, 4000]))?;
    let clear = run(Command::new("tcpdump").args(["-n", "-r"]).arg(capture.finish()?))?;
    assert_eq!(clear, "", "packets in clear");
    assert!(hand.is_running());

    // A state that the new version cannot read: its gateway stays, and the other is upgraded.
    machine.sh(
        "systemctl stop fatpath@left; cp -p /var/lib/fatpath/left.state /tmp/ours.state; systemctl start fatpath@left",
    )?;
    let newer = PathBuf::from(format!("/proc/{}/root/tmp/newer.state", machine.init));
    machine.sh("cp -p /tmp/ours.state /tmp/newer.state")?;
    make_newer(&newer)?;
    machine.sh("mv /var/lib/fatpath/left.state /tmp/open.state; cp -p /tmp/newer.state /var/lib/fatpath/left.state")?;
    let before = [machine.main_pid("fatpath@left")?, machine.main_pid("fatpath@second")?];
    let printed = machine.dpkg("-i /media/packages/0.1.2.deb")?;
    assert!(
        printed.contains("fatpath: left keeps running the earlier version, for this one refuses to start: Error: /var/lib/fatpath/left.state:")
            && printed.contains("format 99, and this version supports ")
            && printed.contains("fatpath: correct that, and then: systemctl restart fatpath@left.service"),
        "{printed}"
    );
    let after = [machine.main_pid("fatpath@left")?, machine.main_pid("fatpath@second")?];
    assert!(after[0] == before[0] && after[1] != before[1] && after[1] != 0, "{before:?} {after:?}");
    a.sh(&ping_script("10.2.0.1".parse()?, &[56]))?;
    // Nor is it restarted for a file that the new version refuses.
    machine.sh("mv /tmp/open.state /var/lib/fatpath/left.state; cp -p /etc/fatpath/left.toml /tmp/left.toml; echo 'x = 1' >/etc/fatpath/left.toml")?;
    let printed = machine.dpkg("-i /media/packages/0.1.3.deb")?;
    assert!(
        printed.contains("fatpath: left keeps running the earlier version") && printed.contains("left.toml"),
        "{printed}"
    );
    assert_eq!(machine.main_pid("fatpath@left")?, before[0]);
    machine.sh("mv /tmp/left.toml /etc/fatpath/left.toml; systemctl restart fatpath@left")?;
    a.sh(&ping_script("10.2.0.1".parse()?, &[56]))?;

    // Removal ends the units and takes their devices away; purge leaves the user's files alone.
    let printed = machine.dpkg("-r fatpath")?;
    assert!(
        printed.contains("fatpath: left is down: packets for its networks take this host's other routes"),
        "{printed}"
    );
    assert_eq!(machine.sh("systemctl list-units --plain --no-legend --state=active 'fatpath*'")?, "");
    assert!(a.sh("ip link show tun0").is_err());
    assert!(machine.left()?.contains(&"./var/lib/fatpath/left.state".to_owned()), "removal keeps the state");
    machine.dpkg("-P fatpath")?;
    assert_eq!(machine.left()?, ["./etc/fatpath", "./etc/fatpath/left.toml", "./etc/fatpath/second.toml"]);
    assert!(hand.is_running());
    Ok(())
}

/// dpkg writes new files beside the old ones, so that the installed version stays complete, and its gateway runs.
fn full_disk() -> Outcome {
    let (scratch, debs) = (Scratch::new()?, Scratch::new()?);
    for version in ["0.1.0", "0.1.1"] {
        with_version(debs.path(), version)?;
    }
    let machine = Machine::boot(256, debs.path(), &scratch)?;
    machine.dpkg("-i /media/packages/0.1.0.deb")?;
    machine.sh("printf '[[link]]\\nname = \"lo\"\\naddresses = [\"10.9.0.1/32\"]\\n' >/etc/fatpath/left.toml; systemctl start fatpath@left")?;
    let before = machine.main_pid("fatpath@left")?;
    let sums = machine.sh("md5sum /usr/bin/fatpath /usr/lib/fatpath/*.so /usr/lib/systemd/system/fatpath*")?;
    machine.sh("dd if=/dev/zero of=/var/fill bs=1M 2>/dev/null || true; truncate -s -6M /var/fill")?;
    let printed = machine.sh("dpkg --no-triggers -i /media/packages/0.1.1.deb 2>&1 && exit 1 || true")?;
    assert!(printed.contains("No space left on device"), "{printed}");
    assert_eq!(machine.sh("md5sum /usr/bin/fatpath /usr/lib/fatpath/*.so /usr/lib/systemd/system/fatpath*")?, sums);
    assert_eq!(machine.main_pid("fatpath@left")?, before);
    let shown = machine.sh("fatpath status -i left; dpkg-query -W -f '${Version} ${db:Status-Status}\\n' fatpath")?;
    assert!(shown.starts_with("left: running") && shown.ends_with("0.1.0 installed\n"), "{shown}");
    // With room the upgrade is repeated.
    machine.sh("rm /var/fill")?;
    machine.dpkg("-i /media/packages/0.1.1.deb")?;
    let after = machine.main_pid("fatpath@left")?;
    assert!(after != before && after != 0);
    Ok(())
}

/// A gateway whose restart fails after the check has passed: dpkg succeeds, a line names the gateway, and those after it keep the
/// earlier version. The units run with privileges of the installed file and no others.
fn failed_restart() -> Outcome {
    let (scratch, debs) = (Scratch::new()?, Scratch::new()?);
    for version in ["0.1.0", "0.1.1"] {
        with_version(debs.path(), version)?;
    }
    let machine = Machine::boot(512, debs.path(), &scratch)?;
    machine.dpkg("-i /media/packages/0.1.0.deb")?;
    machine.sh("for name in left second; do
            printf '[[link]]\\nname = \"%s\"\\nkind = \"tun\"\\n' $name >/etc/fatpath/$name.toml
        done
        systemctl start fatpath@left fatpath@second")?;
    let before = [machine.main_pid("fatpath@left")?, machine.main_pid("fatpath@second")?];
    assert!(before.iter().all(|&id| id != 0), "{before:?}");

    // The unit's capabilities at most in its openers, and none that a program could gain.
    let wanted = machine.sh("sed -n 's/^CapabilityBoundingSet=//p' /usr/lib/systemd/system/fatpath@.service")?;
    let wanted: Vec<&str> = wanted.split_whitespace().collect();
    assert!(wanted.contains(&"CAP_NET_ADMIN"), "{wanted:?}");
    let status = machine.sh(&format!("cat /proc/{}/status", before[0]))?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    assert_eq!(field("NoNewPrivs:"), Some("1"), "{status}");
    let held = |name: &str| -> Outcome<u64> { Ok(u64::from_str_radix(field(name).ok_or("no capabilities")?, 16)?) };
    assert_eq!(held("CapBnd:")?.count_ones() as usize, wanted.len(), "{wanted:?} {status}");
    // The gateway keeps none of these, and its openers what they need: those of TUN and of the host side.
    for name in ["CapPrm:", "CapEff:"] {
        assert_eq!(held(name)?, 0, "{name} {status}");
    }
    let openers = machine.sh(&format!(
        "for pid in $(cat /proc/{0}/task/{0}/children); do sed -n 's/^CapEff:\\t//p' /proc/$pid/status; done | sort",
        before[0]
    ))?;
    assert_eq!(openers, "0000000000001000\n0000000000203000\n");

    // A failure that the check of file and state cannot see.
    machine.sh("mkdir /run/systemd/system/fatpath@left.service.d
        printf '[Service]\\nExecStartPre=/bin/false\\n' >/run/systemd/system/fatpath@left.service.d/fails.conf")?;
    let printed = machine.dpkg("-i /media/packages/0.1.1.deb")?;
    assert!(
        printed.contains(
            "fatpath: left has not started: systemctl status fatpath@left.service; the gateways after it keep running the earlier version"
        ),
        "{printed}"
    );
    assert_eq!(
        machine.sh("dpkg-query -W -f '${Version} ${db:Status-Status}\\n' fatpath; dpkg --audit fatpath")?,
        "0.1.1 installed\n"
    );
    assert_eq!(machine.main_pid("fatpath@second")?, before[1]);
    assert!(machine.sh("systemctl is-active fatpath@left").is_err());
    // With the cause gone, the commands that the line names are enough.
    machine.sh("rm -r /run/systemd/system/fatpath@left.service.d; systemctl daemon-reload
        systemctl reset-failed fatpath@left; systemctl restart fatpath@left fatpath@second")?;
    for (unit, before) in ["fatpath@left", "fatpath@second"].iter().zip(before) {
        let after = machine.main_pid(unit)?;
        assert!(after != 0 && after != before, "{unit} {before} {after}");
    }
    Ok(())
}

/// The unit of a fleet's agent, without etcd: it drives its gateway, keeps its state over a restart and a removal, and a purge takes that.
fn agent() -> Outcome {
    let scratch = Scratch::new()?;
    let machine = Machine::boot(512, packages()?, &scratch)?;
    for name in ["fatpath", "fatpath-fleet"] {
        let deb = package(name)?;
        let deb = deb.file_name().ok_or("a package has a name")?.to_string_lossy().into_owned();
        machine.dpkg(&format!("-i /media/packages/{deb}"))?;
    }
    assert_eq!(machine.sh("systemctl list-units --all --plain --no-legend 'fatpath*'")?, "");
    machine.sh("printf '[[link]]\\nname = \"lo\"\\naddresses = [\"10.9.0.1/32\"]\\n' >/etc/fatpath/left.toml
        printf '%s\\n' 'fleet = \"f\"' 'node = \"a\"' 'etcd = [\"http://127.0.0.1:1\"]' 'locators = \"fd00:0:1::/48\"' \\
            '[domains]' 'tasks = \"2001:db8::/48\"' >/etc/fatpath/left.fleet.toml
        systemctl enable --now fatpath-fleet@left")?;
    let drives =
        || machine.sh("fatpath show routes -i left").is_ok_and(|shown| shown.contains("blackhole 2001:db8::/48"));
    wait_until("the agent drives its gateway", PATIENCE, drives).map_err(|failed| {
        let shown = machine.sh("fatpath show routes -i left; systemctl status fatpath-fleet@left fatpath@left || true");
        format!("{}\n{}", failed.message().unwrap_or_default(), shown.unwrap_or_default())
    })?;
    let shown = machine.sh("fatpath-fleet status --instance left")?;
    assert!(shown.contains("gateway   connected"), "{shown}");
    // The agent's socket is none of a gateway.
    let shown = machine.sh("fatpath status")?;
    assert!(shown.contains("left: running") && !shown.contains("agent"), "{shown}");
    let pid = machine.main_pid("fatpath-fleet@left")?;
    let status = machine.sh(&format!("cat /proc/{pid}/status"))?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), (Some("1"), Some("2")), "{status}");
    for name in ["CapPrm:", "CapEff:", "CapBnd:"] {
        assert_eq!(field(name), Some("0000000000001000"), "{name} {status}");
    }
    // The gateway's route comes back after its restart, and after the agent's.
    machine.sh("systemctl restart fatpath@left fatpath-fleet@left")?;
    wait_until("the agent drives its gateway", PATIENCE, drives)?;
    machine.dpkg("-r fatpath-fleet")?;
    assert!(drives(), "the gateway keeps what it has");
    assert!(machine.left()?.contains(&"./var/lib/fatpath/left.fleet".to_owned()), "removal keeps the state");
    machine.sh("touch /var/lib/fatpath/left.fleet.old")?;
    machine.dpkg("-P fatpath-fleet")?;
    let left = machine.left()?;
    assert!(
        !left
            .iter()
            .any(|file| file.contains("/left.fleet") && file.contains("/var/") || file.contains("fatpath-fleet@")),
        "{left:?}"
    );
    assert!(left.contains(&"./etc/fatpath/left.fleet.toml".to_owned()), "{left:?}");
    Ok(())
}

/// A unit in a network namespace, by a drop-in: removal of the package leaves its device there no more than in the machine's own.
fn namespace_of_a_unit() -> Outcome {
    let scratch = Scratch::new()?;
    let machine = Machine::boot(512, packages()?, &scratch)?;
    let deb = package("fatpath")?;
    let deb = deb.file_name().ok_or("a package has a name")?.to_string_lossy();
    machine.dpkg(&format!("-i /media/packages/{deb}"))?;
    machine.sh("ip netns add side
        mkdir /run/systemd/system/fatpath@left.service.d
        printf '[Service]\\nNetworkNamespacePath=/run/netns/side\\n' >/run/systemd/system/fatpath@left.service.d/side.conf
        systemctl daemon-reload
        printf '[[link]]\\nname = \"tun7\"\\nkind = \"tun\"\\n' >/etc/fatpath/left.toml
        systemctl start fatpath@left
        ip -n side link show tun7")?;
    assert!(machine.sh("ip link show tun7").is_err());
    machine.dpkg("-r fatpath")?;
    let left = machine.sh("ip -n side -br link")?;
    assert!(!left.contains("tun7"), "{left}");
    Ok(())
}
