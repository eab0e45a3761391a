//! Fragments made by a kernel, received into a small ring: a socket sends datagrams of 65 507 bytes over a cable, and
//! they arrive by AF_XDP in 256 frames.
//!
//! ```text
//!  host, a UDP socket ── relay, which may lose a frame ── us, AF_XDP
//! ```

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use driver::{DriverKind, XdpMode};
use link::{Config as LinkConfig, Link, RingState};
use packet::Packet;
use reassembly::{Coalesce, Config};
use system::{Netns, Outcome, veth, wait_until};
use wire::Version;

use crate::world::{BOTH, World};

/// Frames of the smallest ring.
const FRAMES: u32 = 256;

/// The longest UDP datagram of IPv4, which IPv6 permits too.
const LONGEST: usize = 65_507;

/// Fragments of the datagram at an MTU of 1500: 45 of 1480 bytes in IPv4, 46 of 1448 in IPv6.
fn fragments(version: Version) -> usize {
    (LONGEST + 8).div_ceil(if version == Version::V4 { 1480 } else { 1448 })
}

struct Street {
    version: Version,
    socket: UdpSocket,
    relay: [Box<dyn Link>; 2],
    ring: Box<dyn Link>,
    world: World,
    /// Packets that were received, IP and above.
    received: usize,
    _namespaces: [Netns; 3],
}

fn open(netns: &Netns, name: &str, kind: DriverKind) -> Outcome<Box<dyn Link>> {
    let config = LinkConfig { name: name.to_owned(), kind, mac: None, mtu: None, offloads: true, index: None };
    netns.enter(|| link::open(&config)).map_err(|error| error.to_string().into())
}

impl Street {
    fn new(version: Version, mode: XdpMode, coalesce: Coalesce) -> Outcome<Self> {
        let (host, relay, us) = (Netns::new("host")?, Netns::new("relay")?, Netns::new("us")?);
        veth((&host, "eth0"), (&relay, "left"))?;
        veth((&relay, "right"), (&us, "eth0"))?;
        for (netns, interfaces) in [(&relay, "left right"), (&us, "eth0")] {
            netns.sh(&format!("for i in {interfaces}; do echo 1 >/proc/sys/net/ipv6/conf/$i/disable_ipv6; done"))?;
        }
        host.sh("ethtool -K eth0 tx off >/dev/null
            ip addr add 192.0.2.1/24 dev eth0; ip addr add 2001:db8::1/64 dev eth0 nodad
            ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev eth0
            ip neigh add 2001:db8::2 lladdr 02:00:00:00:00:02 dev eth0")?;
        let (from, to): (IpAddr, IpAddr) = match version {
            Version::V4 => ("192.0.2.1".parse()?, "192.0.2.2".parse()?),
            Version::V6 => ("2001:db8::1".parse()?, "2001:db8::2".parse()?),
        };
        let socket = host.enter(|| UdpSocket::bind((from, 0)))?;
        socket.connect((to, 9))?;
        let packet =
            |name: &str| open(&relay, name, DriverKind::Packet { interface: name.to_owned(), exclusive: false });
        let frames = FRAMES.try_into()?;
        let ring = open(&us, "eth0", DriverKind::Xdp { interface: "eth0".to_owned(), ring: frames, mode })?;
        Ok(Self {
            version,
            socket,
            relay: [packet("left")?, packet("right")?],
            ring,
            world: World::with_config(version, Config { coalesce, ..Config::default() }),
            received: 0,
            _namespaces: [host, relay, us],
        })
    }

    /// Sends a datagram filled with `number`, without its fragment `lost`, and receives the result.
    fn send(&mut self, number: u8, lost: Option<usize>) -> Outcome {
        self.socket.send(&[number; LONGEST])?;
        let (mut sent, mut burst) = (0, Vec::new());
        let left = &mut self.relay[0];
        let count = fragments(self.version);
        wait_until("the fragments leave the host", Duration::from_secs(20), || {
            left.recv(&self.world.mem, &mut burst).is_err() || {
                burst.retain(is_fragment);
                burst.len() == count
            }
        })?;
        for (at, frame) in burst.into_iter().enumerate() {
            if Some(at) != lost {
                let mut one = vec![frame];
                let _ = self.relay[1].send(&mut one)?;
                sent += one.is_empty() as usize;
            }
            // In several interrupts, as a card does.
            if at % 16 == 15 || at + 1 == count {
                self.receive()?;
            }
        }
        assert_eq!(sent, count - usize::from(lost.is_some()));
        Ok(())
    }

    /// Reassembles all packets of the ring.
    fn receive(&mut self) -> Outcome {
        let mut burst = Vec::new();
        self.ring.recv(&self.world.mem, &mut burst)?;
        for mut packet in burst.into_iter().filter(is_fragment) {
            packet.pull(14);
            self.received += 1;
            let bytes = packet.to_vec();
            self.world.send_packet(packet, &bytes);
        }
        self.ring.settle(&self.world.mem);
        Ok(())
    }

    /// The numbers of the complete datagrams, with which all their bytes are filled.
    fn delivered(&mut self) -> Vec<u8> {
        let header = if self.version == Version::V4 { 28 } else { 48 };
        let whole = self.world.delivered.drain(..).map(|packet| packet.to_vec());
        let number = |bytes: Vec<u8>| {
            assert_eq!(bytes.len(), LONGEST + header);
            assert!(bytes[header..].iter().all(|&byte| byte == bytes[header]), "a datagram of parts of others");
            bytes[header]
        };
        whole.map(number).collect()
    }

    fn state(&self) -> RingState {
        self.ring.ring().expect("it has a ring")
    }
}

/// Tells whether a frame is one of the socket's fragments.
fn is_fragment(frame: &Packet) -> bool {
    let head = frame.to_vec();
    matches!(head.get(12..14), Some([0x08, 0x00])) && head[23] == 17
        || matches!(head.get(12..14), Some([0x86, 0xdd])) && head[20] == 44
}

pub(crate) fn every_datagram_arrives() -> Outcome {
    for version in BOTH {
        for mode in [XdpMode::Native, XdpMode::Generic] {
            let mut street = Street::new(version, mode, Coalesce::Move)?;
            for number in 0..40 {
                street.send(number, None)?;
                assert_eq!(street.delivered(), [number], "{version}, {mode:?}, {:?}", street.state());
            }
            let state = street.state();
            assert_eq!((state.held, state.rx_no_buffer, state.kernel.rx_dropped), (0, 0, 0), "{state:?}");
            assert_eq!(street.received, 40 * fragments(version));
            assert_eq!(street.world.reassembly.memory(), 0);
        }
    }
    Ok(())
}

/// Each of sixty datagrams loses another fragment, and waits; a complete one follows each.
pub(crate) fn a_ring_runs_dry_of_what_waits_unless_it_is_coalesced() -> Outcome {
    for version in BOTH {
        let run = |coalesce| {
            let mut street = Street::new(version, XdpMode::Auto, coalesce)?;
            let mut whole = 0;
            for number in 0..60_usize {
                street.send(1, Some(number * 7 % fragments(version)))?;
                street.send(2, None)?;
                whole += street.delivered().into_iter().filter(|&number| number == 2).count();
            }
            let state = street.state();
            // Nothing leaks: timed out datagrams free their frames.
            street.world.drain();
            street.ring.settle(&street.world.mem);
            assert_eq!((street.state().held, street.world.reassembly.memory()), (0, 0));
            Ok::<_, libtest_mimic::Failed>((whole, state))
        };
        for coalesce in [Coalesce::Move, Coalesce::Copy] {
            let (whole, state) = run(coalesce)?;
            assert_eq!((whole, state.held, state.rx_no_buffer), (60, 0, 0), "{version}, {coalesce:?}: {state:?}");
            assert_eq!(state.kernel.rx_fill_ring_empty_descs, 0, "{version}, {coalesce:?}: {state:?}");
        }
        let (whole, state) = run(Coalesce::Off)?;
        assert!(whole < 10 && state.held == u64::from(FRAMES), "{whole} of 60, {version}: {state:?}");
        assert!(state.rx_no_buffer > 0 && state.kernel.rx_fill_ring_empty_descs > 1000, "{version}: {state:?}");
    }
    Ok(())
}
