//! A trunk adapter as a port of a bridge: guests on a hypervisor's LAN on one side, a wire on the other.

mod exhaustion;
mod frag_lists;
mod matrix;
mod reconfiguration;
mod site;
