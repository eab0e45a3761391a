//! TUN and TAP devices.

use driver::DriverKind;
use libtest_mimic::Trial;
use link::{Link, Sent};
use packet::{Memory, Packet};
use system::{Need, Netns, Outcome, trial};

use crate::bridge::{Seen, transfer, with_cable};
use crate::open;
use crate::train::{receive, send, train};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];

const TUN: DriverKind = DriverKind::Tun { queues: 1 };
const TAP: DriverKind = DriverKind::Tap { queues: 1 };

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("tun/kernel_tcp_stays_fat_from_device_to_device", NEEDS, || fat(TUN)),
        trial("tap/kernel_tcp_stays_fat_from_device_to_device", NEEDS, || fat(TAP)),
        trial("tun/several_queues_carry_one_stream", NEEDS, || fat(DriverKind::Tun { queues: 4 })),
        trial("tun/without_offloads_every_packet_is_plain", NEEDS, || thin(TUN)),
        trial("tap/without_offloads_every_packet_is_plain", NEEDS, || thin(TAP)),
        trial("tun/udp_trains_stay_trains", NEEDS, udp_trains),
        trial("tun/refused_offload_loses_no_packet", NEEDS, refused),
        trial("tun/down_device_is_an_error_until_it_is_up", NEEDS, down),
        trial("tun/deleted_device_is_an_error", NEEDS, gone),
        trial("tun/mtu_change_applies_to_the_device", NEEDS, another_mtu),
        trial("tun/name_in_use_is_named_in_the_error", NEEDS, in_use),
    ]
}

/// Two namespaces with a device each, named and addressed.
struct Pair {
    a: Netns,
    b: Netns,
    link_a: Box<dyn Link>,
    link_b: Box<dyn Link>,
}

fn pair(kind: &DriverKind, offloads: bool) -> Outcome<Pair> {
    let (a, b) = (Netns::new("a")?, Netns::new("b")?);
    let link_a = open(&a, "fat0", kind.clone(), offloads)?;
    let link_b = open(&b, "fat0", kind.clone(), offloads)?;
    for (netns, host) in [(&a, 1), (&b, 2)] {
        netns.sh(&format!("ip addr add 10.9.0.{host}/24 dev fat0; ip addr add fd09::{host}/64 dev fat0 nodad"))?;
    }
    Ok(Pair { a, b, link_a, link_b })
}

fn stream(kind: &DriverKind, offloads: bool) -> Outcome<(Pair, Seen)> {
    let mut pair = pair(kind, offloads)?;
    let (a, b) = (&pair.a, &pair.b);
    let seen = with_cable(pair.link_a.as_mut(), pair.link_b.as_mut(), || {
        transfer(a, b, "10.9.0.2".parse()?, 8 << 20)?;
        transfer(a, b, "fd09::2".parse()?, 8 << 20)
    })?;
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    for link in [&pair.link_a, &pair.link_b] {
        let stats = link.stats();
        assert_eq!((stats.rx_dropped, stats.tx_dropped), (0, 0), "{stats:?}");
    }
    Ok((pair, seen))
}

fn fat(kind: DriverKind) -> Outcome {
    let (pair, seen) = stream(&kind, true)?;
    assert!(seen.fat_v4 > 50 && seen.fat_v6 > 50 && seen.longest > 60_000 && seen.partial > 100, "{seen:?}");
    let stats = pair.link_a.stats();
    assert!(stats.rx_wire_packets > 8 * stats.rx_packets / 2, "{stats:?}");
    assert!(pair.link_a.offloads().iter().all(|offload| offload.on), "{:?}", pair.link_a.offloads());
    Ok(())
}

fn thin(kind: DriverKind) -> Outcome {
    let (pair, seen) = stream(&kind, false)?;
    assert_eq!((seen.fat_v4, seen.fat_v6, seen.partial), (0, 0, 0));
    assert!(seen.longest <= 1514, "{seen:?}");
    let reasons: Vec<_> = pair.link_a.offloads().iter().map(|offload| (offload.on, offload.why.as_deref())).collect();
    assert!(reasons.iter().all(|&reason| reason == (false, Some("offloads = false"))), "{reasons:?}");
    Ok(())
}

fn udp_trains() -> Outcome {
    let mut pair = pair(&TUN, true)?;
    let mem = Memory::heap();
    let payload: Vec<u8> = (0..40_500_u32).map(|at| (at % 251) as u8).collect();
    for (local, remote, header_len) in
        [("10.9.0.1:4500", "10.9.0.2:4500", 28), ("[fd09::1]:4500", "[fd09::2]:4500", 48)]
    {
        let (local, remote) = (local.parse()?, remote.parse()?);
        let mut from = open(&pair.a, "from", DriverKind::Udp { bind: local }, true)?;
        let mut to = open(&pair.b, "to", DriverKind::Udp { bind: remote }, true)?;
        let train = train(&mem, local, remote, 0, &payload, 1000);
        let seen = with_cable(pair.link_a.as_mut(), pair.link_b.as_mut(), || {
            assert_eq!(send(from.as_mut(), train)?, Sent::All);
            let got = receive(to.as_mut(), &mem, header_len, payload.len())?;
            assert_eq!(got.len(), 1, "{got:?}");
            assert_eq!((got[0].meta.cut.segs(), &got[0].to_vec()[header_len..]), (41, &payload[..]));
            Ok(())
        })?;
        assert!(seen.wrong.is_empty() && seen.longest == header_len + payload.len(), "{seen:?}");
    }
    Ok(())
}

fn refused() -> Outcome {
    let netns = Netns::new("a")?;
    let mut link = open(&netns, "fat0", TUN, true)?;
    let mem = Memory::heap();
    // More segments than any kernel accepts; the second refusal turns the offload off.
    let train = |len| train(&mem, "10.9.0.2:1".parse().unwrap(), "10.9.0.1:2".parse().unwrap(), 0, &vec![7; len], 10);
    let plain = || Packet::with_data(&mem, &train(3000).to_vec()[..1000]).unwrap();
    let mut burst = vec![plain(), train(3000), plain()];
    for (uso, left, why) in
        [(true, 2, "at most 64 segments: fat0: writev: Invalid argument"), (false, 2, "fat0: writev: Invalid argument")]
    {
        assert_eq!((link.send(&mut burst)?, burst.len()), (Sent::Refit, left));
        let offload = link.offloads().iter().find(|offload| offload.name == "tx-uso").expect("it is listed");
        assert_eq!((offload.on, offload.why.as_deref()), (uso, Some(why)));
        let features = link.features();
        assert_eq!((features.uso, features.gso_max_segs, features.tso4), (uso, 64, true));
    }
    burst.remove(0);
    assert_eq!((link.send(&mut burst)?, link.stats().tx_packets, link.stats().tx_dropped), (Sent::All, 2, 0));
    Ok(())
}

fn down() -> Outcome {
    let netns = Netns::new("a")?;
    let mut link = open(&netns, "fat0", TUN, true)?;
    let mem = Memory::heap();
    netns.sh("ip link set fat0 down")?;
    let packet = train(&mem, "10.9.0.2:1".parse()?, "10.9.0.1:2".parse()?, 0, &[7; 100], 1000);
    let mut burst = vec![packet];
    let err = link.send(&mut burst).expect_err("the device is down");
    assert_eq!((err.to_string().as_str(), burst.len()), ("fat0: writev: Network is down", 1));
    let err = link.recv(&mem, &mut Vec::new()).expect_err("the device is still down");
    assert_eq!(err.to_string(), "fat0: SIOCGIFFLAGS: Network is down");
    netns.sh("ip link set fat0 up")?;
    link.recv(&mem, &mut Vec::new())?;
    assert_eq!(link.send(&mut burst)?, Sent::All);
    Ok(())
}

fn another_mtu() -> Outcome {
    for offloads in [true, false] {
        let netns = Netns::new("a")?;
        let mut link = open(&netns, "fat0", TUN, offloads)?;
        let seen = || netns.sh("cat /sys/class/net/fat0/mtu");
        for (configured, mtu) in [(Some(9000), 9000), (Some(1400), 1400), (None, 1500)] {
            link.set_mtu(configured).map_err(|err| err.to_string())?;
            assert_eq!((link.mtu(), seen()?.trim()), (mtu, mtu.to_string().as_str()));
        }
        let err = link.set_mtu(Some(1)).expect_err("an MTU that IP does not have");
        assert_eq!((err.to_string().as_str(), link.mtu()), ("fat0: SIOCSIFMTU: Invalid argument", 1500));
    }
    Ok(())
}

fn gone() -> Outcome {
    let netns = Netns::new("a")?;
    let mut link = open(&netns, "fat0", TUN, true)?;
    netns.sh("ip link del fat0")?;
    let err = link.recv(&Memory::heap(), &mut Vec::new()).expect_err("the device is gone");
    let want = "fat0: readv: File descriptor in bad state (the device was deleted; make it again with `ip tuntap add`, \
                or restart the gateway)";
    assert_eq!(err.to_string(), want);
    Ok(())
}

fn in_use() -> Outcome {
    let netns = Netns::new("a")?;
    let _first = open(&netns, "fat0", TUN, true)?;
    let second = open(&netns, "fat0", TUN, true).expect_err("the name is in use");
    let error = second.message().unwrap_or_default();
    assert_eq!(error, "fat0: TUNSETIFF: Device or resource busy (another program has it)");
    let other = open(&netns, "lo", TAP, true).expect_err("loopback is no TAP device");
    let error = other.message().unwrap_or_default();
    assert!(error.starts_with("lo: TUNSETIFF: Invalid argument (an interface of that name"), "{error}");
    Ok(())
}
