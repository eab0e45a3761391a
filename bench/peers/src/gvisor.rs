//! gVisor: a separate program with gVisor's network stack (`gvisor/main.go`), which gets the same fragments.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::train::Train;

pub const HOW: &str = "gVisor: InjectInbound at a channel endpoint of its stack, fragment by fragment, in a Go program; it verifies \
                       UDP's checksum in any case, and the socket is read when the clock has stopped";

/// Nanoseconds per fragment of the median pass; passes take at least `length` in total. `program` is the built
/// benchmark.
pub fn measure(program: &str, train: &Train, length: Duration) -> Result<f64, String> {
    let failed = |what: &str, err: std::io::Error| format!("{program}: {what}: {err}");
    let address: String = match train.flow.dst {
        std::net::IpAddr::V4(addr) => addr.octets().map(|byte| format!("{byte:02x}")).concat(),
        std::net::IpAddr::V6(addr) => addr.octets().map(|byte| format!("{byte:02x}")).concat(),
    };
    let mut child = Command::new(program)
        .args(["-address", &address, "-port", &train.flow.dport.to_string()])
        .args(["-datagrams", &train.datagrams.to_string(), "-time", &format!("{}ms", length.as_millis())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|err| failed("start", err))?;
    let mut bytes = Vec::new();
    for fragment in &train.fragments {
        bytes.extend_from_slice(&(fragment.len() as u32).to_be_bytes());
        bytes.extend_from_slice(fragment);
    }
    let mut stdin = child.stdin.take().expect("piped");
    let written = stdin.write_all(&bytes);
    drop(stdin);
    let output = child.wait_with_output().map_err(|err| failed("wait", err))?;
    written.map_err(|err| failed("write", err))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| format!("{program} printed no number ({})", output.status))
}
