//! What tcpdump and tshark see on an interface.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::{Esp, Netns, Outcome, Process, Scratch, run, wait_until};

/// A running capture of one interface.
#[derive(Debug)]
pub struct Capture {
    process: Process,
    file: PathBuf,
}

impl Capture {
    /// Captures whatever passes `interface` of `netns`, and `filter` lets through, from now on.
    ///
    /// # Errors
    /// tcpdump does not start.
    pub fn start(netns: &Netns, interface: &str, filter: &str, scratch: &Scratch) -> Outcome<Self> {
        let file = scratch.file(&format!("{interface}.pcap"));
        let mut command = netns.command("tcpdump");
        command.args(["-n", "-U", "--immediate-mode", "-B", "65536", "-Z", "root", "-i", interface, "-w"]);
        let process = Process::spawn(command.arg(&file).arg(filter), scratch)?;
        wait_until("tcpdump listens", Duration::from_secs(5), || process.output().contains("listening on"))?;
        Ok(Self { process, file })
    }

    /// Ends the capture and returns its file.
    ///
    /// # Errors
    /// tcpdump does not end.
    pub fn finish(mut self) -> Outcome<PathBuf> {
        self.process.signal(Signal::INT)?;
        self.process.wait(Duration::from_secs(5))?;
        Ok(self.file)
    }
}

/// Has `tcpdump -vv` judge the checksums in a capture; returns how many packets it read.
///
/// # Errors
/// A checksum is wrong; the message shows the packet.
pub fn wire_checksums(file: &Path) -> Outcome<usize> {
    let text = run(Command::new("tcpdump").args(["-nvvr"]).arg(file))?;
    for sign in ["bad ", "incorrect", "wrong"] {
        if let Some(at) = text.find(sign) {
            let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
            return Err(format!("{}: {}", file.display(), text[start..].lines().next().unwrap_or_default()).into());
        }
    }
    Ok(text.lines().filter(|line| !line.starts_with(char::is_whitespace)).count())
}

impl Esp {
    /// Has tshark decrypt a capture of this connection and returns one line per packet: the SPI, whether the ICV is
    /// good (1), the protocols from the outside in.
    ///
    /// # Errors
    /// tshark fails.
    pub fn decrypt(&self, file: &Path) -> Outcome<Vec<String>> {
        let mut command = Command::new("tshark");
        command.arg("-r").arg(file).args([
            "-T",
            "fields",
            "-e",
            "esp.spi",
            "-e",
            "esp.icv_good",
            "-e",
            "frame.protocols",
        ]);
        command.args(["-o", "esp.enable_encryption_decode:TRUE", "-o", "esp.enable_authentication_check:TRUE"]);
        for (src, dst, spi) in [(self.own, self.peer, self.spi_out), (self.peer, self.own, self.spi_in)] {
            let family = if src.is_ipv4() { "IPv4" } else { "IPv6" };
            command.arg("-o").arg(format!(
                "uat:esp_sa:\"{family}\",\"{src}\",\"{dst}\",\"{spi:#010x}\",\"AES-GCM [RFC4106]\",\"{}\",\"ANY {} bit authentication [no checking]\",\"\"",
                Self::key(spi),
                self.icv_bits,
            ));
        }
        Ok(run(&mut command)?.lines().map(str::to_owned).collect())
    }
}
