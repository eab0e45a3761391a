//! Configuration of SAs and policies: plain values, checked when they are added.

mod error;
mod mode;
mod offload;
mod policy;
mod sa;

pub use error::ConfigError;
pub use mode::{Dir, MAX_SAS, MAX_TEMPLATES, Mode, SaDir};
pub use offload::{Offload, OffloadMode};
pub use policy::{Action, Level, PolicyConfig, PolicyKey, PortMask, Selector, Template};
pub use sa::{AeventLimits, Aevents, EspInUdp, NatTraversal, SaConfig, SaFlags};
