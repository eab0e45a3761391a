//! The log in systemd's journal: a socket in its place receives the entries of a gateway that is confined.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{IoSliceMut, Read, Seek};
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, trial, veth, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

/// Fields of an entry.
type Entry = BTreeMap<String, String>;

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces];
    vec![
        trial("journald/confined_gateway_sends_entries_with_fields", NEEDS, entries),
        trial("journald/lines_are_text_if_the_stream_is_another", NEEDS, text),
        trial("journald/gateway_goes_on_without_the_journal", NEEDS, gone),
        trial("journald/exporter_sends_entries", NEEDS, exporter),
    ]
}

/// A socket in the journal's place, for commands of a mount namespace.
struct Journal {
    scratch: Scratch,
    host: Netns,
    socket: UnixDatagram,
}

impl Journal {
    fn new() -> Outcome<Self> {
        let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
        let dir = scratch.file("journal");
        fs::create_dir(&dir)?;
        let socket = UnixDatagram::bind(dir.join("socket"))?;
        for (path, mode) in [(scratch.path(), 0o755), (&dir, 0o755), (&dir.join("socket"), 0o666)] {
            fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { scratch, host, socket })
    }

    /// A command whose standard error is the stream that `JOURNAL_STREAM` names, by the words of a shell.
    fn command(&self, stream: &str) -> Command {
        let script = format!(
            "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind \"$0\" /run/systemd/journal &&
             export JOURNAL_STREAM={stream} && exec \"$@\""
        );
        let mut command = self.host.command("unshare");
        command.args(["--mount", "sh", "-c", &script]).arg(self.scratch.file("journal")).arg(fatpath());
        command
    }

    /// Next entry, and whether it came as memory.
    fn next(&self) -> Outcome<(Entry, bool)> {
        let mut bytes = vec![0; 1 << 20];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        bytes.truncate(received.bytes);
        let mut is_memory = false;
        for message in control.drain() {
            let RecvAncillaryMessage::ScmRights(descriptors) = message else { continue };
            for memory in descriptors {
                let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
                assert!(fcntl_get_seals(&memory)?.contains(seals), "the journal takes no memory that can change");
                let mut memory = File::from(memory);
                memory.rewind()?;
                memory.read_to_end(&mut bytes)?;
                is_memory = true;
            }
        }
        Ok((parse(&bytes)?, is_memory))
    }

    /// The first entry from here on that `is_wanted`, and whether it came as memory.
    fn find(&self, what: &str, is_wanted: impl Fn(&Entry) -> bool) -> Outcome<(Entry, bool)> {
        loop {
            let (entry, is_memory) =
                self.next().map_err(|err| format!("{what}: {}", err.message().unwrap_or_default()))?;
            if is_wanted(&entry) {
                return Ok((entry, is_memory));
            }
        }
    }
}

/// Fields of an entry in the journal's native form.
fn parse(mut bytes: &[u8]) -> Outcome<Entry> {
    let mut entry = Entry::new();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|byte| matches!(byte, b'=' | b'\n')).ok_or("a name without an end")?;
        let name = String::from_utf8(bytes[..end].to_vec())?;
        let is_binary = bytes[end] == b'\n';
        bytes = &bytes[end + 1..];
        let len = if is_binary {
            let len = u64::from_le_bytes(bytes.get(..8).ok_or("no length")?.try_into()?);
            bytes = &bytes[8..];
            len as usize
        } else {
            bytes.iter().position(|byte| *byte == b'\n').ok_or("a value without an end")?
        };
        entry.insert(name, String::from_utf8(bytes.get(..len).ok_or("a short value")?.to_vec())?);
        bytes = bytes.get(len + 1..).ok_or("a value without its end")?;
    }
    Ok(entry)
}

const OWN_STREAM: &str = "$(stat -L -c %d:%i /proc/self/fd/2)";

const CONFIG: &str = "[host]\nside = \"off\"\n[[link]]\nname = \"up\"\nkind = \"packet\"\ninterface = \"up0\"\n";

fn message(entry: &Entry) -> &str {
    entry.get("MESSAGE").map_or("", String::as_str)
}

/// A call that the filter lacks would end this gateway.
fn entries() -> Outcome {
    let journal = Journal::new()?;
    let peer = Netns::new("y")?;
    veth((&journal.host, "up0"), (&peer, "up0"))?;
    let mut command = journal.command(OWN_STREAM);
    command.env("FATPATH_SANDBOX", "trap");
    let mut gateway = Gateway::spawn(command, &journal.scratch, "x", CONFIG, &["--user", "61234"])?;
    let (entry, _) = journal.find("the start", |entry| message(entry).starts_with("x: running with 1 link"))?;
    let field = |entry: &Entry, name: &str| entry.get(name).cloned().unwrap_or_default();
    for (name, want) in [("PRIORITY", "6"), ("SYSLOG_IDENTIFIER", "fatpath"), ("FATPATH_GATEWAY", "x")] {
        assert_eq!(field(&entry, name), want, "{entry:?}");
    }
    gateway.wait_until("it answers", |gateway| gateway.show("links").is_ok())?;
    let sandbox = gateway.show("sandbox")?;
    assert!(sandbox.contains("seccomp") && sandbox.contains("user 61234"), "{sandbox}");

    journal.host.sh("ip link set up0 down")?;
    let is_down = |entry: &Entry| field(entry, "FATPATH_LINK") == "up" && entry.contains_key("MESSAGE_ID");
    let (entry, is_memory) = journal.find("the link's end", is_down)?;
    assert!(!is_memory && message(&entry).contains("up"), "{entry:?}");
    assert!(!field(&entry, "FATPATH_REASON").is_empty(), "{entry:?}");
    assert_eq!(field(&entry, "MESSAGE_ID").len(), 32, "{entry:?}");

    gateway.reload("nonsense = 1\n")?;
    let (entry, is_memory) =
        journal.find("a refused reload", |entry| message(entry).contains("not reloaded, nothing has changed"))?;
    assert!(!is_memory && field(&entry, "PRIORITY") == "3" && field(&entry, "MESSAGE_ID").len() == 32, "{entry:?}");
    assert!(field(&entry, "FATPATH_REASON").contains("nonsense: unknown key"), "{entry:?}");

    // The line names all links.
    let vlan = |id: u32| format!("[[link]]\nname = \"v{id:014}\"\nkind = \"vlan\"\nlink = \"up\"\nid = {id}\n");
    gateway.reload(&[CONFIG.to_owned(), (1..4001).map(vlan).collect()].concat())?;
    let (entry, is_memory) = journal.find("a reload", |entry| message(entry).starts_with("x: reloaded"))?;
    let text = message(&entry);
    assert!(
        is_memory && text.len() > 64 << 10 && text.contains("v00000000004000; +4000 links"),
        "{} bytes, {}",
        text.len(),
        &text[text.len().saturating_sub(200)..]
    );
    assert_eq!(field(&entry, "FATPATH_GATEWAY"), "x");
    assert_eq!(gateway.log(), "", "standard error has no line");
    assert!(gateway.terminate()?.success(), "{}", gateway.log());
    Ok(())
}

fn text() -> Outcome {
    for stream in ["1:1", "", "$(stat -L -c %d:%i /proc/self/fd/2)0", "nonsense"] {
        let journal = Journal::new()?;
        let config = "[host]\nside = \"off\"\n";
        let mut gateway =
            Gateway::start_under(journal.command(&format!("\"{stream}\"")), &journal.scratch, "x", config)?;
        gateway.wait_until("it logs", |gateway| gateway.log().contains(" INFO x: running with"))?;
        journal.socket.set_nonblocking(true)?;
        assert!(journal.next().is_err(), "{stream}: an entry");
    }
    Ok(())
}

fn gone() -> Outcome {
    let journal = Journal::new()?;
    let mut gateway =
        Gateway::start_under(journal.command(OWN_STREAM), &journal.scratch, "x", "[host]\nside = \"off\"\n")?;
    journal.find("the start", |entry| message(entry).starts_with("x: running with"))?;
    let Journal { scratch, host, socket } = journal;
    drop(socket);
    gateway.reload("nonsense = 1\n")?;
    gateway.wait_until("the line is text", |gateway| {
        gateway.log().contains("ERROR x: not reloaded, nothing has changed")
    })?;
    // Another journal, in the same place.
    let path = scratch.file("journal/socket");
    fs::remove_file(&path)?;
    let socket = UnixDatagram::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let journal = Journal { scratch, host, socket };
    gateway.reload("[host]\nside = \"off\"\n")?;
    journal.find("an entry", |entry| message(entry).starts_with("x: reloaded"))?;
    // One that is not read does not stop it.
    for _ in 0..300 {
        gateway.reload("nonsense = 1\n")?;
        std::thread::sleep(Duration::from_millis(2));
    }
    wait_until("it answers", PATIENCE, || gateway.show("links").is_ok())
}

fn exporter() -> Outcome {
    let journal = Journal::new()?;
    let mut command = journal.command(OWN_STREAM);
    command.args(["metrics", "--listen", "127.0.0.1:9847"]);
    let process = Process::spawn(&mut command, &journal.scratch)?;
    let (entry, _) = journal.find("its line", |entry| message(entry).starts_with("metrics at http://"))?;
    assert_eq!(entry.get("SYSLOG_IDENTIFIER").map(String::as_str), Some("fatpath-see"), "{entry:?}");
    assert!(!entry.contains_key("FATPATH_GATEWAY") && process.output().is_empty(), "{entry:?}");
    Ok(())
}
