//! Replies to `ioctl(SIOCETHTOOL)`, byte for byte, to privileged and unprivileged clients.

use crate::common::node::{RecordingBackend, node};
use base::{DropReason, PortId};
use config::Config;
use config::features::{FeatureSet, NAMES};
use ctl::state::RingState;
use netlink::message::{Header, Messages, Writer, flag};
use netlink::rtnl::nums::{IFLA_NUM_TX_QUEUES, RTM_GETLINK};
use netlink::rtnl::{Backend, Rtnl};
use netlink::{Groups, Outbox, Session};
use nlsock::ethtool::command::*;
use nlsock::ethtool::{BLOCK, FIXED, MESSAGE, NAME, RESULT, room};
use proptest::prelude::*;

const EPERM: i32 = 1;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// Reply to a command block for the link `name`: bytes of the block, and result of the call.
fn ask(node: &mut Rtnl<RecordingBackend>, privileged: bool, name: &str, block: &[u8]) -> Result<(Vec<u8>, u32), i32> {
    let mut w = Writer::default();
    w.message(Header { kind: MESSAGE, flags: flag::REQUEST, seq: 1, port: 0 }, |w| {
        w.fixed(&[0; FIXED]);
        w.put_str(NAME, name);
        w.put(BLOCK, block);
    });
    let (mut session, mut outbox) = (Session::new(privileged), Outbox::default());
    session.handle(w.as_bytes(), node, Groups::default(), &mut outbox);
    let datagrams: Vec<_> = outbox.iter().map(|(_, bytes)| bytes.to_vec()).collect();
    let [datagram] = &datagrams[..] else { panic!("{datagrams:?}") };
    let message = Messages::new(datagram).next().unwrap();
    let payload = message.payload();
    if message.header.kind != MESSAGE {
        return Err(-i32::from_ne_bytes(*payload.first_chunk().unwrap()));
    }
    let (mut rest, mut block, mut result) = (&payload[FIXED..], Vec::new(), 0);
    while let [l0, l1, k0, k1, ..] = *rest {
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        match u16::from_ne_bytes([k0, k1]) {
            BLOCK => block = rest[4..len].to_vec(),
            RESULT => result = u32::from_ne_bytes(*rest[4..].first_chunk().unwrap()),
            kind => panic!("attribute {kind}"),
        }
        rest = &rest[len.next_multiple_of(4).min(rest.len())..];
    }
    Ok((block, result))
}

fn block(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Words of the reply to a block of words.
fn query(node: &mut Rtnl<RecordingBackend>, words: &[u32]) -> Result<Vec<u32>, i32> {
    let (answer, _) = ask(node, true, "eth0", &block(words))?;
    Ok(answer.chunks_exact(4).map(|word| u32::from_ne_bytes(*word.first_chunk().unwrap())).collect())
}

/// Texts of a string set.
fn names(node: &mut Rtnl<RecordingBackend>, set: u32) -> Vec<String> {
    let (answer, _) = ask(node, true, "eth0", &block(&[GSTRINGS, set, 0])).unwrap();
    let texts = answer[12..].chunks_exact(32).map(|text| text.split(|&byte| byte == 0).next().unwrap());
    texts.map(|text| String::from_utf8(text.to_vec()).unwrap()).collect()
}

/// Switchable features of the test link, all enabled initially.
const CAN: FeatureSet =
    FeatureSet(FeatureSet::SWITCHED.0 & !FeatureSet::IP_CSUM.0 & !FeatureSet::IPV6_CSUM.0 & !FeatureSet::TSO6.0);

fn halves(set: FeatureSet) -> [u32; 2] {
    [set.0 as u32, (set.0 >> 32) as u32]
}

/// Request that sets the features in `valid` as in `wanted`.
fn set(valid: FeatureSet, wanted: FeatureSet) -> Vec<u32> {
    let ([v0, v1], [w0, w1]) = (halves(valid), halves(wanted));
    vec![SFEATURES, 2, v0, w0, v1, w1]
}

#[test]
fn ethtool_shows_driver_link_state_and_channels() {
    let mut node = node();
    let (info, 0) = ask(&mut node, false, "eth0", &block(&[GDRVINFO])).unwrap() else { panic!() };
    let text = |at: usize| String::from_utf8(info[at..at + 32].to_vec()).unwrap().trim_end_matches('\0').to_owned();
    assert_eq!((info.len(), text(4), text(100)), (196, "packet".to_owned(), "eth0".to_owned()));
    assert_eq!(text(36), env!("CARGO_PKG_VERSION"));
    let counts = 18 + DropReason::COUNT as u32;
    assert_eq!(info[180..184], counts.to_ne_bytes());
    assert_eq!(query(&mut node, &[GLINK]), Ok(vec![GLINK, 1]));
    assert_eq!(query(&mut node, &[GCHANNELS]), Ok(vec![GCHANNELS, 0, 0, 0, 1, 0, 0, 0, 1]));
    assert_eq!(query(&mut node, &[GRINGPARAM]), Err(EOPNOTSUPP));
    let none = [GDRVINFO, GSTATS, GCHANNELS, GRINGPARAM, GLINKSETTINGS, SGRO, 0x1, 0x7, 0x20, 0xffff_ffff];
    for command in none {
        let request = [block(&[command]), vec![0; 60 - 16]].concat();
        let request = &request[..48];
        assert_eq!(ask(&mut node, true, "lo", request), Err(EOPNOTSUPP), "{command:x}");
    }
    assert_eq!(ask(&mut node, true, "lo", &block(&[GLINK])), Ok((block(&[GLINK, 0]), 0)));
}

/// Number of transmit queues of link 2 in the reply to `ip -d link`.
fn shown_queues(node: &mut Rtnl<RecordingBackend>) -> u32 {
    let mut w = Writer::default();
    w.message(Header { kind: RTM_GETLINK, flags: flag::REQUEST, seq: 1, port: 0 }, |w| {
        [0, 2, 0, 0].iter().for_each(|word: &u32| w.fixed(&word.to_ne_bytes()));
    });
    let (mut session, mut outbox) = (Session::new(true), Outbox::default());
    session.handle(w.as_bytes(), node, Groups::default(), &mut outbox);
    let datagrams: Vec<_> = outbox.iter().map(|(_, bytes)| bytes.to_vec()).collect();
    let mut rest = Messages::new(&datagrams[0]).next().unwrap().payload()[16..].to_vec();
    while rest[2..4] != IFLA_NUM_TX_QUEUES.to_ne_bytes() {
        let len = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        rest.drain(..len.next_multiple_of(4));
    }
    u32::from_ne_bytes(*rest[4..].first_chunk().unwrap())
}

#[test]
fn queues_of_a_kind_are_the_same_for_ip_and_ethtool() {
    let cases = [
        ("kind = \"tun\"\nqueues = 3", 3),
        ("kind = \"vhost-user\"\nsocket = \"/run/a\"\nqueues = 4", 4),
        ("kind = \"virtio-user\"\nsocket = \"/run/a\"\nqueues = 2", 2),
        ("kind = \"udp\"\nbind = \"192.0.2.1:4500\"", 1),
    ];
    for (keys, want) in cases {
        let mut node = node();
        let config = Config::from_toml(&format!("[[link]]\nname = \"eth0\"\n{keys}\n"), "test.toml").unwrap();
        let now = node.backend.links().unwrap();
        node.model.read(&config, &[PortId(2)], &now, 2);
        assert_eq!(query(&mut node, &[GCHANNELS]), Ok(vec![GCHANNELS, 0, 0, 0, want, 0, 0, 0, want]), "{keys}");
        assert_eq!(shown_queues(&mut node), want, "{keys}");
    }
    // An AF_XDP link has the queues of its interface.
    let mut node = node();
    let keys = "kind = \"xdp\"\ninterface = \"eth0\"";
    let config = Config::from_toml(&format!("[[link]]\nname = \"eth0\"\n{keys}\n"), "test.toml").unwrap();
    node.backend.ring = Some(RingState { queues: 6, ..RingState::default() });
    let now = node.backend.links().unwrap();
    node.model.read(&config, &[PortId(2)], &now, 2);
    assert_eq!(query(&mut node, &[GCHANNELS]), Ok(vec![GCHANNELS, 0, 0, 0, 6, 0, 0, 0, 6]));
    assert_eq!(shown_queues(&mut node), 6);
}

#[test]
fn link_settings_are_those_of_the_host_interface() {
    let mut node = node();
    let mut query = |words: i8| {
        let mut request = block(&[GLINKSETTINGS]);
        request.resize(48, 0);
        request[15] = words as u8;
        ask(&mut node, false, "eth0", &request).unwrap().0
    };
    let so_many = |at: u8| if at == 15 { 4_i8.wrapping_neg() as u8 } else { 0 };
    let refused: Vec<u8> = GLINKSETTINGS.to_ne_bytes().into_iter().chain((4..48).map(so_many)).collect();
    for words in [0, 1, 3, 5, 127, -4, -128] {
        let answer = query(words);
        assert_eq!((answer.len(), &answer[4..]), (48, &refused[4..]), "{words}");
    }
    assert_eq!(query(4), (0..96).map(|at| if at == 15 { 4 } else { at }).collect::<Vec<u8>>());
}

#[test]
fn unprivileged_client_gets_only_read_commands() {
    let mut node = node();
    for command in [SRXCSUM, SGRO, SFEATURES, SFLAGS, 0x2, 0x11, 0x3d, 0x4d, 0x4b, u32::MAX] {
        let request = [block(&[command]), vec![0; 44]].concat();
        assert_eq!(ask(&mut node, false, "eth0", &request), Err(EPERM), "{command:x}");
        assert_eq!(ask(&mut node, false, "nosuch", &request), Err(ENODEV), "{command:x}");
    }
    for command in [0x1, 0x7, 0x20, 0x50] {
        assert_eq!(ask(&mut node, false, "eth0", &block(&[command])), Err(EOPNOTSUPP), "{command:x}");
    }
    assert_eq!(node.backend.wanted, None);
}

#[test]
fn ethtool_stats_have_one_name_per_counter() {
    let mut node = node();
    let count = 18 + DropReason::COUNT as u32;
    assert_eq!(query(&mut node, &[GSSET_INFO, 0, 0x1e, 0]), Ok(vec![GSSET_INFO, 0, 0x16, 0, count, 0, 64]));
    assert_eq!(query(&mut node, &[GSSET_INFO, 0, u32::MAX, u32::MAX]).unwrap()[2..4], [0x16, 0]);
    let names = names(&mut node, 1);
    let (values, _) = ask(&mut node, false, "eth0", &block(&[GSTATS, count])).unwrap();
    let values: Vec<u64> = values[8..].chunks_exact(8).map(|n| u64::from_ne_bytes(*n.first_chunk().unwrap())).collect();
    assert_eq!((names.len(), values.len()), (count as usize, count as usize));
    let counted: Vec<_> = names.iter().zip(values).filter(|(_, value)| *value > 0).collect();
    let [rx, tx, dropped] = ["rx_packets", "tx_dropped", "drop_NoRoute"].map(str::to_owned);
    assert_eq!(counted, [(&rx, 7), (&tx, 9), (&dropped, 7)]);
    assert!(names.iter().all(|name| name.len() < 32), "a name ends within its room");
    node.backend.ring = Some(RingState { rx_no_buffer: 5, ..RingState::default() });
    assert_eq!(self::names(&mut node, 1)[19], "rx_no_buffer");
}

#[test]
fn ethtool_stats_with_a_stale_count_get_none() {
    let mut node = node();
    let count = 18 + DropReason::COUNT as u32;
    for (error, want) in [(0, count), (count, count), (count - 1, 0), (1, 0), (1 << 31, 0), (u32::MAX, 0)] {
        let (stats, _) = ask(&mut node, true, "eth0", &block(&[GSTATS, error])).unwrap();
        assert_eq!((stats.len(), &stats[4..8]), (8 + 8 * want as usize, &want.to_ne_bytes()[..]), "{error}");
        let (texts, _) = ask(&mut node, true, "eth0", &block(&[GSTRINGS, 1, error])).unwrap();
        assert_eq!((texts.len(), &texts[8..12]), (12 + 32 * want as usize, &want.to_ne_bytes()[..]), "{error}");
    }
    for unknown in [0, 3, 5, 9, u32::MAX] {
        assert_eq!(query(&mut node, &[GSTRINGS, unknown, 0]), Err(EOPNOTSUPP), "{unknown}");
    }
}

#[test]
fn features_are_switched_as_in_linux() {
    let mut node = node();
    assert_eq!(names(&mut node, 4), NAMES);
    let [can0, can1] = halves(CAN);
    let [on0, on1] = halves(CAN | FeatureSet::RX_CSUM);
    let never = halves(FeatureSet::VLAN_CHALLENGED);
    let all = vec![GFEATURES, 2, can0, on0, on0, never[0], can1, on1, on1, never[1]];
    assert_eq!(query(&mut node, &[GFEATURES, 2]), Ok(all.clone()));
    assert_eq!(query(&mut node, &[GFEATURES, u32::MAX]), Ok(all.clone()));
    assert_eq!(query(&mut node, &[GFEATURES, 1]), Ok(all[..6].to_vec()));
    assert_eq!(query(&mut node, &[GFEATURES, 0]), Ok(all[..2].to_vec()));
    let mut switch = |valid, wanted| {
        let outcome = ask(&mut node, true, "eth0", &block(&set(valid, wanted)));
        (outcome.map(|(_, result)| result), node.backend.wanted.map(|wanted| wanted & CAN))
    };
    let (unsupported, wish) = (1, 2);
    let (none, sg, csum, gro) = (FeatureSet::NONE, FeatureSet::SG, FeatureSet::HW_CSUM, FeatureSet::GRO);
    assert_eq!(switch(gro, gro), (Ok(0), None), "it is on already");
    assert_eq!(switch(gro, none), (Ok(0), Some(CAN & !gro)));
    // TSO is disabled as a consequence, and not by the request.
    assert_eq!(switch(sg, none), (Ok(0), Some(CAN & !gro & !sg)));
    assert_eq!(switch(FeatureSet::TSO, FeatureSet::TSO), (Ok(wish), Some(CAN & !gro & !sg)), "it is wanted already");
    assert_eq!(switch(FeatureSet::TSO | csum, csum), (Ok(0), Some(CAN & !gro & !sg & !FeatureSet::TSO)));
    assert_eq!(switch(FeatureSet::TSO, FeatureSet::TSO).0, Ok(wish));
    let lro = FeatureSet(1 << 15);
    assert_eq!(switch(lro | gro, lro | gro).0, Ok(unsupported));
    assert_eq!(switch(FeatureSet::RX_CSUM, none).0, Ok(unsupported));
    for unknown in [FeatureSet(1 << 2), FeatureSet(1 << 32), FeatureSet(1 << 63)] {
        assert_eq!(switch(unknown, unknown).0, Ok(unsupported), "{unknown:?}");
    }
    for refused in [FeatureSet::VLAN_CHALLENGED, FeatureSet(u64::MAX)] {
        assert_eq!(switch(refused, none).0, Err(EINVAL), "{refused:?}");
    }
    assert_eq!(switch(CAN, CAN), (Ok(0), Some(CAN)));
    let config = &node.model.link(2).unwrap().config;
    assert_eq!(config.features & CAN, CAN);
    for size in [0, 1, 3, u32::MAX] {
        assert_eq!(query(&mut node, &[SFEATURES, size, 0, 0, 0, 0]), Err(EINVAL), "{size}");
    }
}

#[test]
fn legacy_feature_commands_switch_the_same_features() {
    let mut node = node();
    let pairs = [(GTXCSUM, STXCSUM), (GSG, SSG), (GTSO, STSO), (GGRO, SGRO)];
    for (get, set) in pairs {
        assert_eq!(query(&mut node, &[get]), Ok(vec![get, 1]), "{get:x}");
        assert_eq!(query(&mut node, &[set, 0]), Ok(vec![]), "{set:x}");
        assert_eq!(query(&mut node, &[get]), Ok(vec![get, 0]), "{get:x}");
        assert_eq!(query(&mut node, &[set, 7]), Ok(vec![]), "{set:x}");
        assert_eq!(query(&mut node, &[get]), Ok(vec![get, 1]), "{get:x}");
    }
    assert_eq!(query(&mut node, &[GRXCSUM]), Ok(vec![GRXCSUM, 1]));
    assert_eq!(query(&mut node, &[SRXCSUM, 0]), Err(EOPNOTSUPP));
    assert_eq!(query(&mut node, &[SGSO, 0]), Err(EOPNOTSUPP));
    assert_eq!(query(&mut node, &[GFLAGS]), Ok(vec![GFLAGS, 0]));
    for (flags, want) in [(0, Ok(vec![])), (1 << 15, Err(EOPNOTSUPP)), (1, Err(EINVAL))] {
        assert_eq!(query(&mut node, &[SFLAGS, flags]), want, "{flags:x}");
    }
}

#[test]
fn truncated_ethtool_block_is_refused() {
    let mut node = node();
    for (whole, command) in [(4, GDRVINFO), (8, SGRO), (8, GSTATS), (12, GSTRINGS), (16, GSSET_INFO), (24, SFEATURES)] {
        let mut request = block(&[command, 2, 4, 0, 0, 0]);
        request.truncate(whole);
        assert!(ask(&mut node, true, "eth0", &request).is_ok(), "{command:x}");
        for len in 0..whole {
            assert_eq!(ask(&mut node, true, "eth0", &request[..len]), Err(EINVAL), "{command:x} {len}");
        }
    }
}

proptest! {
    #[test]
    fn ethtool_answer_never_exceeds_the_room_of_the_caller(
        command in 0_u32..0x60,
        rest in proptest::collection::vec(any::<u8>(), 44),
        privileged: bool,
        ring: bool,
        name in prop_oneof![Just("eth0"), Just("lo")],
    ) {
        let mut node = node();
        node.backend.ring = ring.then(RingState::default);
        let request = [&command.to_ne_bytes()[..], &rest].concat();
        if let Ok((answer, _)) = ask(&mut node, privileged, name, &request) {
            prop_assert!(answer.len() <= room(&request), "{} of {}", answer.len(), room(&request));
        }
    }
}
