//! Hooks: five points of the datapath at which users look at a packet (Linux netfilter, `NF_INET_*`).
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
//! A point without users costs one bit test.

use base::LinkId;
use wire::Version;

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
}

/// Points that have users.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Hooks {
    /// A bit for each point and IP version at which there is a user.
    used: u16,
    /// The same of each user.
    of_users: [u16; HookUser::COUNT],
}

/// Bits of all points for both versions.
const ALL: u16 = (1 << 10) - 1;

/// Bits of the points that received packets pass: pre-routing and local in.
const RECEIVE: u16 = 0b1111;

impl HookUser {
    const COUNT: usize = 1;

    /// Points that the user is called at, as bits.
    const fn points(self) -> u16 {
        match self {
            Self::Trace => ALL,
        }
    }
}

impl Hooks {
    /// Adds or removes a user.
    pub(crate) fn set(&mut self, user: HookUser, is_on: bool) {
        self.of_users[user as usize] = if is_on { user.points() } else { 0 };
        self.used = self.of_users.iter().fold(0, |used, points| used | points);
    }

    /// Tells whether any point of the receive side has a user: what would be seen there may not take a shortcut.
    pub(crate) fn is_used_on_receive(self) -> bool {
        self.used & RECEIVE != 0
    }

    #[inline]
    fn has(self, point: HookPoint, version: Version) -> bool {
        let bit = point as u16 * 2 + u16::from(version == Version::V6);
        self.used >> bit & 1 == 1
    }
}

/// Runs the users of a point on a packet.
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
