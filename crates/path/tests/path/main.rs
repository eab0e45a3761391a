//! What a node does with packets, as its links see it: forwarding, local delivery, neighbours, IPsec, captures.

mod common;
mod forward;
mod local;
mod neighbours;
mod refused;
