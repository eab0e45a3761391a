//! `SIOCSARP`, `SIOCGARP` and `SIOCDARP` (arp(7); Linux `arp_ioctl`), as requests of rtnetlink.

use libc::{arpreq, c_char, c_int};

use super::exchange::{CREATE, Link, LinkKey, attribute, change, exchange, link, put_attribute};
use super::ipv4::octets;
use super::routes::output_interface;
use crate::errno::Errno;

/// `NLM_F_REPLACE`.
const REPLACE: u16 = 0x100;
/// Length of `struct ndmsg`.
const MESSAGE: usize = 12;
/// Offset of the state in it.
const STATE: usize = 8;
/// States in which a neighbour's address is known (Linux `NUD_VALID`).
const VALID: u16 =
    libc::NUD_PERMANENT | libc::NUD_NOARP | libc::NUD_REACHABLE | libc::NUD_PROBE | libc::NUD_STALE | libc::NUD_DELAY;

/// Request for a neighbour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NeighbourRequest {
    /// `SIOCSARP`.
    Set,
    /// `SIOCGARP`.
    Get,
    /// `SIOCDARP`.
    Delete,
}

/// Executes a request.
///
/// # Errors
/// As `arp_ioctl` of Linux; `EOPNOTSUPP`: the gateway answers for no other hosts (`ATF_PUBL`); the gateway's error.
pub(super) fn serve(what: NeighbourRequest, request: &mut arpreq) -> Result<(), Errno> {
    let flags = request.arp_flags;
    let has = |flag: c_int| flags & flag != 0;
    let address = octets(&request.arp_pa).ok_or(Errno(libc::EPFNOSUPPORT))?;
    if has(libc::ATF_PUBL) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if has(libc::ATF_NETMASK | libc::ATF_DONTPUB) {
        return Err(Errno(libc::EINVAL));
    }
    let name: Vec<u8> = request.arp_dev.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    let device = match (&name[..], what) {
        ([], NeighbourRequest::Get) => return Err(Errno(libc::ENODEV)),
        ([], _) => link(LinkKey::Index(output_interface(address)?))?,
        (name, _) => link(LinkKey::Name(name))?,
    };
    if !name.is_empty() && request.arp_ha.sa_family == 0 {
        request.arp_ha.sa_family = device.kind;
    }
    let key = |state: u16, attributes: &[(u16, &[u8])]| message(&device, address, state, attributes);
    match what {
        NeighbourRequest::Set => {
            if request.arp_ha.sa_family != device.kind {
                return Err(Errno(libc::EINVAL));
            }
            let state = if has(libc::ATF_PERM) { libc::NUD_PERMANENT } else { libc::NUD_STALE };
            if !has(libc::ATF_COM | libc::ATF_PERM) {
                return Err(Errno(libc::EINVAL));
            }
            let bytes = request.arp_ha.sa_data.map(|byte| byte as u8);
            let lladdr = bytes.get(..device.address.len()).ok_or(Errno(libc::EINVAL))?;
            change(libc::RTM_NEWNEIGH, CREATE | REPLACE, &key(state, &[(libc::NDA_LLADDR, lladdr)]))
        }
        NeighbourRequest::Delete => change(libc::RTM_DELNEIGH, 0, &key(0, &[])).map_err(no_neighbour),
        NeighbourRequest::Get => {
            let mut found = None;
            exchange(libc::RTM_GETNEIGH, 0, &key(0, &[]), |body| found = parse(body)).map_err(no_neighbour)?;
            let (state, lladdr) = found.ok_or(Errno(libc::ENXIO))?;
            request.arp_flags = match state {
                state if state & libc::NUD_PERMANENT != 0 => libc::ATF_PERM | libc::ATF_COM,
                state if state & VALID != 0 => libc::ATF_COM,
                _ => 0,
            };
            let mut sa_data = [0 as c_char; 14];
            sa_data.iter_mut().zip(&lladdr).for_each(|(to, &byte)| *to = byte as c_char);
            request.arp_ha = libc::sockaddr { sa_family: device.kind, sa_data };
            Ok(())
        }
    }
}

/// Converts the error for a neighbour that does not exist.
fn no_neighbour(errno: Errno) -> Errno {
    if errno.0 == libc::ENOENT { Errno(libc::ENXIO) } else { errno }
}

/// State and link-layer address in a reply.
fn parse(body: &[u8]) -> Option<(u16, Vec<u8>)> {
    let state = u16::from_ne_bytes(*body.get(STATE..)?.first_chunk()?);
    let lladdr = attribute(body.get(MESSAGE..)?, libc::NDA_LLADDR).unwrap_or_default();
    Some((state, lladdr.to_vec()))
}

/// `struct ndmsg` with attributes.
fn message(device: &Link, address: [u8; 4], state: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = vec![libc::AF_INET as u8, 0, 0, 0];
    body.extend(device.index.to_ne_bytes());
    body.extend(state.to_ne_bytes());
    body.extend([0, 0]);
    put_attribute(&mut body, libc::NDA_DST, &address);
    attributes.iter().for_each(|(kind, value)| put_attribute(&mut body, *kind, value));
    body
}
