//! Points of hooks, and the users at each.

use wire::Version;

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
    pub(crate) used: u16,
    /// The bits of each user.
    pub(crate) of_users: [u16; HookUser::COUNT],
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

    /// Tells whether a point of the receive side has a user that every packet has to pass, so that received packets may not take
    /// a shortcut. ILA changes only packets that it has a mapping for; shortcuts leave these alone.
    pub(crate) fn needs_every_packet(self) -> bool {
        self.of_users[HookUser::Trace as usize] & RECEIVE != 0
    }

    #[inline]
    pub(crate) fn has(self, point: HookPoint, version: Version) -> bool {
        let bit = point as u16 * 2 + u16::from(version == Version::V6);
        self.used >> bit & 1 == 1
    }
}
