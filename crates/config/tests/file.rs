//! Configuration files: the `Config` of a valid file, and the error of an invalid one.

use std::net::IpAddr;
use std::time::Duration;

use base::{Prefix, TableId};
use config::features::FeatureSet;
use config::model::*;
use config::{Config, Findings};
use driver::{DriverKind, XdpMode};
use wire::{Protocol, Spi};
use xfrm::*;

const GOOD: &str = include_str!("gw.toml");

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

#[test]
fn file_with_every_section_becomes_the_expected_config() {
    let config = Config::from_toml(GOOD, "gw.toml").unwrap();
    let link = |name: &str, kind| LinkConfig {
        name: name.to_owned(),
        kind,
        mtu: None,
        addresses: Vec::new(),
        device: DeviceConfig::default(),
        ike: false,
        clamp_mss: false,
        defrag: false,
        qdisc: None,
        offloads: true,
        esp_gro: true,
        esp_offload: None,
        features: FeatureSet::SWITCHED,
        master: None,
        port: None,
    };
    let links = vec![
        LinkConfig {
            mtu: Some(1438),
            addresses: vec!["10.1.0.254/24".parse().unwrap(), "fd00:1::fe/64".parse().unwrap()],
            ..link("tun0", LinkKind::Driver(DriverKind::Tun { queues: 2 }))
        },
        LinkConfig {
            offloads: false,
            esp_gro: false,
            features: FeatureSet::initial(false, false),
            ..link("wan", LinkKind::Driver(DriverKind::Udp { bind: "192.0.2.1:4500".parse().unwrap() }))
        },
        LinkConfig {
            addresses: vec!["198.51.100.1/24".parse().unwrap()],
            ..link("eth1", LinkKind::Driver(DriverKind::Packet { interface: "eth1".to_owned(), exclusive: false }))
        },
    ];
    assert_eq!(config.links, links);
    let routes = vec![
        RouteConfig {
            to: prefix("10.2.0.0/24"),
            action: RouteAction::Unicast { via: None, dev: "wan".to_owned() },
            metric: 0,
            table: TableId::MAIN,
            src: None,
            encap: None,
        },
        RouteConfig {
            to: Prefix::ANY_V4,
            action: RouteAction::Unicast { via: Some(ip("198.51.100.254")), dev: "eth1".to_owned() },
            metric: 0,
            table: TableId::MAIN,
            src: None,
            encap: None,
        },
        RouteConfig {
            to: prefix("fd00::/16"),
            action: RouteAction::Blackhole,
            metric: 1024,
            table: TableId(100),
            src: None,
            encap: None,
        },
    ];
    assert_eq!(config.routes, routes);
    let key = (0..16).chain(0xa0..0xa4).collect::<Vec<u8>>().into();
    let gcm = Algorithm::Aead { name: Aead::GcmAes, key, icv_bits: 128 };
    let sas = vec![
        SaConfig {
            reqid: 1,
            replay_window: 1024,
            flags: SaFlags { esn: true, ..SaFlags::default() },
            encap: Some(EspInUdp { sport: 4500, dport: 4500 }),
            ..SaConfig::new(ip("192.0.2.1"), ip("192.0.2.2"), Spi(0x1000), Mode::Tunnel, gcm)
        },
        SaConfig {
            selector: Some(Selector {
                protocol: Some(Protocol::UDP),
                dport: PortMask::exactly(53),
                ..Selector::new(prefix("198.51.100.7/32"), Prefix::ANY_V4)
            }),
            ..SaConfig::new(ip("198.51.100.7"), ip("198.51.100.1"), Spi(0x1001), Mode::Transport, Algorithm::null())
        },
    ];
    assert_eq!(config.sas, sas);
    let policies = vec![
        PolicyConfig {
            templates: vec![Template {
                src: Some(ip("192.0.2.1")),
                dst: Some(ip("192.0.2.2")),
                spi: None,
                mode: Mode::Tunnel,
                reqid: 1,
                level: Level::Required,
            }],
            ..PolicyConfig::new(Dir::Out, Selector::new(prefix("10.1.0.0/24"), prefix("10.2.0.0/24")))
        },
        PolicyConfig {
            priority: 7,
            action: Action::Block,
            ..PolicyConfig::new(Dir::In, Selector::new(prefix("198.51.100.7/32"), Prefix::ANY_V4))
        },
    ];
    assert_eq!(config.policies, policies);
}

#[test]
fn outbound_sa_has_esn_without_a_replay_window() {
    let sa = |text: &str| Config::from_toml(&GOOD.replace("replay-window = 1024", text), "f").unwrap().sas.remove(0);
    for (text, dir, window) in [
        ("dir = \"out\"", SaDir::Out, 0),
        ("dir = \"out\"\nreplay-window = 0", SaDir::Out, 0),
        ("dir = \"in\"\nreplay-window = 64", SaDir::In, 64),
    ] {
        let sa = sa(text);
        assert_eq!((sa.dir, sa.replay_window, sa.flags.esn), (Some(dir), window, true), "{text}");
    }
}

#[test]
fn sa_nat_and_tfc_settings_are_read() {
    let sa = |text: &str| Config::from_toml(&GOOD.replace("replay-window = 1024", text), "f").unwrap().sas.remove(0);
    let out = sa("dir = \"out\"\ntfcpad = 1500\nnat-keepalive-interval = 20");
    let nat = NatTraversal { keepalive_interval: 20, ..NatTraversal::default() };
    assert_eq!((out.tfcpad, out.nat), (1500, nat));
    let inward = sa("dir = \"in\"\nreplay-window = 64\nnat-mapping-threshold = 10\nnat-follow = true");
    let nat = NatTraversal { mapping_threshold: 10, follow: true, ..NatTraversal::default() };
    assert_eq!((inward.tfcpad, inward.nat), (0, nat));
}

#[test]
fn route_via_neighbour_finds_its_link_in_any_order_of_the_file() {
    let link = |name, net| format!("[[link]]\nname = \"{name}\"\nkind = \"tun\"\naddresses = [\"{net}\"]\n");
    let links = link("a", "10.1.0.1/16") + &link("b", "10.2.0.1/16") + &link("c", "10.1.2.1/24");
    let by = "[[route]]\nto = \"default\"\nvia = \"VIA\"\n";
    let direct = |to, dev| format!("[[route]]\nto = \"{to}\"\ndev = \"{dev}\"\n");
    let on_the_way = direct("10.9.0.0/16", "a") + &direct("10.9.9.0/24", "b") + &direct("10.9.9.9/32", "c");
    let cases = [
        ("10.1.0.9", "a"),
        ("10.2.0.9", "b"),
        ("10.1.2.9", "c"),
        ("10.9.0.9", "a"),
        ("10.9.9.1", "b"),
        ("10.9.9.9", "c"),
        ("10.9.9.9\"\ndev = \"a", "a"),
    ];
    for (via, dev) in cases {
        let by = by.replace("VIA", via);
        for text in [[&links, &on_the_way, &by], [&links, &by, &on_the_way]] {
            let config = read(&text.map(String::as_str)).unwrap();
            let found = config.routes.iter().find_map(|route| match &route.action {
                RouteAction::Unicast { via: Some(_), dev } => Some(dev.as_str()),
                _ => None,
            });
            assert_eq!(found, Some(dev), "{via}");
        }
    }
    let nowhere = read(&[&links, &by.replace("VIA", "10.3.0.1"), &on_the_way]).unwrap_err().to_string();
    assert!(nowhere.contains("10.3.0.1 is on no link"), "{nowhere}");
}

#[test]
fn host_side_of_a_device_is_read() {
    let read = |text: &str| {
        let text = GOOD.replace("queues = 2", &format!("device = {text}"));
        Config::from_toml(&text, "f").unwrap().links.remove(0).device
    };
    let device = read(
        "{ addresses = [\"10.1.0.1/24\", \"fd00:1::1/64\"], routes = [\"10.2.0.0/24\", \"default\", \
         { to = \"10.3.0.0/16\", src = \"10.1.0.1\", metric = 50 }, { to = \"default\", src = \"fd00:1::1\" }, \
         { to = \"fd00:2::/64\", metric = 0 }, { to = \"10.3.0.0/16\" }] }",
    );
    assert_eq!(device.addresses, ["10.1.0.1/24", "fd00:1::1/64"].map(|text| text.parse().unwrap()));
    let route = |to, src: &str, metric| DeviceRoute { to, src: src.parse().ok(), metric };
    let routes = [
        route(prefix("10.2.0.0/24"), "", 0),
        route(Prefix::ANY_V4, "", 0),
        route(prefix("10.3.0.0/16"), "10.1.0.1", 50),
        route(Prefix::ANY_V6, "fd00:1::1", 1024),
        route(prefix("fd00:2::/64"), "", 1024),
        route(prefix("10.3.0.0/16"), "", 0),
    ];
    assert_eq!(device.routes, routes);
    assert!(read("{}").is_empty() && !device.is_empty());
}

#[test]
fn devices_have_no_route_in_common() {
    let link = |name, route| {
        let text = "kind = \"tap\"\ndevice = { addresses = [\"10.1.0.1/24\"], routes = [ROUTE] }\n";
        format!("[[link]]\nname = \"{name}\"\n{}", text.replace("ROUTE", route))
    };
    let two = |first, second| read(&[&link("a", first), &link("b", second)]);
    two("\"10.2.0.0/24\"", "{ to = \"10.2.0.0/24\", metric = 7 }").unwrap();
    let refused = two("\"10.2.0.0/24\"", "\"10.2.0.0/24\"").unwrap_err().to_string();
    assert!(refused.ends_with("10.2.0.0/24 with metric 0 is already a route of a; use another metric."), "{refused}");
}

#[test]
fn lo_has_addresses_and_routes_have_a_source() {
    let lo = "[[link]]\nname = \"lo\"\nKINDaddresses = [\"10.7.0.1/32\", \"fd07::1/128\"]\n";
    let route = "[[route]]\nto = \"10.2.0.0/24\"\ndev = \"one\"\nsrc = \"SRC\"\n";
    let link = "[[link]]\nname = \"one\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n";
    let udp = "[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"192.0.2.1:4500\"\n";
    for kind in ["", "kind = \"loopback\"\n"] {
        let lo = lo.replace("KIND", kind);
        for src in ["10.7.0.1", "10.1.0.1", "192.0.2.1"] {
            let config = read(&[link, &route.replace("SRC", src), udp, &lo]).unwrap();
            assert_eq!(config.lo, ["10.7.0.1/32", "fd07::1/128"].map(|text| text.parse().unwrap()));
            assert_eq!((config.routes[0].src, config.links.len()), (Some(ip(src)), 2));
        }
        let by_lo = read(&[&lo, link, "[[route]]\nto = \"10.3.0.0/16\"\nvia = \"10.7.0.1\"\n"]).unwrap_err();
        assert!(by_lo.contains("10.7.0.1 is this node's own address"), "{by_lo}");
    }
    // An address of another domain is none of the route's.
    for (route, is_right) in [
        ("vrf = \"red\"\ndev = \"one\"\nsrc = \"10.1.0.1\"", true),
        ("dev = \"two\"\nsrc = \"192.0.2.9\"", true),
        ("dev = \"one\"\nsrc = \"192.0.2.9\"", false),
        ("dev = \"one\"\nsrc = \"10.7.0.1\"", false),
    ] {
        let route = format!("[[route]]\nto = \"10.2.0.0/16\"\n{route}\n");
        let outcome = read(&[VRFS, &lo.replace("KIND", ""), &route]);
        assert_eq!(outcome.is_ok(), is_right, "{outcome:?}");
        assert!(is_right || outcome.unwrap_err().contains("is no address of this node in the route's VRF"));
    }
}

#[test]
fn an_empty_file_is_a_node_without_links() {
    assert_eq!(Config::from_toml("", "f"), Ok(Config::default()));
}

#[test]
fn a_key_in_the_model_is_not_shown() {
    let shown = format!("{:?}", Config::from_toml(GOOD, "gw.toml").unwrap());
    assert!(shown.contains("<hidden>") && !shown.contains("160, 161") && !shown.contains("a0a1"), "{shown}");
}

#[test]
fn a_key_text_without_0x_stands_for_its_own_bytes() {
    let text = GOOD.replace("0x000102030405060708090a0b0c0d0e0fa0a1a2a3", "sixteen byte keysalt");
    let config = Config::from_toml(&text, "f").unwrap();
    let Algorithm::Aead { key, .. } = &config.sas[0].algorithm else { panic!("{:?}", config.sas[0]) };
    assert_eq!(key.bytes(), b"sixteen byte keysalt");
}

#[test]
fn sa_sequence_numbers_start_at_the_value_of_the_file() {
    let read = |text: &str| {
        let text = GOOD.replace("replay-window = 1024", &format!("replay-window = 1024\n{text}"));
        let sa = Config::from_toml(&text, "f").unwrap().sas.remove(0);
        (sa.seq, sa.oseq)
    };
    assert_eq!(read("replay-seq = 7"), (7, 0));
    assert_eq!(read("replay-oseq = 0xffffff00\nreplay-oseq-hi = 2"), (0, 0x2_ffff_ff00));
    assert_eq!(read("replay-seq-hi = 1"), (1 << 32, 0));
}

#[test]
fn every_algorithm_is_read_by_each_of_its_names() {
    let key = |len: usize| format!("0x{}", "5a".repeat(len));
    let read = |text: &str| {
        let text = GOOD.replace("enc = \"ecb(cipher_null)\"", text);
        Config::from_toml(&text, "f").unwrap_or_else(|err| panic!("{text}: {err}")).sas.remove(1).algorithm
    };
    let mut seen = Vec::new();
    for (text, name) in names::<Aead>() {
        for (&len, &icv_bits) in
            name.spec().key_lens.iter().flat_map(|len| name.icv_bits().iter().map(move |icv| (len, icv)))
        {
            let got = read(&format!("aead = {{ name = \"{text}\", key = \"{}\", icv = {icv_bits} }}", key(len)));
            assert_eq!(got, Algorithm::Aead { name, key: vec![0x5a; len].into(), icv_bits });
            seen.push((got.name(), got.key_bits(), got.icv_bits()));
        }
    }
    for (text, enc) in names::<Enc>() {
        for &len in enc.spec().key_lens {
            let got = read(&format!("enc = {{ name = \"{text}\", key = \"{}\" }}", key(len)));
            assert_eq!(got, Algorithm::Separate { enc, key: vec![0x5a; len].into(), auth: None });
            seen.push((got.name(), got.key_bits(), got.icv_bits()));
        }
    }
    assert_eq!(seen.len(), 3 * 3 + 3 + 3 * 3 + 1 + 3 * 3 + 2, "{seen:?}");
    let none = read("enc = \"ecb(cipher_null)\"\nauth = { name = \"digest_null\" }");
    assert_eq!(none, Algorithm::null());
    for (text, name) in names::<Auth>() {
        let auth = |got: Algorithm| got.auth().cloned().unwrap();
        let got = auth(read(&format!("enc = \"cipher_null\"\nauth = {{ name = \"{text}\", key = \"{}\" }}", key(16))));
        let key = Key::from(vec![0x5a; 16]);
        assert_eq!(got, AuthConfig { name, key: key.clone(), icv_bits: name.default_icv_bits() });
        for icv_bits in [32, 128, name.full_bits()] {
            let trunc =
                format!("auth-trunc = {{ name = \"{text}\", key = \"0x{}\", icv = {icv_bits} }}", "5a".repeat(16));
            let got = auth(read(&format!("enc = {{ name = \"ecb(cipher_null)\" }}\n{trunc}")));
            assert_eq!(got, AuthConfig { name, key: key.clone(), icv_bits });
        }
    }
}

/// All names of algorithms of a kind, including aliases.
fn names<N: Name>() -> impl Iterator<Item = (&'static str, N)> {
    N::ALL.iter().flat_map(|&name| name.spec().names.iter().map(move |&text| (text, name)))
}

/// Lines of a case of `refused.txt` that begin with `mark`, without `mark`.
fn part(case: &str, mark: &str) -> String {
    let lines: Vec<&str> = case.lines().filter_map(|line| line.strip_prefix(mark)).collect();
    lines.join("\n")
}

#[test]
fn config_error_names_line_key_and_valid_values() {
    let cases = include_str!("refused.txt").split("\n\n").skip(1);
    let mut wrong = Vec::new();
    for case in cases {
        let (old, new, want) = (part(case, "- "), part(case, "+ "), part(case, "! "));
        assert!(!old.is_empty() && GOOD.contains(&old), "gw.toml has no {old:?}");
        // A fault has one error: what refers to the faulty table causes no others.
        let got = match Config::with_warnings(&GOOD.replacen(&old, &new, 1), "gw.toml") {
            Ok(_) => "accepted".to_owned(),
            Err(errors) => errors.to_string(),
        };
        if got != want {
            wrong.push(format!("{old:?} -> {new:?}\n   want {want}\n   got  {got}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn all_errors_are_listed_in_the_order_of_the_file() {
    let text = GOOD
        .replace("kind = \"tun\"", "kind = \"tunnel\"")
        .replace("dev = \"wan\"", "dev = \"lan\"")
        .replace("spi = 4097", "spi = 4097\nspy = 1\nmodus = 1")
        .replace("priority = 7", "priority = -7");
    let errors = Config::with_warnings(&text, "f").unwrap_err();
    let lines: Vec<_> = errors.first.iter().map(|error| (error.line, error.key.as_str())).collect();
    let want =
        [(4, "link[0].kind"), (23, "route[0].dev"), (49, "sa[1].spy"), (50, "sa[1].modus"), (63, "policy[1].priority")];
    assert_eq!((lines, errors.more), (want.to_vec(), 0), "{errors}");
    // Only the first of many are kept; all are counted.
    let many: String = (0..50).map(|n| format!("[[link]]\nname = \"l{n}\"\nkind = \"x\"\n")).collect();
    let errors = Config::with_warnings(&many, "f").unwrap_err();
    let last = errors.first.last().unwrap();
    assert_eq!((errors.first.len(), errors.more, last.line), (Findings::MAX, 30, 60), "{errors}");
    assert!(errors.errors().last().unwrap() == "… and 30 more");
}

#[test]
fn error_in_a_table_has_no_errors_of_others_in_its_wake() {
    let tun = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n";
    let cases = [
        ("kind = \"tun\"", "[[route]]\nto = \"10.2.0.0/16\"\ndev = \"tun0\"\n"),
        ("name = \"tun0\"", "[[route]]\nto = \"10.2.0.0/16\"\ndev = \"tun0\"\n"),
        ("[\"10.1.0.1/24\"]", "[[route]]\nto = \"10.2.0.0/16\"\nvia = \"10.1.0.9\"\n"),
        (
            "[\"10.1.0.1/24\"]",
            "[[route]]\nto = \"10.2.0.0/16\"\ntype = \"unicast\"\ndev = \"tun0\"\nsrc = \"10.1.0.1\"\n",
        ),
        ("kind = \"tun\"", "[[ila]]\nloc_match = \"1:2:3:4\"\nloc = \"1:2:3:5\"\ndev = \"tun0\"\n"),
    ];
    for (right, user) in cases {
        read(&[tun, user]).unwrap();
        let wrong =
            format!("{}{user}", tun.replace(right, &right.replace(['"', '['], "\"~/").replace(['\n', ']'], "")));
        let wrong = if wrong.contains("~/") { tun.replace(right, "mtu = 1") + user } else { wrong };
        let errors = Config::with_warnings(&wrong, "f").unwrap_err();
        assert_eq!((errors.first.len(), errors.more), (1, 0), "{wrong}\n{errors}");
    }
    let vrf = "[[link]]\nname = \"red\"\nkind = \"vrf\"\ntable = 0\n";
    let member = "[[link]]\nname = \"a\"\nkind = \"tun\"\nmaster = \"red\"\n";
    let route = "[[route]]\nto = \"10.2.0.0/16\"\ntype = \"blackhole\"\nvrf = \"red\"\n";
    let vlan = "[[link]]\nname = \"b\"\nkind = \"tap\"\nmtu = 1\n[[link]]\nname = \"c\"\nkind = \"vlan\"\nlink = \"b\"\nid = 5\n";
    let mode = SA.replace("spi = 1\n", "spi = 2\nmode = \"tunnel\"\nreqid = 7\nreplay-window = 9999\n");
    let other = SA.replace("spi = 1\n", "spi = 3\nreqid = 7\n");
    let tunnel = "tmpl = [{ src = \"192.0.2.1\", dst = \"192.0.2.2\", mode = \"tunnel\", reqid = 7 }]\n";
    for text in [[vrf, member, route].concat(), vlan.to_owned(), [mode.as_str(), &other, POLICY, tunnel].concat()] {
        let errors = Config::with_warnings(&text, "f").unwrap_err();
        assert_eq!((errors.first.len(), errors.more), (1, 0), "{text}\n{errors}");
    }
}

fn warnings(text: &str) -> Vec<String> {
    Config::with_warnings(text, "f").unwrap_or_else(|errors| panic!("{errors}\n{text}")).1.warnings()
}

#[test]
fn warnings_name_what_cannot_work_or_is_dangerous() {
    let wan = "[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"192.0.2.1:4500\"\n";
    let route = "[[route]]\nto = \"192.0.2.2/32\"\ndev = \"wan\"\n";
    let sa = |src: u8, spi: u32, key: &str| {
        format!(
            "[[sa]]\nsrc = \"192.0.2.{src}\"\ndst = \"192.0.2.{}\"\nspi = {spi}\nmode = \"tunnel\"\nreqid = 1\n\
             aead = {{ name = \"rfc4106(gcm(aes))\", key = \"0x{}\", icv = 128 }}\n\
             encap = {{ type = \"espinudp\", sport = 4500, dport = 4500 }}\n",
            3 - src,
            key.repeat(20)
        )
    };
    let policy = "[[policy]]\ndir = \"out\"\nsrc = \"10.1.0.0/24\"\ndst = \"10.2.0.0/24\"\n\
                  tmpl = [{ src = \"192.0.2.1\", dst = \"192.0.2.2\", mode = \"tunnel\", reqid = 1 }]\n";
    let good = [wan, route, &sa(1, 1, "a1"), &sa(2, 1, "b1"), policy].concat();
    let none: Vec<String> = Vec::new();
    assert_eq!(warnings(&good), none);
    let tun = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n";
    let bridge = "[[link]]\nname = \"br0\"\nkind = \"bridge\"\n";
    let port = "[[link]]\nname = \"tap0\"\nkind = \"tap\"\nmaster = \"br0\"\nport = { pvid = 5 }\n";
    let clear = "[[policy]]\ndir = \"in\"\nsrc = \"10.2.0.0/24\"\ndst = \"10.1.0.0/24\"\n";
    let cases = [
        (
            good.clone() + clear,
            "f:29: warning: policy[1]: it has no tmpl, so its packets pass in clear; add tmpl, or action = \"block\".",
        ),
        (good.clone() + &clear.replace("\"in\"", "\"fwd\"") + "action = \"block\"\n", ""),
        (
            good.replace("reqid = 1 }", "reqid = 2 }"),
            "f:24: warning: policy[0]: no SA of this file matches tmpl[0], so its packets are dropped; use the src, dst and reqid of an SA.",
        ),
        (good.replace("reqid = 1 }", "reqid = 2 }").replace("kind = \"udp\"", "kind = \"udp\"\nike = true"), ""),
        (good.replace(route, ""), "f:5: warning: sa[0]: no route of this file leads to the peer 192.0.2.2; add one."),
        (
            good.replace("b1", "a1"),
            "f:16: warning: sa[1]: it has the key of sa[0]; use a key of its own for each SA, from fatpath genkey.",
        ),
        (
            good.replace(&"b1".repeat(20), "00112233445566778899aabbccddeeff01020304"),
            "f:16: warning: sa[1]: its key is that of an example, which everybody knows; use one of fatpath genkey.",
        ),
        (
            good.clone() + tun,
            "f:29: warning: link[1]: its MTU is 1500, and packets of 1438 bytes fit through the tunnel to 192.0.2.2; use mtu = 1438.",
        ),
        (good.clone() + tun + "mtu = 1438\n", ""),
        (good.clone() + tun + "clamp-mss = true\n", ""),
        (good.replace("4500\"\n", "4500\"\nmtu = 9000\n") + tun, ""),
        (
            good.replace("4500\"\n", "4500\"\nmtu = 9000\n") + tun + "mtu = 9000\n",
            "f:30: warning: link[1]: its MTU is 9000, and packets of 8938 bytes fit through the tunnel to 192.0.2.2; use mtu = 8938.",
        ),
        (
            [bridge, port].concat(),
            "f:4: warning: link[1]: its VLANs have no effect, as br0 has no vlan-filtering = true.",
        ),
        ([bridge, "vlan-filtering = true\n", port].concat(), ""),
        (
            good.replacen("reqid = 1\naead", "reqid = 1\npcpu-num = 2\naead", 1) + "[worker]\ncount = 2\n",
            "f:8: warning: sa[0]: pcpu-num 2 is that of no worker, so it only receives; use 0 to 1.",
        ),
        (good.replacen("reqid = 1\naead", "reqid = 1\npcpu-num = 1\naead", 1) + "[worker]\ncount = 2\n", ""),
        ([bridge, &port.replace("pvid = 5", "hairpin = true")].concat(), ""),
    ];
    for (text, want) in cases {
        let want: Vec<&str> = Some(want).filter(|want| !want.is_empty()).into_iter().collect();
        assert_eq!(warnings(&text), want, "{text}");
    }
    // Keys of a key manager are in no file, so that no template need match.
    assert_eq!(warnings(&[wan, route, policy].concat()), none);
}

#[test]
fn single_table_instead_of_an_array_is_explained() {
    let err = Config::from_toml("[link]\nname = \"tun0\"\n", "f").unwrap_err();
    assert_eq!(err.to_string(), "f:1: link: is a single table; begin each link with [[link]].");
}

#[test]
fn no_error_shows_key_material() {
    let key = "000102030405060708090a0b0c0d0e0fa0a1a2a3";
    let misplaced = [
        ("name = \"rfc4106(gcm(aes))\", key", "key = \"x\", name"),
        ("icv = 128", "icv = \"0x000102030405060708090a0b0c0d0e0fa0a1a2a3\""),
        ("a3\", icv", "a\", icv"),
        ("a3\", icv", "zz\", icv"),
        ("a3\", icv", "a3a4\", icv"),
        ("src = \"192.0.2.1\"", "src = \"0x000102030405060708090a0b0c0d0e0fa0a1a2a3\""),
        ("[\"esn\"]", "[\"0x000102030405060708090a0b0c0d0e0fa0a1a2a3\"]"),
        ("\"10.2.0.0/24\"", "\"0x000102030405060708090a0b0c0d0e0fa0a1a2a3\""),
        ("\"10.1.0.254/24\"", "\"0x000102030405060708090a0b0c0d0e0fa0a1a2a3\""),
        ("\"0x000102030405060708090a0b0c0d0e0fa0a1a2a3\"", "0x000102030405060708090a0b0c0d0e0fa0a1a2a3"),
        ("icv = 128", "icv = 0x000102030405060708090a0b0c0d0e0fa0a1a2a3"),
        ("a3\", icv", "a3, icv"),
        ("\"ecb(cipher_null)\"", "\"0x000102030405060708090a0b0c0d0e0fa0a1a2a3\""),
        ("\"ecb(cipher_null)\"", "{ name = \"0x0001020304050607\", key = \"aes\" }"),
        ("enc = ", "auth = { name = \"0x0001020304050607\", key = \"sha1\" }\nenc = "),
        ("enc = ", "auth = { name = \"sha1\", key = 0x0001020304050607 }\nenc = "),
    ];
    for (old, new) in misplaced {
        let err = Config::from_toml(&GOOD.replacen(old, new, 1), "gw.toml").expect_err(new).to_string();
        assert!(!err.contains(&key[..12]), "{err}");
    }
}

#[test]
fn truncated_or_garbled_file_is_read_or_refused_in_one_line() {
    let mut refused = 0;
    let mut read = |text: &str| {
        if let Err(err) = Config::from_toml(text, "gw.toml") {
            let line = err.to_string();
            assert!(line.starts_with("gw.toml:") && !line.contains('\n') && !line.contains("0c0d0e0f"), "{line}");
            assert!(err.line >= 1 && err.line <= text.lines().count() + 1, "{line}");
            refused += 1;
        }
    };
    for at in 0..GOOD.len() {
        read(&GOOD[..at]);
        for garbage in ["\"", "\n", "[", "=", "9", "\u{feff}", "\0"] {
            read(&[&GOOD[..at], garbage, &GOOD[at + 1..]].concat());
        }
    }
    assert!(refused > GOOD.len(), "{refused}");
}

const SA: &str = "[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = 1\nenc = \"ecb(cipher_null)\"\n";
const POLICY: &str = "[[policy]]\ndir = \"out\"\ndst = \"10.0.0.0/8\"\n";

fn read(texts: &[&str]) -> Result<Config, String> {
    Config::from_toml(&texts.concat(), "f").map_err(|err| err.to_string())
}

#[test]
fn marks_and_limits_are_read() {
    let marks = "mark = 5\noutput-mark = { value = 0x10, mask = 0xf0 }\nif_id = 0\n";
    let limit = "limit = { byte-soft = 1, byte-hard = 2, packet-soft = 3, packet-hard = 4, time-soft = 5, \
                 time-hard = 6, time-use-soft = 7, time-use-hard = 8 }\n";
    let config = read(&[SA, marks, limit, POLICY, "mark = 5\nif_id = 0\nlimit = { time-hard = 9 }\n"]).unwrap();
    let (sa, policy) = (&config.sas[0], &config.policies[0]);
    let five = Mark::exactly(5);
    assert_eq!((sa.mark, sa.output_mark, sa.if_id), (five, Mark { value: 0x10, mask: 0xf0 }, 0));
    let secs = |secs| Some(Duration::from_secs(secs));
    let limits = |bytes, packets, added, used| Limits { bytes, packets, added: secs(added), used: secs(used) };
    assert_eq!(sa.lifetime, Lifetime { soft: limits(1, 3, 5, 7), hard: limits(2, 4, 6, 8) });
    let hard = Limits { added: secs(9), ..Limits::NONE };
    assert_eq!((policy.mark, policy.if_id, policy.lifetime), (five, 0, Lifetime { hard, ..Lifetime::default() }));
    let none = read(&[SA, POLICY]).unwrap();
    assert_eq!((none.sas[0].mark, none.policies[0].lifetime), (Mark::ANY, Lifetime::default()));
    // SAs and policies may differ by their marks alone.
    assert_eq!(read(&[SA, "mark = 1\n", SA, "mark = 2\n", POLICY, POLICY, "mark = 1\n"]).unwrap().sas.len(), 2);
}

#[test]
fn ipsec_and_policy_default_tables_are_read() {
    let config = read(&["[ipsec]\nlarval-drop = false\nacq-expires = 9\naevent-rseqth = 0\naevent-etime = 5\n[policy-default]\nin = \"block\"\n"]).unwrap();
    assert_eq!(config.xfrm, XfrmOptions { larval_drop: false, acq_expires: 9, aevent_rseqth: 0, aevent_etime: 5 });
    assert_eq!(config.policy_default, PolicyDefault { block_in: true, ..PolicyDefault::default() });
    let none = Config::default();
    assert_eq!((none.xfrm.larval_drop, none.xfrm.acq_expires), (true, 30));
    let change = config::Change::between(&none, &config);
    assert!(change.policy_default && change.settings && !change.is_empty());
    assert!(config::Change::between(&config, &config).is_empty());
}

#[test]
fn wrong_marks_and_limits_are_refused_with_what_would_be_right() {
    let cases = [
        (
            SA,
            "mark = { value = 0x11, mask = 0xf }\n",
            "f:6: sa[0].mark: 0x11 has bits outside of the mask 0xf; use 0x1.",
        ),
        (SA, "mark = { mask = 1 }\n", "f:6: sa[0].mark.value: missing; use a number, such as 0x1."),
        (SA, "if_id = 7\n", "f:6: sa[0].if_id: is for an XFRM interface, and no kind of link is one; take it out."),
        (
            POLICY,
            "if_id = 7\n",
            "f:4: policy[0].if_id: is for an XFRM interface, and no kind of link is one; take it out.",
        ),
        (
            SA,
            "limit = { byte-hard = 0 }\n",
            "f:6: sa[0].limit.byte-hard: 0 is out of range; use 1 to 18446744073709551615.",
        ),
        (SA, "limit = { time-sofd = 1 }\n", "f:6: sa[0].limit.time-sofd: unknown key; use time-soft."),
        (POLICY, "limit = { byte-hard = 1 }\n", "f:4: policy[0].limit.byte-hard: unknown key; use time-hard."),
        (
            SA,
            "dir = \"out\"\nflags = [\"wildrecv\"]\n",
            "f:7: sa[0].flags[0]: wildrecv is for an SA of dir in; take it out.",
        ),
        ("", "[policy-default]\nin = \"allow\"\n", "f:2: policy-default.in: allow is unknown; use accept or block."),
        ("", "[ipsec]\nlarval-drop = 1\n", "f:2: ipsec.larval-drop: is a whole number; use true or false."),
    ];
    for (table, key, want) in cases {
        assert_eq!(read(&[table, key]).unwrap_err(), want);
    }
    let twice = read(&[SA, "mark = 1\n", SA, "mark = 1\n"]).unwrap_err();
    assert!(twice.contains("is already sa[0]"), "{twice}");
}

#[test]
fn xdp_link_ring_and_mode_are_read_or_default() {
    let head = "[[link]]\nname = \"a\"\nkind = \"xdp\"\ninterface = \"eth1\"\n";
    let kind = |rest: &str| Config::from_toml(&format!("{head}{rest}"), "f").unwrap().links.remove(0).kind;
    let want = |ring, mode| LinkKind::Driver(DriverKind::Xdp { interface: "eth1".to_owned(), ring, mode });
    assert_eq!(kind(""), want(1024, XdpMode::Auto));
    assert_eq!(kind("ring = 256\nmode = \"native\"\n"), want(256, XdpMode::Native));
    assert_eq!(kind("ring = 0x1000\nmode = \"generic\"\n"), want(4096, XdpMode::Generic));
}

const VRFS: &str = "[[link]]\nname = \"one\"\nkind = \"tap\"\nmaster = \"red\"\naddresses = [\"10.1.0.1/24\"]\n\
                    [[link]]\nname = \"red\"\nkind = \"vrf\"\ntable = 10\n\
                    [[link]]\nname = \"blue\"\nkind = \"vrf\"\ntable = 20\naddresses = [\"192.0.2.9/32\"]\n\
                    [[link]]\nname = \"two\"\nkind = \"tap\"\nmaster = \"blue\"\naddresses = [\"10.1.0.1/24\"]\n";

#[test]
fn vrfs_are_read_and_routes_find_their_neighbours_in_them() {
    let route = |to: &str, rest: &str| format!("[[route]]\nto = \"{to}\"\nvia = \"10.1.0.9\"\n{rest}\n");
    let routes = [
        route("10.2.0.0/16", "vrf = \"red\""),
        route("10.2.0.0/16", "vrf = \"blue\""),
        route("10.3.0.0/16", "table = 10"),
        route("10.3.0.0/16", "dev = \"two\""),
    ];
    let config = read(&[VRFS, &routes.concat()]).unwrap();
    let kinds: Vec<_> = config.links.iter().map(|link| (link.kind.word(), link.master.as_deref())).collect();
    assert_eq!(kinds, [("tap", Some("red")), ("vrf", None), ("vrf", None), ("tap", Some("blue"))]);
    assert_eq!(config.links[2].kind, LinkKind::Vrf { table: 20 });
    let by = |route: &RouteConfig| match &route.action {
        RouteAction::Unicast { dev, .. } => (dev.clone(), route.table.0),
        other => panic!("{other:?}"),
    };
    let want = [("one", 10), ("two", 20), ("one", 10), ("two", 254)].map(|(dev, table)| (dev.to_owned(), table));
    assert_eq!(config.routes.iter().map(by).collect::<Vec<_>>(), want);
    let tap = "[[link]]\nname = \"t\"\nkind = \"tap\"\n";
    let vrf = "[[link]]\nname = \"v\"\nkind = \"vrf\"\n";
    let vhost = "[[link]]\nname = \"g\"\nkind = \"vhost-user\"\nsocket = \"/g\"\n";
    for (key, want) in [("", 64 << 30), ("memory = \"2g\"\n", 2 << 30), ("memory = 4096\n", 4096)] {
        let config = Config::from_toml(&format!("{vhost}{key}"), "f").unwrap();
        let memory = match &config.links[0].kind {
            LinkKind::Driver(DriverKind::VhostUser { memory, .. }) => *memory,
            other => panic!("{other:?}"),
        };
        assert_eq!(memory, want, "{key}");
    }
    let cases = [
        (tap, "master = \"none\"", "f:4: link[0].master: no VRF or bridge is named none; there is none."),
        (tap, "master = \"t\"", "f:4: link[0].master: no VRF or bridge is named t; there is none."),
        (tap, "defrag = true", "f:4: link[0].defrag: is only for links of kind tun; take it out."),
        (
            vrf,
            "table = 5\nclamp-mss = true",
            "f:5: link[0].clamp-mss: is only for links of kind tun, tap, udp, packet, xdp, vhost-user, virtio-user, bridge or vlan; take it out.",
        ),
        (tap, "memory = \"1g\"", "f:4: link[0].memory: is only for links of kind vhost-user; take it out."),
        (
            vhost,
            "memory = \"2x\"",
            "f:5: link[0].memory: 2x is unknown; use a number of bytes, or a size such as \"32kb\".",
        ),
        (
            vhost,
            "memory = \"2tb\"",
            "f:5: link[0].memory: 2tb is unknown; use a number of bytes, or a size such as \"32kb\".",
        ),
        (vhost, "memory = \"2048g\"", "f:5: link[0].memory: is out of range; use at most 1099511627776 bytes."),
        (tap, "exclusive = true", "f:4: link[0].exclusive: is only for links of kind packet; take it out."),
        (tap, "table = 1", "f:4: link[0].table: is only for links of kind vrf; take it out."),
        (vrf, "", "f:1: link[0].table: missing; use the number of a routing table, 1 to 4294967295."),
        (vrf, "table = 0", "f:4: link[0].table: 0 is out of range; use 1 to 4294967295."),
        (
            vrf,
            "mtu = 1500\ntable = 5",
            "f:4: link[0].mtu: is only for links of kind tun, tap, udp, packet, xdp, vhost-user, virtio-user, bridge or vlan; take it out.",
        ),
        (VRFS, "[[route]]\nto = \"::/0\"\ntype = \"blackhole\"\nvrf = \"x\"", "f:23: route[0].vrf: no VRF is named x."),
        (
            VRFS,
            "[[route]]\nto = \"::/0\"\ntype = \"blackhole\"\nvrf = \"red\"\ntable = 7",
            "f:24: route[0].table: the VRF determines the table; take one out.",
        ),
        (
            VRFS,
            &route("::/0", "vrf = \"red\""),
            "f:22: route[0].via: 10.1.0.9 is not of the family of ::/0; use an IPv6 neighbour.",
        ),
        (
            VRFS,
            &route("10.9.0.0/16", ""),
            "f:22: route[0].via: 10.1.0.9 is on no link; use an address in a link's prefix.",
        ),
    ];
    for (before, wrong, want) in cases {
        assert_eq!(read(&[before, wrong]).unwrap_err(), want);
    }
}

#[test]
fn esp_gro_follows_offloads_unless_set() {
    let lines = [("", true), ("esp-gro = true", true), ("esp-gro = false", false), ("offloads = false", false)];
    for (line, want) in lines {
        let file = format!("[[link]]\nname = \"tun0\"\nkind = \"tun\"\n{line}\n");
        let link = &Config::from_toml(&file, "f").unwrap().links[0];
        assert_eq!((link.esp_gro, link.features.has(FeatureSet::ESP_GRO)), (want, want), "{line}");
        assert_eq!(link.features.has(FeatureSet::GRO), link.offloads, "{line}");
    }
}

#[test]
fn packet_link_is_exclusive_if_the_file_says_so() {
    for (more, want) in [("", false), ("exclusive = false\n", false), ("exclusive = true\n", true)] {
        let toml = format!("[[link]]\nname = \"wan\"\nkind = \"packet\"\ninterface = \"eth0\"\n{more}");
        let config = Config::from_toml(&toml, "f").unwrap();
        assert_eq!(
            config.links[0].kind,
            LinkKind::Driver(DriverKind::Packet { interface: "eth0".to_owned(), exclusive: want })
        );
    }
}
