//! Tests of the program as a whole: real processes, real interfaces, the host's kernel at either end.

mod bench;
mod bridge;
mod bridge_gro;
mod budget;
mod confine;
mod daemon;
mod demo;
mod descriptors;
mod devices;
mod drops;
mod esp_offload;
mod ethtool;
mod exec;
mod fail_closed;
mod filters;
mod fragment_tools;
mod guests;
mod host_side;
mod ike_policies;
mod ila;
mod install;
mod ioctl;
mod ip;
mod journal;
mod keys;
mod large_file;
mod lines;
mod linux_peer;
mod nat;
mod package;
mod pair;
mod privilege;
mod qdisc;
mod restart;
mod router;
mod service;
mod state;
mod status;
mod status_ike;
mod strongswan;
mod sysctl;
mod trial;
mod tunnel;
mod unmodified;
mod vhost;
mod vlan;
mod vrf;
mod walls;
mod workers;
mod xdp;

use libtest_mimic::Arguments;

/// The allocator of `fatpath`, which zeroes freed memory: a test of ciphers starts this program to search its memory.
#[global_allocator]
static ALLOCATOR: packet::Allocations = packet::Allocations;

fn main() {
    if keys::held() {
        return;
    }
    let trials = [
        tunnel::trials(),
        walls::trials(),
        nat::trials(),
        router::trials(),
        daemon::trials(),
        devices::trials(),
        drops::trials(),
        esp_offload::trials(),
        descriptors::trials(),
        package::trials(),
        pair::trials(),
        privilege::trials(),
        service::trials(),
        exec::trials(),
        fail_closed::trials(),
        filters::trials(),
        restart::trials(),
        host_side::trials(),
        ike_policies::trials(),
        ethtool::trials(),
        ioctl::trials(),
        ip::trials(),
        bridge::trials(),
        bridge_gro::trials(),
        budget::trials(),
        confine::trials(),
        guests::trials(),
        vhost::trials(),
        qdisc::trials(),
        vlan::trials(),
        vrf::trials(),
        workers::trials(),
        ila::trials(),
        install::trials(),
        lines::trials(),
        linux_peer::trials(),
        sysctl::trials(),
        journal::trials(),
        state::trials(),
        status::trials(),
        status_ike::trials(),
        trial::trials(),
        keys::trials(),
        large_file::trials(),
        strongswan::trials(),
        unmodified::trials(),
        demo::trials(),
        bench::trials(),
        xdp::trials(),
        fragment_tools::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
