//! Configuration of a security association, checked when it is added.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wire::Spi;

use crate::algorithm::Algorithm;
use crate::error::ConfigError;
use crate::lifetime::Lifetime;
use crate::limits::MAX_WINDOW;
use crate::mark::Mark;
use crate::mode::{Mode, SaDir};
use crate::offload::{Offload, OffloadMode};
use crate::request::Request;
use crate::selector::{Selector, same_family};

/// An ESP security association (RFC 4301 §4.4.2), for one direction.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SaConfig {
    /// The outer source; unspecified for any.
    pub src: IpAddr,
    /// The outer destination, of the same family.
    pub dst: IpAddr,
    /// The security parameters index.
    pub spi: Spi,
    /// The only allowed direction; `None` leaves the direction to the use. An SA of [`SaDir::In`] is also used for
    /// packets to hosts behind this node.
    pub dir: Option<SaDir>,
    /// Mode: complete packets or their payload are protected.
    pub mode: Mode,
    /// Number that links the SA to templates with the same `reqid`.
    pub reqid: u32,
    /// Algorithm, with its keys.
    pub algorithm: Algorithm,
    /// Number of packets in the anti-replay window; 0 disables the check. At most [`MAX_WINDOW`].
    pub replay_window: u32,
    /// Flags, off by default.
    pub flags: SaFlags,
    /// The UDP header around ESP, if any.
    pub encap: Option<EspInUdp>,
    /// Inner packets allowed on the SA; `None` for all.
    pub selector: Option<Selector>,
    /// The last sequence number sent (`replay-oseq`); 0 for a new SA.
    pub oseq: u64,
    /// The highest sequence number received (`replay-seq`); 0 for a new SA.
    pub seq: u64,
    /// Length in bytes to which shorter inner packets of a tunnel are padded, limited by the path's MTU (RFC 4303
    /// §2.7); 0 for no padding.
    pub tfcpad: u32,
    /// Behaviour towards a NAT between the SA's ends.
    pub nat: NatTraversal,
    /// Mark of the packets. Two SAs with the same destination and SPI differ in the mark.
    pub mark: Mark,
    /// Mark that is set on the processed packets (`output-mark`).
    pub output_mark: Mark,
    /// The number of the SA's XFRM interface; 0 for none.
    pub if_id: u32,
    /// Limits at which the SA ends.
    pub lifetime: Lifetime,
    /// The number of the acquire that the SA answers (`seq`); 0 for none.
    pub acquire_seq: u32,
    /// Limits at which sequence numbers are reported.
    pub aevents: Aevents,
    /// Number of the CPU whose packets are sent by the SA (RFC 9611; `XFRMA_SA_PCPU`); `None` for the packets of every CPU
    /// that has no SA of its own.
    pub cpu: Option<u32>,
    /// The device that processes the SA's packets.
    pub offload: Option<Offload>,
    /// The request that created the SA, for the control plane to show.
    pub request: Option<Request>,
}

/// NAT behaviour of an SA with a UDP header around ESP.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct NatTraversal {
    /// Idle time in seconds after which an outbound SA sends a keepalive (RFC 3948 §4); 0 for never.
    pub keepalive_interval: u32,
    /// Minimum time in seconds between two reports of a changed peer address; 0 reports each new address once.
    pub mapping_threshold: u32,
    /// Whether the tunnels to the SA's peer (those with its `reqid`) follow the peer to a new address.
    pub follow: bool,
}

/// Limits at which an SA's sequence numbers are reported; `None` for the node's default.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Aevents {
    /// Number of packets between reports; 0 disables this limit.
    pub packets: Option<u32>,
    /// Time between reports; zero disables this limit.
    pub time: Option<Duration>,
}

impl Aevents {
    /// Effective limits, with `usual` for unset ones.
    #[must_use]
    pub fn or(self, usual: AeventLimits) -> AeventLimits {
        AeventLimits { packets: self.packets.unwrap_or(usual.packets), time: self.time.unwrap_or(usual.time) }
    }
}

/// Limits at which sequence numbers are reported again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AeventLimits {
    /// Number of packets sent or received since the last report (`xfrm_aevent_rseqth`); 0 disables this limit.
    pub packets: u32,
    /// Time since the last report, if the numbers have changed (`xfrm_aevent_etime`); zero disables this limit.
    pub time: Duration,
}

impl Default for AeventLimits {
    fn default() -> Self {
        Self { packets: 2, time: Duration::from_secs(1) }
    }
}

macro_rules! sa_flags {
    ($($(#[$doc:meta])* $field:ident $name:literal,)*) => {
        /// Options of an SA, named as in `ip xfrm state … flag` and `extra-flag`.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct SaFlags { $($(#[$doc])* pub $field: bool,)* }

        impl SaFlags {
            /// All names, in iproute2's order.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// Sets the flag of that name. False if the name is unknown.
            pub fn set(&mut self, name: &str) -> bool {
                match name {
                    $($name => self.$field = true,)*
                    _ => return false,
                }
                true
            }

            /// Names of the set flags.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                [$(self.$field.then_some($name),)*].into_iter().flatten()
            }
        }
    };
}

sa_flags! {
    /// Congestion marks are not carried between the outer and the inner header (RFC 6040).
    noecn "noecn",
    /// The outer DSCP is copied to the inner header on input.
    decap_dscp "decap-dscp",
    /// The outer IPv4 header does not carry Don't Fragment.
    nopmtudisc "nopmtudisc",
    /// The SA is for reception only: no template matches it.
    wildrecv "wildrecv",
    /// An ICMP error may pass through the SA if only its quoted packet matches the selector.
    icmp "icmp",
    /// Without a selector the SA accepts both families, not only that of its own addresses.
    af_unspec "af-unspec",
    /// 64-bit sequence numbers (RFC 4303 §2.2.1).
    esn "esn",
    /// The inner DSCP is not copied to the outer header on output.
    dont_encap_dscp "dont-encap-dscp",
    /// 32-bit sequence numbers may wrap instead of ending the SA.
    oseq_may_wrap "oseq-may-wrap",
}

/// A UDP header around ESP (RFC 3948): `espinudp`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct EspInUdp {
    /// The source port.
    pub sport: u16,
    /// The destination port.
    pub dport: u16,
}

impl SaConfig {
    /// An SA for all packets between two addresses, without options.
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
            aevents: Aevents::default(),
            cpu: None,
            offload: None,
            request: None,
        }
    }

    /// Checks all that does not depend on the key, other SAs and devices.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), ConfigError> {
        same_family(self.src, self.dst)?;
        if self.dst.is_unspecified() {
            return Err(ConfigError::NoDestination);
        }
        //= RFC 4303 §2.1 spi-zero: SPI 0 is for local use and never on the wire: no SA has it
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
        self.check_offload()?;
        if self.tfcpad > 0 && self.mode == Mode::Transport {
            return Err(ConfigError::TfcTransport);
        }
        self.selector.as_ref().map_or(Ok(()), Selector::check)
    }

    /// Checks options that no device supports (Linux `xfrm_dev_state_add`).
    fn check_offload(&self) -> Result<(), ConfigError> {
        let Some(Offload { dir, mode, .. }) = self.offload else { return Ok(()) };
        if self.dir.is_some_and(|it| it != dir) {
            return Err(ConfigError::OffloadDirection);
        }
        if self.tfcpad > 0 {
            return Err(ConfigError::Offload("tfcpad"));
        }
        if dir == SaDir::In && self.if_id != 0 {
            return Err(ConfigError::Offload("if_id"));
        }
        // The device would start its own numbers and window, which cannot continue from these values.
        if mode == OffloadMode::Packet && (self.oseq, self.seq) != (0, 0) {
            return Err(ConfigError::Offload("replay-seq"));
        }
        Ok(())
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
            None if keepalive_interval > 0 && self.dir != Some(SaDir::Out) => Err(ConfigError::KeepaliveWithoutDir),
            None if follow && self.replay_window == 0 && self.dir != Some(SaDir::Out) => {
                Err(ConfigError::FollowWithoutWindow)
            }
            None => Ok(()),
        }
    }

    /// Refuses options of the other direction for an SA with a direction (Linux `verify_newsa_info`, `verify_replay`).
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
                ("nat-keepalive-interval", self.nat.keepalive_interval > 0),
            ],
        };
        match wrong.iter().find(|(_, is_set)| *is_set) {
            Some(&(option, _)) => Err(ConfigError::Direction(dir, option)),
            None => Ok(()),
        }
    }
}
