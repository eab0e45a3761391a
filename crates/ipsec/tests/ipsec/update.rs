//! Changes of an SA under its key: sequence numbers and window continue.

use crate::common::{Pair, sa, udp_packet};
use base::DropReason;
use ipsec::Ipsec;
use packet::Packet;
use wire::{FlowKey, Spi, Version};
use xfrm::{ConfigError, EspInUdp, Level, Mark, Mode, SaConfig, SaFlags, Template};

fn send(pair: &mut Pair) -> Packet {
    let inner = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 9)).unwrap();
    pair.seal(inner, ipsec::Train::None).pop().unwrap()
}

#[test]
fn updated_sa_keeps_its_sequence_numbers() {
    let mut pair = Pair::new(&sa());
    let first = send(&mut pair);
    let replayed = first.to_vec();
    assert_eq!(pair.open(first).len(), 1);

    let changed = SaConfig { reqid: 77, replay_window: 256, ..sa() };
    assert_eq!(pair.sender.replace_sa(&changed), Ok(pair.out_sa));
    let id = pair.receiver.replace_sa(&changed).unwrap();
    let receiver = pair.receiver.sa(id).unwrap();
    assert_eq!((receiver.reqid(), receiver.replay().size(), receiver.stats().packets), (77, 256, 1));

    assert_eq!(pair.refuse(&replayed), [DropReason::EspReplay]);
    let second = send(&mut pair);
    assert_eq!(pair.sender.sa(pair.out_sa).unwrap().oseq(), 2);
    assert_eq!(pair.open(second).len(), 1);
}

#[test]
fn template_finds_an_updated_sa_by_its_new_values() {
    let mut pair = Pair::new(&sa());
    pair.sender.replace_sa(&SaConfig { reqid: 77, ..sa() }).unwrap();
    let (src, dst) = (sa().src, sa().dst);
    let bytes = udp_packet(Version::V4, 9);
    let flow = FlowKey::parse(&bytes, bytes.len()).unwrap();
    let found = |reqid| {
        let (mode, level) = (Mode::Tunnel, Level::Required);
        let template = Template { src: Some(src), dst: Some(dst), spi: None, mode, reqid, level };
        pair.sender.sad().for_template(&template, Mark::ANY, src, dst, &flow.into())
    };
    assert_eq!((found(77), found(sa().reqid)), (Some(pair.out_sa), None));
}

#[test]
fn impossible_update_is_refused_and_changes_nothing() {
    let esn = SaFlags { esn: true, ..SaFlags::default() };
    let cases = [
        (SaConfig { spi: Spi(0x9999), ..sa() }, ConfigError::NotFound),
        (SaConfig { flags: esn, replay_window: 64, ..sa() }, ConfigError::EsnChanged),
        (SaConfig { replay_window: 5000, ..sa() }, ConfigError::ReplayWindow(5000)),
    ];
    for (config, want) in cases {
        let mut pair = Pair::new(&sa());
        let changed = SaConfig { reqid: 77, ..config };
        assert_eq!(pair.sender.replace_sa(&changed), Err(want));
        assert_eq!(pair.sender.sa(pair.out_sa).unwrap().reqid(), sa().reqid);
        let sealed = send(&mut pair);
        assert_eq!(pair.open(sealed).len(), 1);
    }
}

#[test]
fn the_port_of_esp_in_udp_follows_the_change() {
    let encap = |dport| SaConfig { encap: Some(EspInUdp { sport: 4500, dport }), ..sa() };
    let (mut node, dst) = (Ipsec::new(), sa().dst);
    node.add_sa(&encap(4500), 1).unwrap();
    node.add_sa(&SaConfig { spi: Spi(2), ..encap(4500) }, 2).unwrap();
    let ports = |node: &Ipsec| [4500, 4501].map(|port| node.sad().is_encap_port(dst, port));
    for (config, want) in [(encap(4501), [true, true]), (encap(4501), [true, true]), (sa(), [true, false])] {
        node.replace_sa(&config).unwrap();
        assert_eq!(ports(&node), want);
    }
    node.remove_sa(dst, Spi(2), 0);
    assert_eq!(ports(&node), [false, false]);
}
