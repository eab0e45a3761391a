//! `fatpath bench ila`: 200 request/response streams of TCP, one byte in each direction, at a node whose sockets are on
//! a host side.
//!
//! A turn is a transaction of each stream: a request arrives on a link, in bursts of 16, and goes up to the socket; the
//! response comes down and is sent.
//!
//! - `none`: requests to the node's own address.
//! - `hook`: requests to the node's ILA address, which the hook at pre-routing translates before early demux.
//! - `lwt`: requests to the node's ILA address, which a route translates before delivery; another route translates
//!   responses on output.
//! - `hook-idle`: requests to the node's own address, through a hook whose mappings match nothing.
//! - `hook-1e5-mappings`: as `hook`, with 100 000 mappings.
//! - `hook-1e3-mappings`, `hook-1e6-mappings`: the same with a thousand and a million mappings.
//! - `hook-no-early-demux`: as `hook`, with `net.ipv4.ip_early_demux=0`: a route look-up for each packet.
//!
//! The benchmark checks the exact counts of early-demux hits and of translations.

use std::net::IpAddr;

use base::{Instant, PortId, Prefix, TableId};
use datapath::{Datapath, EarlyDemux, PortConfig, host_port};
use fib::{IlaRoute, Route, RouteKind};
use ila::{AdjTransport, CsumMode, Direction, HookType, IdentType, Identifier, Locator, Mapping, Rewrite, RouteEncap};
use offload::Features;
use packet::{Memory, Packet};
use sim::{AddAddress as _, Flow};
use wire::ip::Info;

use super::case::{Comparison, Copied, Group, Load, Plan, Turn};

/// Number of streams.
const STREAMS: u16 = 200;

/// Number of packets that a link delivers at once.
const BURST: usize = 16;

const LINK: PortId = PortId(2);

/// Address of the peer.
const PEER: &str = "fd00:0:0:1:2000::2";

/// Address of the sockets, and its locator in transit.
const SIR: &str = "fd00:0:0:1:2000::1";
const ILA: Locator = Locator(0xfd00_0000_0000_0002);

const RATIOS: &[Comparison] = &[
    Comparison { of: "hook/none", over: &["hook"], under: &["none"], figure: None },
    Comparison { of: "lwt/none", over: &["lwt"], under: &["none"], figure: None },
    Comparison { of: "hook-idle/none", over: &["hook-idle"], under: &["none"], figure: None },
    Comparison { of: "hook-1e5-mappings/none", over: &["hook-1e5-mappings"], under: &["none"], figure: None },
    Comparison {
        of: "hook-1e6-mappings/hook-1e3-mappings",
        over: &["hook-1e6-mappings"],
        under: &["hook-1e3-mappings"],
        figure: None,
    },
    Comparison { of: "hook/hook-no-early-demux", over: &["hook"], under: &["hook-no-early-demux"], figure: None },
];

/// Setting of a case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Setting {
    /// Whether requests are to the ILA address.
    is_translated: bool,
    /// Mappings that match nothing.
    others: u64,
    early_demux: bool,
    by: By,
}

/// Translator of requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum By {
    Mapping,
    Route,
}

/// Every case.
pub(super) fn groups() -> Vec<Group> {
    let none = Setting { is_translated: false, others: 0, early_demux: true, by: By::Mapping };
    let hook = Setting { is_translated: true, ..none };
    let cases = [
        ("none", none),
        ("hook", hook),
        ("lwt", Setting { by: By::Route, ..hook }),
        ("hook-idle", Setting { others: 1, ..none }),
        ("hook-1e3-mappings", Setting { others: 999, ..hook }),
        ("hook-1e5-mappings", Setting { others: 99_999, ..hook }),
        ("hook-1e6-mappings", Setting { others: 999_999, ..hook }),
        ("hook-no-early-demux", Setting { early_demux: false, ..hook }),
    ];
    let load = Load { packets: 2 * usize::from(STREAMS), payload: 2 * usize::from(STREAMS), small: true };
    let plan = |(name, setting)| Plan::new(name, load, move || Box::new(Streams::new(setting)));
    vec![Group { name: "ila".to_owned(), cases: cases.into_iter().map(plan).collect(), ratios: RATIOS }]
}

/// The node, and the packets of its streams.
struct Streams {
    datapath: Datapath,
    mem: Memory,
    setting: Setting,
    /// Bytes of the request and of the response of each stream.
    templates: Vec<[Vec<u8>; 2]>,
    requests: Vec<Vec<Packet>>,
    answers: Vec<Vec<Packet>>,
    /// Turns so far, and their numbers of packets to the sockets and out of the link.
    turns: u64,
    up: u64,
    out: u64,
}

impl Streams {
    fn new(setting: Setting) -> Self {
        let mem = Memory::heap();
        let mut datapath = Datapath::new();
        let port = |name: &str, mtu| PortConfig {
            name: name.to_owned(),
            mac: None,
            mtu,
            features: Features::ALL,
            gro: true,
            esp_gro: true,
        };
        datapath.set_port(LINK, port("wan", 1500));
        datapath.set_host_port(LINK, Some(port("wan", 65_535)));
        datapath.fib.add_address(LINK, format!("{SIR}/64").parse().expect("an address"));
        datapath.early_demux = EarlyDemux { ip: setting.early_demux, ..EarlyDemux::default() };
        let sir = Locator::of(SIR.parse().expect("an address"));
        let mapping = |locator_match, locator| Mapping {
            locator_match,
            identifier: None,
            locator,
            link: None,
            csum_mode: CsumMode::NeutralMap,
            ident_type: IdentType::Luid,
        };
        match setting.by {
            By::Mapping if setting.is_translated => {
                datapath.add_ila(mapping(ILA, sir)).expect("the first mapping");
            }
            By::Mapping => {}
            By::Route => add_routes(&mut datapath, sir),
        }
        for n in 0..setting.others {
            datapath.add_ila(mapping(Locator(0x2001_0db8_0000_0000 + n), sir)).expect("a new mapping");
        }
        let to_ila = Rewrite { locator: ILA, csum_mode: CsumMode::NeutralMap, diff: None };
        let templates = (0..STREAMS).map(|n| {
            let flow = Flow { sport: 10_000 + n, dport: 443, ..Flow::new(PEER, SIR) };
            let answer = Flow { src: flow.dst, dst: flow.src, sport: flow.dport, dport: flow.sport, ..flow };
            let mut request = Packet::with_data(&mem, &flow.tcp(1, 1)).expect("a heap without limit");
            if setting.is_translated {
                let info = Info::parse(request.head(), request.len()).expect("a packet");
                let sign = AdjTransport::default();
                to_ila
                    .packet(&mem, &mut request, &info, Direction::SirToIla, sign)
                    .expect("an address without the C bit");
            }
            [request.to_vec(), answer.tcp(1, 1)]
        });
        let templates = templates.collect();
        Self { setting, templates, datapath, mem, requests: Vec::new(), answers: Vec::new(), turns: 0, up: 0, out: 0 }
    }

    /// Packets of every stream, requests or responses, in bursts.
    fn bursts(&self, which: usize) -> Vec<Vec<Packet>> {
        let packet = |bytes: &[Vec<u8>; 2]| Packet::with_data(&self.mem, &bytes[which]).expect("a heap without limit");
        self.templates.chunks(BURST).map(|chunk| chunk.iter().map(packet).collect()).collect()
    }
}

impl Turn for Streams {
    fn prepare(&mut self) {
        self.requests = self.bursts(0);
        self.answers = self.bursts(1);
        self.turns += 1;
    }

    fn run(&mut self) {
        let now = Instant::ZERO;
        let Self { datapath, mem, requests, answers, up, out, .. } = self;
        for (request, answer) in requests.iter_mut().zip(answers) {
            datapath.handle_rx(now, mem, LINK, request);
            *up += datapath.take_tx(host_port(LINK)).map_or(0, |waiting| waiting.drain(..).count() as u64);
            datapath.handle_rx(now, mem, host_port(LINK), answer);
            *out += datapath.take_tx(LINK).map_or(0, |waiting| waiting.drain(..).count() as u64);
        }
    }

    fn copied(&self) -> Copied {
        Copied::of(&self.mem)
    }

    fn check(&self) -> Result<(), String> {
        let all = self.turns * u64::from(STREAMS);
        let hits = self.datapath.demux_counts.hits;
        // The first request of a stream precedes the response, and the second uses a route look-up.
        let is_remembered = self.setting.early_demux && self.setting.by == By::Mapping;
        let expected_hits = if is_remembered { all.saturating_sub(2 * u64::from(STREAMS)) } else { 0 };
        let translations = match self.setting.by {
            By::Mapping => u64::from(self.setting.is_translated),
            By::Route => 2,
        };
        let expected_translated = translations * all;
        let translated = self.datapath.ila_translated();
        if (self.up, self.out) != (all, all) {
            return Err(format!("{} of {all} requests came up, {} answers went out", self.up, self.out));
        }
        if (hits, translated) != (expected_hits, expected_translated) {
            return Err(format!("{hits} found by early demux and {translated} translated, of {all}"));
        }
        Ok(())
    }
}

/// Adds a route that translates requests, and one that translates responses to a different locator on the link.
fn add_routes(datapath: &mut Datapath, sir: Locator) {
    let encap = |locator, hook_type| RouteEncap {
        locator,
        csum_mode: CsumMode::NeutralMap,
        ident_type: IdentType::Luid,
        hook_type,
    };
    let there = Locator(ILA.0 + 1);
    let to_peer = IlaRoute::Unicast { via: None, dev: LINK };
    let kinds = [
        (ILA.with(Identifier(0)), 64, encap(sir, HookType::Input), IlaRoute::Local { dev: LINK }),
        (PEER.parse().expect("an address"), 128, encap(there, HookType::Output), to_peer),
    ];
    for (addr, len, encap, to) in kinds {
        let prefix = Prefix::new(IpAddr::V6(addr), len).expect("a prefix");
        datapath.fib.insert(TableId::MAIN, Route { prefix, kind: RouteKind::Ila { encap, to }, metric: 0 }, false);
    }
    // The peer's locator is on the link.
    let prefix = Prefix::new(IpAddr::V6(there.with(Identifier(0))), 64).expect("a prefix");
    let kind = RouteKind::Unicast { via: None, dev: LINK };
    datapath.fib.insert(TableId::MAIN, Route { prefix, kind, metric: 0 }, false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_finds_and_translates_each_request() {
        groups()[0].run_briefly();
    }
}
