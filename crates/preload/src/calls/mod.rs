//! Functions of the C library that this library replaces.
//!
//! Each function checks whether its descriptor is a connection to the gateway, and passes all other calls on unchanged.

mod confinement;
mod descriptors;
mod exec;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod exec_list;
mod namespaces;
mod netfilter;
pub(crate) mod options;
mod sockets;
mod transfer;
mod waits;
