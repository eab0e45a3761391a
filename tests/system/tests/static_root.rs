//! The gateway as one static program, in a root that has busybox and nothing else. Run by `cargo xtask test-static`,
//! which builds the program and names it in `FATPATH_STATIC`.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use rustix::process::Signal;
use system::{
    Gateway, Need, Netns, OUTER_V4, Outcome, Process, Scratch, ping_script, run, trial, unpacked, veth, wait_until,
};

const BUSYBOX: Need = Need::Unpacked { path: "bin/busybox", package: "busybox-static" };
const NEEDS: &[Need] = &[Need::Namespaces, Need::PING, BUSYBOX];

/// File of the gateway below the other root.
const FILE: &str = "/etc/fatpath/node.toml";

fn main() {
    let trials: Vec<Trial> = vec![
        trial("static_root/gateway_encrypts_for_a_peer_of_glibc", NEEDS, tunnel),
        trial("static_root/exec_is_refused_by_name", NEEDS, exec),
        trial("static_root/program_loads_no_library", NEEDS, is_static),
        trial("static_root/wrong_file_is_refused", NEEDS, wrong_file),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn static_program() -> Outcome<PathBuf> {
    let program = env::var_os("FATPATH_STATIC").ok_or("FATPATH_STATIC is not set: cargo xtask test-static sets it")?;
    Ok(PathBuf::from(program))
}

/// A directory with busybox, the static program and its file.
struct Root {
    scratch: Scratch,
    netns: Netns,
}

impl Root {
    fn new(role: &str, file: &str) -> Outcome<Self> {
        let root = Self { scratch: Scratch::new()?, netns: Netns::new(role)? };
        for directory in ["bin", "dev", "etc/fatpath", "proc", "run", "var/lib"] {
            fs::create_dir_all(root.scratch.file(directory))?;
        }
        fs::write(root.scratch.file("dev/null"), "")?;
        fs::copy(unpacked("bin/busybox"), root.scratch.file("bin/busybox"))?;
        fs::copy(static_program()?, root.scratch.file("bin/fatpath"))?;
        fs::write(root.scratch.file(FILE.trim_start_matches('/')), file)?;
        Ok(root)
    }

    /// The program with `words` as arguments, in the root, with `/proc` and `/dev/null` that go with the namespace of mounts.
    fn fatpath(&self, words: &str) -> Command {
        let root = self.scratch.path().display();
        let script = format!(
            "mount -t proc proc {root}/proc && mount --bind /dev/null {root}/dev/null && \
             exec chroot {root} /bin/fatpath {words}"
        );
        let mut command = self.netns.command("unshare");
        command.args(["--mount", "--", "sh", "-c", &script]);
        command.env_remove("FATPATH_RUNDIR").env_remove("FATPATH_PRELOAD").env_remove("XDG_RUNTIME_DIR");
        command
    }

    fn output(&self, words: &str) -> Outcome<Output> {
        let mut command = self.fatpath(words);
        Ok(command.output().map_err(|error| format!("{command:?}: {error}"))?)
    }
}

/// File of one end, the first or the second, without a device.
fn file(end: usize) -> String {
    let keys = [
        "{ spi = 0x1000, key = \"0x00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff01020304\" }",
        "{ spi = 0x1001, key = \"0xffeeddccbbaa99887766554433221100ffeeddccbbaa9988776655443322110004030201\" }",
    ];
    let inner = ["10.1.0.1/32", "10.2.0.1/32"];
    let other = 1 - end;
    format!(
        "[[tunnel]]\nname = \"site\"\ndevice = \"none\"\nlocal = {{ address = \"{}\", nets = [\"{}\"] }}\n\
         remote = {{ address = \"{}\", nets = [\"{}\"] }}\n[tunnel.keys]\nout = {}\nin = {}\n",
        OUTER_V4[end], inner[end], OUTER_V4[other], inner[other], keys[end], keys[other]
    )
}

/// The static gateway answers pings that another gateway encrypts, and shows its SAs.
fn tunnel() -> Outcome {
    let root = Root::new("static", &file(0))?;
    let (peer_host, peer_scratch) = (Netns::new("peer")?, Scratch::new()?);
    veth((&root.netns, "wan0"), (&peer_host, "wan0"))?;
    root.netns.sh(&format!("ip addr add {}/24 dev wan0", OUTER_V4[0]))?;
    peer_host.sh(&format!("ip addr add {}/24 dev wan0", OUTER_V4[1]))?;

    run(&mut root.fatpath(&format!("check -c {FILE}")))?;
    let log = Scratch::new()?;
    let mut gateway = Process::spawn(&mut root.fatpath(&format!("run -c {FILE}")), &log)?;
    let is_up = || root.output("show links").is_ok_and(|output| output.status.success());
    wait_until("the static gateway answers", Duration::from_secs(20), is_up)
        .map_err(|failed| format!("{}\n{}", failed.message().unwrap_or_default(), gateway.output()))?;

    let peer = Gateway::start(&peer_host, &peer_scratch, "peer", &file(1))?;
    let script = ping_script("10.1.0.1".parse()?, &[56, 1400, 8000]);
    let mut ping = peer_host.command(system::fatpath());
    ping.args(["exec", "-i", "peer", "--", "sh", "-c", &script]).env("FATPATH_RUNDIR", peer_scratch.path());
    run(&mut ping)
        .map_err(|failed| format!("{}\n{}\n{}", failed.message().unwrap_or_default(), gateway.output(), peer.log()))?;
    let shown = run(&mut root.fatpath("show sa"))?;
    assert!(shown.contains("0x00001000") && shown.contains("0x00001001"), "{shown}");
    let drops = run(&mut root.fatpath("show drops"))?;
    assert!(!drops.contains("Esp"), "{drops}");

    gateway.signal(Signal::TERM)?;
    let status = gateway.wait(Duration::from_secs(20))?;
    assert!(status.success(), "{status}: {}", gateway.output());
    Ok(())
}

fn exec() -> Outcome {
    let root = Root::new("static", "[[link]]\nname = \"lo\"\naddresses = [\"10.1.0.1/32\"]\n")?;
    for words in ["exec -- /bin/busybox true".to_owned(), format!("exec -c {FILE} -- /bin/busybox true")] {
        let output = root.output(&words)?;
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words}: {told}");
        assert!(told.contains("this fatpath is built without the GNU C library"), "{words}: {told}");
    }
    Ok(())
}

fn is_static() -> Outcome {
    // The loader of the machine's C library prints what a program loads, or refuses it.
    let program = static_program()?;
    let listed = Command::new("ldd").arg(&program).output()?;
    let told = String::from_utf8_lossy(&listed.stdout).into_owned() + &String::from_utf8_lossy(&listed.stderr);
    assert!(told.contains("statically linked") || told.contains("not a dynamic executable"), "{told}");
    Ok(())
}

fn wrong_file() -> Outcome {
    let root = Root::new("static", "[[link]]\nname = \"lo\"\nwrong = 1\n")?;
    for words in ["check", "run"] {
        let output = root.output(&format!("{words} -c {FILE}"))?;
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains("wrong"), "{words}: {told}");
    }
    Ok(())
}
