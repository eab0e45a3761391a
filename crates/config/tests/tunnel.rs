//! `[[tunnel]]`: the tables that it stands for, and the refusals of wrong ones.

use config::{Change, Config};

/// A tunnel with static keys, as in `examples/tunnel-left.toml`.
const SHORT: &str = include_str!("../../../examples/tunnel-left.toml");
const RIGHT: &str = include_str!("../../../examples/tunnel-right.toml");
/// The tables that `SHORT` stands for.
const LONG: &str = include_str!("tunnel-left-expanded.toml");

const LEFT: &str = "[[tunnel]]\nname = \"left\"\nlocal = { address = \"192.0.2.1\", nets = [\"10.1.0.0/24\"] }\n\
                    remote = { address = \"192.0.2.2\", nets = [\"10.2.0.0/24\"] }\n";
const IKE: &str = "keys = \"ike\"\n";
const WAN: &str =
    "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\naddresses = [\"192.0.2.1/24\"]\n";
const LAN: &str =
    "[[link]]\nname = \"lan\"\nkind = \"packet\"\ninterface = \"eth1\"\naddresses = [\"10.1.0.254/24\"]\n";

fn keys(out: &str, inward: &str) -> String {
    let half = |spi: &str| format!("{{ spi = 0x{spi}, key = \"0x{}\" }}", spi.repeat(18));
    format!("keys = {{ out = {}, in = {} }}\n", half(out), half(inward))
}

fn read(text: &str) -> Config {
    Config::from_toml(text, "f").unwrap_or_else(|err| panic!("{err}\n{text}"))
}

fn expand(text: &str) -> String {
    Config::expand_toml(text, "f", true).unwrap_or_else(|errors| panic!("{errors}\n{text}")).to_string()
}

/// Asserts that the expanded text stands for the same configuration, but for the tunnels' names, and returns it.
fn same(text: &str) -> (Config, String) {
    let (config, expanded) = (read(text), expand(text));
    assert!(!expanded.contains("[[tunnel]]"), "{expanded}");
    assert_eq!(Config { tunnels: Vec::new(), ..config.clone() }, read(&expanded), "{text}\n{expanded}");
    assert_eq!(expand(&expanded), expanded);
    (config, expanded)
}

#[test]
fn short_form_is_the_long_form() {
    let (short, long) = (read(SHORT), read(LONG));
    assert_eq!(Config { tunnels: Vec::new(), ..short.clone() }, long);
    let names: Vec<&str> = short.tunnels.iter().map(|tunnel| tunnel.name.as_str()).collect();
    assert_eq!(names, ["tun0"]);
    assert!(Change::between(&long, &short).is_empty());
    same(SHORT);
    same(RIGHT);
}

#[test]
fn warning_about_a_tunnel_is_one_line() {
    let warnings = Config::with_warnings(SHORT, "f").unwrap().1.warnings();
    let want =
        "f:4: warning: tunnel[0]: its key is that of an example, which everybody knows; use one of fatpath genkey.";
    assert_eq!(warnings, [want]);
}

#[test]
fn both_ends_of_the_examples_fit_each_other() {
    let (left, right) = (read(SHORT), read(RIGHT));
    for (sent, received) in [(&left.sas[0], &right.sas[1]), (&right.sas[0], &left.sas[1])] {
        assert_eq!(
            (sent.src, sent.dst, sent.spi, sent.encap),
            (received.src, received.dst, received.spi, received.encap)
        );
        assert!(sent.algorithm == received.algorithm && sent.flags == received.flags);
    }
}

#[test]
fn tunnels_share_links_and_use_those_of_the_file() {
    let second = "[[tunnel]]\nname = \"second\"\nlocal = { address = \"192.0.2.1\", nets = [\"10.1.0.0/24\"] }\n\
                  remote = { address = \"192.0.2.3\", port = 4501, nets = [\"10.3.0.0/24\", \"10.4.0.0/24\"] }\n";
    let names = |config: &Config| config.links.iter().map(|link| link.name.clone()).collect::<Vec<_>>();
    // One socket for two tunnels, with IKE if one of them has it.
    let (config, _) = same(&[LEFT, &keys("1000", "1001"), second, IKE].concat());
    assert_eq!(names(&config), ["left", "wan", "second"]);
    assert!(config.links[1].ike && config.sas.len() == 2 && config.policies.len() == 9, "{config:?}");
    assert_eq!(config.sas[0].reqid, 1);
    assert_eq!((config.policies[3].templates[0].reqid, config.policies[3].priority), (0, u32::MAX - 1));
    // An interface with the address carries raw ESP, and one with an address in the network serves it.
    let (config, _) = same(&[WAN, LAN, LEFT, &keys("1000", "1001")].concat());
    assert_eq!(names(&config), ["eth0", "lan"]);
    assert_eq!((config.sas[0].encap, config.routes.len()), (None, 1));
    assert_eq!(config.routes[0].src, Some("10.1.0.254".parse().unwrap()));
    // With a port, ESP is in UDP there, too.
    let text = [WAN, LAN, &LEFT.replace("\"192.0.2.1\",", "\"192.0.2.1\", port = 4500,"), IKE].concat();
    assert!(same(&text).0.links.iter().all(|link| !link.ike));
    // Names and reqids that the file has are not used again.
    let taken = "[[link]]\nname = \"wan\"\nkind = \"tap\"\n[[sa]]\nsrc = \"192.0.2.8\"\ndst = \"192.0.2.9\"\nspi = 1\n\
                 reqid = 1\nenc = \"ecb(cipher_null)\"\n";
    let (config, _) = same(&[taken, LEFT, &keys("1000", "1001")].concat());
    assert_eq!((names(&config), config.sas[1].reqid), (["wan", "left", "wan1"].map(str::to_owned).to_vec(), 2));
    // A route of the file to the same destinations counts.
    let route = "[[route]]\nto = \"192.0.2.2/32\"\ndev = \"left\"\n";
    assert_eq!(same(&[LEFT, IKE, route].concat()).0.routes.len(), 3);
}

#[test]
fn packets_from_elsewhere_do_not_leave_in_clear_by_an_interface() {
    let blocks = |text: &str| {
        let config = same(text).0;
        let blocks = config.policies.iter().filter(|policy| policy.action == xfrm::Action::Block);
        blocks
            .map(|policy| (policy.selector.src.to_string(), policy.selector.dst.to_string(), policy.priority))
            .collect::<Vec<_>>()
    };
    let want = [("0.0.0.0/0".to_owned(), "10.2.0.0/24".to_owned(), u32::MAX)];
    assert_eq!(blocks(&[WAN, LAN, LEFT, IKE].concat()), want);
    assert_eq!(blocks(&[WAN, LEFT, &keys("1000", "1001")].concat()), want);
    // By a socket nothing leaves in clear; packets to everything else and to the peer itself are ordinary.
    assert_eq!(blocks(&[LEFT, IKE].concat()), []);
    for net in ["0.0.0.0/0", "192.0.2.0/25"] {
        assert_eq!(blocks(&[WAN, LAN, &LEFT.replace("10.2.0.0/24", net), IKE].concat()), [], "{net}");
    }
    // The file has such a policy itself.
    for src in ["", "src = \"0.0.0.0/0\"\n"] {
        let own = format!("[[policy]]\ndir = \"out\"\n{src}dst = \"10.2.0.0/24\"\npriority = 7\naction = \"block\"\n");
        assert_eq!(blocks(&[WAN, LAN, LEFT, IKE, &own].concat()), [(want[0].0.clone(), want[0].1.clone(), 7)]);
    }
}

#[test]
fn network_of_one_host_is_an_address() {
    let host = LEFT.replace("10.1.0.0/24", "10.1.0.1/32");
    let (config, _) = same(&[&host, IKE].concat());
    assert_eq!(config.links[0].device.addresses, ["10.1.0.1/32".parse().unwrap()]);
    assert_eq!(config.links[0].device.routes[0].src, Some("10.1.0.1".parse().unwrap()));
    assert_eq!((config.lo.len(), config.routes.iter().any(|route| route.src.is_some())), (0, false));
    let (config, _) = same(&[&host, IKE, "device = \"none\"\n"].concat());
    assert_eq!(config.lo, ["10.1.0.1/32".parse().unwrap()]);
    assert_eq!((config.links.len(), config.routes.len()), (1, 2));
    assert_eq!(config.routes[1].src, Some("10.1.0.1".parse().unwrap()));
    let named = LEFT.replace("\"10.1.0.0/24\"]", "\"10.1.0.0/24\"], addresses = [\"10.1.0.7/24\"]");
    let (config, _) = same(&[&named, IKE, "device = \"none\"\n"].concat());
    assert_eq!(config.lo, ["10.1.0.7/32".parse().unwrap()]);
    // `lo` of the file has the address already.
    let lo = "[[link]]\nname = \"lo\"\naddresses = [\"10.1.0.1/32\"]\n";
    assert_eq!(same(&[lo, &host, IKE, "device = \"none\"\n"].concat()).0.lo.len(), 1);
    // All of the Internet is behind the peer: the host gets no default route.
    let all = LEFT.replace("10.2.0.0/24", "0.0.0.0/0");
    assert!(same(&[&all, IKE].concat()).0.links[0].device.routes.is_empty());
}

#[test]
fn mtu_follows_from_cipher_encapsulation_and_outer_link() {
    let v6 = LEFT.replace("192.0.2.1", "2001:db8::1").replace("192.0.2.2", "2001:db8::2");
    let udp = "[[link]]\nname = \"u\"\nkind = \"udp\"\nbind = \"192.0.2.1:4501\"\nmtu = 9000\n";
    let chacha = keys("1000", "1001") + "cipher = \"rfc7539esp(chacha20,poly1305)\"\n";
    for (text, mtu) in [
        ([LEFT, &keys("1000", "1001")].concat(), 1438),
        ([LEFT, &chacha].concat(), 1438),
        ([LEFT, IKE].concat(), 1438),
        ([v6.as_str(), IKE].concat(), 1418),
        ([WAN, LEFT, IKE].concat(), 1446),
        ([udp, LEFT, IKE].concat(), 8938),
    ] {
        let (config, _) = same(&text);
        let left = config.links.iter().find(|link| link.name == "left").unwrap();
        assert_eq!(left.mtu, Some(mtu), "{text}");
        assert_eq!(Config::with_warnings(&text, "f").unwrap().1.warnings(), [] as [String; 0], "{text}");
    }
}

#[test]
fn wrong_tunnel_is_refused_in_one_line() {
    let link = "[[link]]\nname = \"left\"\nkind = \"tun\"\n";
    let both = [LEFT, IKE].concat();
    let edit = |from: &str, to: &str| both.replacen(from, to, 1);
    let second = |from: &str, to: &str| {
        both.clone() + &both.replace("\"left\"", "\"b\"").replace("10.2", "10.3").replace(from, to)
    };
    let same_key = keys("1000", "1001").replace(&"1001".repeat(18), &"1000".repeat(18));
    let cases = [
        ([link, &both].concat(), "f:5: tunnel[0].name: left is already the name of link[0]; names are unique."),
        (both.clone() + &both, "f:7: tunnel[1].name: left is already the name of tunnel[0]; names are unique."),
        (edit("\"left\"", "\"lo\""), "f:2: tunnel[0].name: lo is a link that every node has; use another name."),
        (
            edit("10.2.0.0/24", "10.1.0.128/25"),
            "f:4: tunnel[0].remote.nets[0]: 10.1.0.128/25 overlaps with the local network 10.1.0.0/24; use another network.",
        ),
        (
            edit("\"10.2.0.0/24\"", "\"10.2.0.0/24\", \"10.2.0.0/16\""),
            "f:4: tunnel[0].remote.nets[1]: 10.2.0.0/16 overlaps with 10.2.0.0/24; take one out.",
        ),
        (
            second("10.3.0.0/24", "10.2.0.0/16"),
            "f:9: tunnel[1].remote.nets[0]: 10.2.0.0/16 overlaps with 10.2.0.0/24 of tunnel left; use another network.",
        ),
        (
            second("\"10.1.0.0/24\"", "\"10.2.0.0/25\""),
            "f:8: tunnel[1].local.nets[0]: 10.2.0.0/25 overlaps with 10.2.0.0/24 of tunnel left; use another network.",
        ),
        (
            edit("10.2.0.0/24", "fd00:2::/64"),
            "f:3: tunnel[0].local.nets[0]: no remote network is of the family of 10.1.0.0/24; use another network.",
        ),
        (
            edit("\"192.0.2.2\"", "\"2001:db8::2\""),
            "f:4: tunnel[0].remote.address: 2001:db8::2 is not of the family of 192.0.2.1; use an address of that family.",
        ),
        (
            edit("\"192.0.2.2\"", "\"192.0.2.1\""),
            "f:4: tunnel[0].remote.address: 192.0.2.1 is this end's own address; use the peer's.",
        ),
        (
            edit("\"192.0.2.2\"", "\"224.0.0.1\""),
            "f:4: tunnel[0].remote.address: 224.0.0.1 is no address of one host; use one such as \"192.0.2.1\".",
        ),
        (
            edit("[\"10.2.0.0/24\"]", "[]"),
            "f:4: tunnel[0].remote.nets: is empty; use a list of networks, such as [\"10.1.0.0/24\"].",
        ),
        (LEFT.to_owned(), "f:1: tunnel[0].keys: missing; use \"ike\", or { out = { spi, key }, in = { spi, key } }."),
        (edit("\"ike\"", "\"static\""), "f:5: tunnel[0].keys: static is unknown; use ike."),
        (
            edit("\"ike\"", "{ out = { spi = 1, key = \"0x00\" } }"),
            "f:5: tunnel[0].keys.out.key: 1 bytes are no key of rfc4106(gcm(aes)); use 20, 28 or 36 bytes, the last 4 of them salt.",
        ),
        (
            LEFT.to_owned() + &keys("1000", "1001").replace("in = ", "inn = "),
            "f:5: tunnel[0].keys.inn: unknown key; use in.",
        ),
        (
            LEFT.to_owned() + &keys("1000", "1000"),
            "f:5: tunnel[0].keys: 0x1000 is the SPI of both directions; use two numbers.",
        ),
        (
            LEFT.to_owned() + &same_key,
            "f:5: tunnel[0].keys: both directions have one key; use a key of its own for each.",
        ),
        (
            both.clone() + "cipher = \"rfc4106(gcm(aes))\"\n",
            "f:6: tunnel[0].cipher: is chosen by the key manager; take it out.",
        ),
        (both.clone() + "device = \"tap\"\n", "f:6: tunnel[0].device: tap is unknown; use tun or none."),
        (
            both.clone() + "device = \"none\"\n",
            "f:3: tunnel[0].local: 10.1.0.0/24 has no device and no address of this end; use addresses, or device = \"tun\".",
        ),
        (
            edit("\"10.1.0.0/24\"]", "\"10.1.0.0/24\"], addresses = [\"10.9.0.1/24\"]"),
            "f:3: tunnel[0].local.addresses[0]: 10.9.0.1 is in none of the local networks; use an address in one of them.",
        ),
        (
            second("\"192.0.2.1\",", "\"192.0.2.1\", port = 4501,"),
            "f:8: tunnel[1].local.port: tunnel left has port 4500 of 192.0.2.1; use that.",
        ),
        (
            format!(
                "{LEFT}{}{}{}",
                keys("1000", "1001"),
                LEFT.replace("\"left\"", "\"b\"").replace("10.2", "10.3"),
                keys("1000", "2001")
            ),
            "f:10: tunnel[1].keys: 0x1000 is already an SPI of tunnel left; use another.",
        ),
        (
            format!(
                "{}{LEFT}{}",
                "[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = 0x1000\nenc = \"ecb(cipher_null)\"\nencap = { type = \"espinudp\", sport = 4500, dport = 4500 }\n",
                keys("1000", "1001")
            ),
            "f:7: tunnel[0]: 0x1000 with destination 192.0.2.2 is already sa[0]; use another SPI.",
        ),
        (
            "[[link]]\nname = \"u\"\nkind = \"udp\"\nbind = \"192.0.2.1:99\"\n".to_owned()
                + &edit("\"192.0.2.1\",", "\"192.0.2.1\", port = 4501,"),
            "f:7: tunnel[0].local.port: link u has port 99 of 192.0.2.1; use that.",
        ),
        (
            "[[link]]\nname = \"lo\"\naddresses = [\"10.9.0.1/32\"]\n".to_owned()
                + &edit("10.1.0.0/24", "10.1.0.1/32")
                + "device = \"none\"\n",
            "f:6: tunnel[0].local: lo of this file has not the address 10.1.0.1; add it there.",
        ),
        (
            edit("10.1.0.0/24", "192.0.2.0/31").replace("10.2.0.0/24", "192.0.2.2/31"),
            "f:4: tunnel[0].remote: the tunnel from 192.0.2.1 to 192.0.2.2 would carry its own packets; take one out of the networks.",
        ),
    ];
    for (text, want) in cases {
        let errors = Config::with_warnings(&text, "f").err().map(|errors| errors.to_string());
        assert_eq!(errors.as_deref(), Some(want), "{text}");
    }
}

#[test]
fn expansion_without_keys_is_refused_and_shows_none() {
    let own = "[[sa]]\nsrc = \"198.51.100.1\"\ndst = \"198.51.100.2\"\nspi = 7\nenc = { name = \"cbc(aes)\", key = \"0xabababababababababababababababab\" }\n\
               auth = { name = \"hmac(sha256)\", key = \"sixteen byte keys\" }\n# The tunnel.\n";
    let text = [own, LEFT, &keys("1000", "1001")].concat();
    let hidden = Config::expand_toml(&text, "f", false).unwrap();
    for secret in ["abab", "sixteen", "10001000"] {
        assert!(text.contains(secret) && !hidden.contains(secret), "{}", *hidden);
    }
    assert!(hidden.contains("key = \"…\"") && hidden.contains("# The tunnel."));
    let refused = Config::with_warnings(&hidden, "f").unwrap_err();
    assert_eq!(refused.first.len(), 3, "{refused}");
    assert!(refused.first.iter().all(|error| error.text.contains("stands for a key that was left out")), "{refused}");
    same(&text);
    let list = "tunnel = [{ name = \"a\", local = { address = \"192.0.2.1\", nets = [\"10.1.0.0/24\"] }, remote = \
                { address = \"192.0.2.2\", nets = [\"10.2.0.0/24\"] }, keys = \"ike\" }]\n";
    assert_eq!(read(list).policies.len(), 3);
    let refused = Config::expand_toml(list, "f", true).unwrap_err().to_string();
    assert!(refused.contains("begin each tunnel with [[tunnel]]"), "{refused}");
}

#[test]
fn expansion_of_every_example_is_the_same_configuration() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let files = std::fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|file| file.extension().is_some_and(|it| it == "toml")).collect();
    assert!(files.len() >= 5, "{files:?}");
    for file in files {
        same(&std::fs::read_to_string(file).unwrap());
    }
}
