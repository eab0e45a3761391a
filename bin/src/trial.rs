//! `fatpath try`: a tunnel between two simulated hosts on this machine.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use client::{CliError, print, system_ip};

use crate::own_gateway::{OwnGateway, Started, exit_code};
use crate::{genkey, isolation};

/// Directory of the configuration files, in a `/run` of this command's own.
const DIR: &str = "/run/fatpath-try";

/// Length of a key of AES-256-GCM with its salt (RFC 4106 §8.1), in bytes.
const KEY_LEN: usize = 36;

/// Shell if the environment names none.
const SHELL: &str = "/bin/sh";

/// A simulated host: a network namespace with a gateway of the same name.
struct Host {
    name: &'static str,
    /// Address on the wire.
    outer: &'static str,
    /// Address in the tunnel.
    inner: &'static str,
    /// SPI of packets to the host.
    spi: u32,
}

const LEFT: Host = Host { name: "left", outer: "192.0.2.1", inner: "10.1.0.1", spi: 0x1001 };
const RIGHT: Host = Host { name: "right", outer: "192.0.2.2", inner: "10.2.0.1", spi: 0x1000 };

/// Builds the tunnel, pings through it, and runs a shell at a terminal.
///
/// # Errors
/// Namespaces are not permitted, a program is missing, or a step fails.
pub(crate) fn main() -> Result<ExitCode, CliError> {
    let ip = system_ip()?;
    let in_words = "fatpath try: two hosts on this machine, left and right, with a wire and a tunnel between them\n";
    isolation::enter("fatpath try")?;
    print(in_words.as_bytes())?;
    wire(&ip)?;
    // Without the device, mostly for lack of privilege, the hosts' programs use the tunnel by `fatpath exec`.
    let has_tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok();
    let configs = write_configs(has_tun)?;
    let mut gateways = Vec::new();
    for (host, config) in [(&LEFT, &configs[0]), (&RIGHT, &configs[1])] {
        let wrapper = [ip.to_str().unwrap_or("ip"), "netns", "exec", host.name];
        match OwnGateway::start(host.name, std::slice::from_ref(config), None, &wrapper)? {
            Started::Ready(gateway) => gateways.push(gateway),
            Started::Ended(code) => return Ok(code),
        }
        let text = format!("{}# fatpath run -c {} --instance {} &\n", host.name, config.display(), host.name);
        print(text.as_bytes())?;
    }
    let through: &[&str] = if has_tun { &[] } else { &["fatpath", "exec", "--"] };
    let ping = ["ping", "-c", "3", "-i", "0.3", "-W", "2", RIGHT.inner];
    let pinged = on_left(&ip, &[through, &ping].concat())?;
    on_left(&ip, &["fatpath", "status"])?;
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Ok(pinged);
    }
    print(
        format!(
            "\nA shell on left. Try {through}ping {inner}, and see the tunnel: tcpdump -ni wire, fatpath trace -c 2, fatpath show sa,\n\
             cat {DIR}/left.toml; fatpath -i right show links. `exit` ends both hosts.\n",
            inner = RIGHT.inner,
            through = if has_tun { "" } else { "fatpath exec -- " }
        )
        .as_bytes(),
    )?;
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| SHELL.into());
    run(&ip, &[shell])
}

/// Creates both hosts and the wire.
fn wire(ip: &Path) -> Result<(), CliError> {
    let (left, right) = (LEFT.name, RIGHT.name);
    for host in [left, right] {
        tool(ip, &format!("netns add {host}"))?;
        tool(ip, &format!("-n {host} link set lo up"))?;
    }
    tool(ip, &format!("link add wire netns {left} type veth peer name wire netns {right}"))?;
    for host in [&LEFT, &RIGHT] {
        tool(ip, &format!("-n {} addr add {}/24 dev wire", host.name, host.outer))?;
        tool(ip, &format!("-n {} link set wire up", host.name))?;
    }
    Ok(())
}

/// Writes the configuration of both gateways, with fresh keys.
fn write_configs(has_tun: bool) -> Result<[PathBuf; 2], CliError> {
    let failed = |err: io::Error| CliError::failed(format!("{DIR}: {err}"));
    fs::DirBuilder::new().mode(0o700).create(DIR).map_err(failed)?;
    let keys = [genkey::key(KEY_LEN)?, genkey::key(KEY_LEN)?];
    let file = |host: &Host, peer: &Host, keys: [&str; 2]| {
        let path = Path::new(DIR).join(format!("{}.toml", host.name));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(config(host, peer, keys, has_tun).as_bytes())).map_err(failed)?;
        Ok(path)
    };
    Ok([file(&LEFT, &RIGHT, [&keys[0], &keys[1]])?, file(&RIGHT, &LEFT, [&keys[1], &keys[0]])?])
}

/// Runs `ip` with the words of `line`.
fn tool(ip: &Path, line: &str) -> Result<(), CliError> {
    let output = Command::new(ip).args(line.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|err| CliError::system(&ip.display().to_string(), &err))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(CliError::failed(format!("ip {line}: {}", why.trim())))
}

/// Prints a command and runs it on the left host.
fn on_left(ip: &Path, words: &[&str]) -> Result<ExitCode, CliError> {
    print(format!("\nleft# {}\n", words.join(" ")).as_bytes())?;
    let own = std::env::current_exe().map_err(|err| CliError::system("the program's own path", &err))?;
    let words = words.iter().map(|&word| if word == "fatpath" { own.clone().into_os_string() } else { word.into() });
    run(ip, &words.collect::<Vec<OsString>>())
}

/// Runs a program on the left host, with the left gateway as the default of `fatpath`.
fn run(ip: &Path, words: &[OsString]) -> Result<ExitCode, CliError> {
    let mut command = Command::new(ip);
    command.args(["netns", "exec", LEFT.name]).args(words).env("FATPATH_INSTANCE", LEFT.name);
    let own = std::env::current_exe().ok();
    if let Some(dir) = own.as_deref().and_then(Path::parent) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = std::iter::once(dir.to_owned()).chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(dirs) {
            command.env("PATH", path);
        }
    }
    let status = command.status().map_err(|err| CliError::system(&ip.display().to_string(), &err))?;
    io::stdout().flush().map_err(|err| CliError::system("standard output", &err))?;
    Ok(exit_code(status))
}

/// Configuration of a host's gateway; the keys are those of packets to the peer and from it. Without a TUN device the
/// inner address is on `lo`.
fn config(host: &Host, peer: &Host, [to_peer, from_peer]: [&str; 2], has_tun: bool) -> String {
    let device = if has_tun { "" } else { "device = \"none\"\n" };
    format!(
        r#"[[tunnel]]
name = "tun0"
{device}local = {{ address = "{}", nets = ["{}/32"] }}
remote = {{ address = "{}", nets = ["{}/32"] }}

[tunnel.keys]
out = {{ spi = {:#x}, key = "{to_peer}" }}
in = {{ spi = {:#x}, key = "{from_peer}" }}
"#,
        host.outer, host.inner, peer.outer, peer.inner, peer.spi, host.spi
    )
}
