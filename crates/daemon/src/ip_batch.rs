//! Files of `ip` lines, in the format of `ip -batch`. The system's own `ip` runs them on a gateway's netlink socket, so
//! its words, comments, quotes and errors apply.
//!
//! The daemon feeds `ip` one line at a time, so if `ip` ends early the last line is the one that failed. The messages
//! of `ip` do not always contain that line.
//!
//! Only lines about objects that `ip` changes by netlink are allowed. For others `ip` opens devices, makes system calls
//! that no library intercepts, or runs programs, also when a file is only checked.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use client::{CliError, gateway_program, system_ip};
use rustix::pipe::{PIPE_BUF, PipeFlags, pipe_with};
use xfrm::Name;
use zeroize::Zeroizing;

use crate::privilege::OwnProgram;

/// Poll interval for the end of `ip`.
const POLL: Duration = Duration::from_millis(2);

/// Limit of kept messages of `ip`, in bytes.
const MAX_STDERR: u64 = 64 << 10;

/// Objects of `ip` that lines may name.
const OBJECTS: [&str; 8] = ["link", "address", "route", "rule", "neighbour", "neighbor", "xfrm", "ila"];

/// Number of polls for the signal that ended `ip`, which may reach this program later.
const LOOKS: usize = 250;

/// Tells whether a text consists of `ip` lines rather than TOML: the first line that is neither blank nor a comment has
/// two words, the first of letters and digits, the second not beginning with `=`.
pub(crate) fn are_in(text: &[u8]) -> bool {
    let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let Some(first) = lines.find(|line| !matches!(line.first(), None | Some(b'#'))) else { return false };
    let mut words = first.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let named = words.next().is_some_and(|word| word.iter().all(u8::is_ascii_alphanumeric));
    named && words.next().is_some_and(|word| word.first() != Some(&b'='))
}

/// Refusal to reload a file of `ip` lines on a running gateway.
pub(crate) fn only_at_start(file: &str) -> String {
    format!(
        "{file}: lines of ip say what to do, not what is to be, so they are carried out when a gateway starts; on a \
         running one `fatpath ip -batch {file}` does that."
    )
}

/// A file of `ip` lines. Its text may hold keys, and is zeroed after use.
#[derive(Debug)]
pub(crate) struct IpLines {
    name: String,
    text: Zeroizing<Vec<u8>>,
}

impl IpLines {
    /// Lines of the file `name`, none of which has run yet.
    ///
    /// # Errors
    /// Exit code 2: a line is about another object.
    pub(crate) fn new(name: String, mut text: Zeroizing<Vec<u8>>) -> Result<Self, CliError> {
        if text.last().is_some_and(|&byte| byte != b'\n') {
            text.push(b'\n');
        }
        check(&text).map_err(|(line, why)| CliError::bad_config(format!("{name}:{line}: {why}")))?;
        Ok(Self { name, text })
    }

    /// The file's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs the lines with `ip`, in order, on the gateway whose netlink socket is at `netlink`. False: `is_over` has
    /// become true, and the lines were abandoned.
    ///
    /// # Errors
    /// Exit code 2 if `ip` fails on a line, with the line's number and the error of `ip`; earlier lines have taken
    /// effect. 1 if `ip` is missing or cannot be started.
    pub(crate) fn carry_out(&self, netlink: &Path, is_over: impl FnMut() -> bool) -> Result<bool, CliError> {
        let failed = |err: io::Error| CliError::failed(format!("{}: ip: {err}", self.name));
        let ip = system_ip()?;
        let mut command = gateway_program::command(ip.as_os_str(), netlink)?;
        gateway_program::check_loads(ip.as_os_str(), &command)?;
        // A reader of a pipe in packet mode gets one line at a time, and unread lines stay in the pipe to be counted.
        let (reader, writer) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::DIRECT).map_err(|errno| failed(errno.into()))?;
        let rest = File::from(reader.try_clone().map_err(failed)?);
        let ip = command.args(["-batch", "-"]).stdin(reader).stderr(Stdio::piped());
        // Signals of the terminal go to this program, not to `ip`.
        let (mut ip, own) = OwnProgram::start(ip.process_group(0)).map_err(failed)?;
        drop(command);
        let stderr = ip.stderr.take();
        let (ended, left, stderr) = thread::scope(|scope| {
            scope.spawn(|| self.feed(File::from(writer)));
            let stderr = scope.spawn(|| stderr.map_or_else(String::new, read_stderr));
            let ended = wait(&mut ip, is_over);
            // Another process may get the number of one that has ended.
            drop(own);
            // Counts the unread lines, which also ends the feeding thread.
            (ended, count_lines(rest), stderr.join().unwrap_or_default())
        });
        match ended.map_err(failed)? {
            None => Ok(false),
            Some(status) if status.success() => {
                if let Some(error) = error_of(&stderr) {
                    tracing::warn!("{}: ip: {error}", self.name);
                }
                Ok(true)
            }
            Some(status) => {
                let line = lines_in(&self.text).saturating_sub(left);
                let why = error_of(&stderr).unwrap_or_else(|| format!("ip ended, {status}"));
                let why = self.key_error(line, &why).unwrap_or(why);
                Err(CliError::bad_config(format!("{}:{line}: {why}", self.name)))
            }
        }
    }

    /// Text for Linux's error about the length of a key, which does not say so.
    fn key_error(&self, line: usize, why: &str) -> Option<String> {
        if !why.contains("unable to initialize cryptographic operations") {
            return None;
        }
        let line = self.text.split(|&byte| byte == b'\n').nth(line.checked_sub(1)?)?;
        let words: Vec<&[u8]> = Words(line).collect();
        let kind = |word: &[u8]| matches!(word, b"aead" | b"enc" | b"auth" | b"auth-trunc");
        let errors = words.windows(3).filter(|words| kind(words[0])).filter_map(|words| {
            let [_, name, key] = words else { return None };
            let digits = key.strip_prefix(b"0x").map(<[u8]>::len);
            key_lens(&String::from_utf8_lossy(name), digits.map_or(key.len(), |digits| digits.div_ceil(2)))
        });
        errors.into_iter().next()
    }

    fn feed(&self, mut into: File) {
        let lines = self.text.split_inclusive(|&byte| byte == b'\n');
        // The pipe keeps a reader until all lines have been read.
        let _ = lines.flat_map(|line| line.chunks(PIPE_BUF)).try_for_each(|packet| into.write_all(packet));
    }
}

/// Error about a key of `len` bytes; `None` if the algorithm takes such a key, or is unknown.
fn key_lens(name: &str, len: usize) -> Option<String> {
    let spec = |takes: bool, lens: &[usize]| {
        let lens: Vec<String> = lens.iter().map(ToString::to_string).collect();
        (!takes).then(|| format!("{len} bytes are no key of {name}; use {} bytes", lens.join(" or ")))
    };
    let aead = xfrm::Aead::by_name(name).and_then(|it| spec(it.takes_key_of(len), it.spec().key_lens));
    let enc = || xfrm::Enc::by_name(name).and_then(|it| spec(it.takes_key_of(len), it.spec().key_lens));
    let auth = || xfrm::Auth::by_name(name).and_then(|it| spec(it.takes_key_of(len), it.spec().key_lens));
    aead.or_else(enc).or_else(auth)
}

/// Checks the lines. The error is the number of the first line that is not allowed, with the reason.
fn check(text: &[u8]) -> Result<(), (usize, String)> {
    // The line may hold keys, so the buffer never reallocates.
    let mut whole = Zeroizing::new(Vec::with_capacity(text.len()));
    let mut begins = None;
    let mut has_words = false;
    for (line, number) in text.split_inclusive(|&byte| byte == b'\n').zip(1..) {
        let begins_at = *begins.get_or_insert(number);
        if line.contains(&0) {
            return Err((number, "a byte of zero is no text".to_owned()));
        }
        // Comments and continued lines are parsed as by `getcmdline` of iproute2.
        let code = line.split(|&byte| byte == b'#').next().unwrap_or_default();
        match code.strip_suffix(b"\\\n") {
            Some(code) => {
                whole.extend_from_slice(code);
                continue;
            }
            None => whole.extend_from_slice(code),
        }
        let mut words = Words(&whole);
        let is_first = !has_words;
        has_words |= Words(&whole).next().is_some();
        match (words.next(), words.next()) {
            (Some(word), _) if !is_allowed(word) => {
                let is_ip = word == b"ip";
                let word = String::from_utf8_lossy(&word[..word.len().min(32)]).into_owned();
                let why = match () {
                    () if is_ip => "\"ip\": leave out this word; a line is what follows it".to_owned(),
                    () if is_first => format!(
                        "\"{word}\": neither TOML nor a line of ip, which is about link, address, route, rule, \
                         neighbour or xfrm"
                    ),
                    () => format!(
                        "\"{word}\": lines can be about link, address, route, rule, neighbour and xfrm, which `ip` \
                         asks netlink for"
                    ),
                };
                return Err((begins_at, why));
            }
            // `ip` accepts abbreviations here, too.
            (Some(xfrm), Some(word))
                if b"xfrm".starts_with(xfrm) && !word.is_empty() && b"monitor".starts_with(word) =>
            {
                return Err((begins_at, "\"xfrm monitor\" has no end, and no line behind it a beginning".to_owned()));
            }
            _ => {}
        }
        whole.clear();
        begins = None;
    }
    Ok(())
}

/// The words of a line, split as by `makeargs` of iproute2.
struct Words<'l>(&'l [u8]);

impl<'l> Iterator for Words<'l> {
    type Item = &'l [u8];

    fn next(&mut self) -> Option<&'l [u8]> {
        let is_space = |byte: &u8| b" \t\r\n".contains(byte);
        let line = &self.0[self.0.iter().position(|byte| !is_space(byte))?..];
        let (word, end) = match *line {
            [quote @ (b'"' | b'\''), ref quoted @ ..] => {
                let word = quoted.split(|&byte| byte == quote).next()?;
                (word, word.len() + 2)
            }
            _ => {
                let word = line.split(is_space).next()?;
                (word, word.len())
            }
        };
        self.0 = line.get(end..).unwrap_or_default();
        Some(word)
    }
}

/// Tells whether `ip` resolves a word, which may be an abbreviation, to an allowed object. For an ambiguous
/// abbreviation `ip` chooses the allowed object.
fn is_allowed(word: &[u8]) -> bool {
    !word.is_empty() && OBJECTS.iter().any(|object| object.as_bytes().starts_with(word))
}

fn lines_in(text: &[u8]) -> usize {
    text.iter().filter(|&&byte| byte == b'\n').count()
}

/// Counts the lines up to the end of the pipe.
fn count_lines(mut from: File) -> usize {
    let mut packet = Zeroizing::new([0; PIPE_BUF]);
    let mut count = 0;
    while let Ok(len @ 1..) = from.read(&mut *packet) {
        count += lines_in(&packet[..len]);
    }
    count
}

fn read_stderr(mut from: impl Read) -> String {
    let mut stderr = Vec::new();
    // Text before an error is kept; later output has to be read, too, or `ip` would block.
    let _ = from.by_ref().take(MAX_STDERR).read_to_end(&mut stderr);
    let _ = io::copy(&mut from, &mut io::sink());
    String::from_utf8_lossy(&stderr).into_owned()
}

/// Waits for the end of `ip`. `None`: `is_over` became true, and `ip` was killed or ended by the same signal.
fn wait(ip: &mut Child, mut is_over: impl FnMut() -> bool) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = ip.try_wait()? {
            // `ip` may have received a signal for both processes first.
            let looks = if status.success() { 0 } else { status.signal().map_or(1, |_| LOOKS) };
            let is_ended = (0..looks).any(|look| {
                if look > 0 {
                    thread::sleep(POLL);
                }
                is_over()
            });
            return Ok(Some(status).filter(|_| !is_ended));
        }
        if is_over() {
            ip.kill()?;
            return ip.wait().map(|_| None);
        }
        thread::sleep(POLL);
    }
}

/// Error message of `ip` in one line: for a usage text the first line, without the lines `Command failed`.
fn error_of(text: &str) -> Option<String> {
    let mut lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("Command failed -:"));
    let first = lines.next()?;
    let first = first.strip_prefix("Error: ").unwrap_or(first);
    if first.starts_with("Usage:") {
        return Some(first.to_owned());
    }
    Some(std::iter::once(first).chain(lines).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ip_are_distinguished_from_toml() {
        let of_ip = [
            "link add tun0 type tun\n",
            "# links\n\n  a add 10.0.0.1/8 dev tun0",
            "xfrm\tstate flush",
            "-6 route",
            "l \\\nadd x",
        ];
        for (text, want) in of_ip.iter().zip([true, true, true, false, true]) {
            assert_eq!(are_in(text.as_bytes()), want, "{text}");
        }
        for text in
            ["", "# nothing\n", "[[link]]\n", "name = \"x\"\n", "name= 3", "crypto.workers = 1", "\"a b\" = 1", "x"]
        {
            assert!(!are_in(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn lines_are_limited_to_netlink_objects() {
        let good = [
            "link add tun0 type tun\n\n# tuntap add x\n\t a add 10.0.0.1/8 dev x # netns\n",
            "'route' add x\n\"ru\" add y\nnei add z\nneighbor add z\nx s f\nl\\\ni add x\r\n",
            "\\\n\\\n",
            "xfrm\nx ''\nx policy monitor\n\"xfrm\"state\nlink monitor\n'x'",
            "# \\\nroute add x\n",
        ];
        for text in good {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
        let bad = [
            ("link add x\ntuntap add t9 mode tun\n", 2, "\"tuntap\""),
            ("netns exec x sh\n", 1, "\"netns\": neither TOML nor a line of ip"),
            ("connections {\n", 1, "\"connections\": neither TOML nor a line of ip, which is about link"),
            ("ip link add x\n", 1, "\"ip\": leave out this word"),
            ("link add x\nip link add y\n", 2, "\"ip\": leave out this word"),
            ("\n ne\\\ntns exec x sh\n", 2, "\"netns\""),
            ("route \\\nadd x # \\\ntunnel add\n", 3, "\"tunnel\""),
            ("\"tunnel\"add\n", 1, "\"tunnel\""),
            ("'netns\n", 1, "\"netns"),
            ("'' add x\n", 1, "\"\""),
            ("linkadd x\n", 1, "\"linkadd\""),
            ("l2tp add x\n", 1, "\"l2tp\""),
            ("addrlabel add x\n", 1, "\"addrlabel\""),
            ("vrf exec x sh\n", 1, "\"vrf\""),
            ("-6 route add x\n", 1, "\"-6\""),
            ("xfrm state flush\nxfrm monitor\n", 2, "\"xfrm monitor\""),
            ("'x'\\\n \"mon\" all\n", 1, "\"xfrm monitor\""),
            ("link\x0cadd x\n", 1, "\"link\x0cadd\""),
            ("link add x\nlink\0 add x\n", 2, "a byte of zero"),
        ];
        for (text, line, why) in bad {
            let (at, error) = check(text.as_bytes()).unwrap_err();
            assert!(at == line && error.starts_with(why), "{text}: {at}: {error}");
        }
    }

    #[test]
    fn wrong_key_length_is_named_instead_of_the_kernels_words() {
        let linux = "RTNETLINK answers: Invalid argument Kernel was unable to initialize cryptographic operations.";
        let text = b"link add x\nxfrm state add src 192.0.2.1 aead rfc4106(gcm(aes)) 0x0011 128\n".to_vec();
        let lines = IpLines::new("gw.ip".to_owned(), Zeroizing::new(text)).unwrap();
        let want = "2 bytes are no key of rfc4106(gcm(aes)); use 20 or 28 or 36 bytes";
        assert_eq!(lines.key_error(2, linux).as_deref(), Some(want));
        assert_eq!(lines.key_error(2, "RTNETLINK answers: File exists"), None);
        assert_eq!(lines.key_error(1, linux), None);
    }

    #[test]
    fn signal_that_ends_ip_is_no_failure_of_ip() {
        let end = |script: &str, is_meant: bool| {
            let mut ip = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
            // The first call of `is_over` comes after the end of `ip`.
            let here = std::path::PathBuf::from(format!("/proc/{}", ip.id()));
            wait(&mut ip, || is_meant && !here.exists()).unwrap().map(|status| (status.code(), status.signal()))
        };
        assert_eq!(end("kill -TERM $$", true), None);
        assert_eq!(end("exit 3", true), None);
        assert_eq!(end("exit 0", true), Some((Some(0), None)));
        assert_eq!(end("exit 3", false), Some((Some(3), None)));
        assert_eq!(end("kill -TERM $$", false), Some((None, Some(15))));
    }

    #[test]
    fn message_of_ip_becomes_one_line() {
        let cases = [
            ("RTNETLINK answers: File exists\nCommand failed -:3\n", Some("RTNETLINK answers: File exists")),
            ("Error: Nexthop has invalid gateway.\nCommand failed -:1\n", Some("Nexthop has invalid gateway.")),
            ("Usage: ip link add\n  [ link DEV ]\n", Some("Usage: ip link add")),
            ("one\n\n two\n", Some("one two")),
            ("Command failed -:1\n", None),
            ("", None),
        ];
        for (text, want) in cases {
            assert_eq!(error_of(text).as_deref(), want, "{text}");
        }
    }
}
