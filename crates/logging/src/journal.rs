//! Entries of the journal, by its native protocol: fields in a datagram, or in sealed memory whose descriptor a datagram carries.

use std::env;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use client::passing;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, memfd_create};
use rustix::io::Errno;
use rustix::net::SendFlags;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// The journal's socket.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Variable with the device and inode of the stream that the service manager has connected to the journal.
const STREAM: &str = "JOURNAL_STREAM";

/// Longest entry that is sent as a datagram: the kernel holds datagrams in its own memory until they are read.
const MAX_DATAGRAM_LEN: usize = 32 << 10;

/// Longest time that an entry waits for the journal to read earlier ones.
const PATIENCE: Duration = Duration::from_millis(100);

/// Seals that the journal requires, so that it reads what was sent.
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// Connection to the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    socket: UnixDatagram,
    path: &'static Path,
    /// Whether the last entry found the journal's queue full.
    is_full: AtomicBool,
    /// Number of entries that were not sent since one was.
    lost: AtomicU64,
}

impl Journal {
    /// The journal, if standard error is a stream to it.
    pub(crate) fn of_stderr() -> Option<Self> {
        let stream = env::var(STREAM).ok()?;
        let found = fstat(io::stderr()).ok()?;
        if !names(&stream, found.st_dev, found.st_ino) {
            return None;
        }
        // Without the socket the stream has the lines.
        Self::at(Path::new(SOCKET)).ok()
    }

    fn at(path: &'static Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { socket, path, is_full: AtomicBool::new(false), lost: AtomicU64::new(0) })
    }

    /// Sends an entry. One that finds the queue full is lost, and counted.
    ///
    /// # Errors
    /// The journal is gone.
    fn send(&self, entry: &[u8]) -> io::Result<()> {
        let sent = match self.try_send(entry) {
            // Another journal may have the place of the one before.
            Err(err)
                if matches!(
                    err.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::NotConnected | ErrorKind::ConnectionReset
                ) =>
            {
                self.socket.connect(self.path).and_then(|()| self.try_send(entry))
            }
            sent => sent,
        };
        let is_full = matches!(&sent, Err(err) if err.kind() == ErrorKind::WouldBlock);
        self.is_full.store(is_full, Ordering::Relaxed);
        if is_full {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        sent?;
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let mut notice = Vec::new();
            push(&mut notice, "PRIORITY", "4");
            push(&mut notice, "MESSAGE", &format!("{lost} log lines are lost: the journal did not read them in time"));
            if self.try_send(&notice).is_err() {
                self.lost.fetch_add(lost, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn try_send(&self, entry: &[u8]) -> io::Result<()> {
        // A worker does not wait for each of its lines.
        let flags = if self.is_full.load(Ordering::Relaxed) { SendFlags::DONTWAIT } else { SendFlags::empty() };
        if entry.len() <= MAX_DATAGRAM_LEN {
            let sent = passing::send_with(&self.socket, entry, &[], flags);
            let does_not_fit = |err: &io::Error| {
                [Errno::MSGSIZE, Errno::NOBUFS].contains(&Errno::from_io_error(err).unwrap_or(Errno::IO))
            };
            if !matches!(&sent, Err(err) if does_not_fit(err)) {
                return sent;
            }
        }
        let memory = memfd_create("fatpath-log", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut memory = File::from(memory);
        memory.write_all(entry)?;
        fcntl_add_seals(&memory, SEALS)?;
        passing::send_with(&self.socket, &[], &[memory.as_fd()], flags)
    }
}

/// Whether a value of `JOURNAL_STREAM` names this device and inode.
fn names(stream: &str, device: u64, inode: u64) -> bool {
    let numbers = stream.split_once(':').map(|(device, inode)| (device.parse::<u64>(), inode.parse::<u64>()));
    numbers == Some((Ok(device), Ok(inode)))
}

/// Adds a field to an entry. A value of several lines has its length before it.
fn push(entry: &mut Vec<u8>, name: &str, value: &str) {
    entry.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend_from_slice(value.as_bytes());
    entry.push(b'\n');
}

/// Sender of events to the journal.
#[derive(Debug)]
pub(crate) struct JournalLayer {
    journal: Journal,
    /// Fields of each entry.
    of_all: Vec<u8>,
}

impl JournalLayer {
    pub(crate) fn new(journal: Journal, program: &str, gateway: Option<&str>) -> Self {
        let mut of_all = Vec::new();
        push(&mut of_all, "SYSLOG_IDENTIFIER", program);
        if let Some(gateway) = gateway {
            push(&mut of_all, "FATPATH_GATEWAY", gateway);
        }
        Self { journal, of_all }
    }
}

impl<S: Subscriber> Layer<S> for JournalLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        let mut entry = self.of_all.clone();
        push(&mut entry, "PRIORITY", priority(level));
        let mut fields = Fields { entry, value: String::new() };
        event.record(&mut fields);
        if self.journal.send(&fields.entry).is_err() {
            let mut message = Message::default();
            event.record(&mut message);
            // Without a journal and without standard error there is no place.
            let _ = writeln!(io::stderr(), "{level:>5} {}", message.0);
        }
    }
}

/// syslog's number of a level.
const fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// Fields of an event, as those of an entry.
struct Fields {
    entry: Vec<u8>,
    /// Text of the present field.
    value: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => push(&mut self.entry, "MESSAGE", value),
            "message_id" => push(&mut self.entry, "MESSAGE_ID", value),
            name => push(&mut self.entry, &format!("FATPATH_{}", name.to_ascii_uppercase().replace('.', "_")), value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = std::mem::take(&mut self.value);
        text.clear();
        // A String takes everything.
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
        self.value = text;
    }
}

/// Message of an event.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::path::PathBuf;
    use std::time::Instant;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// A socket in the journal's place.
    struct Place {
        socket: UnixDatagram,
        path: &'static Path,
    }

    impl Place {
        fn new(name: &str) -> Self {
            let path: &'static PathBuf =
                Box::leak(Box::new(env::temp_dir().join(format!("fatpath-journal-{name}-{}", std::process::id()))));
            let _ = std::fs::remove_file(path);
            Self { socket: UnixDatagram::bind(path).unwrap(), path }
        }

        /// Fields of the next entry, and whether it came as memory.
        fn next(&self) -> (BTreeMap<String, String>, bool) {
            let mut bytes = vec![0; 1 << 20];
            let (len, descriptors) = passing::receive(&self.socket, &mut bytes).unwrap();
            bytes.truncate(len);
            let is_memory = !descriptors.is_empty();
            for memory in descriptors {
                assert!(rustix::fs::fcntl_get_seals(&memory).unwrap().contains(SEALS));
                let mut memory = File::from(memory);
                io::Seek::rewind(&mut memory).unwrap();
                memory.read_to_end(&mut bytes).unwrap();
            }
            (parse(&bytes), is_memory)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(self.path);
        }
    }

    fn parse(mut entry: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        while !entry.is_empty() {
            let end = entry.iter().position(|byte| matches!(byte, b'=' | b'\n')).unwrap();
            let name = String::from_utf8(entry[..end].to_vec()).unwrap();
            let has_len = entry[end] == b'\n';
            entry = &entry[end + 1..];
            let len = if has_len {
                let len = u64::from_le_bytes(entry[..8].try_into().unwrap()) as usize;
                entry = &entry[8..];
                len
            } else {
                entry.iter().position(|byte| *byte == b'\n').unwrap()
            };
            assert!(fields.insert(name, String::from_utf8(entry[..len].to_vec()).unwrap()).is_none());
            assert_eq!(entry[len], b'\n');
            entry = &entry[len + 1..];
        }
        fields
    }

    #[test]
    fn stream_is_the_one_of_its_device_and_inode() {
        assert!(names("8:4711", 8, 4711));
        for other in ["8:4712", "9:4711", "", "8", "8:", ":4711", "8:4711:1", "x:4711"] {
            assert!(!names(other, 8, 4711), "{other}");
        }
    }

    #[test]
    fn event_is_an_entry_with_fields() {
        let place = Place::new("event");
        let layer = JournalLayer::new(Journal::at(place.path).unwrap(), "fatpath", Some("left"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let err = io::Error::from_raw_os_error(19);
            tracing::error!(message_id = crate::id::LINK_DOWN, link = "wan", reason = %err, "wan: {err}\nand more");
            tracing::debug!(uid = 7, "short");
            tracing::info!("{}", "x".repeat(64 << 10));
        });
        let (fields, is_memory) = place.next();
        let want = [
            ("FATPATH_GATEWAY", "left"),
            ("FATPATH_LINK", "wan"),
            ("FATPATH_REASON", "No such device (os error 19)"),
            ("MESSAGE", "wan: No such device (os error 19)\nand more"),
            ("MESSAGE_ID", crate::id::LINK_DOWN),
            ("PRIORITY", "3"),
            ("SYSLOG_IDENTIFIER", "fatpath"),
        ];
        let got: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!((got.as_slice(), is_memory), (&want[..], false));
        let (fields, is_memory) = place.next();
        let got = ["MESSAGE", "FATPATH_UID", "PRIORITY"].map(|name| fields[name].as_str());
        assert_eq!((got, is_memory), (["short", "7", "7"], false));
        let (fields, is_memory) = place.next();
        assert_eq!((fields["MESSAGE"].len(), is_memory), (64 << 10, true));
    }

    #[test]
    fn entries_for_a_full_journal_are_counted_and_do_not_wait() {
        let place = Place::new("full");
        let journal = Journal::at(place.path).unwrap();
        let began = Instant::now();
        let mut entry = Vec::new();
        push(&mut entry, "MESSAGE", "line");
        // The queue of a socket has some hundred datagrams at most (net.unix.max_dgram_qlen).
        for _ in 0..2000 {
            journal.send(&entry).unwrap();
        }
        assert!(journal.lost.load(Ordering::Relaxed) > 0);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let queued = 2000 - journal.lost.load(Ordering::Relaxed);
        for _ in 0..queued {
            place.next();
        }
        journal.send(&entry).unwrap();
        assert_eq!(place.next().0["MESSAGE"], "line");
        let notice = format!("{} log lines are lost: the journal did not read them in time", 2000 - queued);
        assert_eq!(place.next().0["MESSAGE"], notice);
    }

    #[test]
    fn journal_that_is_made_anew_gets_entries() {
        let place = Place::new("anew");
        let journal = Journal::at(place.path).unwrap();
        let entry = b"MESSAGE=line\n";
        let path = place.path;
        drop(place);
        assert!(journal.send(entry).is_err(), "there is none");
        let place = Place { socket: UnixDatagram::bind(path).unwrap(), path };
        journal.send(entry).unwrap();
        assert_eq!(place.next().0["MESSAGE"], "line");
    }
}
