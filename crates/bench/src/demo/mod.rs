//! `fatpath demo`: what keeping packets fat is worth on this machine, end to end, with the kernel's own TCP.
//!
//! One stream is measured three ways in alternating rounds: over veth alone, through two gateways with every offload
//! off, and through the same with packets kept fat. With `--udp-fragments` it is one of large UDP datagrams between the
//! gateways' own sockets, in several set-ups ([`fragments`]). With `--switch` the stream is between two guests of a
//! bridge ([`switch`]). With `--rr` transactions of many connections are counted, with and without ILA ([`ila`]). With
//! `--peers` other tunnels follow, among them the kernel's own ESP, or another switch. With `--storm` the stream through
//! fat gateways is measured alone, with and without changes of routes and SAs at the same time. Each measurement has
//! gateways of its own, so that memory and counters begin at zero. Each namespace, device and process is owned by a
//! value that removes it on drop, however the demo ends.

mod bare;
mod case;
mod config;
mod datagrams;
mod fragments;
mod gateway;
mod ila;
mod machine;
mod meter;
mod openvswitch;
mod peer;
mod ping;
mod report;
mod requests;
mod sample;
mod site;
mod storm;
mod stream;
mod switch;
mod topology;
mod tunnel;

use std::time::Duration;

use client::{CliError, DemoArgs, print, raise_descriptor_limit};
use testbed::{Failure, Scratch, Stop};

use crate::figures::Missing;
use crate::progress::Progress;
use case::DemoCase;
use peer::Peer;
use report::{DemoReport, DemoRound, report};
use site::Site;
use topology::{Deployment, Topology};

/// Namespaces and gateways, for benchmarks that measure gateways too.
pub(crate) mod lab {
    pub(crate) use super::config::{Keys, worker};
    pub(crate) use super::gateway::Gateway;
    pub(crate) use super::meter::ThreadTime;
    pub(crate) use super::topology::{Side, lend, veth};
}

/// Time of a measurement besides its stream: two gateways to start, ping and end.
const OVERHEAD_SECONDS: f64 = 0.4;

/// Runs the demo and prints its report.
///
/// # Errors
/// If something is missing, a step fails, or a signal ends it. By then everything has been removed.
pub(crate) fn main(args: &DemoArgs) -> Result<(), CliError> {
    let plan = Plan::from(args);
    let report = plan.run(args.json).map_err(|failure| CliError::failed(failure.to_string()))?;
    let text = if args.json { report.to_json() } else { report.to_string() };
    print((text + "\n").as_bytes())
}

/// Choice of measurements.
#[derive(Clone, Copy, Debug)]
struct Plan {
    deployment: Deployment,
    rounds: u32,
    length: Duration,
    iperf3: bool,
    peers: bool,
    udp_fragments: bool,
    switch: bool,
    bare: bool,
    /// Connections that make requests.
    rr: Option<u16>,
    /// Changes a second at each gateway.
    storm: Option<u32>,
}

impl From<&DemoArgs> for Plan {
    fn from(args: &DemoArgs) -> Self {
        Self {
            deployment: if args.router { Deployment::Router } else { Deployment::Tunnel },
            rounds: args.rounds,
            length: Duration::from_secs(args.seconds.into()),
            iperf3: args.iperf3,
            peers: args.peers,
            udp_fragments: args.udp_fragments,
            switch: args.switch,
            bare: args.bare,
            rr: args.rr,
            storm: args.storm,
        }
    }
}

impl Plan {
    /// The plan, with routers in place of tunnels where `/dev/net/tun` does not open, as it mostly does not for a user
    /// without privilege; and then the reason.
    fn adapted(self) -> (Self, Option<Missing>) {
        let is_one_stream = !self.peers
            && !self.udp_fragments
            && !self.switch
            && !self.bare
            && self.rr.is_none()
            && self.storm.is_none();
        match machine::open_tun() {
            Err(err) if is_one_stream && self.deployment == Deployment::Tunnel => {
                let why = format!("{}: {err}; packet links on veth instead, as with --router", machine::TUN);
                (Self { deployment: Deployment::Router, ..self }, Some(Missing { name: "tun".to_owned(), why }))
            }
            _ => (self, None),
        }
    }

    fn run(self, is_json: bool) -> Result<DemoReport, Failure> {
        let (plan, missing) = self.adapted();
        let before = machine::LoadBefore::now();
        let mut report = plan.measure(is_json)?;
        report.busy = before.busy_since();
        report.missing.extend(missing);
        Ok(report)
    }

    fn measure(self, is_json: bool) -> Result<DemoReport, Failure> {
        machine::check(self.deployment, self.iperf3, self.switch)?;
        let stop = Stop::on_signals().map_err(|err| Failure::step("catch signals", err))?;
        // Both ends of each connection are in this process; the usual number of connections fits the usual limit.
        if let Err(err) = raise_descriptor_limit() {
            testbed::warn(format_args!("fatpath demo: cannot raise the limit of descriptors: {err}"));
        }
        let mut cases = Cases::of(self);
        let progress = Progress::on_stderr(u64::from(self.rounds) * cases.selected.len() as u64, is_json);
        progress.announce(&self.announcement(cases.selected.len()));
        let name = format!("fatpath-demo-{}", std::process::id());
        let scratch = Scratch::create(&name)?;
        let topology = Topology::build(self.deployment, &name, &stop)?;
        if self.udp_fragments || self.rr.is_some() {
            topology.add_bare_wire(&stop)?;
        }
        let site = Site { topology, scratch, stop, length: self.length, iperf3: self.iperf3 };
        let rounds = Rounds { plan: self, progress, site };
        let rounds = (1..=self.rounds)
            .map(|number| rounds.round(number, &mut cases))
            .collect::<Result<Vec<DemoRound>, Failure>>()?;
        let bench = match self.storm {
            Some(_) => report::STORM,
            None if self.udp_fragments => report::UDP_FRAGMENTS,
            None if self.rr.is_some() => report::REQUESTS,
            None if self.switch => report::SWITCH,
            None => report::TCP,
        };
        Ok(DemoReport { bench, missing: cases.missing, ..report(&rounds) })
    }

    fn announcement(self, cases: usize) -> String {
        let streams = f64::from(self.rounds) * cases as f64;
        let seconds = streams * (self.length.as_secs_f64() + OVERHEAD_SECONDS);
        let (rounds, length) = (self.rounds, self.length.as_secs());
        format!("fatpath demo: {rounds} x {cases} streams of {length} s, about {seconds:.0} s in all")
    }
}

/// Cases of each round, and cases that cannot be measured here.
#[derive(Debug)]
struct Cases {
    selected: Vec<DemoCase>,
    missing: Vec<Missing>,
}

impl Cases {
    fn of(plan: Plan) -> Self {
        let selected = match plan.storm {
            Some(_) => DemoCase::STORM.to_vec(),
            None if plan.udp_fragments => DemoCase::datagrams(),
            None if plan.rr.is_some() => DemoCase::requests(),
            None if plan.switch => DemoCase::SWITCH.to_vec(),
            None if plan.bare => DemoCase::BARE.to_vec(),
            None => DemoCase::OWN.to_vec(),
        };
        let mut cases = Self { selected, missing: Vec::new() };
        if plan.peers && plan.switch {
            let peers = switch::SwitchSetting::PEERS.map(DemoCase::Switch);
            cases.selected.extend(peers);
            if let Err(why) = openvswitch::check() {
                peers.into_iter().for_each(|case| cases.give_up(case, &why));
            }
            return cases;
        }
        for peer in Peer::ALL.into_iter().filter(|_| plan.peers) {
            match peer.check() {
                Ok(()) => cases.selected.push(DemoCase::Peer(peer)),
                Err(why) => cases.give_up(DemoCase::Peer(peer), &why),
            }
        }
        cases
    }

    fn give_up(&mut self, case: DemoCase, why: &Failure) {
        self.selected.retain(|&selected| selected != case);
        self.missing.push(Missing { name: case.name().to_owned(), why: why.to_string() });
    }
}

/// Rounds of a plan at one site.
#[derive(Debug)]
struct Rounds {
    plan: Plan,
    progress: Progress,
    site: Site,
}

impl Rounds {
    /// Measures each case once. A peer that fails is given up; the others go on.
    fn round(&self, number: u32, cases: &mut Cases) -> Result<DemoRound, Failure> {
        let (mut round, mut last) = (DemoRound::new(), String::new());
        let selected = cases.selected.clone();
        let done = u64::from(number - 1) * selected.len() as u64;
        for (done, case) in (done..).zip(selected) {
            self.progress.say(done, &format!("round {number} of {}: {}{last}", self.plan.rounds, case.name()));
            let sample = match case {
                DemoCase::Veth if self.plan.udp_fragments => fragments::veth(&self.site),
                DemoCase::Large(setting) => fragments::measure(&self.site, setting),
                DemoCase::Requests(setting) => ila::measure(&self.site, setting, self.plan.rr.unwrap_or(1)),
                DemoCase::Switch(setting) => switch::measure(&self.site, setting),
                DemoCase::Veth => tunnel::veth(&self.site),
                DemoCase::Thin => tunnel::measure(&self.site, false, None),
                DemoCase::Fat => tunnel::measure(&self.site, true, None),
                DemoCase::Bare => bare::measure(&self.site),
                DemoCase::Storm => tunnel::measure(&self.site, true, self.plan.storm),
                DemoCase::Peer(peer) => tunnel::peer(&self.site, peer),
            };
            match (case, sample) {
                (_, Ok(sample)) => {
                    last = format!(" (before it, {}: {})", case.name(), sample.short());
                    round.insert(case, sample);
                }
                (_, Err(Failure::Interrupted)) => return Err(Failure::Interrupted),
                (_, Err(why)) if case.is_peer() => cases.give_up(case, &why),
                (_, Err(why)) => return Err(why),
            }
        }
        Ok(round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_announced_in_advance() {
        let plan = Plan {
            deployment: Deployment::Tunnel,
            rounds: 5,
            length: Duration::from_secs(2),
            iperf3: false,
            peers: false,
            udp_fragments: false,
            switch: false,
            bare: false,
            rr: None,
            storm: None,
        };
        assert_eq!(plan.announcement(3), "fatpath demo: 5 x 3 streams of 2 s, about 36 s in all");
    }

    #[test]
    fn failed_peer_is_skipped_and_reported() {
        let mut cases = Cases { selected: DemoCase::OWN.to_vec(), missing: Vec::new() };
        let peers = [Peer::WireguardGo, Peer::Boringtun].map(DemoCase::Peer);
        cases.selected.extend(peers);
        cases.give_up(peers[0], &Failure::step("ping 10.2.0.1", "nothing after 4.0 s"));
        assert_eq!(cases.selected, [&DemoCase::OWN[..], &peers[1..]].concat());
        let Missing { name, why } = &cases.missing[0];
        assert_eq!((name.as_str(), why.as_str()), ("wireguard-go", "ping 10.2.0.1: nothing after 4.0 s"));
    }
}
