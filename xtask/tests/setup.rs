//! `scripts/setup` beside another apt, and at a terminal, with programs in place of the system's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Programs of the system that the script needs.
#[rustfmt::skip]
const SYSTEM: [&str; 13] = [
    "bash", "cat", "chmod", "cut", "dirname", "echo", "env", "ls", "mkdir", "rm", "sed", "sort", "touch",
];

/// A `PATH` of one directory, in which `cc` is missing until the directory's `apt-get` installs it.
struct Machine {
    directory: PathBuf,
}

impl Machine {
    /// A machine whose `apt-get` runs `apt`, a script, where `$bin` is the directory of programs.
    fn new(name: &str, apt: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("fatpath-setup-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let machine = Self { directory };
        for program in SYSTEM {
            let found = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(program));
            symlink(found.iter().find(|path| path.exists()).unwrap(), machine.path(program)).unwrap();
        }
        let manifest = fs::read_to_string(root().join("rust-toolchain.toml")).unwrap();
        let release = manifest.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap().trim_matches('"');
        machine.program("rustc", &format!("echo 'rustc {release} (0)'"));
        machine.program("id", "echo 0");
        machine.program("sleep", "echo slept $1 >>$bin/calls");
        machine.program("apt-get", &format!("echo \"$@\" >>$bin/calls\n{apt}"));
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn program(&self, name: &str, script: &str) {
        let text = format!("#!/bin/bash\nbin={}\n{script}\n", self.directory.display());
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Calls of `apt-get` and `sleep`, a line each.
    fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }

    /// `scripts/setup build echo done`, without a terminal.
    fn set_up(&self) -> Output {
        self.set_up_for("build")
    }

    /// The same for another purpose.
    fn set_up_for(&self, purpose: &str) -> Output {
        let mut command = Command::new(root().join("scripts/setup"));
        command.args([purpose, "echo", "done"]).stdin(Stdio::null());
        self.isolated(&mut command).output().unwrap()
    }

    /// The same at a terminal, where `answer` is typed.
    fn set_up_at_terminal(&self, answer: &str, yes: bool) -> Output {
        let script = root().join("scripts/setup").display().to_string();
        // `script` gives the command a terminal, and copies its own input there.
        let line = format!("printf '{answer}\\n' | /usr/bin/script -qec '{script} build echo done' /dev/null");
        let mut command = Command::new("/bin/bash");
        command.args(["-c", &line]);
        if yes {
            command.env("YES", "1");
        }
        self.isolated(&mut command).output().unwrap()
    }

    fn isolated<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        // The script itself adds these two directories.
        assert!(!Path::new("/usr/sbin/cc").exists() && !Path::new("/sbin/cc").exists());
        command.env("PATH", &self.directory).env("SHELL", "/bin/bash").env_remove("CI")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Both streams as one text: messages of the script, and then the output of its command.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn setup_leaves_standard_output_to_its_command() {
    let machine = Machine::new("streams", "echo 'Setting up gcc'; touch $bin/cc");
    let output = machine.set_up();
    let [printed, told] = [&output.stdout, &output.stderr].map(|stream| String::from_utf8_lossy(stream));
    assert_eq!(printed, "done\n", "{told}");
    assert!(told.contains("setup: installing "), "{told}");
}

#[test]
fn setup_waits_for_the_lock_of_another_apt() {
    let locked = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)";
    let apt = format!("[ -e $bin/1 ] || {{ touch $bin/1; echo '{locked}' >&2; exit 100; }}\ntouch $bin/cc");
    let machine = Machine::new("lock", &apt);
    let output = machine.set_up();
    let printed = text(&output);
    assert!(output.status.success() && printed.ends_with("done\n"), "{printed}");
    assert!(printed.contains("setup: installing ") && printed.contains("setup: waiting for another apt"), "{printed}");
    let calls = machine.calls();
    let lines: Vec<&str> = calls.lines().collect();
    assert!(matches!(lines[..], [first, "slept 5", second] if first == second), "{calls}");
    assert!(lines[0].starts_with("-o DPkg::Lock::Timeout=300 install -y "), "{calls}");
}

#[test]
fn setup_shows_an_error_of_apt_that_lasts() {
    let machine = Machine::new("error", "echo 'E: Unable to locate package gcc' >&2; exit 100");
    let output = machine.set_up();
    let printed = text(&output);
    assert!(!output.status.success() && printed.contains("E: Unable to locate package gcc"), "{printed}");
    assert!(!machine.calls().contains("slept"), "{}", machine.calls());
}

#[test]
fn setup_asks_at_a_terminal_before_it_installs() {
    let cases = [("", false, true), ("y", false, true), ("n", false, false), ("n", true, true)];
    for (answer, yes, installs) in cases {
        let machine = Machine::new("terminal", "touch $bin/cc");
        let output = machine.set_up_at_terminal(answer, yes);
        let printed = text(&output);
        assert_eq!(output.status.success(), installs, "{answer:?} {yes}: {printed}");
        assert_eq!(printed.contains("on this machine? [Y/n]"), !yes, "{answer:?}: {printed}");
        assert_eq!(machine.calls().contains("install -y"), installs, "{answer:?} {yes}: {}", machine.calls());
        assert_eq!(printed.contains("setup: as root: apt-get install"), !installs, "{answer:?} {yes}: {printed}");
    }
}

#[test]
fn setup_adds_the_compilers_target_for_its_purpose_alone() {
    let cases = [
        ("build", None, None),
        ("aarch64", Some("gcc-aarch64-linux-gnu"), Some("target add aarch64-unknown-linux-gnu")),
        ("static", Some("musl-tools"), Some("target add x86_64-unknown-linux-musl")),
    ];
    for (purpose, package, target) in cases {
        let machine = Machine::new(purpose, "touch $bin/cc");
        machine.program("rustup", "echo \"$@\" >>$bin/calls");
        let printed = text(&machine.set_up_for(purpose));
        let calls = machine.calls();
        assert!(printed.ends_with("done\n"), "{purpose}: {printed}");
        assert_eq!(calls.contains("target add"), target.is_some(), "{purpose}: {calls}");
        for wanted in [package, target].into_iter().flatten() {
            assert!(calls.contains(wanted), "{purpose}: {calls}");
        }
    }
}

#[test]
fn setup_names_a_target_that_cannot_be_added() {
    let machine = Machine::new("target", "touch $bin/cc");
    machine.program("rustup", "exit 1");
    let printed = text(&machine.set_up_for("static"));
    assert!(printed.contains("setup: missing: Rust's standard library for x86_64-unknown-linux-musl"), "{printed}");
    assert!(printed.ends_with("done\n"), "{printed}");
}

/// DPDK looks for its drivers in a directory of the system, and refuses a device without them.
#[test]
fn setup_unpacks_dpdk_with_its_driver_of_packet_sockets() {
    const DPKG: &str = r#"
        drivers=$3/usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0
        mkdir -p "$3/usr/bin" "$drivers"
        case $2 in
            */dpdk-dev.deb) touch "$3/usr/bin/dpdk-testpmd" ;;
            */librte-mempool-ring23.deb) touch "$drivers/librte_mempool_ring.so.23.0" ;;
            */librte-net-af-packet23.deb) touch "$drivers/librte_net_af_packet.so.23.0" ;;
        esac"#;
    let apt = r#"touch $bin/cc; case $2 in download) for name in "${@:3}"; do touch "$name.deb"; done ;; esac"#;
    let machine = Machine::new("dpdk", apt);
    let depends = "printf '  Depends: %s\\n' libc6 librte-ethdev23 librte-mempool-ring23 python3";
    machine.program("apt-cache", depends);
    machine.program("dpkg", DPKG);
    // A tree of its own, in which the script unpacks.
    let tree = machine.path("tree");
    fs::create_dir_all(tree.join("scripts")).unwrap();
    for file in ["scripts/setup", "rust-toolchain.toml"] {
        fs::copy(root().join(file), tree.join(file)).unwrap();
    }
    let mut command = Command::new(tree.join("scripts/setup"));
    command.args(["peers", "echo", "done"]).stdin(Stdio::null());
    let printed = text(&machine.isolated(&mut command).output().unwrap());
    assert!(printed.ends_with("done\n"), "{printed}");
    let calls = machine.calls();
    let downloaded = calls.lines().find(|line| line.contains(" download ")).unwrap_or_default();
    let wanted = |name: &str| downloaded.split(' ').any(|word| word == name);
    assert!(wanted("dpdk-dev") && wanted("librte-ethdev23") && wanted("librte-net-af-packet23"), "{calls}\n{printed}");
    assert!(
        !wanted("libc6") && !wanted("python3") && !calls.contains("install -y --no-install-recommends dpdk"),
        "{calls}"
    );
    let program = tree.join("target/peers/bin/dpdk-testpmd");
    assert!(fs::metadata(&program).unwrap().permissions().mode() & 0o100 != 0);
    let script = fs::read_to_string(program).unwrap();
    let unpacked = tree.join("target/unpacked/usr").display().to_string();
    let drivers = ["mempool_ring", "net_af_packet"]
        .map(|name| format!(" -d {unpacked}/lib/x86_64-linux-gnu/dpdk/pmds-23.0/librte_{name}.so.23.0"));
    let want =
        format!("LD_LIBRARY_PATH={unpacked}/lib/x86_64-linux-gnu exec {unpacked}/bin/dpdk-testpmd{}", drivers.concat());
    assert!(script.contains(&want), "{script}");
}
