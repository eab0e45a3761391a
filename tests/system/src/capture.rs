//! Captures by tcpdump and tshark on an interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::{Esp, Netns, Outcome, Process, Scratch, Suite, run, wait_until};

/// A running capture of one interface.
#[derive(Debug)]
pub struct Capture {
    process: Process,
    file: PathBuf,
}

impl Capture {
    /// Captures packets that pass `interface` of `netns` and match `filter`, from now on.
    ///
    /// # Errors
    /// tcpdump does not start.
    pub fn start(netns: &Netns, interface: &str, filter: &str, scratch: &Scratch) -> Outcome<Self> {
        let file = scratch.file(&format!("{interface}.pcap"));
        let mut command = netns.command("tcpdump");
        command.args(["-n", "-U", "--immediate-mode", "-B", "65536", "-Z", "root", "-i", interface, "-w"]);
        let process = Process::spawn(command.arg(&file).arg(filter), scratch)?;
        wait_until("tcpdump listens", Duration::from_secs(20), || process.output().contains("listening on"))?;
        Ok(Self { process, file })
    }

    /// Ends the capture and returns its file.
    ///
    /// # Errors
    /// tcpdump does not come to an end.
    pub fn finish(mut self) -> Outcome<PathBuf> {
        // Packets that tcpdump has captured and not written yet are lost at its end.
        let mut sizes = [None; 4];
        wait_until("tcpdump has written what it saw", Duration::from_secs(20), || {
            thread::sleep(Duration::from_millis(100));
            sizes.rotate_left(1);
            sizes[3] = fs::metadata(&self.file).ok().map(|file| file.len());
            sizes.iter().all(|size| size.is_some() && *size == sizes[3])
        })?;
        self.process.signal(Signal::INT)?;
        self.process.wait(Duration::from_secs(20))?;
        Ok(self.file)
    }
}

/// Verifies the checksums in a capture with `tcpdump -vv`; returns the number of packets that it read.
///
/// # Errors
/// A checksum is wrong; the message shows the packet.
pub fn wire_checksums(file: &Path) -> Outcome<usize> {
    let text = run(Command::new("tcpdump").args(["-nvvr"]).arg(file))?;
    // Not "bad " alone: a checksum may be written 0x0bad.
    for sign in ["bad cksum", "[bad ", "incorrect", "wrong"] {
        if let Some(at) = text.find(sign) {
            let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
            return Err(format!("{}: {}", file.display(), text[start..].lines().next().unwrap_or_default()).into());
        }
    }
    Ok(text.lines().filter(|line| !line.starts_with(char::is_whitespace)).count())
}

/// Decrypts the ESP in a capture with tshark, and returns for each packet the protocols inside, as in `ip:tcp`. Each of
/// `sas` is a row of its table `esp_sa`. tshark does not support extended sequence numbers.
///
/// # Errors
/// An ICV or a checksum, outside or inside, is wrong; the message has tshark's line.
pub fn decrypted(file: &Path, sas: &[String]) -> Outcome<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-Y", "esp", "-T", "fields", "-E", "separator=|"]);
    for field in ["frame.protocols", "esp.icv_good", "tcp.checksum", "tcp.checksum_calculated", "tcp.checksum.status"] {
        command.args(["-e", field]);
    }
    for protocol in ["ip", "udp", "icmp", "icmpv6"] {
        command.arg("-e").arg(format!("{protocol}.checksum.status"));
    }
    for preference in ["esp.enable_encryption_decode", "esp.enable_authentication_check"].into_iter().chain([
        "ip.check_checksum",
        "tcp.check_checksum",
        "udp.check_checksum",
    ]) {
        command.arg("-o").arg(format!("{preference}:TRUE"));
    }
    for sa in sas {
        command.arg("-o").arg(format!("uat:esp_sa:{sa}"));
    }
    run(&mut command)?.lines().map(accepted).collect()
}

impl Esp {
    /// Decrypts a capture of this connection with tshark (see [`decrypted`]).
    ///
    /// # Errors
    /// As [`decrypted`]; the connection is not one with AES-GCM.
    pub fn decrypt(&self, file: &Path) -> Outcome<Vec<String>> {
        let Suite::Aead { name: "rfc4106(gcm(aes))", key_len, icv_bits } = self.suite else {
            return Err(format!("tshark has no key for {:?}", self.suite).into());
        };
        let sas = [(self.own, self.peer, self.spi_out), (self.peer, self.own, self.spi_in)].map(|(src, dst, spi)| {
            let family = if src.is_ipv4() { "IPv4" } else { "IPv6" };
            let (key, octets) = (Self::key(spi, key_len), icv_bits / 8);
            format!(
                "\"{family}\",\"{src}\",\"{dst}\",\"{spi:#010x}\",\
                 \"AES-GCM with {octets} octet ICV [RFC4106]\",\"{key}\",\"NULL\",\"\""
            )
        });
        decrypted(file, &sas)
    }
}

/// Tells whether one of tshark's comma-separated checksum statuses is bad; other values are good, unverified and
/// absent.
fn is_bad(statuses: &str) -> bool {
    statuses.split(',').any(|status| matches!(status, "0" | "Bad"))
}

/// Protocols inside an ESP packet, by tshark's line about it.
fn accepted(line: &str) -> Outcome<String> {
    if let [protocols, icv_good, tcp_sent, tcp_computed, tcp_status, others @ ..] = &line.split('|').collect::<Vec<_>>()[..]
        && let Some((_, inside)) = protocols.split_once(":esp:")
        // Both are zero in one's complement, and Linux writes the one that tshark does not expect.
        && (!is_bad(tcp_status) || (*tcp_sent, *tcp_computed) == ("0xffff", "0x0000"))
        && !others.iter().any(|statuses| is_bad(statuses))
        && matches!(*icv_good, "1" | "True")
    {
        return Ok((*inside).to_owned());
    }
    Err(format!("tshark does not accept: {line}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tshark_line_needs_a_good_icv_and_no_bad_checksum() {
        let lines = [
            ("eth:ethertype:ip:esp:ip:icmp:data|1||||1,1||1|", Some("ip:icmp:data")),
            ("eth:ethertype:ip:udp:udpencap:esp:ip:tcp|True|0x1234||1|1,1|3||", Some("ip:tcp")),
            ("eth:ethertype:ipv6:esp:ipv6:tcp|1|0xffff|0x0000|0||||", Some("ipv6:tcp")),
            ("eth:ethertype:ip:esp:ip:tcp|1|0x1234|0x1235|0|1,1|||", None),
            ("eth:ethertype:ip:esp:ip:tcp|1|0x1234||1|1,0|||", None),
            ("eth:ethertype:ip:esp:data|0||||1|||", None),
            ("eth:ethertype:ip:esp|||||1|||", None),
        ];
        for (line, want) in lines {
            assert_eq!(accepted(line).ok().as_deref(), want, "{line}");
        }
    }
}
