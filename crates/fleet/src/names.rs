//! Names of nodes and of VRFs, each kept once: an object has a number.

use std::collections::HashMap;

/// Number of a name.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct NameId(u32);

impl NameId {
    pub(crate) const FIRST: Self = Self(0);
    pub(crate) const LAST: Self = Self(u32::MAX);
}

/// All names that have been seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    ids: HashMap<Box<str>, NameId>,
    texts: Vec<Box<str>>,
}

impl Names {
    /// Number of a name.
    pub(crate) fn id(&mut self, name: &str) -> NameId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = NameId(self.texts.len() as u32);
        self.texts.push(name.into());
        self.ids.insert(name.into(), id);
        id
    }

    /// Name of a number.
    pub(crate) fn text(&self, id: NameId) -> &str {
        self.texts.get(id.0 as usize).map_or("", |text| text)
    }
}
