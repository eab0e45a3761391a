//! Exact output of `fatpath show`, and the round trip of its JSON.

use ctl::state::*;
use ctl::{Reply, Shown};
use xfrm::{Action, Dir, EspInUdp, Level, Mark, Mode, NatTraversal, SaDir};

fn selector(src: &str, dst: &str) -> SelectorState {
    SelectorState { src: src.parse().unwrap(), dst: dst.parse().unwrap(), proto: None, sport: None, dport: None }
}

fn links() -> Shown {
    let offload =
        |name: &str, on, why: Option<&str>| OffloadState { name: name.to_owned(), on, why: why.map(str::to_owned) };
    let tun0 = LinkState {
        index: 1,
        name: "tun0".to_owned(),
        kind: "tun".to_owned(),
        on: None,
        vrf: Some("red".to_owned()),
        port: None,
        guest: None,
        table: None,
        mtu: 1438,
        up: true,
        why_down: None,
        lladdr: None,
        addresses: vec!["10.1.0.254/24".parse().unwrap(), "fd00:1::fe/64".parse().unwrap()],
        offloads: vec![
            offload("tso4", true, None),
            offload("uso", false, Some("kernel refused TUNSETOFFLOAD: EINVAL")),
        ],
        ring: None,
        qdisc: Some(QdiscState {
            kind: "tbf".to_owned(),
            bytes: 4356,
            packets: 3,
            drops: 1,
            overlimits: 2,
            backlog: 1452,
            qlen: 1,
        }),
        stats: LinkStats {
            rx_packets: 10,
            rx_bytes: 655_350_000,
            rx_wire_packets: 440,
            rx_calls: 9,
            rx_dropped: 1,
            tx_packets: 3,
            tx_bytes: 120,
            tx_wire_packets: 3,
            tx_calls: 2,
            tx_dropped: 0,
            tx_errors: 0,
        },
        peer_errors: vec![PeerErrorState {
            peer: "192.0.2.2:4500".parse().unwrap(),
            error: "Connection refused (os error 111)".to_owned(),
            count: 5,
            last_secs: 2,
        }],
        ip6: Vec::new(),
    };
    let eth1 = LinkState {
        index: 2,
        name: "eth1".to_owned(),
        kind: "packet".to_owned(),
        on: Some("ens4".to_owned()),
        vrf: None,
        port: None,
        guest: None,
        table: None,
        mtu: 1500,
        up: false,
        why_down: Some("ens4 is gone".to_owned()),
        lladdr: Some("52:54:00:12:34:56".to_owned()),
        addresses: Vec::new(),
        offloads: Vec::new(),
        ring: None,
        qdisc: None,
        stats: LinkStats::default(),
        peer_errors: Vec::new(),
        ip6: Vec::new(),
    };
    let eth2 = LinkState {
        index: 3,
        name: "eth2".to_owned(),
        kind: "xdp".to_owned(),
        on: Some("ens5".to_owned()),
        up: true,
        why_down: None,
        offloads: vec![
            offload("xdp-native", true, None),
            offload("xdp-zero-copy", false, Some("Operation not supported")),
        ],
        ring: Some(RingState {
            mode: "native".to_owned(),
            zero_copy: false,
            queues: 2,
            frames: 256,
            frame_size: 2048,
            held: 3,
            rx_no_buffer: 1,
            rx_dropped: 70,
            rx_invalid_descs: 4,
            tx_invalid_descs: 5,
            rx_ring_full: 6,
            rx_fill_ring_empty_descs: 71,
            tx_ring_empty_descs: 8,
        }),
        ..eth1.clone()
    };
    Shown::Links(vec![tun0, eth1, eth2])
}

fn routes() -> Shown {
    let route = |kind: &str, to: &str, via: Option<&str>, dev: Option<&str>, metric, table| RouteState {
        proto: "static".to_owned(),
        scope: "global".to_owned(),
        kind: kind.to_owned(),
        to: to.parse().unwrap(),
        via: via.map(|via| via.parse().unwrap()),
        dev: dev.map(str::to_owned),
        metric,
        table,
        src: None,
        encap: None,
        nexthops: Vec::new(),
    };
    let nexthops = vec![
        NextHopState { via: Some("192.0.2.9".parse().unwrap()), dev: "wan".to_owned(), weight: 1, dead: false },
        NextHopState { via: None, dev: "tun0".to_owned(), weight: 3, dead: true },
    ];
    let encap = IlaEncapState {
        locator: config::model::Locator(0x2001_0db8_0000_0001),
        csum_mode: "neutral-map".to_owned(),
        ident_type: "luid".to_owned(),
        hook_type: "output".to_owned(),
    };
    Shown::Routes(vec![
        route("unicast", "0.0.0.0/0", Some("198.51.100.254"), Some("eth1"), 0, 254),
        RouteState { scope: "link".to_owned(), ..route("unicast", "10.2.0.0/24", None, Some("wan"), 0, 254) },
        RouteState {
            proto: "kernel".to_owned(),
            scope: "host".to_owned(),
            ..route("local", "192.0.2.1", None, Some("wan"), 0, 255)
        },
        RouteState { nexthops, ..route("unicast", "10.3.0.0/24", Some("192.0.2.9"), Some("wan"), 20, 254) },
        route("blackhole", "fd00::/16", None, None, 1024, 100),
        RouteState { encap: Some(encap), ..route("unicast", "3333::/16", None, Some("eth1"), 1024, 254) },
    ])
}

fn neighbours() -> Shown {
    let neighbour = |lladdr: Option<&str>, state: &str, queued| NeighbourState {
        to: "198.51.100.254".parse().unwrap(),
        dev: "eth1".to_owned(),
        lladdr: lladdr.map(str::to_owned),
        state: state.to_owned(),
        queued,
    };
    Shown::Neighbours(vec![neighbour(Some("52:54:00:00:00:01"), "REACHABLE", 0), neighbour(None, "INCOMPLETE", 3)])
}

fn pmtus() -> Shown {
    let pmtu = |to: &str, vrf: Option<&str>, mtu, expires_secs| PmtuState {
        to: to.parse().unwrap(),
        vrf: vrf.map(str::to_owned),
        mtu,
        expires_secs,
    };
    Shown::Pmtus(vec![pmtu("192.0.2.2", None, 1400, 583), pmtu("fd00::2", Some("red"), 1280, 0)])
}

fn sas() -> Shown {
    let esn = SaState {
        src: "192.0.2.1".parse().unwrap(),
        dst: "192.0.2.2".parse().unwrap(),
        spi: 0x1000,
        state: "valid".to_owned(),
        dir: None,
        mode: Mode::Tunnel,
        reqid: 1,
        algorithm: Some("rfc4106(gcm(aes))".to_owned()),
        key_bits: 256,
        auth: None,
        icv_bits: 128,
        replay_window: 288,
        flags: vec!["esn".to_owned(), "dont-encap-dscp".to_owned()],
        encap: Some(EspInUdp { sport: 4500, dport: 4501 }),
        moved_to: None,
        tfcpad: 0,
        nat: NatTraversal::default(),
        selector: None,
        oseq: 0x1_0000_0002,
        seq: 0x2a,
        bitmap: vec![0xffff_ffff, 0x3ff, 0, 0, 0, 0, 0, 0, 0],
        mark: None,
        output_mark: None,
        offload: None,
        if_id: 0,
        cpu: None,
        worker: None,
        limit: LimitState::default(),
        dying: false,
        ages: Ages { add_secs: Some(60), use_secs: None },
        last_used_secs: None,
        stats: SaStats { packets: 3, bytes: 4200, replay: 1, replay_window: 2, integrity_failed: 4 },
    };
    let null = SaState {
        spi: 0xdead_beef,
        dir: Some(SaDir::In),
        mode: Mode::Transport,
        reqid: 0,
        algorithm: Some("ecb(cipher_null)".to_owned()),
        key_bits: 0,
        auth: None,
        icv_bits: 0,
        replay_window: 32,
        flags: Vec::new(),
        encap: None,
        selector: Some(SelectorState { proto: Some(17), dport: Some(53), ..selector("198.51.100.7/32", "0.0.0.0/0") }),
        oseq: 0,
        seq: 2,
        bitmap: vec![3],
        stats: SaStats::default(),
        ..esn.clone()
    };
    let cbc = SaState {
        algorithm: Some("cbc(aes)".to_owned()),
        key_bits: 128,
        auth: Some("hmac(sha256)".to_owned()),
        icv_bits: 96,
        mark: Some(Mark { value: 1, mask: u32::MAX }),
        output_mark: Some(Mark { value: 2, mask: 3 }),
        offload: Some("dev wan dir in mode crypto".to_owned()),
        if_id: 10,
        cpu: Some(1),
        worker: Some(1),
        limit: LimitState {
            soft: BoundsState { bytes: Some(1000), packets: Some(7), ..BoundsState::default() },
            ..LimitState::default()
        },
        dying: true,
        last_used_secs: Some(4),
        ..null.clone()
    };
    let larval = SaState {
        spi: 0,
        state: "acq".to_owned(),
        dir: Some(SaDir::Out),
        algorithm: None,
        replay_window: 0,
        seq: 0,
        bitmap: Vec::new(),
        ages: Ages { add_secs: None, use_secs: None },
        ..null.clone()
    };
    Shown::Sa(vec![esn, null, cbc, larval])
}

fn policies() -> Shown {
    let template = TemplateState {
        src: Some("192.0.2.1".parse().unwrap()),
        dst: Some("192.0.2.2".parse().unwrap()),
        mode: Mode::Tunnel,
        reqid: 1,
        level: Level::Required,
    };
    let out = PolicyState {
        without_sa: false,
        dir: Dir::Out,
        selector: selector("10.1.0.0/24", "10.2.0.0/24"),
        priority: 0,
        action: Action::Allow,
        templates: vec![template],
        mark: None,
        if_id: 0,
        limit: LimitState::default(),
        ages: Ages { add_secs: Some(61), use_secs: Some(1) },
    };
    let transport = TemplateState { src: None, dst: None, mode: Mode::Transport, reqid: 2, level: Level::Use };
    let dir_in = PolicyState {
        without_sa: true,
        dir: Dir::In,
        selector: SelectorState { proto: Some(89), ..selector("fd00:1::/64", "::/0") },
        priority: 7,
        templates: vec![transport],
        ..out.clone()
    };
    let hard = BoundsState { add_secs: Some(9), ..BoundsState::default() };
    let block = PolicyState {
        without_sa: false,
        action: Action::Block,
        templates: Vec::new(),
        mark: Some(Mark { value: 4, mask: 12 }),
        if_id: 9,
        limit: LimitState { hard, ..LimitState::default() },
        ..dir_in.clone()
    };
    Shown::Policies(vec![out, dir_in, block])
}

fn counters() -> CountersState {
    let counter = |name: &str, value| CounterState { name: name.to_owned(), value };
    let copy = |reason: &str, copies, bytes| CopyState { reason: reason.to_owned(), copies, bytes };
    CountersState {
        counters: vec![counter("IpInReceives", 123), counter("IpInHdrErrors", 0), counter("XfrmInNoStates", 7)],
        copies: vec![copy("Linearize", 0, 0), copy("WireFrame", 10, 640_000)],
        forwarded_packets: 20,
        forwarded_bytes: 1_280_000,
    }
}

fn drops() -> Shown {
    let drop = |link: Option<&str>, reason: &str, count| DropState {
        link: link.map(str::to_owned),
        reason: reason.to_owned(),
        count,
    };
    Shown::Drops(vec![drop(Some("wan"), "EspReplay", 3), drop(None, "NoRoute", 1)])
}

#[test]
fn links_show_offloads_with_reasons_and_what_they_moved() {
    let want = "\
1: tun0: <UP> mtu 1438 kind tun master red
    inet 10.1.0.254/24
    inet6 fd00:1::fe/64
    tso4 on
    uso off (kernel refused TUNSETOFFLOAD: EINVAL)
    qdisc tbf backlog 1452b 1p
        bytes 4356 packets 3 dropped 1 overlimits 2
    peer 192.0.2.2:4500 Connection refused (os error 111), 5 times, last 2s ago
    RX:     bytes packets wire-packets calls dropped
        655350000      10          440     9       1
    TX:     bytes packets wire-packets calls dropped
              120       3            3     2       0
2: eth1: <DOWN> mtu 1500 kind packet on ens4
    down (ens4 is gone)
    link/ether 52:54:00:12:34:56
    RX: bytes packets wire-packets calls dropped
            0       0            0     0       0
    TX: bytes packets wire-packets calls dropped
            0       0            0     0       0
3: eth2: <UP> mtu 1500 kind xdp on ens5
    link/ether 52:54:00:12:34:56
    xdp-native on
    xdp-zero-copy off (Operation not supported)
    ring native copy queues 2 frames 256 of 2048 bytes
        held 3 rx_no_buffer 1
        rx_dropped 70 rx_invalid_descs 4 rx_ring_full 6 rx_fill_ring_empty_descs 71
        tx_invalid_descs 5 tx_ring_empty_descs 8
    RX: bytes packets wire-packets calls dropped
            0       0            0     0       0
    TX: bytes packets wire-packets calls dropped
            0       0            0     0       0
";
    assert_eq!(links().to_text(false), want);
}

#[test]
fn routes_neighbours_and_path_mtus_read_as_from_ip() {
    let want = "\
default via 198.51.100.254 dev eth1 proto static
10.2.0.0/24 dev wan proto static scope link
local 192.0.2.1 dev wan table local proto kernel scope host
10.3.0.0/24 proto static metric 20
\tnexthop via 192.0.2.9 dev wan weight 1
\tnexthop dev tun0 weight 3 dead linkdown
blackhole fd00::/16 table 100 proto static metric 1024
3333::/16 encap ila 2001:db8:0:1 csum-mode neutral-map ident-type luid hook-type output dev eth1 proto static metric 1024
";
    assert_eq!(routes().to_text(false), want);
    let want = "\
ADDRESS dev LINK [lladdr ADDRESS] [queued PACKETS] STATE
198.51.100.254 dev eth1 lladdr 52:54:00:00:00:01 REACHABLE
198.51.100.254 dev eth1 queued 3 INCOMPLETE
";
    assert_eq!(neighbours().to_text(false), want);
    assert_eq!(Shown::Neighbours(Vec::new()).to_text(false), "");
    let want = "192.0.2.2 cache expires 583sec mtu 1400\nfd00::2 vrf red cache expires 0sec mtu 1280\n";
    assert_eq!(pmtus().to_text(false), want);
}

#[test]
fn sas_read_as_from_ip_xfrm_state_without_their_keys() {
    let want = "\
src 192.0.2.1 dst 192.0.2.2
\tproto esp spi 0x00001000 reqid 1 mode tunnel
\treplay-window 288 flag esn extra_flag dont-encap-dscp
\taead rfc4106(gcm(aes)) <<Keys hidden>> 128 (256-bit key)
\tencap type espinudp sport 4500 dport 4501 addr 0.0.0.0
\tanti-replay esn context:
\t seq-hi 0x0, seq 0x2a, oseq-hi 0x1, oseq 0x2
\t replay_window 288, bitmap-length 9
\t 00000000 00000000 00000000 00000000 00000000 00000000 00000000 000003ff\x20
\t ffffffff\x20
\tlifetime current:
\t  4200(bytes), 3(packets)
\t  add 60s ago use -
\tstats:
\t  replay-window 2 replay 1 failed 4
src 192.0.2.1 dst 192.0.2.2
\tproto esp spi 0xdeadbeef reqid 0 mode transport
\treplay-window 32
\tenc ecb(cipher_null)\x20
\tanti-replay context: seq 0x2, oseq 0x0, bitmap 0x00000003
\tdir in
\tsel src 198.51.100.7/32 dst 0.0.0.0/0 proto udp dport 53\x20
\tlifetime current:
\t  0(bytes), 0(packets)
\t  add 60s ago use -
\tstats:
\t  replay-window 0 replay 0 failed 0
src 192.0.2.1 dst 192.0.2.2
\tproto esp spi 0xdeadbeef reqid 0 mode transport
\treplay-window 32
\tmark 0x1/0xffffffff
\toutput-mark 0x2/0x3
\tauth-trunc hmac(sha256) <<Keys hidden>> 96
\tenc cbc(aes) <<Keys hidden>> (128-bit key)
\tanti-replay context: seq 0x2, oseq 0x0, bitmap 0x00000003
\tcrypto offload parameters: dev wan dir in mode crypto
\tif_id 0xa
\tdir in
\tpcpu-num 1
\tworker 1
\tsel src 198.51.100.7/32 dst 0.0.0.0/0 proto udp dport 53\x20
\tlifetime config:
\t  limit: soft 1000(bytes), hard (INF)(bytes)
\t  limit: soft 7(packets), hard (INF)(packets)
\t  expire add: soft 0(sec), hard 0(sec)
\t  expire use: soft 0(sec), hard 0(sec)
\tlifetime current:
\t  0(bytes), 0(packets)
\t  add 60s ago use -
\tlastused 4s ago
\t  dying
\tstats:
\t  replay-window 0 replay 0 failed 0
src 192.0.2.1 dst 192.0.2.2
\tproto esp spi 0x00000000 reqid 0 mode transport
\tstate acq
\treplay-window 0
\tanti-replay context: seq 0x0, oseq 0x0, bitmap 0x00000000
\tdir out
\tsel src 198.51.100.7/32 dst 0.0.0.0/0 proto udp dport 53\x20
\tlifetime current:
\t  0(bytes), 0(packets)
\t  add - use -
\tstats:
\t  replay-window 0 replay 0 failed 0
";
    assert_eq!(sas().to_text(false), want);
}

#[test]
fn policies_read_as_from_ip_xfrm_policy() {
    let want = "\
src 10.1.0.0/24 dst 10.2.0.0/24\x20
\tdir out priority 0\x20
\ttmpl src 192.0.2.1 dst 192.0.2.2
\t\tproto esp reqid 1 mode tunnel
\tlifetime current:
\t  add 61s ago use 1s ago
src fd00:1::/64 dst ::/0 proto 89\x20
\tdir in priority 7\x20
\ttmpl src :: dst ::
\t\tproto esp reqid 2 mode transport
\t\tlevel use
\twithout sa
\tlifetime current:
\t  add 61s ago use 1s ago
src fd00:1::/64 dst ::/0 proto 89\x20
\tdir in action block priority 7\x20
\tmark 0x4/0xc
\tif_id 0x9
\tlifetime config:
\t  limit: soft (INF)(bytes), hard (INF)(bytes)
\t  limit: soft (INF)(packets), hard (INF)(packets)
\t  expire add: soft 0(sec), hard 9(sec)
\t  expire use: soft 0(sec), hard 0(sec)
\tlifetime current:
\t  add 61s ago use 1s ago
";
    assert_eq!(policies().to_text(false), want);
}

#[test]
fn counters_at_zero_are_omitted_unless_requested() {
    let want = "\
IpInReceives                    123
XfrmInNoStates                  7
copied WireFrame                640000 bytes, 10 times
forwarded                       1280000 bytes, 20 packets
copied bytes per forwarded byte 0.500
";
    assert_eq!(Shown::Counters(counters()).to_text(false), want);
    let all = Shown::Counters(counters()).to_text(true);
    assert!(all.contains("IpInHdrErrors                   0\n") && all.contains("copied Linearize"), "{all}");
    assert_eq!(Shown::Counters(CountersState::default()).to_text(false), "");
}

fn fragments() -> Shown {
    let state = |name: &str, inuse, memory| FragmentsState { name: name.to_owned(), inuse, memory };
    Shown::Fragments(vec![state("FRAG", 2, 4736), state("FRAG6", 0, 0)])
}

#[test]
fn drops_name_their_link_unless_the_node_made_the_packet() {
    let want = "\
EspReplay                       3 dev wan                Sequence number seen before, or left of the window
NoRoute                         1                        No route leads to the destination
";
    assert_eq!(drops().to_text(false), want);
}

#[test]
fn fragments_read_as_from_sockstat() {
    assert_eq!(fragments().to_text(false), "FRAG: inuse 2 memory 4736\nFRAG6: inuse 0 memory 0\n");
}

fn mappings() -> Shown {
    let mapping = |interface: Option<&str>, csum_mode: &str, ident_type: &str| IlaState {
        locator_match: "2001:db8:0:1".parse().unwrap(),
        identifier: None,
        locator: "fd00:0:0:7".parse().unwrap(),
        interface: interface.map(str::to_owned),
        csum_mode: csum_mode.to_owned(),
        ident_type: ident_type.to_owned(),
    };
    let of_address = IlaState { identifier: Some("2000:0:0:7".to_owned()), ..mapping(None, "no-action", "use-format") };
    Shown::Ila(vec![of_address, mapping(Some("wan"), "neutral-map", "luid"), mapping(None, "no-action", "use-format")])
}

#[test]
fn ila_mappings_read_as_from_ip_ila() {
    let want = "\
2001:db8:0:1        fd00:0:0:7          *               no-action           use-format identifier 2000:0:0:7
2001:db8:0:1        fd00:0:0:7          wan             neutral-map         luid
2001:db8:0:1        fd00:0:0:7          *               no-action           use-format
";
    assert_eq!(mappings().to_text(false), want);
}

fn host(side: &str, why: Option<&str>) -> Shown {
    let device = |index, name: &str, kind: &str, mtu, why_not: Option<&str>| HostDeviceState {
        name: name.to_owned(),
        index,
        kind: kind.to_owned(),
        mtu,
        why_not: why_not.map(str::to_owned),
    };
    let is_on = side == "on";
    let all = vec![device(2, "eth0", "tap", 65521, None), device(7, "wan", "tun", 65535, Some("max-links is 1"))];
    Shown::Host(HostState {
        side: side.to_owned(),
        why: why.map(str::to_owned),
        namespace: is_on.then(|| "/run/netns/fatpath-gw".to_owned()),
        devices: if is_on { all } else { Vec::new() },
        addresses: 3,
        routes: 2,
        refused: is_on.then(|| "route fd09::/16 table 254: Invalid argument".to_owned()),
        put_back: 1,
        ..HostState::default()
    })
}

#[test]
fn host_side_shows_devices_with_reasons_or_why_there_is_none() {
    let want = "\
host side on at /run/netns/fatpath-gw
    2: eth0 kind tap mtu 65521
    7: wan kind tun mtu 65535 missing (max-links is 1)
    3 addresses, 2 routes, 1 reverted
    refused: route fd09::/16 table 254: Invalid argument
";
    assert_eq!(host("on", None).to_text(false), want);
    assert_eq!(host("off", None).to_text(false), "host side off\n");
    assert_eq!(host("failed", Some("it is full")).to_text(false), "host side failed (it is full)\n");
}

#[test]
fn every_reply_comes_back_equal_through_json() {
    let all = [links(), routes(), neighbours(), pmtus(), sas(), policies(), Shown::Counters(counters()), drops()];
    for shown in all.into_iter().chain([fragments(), mappings(), memory(), sandbox(), host("on", None)]) {
        let reply = Reply::Show { shown: shown.clone() };
        assert_eq!(Reply::from_line(reply.to_line().trim_end()), Ok(reply));
        assert!(shown.to_json().starts_with(['[', '{']), "{}", shown.to_json());
    }
}

#[test]
fn json_names_are_the_words_of_the_text() {
    let want = concat!(
        r#"[{"kind":"unicast","to":"0.0.0.0/0","via":"198.51.100.254","dev":"eth1","proto":"static","scope":"global","metric":0,"table":254},"#,
        r#"{"kind":"unicast","to":"10.2.0.0/24","via":null,"dev":"wan","proto":"static","scope":"link","metric":0,"table":254},"#,
        r#"{"kind":"local","to":"192.0.2.1/32","via":null,"dev":"wan","proto":"kernel","scope":"host","metric":0,"table":255},"#,
        r#"{"kind":"unicast","to":"10.3.0.0/24","via":"192.0.2.9","dev":"wan","nexthops":[{"via":"192.0.2.9","dev":"wan","weight":1},"#,
        r#"{"via":null,"dev":"tun0","weight":3,"dead":true}],"proto":"static","scope":"global","metric":20,"table":254},"#,
        r#"{"kind":"blackhole","to":"fd00::/16","via":null,"dev":null,"proto":"static","scope":"global","metric":1024,"table":100},"#,
        r#"{"kind":"unicast","to":"3333::/16","via":null,"dev":"eth1","proto":"static","scope":"global","metric":1024,"table":254,"#,
        r#""encap":{"locator":"2001:db8:0:1","csum_mode":"neutral-map","ident_type":"luid","hook_type":"output"}}]"#,
    );
    assert_eq!(routes().to_json(), want);
}

#[test]
fn fdb_reads_as_from_bridge_below_a_header() {
    let entry = |vlan, sticky, state: &str| FdbState {
        mac: "52:54:00:00:00:01".to_owned(),
        dev: "red0".to_owned(),
        vlan,
        master: "br0".to_owned(),
        state: state.to_owned(),
        sticky,
        updated_secs: 1,
        used_secs: 2,
    };
    let shown = Shown::Fdb(vec![entry(Some(10), false, "dynamic"), entry(None, true, "static")]);
    let want = "\
ADDRESS dev PORT [vlan ID] master BRIDGE [sticky] [static|permanent]
52:54:00:00:00:01 dev red0 vlan 10 master br0
52:54:00:00:00:01 dev red0 master br0 sticky static
";
    assert_eq!(shown.to_text(false), want);
    assert_eq!(Shown::Fdb(Vec::new()).to_text(false), "");
}

fn memory() -> Shown {
    let table = |name: &str, entries, limit, bytes| TableMemory { name: name.to_owned(), entries, limit, bytes };
    Shown::Memory(MemoryState {
        limit: Some(2 << 30),
        source: Some("[limits]".to_owned()),
        used: 200 << 20,
        live: 180 << 20,
        reserve: 16 << 20,
        growth: 24 << 20,
        page_tables: 160 << 10,
        tables: vec![table("routes", 160_000, None, 81_440_000), table("sas", 2, Some(1000), 4134)],
        queues: 0,
        fragments: 4736,
        captures: 1,
        pools: vec![PoolState { page_size: 2048, pages: 12, in_use: 3, bytes: 24_576, dry: 7 }],
    })
}

#[test]
fn memory_shows_limit_with_its_source_tables_and_pools() {
    let want = "\
limit 2G of [limits]: used 200M, allocated 180M, kept free 40M
page tables 160K, queues 0, fragments 4736, captures 1
routes: entries 160000 limit none memory 77M
sas: entries 2 limit 1000 memory 4134
pages of 2K: 12 in-use 3 memory 24K dry 7
";
    assert_eq!(memory().to_text(false), want);
    let Shown::Memory(mut state) = memory() else { panic!() };
    state.source = Some("RLIMIT_AS".to_owned());
    let text = Shown::Memory(state.clone()).to_text(false);
    assert!(text.starts_with("limit 2G, nine tenths of RLIMIT_AS: used"), "{text}");
    (state.limit, state.source) = (None, None);
    assert!(Shown::Memory(state).to_text(false).starts_with("no limit: used"));
}

fn sandbox() -> Shown {
    Shown::Sandbox(SandboxState {
        enabled: true,
        threads: 9,
        filtered: 9,
        no_new_privs: true,
        landlock: Some(7),
        user: None,
        read: vec!["/etc/fatpath".to_owned()],
        write: vec!["/run/fatpath".to_owned(), "/var/lib/fatpath".to_owned()],
        by_opener: false,
        capabilities: Vec::new(),
        missing: Vec::new(),
    })
}

#[test]
fn sandbox_shows_what_holds_and_what_is_missing() {
    let want = "\
sandbox landlock 7, seccomp, no_new_privs, no capabilities
threads 9 filtered 9
read /etc/fatpath
write /run/fatpath
write /var/lib/fatpath
";
    assert_eq!(sandbox().to_text(false), want);
    let Shown::Sandbox(mut state) = sandbox() else { panic!() };
    (state.user, state.by_opener) = (Some("fatpath".to_owned()), true);
    let text = Shown::Sandbox(state.clone()).to_text(false);
    let first = "sandbox landlock 7, seccomp, no_new_privs, no capabilities, user fatpath\n";
    assert!(text.starts_with(first) && text.ends_with("write /var/lib/fatpath by its opener\n"), "{text}");
    (state.user, state.by_opener) = (None, false);
    (state.landlock, state.filtered, state.read, state.write) = (None, 8, Vec::new(), Vec::new());
    state.capabilities = vec!["net_admin".to_owned(), "net_raw".to_owned()];
    state.missing = vec!["Landlock: this kernel has none".to_owned()];
    let want = "\
sandbox no_new_privs, capabilities net_admin net_raw
threads 9 filtered 8
missing Landlock: this kernel has none
";
    assert_eq!(Shown::Sandbox(state.clone()).to_text(false), want);
    state.enabled = false;
    assert!(Shown::Sandbox(state).to_text(false).starts_with("sandbox off, no_new_privs, capabilities net_admin"));
}
