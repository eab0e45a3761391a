//! charon's answers about the tunnels of gateways: its IKE_SAs, and its connections for tunnels without SAs.
//!
//! A tunnel and an SA of charon belong together by outer addresses, and by reqid and SPI; without SAs, by outer addresses and the
//! networks of the connection that the IKE_SA has its name from. The daemon at a pair's own socket is that pair's; the one at the
//! machine's socket is a gateway's if its process runs under `fatpath exec` of that gateway. Nothing else is shown. All requests
//! only read.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use super::gateway::GatewayStatus;
use super::ike::{IkeState, IkeStatus};
use super::tunnel::TunnelStatus;
use super::vici::{Element, Elements, Vici, ViciError};
use crate::pair::PairFiles;
use base::Prefix;
use client::gateway_program::gateway_of_process;
use client::netlink_path;

/// Time limit for the answers of all daemons, which are asked at once.
const LIMIT: Duration = Duration::from_secs(1);
/// Socket of a charon with strongSwan's default settings.
const MACHINES_SOCKET: &str = "/run/charon.vici";
/// Most SAs, connections, addresses and networks that an answer may have.
const MAX_ITEMS: usize = 100_000;

/// Daemon that may manage the SAs of a gateway.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Daemon {
    /// The daemon of a pair, whose socket is beside the gateway's.
    Pairs(PathBuf),
    /// The daemon at the machine's socket, which may be of this gateway or not.
    Machines,
}

impl Daemon {
    /// Daemon of the gateway `name`, whose control socket is at `control`.
    fn of(name: &str, control: &Path) -> Self {
        let socket = control.with_extension("vici");
        let has_files = || PairFiles::of(name).is_ok_and(|files| files.ike().join("swanctl.conf").is_file());
        if fs::symlink_metadata(&socket).is_ok() || has_files() { Self::Pairs(socket) } else { Self::Machines }
    }

    fn socket(&self) -> &Path {
        match self {
            Self::Pairs(socket) => socket,
            Self::Machines => Path::new(MACHINES_SOCKET),
        }
    }
}

/// Adds charon's part to the tunnels of gateways, given with the paths of their control sockets.
pub(super) fn add(gateways: &mut [(GatewayStatus, PathBuf)]) {
    let deadline = Instant::now() + LIMIT;
    let daemons: Vec<Daemon> = gateways.iter().map(|(status, path)| Daemon::of(&status.name, path)).collect();
    let netlinks: Vec<PathBuf> = gateways.iter().map(|(status, _)| netlink_path(&status.name)).collect();
    let mut asked: Vec<&Daemon> = Vec::new();
    for ((status, _), daemon) in gateways.iter().zip(&daemons) {
        if !status.tunnels.is_empty() && !asked.contains(&daemon) {
            asked.push(daemon);
        }
    }
    let answers: Vec<(&Daemon, Answer)> = thread::scope(|scope| {
        let netlinks = &netlinks;
        let start = |daemon| {
            let ask = move || Answer::ask(daemon, netlinks, deadline);
            thread::Builder::new().spawn_scoped(scope, ask).map(|thread| (daemon, thread))
        };
        // All are started before the first one is waited for.
        let started: Vec<_> = asked.into_iter().flat_map(start).collect();
        started.into_iter().filter_map(|(daemon, thread)| Some((daemon, thread.join().ok()?))).collect()
    });
    for (((status, _), daemon), netlink) in gateways.iter_mut().zip(&daemons).zip(&netlinks) {
        let Some((_, answer)) = answers.iter().find(|(of, _)| of == &daemon) else { continue };
        for tunnel in &mut status.tunnels {
            answer.apply(tunnel, &status.name, daemon, netlink);
        }
    }
}

/// Answer of a daemon, which is incomplete if there is an error.
#[derive(Debug, Default)]
struct Answer {
    /// Netlink socket of the gateway that the process belongs to; not asked for at a pair's socket.
    gateway: Option<PathBuf>,
    sas: Vec<IkeSa>,
    connections: Vec<Connection>,
    error: Option<AnswerError>,
}

/// Reasons for an incomplete answer.
#[derive(Debug)]
enum AnswerError {
    Vici(ViciError),
    /// The environment of the process cannot be read, so its gateway is not known.
    Owner(io::Error),
    /// The process belongs to none of the gateways.
    Foreign,
}

impl Answer {
    /// Asks a daemon. That of the machine is asked only if it belongs to a gateway with one of these netlink sockets.
    fn ask(daemon: &Daemon, netlinks: &[PathBuf], deadline: Instant) -> Self {
        let mut answer = Self::default();
        answer.error = answer.fill(daemon, netlinks, deadline).err();
        answer
    }

    fn fill(&mut self, daemon: &Daemon, netlinks: &[PathBuf], deadline: Instant) -> Result<(), AnswerError> {
        let mut vici = Vici::connect(daemon.socket(), deadline).map_err(AnswerError::Vici)?;
        if *daemon == Daemon::Machines {
            let found = vici.peer_pid().and_then(gateway_of_process).map_err(AnswerError::Owner)?;
            self.gateway = netlinks.iter().find(|its| found.as_ref().is_some_and(|of| is_same(of, its))).cloned();
            if self.gateway.is_none() {
                return Err(AnswerError::Foreign);
            }
        }
        let mut items = 0;
        let sas = &mut self.sas;
        let listed = vici.stream("list-sas", "list-sa", |message| IkeSa::read(message, sas, &mut items));
        listed.map_err(AnswerError::Vici)?;
        let connections = &mut self.connections;
        let listed =
            vici.stream("list-conns", "list-conn", |message| Connection::read(message, connections, &mut items));
        listed.map_err(AnswerError::Vici)
    }

    /// Sets the state of IKE of a tunnel of the gateway `name`, or the reason why it is not known if the tunnel needs SAs.
    fn apply(&self, tunnel: &mut TunnelStatus, name: &str, daemon: &Daemon, netlink: &Path) {
        let is_own = matches!(daemon, Daemon::Pairs(_)) || self.gateway.as_deref() == Some(netlink);
        if is_own && let Some((ike, rekey_secs)) = self.ike(tunnel) {
            if tunnel.keying.needs_sas {
                tunnel.explain("no SA yet");
            }
            tunnel.rekey_secs = rekey_secs.or(tunnel.rekey_secs);
            tunnel.ike = Some(ike);
            return;
        }
        let keying = &tunnel.keying;
        let is_expected = keying.has_open_policy || keying.is_larval || matches!(daemon, Daemon::Pairs(_));
        if tunnel.keying.needs_sas && is_expected {
            tunnel.charon = self.why_unknown(tunnel, name, daemon, is_own);
        }
    }

    /// Reason for which nothing is known of a tunnel without SAs.
    fn why_unknown(&self, tunnel: &TunnelStatus, name: &str, daemon: &Daemon, is_own: bool) -> Option<String> {
        let error = match (&self.error, is_own) {
            (None | Some(AnswerError::Foreign), false) => {
                return Some(format!("the one at {MACHINES_SOCKET} is not of this gateway"));
            }
            (Some(AnswerError::Owner(err)), _) => {
                return Some(format!("its gateway is not known, as its environment cannot be read: {err}"));
            }
            (None | Some(AnswerError::Foreign), true) => {
                let may_have = |connection: &Connection| connection.may_have(tunnel.local, tunnel.keying.peer);
                let has_none = !self.connections.iter().any(may_have);
                let peer = tunnel.keying.peer;
                return has_none.then(|| format!("no connection to {peer} is loaded; swanctl --load-all loads it"));
            }
            (Some(AnswerError::Vici(error)), _) => error,
        };
        Some(match (error, daemon) {
            (ViciError::NotRunning, Daemon::Pairs(_)) => format!("not running; fatpath up {name} starts it"),
            (ViciError::NotRunning, Daemon::Machines) => format!("not running at {MACHINES_SOCKET}"),
            (error, _) => error.to_string(),
        })
    }

    /// State of IKE of a tunnel, and the seconds until its CHILD_SA is rekeyed.
    fn ike(&self, tunnel: &TunnelStatus) -> Option<(IkeStatus, Option<u64>)> {
        let own = || self.sas.iter().filter(|sa| sa.is_between(tunnel));
        // By reqid and SPI.
        let of_tunnel = |sa: &&IkeSa| sa.children.iter().any(|child| child.is_of(tunnel));
        if let Some(sa) = own().filter(of_tunnel).max_by_key(|sa| sa.state) {
            let children = own().flat_map(|sa| &sa.children).filter(|child| child.is_of(tunnel));
            return Some((sa.status(String::new()), children.filter_map(|child| child.rekey_secs).max()));
        }
        if !tunnel.keying.needs_sas {
            return None;
        }
        // By the connection and its networks.
        let has_networks = |connection: &&Connection| connection.has_networks(tunnel);
        let mut connections = self.connections.iter().filter(has_networks);
        let of_connection = |sa: &&IkeSa| connections.clone().any(|connection| connection.name == sa.name);
        if let Some(sa) = own().filter(of_connection).max_by_key(|sa| sa.state) {
            return Some((sa.status(sa.text_without_child(tunnel)), None));
        }
        let has_addresses = |connection: &Connection| connection.has(tunnel.local, tunnel.keying.peer);
        if !connections.any(has_addresses) {
            return None;
        }
        let why =
            if tunnel.keying.is_larval { ": the last attempt has ended; charon's log has the reason" } else { "" };
        let text = format!("{} to {}{why}", IkeState::None.word(), tunnel.keying.peer);
        Some((IkeStatus { state: IkeState::None, text, established_secs: None, rekey_secs: None }, None))
    }
}

/// Whether both paths lead to one file.
fn is_same(a: &Path, b: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    a == b || matches!((file(a), file(b)), (Ok(a), Ok(b)) if a == b)
}

/// IKE_SA of charon. An address that is no address is `None`.
#[derive(Clone, Debug, Eq, PartialEq)]
struct IkeSa {
    /// Name of its connection.
    name: String,
    state: IkeState,
    local: Option<IpAddr>,
    remote: Option<IpAddr>,
    is_initiator: bool,
    /// Whether the peer has answered the first message, so that there are two SPIs.
    is_answered: bool,
    /// Whether a CHILD_SA is being negotiated.
    asks_for_child: bool,
    established_secs: Option<u64>,
    rekey_secs: Option<u64>,
    children: Vec<ChildSa>,
}

/// CHILD_SA of charon.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct ChildSa {
    reqid: u32,
    is_installed: bool,
    spi_in: Option<u32>,
    spi_out: Option<u32>,
    rekey_secs: Option<u64>,
    networks: Networks,
}

impl IkeSa {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: IkeState::Unknown,
            local: None,
            remote: None,
            is_initiator: false,
            is_answered: false,
            asks_for_child: false,
            established_secs: None,
            rekey_secs: None,
            children: Vec::new(),
        }
    }

    /// Reads the message of an event `list-sa`.
    fn read(message: &[u8], sas: &mut Vec<Self>, items: &mut usize) -> Result<(), ViciError> {
        each_element(message, items, |path, element| match (path.sections.as_slice(), element) {
            ([name], Element::SectionStart(_)) => sas.push(Self::new(name)),
            ([_, "child-sas", _], Element::SectionStart(_)) => {
                sas.last_mut().into_iter().for_each(|sa| sa.children.push(ChildSa::default()));
            }
            ([_], Element::KeyValue(key, value)) => {
                sas.last_mut().into_iter().for_each(|sa| sa.set(key, value));
            }
            ([_], Element::ListItem(b"CHILD_CREATE" | b"QUICK_MODE")) => {
                sas.last_mut().into_iter().for_each(|sa| sa.asks_for_child = true);
            }
            ([_, "child-sas", _], _) => {
                let child = sas.last_mut().and_then(|sa| sa.children.last_mut());
                child.into_iter().for_each(|child| child.set(path.list, element));
            }
            _ => {}
        })
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        match key {
            "state" => self.state = IkeState::by_name(value),
            "local-host" => self.local = parsed(value),
            "remote-host" => self.remote = parsed(value),
            "initiator" => self.is_initiator = value == b"yes",
            "responder-spi" => self.is_answered = value.iter().any(|digit| *digit != b'0'),
            "established" => self.established_secs = seconds(value),
            "rekey-time" => self.rekey_secs = seconds(value),
            _ => {}
        }
    }

    /// Whether its addresses are the tunnel's.
    fn is_between(&self, tunnel: &TunnelStatus) -> bool {
        let peers = [Some(tunnel.keying.peer), tunnel.keying.moved_to];
        self.local == Some(tunnel.local) && self.remote.is_some() && peers.contains(&self.remote)
    }

    /// Text about a tunnel that has no SAs.
    fn text_without_child(&self, tunnel: &TunnelStatus) -> String {
        let peer = tunnel.keying.peer;
        match self.state {
            IkeState::Connecting if !self.is_initiator => format!(" from {peer}"),
            IkeState::Connecting if self.is_answered => {
                format!(" to {peer}, which has answered; authentication follows")
            }
            IkeState::Connecting => format!(" to {peer}, no answer yet"),
            IkeState::Established if self.asks_for_child => ", the CHILD_SA is being negotiated".to_owned(),
            IkeState::Established if self.children.iter().any(|child| child.is_lost(tunnel)) => {
                ", but the gateway does not have the SAs that charon has installed; restart charon".to_owned()
            }
            IkeState::Established => ", without a CHILD_SA for these networks; charon's log has the reason".to_owned(),
            _ => String::new(),
        }
    }

    fn status(&self, text: String) -> IkeStatus {
        IkeStatus {
            state: self.state,
            text: format!("{}{text}", self.state.word()),
            established_secs: self.established_secs,
            rekey_secs: self.rekey_secs,
        }
    }
}

impl ChildSa {
    fn set(&mut self, list: Option<&str>, element: Element<'_>) {
        match (list, element) {
            (None, Element::KeyValue(key, value)) => match key {
                "reqid" => self.reqid = parsed(value).unwrap_or(0),
                "state" => self.is_installed = value == b"INSTALLED",
                "spi-in" => self.spi_in = spi(value),
                "spi-out" => self.spi_out = spi(value),
                "rekey-time" => self.rekey_secs = seconds(value),
                _ => {}
            },
            (Some(list), Element::ListItem(value)) => self.networks.add(list, value),
            _ => {}
        }
    }

    /// Whether the tunnel has this SA.
    fn is_of(&self, tunnel: &TunnelStatus) -> bool {
        let keying = &tunnel.keying;
        let has_inbound = self.spi_in.is_some_and(|spi| keying.spis_in.contains(&spi));
        let has_outbound = self.spi_out.is_some_and(|spi| keying.spis_out.contains(&spi));
        self.reqid == tunnel.reqid && (has_inbound || has_outbound)
    }

    /// Whether the SA is installed for the tunnel's networks and is not there.
    fn is_lost(&self, tunnel: &TunnelStatus) -> bool {
        self.is_installed && !self.is_of(tunnel) && self.networks.have(tunnel)
    }
}

/// Connection that is loaded into charon.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Connection {
    name: String,
    local: Vec<Address>,
    remote: Vec<Address>,
    children: Vec<Networks>,
}

/// Address of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Address {
    /// This network; all of a family for `%any4` and `%any6`.
    In(Prefix),
    Any,
    /// A name or a range, which may be any address for this program.
    Other,
}

impl Address {
    fn parse(text: &[u8]) -> Self {
        match text {
            b"%any" => return Self::Any,
            b"%any4" | b"0.0.0.0" => return Self::In(Prefix::containing([0; 4].into(), 0).expect("0 is a length")),
            b"%any6" | b"::" => return Self::In(Prefix::containing([0; 16].into(), 0).expect("0 is a length")),
            _ => {}
        }
        let net = parsed::<IpAddr>(text).map(Prefix::host).or_else(|| parsed(text));
        net.map_or(Self::Other, Self::In)
    }

    fn has(self, address: IpAddr) -> bool {
        match self {
            Self::In(net) => net.contains(address),
            Self::Any => true,
            Self::Other => false,
        }
    }
}

impl Connection {
    /// Reads the message of an event `list-conn`.
    fn read(message: &[u8], connections: &mut Vec<Self>, items: &mut usize) -> Result<(), ViciError> {
        each_element(message, items, |path, element| match (path.sections.as_slice(), element) {
            ([name], Element::SectionStart(_)) => {
                connections.push(Self { name: (*name).to_owned(), ..Self::default() });
            }
            ([_, "children", _], Element::SectionStart(_)) => {
                connections.last_mut().into_iter().for_each(|it| it.children.push(Networks::default()));
            }
            ([_], Element::ListItem(value)) => {
                let Some(connection) = connections.last_mut() else { return };
                match path.list {
                    Some("local_addrs") => connection.local.push(Address::parse(value)),
                    Some("remote_addrs") => connection.remote.push(Address::parse(value)),
                    _ => {}
                }
            }
            ([_, "children", _], Element::ListItem(value)) => {
                let child = connections.last_mut().and_then(|it| it.children.last_mut());
                child.into_iter().for_each(|child| child.add(path.list.unwrap_or_default(), value));
            }
            _ => {}
        })
    }

    /// Whether it is between these addresses.
    fn has(&self, local: IpAddr, remote: IpAddr) -> bool {
        let has = |addresses: &[Address], one| addresses.iter().any(|address| address.has(one));
        has(&self.local, local) && has(&self.remote, remote)
    }

    /// Whether it may be between these addresses.
    fn may_have(&self, local: IpAddr, remote: IpAddr) -> bool {
        let may = |addresses: &[Address], one| {
            addresses.is_empty() || addresses.iter().any(|address| *address == Address::Other || address.has(one))
        };
        may(&self.local, local) && may(&self.remote, remote)
    }

    fn has_networks(&self, tunnel: &TunnelStatus) -> bool {
        self.children.iter().any(|child| child.have(tunnel))
    }
}

/// Traffic selectors: networks of this end and of the peer. `None` is the outer address of the end. Ranges are left out.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Networks {
    local: Vec<Option<Prefix>>,
    remote: Vec<Option<Prefix>>,
}

impl Networks {
    /// Adds an item of a list.
    fn add(&mut self, list: &str, value: &[u8]) {
        let networks = match list {
            "local-ts" => &mut self.local,
            "remote-ts" => &mut self.remote,
            _ => return,
        };
        // A protocol and ports may follow in brackets.
        let address = value.split(|byte| *byte == b'[').next().unwrap_or_default();
        match parsed::<Prefix>(address) {
            Some(network) => networks.push(Some(network)),
            None if address == b"dynamic" => networks.push(None),
            None => {}
        }
    }

    /// Whether a policy of the tunnel is from one of these networks to another.
    fn have(&self, tunnel: &TunnelStatus) -> bool {
        let has = |networks: &[Option<Prefix>], outer, network| {
            networks.iter().any(|its| its.unwrap_or_else(|| Prefix::host(outer)) == network)
        };
        tunnel.keying.networks.iter().any(|(local, remote)| {
            has(&self.local, tunnel.local, *local) && has(&self.remote, tunnel.keying.peer, *remote)
        })
    }
}

/// Sections and the list around an element. [`Elements`] limits its depth.
#[derive(Debug, Default)]
struct SectionPath<'a> {
    sections: Vec<&'a str>,
    list: Option<&'a str>,
}

impl<'a> SectionPath<'a> {
    /// Enters a section or list at its start, and leaves it at its end.
    fn follow(&mut self, element: Element<'a>) {
        match element {
            Element::SectionStart(name) => self.sections.push(name),
            Element::SectionEnd => {
                self.sections.pop();
            }
            Element::ListStart(name) => self.list = Some(name),
            Element::ListEnd => self.list = None,
            Element::KeyValue(..) | Element::ListItem(_) => {}
        }
    }
}

/// Passes the elements of a message to `each`, with the sections and the list that each is in.
fn each_element<'a>(
    message: &'a [u8],
    items: &mut usize,
    mut each: impl FnMut(&SectionPath<'a>, Element<'a>),
) -> Result<(), ViciError> {
    let mut path = SectionPath::default();
    for element in Elements::new(message) {
        let element = element?;
        path.follow(element);
        count(element, items)?;
        each(&path, element);
    }
    Ok(())
}

/// Counts the elements that may take memory.
fn count(element: Element<'_>, items: &mut usize) -> Result<(), ViciError> {
    if matches!(element, Element::SectionStart(_) | Element::ListItem(_)) {
        *items += 1;
    }
    if *items > MAX_ITEMS { Err(ViciError::TooLarge) } else { Ok(()) }
}

fn parsed<T: FromStr>(value: &[u8]) -> Option<T> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn spi(value: &[u8]) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(value).ok()?, 16).ok()
}

/// Seconds from or until now; a time that is past is now.
fn seconds(value: &[u8]) -> Option<u64> {
    parsed::<i64>(value).map(|secs| secs.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::super::vici::build::{list, section, value};
    use super::*;

    const NETS: [&str; 2] = ["10.1.0.0/24", "10.2.0.0/24"];

    /// A tunnel to 192.0.2.2 without SAs.
    fn tunnel(reqid: u32, nets: [&str; 2]) -> TunnelStatus {
        let mut tunnel = TunnelStatus::of_peer("192.0.2.2", reqid);
        tunnel.keying.networks = vec![(nets[0].parse().unwrap(), nets[1].parse().unwrap())];
        tunnel.keying.has_open_policy = true;
        tunnel
    }

    /// The same with SAs.
    fn keyed(reqid: u32, spi_in: u32, spi_out: u32) -> TunnelStatus {
        let mut tunnel = tunnel(reqid, NETS);
        tunnel.keying.spis_in = vec![spi_in];
        tunnel.keying.spis_out = vec![spi_out];
        tunnel.keying.needs_sas = false;
        tunnel.why = None;
        tunnel
    }

    fn child(reqid: &str, state: &str, rekey: &str) -> Vec<u8> {
        section(
            "net-3",
            &[
                value("reqid", reqid),
                value("state", state),
                value("spi-in", "c0000001"),
                value("spi-out", "c0000002"),
                value("rekey-time", rekey),
                list("local-ts", &["10.1.0.0/24"]),
                list("remote-ts", &["10.2.0.0/24[tcp/80]", "10.4.0.1..10.4.0.9"]),
            ],
        )
    }

    fn ike_sa(state: &str, remote: &str, more: &[Vec<u8>], children: &[Vec<u8>]) -> Vec<u8> {
        let own = [value("state", state), value("local-host", "192.0.2.1"), value("remote-host", remote)];
        section("net", &[own.concat(), more.concat(), section("child-sas", children)])
    }

    fn connection(remote: &str, local_ts: &str) -> Vec<u8> {
        let child = section("net", &[list("local-ts", &[local_ts]), list("remote-ts", &["10.2.0.0/24"])]);
        let addresses = [list("local_addrs", &["%any"]), list("remote_addrs", &[remote])];
        section("net", &[addresses.concat(), section("children", &[child])])
    }

    fn answer(sas: &[Vec<u8>], connections: &[Vec<u8>]) -> Answer {
        let mut answer = Answer::default();
        for message in sas {
            IkeSa::read(message, &mut answer.sas, &mut 0).unwrap();
        }
        for message in connections {
            Connection::read(message, &mut answer.connections, &mut 0).unwrap();
        }
        answer
    }

    fn pairs() -> Daemon {
        Daemon::Pairs(PathBuf::from("/nowhere/site.vici"))
    }

    /// The tunnel with what a pair's daemon tells.
    fn applied(mut tunnel: TunnelStatus, answer: &Answer) -> TunnelStatus {
        answer.apply(&mut tunnel, "site", &pairs(), Path::new("/nowhere/site.netlink"));
        tunnel
    }

    fn text(tunnel: &TunnelStatus) -> Option<&str> {
        tunnel.ike.as_ref().map(|ike| ike.text.as_str())
    }

    #[test]
    fn tunnel_with_sas_is_matched_by_addresses_reqid_and_spi() {
        let times = [value("established", "7"), value("rekey-time", "9000"), list("tasks-queued", &["IKE_DPD"])];
        let sas = [ike_sa("ESTABLISHED", "192.0.2.2", &times, &[child("5", "INSTALLED", "3000")])];
        let answer = answer(&sas, &[]);
        let found = applied(keyed(5, 0xc000_0001, 0xc000_0002), &answer);
        let ike = found.ike.unwrap();
        assert_eq!((ike.state, ike.text.as_str()), (IkeState::Established, "established"));
        assert_eq!((ike.established_secs, ike.rekey_secs, found.rekey_secs), (Some(7), Some(9000), Some(3000)));
        // One SPI is enough while SAs change.
        assert!(applied(keyed(5, 1, 0xc000_0002), &answer).ike.is_some());
        // Another reqid, other SPIs, another peer.
        assert_eq!(applied(keyed(6, 0xc000_0001, 0xc000_0002), &answer).ike, None);
        let other = applied(keyed(5, 1, 2), &answer);
        assert_eq!((other.ike, other.charon), (None, None), "nothing is said of a tunnel that works");
        let mut moved = keyed(5, 0xc000_0001, 0xc000_0002);
        moved.keying.peer = "192.0.2.3".parse().unwrap();
        assert_eq!(applied(moved.clone(), &answer).ike, None);
        moved.keying.moved_to = Some("192.0.2.2".parse().unwrap());
        assert!(applied(moved, &answer).ike.is_some());
    }

    #[test]
    fn tunnel_without_sas_is_matched_by_addresses_and_networks() {
        let own = [connection("192.0.2.2", NETS[0])];
        let sa = |state: &str, more: &[Vec<u8>]| ike_sa(state, "192.0.2.2", more, &[]);
        let answered = |spi: &str| [value("initiator", "yes"), value("responder-spi", spi)];
        let asks = [list("tasks-active", &["CHILD_CREATE"])];
        let lost = ike_sa("ESTABLISHED", "192.0.2.2", &[], &[child("5", "INSTALLED", "-3")]);
        for (sa, want) in [
            (sa("CONNECTING", &answered("0000000000000000")), "connecting to 192.0.2.2, no answer yet"),
            (
                sa("CONNECTING", &answered("00000000000000a0")),
                "connecting to 192.0.2.2, which has answered; authentication follows",
            ),
            (sa("CONNECTING", &[]), "connecting from 192.0.2.2"),
            (sa("ESTABLISHED", &asks), "established, the CHILD_SA is being negotiated"),
            (sa("ESTABLISHED", &[]), "established, without a CHILD_SA for these networks; charon's log has the reason"),
            (lost, "established, but the gateway does not have the SAs that charon has installed; restart charon"),
            (sa("NEW STATE\x1b[2J", &[]), "in a state that fatpath does not know"),
        ] {
            let found = applied(tunnel(0, NETS), &answer(&[sa], &own));
            assert_eq!((text(&found), found.why.as_deref()), (Some(want), Some("no SA yet")));
        }
        let connecting = sa("CONNECTING", &[]);
        // Other networks, another connection, another peer.
        let with = |connections: &[Vec<u8>], sa: &Vec<u8>| answer(std::slice::from_ref(sa), connections);
        assert_eq!(applied(tunnel(0, ["10.9.0.0/24", NETS[1]]), &with(&own, &connecting)).ike, None);
        assert_eq!(applied(tunnel(0, NETS), &with(&[connection("192.0.2.2", "10.9.0.0/24")], &connecting)).ike, None);
        let elsewhere = ike_sa("CONNECTING", "192.0.2.7", &[], &[]);
        let found = applied(tunnel(0, NETS), &with(&own, &elsewhere));
        assert_eq!(
            text(&found),
            Some("not connected to 192.0.2.2: the last attempt has ended; charon's log has the reason")
        );
        // The outer addresses of a host-to-host connection.
        let found =
            applied(tunnel(0, ["192.0.2.1/32", NETS[1]]), &with(&[connection("192.0.2.2", "dynamic")], &connecting));
        assert_eq!(text(&found), Some("connecting from 192.0.2.2"));
    }

    #[test]
    fn missing_connection_is_named_only_if_it_is_certain() {
        let none = Some("no connection to 192.0.2.2 is loaded; swanctl --load-all loads it");
        for (connections, want) in [
            (vec![], none),
            (vec![connection("192.0.2.7", NETS[0])], none),
            (vec![connection("198.51.100.0/24", NETS[0])], none),
            (vec![connection("%any6", NETS[0])], none),
            (vec![connection("peer.example", "10.9.0.0/24")], None),
            (vec![connection("192.0.2.1-192.0.2.9", "10.9.0.0/24")], None),
            (vec![connection("%any", "10.9.0.0/24")], None),
            (vec![connection("192.0.2.0/24", "10.9.0.0/24")], None),
        ] {
            let found = applied(tunnel(0, NETS), &answer(&[], &connections));
            assert_eq!((found.ike, found.charon.as_deref()), (None, want), "{connections:?}");
            assert!(found.why.unwrap().contains("a key manager"));
        }
    }

    #[test]
    fn absent_daemon_is_named_for_tunnels_that_need_it() {
        let failed = |error| Answer { error: Some(error), ..Answer::default() };
        let ended = failed(AnswerError::Vici(ViciError::NotRunning));
        let found = applied(tunnel(0, NETS), &ended);
        assert_eq!(found.charon.as_deref(), Some("not running; fatpath up site starts it"));
        assert_eq!(applied(keyed(5, 1, 2), &ended).charon, None);
        let of_machine = |mut tunnel: TunnelStatus, answer: &Answer| {
            answer.apply(&mut tunnel, "left", &Daemon::Machines, Path::new("/nowhere/left.netlink"));
            tunnel.charon
        };
        let mut of_static_keys = tunnel(5, NETS);
        of_static_keys.keying.has_open_policy = false;
        // A key manager was asked before it was killed.
        assert!(of_machine(of_static_keys.clone(), &ended).is_some());
        of_static_keys.keying.is_larval = false;
        assert_eq!(of_machine(of_static_keys, &ended), None);
        let of = |error| of_machine(tunnel(0, NETS), &failed(error)).unwrap();
        assert_eq!(of(AnswerError::Vici(ViciError::NotRunning)), "not running at /run/charon.vici");
        assert_eq!(of(AnswerError::Vici(ViciError::NoAccess)), "no access to its socket, which is root's");
        assert_eq!(of(AnswerError::Vici(ViciError::TimedOut)), "no complete answer in time");
        assert_eq!(of(AnswerError::Foreign), "the one at /run/charon.vici is not of this gateway");
        // SAs of another gateway's daemon are not shown.
        let mut other = answer(&[ike_sa("CONNECTING", "192.0.2.2", &[], &[])], &[connection("192.0.2.2", NETS[0])]);
        other.gateway = Some(PathBuf::from("/nowhere/right.netlink"));
        assert_eq!(of_machine(tunnel(0, NETS), &other).unwrap(), "the one at /run/charon.vici is not of this gateway");
        other.gateway = Some(PathBuf::from("/nowhere/left.netlink"));
        assert_eq!(of_machine(tunnel(0, NETS), &other), None);
    }

    #[test]
    fn damaged_answers_are_errors_or_other_values() {
        let message = ike_sa("ESTABLISHED", "192.0.2.2", &[], &[child("5", "INSTALLED", "3000")]);
        let connection = connection("192.0.2.2", NETS[0]);
        for message in [&message, &connection] {
            for at in 0..message.len() {
                for value in [0, 1, 2, 4, 6, 0x7f, 0xff] {
                    let mut damaged = message.clone();
                    damaged[at] = value;
                    let _ = IkeSa::read(&damaged, &mut Vec::new(), &mut 0);
                    let _ = Connection::read(&damaged, &mut Vec::new(), &mut 0);
                }
                assert!(IkeSa::read(&message[..at], &mut Vec::new(), &mut 0).is_err() || at == 0);
            }
        }
        let mut sas = Vec::new();
        let mut items = 0;
        let many = section("a", &[]).repeat(MAX_ITEMS + 1);
        assert!(matches!(IkeSa::read(&many, &mut sas, &mut items), Err(ViciError::TooLarge)));
        assert!(sas.len() <= MAX_ITEMS);
        assert_eq!(seconds(b"-9223372036854775808"), Some(0));
        assert_eq!((seconds(b"99999999999999999999"), spi(b"+c0000001x"), spi(b"1c0000001")), (None, None, None));
    }
}
