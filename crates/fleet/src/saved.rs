//! State that outlives the agent: the last good value of each object, and the store's history.

use crate::history::{History, Stamp};

/// An object as it is saved.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SavedObject {
    /// Key in the store.
    pub key: String,
    /// Place of the value in the order of changes.
    pub stamp: Stamp,
    /// The value's JSON.
    pub value: Vec<u8>,
}

/// The whole state.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Saved {
    /// Known history.
    pub history: History,
    /// All objects.
    pub objects: Vec<SavedObject>,
}

/// Changes of the state since the last call.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Changes {
    /// Known history.
    pub history: History,
    /// New and changed objects.
    pub changed: Vec<SavedObject>,
    /// Keys of removed objects.
    pub removed: Vec<String>,
}
