//! Connections of guests that another gateway goes on with: a table in sealed memory, and descriptors.
//!
//! Unlike links they are passed last, by workers that are paused: the indices of rings change with each frame.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::PortId;
use link::vhost::{ConnectionState, PassedConnection};
use serde::{Deserialize, Serialize};

use super::held::PassedGuest;
use crate::command::Handle;
use crate::node::Node;
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
    /// Number of its descriptors.
    pub(super) descriptors: usize,
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
        // A worker that has ended has no links.
        let guests = worker.call(pass).unwrap_or_default();
        if guests.is_empty() {
            return Self::default();
        }
        let row = |PassedGuest { link, connection }: &PassedGuest| {
            let (link, state) = (link.clone(), connection.state.clone());
            GuestRow { link, descriptors: connection.descriptors().count(), state }
        };
        let rows: Vec<GuestRow> = guests.iter().map(row).collect();
        let table = serde_json::to_vec(&rows).map_err(Into::into).and_then(|table| sealed::seal(TABLE, &table));
        match table {
            Ok(table) => Self { guests, table: Some(table) },
            Err(err) => {
                tracing::warn!("guests reconnect: {err}");
                Self::default()
            }
        }
    }

    /// Descriptors of each connection, in the order of the table.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = impl Iterator<Item = BorrowedFd<'_>>> {
        self.guests.iter().map(|guest| guest.connection.descriptors())
    }

    /// The table, and then all descriptors.
    pub(super) fn all(&self) -> Vec<BorrowedFd<'_>> {
        self.table.iter().map(AsFd::as_fd).chain(self.descriptors().flatten()).collect()
    }
}

/// Takes the connections off a node's ports.
fn pass(node: &mut Node) -> Vec<PassedGuest> {
    let mut guests = Vec::new();
    for slot in node.slots.iter_mut().flatten() {
        let link = slot.config.name.clone();
        match slot.link.pass_guest() {
            Ok(Some(connection)) => guests.push(PassedGuest { link, connection }),
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
    /// The connection with these descriptors. Without all of them it is closed.
    pub(super) fn with(self, descriptors: Vec<OwnedFd>) -> Option<PassedGuest> {
        let Self { link, descriptors: count, state } = self;
        let found = descriptors.len();
        let connection = PassedConnection::of_descriptors(state, descriptors);
        if found == count {
            return Some(PassedGuest { link, connection: connection? });
        }
        tracing::warn!("{link}: its guest reconnects: {found} of {count} descriptors were kept");
        connection.into_iter().for_each(PassedConnection::close);
        None
    }
}

/// Connections of a table, which is the first of these descriptors, with the others in the order of the table. What has no row is closed.
///
/// # Errors
/// The reason why there are none.
pub(super) fn with_all(descriptors: Vec<OwnedFd>) -> Result<Vec<PassedGuest>, String> {
    let mut descriptors = descriptors.into_iter();
    let rows = descriptors.next().map_or_else(|| Ok(Vec::new()), read);
    let guests = rows.map(|rows| {
        let with_own = |row: GuestRow| {
            let own = descriptors.by_ref().take(row.descriptors).collect();
            row.with(own)
        };
        rows.into_iter().filter_map(with_own).collect()
    });
    descriptors.for_each(PassedConnection::end);
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
        let passed = guests.iter().position(|guest| guest.link == *name).map(|at| guests.swap_remove(at).connection);
        let has_guest = passed.is_some();
        match slot.link.take_guest(passed) {
            Ok(()) if has_guest => tracing::info!("{name}: its guest goes on"),
            Ok(()) => {}
            Err(why) => tracing::warn!("{name}: its guest reconnects: {why}"),
        }
        node.see_carrier(node.now(), PortId(at as u32));
    }
    for PassedGuest { link, connection } in guests {
        tracing::warn!("{link}: its guest reconnects: no link has this name");
        connection.close();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::pipe::pipe;

    use super::*;

    /// Row of a connection without memory and queues.
    const ROW: &str = "{\"link\":\"vm0\",\"descriptors\":1,\"state\":\
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
        let two = format!("[{ROW},{}]", ROW.replace("\"descriptors\":1", "\"descriptors\":3").replace("vm0", "vm1"));
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
}
