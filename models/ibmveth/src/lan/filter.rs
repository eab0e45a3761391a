//! Multicast filter of an adapter in the hypervisor (`H_MULTICAST_CTRL`).

use wire::MacAddr;

use crate::error::Refusal;

/// Command of the call: bits, and a number in the lowest two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct McastCommand(pub u64);

impl McastCommand {
    /// Receives groups.
    pub const ENABLE_RECEPTION: Self = Self(0xa_0000);
    /// Receives no groups.
    pub const DISABLE_RECEPTION: Self = Self(0x8_0000);
    /// Receives only groups in the table.
    pub const ENABLE_FILTERING: Self = Self(0x5_0000);
    /// Receives every group.
    pub const DISABLE_FILTERING: Self = Self(0x4_0000);
    /// Adds a group to the table.
    pub const ADD: Self = Self(1);
    /// Removes a group from the table.
    pub const REMOVE: Self = Self(2);
    /// Removes all groups from the table.
    pub const CLEAR: Self = Self(3);

    const MODIFY_RECEPTION: u64 = 0x8_0000;
    const MODIFY_FILTERING: u64 = 0x4_0000;
    const RECEPTION: u64 = 0x2_0000;
    const FILTERING: u64 = 0x1_0000;
    const ALL: u64 = 0xf_0003;

    /// Two commands in one call.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// State of a filter. A newly opened adapter receives only broadcasts.
#[derive(Debug)]
pub(super) struct McastFilter {
    groups: Vec<MacAddr>,
    slots: usize,
    is_receiving: bool,
    is_filtering: bool,
}

impl McastFilter {
    pub(super) const fn new(slots: usize) -> Self {
        Self { groups: Vec::new(), slots, is_receiving: false, is_filtering: false }
    }

    /// Executes a command completely, or refuses it without effect.
    pub(super) fn control(&mut self, command: McastCommand, group: MacAddr) -> Result<(), Refusal> {
        let McastCommand(bits) = command;
        if bits & !McastCommand::ALL != 0 {
            return Err(Refusal::Parameter);
        }
        match bits & 3 {
            1 if !group.is_multicast() => return Err(Refusal::Parameter),
            1 if self.groups.contains(&group) => {}
            1 if self.groups.len() >= self.slots => return Err(Refusal::Resource),
            1 => self.groups.push(group),
            2 => match self.groups.iter().position(|other| *other == group) {
                Some(at) => drop(self.groups.swap_remove(at)),
                None => return Err(Refusal::Parameter),
            },
            3 => self.groups.clear(),
            _ => {}
        }
        if bits & McastCommand::MODIFY_RECEPTION != 0 {
            self.is_receiving = bits & McastCommand::RECEPTION != 0;
        }
        if bits & McastCommand::MODIFY_FILTERING != 0 {
            self.is_filtering = bits & McastCommand::FILTERING != 0;
        }
        Ok(())
    }

    /// Tells whether the filter passes frames to a group. Broadcasts always pass.
    pub(super) fn takes(&self, group: MacAddr) -> bool {
        group == MacAddr::BROADCAST || self.is_receiving && (!self.is_filtering || self.groups.contains(&group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddr = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    const B: MacAddr = MacAddr([1, 0, 0x5e, 0, 0, 2]);

    #[test]
    fn filter_takes_groups_of_its_table_alone() {
        let mut filter = McastFilter::new(1);
        assert_eq!((filter.takes(A), filter.takes(MacAddr::BROADCAST)), (false, true));
        let all = McastCommand::ENABLE_RECEPTION.with(McastCommand::DISABLE_FILTERING);
        filter.control(all, MacAddr::ZERO).unwrap();
        assert!(filter.takes(A) && filter.takes(B));
        filter.control(McastCommand::ADD, A).unwrap();
        filter.control(McastCommand::ENABLE_FILTERING, MacAddr::ZERO).unwrap();
        assert_eq!((filter.takes(A), filter.takes(B)), (true, false));
        // A second addition of a group changes nothing; another group finds no slot.
        assert_eq!(filter.control(McastCommand::ADD, A), Ok(()));
        assert_eq!(filter.control(McastCommand::ADD, B), Err(Refusal::Resource));
        filter.control(McastCommand::REMOVE, A).unwrap();
        assert_eq!(filter.control(McastCommand::REMOVE, A), Err(Refusal::Parameter));
        assert!(!filter.takes(A));
        filter.control(McastCommand::ADD, B).unwrap();
        filter.control(McastCommand::CLEAR.with(McastCommand::DISABLE_RECEPTION), MacAddr::ZERO).unwrap();
        assert!(!filter.takes(B));
    }

    #[test]
    fn command_of_unknown_bits_is_refused() {
        let mut filter = McastFilter::new(8);
        assert_eq!(filter.control(McastCommand(0x10_0000), A), Err(Refusal::Parameter));
        assert_eq!(filter.control(McastCommand::ADD, MacAddr([2, 0, 0, 0, 0, 1])), Err(Refusal::Parameter));
        assert_eq!(filter.control(McastCommand(0), A), Ok(()));
    }
}
