//! Adapters against the hypervisor's LAN, which are independent implementations.

mod common;
mod features;
mod forwarding;
mod frag_list;
mod hostile;
mod interop;
mod pools;
mod receive;
mod transmit;
