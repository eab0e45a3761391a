//! Tests of the program as a whole: real processes, real interfaces, the host's kernel at either end.

mod bench;
mod daemon;
mod demo;
mod ethtool;
mod exec;
mod fragment_tools;
mod ip;
mod lines;
mod nat;
mod router;
mod service;
mod state;
mod strongswan;
mod sysctl;
mod tunnel;
mod vrf;
mod xdp;

use libtest_mimic::Arguments;

fn main() {
    let trials = [
        tunnel::trials(),
        nat::trials(),
        router::trials(),
        daemon::trials(),
        service::trials(),
        exec::trials(),
        ethtool::trials(),
        ip::trials(),
        vrf::trials(),
        lines::trials(),
        sysctl::trials(),
        state::trials(),
        strongswan::trials(),
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
