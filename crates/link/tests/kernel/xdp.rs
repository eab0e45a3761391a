//! AF_XDP on virtual cables: a host at one end, a link at the other.

use std::time::Duration;

use base::DropReason;
use driver::{DriverKind, XdpMode};
use libtest_mimic::Trial;
use link::{Layer, Link, RingState, Sent};
use packet::{CopyReason, Cut, Frames, Memory, Packet, geometry};
use system::{Need, Netns, Outcome, trial, veth, wait_until};

use crate::open;

const NEEDS: &[Need] = &[Need::Namespaces, Need::ETHTOOL];

const TAP_NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];

const PATIENCE: Duration = Duration::from_secs(20);

/// The type of the frames that are sent here, for experiments (RFC 9542 §2).
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

pub(crate) fn trials() -> Vec<Trial> {
    let ways = [("driver", XdpMode::Native), ("stack", XdpMode::Generic)];
    let by_way = ways.into_iter().flat_map(|(way, mode)| {
        vec![
            trial(format!("xdp/frames_come_and_go_by_the_{way}"), NEEDS, move || frames_pass(mode)),
            trial(format!("xdp/long_frames_come_and_go_in_several_by_the_{way}"), NEEDS, move || long_frames(mode)),
            trial(format!("xdp/ring_is_empty_while_its_frames_are_held_by_the_{way}"), NEEDS, move || dry(mode)),
            trial(format!("xdp/all_queues_of_an_interface_are_served_by_the_{way}"), NEEDS, move || queues(mode)),
            trial(format!("xdp/a_link_that_is_dropped_leaves_nothing_behind_by_the_{way}"), NEEDS, move || {
                nothing_is_left(mode)
            }),
        ]
    });
    let others = [
        trial("xdp/chosen_mode_and_its_reason_are_shown", NEEDS, chosen),
        trial("xdp/frames_pass_both_ways_by_another_driver", TAP_NEEDS, by_a_tap),
        trial("xdp/full_ring_is_busy_and_loses_no_packet", NEEDS, busy),
        trial("xdp/down_interface_is_an_error_until_it_is_up", NEEDS, down),
        trial("xdp/interface_opened_while_down_is_a_down_link", NEEDS, down_from_the_start),
        trial("xdp/packets_to_a_down_interface_stay_in_the_burst", NEEDS, sent_while_down),
        trial("xdp/packets_lost_without_a_peer_are_counted", NEEDS, no_carrier),
        trial("xdp/deleted_interface_is_an_error", NEEDS, gone),
        trial("xdp/too_long_packet_is_dropped_and_counted", NEEDS, too_big),
        trial("xdp/failed_open_names_the_reason", NEEDS, refused),
    ];
    by_way.chain(others).collect()
}

/// A host, and the link at the other end of its cable.
pub(crate) struct Cable {
    pub(crate) host: Netns,
    pub(crate) us: Netns,
}

fn cable(mtu: u16) -> Outcome<Cable> {
    let (host, us) = (Netns::new("host")?, Netns::new("us")?);
    veth((&host, "host"), (&us, "eth0"))?;
    for (netns, name) in [(&host, "host"), (&us, "eth0")] {
        // Turns off packets that the kernels at both ends send on their own.
        netns.sh(&format!(
            "echo 1 >/proc/sys/net/ipv6/conf/{name}/disable_ipv6; ip link set {name} mtu {mtu} arp off
            ethtool -K {name} tx off >/dev/null"
        ))?;
    }
    Ok(Cable { host, us })
}

fn xdp(netns: &Netns, interface: &str, ring: u32, mode: XdpMode) -> Outcome<Box<dyn Link>> {
    let kind = DriverKind::Xdp { interface: interface.to_owned(), ring: ring.try_into()?, mode };
    open(netns, interface, kind, true)
}

pub(crate) fn at_the_host(cable: &Cable) -> Outcome<Box<dyn Link>> {
    open(&cable.host, "host", DriverKind::Packet { interface: "host".to_owned(), exclusive: false }, true)
}

fn ring(link: &dyn Link) -> RingState {
    link.ring().expect("an XDP link has one")
}

/// Drops the only link of a namespace, and waits until its interface is restored. A child of another test has copies of
/// the descriptors between `fork` and `exec`.
fn close(link: Box<dyn Link>, netns: &Netns) -> Outcome {
    drop(link);
    let mut seen = Ok(String::new());
    wait_until("no interface has a program", PATIENCE, || {
        seen = netns.sh("ip -d link show");
        !seen.as_ref().is_ok_and(|seen| seen.contains("xdp"))
    })?;
    seen.map(drop)
}

/// Bytes of a broadcast Ethernet frame of `len` bytes, each different from its neighbours.
pub(crate) fn bytes(number: u32, len: usize) -> Vec<u8> {
    let header = [[0xff; 6], [2, 0, 0, 0, 0, 1]].concat();
    let payload = (0..).map(|at: u32| (at.wrapping_mul(31) ^ number.wrapping_mul(101)) as u8);
    header.into_iter().chain(EXPERIMENT).chain(number.to_be_bytes()).chain(payload).take(len).collect()
}

pub(crate) fn frame(mem: &Memory, number: u32, len: usize) -> Packet {
    Packet::with_data(mem, &bytes(number, len)).expect("memory")
}

pub(crate) fn send(link: &mut dyn Link, burst: Vec<Packet>) -> Outcome {
    let mut burst = burst;
    assert_eq!((link.send(&mut burst)?, burst.len()), (Sent::All, 0), "{:?}", link.stats());
    Ok(())
}

/// Receives until `count` frames of ours are there.
pub(crate) fn receive(link: &mut dyn Link, mem: &Memory, count: usize) -> Outcome<Vec<Packet>> {
    let mut got = Vec::new();
    let mut failed = None;
    wait_until("the frames arrive", PATIENCE, || {
        failed = link.recv(mem, &mut got).err();
        got.retain(|packet| packet.read_at(12, &mut [0; 2]) && packet.to_vec()[12..14] == EXPERIMENT);
        failed.is_some() || got.len() >= count
    })?;
    failed.map_or(Ok(got), |err| Err(err.into()))
}

fn frames_pass(mode: XdpMode) -> Outcome {
    let cable = cable(1500)?;
    let mem = Memory::heap();
    let (mut host, mut link) = (at_the_host(&cable)?, xdp(&cable.us, "eth0", 256, mode)?);
    let mac = cable.us.sh("cat /sys/class/net/eth0/address")?;
    assert_eq!((link.layer(), link.mtu()), (Layer::Ethernet(mac.trim().parse().map_err(|_| "no address")?), 1500));
    let state = ring(&*link);
    assert_eq!((state.native, state.frames, state.frame_size), (mode == XdpMode::Native, 256, 2048));

    // In: more frames than the ring has, some at a time.
    for burst in 0..20_u32 {
        let numbers = burst * 32..burst * 32 + 32;
        send(
            &mut *host,
            numbers.clone().map(|number| frame(&mem, number, 60 + (number as usize * 7) % 1455)).collect(),
        )?;
        let mut got = receive(&mut *link, &mem, 32)?;
        for (number, packet) in numbers.zip(&mut got) {
            assert_eq!(packet.to_vec(), bytes(number, 60 + (number as usize * 7) % 1455), "{mode:?}");
            assert!(packet.bufs().all(|buf| buf.is_scarce_frame(&mem)) && packet.headroom() >= Memory::HEADROOM);
            packet.head_mut().expect("a frame is written where it lies").fill(0xee);
        }
        assert_eq!(ring(&*link).held, 32);
    }
    link.settle(&mem);
    assert_eq!((ring(&*link).held, ring(&*link).rx_no_buffer, ring(&*link).kernel.rx_dropped), (0, 0, 0));
    let copied_in = mem.copies().total_bytes();

    // Out: every geometry of a packet, a tag in metadata, and many frames in one buffer.
    let shapes = geometry::all(&mem, &bytes(7, 1000), &[14, 500]);
    let before = link.stats().tx_bytes;
    let mut want = vec![bytes(7, 1000); shapes.len()];
    send(&mut *link, shapes.into_iter().map(|(_, packet)| packet).collect())?;
    let many = 300;
    let together: Vec<u8> = (0..many).flat_map(|number| [bytes(number, 100), vec![0; 20]].concat()).collect();
    let mut packet = Packet::with_data(&mem, &together[..together.len() - 20]).map_err(|dry| dry.to_string())?;
    packet.meta.cut = Cut::Frames(Frames { size: 100, stride: 120, count: many as u16 });
    want.extend((0..many).map(|number| bytes(number, 100)));
    send(&mut *link, vec![packet])?;
    let got = receive(&mut *host, &mem, want.len())?;
    assert!(got.iter().map(Packet::to_vec).eq(want.iter().cloned()), "{} came of {}, {mode:?}", got.len(), want.len());
    let sent: usize = want.iter().map(Vec::len).sum();
    assert_eq!((link.stats().tx_bytes - before, link.stats().tx_dropped), (sent as u64, 0));
    link.settle(&mem);
    let copied = mem.copies().get(CopyReason::DeviceFrame);
    assert_eq!((copied.bytes, copied.copies, copied_in), (sent as u64, want.len() as u64, 0));

    let mut tagged = frame(&mem, 9, 200);
    tagged.meta.vlan = Some(0x2007);
    send(&mut *link, vec![tagged])?;
    let mut got = Vec::new();
    wait_until("the tagged frame arrives", PATIENCE, || host.recv(&mem, &mut got).is_err() || !got.is_empty())?;
    assert_eq!((got[0].meta.vlan, got[0].to_vec()), (Some(0x2007), bytes(9, 200)));
    Ok(())
}

fn long_frames(mode: XdpMode) -> Outcome {
    let cable = cable(9000)?;
    let mem = Memory::heap();
    let (mut host, mut link) = (at_the_host(&cable)?, xdp(&cable.us, "eth0", 256, mode)?);
    assert_eq!((link.mtu(), ring(&*link).frame_size, ring(&*link).native), (9000, 4096, mode == XdpMode::Native));
    for len in [60, 3840, 3841, 4096, 8192, 9014] {
        send(&mut *host, vec![frame(&mem, len as u32, len)])?;
        let got = receive(&mut *link, &mem, 1)?;
        assert_eq!(
            (got[0].to_vec() == bytes(len as u32, len), got[0].frags().len()),
            (true, (len - 1) / 3840),
            "{len}"
        );
        drop(got);
        send(&mut *link, vec![frame(&mem, len as u32, len)])?;
        let got = receive(&mut *host, &mem, 1)?;
        assert!(got[0].to_vec() == bytes(len as u32, len), "{len}");
    }
    link.settle(&mem);
    assert_eq!((ring(&*link).held, link.stats().rx_dropped, link.stats().tx_dropped), (0, 0, 0));
    Ok(())
}

fn dry(mode: XdpMode) -> Outcome {
    let cable = cable(1500)?;
    let mem = Memory::heap();
    let (mut host, mut link) = (at_the_host(&cable)?, xdp(&cable.us, "eth0", 256, mode)?);
    for round in 1..=3 {
        let mut held = Vec::new();
        for burst in 0..8 {
            send(&mut *host, (0..32).map(|number| frame(&mem, burst * 32 + number, 100)).collect())?;
            held.extend(receive(&mut *link, &mem, 32)?);
        }
        link.settle(&mem);
        let state = ring(&*link);
        assert_eq!((held.len(), state.held, state.rx_no_buffer), (256, 256, round), "{mode:?}");
        let before = state.kernel.rx_fill_ring_empty_descs;
        send(&mut *host, (0..10).map(|number| frame(&mem, number, 100)).collect())?;
        wait_until("the kernel misses a frame", PATIENCE, || {
            ring(&*link).kernel.rx_fill_ring_empty_descs >= before + 10
        })?;
        // An empty ring receives nothing, so only `settle` can refill it.
        held.truncate(255);
        link.settle(&mem);
        assert_eq!((ring(&*link).held, ring(&*link).rx_no_buffer), (255, round));
        send(&mut *host, vec![frame(&mem, 77, 100)])?;
        assert_eq!(receive(&mut *link, &mem, 1)?[0].to_vec(), bytes(77, 100));
        drop(held);
        link.settle(&mem);
    }
    assert_eq!((ring(&*link).held, mem.copies().total_bytes()), (0, 0));
    Ok(())
}

/// A cable whose ends have that many queues.
pub(crate) fn cable_of_queues(count: u32) -> Outcome<Cable> {
    let (host, us) = (Netns::new("host")?, Netns::new("us")?);
    let link_to = us.sh("basename $(ip netns identify $$)")?;
    host.sh(&format!(
        "ip link add host numtxqueues {count} numrxqueues {count} type veth \
             peer name eth0 numtxqueues {count} numrxqueues {count} netns {}
        ethtool -L host rx {count} tx {count} >/dev/null 2>&1 || true; ip link set host up",
        link_to.trim()
    ))?;
    us.sh(&format!("ethtool -L eth0 rx {count} tx {count} >/dev/null 2>&1 || true; ip link set eth0 up"))?;
    host.wait_for_carrier("host")?;
    Ok(Cable { host, us })
}

/// A frame of a flow, by its source port.
pub(crate) fn frame_of_flow(mem: &Memory, port: u16) -> Packet {
    let (src, dst) = (([192, 0, 2, 1], port), ([192, 0, 2, 2], 9));
    let mut packet = crate::train::train(mem, src.into(), dst.into(), 0, &[7; 100], 1000);
    packet.push(mem, 14).expect("memory").copy_from_slice(&[&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 0]].concat());
    packet
}

/// The flow of a received frame.
pub(crate) fn flow_of_frame(packet: &Packet) -> Option<u16> {
    let is_udp = packet.len() == 142 && packet.head()[23] == 17;
    is_udp.then(|| u16::from_be_bytes([packet.head()[34], packet.head()[35]]))
}

fn queues(mode: XdpMode) -> Outcome {
    let cable = cable_of_queues(4)?;
    let mem = Memory::heap();
    let (mut host, mut link) = (at_the_host(&cable)?, xdp(&cable.us, "eth0", 256, mode)?);
    assert_eq!((ring(&*link).queues, ring(&*link).native), (4, mode == XdpMode::Native));
    // Packets of 200 flows, which the sender's kernel spreads over its queues.
    send(&mut *host, (1000..1200).map(|port| frame_of_flow(&mem, port)).collect())?;
    let mut ports = std::collections::BTreeSet::new();
    let mut got = Vec::new();
    wait_until("all flows arrive", PATIENCE, || {
        let failed = link.recv(&mem, &mut got).is_err();
        ports.extend(got.drain(..).filter_map(|packet| flow_of_frame(&packet)));
        failed || ports.len() == 200
    })?;
    Ok(())
}

fn nothing_is_left(mode: XdpMode) -> Outcome {
    let cable = cable(1500)?;
    let mem = Memory::heap();
    let mut host = at_the_host(&cable)?;
    for round in 0..10 {
        let mut link = xdp(&cable.us, "eth0", 256, mode)?;
        assert_eq!(ring(&*link).native, mode == XdpMode::Native, "round {round}");
        assert!(cable.us.sh("ip -d link show eth0")?.contains("xdp"));
        send(&mut *host, vec![frame(&mem, round, 100)])?;
        // A packet outlives its link.
        let got = receive(&mut *link, &mem, 1)?;
        close(link, &cable.us)?;
        assert_eq!(got[0].to_vec(), bytes(round, 100));
    }
    // The host's own stack has the interface again.
    cable.us.sh("ip link set eth0 arp on; ip addr add 192.0.2.2/24 dev eth0")?;
    cable.host.sh("ip link set host arp on; ip addr add 192.0.2.1/24 dev host; ping -c 1 -W 5 192.0.2.2")?;
    Ok(())
}

fn chosen() -> Outcome {
    let cable = cable(1500)?;
    let link = xdp(&cable.us, "eth0", 512, XdpMode::Auto)?;
    let error = |name: &str| {
        let found = link.offloads().iter().find(|offload| offload.name == name).expect("it is listed");
        (found.on, found.why.clone())
    };
    assert_eq!((ring(&*link).native, ring(&*link).zero_copy), (error("xdp-native").0, error("xdp-zero-copy").0));
    assert_eq!(
        error("xdp-zero-copy"),
        (false, Some("Operation not supported".to_owned())),
        "a cable has no memory to write to"
    );
    close(link, &cable.us)?;
    let link = xdp(&cable.us, "eth0", 512, XdpMode::Generic)?;
    let native = &link.offloads()[0];
    assert_eq!((native.on, native.why.as_deref()), (false, Some("mode = \"generic\"")));
    // A driver without support: a bridge has no native XDP.
    cable.us.sh("ip link add bridge type bridge; ip link set bridge up")?;
    let link = xdp(&cable.us, "bridge", 512, XdpMode::Auto)?;
    let native = &link.offloads()[0];
    assert!(!native.on && native.why.as_ref().is_some_and(|why| !why.is_empty()), "{native:?}");
    let err = xdp(&cable.us, "bridge", 512, XdpMode::Native).expect_err("the device has no native mode");
    assert!(err.message().is_some_and(|text| text.starts_with("bridge: BPF_LINK_CREATE: ")), "{err:?}");
    Ok(())
}

/// Frames written to a TAP device arrive by its ring, and frames sent by the ring can be read from the device.
fn by_a_tap() -> Outcome {
    let netns = Netns::new("tap")?;
    netns.sh("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6")?;
    let mem = Memory::heap();
    let mut outside = open(&netns, "tap0", DriverKind::Tap { queues: 1 }, false)?;
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let mut link = xdp(&netns, "tap0", 256, mode)?;
        assert_eq!(ring(&*link).native, mode == XdpMode::Native);
        for burst in 0..20 {
            let numbers = burst * 32..burst * 32 + 32;
            send(&mut *outside, numbers.clone().map(|number| frame(&mem, number, 60 + number as usize)).collect())?;
            let got = receive(&mut *link, &mem, 32)?;
            assert!(
                got.iter().map(Packet::to_vec).eq(numbers.clone().map(|number| bytes(number, 60 + number as usize)))
            );
            send(&mut *link, got)?;
            let got = receive(&mut *outside, &mem, 32)?;
            assert!(got.iter().map(Packet::to_vec).eq(numbers.map(|number| bytes(number, 60 + number as usize))));
        }
        link.settle(&mem);
        assert_eq!((ring(&*link).held, ring(&*link).kernel.rx_dropped, link.stats().tx_packets), (0, 0, 640));
        close(link, &netns)?;
    }
    Ok(())
}

fn busy() -> Outcome {
    let cable = cable(1500)?;
    let mem = Memory::heap();
    let (mut host, mut link) = (at_the_host(&cable)?, xdp(&cable.us, "eth0", 256, XdpMode::Auto)?);
    // Far more packets at once than frames: packets that do not fit stay in the burst, and are sent later.
    let mut burst: Vec<Packet> = (0..2000).map(|number| frame(&mem, number, 100)).collect();
    let mut got: Vec<Packet> = Vec::new();
    wait_until("all are sent", PATIENCE, || {
        let sent = link.send(&mut burst);
        host.recv(&mem, &mut got).is_err() || sent.is_ok_and(|sent| sent == Sent::All)
    })?;
    wait_until("all arrive", PATIENCE, || host.recv(&mem, &mut got).is_err() || got.len() == 2000)?;
    assert!(got.iter().map(Packet::to_vec).eq((0..2000).map(|number| bytes(number, 100))));
    assert_eq!((link.stats().tx_packets, link.stats().tx_dropped), (2000, 0));
    Ok(())
}

fn down() -> Outcome {
    let cable = cable(1500)?;
    let mem = Memory::heap();
    let (mut host, mut link) = (at_the_host(&cable)?, xdp(&cable.us, "eth0", 256, XdpMode::Auto)?);
    cable.us.sh("ip link set eth0 down")?;
    let err = link.recv(&mem, &mut Vec::new()).expect_err("the interface is down");
    assert_eq!(err.to_string(), "eth0: recv: Network is down");
    let mut burst = vec![frame(&mem, 1, 100)];
    let err = link.send(&mut burst).expect_err("the interface is still down");
    assert_eq!((err.to_string().as_str(), burst.len()), ("eth0: SIOCGIFFLAGS: Network is down", 1));
    cable.us.sh("ip link set eth0 up")?;
    cable.host.wait_for_carrier("host")?;
    let _was_down_too = host.recv(&mem, &mut Vec::new());
    link.recv(&mem, &mut Vec::new())?;
    assert_eq!((link.send(&mut burst)?, burst.len()), (Sent::All, 0));
    assert_eq!(receive(&mut *host, &mem, 1)?[0].to_vec(), bytes(1, 100));
    send(&mut *host, vec![frame(&mem, 2, 100)])?;
    assert_eq!(receive(&mut *link, &mem, 1)?[0].to_vec(), bytes(2, 100));
    Ok(())
}

fn down_from_the_start() -> Outcome {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let cable = cable(1500)?;
        let mem = Memory::heap();
        cable.us.sh("ip link set eth0 down")?;
        let mut link = xdp(&cable.us, "eth0", 256, mode)?;
        let err = link.recv(&mem, &mut Vec::new()).expect_err("the interface is down");
        assert_eq!(err.to_string(), "eth0: recv: Network is down");
        link.recv(&mem, &mut Vec::new()).expect_err("the interface is still down");
        cable.us.sh("ip link set eth0 up")?;
        cable.host.wait_for_carrier("host")?;
        link.recv(&mem, &mut Vec::new())?;
        let mut host = at_the_host(&cable)?;
        send(&mut *host, vec![frame(&mem, 1, 100)])?;
        assert_eq!(receive(&mut *link, &mem, 1)?[0].to_vec(), bytes(1, 100));
        send(&mut *link, vec![frame(&mem, 2, 100)])?;
        assert_eq!(receive(&mut *host, &mem, 1)?[0].to_vec(), bytes(2, 100));
    }
    Ok(())
}

fn sent_while_down() -> Outcome {
    let cable = cable(1500)?;
    let mem = Memory::heap();
    let mut link = xdp(&cable.us, "eth0", 256, XdpMode::Auto)?;
    cable.us.sh("ip link set eth0 down")?;
    // The first call reports that the interface is down, when its frames are in the ring already.
    send(&mut *link, vec![frame(&mem, 1, 100)])?;
    assert!(!link.settle(&mem), "it is not tried again until it is up");
    let mut burst = vec![frame(&mem, 2, 100)];
    let err = link.send(&mut burst).expect_err("the interface is down");
    assert_eq!((err.to_string().as_str(), burst.len()), ("eth0: SIOCGIFFLAGS: Network is down", 1));
    assert_eq!((link.stats().tx_packets, link.stats().tx_dropped), (1, 0));
    Ok(())
}

fn no_carrier() -> Outcome {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let cable = cable(1500)?;
        let mem = Memory::heap();
        let mut link = xdp(&cable.us, "eth0", 256, mode)?;
        cable.host.sh("ip link set host down")?;
        // More packets than frames, so that frames have to be reused.
        for burst in 0..5 {
            send(&mut *link, (0..100).map(|number| frame(&mem, burst * 100 + number, 100)).collect())?;
            assert!(!link.settle(&mem), "nothing is left to be sent");
        }
        assert_eq!((link.stats().tx_dropped, link.stats().dropped_for(DropReason::TxError)), (500, 500), "{mode:?}");
        cable.host.sh("ip link set host up")?;
        cable.us.wait_for_carrier("eth0")?;
        let mut host = at_the_host(&cable)?;
        send(&mut *link, vec![frame(&mem, 7, 100)])?;
        assert_eq!(receive(&mut *host, &mem, 1)?[0].to_vec(), bytes(7, 100));
        assert_eq!(link.stats().tx_dropped, 500);
    }
    Ok(())
}

fn gone() -> Outcome {
    let cable = cable(1500)?;
    let mem = Memory::heap();
    let mut link = xdp(&cable.us, "eth0", 256, XdpMode::Auto)?;
    cable.us.sh("ip link del eth0")?;
    let err = link.recv(&mem, &mut Vec::new()).expect_err("the interface is gone");
    assert_eq!(err.to_string(), "eth0: recv: Network is down");
    let err = link.recv(&mem, &mut Vec::new()).expect_err("the interface is still gone");
    assert_eq!(err.to_string(), "eth0: SIOCGIFINDEX: No such device");
    cable.us.sh("ip link add eth0 type veth peer name other; ip link set eth0 up")?;
    let mut burst = vec![frame(&mem, 1, 100)];
    let err = link.send(&mut burst).expect_err("another interface of the same name");
    assert_eq!((err.to_string().as_str(), burst.len()), ("eth0: SIOCGIFINDEX: eth0 is another interface now", 1));
    assert_eq!(ring(&*link).held, 0);
    Ok(())
}

fn too_big() -> Outcome {
    let cable = cable(1500)?;
    let mem = Memory::heap();
    let (mut host, mut link) = (at_the_host(&cable)?, xdp(&cable.us, "eth0", 256, XdpMode::Auto)?);
    send(&mut *link, vec![frame(&mem, 1, 1514), frame(&mem, 2, 1519), frame(&mem, 3, 60)])?;
    assert_eq!((link.stats().tx_packets, link.stats().dropped_for(DropReason::PacketTooBig)), (2, 1));
    let got = receive(&mut *host, &mem, 2)?;
    assert!(got.iter().map(Packet::to_vec).eq([bytes(1, 1514), bytes(3, 60)]));
    // Frames were made for an MTU of 1500, and have room for a little more.
    cable.us.sh("ip link set eth0 mtu 1900")?;
    link.set_mtu(Some(1774)).map_err(|err| err.to_string())?;
    let err = link.set_mtu(None).expect_err("frames of 2048 bytes are too short");
    let want = "eth0: mtu: 1900 is more than the 1774 that frames of 2048 bytes have room for; open the link anew";
    assert_eq!((err.to_string().as_str(), link.mtu()), (want, 1774));
    let err = link.set_mtu(Some(2000)).expect_err("more than the interface's");
    assert_eq!(err.to_string(), "eth0: mtu: 2000 is more than the interface's 1900");
    Ok(())
}

fn refused() -> Outcome {
    let cable = cable(1500)?;
    let message = |err: libtest_mimic::Failed| err.message().unwrap_or_default().to_owned();
    let err = message(xdp(&cable.us, "eth7", 256, XdpMode::Auto).expect_err("there is none"));
    assert_eq!(err, "eth7: SIOCGIFINDEX: No such device (no such interface; `ip link` lists those there are)");
    let err = message(xdp(&cable.us, "lo", 256, XdpMode::Auto).expect_err("it is no Ethernet interface"));
    assert_eq!(err, "lo: SIOCGIFHWADDR: not an Ethernet interface");
    let _first = xdp(&cable.us, "eth0", 256, XdpMode::Auto)?;
    let err = message(xdp(&cable.us, "eth0", 256, XdpMode::Auto).expect_err("it has one already"));
    assert!(err.contains("another XDP program is on the interface; `ip link show` names it"), "{err}");
    Ok(())
}
