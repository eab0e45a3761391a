//! Programs that carry streams by TCP, in both directions: curl, iperf3, ssh.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::Trial;
use system::{Need, Outcome, Process, blob, digest, run, trial, unpacked, wait_until};

use super::{Node, PATIENCE};

const LIBWRAP: Need = Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libwrap.so.0", package: "libwrap0" };
const CURL: &[Need] = &[Need::Namespaces, Need::Tun, Need::PYTHON, Need::Program { name: "curl", package: "curl" }];
const IPERF3: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::Unpacked { path: "usr/bin/iperf3", package: "iperf3" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libiperf.so.0", package: "libiperf0" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libsctp.so.1", package: "libsctp1" },
];
const SSH: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::Program { name: "ssh", package: "openssh-client" },
    Need::Unpacked { path: "usr/sbin/sshd", package: "openssh-server" },
    LIBWRAP,
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("unmodified/curl_loads_by_http_both_ways", CURL, curl),
        trial("unmodified/iperf3_has_sixteen_streams_both_ways", IPERF3, iperf3),
        trial("unmodified/ssh_logs_in_and_out", SSH, ssh),
    ]
}

/// End of the wire at which a program runs.
#[derive(Clone, Copy, Debug)]
enum End {
    Gateway,
    Far,
}

const BOTH: [(End, End); 2] = [(End::Gateway, End::Far), (End::Far, End::Gateway)];

impl End {
    fn command(self, node: &Node, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match self {
            Self::Gateway => node.exec(program),
            Self::Far => node.on_far(program),
        }
    }

    /// Addresses of the end.
    fn addrs(self) -> [&'static str; 2] {
        match self {
            Self::Gateway => ["10.1.0.1", "[fd00:1::1]"],
            Self::Far => ["10.1.0.2", "[fd00:1::2]"],
        }
    }
}

fn curl() -> Outcome {
    let node = Node::new()?;
    let sent = blob(8 << 20);
    let (file, loaded) = (node.scratch.file("file"), node.scratch.file("loaded"));
    fs::write(&file, &sent)?;
    for (server, client) in BOTH {
        let mut command = server.command(&node, "python3");
        command.args(["-u", "-m", "http.server", "80", "--bind", "::", "--directory"]).arg(node.scratch.path());
        let serving = Process::spawn(&mut command, &node.scratch)?;
        wait_until("the server listens", PATIENCE, || serving.output().contains("Serving HTTP"))?;
        for addr in server.addrs() {
            let mut command = client.command(&node, "curl");
            command.args(["-sS", "-m", "30", "-o"]).arg(&loaded).arg(format!("http://{addr}/file"));
            run(&mut command).map_err(|failed| explain(&node, &failed, &serving))?;
            assert_eq!(digest(&fs::read(&loaded)?), digest(&sent), "{client:?} from {addr}");
        }
    }
    Ok(())
}

fn explain(node: &Node, failed: &libtest_mimic::Failed, server: &Process) -> libtest_mimic::Failed {
    let gateway = node.gateway.borrow();
    let drops = gateway.as_ref().map(|gateway| gateway.show("drops").unwrap_or_default() + &gateway.log());
    format!("{}\n{}\n{}", failed.message().unwrap_or_default(), server.output(), drops.unwrap_or_default()).into()
}

fn iperf3() -> Outcome {
    let node = Node::new()?;
    for (server, client) in BOTH {
        let program = unpacked("usr/bin/iperf3");
        let mut command = server.command(&node, &program);
        let serving = Process::spawn(command.args(["-s", "--forceflush"]), &node.scratch)?;
        wait_until("the server listens", PATIENCE, || serving.output().contains("Server listening"))?;
        for direction in ["--get-server-output", "--reverse"] {
            let mut command = client.command(&node, &program);
            command.args(["-c", server.addrs()[0], "-P", "16", "-t", "1", "-f", "k", direction]);
            let printed = run(&mut command).map_err(|failed| explain(&node, &failed, &serving))?;
            // The client's part of the output: the server's own lines follow.
            let printed = printed.split("Server output").next().unwrap_or_default();
            let received: Vec<&str> = printed.lines().filter(|line| line.trim_end().ends_with("receiver")).collect();
            assert_eq!(received.len(), 17, "one line a stream and their sum: {printed}");
            assert!(received.iter().all(|line| !line.contains(" 0.00 Bytes")), "{printed}");
        }
    }
    Ok(())
}

/// Keys and settings of a server that accepts root by a key.
struct SshFiles {
    config: PathBuf,
    user_key: PathBuf,
}

impl SshFiles {
    fn new(node: &Node) -> Outcome<Self> {
        let (host_key, user_key) = (node.scratch.file("host_key"), node.scratch.file("user_key"));
        for key in [&host_key, &user_key] {
            run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key))?;
            fs::set_permissions(key, fs::Permissions::from_mode(0o600))?;
        }
        let config = node.file(
            "sshd_config",
            &format!(
                "HostKey {}\nAuthorizedKeysFile {}.pub\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n",
                host_key.display(),
                user_key.display()
            ),
        )?;
        Ok(Self { config, user_key })
    }
}

fn ssh() -> Outcome {
    let node = Node::new()?;
    let files = SshFiles::new(&node)?;
    let sent = blob(4 << 20);
    let (file, echoed) = (node.scratch.file("file"), node.scratch.file("echoed"));
    fs::write(&file, &sent)?;
    for (server, client) in BOTH {
        let mut command = server.command(&node, "sh");
        // The server's directory need not be on this host.
        let script = "mount -t tmpfs none /run; mkdir -m 755 /run/sshd; exec \"$@\"";
        command.args(["-ec", script, "sh"]).arg(unpacked("usr/sbin/sshd")).args(["-D", "-e", "-f"]).arg(&files.config);
        let serving = Process::spawn(&mut command, &node.scratch)?;
        wait_until("sshd listens", PATIENCE, || serving.output().contains("Server listening on 0.0.0.0"))
            .map_err(|failed| explain(&node, &failed, &serving))?;
        let mut command = client.command(&node, "sh");
        let script = "key=$1 file=$2 echoed=$3 addr=$4
            exec ssh -F none -i \"$key\" -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \\
                -o ConnectTimeout=20 root@\"$addr\" cat <\"$file\" >\"$echoed\"";
        command.args(["-ec", script, "sh"]).arg(&files.user_key).arg(&file).arg(&echoed).arg(server.addrs()[0]);
        run(&mut command).map_err(|failed| explain(&node, &failed, &serving))?;
        assert_eq!(digest(&fs::read(&echoed)?), digest(&sent), "{client:?} to {server:?}");
    }
    Ok(())
}
