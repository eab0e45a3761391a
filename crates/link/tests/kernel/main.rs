//! Links against the host's kernel in separate namespaces: the kernel's TCP and UDP at both ends, its devices in
//! between.

mod bridge;
mod packet_socket;
mod queues;
mod train;
mod tun;
mod udp;
mod xdp;

use driver::DriverKind;
use libtest_mimic::Arguments;
use link::{Config, Link};
use system::Netns;

fn main() {
    let trials = [tun::trials(), udp::trials(), packet_socket::trials(), xdp::trials(), queues::trials()];
    let trials = trials.into_iter().flatten().collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Opens a link in a namespace.
fn open(netns: &Netns, name: &str, kind: DriverKind, offloads: bool) -> system::Outcome<Box<dyn Link>> {
    let config = Config { name: name.to_owned(), kind, mac: None, mtu: None, offloads, index: None };
    netns.enter(|| link::open(&config)).map_err(|err| err.to_string().into())
}
