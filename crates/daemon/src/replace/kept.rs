//! Links and sockets of a gateway that ends in order, which the service manager keeps for the next start. Frames, datagrams and
//! connections wait in them meanwhile.
//!
//! Each descriptor has a name of its own in the manager's store, as its order is the manager's. A table in sealed memory has the links.
//! They stay in the store until the next gateway runs: a start that fails loses none.

use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::duplicates;
use super::held::{self, PassedLink, Socket};
use crate::command::Handle;
use crate::service;
use crate::store::sealed;

/// Name of the table in the store.
const TABLE: &str = "links";

/// Largest table in bytes.
const MAX_TABLE: u64 = 1 << 20;

/// Sockets that are kept, with their names in the store.
const SOCKETS: [(Socket, &str); 4] =
    [(Socket::Control, "control"), (Socket::View, "view"), (Socket::Netlink, "netlink"), (Socket::Ike, "ike")];

/// A link in the table.
#[derive(Debug, Deserialize, Serialize)]
struct Row {
    name: String,
    settings: String,
    mtu: usize,
    descriptors: usize,
}

/// Name of a descriptor of a link.
fn name_of(row: usize, descriptor: usize) -> String {
    format!("link-{row}-{descriptor}")
}

/// Passes the links and sockets of a gateway whose workers are paused to the service manager. Returns whether there is one.
pub(crate) fn store(worker: &Handle, listeners: &[(Socket, OwnedFd)]) -> bool {
    if !service::has_manager() {
        return false;
    }
    // A worker that has ended has no links.
    let links = duplicates::links(worker).unwrap_or_default();
    let mut rows = Vec::new();
    for PassedLink { name, settings, mtu, descriptors, .. } in
        links.into_iter().filter(|link| !link.descriptors.is_empty())
    {
        for (at, descriptor) in descriptors.iter().enumerate() {
            service::store_unpolled(&name_of(rows.len(), at), descriptor.as_fd());
        }
        rows.push(Row { name, settings, mtu, descriptors: descriptors.len() });
    }
    let table = serde_json::to_vec(&rows).map_err(Into::into).and_then(|table| sealed::seal(TABLE, &table));
    match table {
        Ok(table) => drop(service::store(TABLE, table.as_fd())),
        Err(err) => tracing::warn!("links are not kept over a restart: {err}"),
    }
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
    true
}

/// Names of what the manager has still, each with that of its link.
#[derive(Debug)]
pub(crate) struct KeptNames(Vec<(String, Option<String>)>);

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
    (!names.is_empty()).then_some(KeptNames(names))
}

fn read(table: OwnedFd) -> Result<Vec<Row>, String> {
    let bytes = sealed::unseal(table, MAX_TABLE)?;
    serde_json::from_slice(&bytes).map_err(|err| format!("it has no links: {err}"))
}

fn take_link(number: usize, row: Row, names: &mut Vec<(String, Option<String>)>) {
    let Row { name, settings, mtu, descriptors } = row;
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
        held::add_link(PassedLink { name, settings, resource: String::new(), mtu, descriptors: all });
    }
}

impl KeptNames {
    /// Requests that the manager close the descriptors of the links `unused`, whose devices go with them.
    pub(crate) fn remove(&self, unused: &[String]) {
        let Self(names) = self;
        let is_unused = |link: &Option<String>| link.as_ref().is_some_and(|link| unused.contains(link));
        let unused: Vec<&str> =
            names.iter().filter(|(_, link)| is_unused(link)).map(|(name, _)| name.as_str()).collect();
        let Some((last, others)) = unused.split_last() else { return };
        others.iter().for_each(|name| service::release(name));
        // The manager's confirmation is one for all.
        if let Err(err) = service::remove(last) {
            tracing::warn!("service manager: {err}");
        }
    }

    /// Asks the manager to close its descriptors. Until then a program that this process executes in
    /// its place [gets them](service::pass_on) again.
    pub(crate) fn release(self) {
        let Self(names) = self;
        names.iter().for_each(|(name, _)| service::release(name));
    }
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
