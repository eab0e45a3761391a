//! History of the store: whether what it says now continues what it said before.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Place of a value in the order of all changes: the history, counted, and etcd's `mod_revision` in it.
///
/// Each history that follows another one has a higher number. Number 0 is a store of another identity, whose values replace none.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Stamp {
    /// Number of the history.
    pub history: u32,
    /// `mod_revision`.
    pub revision: u64,
}

/// Reason for which nothing is withdrawn.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Hold {
    /// The store has no `meta`: it is empty, or has not been initialised.
    NoMeta,
    /// `meta` has another identity: the store is another one, or has been made anew.
    Foreign,
    /// The store's revision has gone back: it has been restored from a backup.
    Older,
    /// A large share of all mappings, or of all networks of VRFs, would be withdrawn.
    Mass,
}

impl Hold {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::NoMeta, Self::Foreign, Self::Older, Self::Mass];

    /// Name, as metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoMeta => "no-meta",
            Self::Foreign => "foreign",
            Self::Older => "older",
            Self::Mass => "mass",
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoMeta => "the store has no meta",
            Self::Foreign => "the store has another identity",
            Self::Older => "the store has been restored from a backup",
            Self::Mass => "more than 10 % of all mappings or networks would be withdrawn",
        })
    }
}

/// Identity of the store as it was last seen, against the known one.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
enum Identity {
    /// The same, or none is known yet.
    #[default]
    Same,
    Missing,
    Foreign,
}

/// Known history of the store.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct History {
    uuid: Option<String>,
    identity: Identity,
    /// Highest revision seen in this history.
    revision: u64,
    /// Number of this history.
    number: u32,
    /// Revision at which this history was first seen, if it follows a restored backup: what is older belongs to the history before.
    base: u64,
    /// The store has been restored from a backup, which no operator has approved.
    is_older: bool,
    /// A large share of withdrawals is held.
    pub(crate) is_mass: bool,
    /// The next snapshot is the truth, whatever it is.
    #[serde(skip)]
    is_approved: bool,
}

impl Default for History {
    fn default() -> Self {
        Self {
            uuid: None,
            identity: Identity::Same,
            revision: 0,
            number: 1,
            base: 0,
            is_older: false,
            is_mass: false,
            is_approved: false,
        }
    }
}

impl History {
    /// Highest revision seen.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Identity of the store.
    pub fn uuid(&self) -> Option<&str> {
        self.uuid.as_deref()
    }

    /// Reason to withdraw nothing, if the history has one.
    pub const fn hold(&self) -> Option<Hold> {
        match self.identity {
            Identity::Missing => Some(Hold::NoMeta),
            Identity::Foreign => Some(Hold::Foreign),
            Identity::Same if self.is_older => Some(Hold::Older),
            Identity::Same => None,
        }
    }

    /// Takes the next snapshot as the truth, if the store has another history.
    pub const fn approve(&mut self) {
        self.is_approved = self.hold().is_some();
    }

    /// Judges a snapshot: the identity in its `meta`, its revision, the revision that was known when it was requested, and whether a value
    /// in it is older than that of the same key before. Returns whether it is the first of an approved history.
    pub fn judge(&mut self, uuid: Option<&str>, revision: u64, known: u64, is_older: bool) -> bool {
        if self.is_approved {
            let number = self.number + 1;
            let is_mass = self.is_mass;
            *self = Self { uuid: uuid.map(str::to_owned), revision, number, is_mass, ..Self::default() };
            self.identify(uuid);
            return true;
        }
        self.identify(uuid);
        if self.is_of_other_store() {
            return false;
        }
        if is_older || revision < known {
            self.number += 1;
            self.base = revision;
            self.revision = revision;
            self.is_older = true;
        }
        self.revision = self.revision.max(revision);
        false
    }

    /// Notes the identity of the store, which a snapshot or a change of `meta` has shown.
    pub fn identify(&mut self, uuid: Option<&str>) {
        self.identity = match (&self.uuid, uuid) {
            (_, None) => Identity::Missing,
            (None, Some(uuid)) => {
                self.uuid = Some(uuid.to_owned());
                Identity::Same
            }
            (Some(known), Some(uuid)) if known == uuid => Identity::Same,
            (Some(_), Some(_)) => Identity::Foreign,
        };
    }

    /// Notes the revision of an event.
    pub fn advance(&mut self, revision: u64) {
        if !self.is_of_other_store() {
            self.revision = self.revision.max(revision);
        }
    }

    /// Place of a value with this `mod_revision`.
    pub const fn stamp(&self, revision: u64) -> Stamp {
        let history = match () {
            () if self.is_of_other_store() => 0,
            () if revision <= self.base => self.number - 1,
            () => self.number,
        };
        Stamp { history, revision }
    }

    /// Place of a snapshot of this revision, or of the deletions that it shows.
    pub const fn stamp_of_snapshot(&self, revision: u64) -> Stamp {
        Stamp { history: if self.is_of_other_store() { 0 } else { self.number }, revision }
    }

    /// Whether a known store has given place to one with another identity, or none.
    const fn is_of_other_store(&self) -> bool {
        match self.identity {
            Identity::Same => false,
            Identity::Missing => self.uuid.is_some(),
            Identity::Foreign => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_judges_snapshots_by_identity_and_revision() {
        type Step = (Option<&'static str>, u64, u64, Option<Hold>, u32, &'static str);
        let steps: [Step; 9] = [
            (None, 5, 0, Some(Hold::NoMeta), 1, "not initialised"),
            (Some("u"), 9, 5, None, 1, "initialised"),
            (Some("u"), 12, 9, None, 1, "goes on"),
            (Some("u"), 11, 9, None, 1, "read before an event came"),
            (None, 3, 12, Some(Hold::NoMeta), 0, "emptied"),
            (Some("w"), 4, 12, Some(Hold::Foreign), 0, "made anew"),
            (Some("u"), 13, 12, None, 1, "the right one again"),
            (Some("u"), 7, 13, Some(Hold::Older), 2, "restored"),
            (Some("u"), 20, 7, Some(Hold::Older), 2, "restored, and no operator has looked"),
        ];
        let mut history = History::default();
        for (uuid, revision, known, hold, number, what) in steps {
            assert!(!history.judge(uuid, revision, known, false), "{what}");
            assert_eq!(history.hold(), hold, "{what}");
            assert_eq!(history.stamp_of_snapshot(revision).history, number, "{what}");
        }
        // Values from before the restoration belong to the first history, later ones to the second.
        assert_eq!(history.stamp(7), Stamp { history: 1, revision: 7 });
        assert_eq!(history.stamp(8), Stamp { history: 2, revision: 8 });
        history.approve();
        assert!(history.judge(Some("u"), 21, 20, false));
        assert_eq!((history.hold(), history.stamp(3).history), (None, 3));
        history.approve();
        assert!(!history.judge(Some("u"), 30, 21, true));
        assert_eq!(history.hold(), Some(Hold::Older), "a value has gone back");
    }
}
