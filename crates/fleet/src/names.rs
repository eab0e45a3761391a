//! Names of nodes, each kept once: a mapping has a number.

use std::collections::HashMap;

/// Number of a node's name.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct NodeId(u32);

/// All names that have been seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    ids: HashMap<Box<str>, NodeId>,
    texts: Vec<Box<str>>,
}

impl Names {
    /// Number of a name.
    pub(crate) fn id(&mut self, name: &str) -> NodeId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = NodeId(self.texts.len() as u32);
        self.texts.push(name.into());
        self.ids.insert(name.into(), id);
        id
    }

    /// Name of a number.
    pub(crate) fn text(&self, id: NodeId) -> &str {
        self.texts.get(id.0 as usize).map_or("", |text| text)
    }
}
