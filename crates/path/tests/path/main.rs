//! What a node does with packets, as its links see it: forwarding, local delivery, neighbours, IPsec, captures.

mod bad_input;
mod bad_wire;
mod bump;
mod bursts;
mod capture;
mod common;
mod forward;
mod fragments;
mod frames;
mod gateways;
mod hostile;
mod ike;
mod ipsec_refused;
mod ipsec_tunnel;
mod ipsec_wire;
mod larval;
mod local;
mod nat;
mod neighbours;
mod nesting;
mod offload;
mod path_mtu;
mod refused;
mod vrf;
