//! Events for `fatpath monitor`: plain values, serialised as JSON and displayed as lines.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use xfrm::{Dir, Mode};

use crate::state::SelectorState;

/// Event of SAs and policies, as shown by `ip xfrm monitor`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A packet needs an SA that does not exist.
    Acquire {
        /// Sequence number of the acquire.
        seq: u32,
        /// Outer source.
        src: IpAddr,
        /// Outer destination.
        dst: IpAddr,
        /// Mode of the SA.
        mode: Mode,
        /// `reqid`.
        reqid: u32,
        /// Flow of the packet.
        selector: SelectorState,
        /// Number of the policy that requires the SA.
        policy: u32,
    },
    /// An SA has reached a limit.
    Expire {
        /// Whether the limit is hard, and the SA removed.
        hard: bool,
        /// Outer source.
        src: IpAddr,
        /// Outer destination.
        dst: IpAddr,
        /// Security parameters index; 0 for a larval SA that was never completed.
        spi: u32,
        /// Mode.
        mode: Mode,
        /// `reqid`.
        reqid: u32,
        /// Protected bytes.
        bytes: u64,
        /// Protected packets.
        packets: u64,
    },
    /// A policy has reached a limit.
    PolicyExpire {
        /// Whether the limit is hard, and the policy removed.
        hard: bool,
        /// Direction.
        dir: Dir,
        /// Packets that the policy matches.
        selector: SelectorState,
        /// Index.
        index: u32,
    },
    /// The address or port of a peer behind a NAT has changed.
    Mapping {
        /// Destination of the SA.
        dst: IpAddr,
        /// SPI of the SA.
        spi: u32,
        /// `reqid` of the SA.
        reqid: u32,
        /// Former address of the peer.
        old: SocketAddr,
        /// New address of the peer.
        new: SocketAddr,
    },
}

const fn how(hard: bool) -> &'static str {
    if hard { "hard" } else { "soft" }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire { seq, src, dst, mode, reqid, selector, policy } => {
                write!(f, "acquire src {src} dst {dst} proto esp reqid {reqid} mode {mode} ")?;
                write!(f, "sel {selector}policy {policy} seq {seq}")
            }
            Self::Expire { hard, src, dst, spi, mode, reqid, bytes, packets } => {
                write!(f, "expire {} src {src} dst {dst} proto esp spi {spi:#010x} ", how(*hard))?;
                write!(f, "reqid {reqid} mode {mode} {bytes}(bytes), {packets}(packets)")
            }
            Self::PolicyExpire { hard, dir, selector, index } => {
                write!(f, "policy expire {} {selector}dir {dir} index {index}", how(*hard))
            }
            Self::Mapping { dst, spi, reqid, old, new } => {
                write!(f, "mapping dst {dst} proto esp spi {spi:#010x} reqid {reqid} old {old} new {new}")
            }
        }
    }
}

impl Event {
    /// Parses one line.
    ///
    /// # Errors
    /// The line is no event of this version.
    pub fn from_line(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|err| format!("event not understood: {err}"))
    }

    /// Serialises the event as one line of JSON, with its newline.
    pub fn to_line(&self) -> String {
        crate::request::line(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_and_comes_back_equal() {
        let (src, dst): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let prefix = |text: &str| text.parse().unwrap();
        let selector = SelectorState {
            src: prefix("10.1.0.1/32"),
            dst: prefix("10.2.0.1/32"),
            proto: Some(17),
            sport: Some(9),
            dport: Some(53),
        };
        let (mode, reqid) = (Mode::Tunnel, 1);
        let at = |text: &str| text.parse().unwrap();
        let cases = [
            (
                Event::Acquire { seq: 7, src, dst, mode, reqid, selector, policy: 9 },
                "acquire src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel sel src 10.1.0.1/32 dst 10.2.0.1/32 \
                 proto udp sport 9 dport 53 policy 9 seq 7",
            ),
            (
                Event::Expire { hard: false, src, dst, spi: 0x1000, mode, reqid, bytes: 84, packets: 1 },
                "expire soft src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x00001000 reqid 1 mode tunnel \
                 84(bytes), 1(packets)",
            ),
            (
                Event::PolicyExpire { hard: true, dir: Dir::Out, selector, index: 9 },
                "policy expire hard src 10.1.0.1/32 dst 10.2.0.1/32 proto udp sport 9 dport 53 dir out index 9",
            ),
            (
                Event::Mapping { dst, spi: 1, reqid, old: at("192.0.2.1:4500"), new: at("[2001:db8::1]:9") },
                "mapping dst 192.0.2.2 proto esp spi 0x00000001 reqid 1 old 192.0.2.1:4500 new [2001:db8::1]:9",
            ),
        ];
        for (event, want) in cases {
            assert_eq!(event.to_string(), want);
            let line = event.to_line();
            assert!(line.ends_with("}\n") && !line.trim_end().contains('\n'), "{line}");
            assert_eq!(Event::from_line(&line), Ok(event));
        }
        assert!(Event::from_line("{\"event\":\"rain\"}").is_err());
    }
}
