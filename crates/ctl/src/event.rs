//! Events for `fatpath monitor`: plain values, serialised as JSON and displayed as lines.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use xfrm::{Dir, Mode};

use crate::state::SelectorState;

/// Event of SAs and policies, as shown by `ip xfrm monitor`; of links; or of dropped packets.
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
    /// An SA was added.
    SaAdded(SaLabel),
    /// An SA was added beside an older one of the same addresses and `reqid`.
    SaRekeyed {
        /// The new SA.
        #[serde(flatten)]
        sa: SaLabel,
        /// SPI of the older SA.
        old: u32,
    },
    /// An SA was removed, or has expired.
    SaRemoved(SaLabel),
    /// SAs were added or removed without an event each.
    MoreSas {
        /// Number of changes.
        changes: u64,
    },
    /// A link is up or down now.
    Link {
        /// Name.
        link: String,
        /// Whether it is up.
        up: bool,
        /// Reason for being down, if an error is the reason.
        why: Option<String>,
    },
    /// A packet was dropped, or several at once.
    Drop {
        /// Name of the link that the packet came in by; `None` for a packet of this node.
        link: Option<String>,
        /// Reason.
        reason: String,
        /// Number of packets.
        packets: u64,
        /// Source address, if the flow is known.
        src: Option<IpAddr>,
        /// Destination address.
        dst: Option<IpAddr>,
        /// Protocol, as a name or number.
        proto: Option<String>,
        /// Source port.
        sport: Option<u16>,
        /// Destination port.
        dport: Option<u16>,
        /// SPI of ESP.
        spi: Option<u32>,
    },
    /// Packets were dropped without an event each, because of the limit of events in a second.
    MoreDrops {
        /// Number of packets.
        packets: u64,
    },
    /// Events that this reader has lost, because it reads too slowly.
    Lost {
        /// Number of events.
        events: u64,
    },
}

/// SA of an event.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SaLabel {
    /// SPI.
    pub spi: u32,
    /// Outer source.
    pub src: IpAddr,
    /// Outer destination.
    pub dst: IpAddr,
    /// `reqid`.
    pub reqid: u32,
}

impl Display for SaLabel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { spi, src, dst, reqid } = self;
        write!(f, "src {src} dst {dst} proto esp spi {spi:#010x} reqid {reqid}")
    }
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
            Self::SaAdded(sa) => write!(f, "sa added {sa}"),
            Self::SaRekeyed { sa, old } => write!(f, "sa rekeyed {sa} old spi {old:#010x}"),
            Self::SaRemoved(sa) => write!(f, "sa removed {sa}"),
            Self::MoreSas { changes } => write!(f, "… {changes} more SAs added or removed"),
            Self::Link { link, up, why } => {
                let why = why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
                write!(f, "link {link} {}{why}", if *up { "up" } else { "down" })
            }
            Self::Drop { link, reason, packets, src, dst, proto, sport, dport, spi } => {
                write!(f, "drop {} {reason}", link.as_deref().unwrap_or("-"))?;
                if let (Some(src), Some(dst)) = (src, dst) {
                    match (sport, dport) {
                        (Some(sport), Some(dport)) => {
                            let [src, dst] = [(*src, *sport), (*dst, *dport)].map(SocketAddr::from);
                            write!(f, " {src} > {dst}")?;
                        }
                        _ => write!(f, " {src} > {dst}")?,
                    }
                }
                if let Some(proto) = proto {
                    write!(f, " {proto}")?;
                }
                if let Some(spi) = spi {
                    write!(f, " spi {spi:#x}")?;
                }
                if *packets > 1 { write!(f, " ({packets} packets)") } else { Ok(()) }
            }
            Self::MoreDrops { packets } => write!(f, "… {packets} more"),
            Self::Lost { events } => write!(f, "… {events} lines lost: the reader is too slow"),
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
        let label = SaLabel { spi: 0x1000, src, dst, reqid };
        let esp = Event::Drop {
            link: Some("wan".to_owned()),
            reason: "EspIcv".to_owned(),
            packets: 1,
            src: Some(src),
            dst: Some(dst),
            proto: Some("esp".to_owned()),
            sport: None,
            dport: None,
            spi: Some(0x1000),
        };
        let udp = Event::Drop {
            link: None,
            reason: "NoRoute".to_owned(),
            packets: 3,
            src: Some(src),
            dst: Some(dst),
            proto: Some("udp".to_owned()),
            sport: Some(9),
            dport: Some(53),
            spi: None,
        };
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
            (Event::SaAdded(label.clone()), "sa added src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x00001000 reqid 1"),
            (
                Event::SaRekeyed { sa: label.clone(), old: 0x0fff },
                "sa rekeyed src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x00001000 reqid 1 old spi 0x00000fff",
            ),
            (Event::SaRemoved(label), "sa removed src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x00001000 reqid 1"),
            (Event::MoreSas { changes: 7 }, "… 7 more SAs added or removed"),
            (Event::Link { link: "wan".to_owned(), up: true, why: None }, "link wan up"),
            (Event::Link { link: "wan".to_owned(), up: false, why: Some("gone".to_owned()) }, "link wan down: gone"),
            (esp, "drop wan EspIcv 192.0.2.1 > 192.0.2.2 esp spi 0x1000"),
            (udp, "drop - NoRoute 192.0.2.1:9 > 192.0.2.2:53 udp (3 packets)"),
            (Event::MoreDrops { packets: 9 }, "… 9 more"),
            (Event::Lost { events: 9 }, "… 9 lines lost: the reader is too slow"),
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
