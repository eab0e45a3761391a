//! Connections of guests that another gateway goes on with: a table in sealed memory, and descriptors.
//!
//! Unlike links they are passed last, by workers that are paused: the indices of rings change with each frame.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::PortId;
use link::vhost::{ConnectionState, PassedConnection};
use rustix::fs::{FileType, fstat};
use serde::{Deserialize, Serialize};

use super::held::{PassedGuest, settings_of};
use crate::command::Handle;
use crate::node::Node;
use crate::slot::Slot;
use crate::store::sealed;

/// Name of the table.
pub(super) const TABLE: &str = "guests";

/// Largest table in bytes.
const MAX_TABLE: u64 = 64 << 20;

/// A connection in the table.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GuestRow {
    link: String,
    /// Settings of the port's link: its socket.
    settings: String,
    /// Numbers of its descriptors, among those of all guests.
    descriptors: Vec<usize>,
    state: ConnectionState,
}

/// Connections for another gateway.
#[derive(Debug, Default)]
pub(super) struct PassedGuests {
    guests: Vec<PassedGuest>,
    /// The table; `None` without a guest.
    pub(super) table: Option<OwnedFd>,
}

impl PassedGuests {
    /// Takes the connections off the links of the first shard, whose workers are paused.
    pub(super) fn of(worker: &Handle) -> Self {
        let guests = worker.call(pass).unwrap_or_else(|gone| {
            tracing::warn!("guests reconnect: {gone}");
            Vec::new()
        });
        if guests.is_empty() {
            return Self::default();
        }
        let row = |(PassedGuest { link, settings, connection }, descriptors): (&PassedGuest, Vec<usize>)| {
            let (link, settings, state) = (link.clone(), settings.clone(), connection.state.clone());
            GuestRow { link, settings, descriptors, state }
        };
        let (_, numbers) = number(&guests);
        let rows: Vec<GuestRow> = guests.iter().zip(numbers).map(row).collect();
        let table = serde_json::to_vec(&rows).map_err(Into::into).and_then(|table| sealed::seal(TABLE, &table));
        match table {
            Ok(table) => Self { guests, table: Some(table) },
            Err(err) => {
                tracing::warn!("guests reconnect: {err}");
                Self::default()
            }
        }
    }

    /// Descriptors of all connections, in the order of their numbers.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        number(&self.guests).0
    }

    /// The table, and then all descriptors.
    pub(super) fn all(&self) -> Vec<BorrowedFd<'_>> {
        self.table.iter().map(AsFd::as_fd).chain(self.descriptors()).collect()
    }
}

/// Descriptors of all connections, and for each connection the numbers of its own among them. Each file is there once: all ports of a
/// virtual machine share that of its memory, and a service manager keeps one descriptor of it.
fn number(guests: &[PassedGuest]) -> (Vec<BorrowedFd<'_>>, Vec<Vec<usize>>) {
    let mut all = Vec::new();
    let mut files = BTreeMap::new();
    let mut numbers = Vec::new();
    for guest in guests {
        let mut own = Vec::new();
        for descriptor in guest.connection.descriptors() {
            // Other kinds of descriptors have no inode of their own.
            let stat = fstat(descriptor).ok().filter(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
            let next = all.len();
            let number = stat.map_or(next, |stat| *files.entry((stat.st_dev, stat.st_ino)).or_insert(next));
            if number == next {
                all.push(descriptor);
            }
            own.push(number);
        }
        numbers.push(own);
    }
    (all, numbers)
}

/// Settings of a port's link.
fn settings_of_slot(slot: &Slot) -> Option<String> {
    slot.config.kind.driver().map(|kind| settings_of(kind, slot.config.offloads))
}

/// Takes the connections off a node's ports.
fn pass(node: &mut Node) -> Vec<PassedGuest> {
    let mut guests = Vec::new();
    for slot in node.slots.iter_mut().flatten() {
        let link = slot.config.name.clone();
        let settings = settings_of_slot(slot).unwrap_or_default();
        match slot.link.pass_guest() {
            Ok(Some(connection)) => guests.push(PassedGuest { link, settings, connection }),
            Ok(None) => {}
            Err(why) => tracing::warn!("{link}: its guest reconnects: {why}"),
        }
    }
    guests
}

/// Rows of a table.
///
/// # Errors
/// The reason why it has none.
pub(super) fn read(table: OwnedFd) -> Result<Vec<GuestRow>, String> {
    let bytes = sealed::unseal(table, MAX_TABLE)?;
    serde_json::from_slice(&bytes).map_err(|err| format!("it has no guests: {err}"))
}

impl GuestRow {
    /// The connection with the descriptors that `find` has of these numbers. Without all of them it is closed.
    pub(super) fn with(self, find: impl FnMut(usize) -> Option<OwnedFd>) -> Option<PassedGuest> {
        let Self { link, settings, descriptors: numbers, state } = self;
        let count = numbers.len();
        let descriptors: Vec<OwnedFd> = numbers.into_iter().filter_map(find).collect();
        let found = descriptors.len();
        let connection = PassedConnection::of_descriptors(state, descriptors);
        if found == count {
            return Some(PassedGuest { link, settings, connection: connection? });
        }
        tracing::warn!("{link}: its guest reconnects: {found} of {count} descriptors were kept");
        connection.into_iter().for_each(PassedConnection::close);
        None
    }
}

/// Connections of a table, which is the first of these descriptors, with the others in the order of their numbers. One without a row is
/// closed.
///
/// # Errors
/// The reason why there are none.
pub(super) fn with_all(descriptors: Vec<OwnedFd>) -> Result<Vec<PassedGuest>, String> {
    let mut descriptors = descriptors.into_iter();
    let rows = descriptors.next().map_or_else(|| Ok(Vec::new()), read);
    let mut all: Vec<Option<OwnedFd>> = descriptors.map(Some).collect();
    let guests = rows.map(|rows| {
        let mut users = vec![0_usize; all.len()];
        for &number in rows.iter().flat_map(|row| &row.descriptors) {
            users.get_mut(number).into_iter().for_each(|users| *users += 1);
        }
        let mut find = |number: usize| {
            let users = users.get_mut(number)?;
            *users -= 1;
            // The last connection gets the descriptor itself, which is not closed here.
            if *users == 0 { all[number].take() } else { all[number].as_ref()?.try_clone().ok() }
        };
        rows.into_iter().filter_map(|row| row.with(&mut find)).collect()
    });
    all.into_iter().flatten().for_each(PassedConnection::end);
    guests
}

/// Takes the ports of guests, which no other gateway uses any more, with the connections `guests`.
pub(crate) fn take(worker: &Handle, guests: Vec<PassedGuest>) {
    // A worker that has ended has no links.
    let _ = worker.call(move |node| take_ports(node, guests));
}

fn take_ports(node: &mut Node, mut guests: Vec<PassedGuest>) {
    for at in 0..node.slots.len() {
        let Some(slot) = &mut node.slots[at] else { continue };
        let name = &slot.config.name;
        // The front end is the socket's, and not the name's.
        let settings = settings_of_slot(slot);
        let passed = guests.iter().position(|guest| Some(&guest.settings) == settings.as_ref());
        let passed = passed.map(|at| guests.swap_remove(at).connection);
        let has_guest = passed.is_some();
        match slot.link.take_guest(passed) {
            Ok(()) if has_guest => tracing::info!("{name}: its guest goes on"),
            Ok(()) => {}
            Err(why) => tracing::warn!("{name}: its guest reconnects: {why}"),
        }
        node.see_carrier(node.now(), PortId(at as u32));
    }
    for PassedGuest { link, connection, .. } in guests {
        tracing::warn!("{link}: its guest reconnects: no link has its socket");
        connection.close();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::pipe::pipe;

    use super::*;

    /// Row of a connection without memory and queues.
    const ROW: &str = "{\"link\":\"vm0\",\"settings\":\"x\",\"descriptors\":[0],\"state\":\
        {\"has_asked\":true,\"features\":null,\"protocol\":0,\"regions\":[],\"queues\":[]}}";

    fn table(text: &str) -> OwnedFd {
        sealed::seal(TABLE, text.as_bytes()).unwrap()
    }

    #[test]
    fn table_of_guests_is_read_back_or_refused() {
        assert_eq!(read(table(&format!("[{ROW},{ROW}]"))).unwrap().len(), 2);
        for damaged in
            ["{}", "[{}]", &ROW[..ROW.len() - 1], &ROW.replace("true", "1"), &ROW.replace("\"protocol\":0,", "")]
        {
            let why = read(table(&format!("[{damaged}]"))).unwrap_err();
            assert!(why.starts_with("it has no guests: "), "{damaged}: {why}");
        }
        assert!(read(pipe().unwrap().0).unwrap_err().starts_with("it is no sealed memory"));
    }

    #[test]
    fn connection_without_all_descriptors_is_closed() {
        let is_open = |socket: &UnixStream| {
            socket.set_nonblocking(true).unwrap();
            std::io::Read::read(&mut &*socket, &mut [0]).is_err_and(|err| err.kind() == std::io::ErrorKind::WouldBlock)
        };
        let two = format!("[{ROW},{}]", ROW.replace("[0]", "[1,2,3]").replace("vm0", "vm1"));
        for (count, of_second, is_kept) in
            [(2, 1, [true, false]), (4, 3, [true, true]), (1, 0, [true, false]), (0, 0, [false; 2])]
        {
            let (first, one) = UnixStream::pair().unwrap();
            let (second, other) = UnixStream::pair().unwrap();
            // Other processes have the sockets still.
            let duplicates = [one.try_clone().unwrap(), other.try_clone().unwrap()];
            let mut all: Vec<OwnedFd> =
                vec![table(&two), one.into(), other.into(), pipe().unwrap().0, pipe().unwrap().1];
            all.truncate(count + 1);
            let guests = with_all(all).unwrap();
            assert_eq!(guests.len(), is_kept.into_iter().filter(|kept| *kept).count(), "{count}");
            assert_eq!(is_open(&first), count == 0 || is_kept[0], "{count}");
            assert_eq!(is_open(&second), of_second == 0 || is_kept[1], "{count}");
            drop(duplicates);
        }
    }

    #[test]
    fn file_of_memory_of_two_guests_is_passed_once() {
        let memory = |name: &str| sealed::seal(name, b"memory").unwrap();
        let (shared, own) = (memory("shared"), memory("own"));
        let guest = |memory: &OwnedFd| {
            let descriptors =
                vec![UnixStream::pair().unwrap().0.into(), memory.try_clone().unwrap(), pipe().unwrap().1];
            let row: GuestRow = serde_json::from_str(ROW).unwrap();
            let connection = PassedConnection::of_descriptors(row.state, descriptors).unwrap();
            PassedGuest { link: row.link, settings: row.settings, connection }
        };
        let guests = [guest(&shared), guest(&own), guest(&shared)];
        let (all, numbers) = number(&guests);
        assert_eq!(numbers, [[0, 1, 2], [3, 4, 5], [6, 1, 7]]);
        // Of the descriptors, two connections get duplicates of one.
        let rows = numbers.iter().map(|own| ROW.replace("[0]", &format!("{own:?}"))).collect::<Vec<_>>().join(",");
        let received = all.iter().map(|fd| fd.try_clone_to_owned().unwrap());
        let received = std::iter::once(table(&format!("[{rows}]"))).chain(received).collect();
        let received = with_all(received).unwrap();
        let inode = |fd: BorrowedFd<'_>| fstat(fd).unwrap().st_ino;
        for (received, sent) in received.iter().zip(&guests) {
            let of = |guest: &PassedGuest| guest.connection.descriptors().map(inode).collect::<Vec<_>>();
            assert_eq!(of(received), of(sent));
        }
        assert_eq!(received.len(), guests.len());
    }
}
