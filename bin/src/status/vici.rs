//! Client of vici, strongSwan's protocol for control of charon: packets, messages, and a connection with a time limit.
//!
//! A packet is a length of 32 bits, a type, a name for some types, and a message. A message is a sequence of elements: sections
//! that nest, lists, and values with keys. Source: `src/libcharon/plugins/vici/README.md` of strongSwan. Integers have network
//! byte order. The answers are not trusted: each length is checked, and time, bytes and depth have limits.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Longest packet that the protocol allows, without its length.
const MAX_PACKET_LEN: usize = 512 << 10;
/// Most bytes that a connection receives.
const MAX_RECEIVED: usize = 16 << 20;
/// Deepest nesting of sections; strongSwan's own answers have 3.
const MAX_DEPTH: usize = 8;
/// Time until the next attempt if the daemon's queue of connections is full.
const CONNECT_INTERVAL: Duration = Duration::from_millis(10);

/// Types of packets.
mod packet {
    pub(super) const CMD_REQUEST: u8 = 0;
    pub(super) const CMD_RESPONSE: u8 = 1;
    pub(super) const CMD_UNKNOWN: u8 = 2;
    pub(super) const EVENT_REGISTER: u8 = 3;
    pub(super) const EVENT_CONFIRM: u8 = 5;
    pub(super) const EVENT_UNKNOWN: u8 = 6;
    pub(super) const EVENT: u8 = 7;
}

/// Types of elements.
mod element {
    pub(super) const SECTION_START: u8 = 1;
    pub(super) const SECTION_END: u8 = 2;
    pub(super) const KEY_VALUE: u8 = 3;
    pub(super) const LIST_START: u8 = 4;
    pub(super) const LIST_ITEM: u8 = 5;
    pub(super) const LIST_END: u8 = 6;
}

/// Reasons for which the daemon's answer is not there or cannot be used.
#[derive(Debug)]
pub(super) enum ViciError {
    /// No process accepts connections at the socket.
    NotRunning,
    /// This user may not connect.
    NoAccess,
    /// The answer is not complete within the time limit.
    TimedOut,
    /// The daemon closed the connection.
    Closed,
    /// The daemon does not have the command.
    Unknown,
    /// The answer breaks a limit.
    TooLarge,
    /// The answer breaks a rule of the protocol.
    Malformed(&'static str),
    /// A system call failed.
    System(io::Error),
}

impl fmt::Display for ViciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning => f.write_str("not running"),
            Self::NoAccess => f.write_str("no access to its socket, which is root's"),
            Self::TimedOut => f.write_str("no complete answer in time"),
            Self::Closed => f.write_str("it closed the connection"),
            Self::Unknown => f.write_str("it does not know the command"),
            Self::TooLarge => f.write_str("its answer is too large"),
            Self::Malformed(why) => write!(f, "its answer is malformed: {why}"),
            Self::System(err) => err.fmt(f),
        }
    }
}

impl From<io::Error> for ViciError {
    fn from(err: io::Error) -> Self {
        match err.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Self::NotRunning,
            ErrorKind::PermissionDenied => Self::NoAccess,
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::System(err),
        }
    }
}

/// One element of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Element<'a> {
    SectionStart(&'a str),
    SectionEnd,
    KeyValue(&'a str, &'a [u8]),
    ListStart(&'a str),
    ListItem(&'a [u8]),
    ListEnd,
}

/// Elements of a message, which end with the first error. Sections and lists are balanced unless there is one.
#[derive(Clone, Debug)]
pub(super) struct Elements<'a> {
    rest: &'a [u8],
    depth: usize,
    is_in_list: bool,
}

impl<'a> Elements<'a> {
    pub(super) const fn new(message: &'a [u8]) -> Self {
        Self { rest: message, depth: 0, is_in_list: false }
    }

    /// Takes the next element; `None` at the end of the message.
    fn take(&mut self) -> Result<Option<Element<'a>>, ViciError> {
        let Some((kind, rest)) = self.rest.split_first() else {
            return match (self.depth, self.is_in_list) {
                (0, false) => Ok(None),
                (_, true) => Err(ViciError::Malformed("a list does not end")),
                (_, false) => Err(ViciError::Malformed("a section does not end")),
            };
        };
        self.rest = rest;
        let belongs_in_list = matches!(*kind, element::LIST_ITEM | element::LIST_END);
        if belongs_in_list != self.is_in_list {
            return Err(ViciError::Malformed("a list and other elements are mixed"));
        }
        Ok(Some(match *kind {
            element::SECTION_START if self.depth == MAX_DEPTH => return Err(ViciError::TooLarge),
            element::SECTION_START => {
                self.depth += 1;
                Element::SectionStart(self.name()?)
            }
            element::SECTION_END => {
                let outer = self.depth.checked_sub(1);
                self.depth = outer.ok_or(ViciError::Malformed("a section ends that has not begun"))?;
                Element::SectionEnd
            }
            element::KEY_VALUE => {
                let name = self.name()?;
                Element::KeyValue(name, self.value()?)
            }
            element::LIST_START => {
                self.is_in_list = true;
                Element::ListStart(self.name()?)
            }
            element::LIST_ITEM => Element::ListItem(self.value()?),
            element::LIST_END => {
                self.is_in_list = false;
                Element::ListEnd
            }
            _ => return Err(ViciError::Malformed("an element has an unknown type")),
        }))
    }

    fn name(&mut self) -> Result<&'a str, ViciError> {
        take_name(&mut self.rest)
    }

    fn value(&mut self) -> Result<&'a [u8], ViciError> {
        let (len, rest) = self.rest.split_first_chunk().ok_or(SHORT)?;
        let (value, rest) = rest.split_at_checked(u16::from_be_bytes(*len).into()).ok_or(SHORT)?;
        self.rest = rest;
        Ok(value)
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>, ViciError>;

    fn next(&mut self) -> Option<Self::Item> {
        let taken = self.take();
        if taken.is_err() {
            *self = Self::new(&[]);
        }
        taken.transpose()
    }
}

/// Error of a length that exceeds the bytes that are there.
const SHORT: ViciError = ViciError::Malformed("it is cut short");

/// Takes a name with its length of 8 bits.
fn take_name<'a>(bytes: &mut &'a [u8]) -> Result<&'a str, ViciError> {
    let (len, rest) = bytes.split_first().ok_or(SHORT)?;
    let (name, rest) = rest.split_at_checked(usize::from(*len)).ok_or(SHORT)?;
    *bytes = rest;
    std::str::from_utf8(name).map_err(|_| ViciError::Malformed("a name is no text"))
}

/// Packet with a name and an empty message.
fn named(kind: u8, name: &str) -> Vec<u8> {
    let len = u8::try_from(name.len()).expect("names of commands and events are short");
    let body_len = 2 + u32::from(len);
    [&body_len.to_be_bytes()[..], &[kind, len], name.as_bytes()].concat()
}

/// Connection to a daemon.
#[derive(Debug)]
pub(super) struct Vici {
    stream: UnixStream,
    deadline: Instant,
    /// Bytes that may still be received.
    allowance: usize,
}

impl Vici {
    /// Connects to the daemon whose socket is at `path`. All that follows ends at `deadline`.
    ///
    /// # Errors
    /// The daemon does not run, does not accept the connection in time, or this user may not connect.
    pub(super) fn connect(path: &Path, deadline: Instant) -> Result<Self, ViciError> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let system = |err: Errno| ViciError::from(io::Error::from(err));
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(system)?;
        let address = SocketAddrUnix::new(path).map_err(system)?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => return Ok(Self { stream: socket.into(), deadline, allowance: MAX_RECEIVED }),
                // The queue of the listening socket is full (unix(7)).
                Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => thread::sleep(CONNECT_INTERVAL),
                Err(Errno::AGAIN | Errno::INTR) => return Err(ViciError::TimedOut),
                Err(err) => return Err(system(err)),
            }
        }
    }

    /// Process that listens at the socket, if it is in this process' namespace.
    ///
    /// # Errors
    /// Errors of getsockopt(2).
    pub(super) fn peer_pid(&self) -> io::Result<u32> {
        let credentials = rustix::net::sockopt::socket_peercred(self.stream.as_fd())?;
        Ok(credentials.pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Runs a command that streams its answer as events, and passes the message of each event to `each`.
    ///
    /// # Errors
    /// The daemon does not have the command or the event; the answer is malformed, too large or incomplete at the deadline. Or an
    /// error of `each`.
    pub(super) fn stream(
        &mut self,
        command: &str,
        event: &str,
        mut each: impl FnMut(&[u8]) -> Result<(), ViciError>,
    ) -> Result<(), ViciError> {
        self.send(&named(packet::EVENT_REGISTER, event))?;
        self.receive_until(packet::EVENT_CONFIRM, packet::EVENT_UNKNOWN, |_, _| Ok(()))?;
        self.send(&named(packet::CMD_REQUEST, command))?;
        self.receive_until(packet::CMD_RESPONSE, packet::CMD_UNKNOWN, |name, message| {
            if name == event { each(message) } else { Ok(()) }
        })
    }

    /// Receives packets until one of type `last`, and passes names and messages of events to `each`.
    fn receive_until(
        &mut self,
        last: u8,
        unknown: u8,
        mut each: impl FnMut(&str, &[u8]) -> Result<(), ViciError>,
    ) -> Result<(), ViciError> {
        loop {
            let body = self.receive()?;
            let (kind, mut rest) = body.split_first().ok_or(SHORT)?;
            match *kind {
                kind if kind == last => return Ok(()),
                kind if kind == unknown => return Err(ViciError::Unknown),
                packet::EVENT => {
                    let name = take_name(&mut rest)?;
                    each(name, rest)?;
                }
                _ => return Err(ViciError::Malformed("a packet has an unexpected type")),
            }
        }
    }

    /// Receives a packet, without its length.
    fn receive(&mut self) -> Result<Vec<u8>, ViciError> {
        let mut len = [0; 4];
        self.fill(&mut len)?;
        let len = usize::try_from(u32::from_be_bytes(len)).map_err(|_| ViciError::TooLarge)?;
        if len > MAX_PACKET_LEN {
            return Err(ViciError::TooLarge);
        }
        let mut body = vec![0; len];
        self.fill(&mut body)?;
        Ok(body)
    }

    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<(), ViciError> {
        self.allowance = self.allowance.checked_sub(buffer.len()).ok_or(ViciError::TooLarge)?;
        while !buffer.is_empty() {
            // A daemon that always has a byte must not outlast the deadline.
            let left = self.time_left()?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(ViciError::Closed),
                Ok(n) => buffer = &mut buffer[n..],
                Err(err) if err.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN, left)?,
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => return Err(err.into()),
            }
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), ViciError> {
        while !bytes.is_empty() {
            let left = self.time_left()?;
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(err) if err.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT, left)?,
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => return Err(err.into()),
            }
        }
        Ok(())
    }

    fn time_left(&self) -> Result<Duration, ViciError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ViciError::TimedOut) } else { Ok(left) }
    }

    /// Waits until the socket is ready or the time is over, which the caller sees at its next attempt.
    fn wait(&self, flags: PollFlags, left: Duration) -> Result<(), ViciError> {
        let timeout = Timespec::try_from(left).map_err(|_| ViciError::TimedOut)?;
        match poll(&mut [PollFd::new(&self.stream, flags)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(err) => Err(io::Error::from(err).into()),
        }
    }
}

/// Messages for tests.
#[cfg(test)]
pub(super) mod build {
    use super::element;

    pub(in super::super) fn section(name: &str, content: &[Vec<u8>]) -> Vec<u8> {
        [with_name(element::SECTION_START, name), content.concat(), vec![element::SECTION_END]].concat()
    }

    pub(in super::super) fn value(key: &str, value: &str) -> Vec<u8> {
        [with_name(element::KEY_VALUE, key), blob(value)].concat()
    }

    pub(in super::super) fn list(name: &str, items: &[&str]) -> Vec<u8> {
        let items: Vec<u8> = items.iter().flat_map(|item| [vec![element::LIST_ITEM], blob(item)].concat()).collect();
        [with_name(element::LIST_START, name), items, vec![element::LIST_END]].concat()
    }

    fn with_name(kind: u8, name: &str) -> Vec<u8> {
        [&[kind, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat()
    }

    fn blob(value: &str) -> Vec<u8> {
        [&u16::try_from(value.len()).unwrap().to_be_bytes(), value.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::build::{list, section, value};
    use super::*;

    /// Message of the example in strongSwan's description of the protocol.
    fn example() -> Vec<u8> {
        let inner = section("sub-section", &[value("key2", "value2")]);
        [value("key1", "value1"), section("section1", &[inner, list("list1", &["item1", "item2"])])].concat()
    }

    fn all(message: &[u8]) -> Result<Vec<Element<'_>>, String> {
        Elements::new(message).collect::<Result<_, _>>().map_err(|err| err.to_string())
    }

    #[test]
    fn message_is_the_elements_of_its_description() {
        let want = [
            Element::KeyValue("key1", b"value1"),
            Element::SectionStart("section1"),
            Element::SectionStart("sub-section"),
            Element::KeyValue("key2", b"value2"),
            Element::SectionEnd,
            Element::ListStart("list1"),
            Element::ListItem(b"item1"),
            Element::ListItem(b"item2"),
            Element::ListEnd,
            Element::SectionEnd,
        ];
        assert_eq!(all(&example()).unwrap(), want);
        assert_eq!(all(&[]).unwrap(), []);
        assert_eq!(example()[..8], *b"\x03\x04key1\x00\x06");
    }

    #[test]
    fn malformed_message_ends_with_an_error() {
        let deep: Vec<u8> = [1, 0].repeat(MAX_DEPTH + 1);
        let cases: &[(&[u8], &str)] = &[
            (&[0], "unknown type"),
            (&[7], "unknown type"),
            (&[3], "cut short"),
            (&[3, 9, b'a'], "cut short"),
            (&[3, 1, b'a', 0], "cut short"),
            (&[3, 1, b'a', 0xff, 0xff, b'x'], "cut short"),
            (&[3, 1, 0xff, 0, 0], "no text"),
            (&[1, 1, b'a'], "a section does not end"),
            (&[2], "has not begun"),
            (&[4, 1, b'a'], "a list does not end"),
            (&[4, 1, b'a', 4, 1, b'b'], "mixed"),
            (&[4, 1, b'a', 3, 1, b'b', 0, 0], "mixed"),
            (&[5, 0, 1, b'a'], "mixed"),
            (&[6], "mixed"),
            (&deep, "too large"),
        ];
        for (message, want) in cases {
            let found = all(message);
            assert!(found.as_ref().is_err_and(|err| err.contains(want)), "{message:?}: {found:?}, not {want}");
        }
        // Nothing follows an error.
        assert_eq!(Elements::new(&[0, 2, 2]).count(), 1);
        // Every prefix of a message, but those that end between two elements outside of sections, is too short.
        let example = example();
        let whole = value("key1", "value1").len();
        for len in 0..example.len() {
            assert_eq!(all(&example[..len]).is_ok(), len == 0 || len == whole, "{len}");
        }
    }

    /// A daemon that passes each connection to `serve`, and the answer to `list-sas`: messages that were passed on, and
    /// the error.
    fn ask(limit: Duration, serve: impl FnOnce(UnixStream) + Send + 'static) -> (usize, Result<(), ViciError>) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            PathBuf::from(format!("{}/fatpath-vici-{}-{number}", std::env::temp_dir().display(), std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || serve(listener.accept().unwrap().0));
        let mut messages = 0;
        let asked = Vici::connect(&path, Instant::now() + limit).and_then(|mut vici| {
            vici.stream("list-sas", "list-sa", |_| {
                messages += 1;
                Ok(())
            })
        });
        let _ = std::fs::remove_file(&path);
        (messages, asked)
    }

    const LONG: Duration = Duration::from_secs(10);

    fn packet_of(body: &[u8]) -> Vec<u8> {
        [&u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
    }

    fn confirm() -> Vec<u8> {
        packet_of(&[packet::EVENT_CONFIRM])
    }

    fn event(name: &str) -> Vec<u8> {
        packet_of(&[&named(packet::EVENT, name)[4..], &value("key", "value")].concat())
    }

    /// Writes until the client closes the connection.
    fn serve(bytes: Vec<u8>, is_repeated: bool) -> impl FnOnce(UnixStream) {
        move |mut stream| {
            while stream.write_all(&bytes).is_ok() && is_repeated {}
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }

    #[test]
    fn command_streams_its_events_until_the_response() {
        let registration = packet_of(&[&[3, 7], &b"list-sa"[..]].concat());
        let request = packet_of(&[&[0, 8], &b"list-sas"[..]].concat());
        let (messages, asked) = ask(LONG, move |mut stream| {
            let mut found = vec![0; registration.len()];
            stream.read_exact(&mut found).unwrap();
            assert_eq!(found, registration);
            stream.write_all(&packet_of(&[packet::EVENT_CONFIRM])).unwrap();
            let mut found = vec![0; request.len()];
            stream.read_exact(&mut found).unwrap();
            assert_eq!(found, request);
            // Other events are ignored; an event may arrive in pieces.
            let (head, tail) = (event("log"), event("list-sa"));
            stream.write_all(&[&head[..], &tail[..7]].concat()).unwrap();
            thread::sleep(Duration::from_millis(20));
            stream.write_all(&[&tail[7..], &event("list-sa"), &packet_of(&[packet::CMD_RESPONSE])].concat()).unwrap();
        });
        assert!(asked.is_ok(), "{asked:?}");
        assert_eq!(messages, 2);
    }

    #[test]
    fn hostile_answers_end_in_errors() {
        let cases: [(Vec<u8>, &str); 9] = [
            (packet_of(&[packet::EVENT_UNKNOWN]), "does not know the command"),
            ([confirm(), packet_of(&[packet::CMD_UNKNOWN])].concat(), "does not know the command"),
            (vec![0xff; 4], "too large"),
            (vec![0, 8, 0, 1], "too large"),
            (vec![0, 0, 0, 0], "cut short"),
            (packet_of(&[99]), "unexpected type"),
            (packet_of(&[packet::CMD_RESPONSE]), "unexpected type"),
            ([confirm(), packet_of(&[packet::EVENT])].concat(), "cut short"),
            ([confirm(), packet_of(&[packet::EVENT, 200, b'a'])].concat(), "cut short"),
        ];
        for (bytes, want) in cases {
            let (_, asked) = ask(LONG, serve(bytes.clone(), false));
            let text = asked.as_ref().map_err(ToString::to_string).unwrap_err();
            assert!(text.contains(want), "{bytes:?}: {text}, not {want}");
        }
        // Events without an end have a limit of bytes.
        let (messages, asked) = ask(LONG, |mut stream| {
            stream.write_all(&confirm()).unwrap();
            serve(event("list-sa").repeat(1000), true)(stream);
        });
        assert!(matches!(asked, Err(ViciError::TooLarge)), "{asked:?}");
        assert!(messages * event("list-sa").len() <= MAX_RECEIVED, "{messages}");
        // Half a packet.
        let (_, asked) = ask(LONG, |mut stream| stream.write_all(&[0, 0, 1, 0, 5]).unwrap());
        assert!(matches!(asked, Err(ViciError::Closed)), "{asked:?}");
    }

    #[test]
    fn silent_and_slow_daemons_are_left_at_the_deadline() {
        let limit = Duration::from_millis(150);
        let begun = Instant::now();
        let (_, asked) = ask(limit, serve(Vec::new(), false));
        assert!(matches!(asked, Err(ViciError::TimedOut)), "{asked:?}");
        // A byte at a time.
        let (_, asked) = ask(limit, |mut stream| {
            stream.write_all(&[0, 0, 1, 0]).unwrap();
            while stream.write_all(&[0]).is_ok() {
                thread::sleep(Duration::from_millis(40));
            }
        });
        assert!(matches!(asked, Err(ViciError::TimedOut)), "{asked:?}");
        // The events before are passed on.
        let (messages, asked) = ask(limit, serve([confirm(), event("list-sa")].concat(), false));
        assert!(matches!(asked, Err(ViciError::TimedOut)), "{asked:?}");
        assert_eq!(messages, 1);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }

    #[test]
    fn full_queue_and_missing_daemon_are_errors() {
        let path =
            PathBuf::from(format!("{}/fatpath-vici-{}-queue", std::env::temp_dir().display(), std::process::id()));
        let _ = std::fs::remove_file(&path);
        let connect = || Vici::connect(&path, Instant::now() + Duration::from_millis(50));
        assert!(matches!(connect(), Err(ViciError::NotRunning)));
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(matches!(connect(), Err(ViciError::NotRunning)), "nothing listens");
        rustix::net::listen(&socket, 0).unwrap();
        let mut waiting: Vec<Vici> = Vec::new();
        let last = loop {
            match connect() {
                Ok(vici) if waiting.len() < 10 => waiting.push(vici),
                other => break other,
            }
        };
        assert!(matches!(last, Err(ViciError::TimedOut)), "{last:?} after {}", waiting.len());
        assert_eq!(waiting[0].peer_pid().unwrap(), std::process::id());
        let _ = std::fs::remove_file(&path);
    }
}
