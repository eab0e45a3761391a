//! `fatpath pair`: two ends of a tunnel exchange a line each, and the tunnel is up.
//!
//! The first call of an end makes its key and prints its line. A call with the peer's line writes the files of the gateway and
//! of IKE, which are the user's from then on, and starts both.

mod base64;
mod files;
mod keys;
mod line;

use std::net::{IpAddr, UdpSocket};
use std::process::{Command, Stdio};

use base::Prefix;
use client::{CliError, print, system_ip};
use serde_json::Value;

use crate::cli::PairArgs;
use crate::up;

pub(crate) use files::{CONF_DIR, PairFiles, vici_socket};
use line::{MAX_NETS, PairLine};

/// UDP port of ESP and IKE (RFC 3948).
const PORT: u16 = 4500;

/// Makes this end's line, or joins the peer's, and prints what to do next.
///
/// # Errors
/// The line is wrong, the name is in use for something else, networks or addresses are in conflict, files cannot be written, or the
/// tunnel does not start.
pub(crate) fn main(args: &PairArgs) -> Result<(), CliError> {
    let name = &args.name;
    let files = PairFiles::of(name)?;
    let peer = args.line.as_deref().map(PairLine::parse).transpose();
    let peer = peer.map_err(|why| CliError::failed(format!("{name}: {why}.")))?;
    let (own, is_new) = match files.own_line()? {
        Some(own) => (check_own(args, &files, own)?, None),
        None => {
            let (own, private) = create(args, &files, peer.as_ref())?;
            (own, Some(private))
        }
    };
    let addresses = addresses_in(&own);
    match &peer {
        Some(peer) => {
            check_peer(name, &files, &own, peer)?;
            files.check(&own, peer, &addresses)?;
            up::check_ike_programs()?;
        }
        None => files.check(&own, &stand_in(&own), &addresses)?,
    }
    if let Some(private) = &is_new {
        files.create(&own, private)?;
    }
    let Some(peer) = peer else {
        return print(own_text(name, &own).as_bytes());
    };
    if files.is_joined() {
        print(format!("{name}: the files are there and yours; nothing was changed in them\n").as_bytes())?;
    } else {
        files.add_peer(&own, &peer, &addresses)?;
    }
    // The other end needs the line, also if this one does not start at once.
    print(joined_text(name, &own, &peer).as_bytes())?;
    up::up(name)
}

/// A peer that stands in for the one that is not known yet, so that this end's part can be checked.
fn stand_in(own: &PairLine) -> PairLine {
    let is_v4 = own.address.is_ipv4();
    let addresses: [IpAddr; 2] = if is_v4 {
        [[198, 51, 100, 254].into(), [198, 51, 100, 253].into()]
    } else {
        [[0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1].into(), [0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 2].into()]
    };
    let address = if addresses[0] == own.address { addresses[1] } else { addresses[0] };
    // Networks of documentation and benchmarks (RFC 5737, RFC 2544, RFC 3849), one of each family that this end has.
    let candidates: Vec<Prefix> = ["203.0.113.0/24", "198.18.0.0/24", "2001:db8:fffe::/48", "2001:db8:fffd::/48"]
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect();
    let fits = |net: &&Prefix| !own.nets.iter().any(|its| overlap(*its, **net));
    let of = |v4: bool| candidates.iter().filter(move |net| net.is_ipv4() == v4).find(fits).copied();
    let nets = [true, false].into_iter().filter(|v4| own.nets.iter().any(|net| net.is_ipv4() == *v4)).filter_map(of);
    PairLine { key: [0; 32], address, port: PORT, nets: nets.collect() }
}

/// Whether two networks have addresses in common.
fn overlap(a: Prefix, b: Prefix) -> bool {
    a.is_ipv4() == b.is_ipv4() && (a.contains(b.addr()) || b.contains(a.addr()))
}

/// Checks the arguments against the line that this end has.
fn check_own(args: &PairArgs, files: &PairFiles, own: PairLine) -> Result<PairLine, CliError> {
    let name = &args.name;
    let differs = !args.net.is_empty() && args.net != own.nets || args.endpoint.is_some_and(|it| it != own.address);
    if differs {
        return Err(CliError::failed(format!(
            "{name} exists, with {} at {}; use another name, or remove {} to begin anew.",
            names(&own.nets),
            own.address,
            files.ike().display()
        )));
    }
    Ok(own)
}

/// A line for this end, and its private key.
fn create(
    args: &PairArgs,
    files: &PairFiles,
    peer: Option<&PairLine>,
) -> Result<(PairLine, zeroize::Zeroizing<String>), CliError> {
    let name = &args.name;
    if name.contains('.') {
        return Err(CliError::failed(format!(
            "{name}: strongSwan has no connection with a dot in its name; use another name."
        )));
    }
    if files.toml().exists() {
        return Err(CliError::failed(format!(
            "{name} exists: {} is there; use another name, or remove it.",
            files.toml().display()
        )));
    }
    if args.net.is_empty() {
        return Err(CliError::failed(format!(
            "{name}: --net is needed: the networks behind this end, as in --net 10.1.0.0/24."
        )));
    }
    if args.net.len() > MAX_NETS {
        return Err(CliError::failed(format!("{name}: {} networks; a line has room for {MAX_NETS}.", args.net.len())));
    }
    let address = match args.endpoint {
        Some(address) => address,
        None => source_address(peer.map(|peer| peer.address)).ok_or_else(|| {
            let why = match peer {
                Some(peer) => format!("no route leads to the peer, {}; add one", peer.address),
                None => {
                    "without a default route, the address that the peer reaches is unknown: add the route".to_owned()
                }
            };
            CliError::failed(format!("{name}: {why}, or name this end's address: --endpoint ADDRESS."))
        })?,
    };
    // The gateway's socket has this address.
    if UdpSocket::bind((address, 0)).is_err_and(|err| err.kind() == std::io::ErrorKind::AddrNotAvailable) {
        return Err(CliError::failed(format!(
            "{name}: this host has no address {address}; use one that it has: --endpoint ADDRESS."
        )));
    }
    for (other, its) in files.others() {
        if its.own_line()?.is_some_and(|line| (line.address, line.port) == (address, PORT)) {
            return Err(CliError::failed(format!(
                "{name}: {address} port {PORT} is that of tunnel {other}, and one gateway has a port; add the tunnel to {}, or use \
                 another address: --endpoint ADDRESS.",
                its.toml().display()
            )));
        }
    }
    let (private, key) = keys::generate()?;
    Ok((PairLine { key, address, port: PORT, nets: args.net.clone() }, private))
}

/// Address that this host sends from to `peer`, or by its default route.
fn source_address(peer: Option<IpAddr>) -> Option<IpAddr> {
    // No packet is sent. The default addresses are of documentation (RFC 5737, RFC 3849).
    let targets: Vec<IpAddr> = match peer {
        Some(peer) => vec![peer],
        None => ["203.0.113.1", "2001:db8::1"].iter().filter_map(|text| text.parse().ok()).collect(),
    };
    targets.into_iter().find_map(|target| {
        let any: IpAddr = if target.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((target, PORT)).ok()?;
        socket.local_addr().ok().map(|own| own.ip()).filter(|own| !own.is_unspecified() && !own.is_loopback())
    })
}

/// Addresses of this host in the networks of its end, the first one of each family. Without them the host's own packets to the
/// peer's networks would have the outer address as their source, which no policy of the tunnel has.
fn addresses_in(own: &PairLine) -> Vec<IpAddr> {
    let output = system_ip().ok().and_then(|ip| {
        let mut command = Command::new(ip);
        command.args(["-json", "addr", "show", "scope", "global"]).stdin(Stdio::null()).output().ok()
    });
    output.map(|output| addresses_of(&output.stdout, own)).unwrap_or_default()
}

/// The same, in the output of `ip -json addr`.
fn addresses_of(json: &[u8], own: &PairLine) -> Vec<IpAddr> {
    let links: Value = serde_json::from_slice(json).unwrap_or_default();
    let links = links.as_array().map(Vec::as_slice).unwrap_or_default();
    let infos = links.iter().filter_map(|link| link["addr_info"].as_array()).flatten();
    let addresses = infos.filter_map(|info| info["local"].as_str()?.parse::<IpAddr>().ok());
    let mut found: Vec<IpAddr> = Vec::new();
    for address in addresses.filter(|address| *address != own.address) {
        // A network of one host is that address by itself.
        let is_inside = own.nets.iter().any(|net| !net.is_host() && net.contains(address));
        if is_inside && !found.iter().any(|other| other.is_ipv4() == address.is_ipv4()) {
            found.push(address);
        }
    }
    found
}

/// Refuses a peer's line that does not fit this end.
fn check_peer(name: &str, files: &PairFiles, own: &PairLine, peer: &PairLine) -> Result<(), CliError> {
    let refuse = |why: String| Err(CliError::failed(format!("{name}: {why}.")));
    if peer.key == own.key {
        return refuse("this is this end's own line; use the one that the peer prints".to_owned());
    }
    if peer.port != PORT {
        return refuse(format!("the peer has port {}; this program makes tunnels to port {PORT} alone", peer.port));
    }
    if peer.address == own.address {
        return refuse(format!("both ends have the address {}; name the right one: --endpoint ADDRESS", own.address));
    }
    if peer.address.is_ipv4() != own.address.is_ipv4() {
        return refuse(format!("{} and {} are not of one family; use --endpoint ADDRESS", own.address, peer.address));
    }
    if let Some(known) = files.peer_line()?
        && known != *peer
    {
        return refuse(format!("the tunnel has another peer, with {} at {}", names(&known.nets), known.address));
    }
    for net in &peer.nets {
        // Everything else may be behind the peer.
        if let Some(own) = own.nets.iter().find(|own| net.len() > 0 && overlap(**own, *net)) {
            return refuse(format!("network {net} of the peer overlaps with {own} of this end"));
        }
    }
    for (other, its) in files.others() {
        if its.own_line()?.is_some_and(|line| line.key == peer.key) {
            return refuse(format!("this is the own line of tunnel {other}; use the one that the peer prints"));
        }
        let Some(known) = its.peer_line()? else { continue };
        if known.key == peer.key {
            return refuse(format!("the line is the peer's of tunnel {other} already; a line is for one tunnel"));
        }
        for net in &peer.nets {
            if let Some(its) = known.nets.iter().find(|its| overlap(**its, *net)) {
                return refuse(format!("network {net} of the peer overlaps with {its} of tunnel {other}"));
            }
        }
    }
    Ok(())
}

fn names(nets: &[Prefix]) -> String {
    nets.iter().map(Prefix::to_string).collect::<Vec<_>>().join(", ")
}

/// Text of an end that waits for the peer's line.
fn own_text(name: &str, own: &PairLine) -> String {
    format!(
        "{own}\n\n\
         This is the line of this end, {} at {}; nothing in it is secret. Its words: {}\n\
         On the other end:  fatpath pair {name} --net NETWORK {own}\n\
         Then here, with the line that it prints:  fatpath pair {name} LINE\n",
        names(&own.nets),
        own.address,
        own.fingerprint()
    )
}

/// Text of an end that has its peer.
fn joined_text(name: &str, own: &PairLine, peer: &PairLine) -> String {
    format!(
        "{own}\n\n\
         {name}: {} at {}, to {} at {}. The first packet brings the tunnel up; fatpath status -i {name} tells.\n\
         The other end needs the line above, unless it has it:  fatpath pair {name} {own}\n\
         Compare by voice. Words of this end: {}   of the peer: {}\n",
        names(&own.nets),
        own.address,
        names(&peer.nets),
        peer.address,
        own.fingerprint(),
        peer.fingerprint()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_address_is_the_first_of_each_family_in_the_networks() {
        let nets = ["10.1.0.0/24", "10.5.0.9/32", "fd00:1::/64"].map(|net| net.parse().unwrap()).to_vec();
        let own = PairLine { key: [0; 32], address: "10.1.0.1".parse().unwrap(), port: PORT, nets };
        let json = br#"[{"ifname":"eth0","addr_info":[{"family":"inet","local":"192.0.2.1","prefixlen":24}]},
            {"ifname":"eth1","addr_info":[{"local":"10.1.0.1"},{"local":"10.5.0.9"},{"local":"10.1.0.7"},{"local":"10.1.0.8"},
            {"local":"fd00:2::1"},{"local":"fd00:1::7","prefixlen":64}]},{"ifname":"eth2"},{}]"#;
        let want: Vec<IpAddr> = ["10.1.0.7", "fd00:1::7"].map(|address| address.parse().unwrap()).to_vec();
        assert_eq!(addresses_of(json, &own), want);
        for nothing in [&b""[..], b"{}", b"[1]", b"[{\"addr_info\":[{\"local\":7}]}]"] {
            assert!(addresses_of(nothing, &own).is_empty());
        }
    }
}
