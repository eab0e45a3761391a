//! Forwarding decisions of a Linux bridge and of the crate `switch`, for random bridges and frames: the ports by which
//! each frame leaves, its tag, the addresses learnt in the end, and the counters of each VLAN.
//!
//! `FATPATH_SEED` is the seed of the first bridge, otherwise the time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use base::PortId;
use interop::Uml;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use sim::Rng;
use switch::{Bridge, Egress, FdbKind, FdbRequest, Frame, GroupMask, PortConfig, Verdict, Vid, VlanFlags, VlanStats};
use system::{Need, Netns, Outcome, trial};
use wire::MacAddr;
use wire::eth::{self, EtherType};

const NEEDS: &[Need] = &[Need::Namespaces, Need::UML, Need::MODPROBE, Need::PYTHON];
const SCRIPT: &str = include_str!("bridge_oracle.py");

/// Time limit for the start of the last bridge.
const TIME: Duration = Duration::from_secs(110);
const PORTS: usize = 5;
const FRAMES: usize = 60;
const NOW: base::Instant = base::Instant::ZERO;
const VIDS: [u16; 5] = [1, 10, 20, 30, 4094];

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("switch/forwarding_is_the_same_as_of_a_linux_bridge", NEEDS, compare)]
}

fn compare() -> Outcome {
    let netns = Netns::new("uml")?;
    let mut linux = Uml::boot(&netns, &[])?;
    linux.put("bridge_oracle.py", SCRIPT.as_bytes())?;
    linux.sh(&format!(
        "/run/modprobe -a bridge veth
        echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
        for n in $(seq 0 {}); do
            ip link add p$n address 02:00:00:00:01:0$n type veth peer name f$n
            ip link set p$n up; ip link set f$n up
        done
        ip link add br0 type bridge",
        PORTS - 1
    ))?;
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let first = std::env::var("FATPATH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(time);
    let start = Instant::now();
    let mut frames = 0;
    for seed in first.. {
        if start.elapsed() > TIME {
            break;
        }
        let case = Case::draw(seed);
        linux.put("case.json", case.to_json().to_string().as_bytes())?;
        let printed = linux.sh("python3 bridge_oracle.py case.json")?;
        let printed: Value =
            serde_json::from_str(&printed).map_err(|error| format!("FATPATH_SEED={seed}: {error}: {printed}"))?;
        case.compare(&printed)
            .map_err(|difference| format!("FATPATH_SEED={seed}: {difference}\n{:#}", case.to_json()))?;
        frames += FRAMES;
    }
    println!("FATPATH_SEED={first}: {frames} frames left as they leave Linux");
    assert!(frames >= 5 * FRAMES, "{frames} frames in {TIME:?}");
    Ok(())
}

/// A bridge with its ports, and frames for it.
struct Case {
    filters: bool,
    default_pvid: Option<Vid>,
    group_mask: u16,
    ports: Vec<PortConfig>,
    /// Port, or the bridge's own; the VLAN and its flags, or `None` to leave it.
    vlans: Vec<(Option<usize>, Vid, Option<VlanFlags>)>,
    /// Port, address, VLAN, whether it is static or local, and sticky.
    fdb: Vec<(usize, MacAddr, Option<Vid>, FdbKind, bool)>,
    frames: Vec<Sent>,
}

/// A frame for a port.
#[derive(Clone, Copy, Debug)]
struct Sent {
    port: usize,
    dst: MacAddr,
    src: MacAddr,
    /// 802.1Q tag.
    tag: Option<u16>,
    /// 802.1ad tag, outermost.
    service_tag: Option<u16>,
}

fn station(number: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number as u8])
}

fn port_mac(number: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, number as u8])
}

const BRIDGE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 2, 0]);

fn link(port: usize) -> PortId {
    PortId(port as u32 + 1)
}

impl Case {
    fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let filters = rng.happens(700);
        let default_pvid = if rng.happens(800) { Vid::new(1) } else { None };
        let group_mask = if rng.happens(300) { rng.bits() as u16 & !7 } else { 0 };
        let port = |rng: &mut Rng| PortConfig {
            learning: rng.happens(850),
            unicast_flood: rng.happens(850),
            multicast_flood: rng.happens(850),
            broadcast_flood: rng.happens(850),
            isolated: rng.happens(250),
            hairpin: rng.happens(150),
            ..PortConfig::default()
        };
        let ports = (0..PORTS).map(|_| port(&mut rng)).collect();
        let vid = |rng: &mut Rng| Vid::new(*rng.pick(&VIDS)).unwrap();
        let vlans = (0..if filters { 12 } else { 0 })
            .map(|_| {
                let port = Some(rng.below(PORTS)).filter(|_| rng.happens(850));
                let flags = VlanFlags { is_pvid: rng.happens(300), is_untagged: rng.happens(400) };
                (port, vid(&mut rng), Some(flags).filter(|_| rng.happens(850)))
            })
            .collect();
        let fdb = (0..rng.below(5))
            .map(|at| {
                let kind = if rng.happens(500) { FdbKind::Static } else { FdbKind::Local };
                let is_sticky = kind == FdbKind::Static && rng.happens(300);
                (rng.below(PORTS), station(40 + at), None, kind, is_sticky)
            })
            .collect();
        let frames = (0..FRAMES)
            .map(|_| {
                let src = match rng.below(50) {
                    0 => BRIDGE_MAC,
                    1 => MacAddr([3, 0, 0, 0, 0, 1]),
                    2 => MacAddr::ZERO,
                    3 => port_mac(rng.below(PORTS)),
                    4..8 => station(40 + rng.below(4)),
                    _ => station(1 + rng.below(6)),
                };
                let dst = match rng.below(20) {
                    0 => MacAddr([0xff; 6]),
                    1 => MacAddr([1, 0, 0x5e, 1, 2, 3]),
                    2 => MacAddr([1, 0x80, 0xc2, 0, 0, rng.below(16) as u8]),
                    3 => BRIDGE_MAC,
                    4 => port_mac(rng.below(PORTS)),
                    5 => station(99),
                    6..9 => station(40 + rng.below(4)),
                    _ => station(1 + rng.below(6)),
                };
                let tag = match rng.below(10) {
                    0 => Some(0x6000),
                    1..5 => Some(vid(&mut rng).get() | if rng.happens(300) { 0xa000 } else { 0 }),
                    _ => None,
                };
                let service_tag = Some(vid(&mut rng).get()).filter(|_| rng.happens(120));
                Sent { port: rng.below(PORTS), dst, src, tag, service_tag }
            })
            .collect();
        Self { filters, default_pvid, group_mask, ports, vlans, fdb, frames }
    }

    /// The commands that create the bridge on Linux, and its frames.
    fn to_json(&self) -> Value {
        let on = |is_on: bool| if is_on { "on" } else { "off" };
        let pvid = self.default_pvid.map_or(0, Vid::get);
        let mut made = vec![
            "link del br0".to_owned(),
            format!("link add br0 address {BRIDGE_MAC} type bridge mcast_snooping 0 vlan_default_pvid {pvid}"),
            format!("link set br0 type bridge vlan_filtering {}", u8::from(self.filters)),
            format!("link set br0 type bridge group_fwd_mask {} vlan_stats_enabled 1", self.group_mask),
            "link set br0 up".to_owned(),
        ];
        made.extend((0..PORTS).map(|port| format!("link set p{port} master br0")));
        let mut set = Vec::new();
        for (at, port) in self.ports.iter().enumerate() {
            let PortConfig { learning, unicast_flood, multicast_flood, broadcast_flood, isolated, hairpin, .. } = *port;
            let words = [
                ("learning", learning),
                ("flood", unicast_flood),
                ("mcast_flood", multicast_flood),
                ("bcast_flood", broadcast_flood),
                ("isolated", isolated),
                ("hairpin", hairpin),
            ];
            let words: String = words.iter().map(|(word, is_on)| format!(" {word} {}", on(*is_on))).collect();
            set.push(format!("link set dev p{at}{words}"));
        }
        for (port, vid, flags) in &self.vlans {
            let (dev, own) = port.map_or(("br0".to_owned(), " self"), |port| (format!("p{port}"), ""));
            set.push(match flags {
                Some(VlanFlags { is_pvid, is_untagged }) => format!(
                    "vlan add dev {dev} vid {vid}{}{}{own}",
                    if *is_pvid { " pvid" } else { "" },
                    if *is_untagged { " untagged" } else { "" }
                ),
                None => format!("vlan del dev {dev} vid {vid}{own}"),
            });
        }
        for (port, mac, _, kind, is_sticky) in &self.fdb {
            let kind = if *kind == FdbKind::Static { "static" } else { "local" };
            let sticky = if *is_sticky { " sticky" } else { "" };
            set.push(format!("fdb replace {mac} dev p{port} master{sticky} {kind}"));
        }
        let frames: Vec<Value> =
            self.frames.iter().enumerate().map(|(at, frame)| json!([frame.port, frame.hex(at)])).collect();
        let ports: Vec<String> = (0..PORTS).map(|port| format!("f{port}")).collect();
        json!({ "batches": [["ip", made], ["/sbin/bridge", set]], "ports": ports, "frames": frames })
    }

    fn bridge(&self) -> Bridge {
        let mut bridge = Bridge::new(BRIDGE_MAC).unwrap();
        bridge.set_default_pvid(self.default_pvid).unwrap();
        bridge.set_vlan_filtering(self.filters);
        bridge.set_vlan_stats_enabled(true);
        bridge.set_group_mask(GroupMask::for_bridge(self.group_mask).unwrap());
        for (at, config) in self.ports.iter().enumerate() {
            bridge.add_port(link(at), port_mac(at), 1500).unwrap();
            bridge.configure(link(at), *config).unwrap();
        }
        for (port, vid, flags) in &self.vlans {
            match flags {
                Some(flags) => bridge.add_vlans(port.map(link), *vid, *vid, *flags).unwrap(),
                None => drop(bridge.remove_vlans(port.map(link), *vid, *vid).unwrap()),
            }
        }
        for &(port, mac, vid, kind, is_sticky) in &self.fdb {
            let port = Some(link(port));
            let request = FdbRequest { port, mac, vid, kind, is_sticky, create: true, exclusive: false };
            bridge.add_fdb(NOW, &request).unwrap();
        }
        bridge
    }

    /// Compares the results of Linux with those of `switch`.
    fn compare(&self, linux: &Value) -> Result<(), String> {
        let mut bridge = self.bridge();
        let mut egress = Egress::default();
        for (at, frame) in self.frames.iter().enumerate() {
            let ethertype = frame.service_tag.map_or(EtherType(0x88b5), |_| EtherType::SERVICE_VLAN);
            let header = eth::EthHeader::new(frame.dst, frame.src, ethertype);
            // Behind a service tag a tag is payload.
            let tag = frame.tag.filter(|_| frame.service_tag.is_none());
            // A service tag is payload too.
            let tags = usize::from(frame.service_tag.is_some()) * (1 + usize::from(frame.tag.is_some()));
            let summary = Frame::new(&header, tag, false, 60 + 4 * tags);
            let verdict = bridge.receive(NOW, link(frame.port), &summary, &mut egress);
            let tci = |tag: Option<wire::vlan::Tci>| tag.map(|tci| tci.0);
            let inner = frame.service_tag;
            let mut got = BTreeSet::new();
            if verdict == Verdict::Forward {
                got.extend(egress.exits.iter().map(|exit| json!([exit.port.0 - 1, tci(exit.tag), inner]).to_string()));
                got.extend(egress.up.map(|up| json!(["up", tci(up.tag), inner]).to_string()));
            }
            let want = linux["passed"][at].as_array().ok_or("no answer")?;
            let want: BTreeSet<String> = want.iter().map(Value::to_string).collect();
            if want != got {
                return Err(format!("frame {at} {frame:?} ({verdict:?}): Linux {want:?}, switch {got:?}"));
            }
        }
        let name = |port: Option<PortId>| port.map_or("br0".to_owned(), |port| format!("p{}", port.0 - 1));
        let word = |kind| match kind {
            FdbKind::Local => "permanent",
            FdbKind::Static => "static",
            FdbKind::Dynamic => "",
        };
        let got = bridge.fdb_entries(NOW).map(|entry| {
            json!([entry.mac.to_string(), name(entry.port), entry.vid.map(Vid::get), word(entry.kind)]).to_string()
        });
        let got: BTreeSet<String> = got.collect();
        let want = linux["fdb"].as_array().ok_or("no addresses")?;
        let want: BTreeSet<String> = want.iter().map(Value::to_string).collect();
        if want != got {
            let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
            return Err(format!("addresses: only Linux {:?}, only switch {:?}", only(&want, &got), only(&got, &want)));
        }
        for (vlan, want) in linux["vlans"].as_object().ok_or("no counters")? {
            let vid = vlan.parse().ok().and_then(Vid::new).ok_or("no VLAN")?;
            let VlanStats { rx_packets, rx_bytes, tx_packets, tx_bytes } = bridge.vlan_stats(vid);
            let got = json!([rx_packets, rx_bytes, tx_packets, tx_bytes]);
            if *want != got {
                return Err(format!("VLAN {vlan}: Linux has counted {want}, switch {got}"));
            }
        }
        Ok(())
    }
}

impl Sent {
    /// The frame in hexadecimal: 60 bytes and its tags, its number last.
    fn hex(&self, number: usize) -> String {
        let mut bytes = [self.dst.0, self.src.0].concat();
        for (ethertype, tci) in [(EtherType::SERVICE_VLAN, self.service_tag), (EtherType::VLAN, self.tag)] {
            if let Some(tci) = tci {
                bytes.extend(ethertype.0.to_be_bytes());
                bytes.extend(tci.to_be_bytes());
            }
        }
        bytes.extend([0x88, 0xb5]);
        bytes.extend([0; 42]);
        bytes.extend((number as u32).to_be_bytes());
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
