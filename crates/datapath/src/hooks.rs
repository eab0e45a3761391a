//! Hooks: five points of the datapath at which users inspect or change a packet (Linux netfilter, `NF_INET_*`).
//!
//! | point | packets | device |
//! |---|---|---|
//! | pre-routing | received, before the route lookup; in a VRF a second time with its device | the link, the VRF |
//! | local in | for this node, whole | the link |
//! | forward | for another node, after the route lookup | the link that they leave by |
//! | local out | answers and errors of this node, after the route lookup; in a VRF first with its device | the VRF, the link |
//! | post-routing | forwarded ones, answers and errors, before ESP | the link that they leave by, the VRF before it |
//!
//! Outer packets of ESP, messages of IKE and keepalives pass no hook on their way out.
//!
//! A point without users costs one bit test. Only one user changes packets: ILA, at pre-routing, for IPv6 (Linux gives it priority
//! −1). ILA changes a packet once, even if the packet passes the point again with its VRF.

use base::{DropReason, LinkId};
use wire::Version;

use crate::ila_hook;
use crate::trace::{self, Step};
use crate::{Cx, Datapath, IpPacket};

/// Point of the datapath.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HookPoint {
    /// `NF_INET_PRE_ROUTING`.
    PreRouting,
    /// `NF_INET_LOCAL_IN`.
    LocalIn,
    /// `NF_INET_FORWARD`.
    Forward,
    /// `NF_INET_LOCAL_OUT`.
    LocalOut,
    /// `NF_INET_POST_ROUTING`.
    PostRouting,
}

/// User of hooks. Users of a point run in this order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HookUser {
    /// `fatpath trace`, at every point.
    Trace,
    /// Translation of ILA addresses.
    Ila,
}

/// Points that have users.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Hooks {
    /// A bit for each point and IP version at which there is a user.
    used: u16,
    /// The bits of each user.
    of_users: [u16; HookUser::COUNT],
}

/// Bits of all points for both versions.
const ALL: u16 = (1 << 10) - 1;

/// Bit of pre-routing for IPv6.
const PRE_ROUTING_V6: u16 = 0b10;

/// Bits of the points that received packets pass: pre-routing and local in.
const RECEIVE: u16 = 0b1111;

impl HookUser {
    const COUNT: usize = 2;

    /// Points that the user is called at, as bits.
    const fn points(self) -> u16 {
        match self {
            Self::Trace => ALL,
            Self::Ila => PRE_ROUTING_V6,
        }
    }
}

impl Hooks {
    /// Adds or removes a user.
    pub(crate) fn set(&mut self, user: HookUser, is_on: bool) {
        self.of_users[user as usize] = if is_on { user.points() } else { 0 };
        self.used = self.of_users.iter().fold(0, |used, points| used | points);
    }

    /// Tells whether a user was added.
    #[inline]
    pub(crate) fn is_set(self, user: HookUser) -> bool {
        self.of_users[user as usize] != 0
    }

    /// Tells whether any point of the receive side has a user, so that received packets may not take a shortcut.
    pub(crate) fn is_used_on_receive(self) -> bool {
        self.used & RECEIVE != 0
    }

    #[inline]
    fn has(self, point: HookPoint, version: Version) -> bool {
        let bit = point as u16 * 2 + u16::from(version == Version::V6);
        self.used >> bit & 1 == 1
    }
}

/// Runs the users of pre-routing on a packet. `is_translated` says that a user changed the packet when it passed this point with
/// another device. Returns whether the packet has been changed, now or before.
///
/// # Errors
/// The reason to drop the packet.
#[inline]
pub(crate) fn pre_routing(
    dp: &mut Datapath,
    cx: Cx<'_>,
    dev: LinkId,
    ip: &mut IpPacket,
    is_translated: bool,
) -> Result<bool, DropReason> {
    let version = ip.info.version();
    if !dp.hooks.has(HookPoint::PreRouting, version) {
        return Ok(is_translated);
    }
    if dp.trace.is_on() {
        run_users(dp, cx, HookPoint::PreRouting, dev, ip);
    }
    if is_translated || version == Version::V4 || !dp.hooks.is_set(HookUser::Ila) {
        return Ok(is_translated);
    }
    ila_hook::translate(dp, cx, dev, ip)
}

/// Runs the users of a point on a packet that none of them changes.
#[inline]
pub(crate) fn run(dp: &mut Datapath, cx: Cx<'_>, point: HookPoint, dev: LinkId, ip: &mut IpPacket) {
    if dp.hooks.has(point, ip.info.version()) {
        run_users(dp, cx, point, dev, ip);
    }
}

#[cold]
fn run_users(dp: &mut Datapath, cx: Cx<'_>, point: HookPoint, dev: LinkId, ip: &mut IpPacket) {
    trace::step(dp, cx, &mut ip.pkt, Step::Hook { point, dev });
}
