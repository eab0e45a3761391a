//! Requests of this library to the gateway's rtnetlink.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;
use nlsock::{FromDaemon, ToDaemon, WORD, protocol};

use crate::errno::Errno;
use crate::fd::Fd;
use crate::kept::{self, Failure};
use crate::session;

/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `NLM_F_MULTI`.
const MULTI: u16 = 2;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Length of `struct ifinfomsg`.
const INFO: usize = 16;
/// `NLM_F_ACK`.
const ACK: u16 = 4;
/// `NLM_F_DUMP`.
pub(super) const DUMP: u16 = 0x300;
/// `NLM_F_CREATE`.
pub(super) const CREATE: u16 = 0x400;
/// `NLM_F_EXCL`.
pub(super) const EXCL: u16 = 0x200;

/// `IFLA_INFO_KIND`.
pub(super) const INFO_KIND: u16 = 1;
/// `IFLA_INFO_SLAVE_KIND`.
pub(super) const INFO_SLAVE_KIND: u16 = 4;

/// Key of an interface look-up.
#[derive(Clone, Copy, Debug)]
pub(super) enum LinkKey<'a> {
    /// Name of the interface.
    Name(&'a [u8]),
    /// Number of the interface.
    Index(c_int),
}

/// An interface.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    pub(super) index: c_int,
    pub(super) name: Vec<u8>,
    /// `ARPHRD_*`.
    pub(super) kind: u16,
    pub(super) flags: u32,
    pub(super) mtu: u32,
    pub(super) queue_len: u32,
    /// `IF_OPER_*`.
    pub(super) state: u8,
    pub(super) address: Vec<u8>,
    pub(super) broadcast: Vec<u8>,
    /// `struct rtnl_link_stats`.
    pub(super) stats: Vec<u8>,
    /// Number of the bridge or VRF that the interface is in.
    pub(super) master: Option<c_int>,
    /// Attributes of `IFLA_LINKINFO`.
    pub(super) info: Vec<u8>,
}

impl Link {
    /// Value of an attribute in `IFLA_LINKINFO`.
    pub(super) fn info(&self, wanted: u16) -> Option<&[u8]> {
        attribute(&self.info, wanted)
    }

    /// Tells whether the kind of the interface (`IFLA_INFO_KIND`), or of its master (`IFLA_INFO_SLAVE_KIND`), is
    /// `name`.
    pub(super) fn is(&self, kind: u16, name: &[u8]) -> bool {
        self.info(kind).is_some_and(|kind| kind.split(|&byte| byte == 0).next() == Some(name))
    }
}

/// An address of an interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Address {
    pub(super) family: u8,
    pub(super) prefix_len: u8,
    /// `RT_SCOPE_*`.
    pub(super) scope: u8,
    /// Number of the interface.
    pub(super) index: c_int,
    /// Label (`IFA_LABEL`): the interface's name, possibly with a suffix.
    pub(super) label: Option<Vec<u8>>,
    pub(super) own: Vec<u8>,
    /// Address of the peer, or `own` again.
    pub(super) peer: Vec<u8>,
    pub(super) broadcast: Option<Vec<u8>>,
    /// Lifetimes (`IFA_CACHEINFO`).
    pub(super) lifetimes: Option<Vec<u8>>,
    /// Metric of the address's route (`IFA_RT_PRIORITY`).
    pub(super) metric: Option<Vec<u8>>,
}

/// All interfaces.
///
/// # Errors
/// Error in the gateway's answer.
pub(super) fn links() -> Result<Vec<Link>, Errno> {
    let mut found = Vec::new();
    exchange(libc::RTM_GETLINK, DUMP, &[0; INFO], |body| found.extend(parse_link(body)))?;
    Ok(found)
}

/// All addresses, in the order of the dump.
///
/// # Errors
/// Error in the gateway's answer.
pub(super) fn addresses() -> Result<Vec<Address>, Errno> {
    let mut found = Vec::new();
    exchange(libc::RTM_GETADDR, DUMP, &[0; 8], |body| found.extend(parse_address(body)))?;
    Ok(found)
}

fn parse_address(body: &[u8]) -> Option<Address> {
    let (&[family, prefix_len, _, scope], rest): (&[u8; 4], _) = body.split_first_chunk()?;
    let index = word(rest)? as c_int;
    let attributes = rest.get(4..)?;
    let value = |kind: u16| attribute(attributes, kind).map(<[u8]>::to_vec);
    let own = value(libc::IFA_LOCAL);
    let peer = value(libc::IFA_ADDRESS).or_else(|| own.clone())?;
    Some(Address {
        family,
        prefix_len,
        scope,
        index,
        label: value(libc::IFA_LABEL).and_then(|text| text.split(|&byte| byte == 0).next().map(<[u8]>::to_vec)),
        own: own.unwrap_or_else(|| peer.clone()),
        peer,
        broadcast: value(libc::IFA_BROADCAST),
        lifetimes: value(libc::IFA_CACHEINFO),
        metric: value(IFA_RT_PRIORITY),
    })
}

/// `IFA_RT_PRIORITY`.
pub(super) const IFA_RT_PRIORITY: u16 = 9;

/// Looks up an interface.
///
/// # Errors
/// `ENODEV`: the interface does not exist.
pub(super) fn link(key: LinkKey<'_>) -> Result<Link, Errno> {
    let (index, name): (c_int, &[u8]) = match key {
        LinkKey::Index(index) => (index, &[]),
        LinkKey::Name(name) => (0, name),
    };
    if name.len() >= libc::IFNAMSIZ || (name.is_empty() && index <= 0) {
        return Err(Errno(libc::ENODEV));
    }
    let mut body = vec![0; INFO];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    if !name.is_empty() {
        put_attribute(&mut body, libc::IFLA_IFNAME, &[name, &[0]].concat());
    }
    let mut found = None;
    exchange(libc::RTM_GETLINK, 0, &body, |body| found = parse_link(body))?;
    found.ok_or(Errno(libc::ENODEV))
}

/// Number of the device of the VRF that an interface is in, or is; `None` if there is none.
///
/// # Errors
/// `ENODEV`: the interface does not exist; error in the gateway's answer.
pub(super) fn vrf_of(index: c_int) -> Result<Option<c_int>, Errno> {
    let found = link(LinkKey::Index(index))?;
    if found.is(INFO_KIND, b"vrf") {
        return Ok(Some(index));
    }
    Ok(found.master.filter(|_| found.is(INFO_SLAVE_KIND, b"vrf")))
}

/// Number of the device of a local address, for packets that an interface receives: that of the interface's VRF, or `lo`. `None` if the
/// address is not local there.
///
/// # Errors
/// Error in the gateway's answer.
pub(super) fn local_device(index: c_int, addr: &[u8]) -> Result<Option<c_int>, Errno> {
    /// `RTN_LOCAL`, `RTN_BROADCAST`: addresses that a socket may have (Linux `inet_addr_valid_or_nonlocal`).
    const LOCAL: [u8; 2] = [2, 3];
    const RTA_DST: u16 = 1;
    const RTA_IIF: u16 = 3;
    const RTA_OIF: u16 = 4;
    /// Length of `struct rtmsg`, and the place of the type in it.
    const ROUTE: usize = 12;
    const TYPE_AT: usize = 7;
    let family = if addr.len() == 4 { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let mut body = vec![0; ROUTE];
    body[..2].copy_from_slice(&[family, 8 * addr.len() as u8]);
    put_attribute(&mut body, RTA_DST, addr);
    put_attribute(&mut body, RTA_IIF, &index.to_ne_bytes());
    let mut device = None;
    let found = exchange(libc::RTM_GETROUTE, 0, &body, |body| {
        let is_local = body.get(TYPE_AT).is_some_and(|kind| LOCAL.contains(kind));
        let (_, index) = attributes(body.get(ROUTE..).unwrap_or_default()).find(|&(kind, _)| kind == RTA_OIF).unzip();
        device = index.and_then(word).filter(|_| is_local).map(|index| index as c_int);
    });
    match found {
        // The address has no route, or one of an error type.
        Err(Errno(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL)) => Ok(None),
        found => found.map(|()| device),
    }
}

/// Appends an attribute.
pub(super) fn put_attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend(((value.len() + 4) as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let mut link = Link {
        kind: u16::from_ne_bytes(*body.get(2..)?.first_chunk()?),
        index: c_int::from_ne_bytes(*body.get(4..)?.first_chunk()?),
        flags: word(body.get(8..)?)?,
        ..Link::default()
    };
    for (kind, value) in attributes(body.get(INFO..)?) {
        match kind {
            libc::IFLA_IFNAME => link.name = value.split(|&byte| byte == 0).next().unwrap_or_default().to_vec(),
            libc::IFLA_MTU => link.mtu = word(value)?,
            libc::IFLA_TXQLEN => link.queue_len = word(value)?,
            libc::IFLA_OPERSTATE => link.state = *value.first()?,
            libc::IFLA_ADDRESS => link.address = value.to_vec(),
            libc::IFLA_BROADCAST => link.broadcast = value.to_vec(),
            libc::IFLA_STATS => link.stats = value.to_vec(),
            libc::IFLA_MASTER => link.master = word(value).map(|index| index as c_int),
            libc::IFLA_LINKINFO => link.info = value.to_vec(),
            _ => {}
        }
    }
    Some(link)
}

/// Four bytes as a number.
pub(super) fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

/// Attributes in `bytes`, up to the first truncated one.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & 0x3fff, value))
    })
}

/// Value of the last attribute of a kind.
pub(super) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).filter(|&(kind, _)| kind == wanted).last().map(|(_, value)| value)
}

/// Sends a request that changes the gateway, and waits until it is carried out.
///
/// # Errors
/// Error in the gateway's answer.
pub(super) fn change(kind: u16, flags: u16, body: &[u8]) -> Result<(), Errno> {
    exchange(kind, ACK | flags, body, |_| {})
}

/// Sends a request and calls `each` with the body of each message of the reply. Requests that read may be sent on the
/// connection that the program keeps; a change is sent with the rights that the process has now.
///
/// # Errors
/// Error in the gateway's answer.
pub(super) fn exchange(kind: u16, flags: u16, body: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
    let mut has_begun = false;
    let mut first_try = |body: &[u8]| {
        has_begun = true;
        each(body);
    };
    if flags & ACK == 0
        && let Some(done) = kept::with(|connection| converse(connection, kind, flags, body, &mut first_try))
    {
        let is_final = !matches!(done, Err(Failure::Connection(_)));
        if is_final || has_begun || kept::is_confined() {
            return done.map_err(Errno::from);
        }
    }
    converse(&session::own(protocol::ROUTE)?, kind, flags, body, &mut each).map_err(Errno::from)
}

/// Sends a request and receives its reply.
fn converse(connection: &Fd, kind: u16, flags: u16, body: &[u8], each: &mut impl FnMut(&[u8])) -> Result<(), Failure> {
    static SEQUENCE: AtomicU32 = AtomicU32::new(1);
    let sequence = SEQUENCE.fetch_add(1, Relaxed);
    let mut request = ToDaemon::Data(&[]).head().as_bytes().to_vec();
    request.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((REQUEST | flags).to_ne_bytes());
    request.extend(sequence.to_ne_bytes());
    request.extend([0; 4]);
    request.extend(body);
    kept::send(connection, &request).map_err(Failure::Connection)?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = receive(connection, &mut buffer).map_err(Failure::Connection)?;
        let mut rest = buffer.get(WORD..len).unwrap_or_default();
        while let Some((header, tail)) = rest.split_at_checked(HEADER) {
            let whole = word(header).unwrap_or_default() as usize;
            let Some(body) = whole.checked_sub(HEADER).and_then(|len| tail.get(..len)) else { break };
            if header.get(8..).and_then(word) != Some(sequence) {
                // Another process has sent a request on the connection.
                return Err(Failure::Connection(Errno(libc::EPROTO)));
            }
            let part = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
            match part(4) {
                DONE => return Ok(()),
                ERROR => {
                    let error = word(body).unwrap_or_default() as c_int;
                    return if error == 0 { Ok(()) } else { Err(Failure::Answer(Errno(error.saturating_neg()))) };
                }
                _ => each(body),
            }
            if part(6) & MULTI == 0 && flags & ACK == 0 {
                return Ok(());
            }
            rest = rest.get(whole.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

fn receive(from: &Fd, into: &mut [u8]) -> Result<usize, Errno> {
    let len = kept::receive(from, into, 0)?;
    let is_overrun = into.first_chunk().is_some_and(|word| FromDaemon::from_word(*word) == FromDaemon::Overrun);
    if is_overrun { Err(Errno(libc::ENOBUFS)) } else { Ok(len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_interface_is_not_read_past_its_end() {
        let mut body = vec![0; INFO];
        body[2..4].copy_from_slice(&1_u16.to_ne_bytes());
        body[4..8].copy_from_slice(&7_i32.to_ne_bytes());
        body[8..12].copy_from_slice(&0x43_u32.to_ne_bytes());
        put_attribute(&mut body, libc::IFLA_IFNAME, b"wan\0");
        body.extend([8, 0]);
        body.extend(libc::IFLA_MTU.to_ne_bytes());
        body.extend(1500_u32.to_ne_bytes());
        let link = parse_link(&body).unwrap();
        assert_eq!((link.index, &link.name[..], link.kind, link.flags, link.mtu), (7, &b"wan"[..], 1, 0x43, 1500));
        for len in 0..body.len() {
            let cut = parse_link(&body[..len]);
            assert!(cut.is_none_or(|cut| cut.mtu == 0), "{len}");
        }
    }
}
