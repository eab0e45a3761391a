//! Tests of the program as a whole: real processes, real interfaces, the host's kernel at either end.

mod bench;
mod bridge;
mod bridge_gro;
mod budget;
mod churn;
mod confine;
mod daemon;
mod demo;
mod descriptors;
mod devices;
mod drops;
mod esp_offload;
mod ethtool;
mod exec;
mod extcap;
mod fail_closed;
mod filters;
mod fleet;
mod fleet_access;
mod fragment_tools;
mod guest_ports;
mod guests;
mod host_side;
mod ike_policies;
mod ila;
mod install;
mod ioctl;
mod ip;
mod journal;
mod journald;
mod keys;
mod large_file;
mod lines;
mod linux_peer;
mod multipath;
mod nat;
mod package;
mod pair;
mod privilege;
mod progress;
mod qdisc;
mod replace;
mod restart;
mod restart_traffic;
mod router;
mod rules;
mod see;
mod service;
mod state;
mod status;
mod status_ike;
mod strongswan;
mod sysctl;
mod top;
mod trial;
mod tunnel;
mod unmodified;
mod user;
mod vhost;
mod view;
mod vlan;
mod vrf;
mod walls;
mod web;
mod workers;
mod workers_ipsec;
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
        multipath::trials(),
        rules::trials(),
        daemon::trials(),
        devices::trials(),
        drops::trials(),
        esp_offload::trials(),
        descriptors::trials(),
        package::trials(),
        pair::trials(),
        privilege::trials(),
        progress::trials(),
        see::trials(),
        top::trials(),
        web::trials(),
        service::trials(),
        exec::trials(),
        extcap::trials(),
        fail_closed::trials(),
        fleet::trials(),
        fleet_access::trials(),
        filters::trials(),
        restart::trials(),
        restart_traffic::trials(),
        replace::trials(),
        host_side::trials(),
        ike_policies::trials(),
        ethtool::trials(),
        ioctl::trials(),
        ip::trials(),
        bridge::trials(),
        bridge_gro::trials(),
        budget::trials(),
        churn::trials(),
        confine::trials(),
        guest_ports::trials(),
        guests::trials(),
        vhost::trials(),
        view::trials(),
        qdisc::trials(),
        vlan::trials(),
        vrf::trials(),
        workers::trials(),
        workers_ipsec::trials(),
        ila::trials(),
        install::trials(),
        lines::trials(),
        linux_peer::trials(),
        sysctl::trials(),
        journal::trials(),
        journald::trials(),
        state::trials(),
        status::trials(),
        status_ike::trials(),
        trial::trials(),
        keys::trials(),
        large_file::trials(),
        strongswan::trials(),
        unmodified::trials(),
        user::trials(),
        demo::trials(),
        bench::trials(),
        xdp::trials(),
        fragment_tools::trials(),
    ]
    .into_iter()
    .flatten();
    libtest_mimic::run(&Arguments::from_args(), chosen(trials)).exit();
}

/// Tests that need a gateway of one worker, by the beginnings of their names: of TUN devices that are made for one queue, of frames that
/// only one worker's bursts join, of steps of a trace, of the first packet behind a device that is made again, of files in lines of
/// `ip`, and of files and figures for one worker.
const OF_ONE_WORKER: &[&str] = &[
    "bench/",
    "bridge_gro/",
    "budget/entries_above_a_tables_limit",
    "demo/",
    "devices/interface_of_another_kind",
    "devices/packet_interface_made_again",
    "devices/reload_names_the_links_that_are_down",
    "devices/tun_and_tap_made_again",
    "esp_offload/",
    "filters/packet_interface_of_a_bridge",
    "guests/example_has_two_qemu_guests_and_a_tunnel",
    "install/",
    "large_file/small_file_loaded_after_it",
    "lines/a_gateway_is_started_by_lines_of_ip",
    "package/",
    "progress/bench",
    "progress/demo",
    "walls/device_of_another_program_stays",
    "walls/gateway_without_net_admin_warns",
    "walls/restart_takes_the_device_of_the_gateway_alone",
    "workers/",
];

/// The tests to run: all, or with several workers in each gateway the third of that number, 0 to 2, which the environment has.
fn chosen(trials: impl Iterator<Item = libtest_mimic::Trial>) -> Vec<libtest_mimic::Trial> {
    let Ok(third) = std::env::var("FATPATH_TEST_THIRD") else { return trials.collect() };
    let third: usize = third.parse().expect("a number, 0 to 2");
    let is_of_one = |name: &str| OF_ONE_WORKER.iter().any(|beginning| name.starts_with(beginning));
    let may_have_several = trials.filter(|trial| !is_of_one(trial.name()));
    may_have_several.enumerate().filter(|(at, _)| at % 3 == third % 3).map(|(_, trial)| trial).collect()
}
