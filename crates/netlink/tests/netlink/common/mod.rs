//! A node, and recorded requests.

pub(crate) mod node;
pub(crate) mod recording;
