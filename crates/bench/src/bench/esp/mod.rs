//! `fatpath bench esp`: speed of ESP, relative to the cipher alone.
//!
//! Two gateways exchange raw ESP, or ESP in UDP, over a 1500-byte wire, and each has a device towards its hosts. A turn
//! moves a few super-packets of TCP, or as many segments of several streams, or small packets of UDP.
//!
//! - `tx` is the sending gateway, from the device to the wire; `rx` the receiving one, from the wire to the device.
//! - `baseline` is packet by packet, as with `offloads = false`: arriving packets have the wire's size already, and GRO
//!   is off.
//! - `fat` has every offload enabled, as by default in a gateway.
//! - `worker` is the same with a crypto thread on another CPU.
//! - `limit` is the cipher alone, with the same calls over as many bytes in as many pages. The NULL cipher does
//!   nothing: its limit is a copy of the bytes for `tx` and a sum of the bytes for `rx`, the remaining work.
//!
//! `flood` is a receiving gateway with forged packets among the good ones: `good` and `forged` are each alone, `mixed`
//! alternates them. Without interference, `mixed` would take the sum of both times.
//!
//! In transport mode a gateway processes ESP for the host behind it, between the addresses of the two hosts.

mod forgery;
mod gateway;
mod limit;
mod load;
mod setting;
mod turn;

use xfrm::Mode;

use self::forgery::Forgery;
use self::gateway::Pair;
use self::limit::Limit;
pub(super) use self::setting::Traffic;
use self::setting::{Cipher, EspSetting, Measured, Way};
use self::turn::{Arrivals, Receiving, Sending};
use super::case::{Comparison, Group, Load, Plan, Turn};

/// Comparisons of the cases of one setting.
const COMPARISONS: &[Comparison] = &[
    Comparison { of: "fat/baseline", over: &["fat"], under: &["baseline"], figure: None },
    Comparison { of: "fat/limit", over: &["fat"], under: &["limit"], figure: None },
    Comparison { of: "worker/fat", over: &["worker"], under: &["fat"], figure: None },
];

/// Comparison of a mixed flow with the good and the forged flow alone: the CPU share left for the good flow.
const FLOOD_COMPARISONS: &[Comparison] =
    &[Comparison { of: "mixed/share", over: &["mixed"], under: &["good", "forged"], figure: None }];

/// Every case.
pub(super) fn groups() -> Vec<Group> {
    let mut groups = Vec::new();
    for measured in [Measured::Tx, Measured::Rx] {
        let common = EspSetting { measured, ..EspSetting::COMMON };
        for mode in [Mode::Transport, Mode::Tunnel] {
            groups.extend(Cipher::ALL.map(|cipher| EspSetting { mode, cipher, ..common }.group()));
        }
        groups.push(EspSetting { udp: true, ..common }.group());
        groups.push(EspSetting { traffic: Traffic::Small, ..common }.group());
    }
    groups.extend([Traffic::Streams, Traffic::Sas].map(|traffic| EspSetting { traffic, ..EspSetting::COMMON }.group()));
    groups.extend(Forgery::ALL.map(flood));
    groups
}

/// Turns of the sending and of the receiving gateway of most cases, with every offload, and the traffic through each.
pub(super) fn tunnel(traffic: Traffic) -> (Load, Vec<Box<dyn Turn>>) {
    let pair = |measured| Pair::new(EspSetting { measured, traffic, ..EspSetting::COMMON }, Way::Fat);
    let sending = pair(Measured::Tx);
    let load = sending.load(traffic);
    let receiving = Receiving::new(pair(Measured::Rx), traffic, Arrivals::Good);
    (load, vec![Box::new(Sending::new(sending, traffic)), Box::new(receiving)])
}

/// Turn of a gateway that forwards such packets in clear.
pub(super) fn forwarding(traffic: Traffic) -> (Load, Vec<Box<dyn Turn>>) {
    (traffic.load(gateway::MTU), vec![Box::new(Sending::in_clear(traffic))])
}

impl EspSetting {
    fn group(self) -> Group {
        let through = move |way: Way| -> Box<dyn Turn> {
            let pair = Pair::new(self, way);
            match self.measured {
                Measured::Tx => Box::new(Sending::new(pair, self.traffic)),
                Measured::Rx => Box::new(Receiving::new(pair, self.traffic, Arrivals::Good)),
            }
        };
        let load = Pair::new(self, Way::Fat).load(self.traffic);
        let cases = vec![
            Plan::new("baseline", load, move || through(Way::Baseline)),
            Plan::new("fat", load, move || through(Way::Fat)),
            Plan::new("worker", load, move || through(Way::Worker)),
            Plan::new("limit", load, move || Box::new(Limit::new(self, &Pair::new(self, Way::Fat)))),
        ];
        Group { name: self.name(), cases, ratios: COMPARISONS }
    }
}

/// A good flow, forgeries of one kind, and a mix of as many of each.
fn flood(forgery: Forgery) -> Group {
    let setting = EspSetting::COMMON;
    let good = Pair::new(setting, Way::Fat).load(setting.traffic);
    let case = |name, load, arrivals| {
        Plan::new(name, load, move || Box::new(Receiving::new(Pair::new(setting, Way::Fat), setting.traffic, arrivals)))
    };
    let cases = vec![
        case("good", good, Arrivals::Good),
        case("forged", Load { payload: 0, ..good }, Arrivals::Forged(forgery)),
        case("mixed", Load { packets: 2 * good.packets, ..good }, Arrivals::Mixed(forgery)),
    ];
    Group { name: format!("flood/{}", forgery.name()), cases, ratios: FLOOD_COMPARISONS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_case_moves_its_packets() {
        groups().iter().for_each(Group::run_briefly);
    }

    #[test]
    fn super_packets_leave_whole_and_others_unchanged() {
        for (way, want) in [(Way::Baseline, 184), (Way::Fat, 4), (Way::Worker, 4)] {
            let mut turn = Sending::new(Pair::new(EspSetting::COMMON, way), Traffic::SuperPackets);
            turn.prepare();
            turn.run();
            assert_eq!(turn.forwarded(), want, "{way:?}");
        }
    }

    #[test]
    fn group_names_have_direction_mode_and_cipher_and_are_unique() {
        let groups = groups();
        let names: BTreeSet<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names.len(), groups.len());
        let tx = ["tx/tunnel/aes-gcm-256", "tx/tunnel/aes-gcm-256-64b"];
        let rx = ["rx/transport/null", "rx/tunnel/aes-gcm-256-16streams", "rx/tunnel/aes-gcm-256-16sas"];
        for name in tx.into_iter().chain(rx).chain(["flood/wrong-icv"]) {
            assert!(names.contains(name), "{name} in {names:?}");
        }
    }
}
