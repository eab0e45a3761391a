//! Tests of adapters against the hypervisor's LAN; the two are independent implementations.

mod common;
mod features;
mod forwarding;
mod frag_list;
mod hostile;
mod interop;
mod pools;
mod receive;
mod transmit;
