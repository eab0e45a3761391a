//! What an SA and a policy are made from: plain values, checked when they are added.

use std::fmt;
use std::net::IpAddr;

use base::{LinkId, Prefix};
use wire::{FlowKey, Protocol, Spi, Version};

use crate::engine::{Algorithm, AlgorithmError};
use crate::flowi::Flowi;
use crate::lifetime::Lifetime;
use crate::mark::Mark;
use crate::replay::MAX_WINDOW;

/// RFC 4301's modes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Mode {
    /// The payload of the packet is protected; its own IP header stays outside.
    Transport,
    /// The whole packet is protected, inside a new IP header.
    Tunnel,
}

/// Which way an SA's packets go, seen from this node: iproute2's `dir` of `ip xfrm state`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum SaDir {
    /// They are received and opened.
    In,
    /// They are sealed and sent.
    Out,
}

/// An ESP security association (RFC 4301 §4.4.2), for one direction.
#[derive(Clone, Debug)]
pub struct SaConfig {
    /// The outer source; unspecified for any.
    pub src: IpAddr,
    /// The outer destination, of the same family.
    pub dst: IpAddr,
    /// The security parameters index.
    pub spi: Spi,
    /// The only direction in which it may be used; `None` leaves it to its use. One of [`SaDir::In`] is also used for
    /// packets to hosts that this node stands in front of (see [`Sad::opens_for_others`](crate::sad::Sad::opens_for_others)).
    pub dir: Option<SaDir>,
    /// What is protected: whole packets or their payload.
    pub mode: Mode,
    /// Ties the SA to the templates with the same number.
    pub reqid: u32,
    /// How it protects.
    pub algorithm: Algorithm,
    /// How many packets the anti-replay window spans; 0 checks nothing. At most [`MAX_WINDOW`].
    pub replay_window: u32,
    /// Options that are off unless named.
    pub flags: SaFlags,
    /// The UDP header around ESP, if there is one.
    pub encap: Option<EspInUdp>,
    /// Which inner packets may use it; `None` lets any.
    pub selector: Option<Selector>,
    /// The last sequence number sent (`replay-oseq`); 0 for a new SA.
    pub oseq: u64,
    /// The highest sequence number received (`replay-seq`); 0 for a new SA.
    pub seq: u64,
    /// Inner packets of a tunnel that are shorter are padded to so many bytes, or to what the path takes if that is less
    /// (RFC 4303 §2.7); 0 pads none.
    pub tfcpad: u32,
    /// What it does about a NAT between it and its peer.
    pub nat: NatTraversal,
    /// Which marked packets it is for. Two SAs with one destination and SPI differ in this.
    pub mark: Mark,
    /// What its packets are marked with afterwards (`output-mark`).
    pub output_mark: Mark,
    /// The number of the XFRM interface that it is for; 0 for none.
    pub if_id: u32,
    /// When it ends.
    pub lifetime: Lifetime,
    /// The number of the [`Acquire`](crate::Acquire) that it answers (`seq`); 0 for none.
    pub acquire_seq: u32,
}

/// What an SA with a UDP header around ESP does about the NAT that it is for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NatTraversal {
    /// Seconds after which one that was not used sends a keepalive (RFC 3948 §4); 0 for never.
    pub keepalive_interval: u32,
    /// Seconds after which it is told again that its peer sends from elsewhere; 0 tells each new place once.
    pub mapping_threshold: u32,
    /// Whether the tunnels to its peer (those with its `reqid`) follow it to the place that it sends from now.
    pub follow: bool,
}

/// Options of an SA, by the names that `ip xfrm state … flag` and `extra-flag` give them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SaFlags {
    /// Congestion marks are not carried between the outer and the inner header (RFC 6040).
    pub noecn: bool,
    /// The outer DSCP is copied to the inner header on the way in.
    pub decap_dscp: bool,
    /// The outer IPv4 header does not carry Don't Fragment.
    pub nopmtudisc: bool,
    /// 64-bit sequence numbers (RFC 4303 §2.2.1).
    pub esn: bool,
    /// The inner DSCP is not copied to the outer header on the way out.
    pub dont_encap_dscp: bool,
    /// 32-bit sequence numbers may start over instead of ending the SA.
    pub oseq_may_wrap: bool,
    /// It is received by alone: no template finds it.
    pub wildrecv: bool,
    /// An ICMP error comes through it also if only the packet that it quotes is one of the selector's.
    pub icmp: bool,
    /// Without a selector it takes both families, and not only that of its own addresses.
    pub af_unspec: bool,
}

/// A UDP header around ESP (RFC 3948): `espinudp`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EspInUdp {
    /// The source port.
    pub sport: u16,
    /// The destination port.
    pub dport: u16,
}

/// Which packets a policy or an SA is for (RFC 4301 §4.4.1.1).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Selector {
    /// Their sources.
    pub src: Prefix,
    /// Their destinations, of the same family.
    pub dst: Prefix,
    /// Their upper-layer protocol; any if `None`.
    pub protocol: Option<Protocol>,
    /// Their source port, or ICMP type.
    pub sport: PortMask,
    /// Their destination port, or ICMP code.
    pub dport: PortMask,
    /// The link of [`Flowi::link`]; any if [`LinkId::NONE`].
    pub dev: LinkId,
}

/// A port under a mask, as XFRM selectors have it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct PortMask {
    /// The bits that a port must have.
    pub port: u16,
    /// Which bits are looked at; 0 for any port, `0xffff` for exactly one.
    pub mask: u16,
}

/// A security policy (RFC 4301 §4.4.1).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyConfig {
    /// Which way the packets go.
    pub dir: Dir,
    /// Which packets it is for.
    pub selector: Selector,
    /// The smallest wins.
    pub priority: u32,
    /// What becomes of them.
    pub action: Action,
    /// The SAs that they need, the innermost first. None: they pass in clear.
    pub templates: Vec<Template>,
    /// Which marked packets it is for.
    pub mark: Mark,
    /// The number of the XFRM interface that it is for; 0 for none.
    pub if_id: u32,
    /// When it ends, of which [`Limits::bytes`](crate::Limits::bytes) and [`Limits::packets`](crate::Limits::packets) do
    /// nothing.
    pub lifetime: Lifetime,
}

/// What tells one policy from another (Linux `xfrm_policy_bysel_ctx`). Its priority does not.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PolicyKey {
    /// Which way the packets go.
    pub dir: Dir,
    /// Which packets it is for.
    pub selector: Selector,
    /// Which marked packets.
    pub mark: Mark,
    /// The number of the XFRM interface.
    pub if_id: u32,
}

/// Which way a policy's packets go: Linux's `XFRM_POLICY_*`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Dir {
    /// To this node.
    In,
    /// Out of this node, forwarded or its own.
    Out,
    /// Through this node, judged as they came in.
    Fwd,
}

/// What a policy says of its packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Action {
    /// They pass, protected as the templates say.
    #[default]
    Allow,
    /// They are dropped.
    Block,
}

/// One ESP SA that a policy asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Template {
    /// The outer source; `None` for any. In transport mode it is the packet's own.
    pub src: Option<IpAddr>,
    /// The outer destination, which tunnel mode must have. In transport mode it is the packet's own.
    pub dst: Option<IpAddr>,
    /// The SA's SPI; `None` for any.
    pub spi: Option<Spi>,
    /// The SA's mode.
    pub mode: Mode,
    /// The SA's `reqid`.
    pub reqid: u32,
    /// Whether packets may go without.
    pub level: Level,
}

/// Whether a template's SA has to be there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Level {
    /// Without it the packet is dropped.
    Required,
    /// Without it the packet passes.
    Use,
}

/// Most templates that a policy may have (`XFRM_MAX_DEPTH`). One with so many is never satisfied: it can be added, but
/// there must be one fewer for it to be of use.
pub const MAX_TEMPLATES: usize = 6;

/// Why an SA or a policy was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConfigError {
    /// The algorithm, its key or its integrity check value.
    Algorithm(AlgorithmError),
    /// Addresses that must be of one family are not.
    Family(IpAddr, IpAddr),
    /// SPI 0, which no SA has (RFC 4303 §2.1).
    SpiZero,
    /// A replay window above [`MAX_WINDOW`].
    ReplayWindow(u32),
    /// Extended sequence numbers without a replay window, in an SA that may receive.
    EsnWithoutWindow,
    /// An option, by iproute2's name, that has no meaning in that direction.
    Direction(SaDir, &'static str),
    /// A key that has received would send, or the other way round.
    DirReversed,
    /// There is such an SA or policy already.
    Exists,
    /// There is no such SA.
    NotFound,
    /// Extended sequence numbers cannot be switched on or off under a key that is in use: either end would take the
    /// other's numbers for others.
    EsnChanged,
    /// There are [`MAX_SAS`](crate::sad::MAX_SAS) SAs.
    TooMany,
    /// The destination of an SA or a tunnel template is unspecified.
    NoDestination,
    /// More than [`MAX_TEMPLATES`] templates.
    Templates(usize),
    /// A tunnel that may be absent in a policy of direction out: packets would leave in clear.
    OptionalTunnel,
    /// Source and destination of a selector are not of one family.
    SelectorFamily,
    /// A UDP header around ESP cannot be added or taken away under a key that is in use.
    EncapChanged,
    /// The SA has expired, and waits to be removed.
    NotValid,
    /// The lowest SPI to choose from is above the highest.
    SpiRange(u32, u32),
    /// Every SPI to choose from is taken.
    NoSpi,
    /// TFC padding in transport mode, whose receiver could not tell it from the packet.
    TfcTransport,
    /// A peer that is to be followed without a replay window: what is sent again would say that it has moved.
    FollowWithoutWindow,
    /// An option for NAT traversal, by its name, without a UDP header around ESP.
    WithoutEncap(&'static str),
}

impl Selector {
    /// Everything between two prefixes.
    pub const fn new(src: Prefix, dst: Prefix) -> Self {
        Self { src, dst, protocol: None, sport: PortMask::ANY, dport: PortMask::ANY, dev: LinkId::NONE }
    }

    /// The packets of one flow alone (Linux `xfrm_init_tempstate`).
    pub(crate) const fn exactly(flow: &Flowi) -> Self {
        let FlowKey { src, dst, protocol, sport, dport } = flow.key;
        Self {
            src: Prefix::host(src),
            dst: Prefix::host(dst),
            protocol: Some(protocol),
            sport: PortMask::exactly(sport),
            dport: PortMask::exactly(dport),
            dev: flow.link,
        }
    }

    /// Tells whether `flow` is one of its packets.
    #[inline]
    pub fn matches(&self, flow: &Flowi) -> bool {
        self.src.contains(flow.key.src)
            && self.dst.contains(flow.key.dst)
            && self.protocol.is_none_or(|protocol| protocol == flow.key.protocol)
            && self.sport.matches(flow.key.sport)
            && self.dport.matches(flow.key.dport)
            && (self.dev == LinkId::NONE || self.dev == flow.link)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let families = (Version::of_addr(self.src.addr()), Version::of_addr(self.dst.addr()));
        if families.0 == families.1 { Ok(()) } else { Err(ConfigError::SelectorFamily) }
    }
}

impl PortMask {
    /// Any port.
    pub const ANY: Self = Self { port: 0, mask: 0 };

    /// This port alone.
    pub const fn exactly(port: u16) -> Self {
        Self { port, mask: u16::MAX }
    }

    const fn matches(self, port: u16) -> bool {
        (self.port ^ port) & self.mask == 0
    }
}

impl SaConfig {
    /// An SA for everything between two addresses, without options.
    pub fn new(src: IpAddr, dst: IpAddr, spi: Spi, mode: Mode, algorithm: Algorithm) -> Self {
        Self {
            src,
            dst,
            spi,
            dir: None,
            mode,
            reqid: 0,
            algorithm,
            replay_window: 0,
            flags: SaFlags::default(),
            encap: None,
            selector: None,
            oseq: 0,
            seq: 0,
            tfcpad: 0,
            nat: NatTraversal::default(),
            mark: Mark::ANY,
            output_mark: Mark::ANY,
            if_id: 0,
            lifetime: Lifetime::default(),
            acquire_seq: 0,
        }
    }

    /// Checks what can be told without the other SAs.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        same_family(self.src, self.dst)?;
        if self.dst.is_unspecified() {
            return Err(ConfigError::NoDestination);
        }
        if self.spi.0 == 0 {
            return Err(ConfigError::SpiZero);
        }
        if self.replay_window > MAX_WINDOW {
            return Err(ConfigError::ReplayWindow(self.replay_window));
        }
        self.check_direction()?;
        if self.flags.esn && self.replay_window == 0 && self.dir != Some(SaDir::Out) {
            return Err(ConfigError::EsnWithoutWindow);
        }
        self.check_nat()?;
        if self.tfcpad > 0 && self.mode == Mode::Transport {
            return Err(ConfigError::TfcTransport);
        }
        self.selector.as_ref().map_or(Ok(()), Selector::check)
    }

    fn check_nat(&self) -> Result<(), ConfigError> {
        let NatTraversal { keepalive_interval, mapping_threshold, follow } = self.nat;
        let options = [
            ("nat-keepalive-interval", keepalive_interval > 0),
            ("nat-mapping-threshold", mapping_threshold > 0),
            ("nat-follow", follow),
        ];
        match options.iter().find(|(_, is_set)| *is_set && self.encap.is_none()) {
            Some(&(option, _)) => Err(ConfigError::WithoutEncap(option)),
            None if follow && self.replay_window == 0 && self.dir != Some(SaDir::Out) => {
                Err(ConfigError::FollowWithoutWindow)
            }
            None => Ok(()),
        }
    }

    /// An SA that names its direction has none of the other one's options (Linux `verify_newsa_info`,
    /// `verify_replay`).
    fn check_direction(&self) -> Result<(), ConfigError> {
        let Some(dir) = self.dir else { return Ok(()) };
        let SaFlags { decap_dscp, nopmtudisc, dont_encap_dscp, oseq_may_wrap, wildrecv, icmp, .. } = self.flags;
        let wrong = match dir {
            SaDir::Out => &[
                ("decap-dscp", decap_dscp),
                ("icmp", icmp),
                ("wildrecv", wildrecv),
                ("replay-window", self.replay_window > 0),
                ("replay-seq", self.seq > 0),
                ("nat-mapping-threshold", self.nat.mapping_threshold > 0),
                ("nat-follow", self.nat.follow),
            ][..],
            SaDir::In => &[
                ("nopmtudisc", nopmtudisc),
                ("dont-encap-dscp", dont_encap_dscp),
                ("oseq-may-wrap", oseq_may_wrap),
                ("replay-oseq", self.oseq > 0),
                ("tfcpad", self.tfcpad > 0),
                ("nat-keepalive-interval", self.nat.keepalive_interval > 0),
            ],
        };
        match wrong.iter().find(|(_, is_set)| *is_set) {
            Some(&(option, _)) => Err(ConfigError::Direction(dir, option)),
            None => Ok(()),
        }
    }
}

impl PolicyConfig {
    /// A policy that lets packets pass in clear, of the highest priority.
    pub const fn new(dir: Dir, selector: Selector) -> Self {
        Self {
            dir,
            selector,
            priority: 0,
            action: Action::Allow,
            templates: Vec::new(),
            mark: Mark::ANY,
            if_id: 0,
            lifetime: Lifetime { soft: crate::Limits::NONE, hard: crate::Limits::NONE },
        }
    }

    /// What tells it from others.
    pub const fn key(&self) -> PolicyKey {
        PolicyKey { dir: self.dir, selector: self.selector, mark: self.mark, if_id: self.if_id }
    }

    /// Whether its packets may be in clear.
    pub(crate) fn allows_clear(&self) -> bool {
        self.action == Action::Allow && self.templates.iter().all(|template| template.level == Level::Use)
    }

    /// Checks what can be told without the other policies.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.selector.check()?;
        if self.templates.len() > MAX_TEMPLATES {
            return Err(ConfigError::Templates(self.templates.len()));
        }
        for template in &self.templates {
            if let (Some(src), Some(dst)) = (template.src, template.dst) {
                same_family(src, dst)?;
            }
            if template.mode == Mode::Tunnel {
                if template.dst.is_none_or(|dst| dst.is_unspecified()) {
                    return Err(ConfigError::NoDestination);
                }
                if template.level == Level::Use && self.dir == Dir::Out {
                    return Err(ConfigError::OptionalTunnel);
                }
            }
        }
        Ok(())
    }
}

fn same_family(a: IpAddr, b: IpAddr) -> Result<(), ConfigError> {
    if a.is_ipv4() == b.is_ipv4() { Ok(()) } else { Err(ConfigError::Family(a, b)) }
}

impl From<AlgorithmError> for ConfigError {
    fn from(err: AlgorithmError) -> Self {
        Self::Algorithm(err)
    }
}

impl fmt::Display for SaDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
        })
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Algorithm(err) => err.fmt(f),
            Self::Family(a, b) => write!(f, "{a} and {b} are of different families"),
            Self::SpiZero => f.write_str("an SPI is not 0"),
            Self::ReplayWindow(size) => write!(f, "replay-window {size} is above {MAX_WINDOW}"),
            Self::EsnWithoutWindow => f.write_str("esn needs a replay-window above 0"),
            Self::Direction(dir, option) => write!(f, "an SA of dir {dir} has no {option}"),
            Self::DirReversed => f.write_str("dir cannot be reversed under a key in use; give it a new SPI and key"),
            Self::Exists => f.write_str("it exists already"),
            Self::NotFound => f.write_str("it does not exist"),
            Self::EsnChanged => f.write_str("esn cannot change under a key that is in use; give it a new SPI and key"),
            Self::TooMany => write!(f, "there are {} SAs already", crate::sad::MAX_SAS),
            Self::NoDestination => f.write_str("a destination address is missing"),
            Self::Templates(n) => write!(f, "{n} templates are more than {MAX_TEMPLATES}"),
            Self::OptionalTunnel => f.write_str("in direction out only a transport template can be of level use"),
            Self::SelectorFamily => f.write_str("source and destination of a selector are of different families"),
            Self::EncapChanged => f.write_str("encap cannot come or go under a key in use; give it a new SPI and key"),
            Self::NotValid => f.write_str("it has expired"),
            Self::SpiRange(min, max) => write!(f, "the SPI {min:#x} is above {max:#x}"),
            Self::NoSpi => f.write_str("No SPI available in the requested range"),
            Self::TfcTransport => f.write_str("tfcpad is for tunnel mode alone"),
            Self::FollowWithoutWindow => f.write_str("nat-follow needs a replay-window above 0"),
            Self::WithoutEncap(option) => write!(f, "{option} is for an SA with encap alone"),
        }
    }
}

impl std::error::Error for ConfigError {}
