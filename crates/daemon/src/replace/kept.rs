//! Links, sockets and guests of a gateway that ends in order, which the service manager keeps for the next start. Frames, datagrams and
//! connections wait in them meanwhile.
//!
//! Each descriptor has a name of its own in the manager's store, as its order is the manager's. A table in sealed memory has the links.
//! They stay in the store until the next gateway runs: a start that fails loses none. Connections of guests stay until the next
//! gateway serves their rings, whose numbers count once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use link::vhost::PassedConnection;
use serde::{Deserialize, Serialize};

use super::duplicates;
use super::guests::{self, GuestRow, PassedGuests};
use super::held::{self, PassedLink, Socket};
use crate::command::Handle;
use crate::service;
use crate::store::sealed;

/// Name of the table in the store.
const TABLE: &str = "links";

/// Largest table in bytes.
const MAX_TABLE: u64 = 1 << 20;

/// Beginning of the names of links' descriptors in the store.
const LINK: &str = "link-";

/// Beginning of the names of guests' descriptors in the store.
const GUEST: &str = "guest-";

/// Sockets that are kept, with their names in the store.
const SOCKETS: [(Socket, &str); 4] =
    [(Socket::Control, "control"), (Socket::View, "view"), (Socket::Netlink, "netlink"), (Socket::Ike, "ike")];

/// A link in the table.
#[derive(Debug, Deserialize, Serialize)]
struct Row {
    name: String,
    settings: String,
    mtu: usize,
    /// Link-layer address, of a bridge or a guest's port.
    #[serde(default)]
    station: Option<[u8; 6]>,
    descriptors: usize,
}

/// Name of a descriptor of a link.
fn name_of(row: usize, descriptor: usize) -> String {
    format!("{LINK}{row}-{descriptor}")
}

/// Passes the links and sockets of a gateway whose workers are paused to the service manager. Returns whether there is one.
pub(crate) fn store(worker: &Handle, listeners: &[(Socket, OwnedFd)]) -> bool {
    if !service::has_manager() {
        return false;
    }
    // A worker that has ended has no links.
    let links = duplicates::links(worker).unwrap_or_default();
    store_links(links.into_iter().filter(|link| !link.descriptors.is_empty() || link.station.is_some()));
    let ike = duplicates::ike(worker).map(|ike| (Socket::Ike, ike));
    for (socket, descriptor) in listeners
        .iter()
        .map(|(socket, own)| (socket, own.as_fd()))
        .chain(ike.iter().map(|(socket, own)| (socket, own.as_fd())))
    {
        if let Some((_, name)) = SOCKETS.iter().find(|(of, _)| of == socket) {
            service::store_unpolled(name, descriptor);
        }
    }
    store_guests(&PassedGuests::of(worker));
    true
}

/// Passes links to the service manager: their table first, as descriptors are of no use without it.
fn store_links(links: impl Iterator<Item = PassedLink>) {
    let row = |PassedLink { name, settings, mtu, station, descriptors, .. }: PassedLink| {
        (Row { name, settings, mtu, station, descriptors: descriptors.len() }, descriptors)
    };
    let (rows, descriptors): (Vec<Row>, Vec<Vec<OwnedFd>>) = links.map(row).unzip();
    let table = serde_json::to_vec(&rows).map_err(Into::into).and_then(|table| sealed::seal(TABLE, &table));
    match table {
        Ok(table) => drop(service::store(TABLE, table.as_fd())),
        Err(err) => return tracing::warn!("links are not kept over a restart: {err}"),
    }
    for (row, descriptors) in descriptors.iter().enumerate() {
        for (at, descriptor) in descriptors.iter().enumerate() {
            service::store_unpolled(&name_of(row, at), descriptor.as_fd());
        }
    }
}

/// Passes connections of guests to the service manager. Those that it has no room for are closed by the next start.
fn store_guests(guests: &PassedGuests) {
    let Some(table) = &guests.table else { return };
    service::store(guests::TABLE, table.as_fd());
    for (number, descriptor) in guests.descriptors().into_iter().enumerate() {
        service::store_unpolled(&guest_name(number), descriptor);
    }
}

/// Name of a descriptor of guests, by its number among those of all.
fn guest_name(number: usize) -> String {
    format!("{GUEST}{number}")
}

/// Names of what the manager has still.
#[derive(Debug)]
pub(crate) struct KeptNames {
    /// Names of links' descriptors and of sockets, each with that of its link.
    names: Vec<(String, Option<String>)>,
    /// Names of guests' descriptors, and of their table.
    guests: Vec<String>,
}

/// Takes what an earlier gateway has left with the manager. `None`: there is nothing.
pub(crate) fn take() -> Option<KeptNames> {
    let mut names = Vec::new();
    for (socket, name) in SOCKETS {
        if let Some(descriptor) = service::stored(name) {
            held::add_socket(socket, descriptor);
            names.push((name.to_owned(), None));
        }
    }
    if let Some(table) = service::stored(TABLE) {
        match read(table) {
            Ok(rows) => rows.into_iter().enumerate().for_each(|(number, row)| take_link(number, row, &mut names)),
            Err(why) => tracing::warn!("links of the earlier gateway are opened anew: {why}"),
        }
        names.push((TABLE.to_owned(), None));
    }
    end_others(&names);
    let guests = take_guests();
    (!names.is_empty() || !guests.is_empty()).then_some(KeptNames { names, guests })
}

/// Ends what is stored of links that the table, if there is a readable one, does not have. The manager would keep a socket for
/// guests listening, so that its path is in use at each start.
fn end_others(names: &[(String, Option<String>)]) {
    let others = service::stored_names(LINK).into_iter().filter(|other| names.iter().all(|(name, _)| name != other));
    let others: Vec<String> = others.collect();
    others.iter().filter_map(|name| service::stored(name)).for_each(held::end);
    // Devices are free once it has closed them.
    if let Err(err) = remove_all(&others) {
        tracing::warn!("service manager: {err}");
    }
}

/// Takes the connections of guests. Returns the names that the manager has of them.
fn take_guests() -> Vec<String> {
    let mut names = service::stored_names(GUEST);
    let table = service::stored(guests::TABLE);
    let is_missing = table.is_none();
    match table.map_or_else(|| Err("their table was not kept".to_owned()), guests::read) {
        Ok(rows) => {
            let guest = |row: GuestRow| row.with(|number| service::stored(&guest_name(number)));
            rows.into_iter().filter_map(guest).for_each(held::add_guest);
        }
        // There are none.
        Err(_) if is_missing && names.is_empty() => return names,
        Err(why) => {
            tracing::warn!("guests reconnect: {why}");
            // The first descriptor of each is its socket, which the manager has still.
            names.iter().filter_map(|name| service::stored(name)).for_each(PassedConnection::end);
        }
    }
    names.push(guests::TABLE.to_owned());
    names
}

fn read(table: OwnedFd) -> Result<Vec<Row>, String> {
    let bytes = sealed::unseal(table, MAX_TABLE)?;
    serde_json::from_slice(&bytes).map_err(|err| format!("it has no links: {err}"))
}

fn take_link(number: usize, row: Row, names: &mut Vec<(String, Option<String>)>) {
    let Row { name, settings, mtu, station, descriptors } = row;
    let all = (0..descriptors).map_while(|at| {
        let stored = name_of(number, at);
        let descriptor = service::stored(&stored)?;
        names.push((stored, Some(name.clone())));
        Some(descriptor)
    });
    let all: Vec<OwnedFd> = all.collect();
    // The store may have had room for some.
    if all.len() == descriptors {
        // The earlier gateway is gone, so nothing is in the way of opening the link.
        held::add_link(PassedLink { name, settings, resource: String::new(), mtu, station, descriptors: all });
    }
}

impl KeptNames {
    /// Requests that the manager close the descriptors of the links `unused`, whose devices go with them.
    pub(crate) fn remove(&self, unused: &[String]) {
        let Self { names, guests: _ } = self;
        let is_unused = |link: &Option<String>| link.as_ref().is_some_and(|link| unused.contains(link));
        let unused: Vec<&str> =
            names.iter().filter(|(_, link)| is_unused(link)).map(|(name, _)| name.as_str()).collect();
        if let Err(err) = remove_all(&unused) {
            tracing::warn!("service manager: {err}");
        }
    }

    /// Makes the manager close the descriptors of guests: no later start gets them, whose rings have other numbers by then.
    ///
    /// # Errors
    /// The manager does not confirm it.
    pub(crate) fn remove_guests(&mut self) -> io::Result<()> {
        remove_all(&std::mem::take(&mut self.guests))
    }

    /// Asks the manager to close its descriptors. Until then a program that this process executes in
    /// its place [gets them](service::pass_on) again.
    pub(crate) fn release(self) {
        let Self { names, guests: _ } = self;
        names.iter().for_each(|(name, _)| service::release(name));
    }
}

/// Makes the manager close the descriptors of these names.
///
/// # Errors
/// The manager does not confirm it.
fn remove_all(names: &[impl AsRef<str>]) -> io::Result<()> {
    let Some((last, others)) = names.split_last() else { return Ok(()) };
    others.iter().for_each(|name| service::release(name.as_ref()));
    // The manager's confirmation is one for all.
    service::remove(last.as_ref())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn table_of_links_is_read_back_or_refused() {
        let table = |text: &str| sealed::seal(TABLE, text.as_bytes()).unwrap();
        let rows = read(table("[{\"name\":\"wan\",\"settings\":\"x\",\"mtu\":1500,\"descriptors\":2}]")).unwrap();
        assert_eq!((rows.len(), rows[0].name.as_str(), rows[0].descriptors), (1, "wan", 2));
        assert!(read(table("[")).unwrap_err().starts_with("it has no links: "));
        let long = "x".repeat(MAX_TABLE as usize + 1);
        assert!(read(table(&long)).unwrap_err().contains("more than 1 MiB"));
        assert!(read(File::open("/dev/null").unwrap().into()).unwrap_err().starts_with("it is no sealed memory"));
    }
}
