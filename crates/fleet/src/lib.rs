//! Core of the fleet's agent: mappings and routes of one node, from a store that all nodes of a fleet share.
//!
//! # Decides
//! - Names and values of the store's [keys](Key), and the [reasons](Refusal) for which an object is left alone.
//! - Operations of a gateway: [`Reconciler`] takes [snapshots](Snapshot) and [events](Event) of the store, a [dump](Dump) of the gateway
//!   and the time, and returns [operations](Op), requests for a further look at the store, and its next deadline.
//! - Withdrawals: nothing that goes wrong in the store withdraws a mapping or a route. Additions and replacements are applied at once. A
//!   deletion waits for [`GRACE`], and one that a snapshot has shown for a second look. A large share of deletions, and any deletion while the
//!   store has [another history](Hold), wait for the operator's [`approve`](Reconciler::approve).
//! - [State](Saved) that outlives the agent.
//!
//! # Leaves to others
//! The store's protocol, the gateway's netlink socket, the file, clocks and random numbers (crate `fleet-agent`).
//!
//! # Limits
//! - Values: [`MAX_VALUE`] (4096) bytes. Names of fleets, nodes and domains: 63 bytes.
//! - Withdrawals: held if they are [`MASS`] (100) at least, and more than 10 % of the mappings, or of the networks of VRFs.
//! - Refused objects: 1000 are named, all are counted.
//!
//! # Standards
//! RFC 4291 §2.2 (text of addresses) and RFC 5952 §4 (their one form in keys); RFC 8259 (JSON). draft-herbert-intarea-ila for mappings.
#![forbid(unsafe_code)]

mod history;
mod key;
mod names;
mod network;
mod reconciler;
mod refusal;
mod register;
mod saved;
mod settings;
mod table;
mod value;
mod withdrawal;

pub use history::{History, Hold, Stamp};
pub use key::Key;
pub use network::RouteSlot;
pub use reconciler::{Dump, Event, Hop, KeyValue, Op, Reconciler, Snapshot, Status, Target};
pub use refusal::Refusal;
pub use saved::{Changes, Saved, SavedObject};
pub use settings::{BadSettings, Domain, Settings};
pub use value::{MAX_VALUE, MetaValue, NetworkValue, NodeValue, TaskState, TaskValue};
pub use withdrawal::{GRACE, MASS};
