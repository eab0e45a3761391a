//! Probe of UDP GSO and GRO: a train is sent over the loopback device.
//!
//! A socket option that is accepted proves little: some kernels and sandboxes take `UDP_SEGMENT` and then send one
//! oversized datagram, or drop it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use crate::error::text;
use crate::sys::cmsg::{self, CONTROL_LEN, Control};
use crate::sys::mmsg::{RecvBatch, SendBatch};
use crate::sys::sockaddr::SockAddr;
use crate::sys::socket::set_option;

/// A train of three: two whole segments and a short one.
const SEGMENT: usize = 100;
const TRAIN: usize = 250;

/// Time limit for a datagram over the loopback device.
const PATIENCE: Duration = Duration::from_millis(200);

const VERIFIED: &str = "verified over loopback";
const ACCEPTED: &str = "accepted by the kernel, not seen over loopback";

/// Result for one offload: the evidence that it works, or the reason why it does not.
type Answer = Result<Option<String>, String>;

/// Result of the probe.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) gro: Answer,
    pub(super) uso: Answer,
}

/// Tries both offloads in the address family of `bind`.
pub(super) fn probe(bind: SocketAddr) -> Found {
    let loopback = match bind.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    let any = match bind.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let accepted = |option: i32, name: &str, value: i32| {
        let scratch = UdpSocket::bind((any, 0)).map_err(|err| format!("socket: {}", text(&err)))?;
        set_option(scratch.as_fd(), libc::SOL_UDP, option, value).map_err(|err| format!("{name}: {}", text(&err)))
    };
    let gro = accepted(libc::UDP_GRO, "UDP_GRO", 1);
    let uso = accepted(libc::UDP_SEGMENT, "UDP_SEGMENT", SEGMENT as i32);
    if let (Err(gro), Err(uso)) = (&gro, &uso) {
        return Found { gro: Err(gro.clone()), uso: Err(uso.clone()) };
    }
    match round_trip(loopback, gro.is_ok(), uso.is_ok()) {
        Ok(seen) => Found {
            // GRO never changes the bytes received, so it stays on without evidence.
            gro: gro.map(|()| Some(if seen.glued { VERIFIED } else { ACCEPTED }.to_owned())),
            uso: uso.and_then(|()| if seen.cut { Ok(Some(VERIFIED.to_owned())) } else { Err(seen.what) }),
        },
        Err(err) => {
            let how = format!("accepted by the kernel, not verified over loopback: {}", text(&err));
            Found { gro: gro.map(|()| Some(how.clone())), uso: uso.map(|()| Some(how)) }
        }
    }
}

/// Reception of a train.
struct Seen {
    /// The payload arrived unchanged, in segments of the right size.
    cut: bool,
    /// The train arrived as one buffer, with the segment size.
    glued: bool,
    /// Description of the reception, for the reason.
    what: String,
}

/// Sends a train to a socket of this process. An error comes from the network: the loopback device may be down.
fn round_trip(loopback: IpAddr, gro: bool, uso: bool) -> io::Result<Seen> {
    let to = UdpSocket::bind((loopback, 0))?;
    let from = UdpSocket::bind((loopback, 0))?;
    if gro {
        set_option(to.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1)?;
    }
    to.set_read_timeout(Some(PATIENCE))?;
    let payload: Vec<u8> = (0..TRAIN as u8).collect();
    let name = SockAddr::new(to.local_addr()?);
    let mut wait = [0];
    from.send_to(&[0], to.local_addr()?)?;
    if to.recv(&mut wait).is_err() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "no datagram arrived, the device may be down"));
    }
    let mut control = Control::EMPTY;
    if uso {
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &(SEGMENT as u16).to_ne_bytes());
    }
    let mut batch = SendBatch::new();
    let pieces = [&payload[..30], &payload[30..]];
    batch.push(name.bytes(), control.bytes(), pieces.into_iter()).map_err(|_| io::ErrorKind::InvalidInput)?;
    match batch.send(from.as_fd()) {
        Ok(_) => {}
        Err(err) if [Some(libc::EIO), Some(libc::EINVAL)].contains(&err.raw_os_error()) => {
            let what = format!("sendmmsg with UDP_SEGMENT: {}", text(&err));
            return Ok(Seen { cut: false, glued: false, what });
        }
        Err(err) => return Err(err),
    }
    let mut got = Vec::new();
    let mut sizes = Vec::new();
    let mut glued = false;
    while got.len() < TRAIN {
        if to.peek(&mut wait).is_err() {
            break;
        }
        let mut room = [0; 2 * TRAIN];
        let mut control = [0; CONTROL_LEN];
        let mut name = [0; 28];
        let mut batch = RecvBatch::new();
        batch.push(&mut name, &mut control, [&mut room]);
        let received = batch.recv(to.as_fd())?;
        let Some(message) = received.first() else { break };
        let messages = cmsg::iter(&control[..message.control_len.min(CONTROL_LEN)]);
        let size = messages.filter(|&(level, kind, _)| (level, kind) == (libc::SOL_UDP, libc::UDP_GRO));
        glued |= message.len == TRAIN && size.filter_map(|(_, _, data)| cmsg::int(data)).eq([SEGMENT as i32]);
        sizes.push(message.len);
        got.extend_from_slice(&room[..message.len.min(room.len())]);
    }
    let in_segments = sizes == [SEGMENT, SEGMENT, TRAIN - 2 * SEGMENT];
    let cut = got == payload && (glued || in_segments);
    Ok(Seen { cut, glued, what: format!("a train of {SEGMENT}-byte segments over loopback arrived as {sizes:?}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_gives_evidence_or_a_reason() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let found = probe(bind.parse().unwrap());
            for answer in [found.gro, found.uso] {
                let text = match answer {
                    Ok(how) => how.expect("how it was found"),
                    Err(why) => why,
                };
                assert!(!text.is_empty());
            }
        }
    }
}
