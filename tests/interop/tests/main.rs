//! Against a real Linux kernel: ESP, where each scenario runs with Linux at both ends, which validates the scenario,
//! and then with fatpath at the near end (only with fatpath if Linux cannot be the near end, or differs only by the
//! algorithm); ILA; sockets of VRFs; guests of a bridge, and a bridge's decisions; `ip xfrm` and `ip` about VRFs and
//! ILA, line by line, and a hundred thousand lines of it. Against strongSwan: IKE. Against scapy and tshark: ESP packet
//! by packet. And the library that this kernel needs on some processors.

mod alike;
mod batch;
mod bridge_guests;
mod bridge_oracle;
mod events;
mod ila;
mod ip_lines;
mod ip_xfrm;
mod scapy;
mod scenario;
mod site;
mod strongswan;
mod tshark;
mod vrf_sockets;
mod xstate;

use libtest_mimic::Arguments;
use system::{Need, trial};

use scenario::SCENARIOS;
use site::Near;

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::UML, Need::MODPROBE, Need::PING];

fn main() {
    let mut trials = scapy::trials();
    trials.extend(tshark::trials());
    trials.extend(events::trials());
    trials.extend(ila::trials());
    trials.extend(ip_lines::trials());
    trials.extend(ip_xfrm::trials());
    trials.extend(batch::trials());
    trials.extend(bridge_guests::trials());
    trials.extend(bridge_oracle::trials());
    trials.extend(strongswan::trials());
    trials.extend(vrf_sockets::trials());
    trials.extend(xstate::trials());
    for scenario in SCENARIOS {
        if scenario.with_linux {
            trials.push(trial(format!("linux/{}", scenario.name), NEEDS, || scenario.run(Near::Linux)));
        }
        trials.push(trial(format!("fatpath/{}", scenario.name), NEEDS, || scenario.run(Near::Fatpath)));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
