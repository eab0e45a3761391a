//! GRO of bridged frames where guests and wires are: a macvlan device, TAP devices and vhost-user ports, each as ingress and egress.
//!
//! ```text
//! wire ── macvlan up0 ┐
//! guest one ──── tap0 ┼ near ─ vm0 ── vhost-user ── vm0 ─ far ─ tap1 ──── guest two
//! ```
//!
//! The far gateway passes each frame on as it came. No device of a guest or of the wire segments or coalesces, so all frames that the
//! near gateway receives are thin. VLAN 10 has no tag on any port, VLAN 20 has one.

use std::time::Duration;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, run, transfer, trial, veth, wait_until};

use crate::bridge::{bridge, guest, tap};
use crate::ip::exec;

/// Frames, in the order of their capture.
type Frames = Vec<Vec<u8>>;

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::ETHTOOL, Need::PING, Need::PYTHON];

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("bridge_gro/frames_of_a_wire_by_macvlan_are_joined_and_cut", NEEDS, || joined_and_cut(0)),
        trial("bridge_gro/frames_of_a_tap_guest_are_joined_and_cut", NEEDS, || joined_and_cut(1)),
        trial("bridge_gro/frames_of_a_vhost_user_guest_are_joined_and_cut", NEEDS, || joined_and_cut(2)),
    ]
}

/// Ports of the near gateway.
const PORTS: [&str; 3] = ["up0", "tap0", "vm0"];

/// Index of the vhost-user port.
const VHOST: usize = 2;

/// Devices of the stations behind these ports, and their addresses.
const DEVICES: [&str; 3] = ["up0", "tap0", "tap1"];
const ADDRESSES: [&str; 3] = ["10.9.0.1", "10.9.0.2", "10.9.0.3"];

/// Bytes of a TCP stream.
const STREAM: usize = 8 << 20;

/// Sends segments of an IPv4 and an IPv6 stream by a device, and prints each frame. Runs of ten segments are in VLAN 10, without a tag,
/// and in VLAN 20 by turns. The last segment of a run is shorter, with PSH.
const SENDER: &str = r#"
import socket, struct, sys

def check(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

def segment(version, number, seq, length, flags):
    ends = [bytes([10, 9, 9, host]) if version == 4 else bytes([0xfd] + [0] * 14 + [host]) for host in (1, 2)]
    payload = bytes((seq + at) * 7 % 251 for at in range(length))
    options = struct.pack("!BBBBII", 1, 1, 8, 10, 1000, 2000)
    tcp = lambda sum: struct.pack("!HHIIBBHHH", 7000, 7001, seq, 5, 8 << 4, flags, 500, sum, 0) + options + payload
    size = 32 + length
    pseudo = ends[0] + ends[1] + (struct.pack("!HH", 6, size) if version == 4 else struct.pack("!II", size, 6))
    body = tcp(check(pseudo + tcp(0)))
    if version == 6:
        return struct.pack("!IHBB", 6 << 28, size, 6, 64) + ends[0] + ends[1] + body
    header = lambda sum: struct.pack("!BBHHHBBH", 0x45, 0, 20 + size, number, 0x4000, 64, 6, sum) + ends[0] + ends[1]
    return header(check(header(0))) + body

frames, seq = [], {4: 1, 6: 1}
for run in range(20):
    for version in 4, 6:
        for at in range(10):
            last = at == 9
            length = 700 if last else 1400
            packet = segment(version, run * 10 + at, seq[version], length, 0x18 if last else 0x10)
            seq[version] += length
            tag = struct.pack("!HH", 0x8100, 20) if run % 2 else b""
            kind = struct.pack("!H", 0x0800 if version == 4 else 0x86dd)
            frames.append(bytes.fromhex("020000000088020000000077") + tag + kind + packet)
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.setsockopt(socket.SOL_SOCKET, 32, 4 << 20)
s.bind((sys.argv[1], 0))
for frame in frames:
    s.send(frame)
    print(frame.hex())
"#;

/// Prints each frame of the sender that a device receives, as fat as it is, and ends when there are none for two seconds. tcpdump cuts
/// frames to the MTU of a device without offloads.
const RECEIVER: &str = r#"
import socket, struct, sys
SOL_PACKET, ADD_MEMBERSHIP, AUXDATA, PROMISC, VLAN_VALID = 263, 1, 8, 1, 16
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
s.setsockopt(SOL_PACKET, AUXDATA, 1)
s.bind((sys.argv[1], 3))
s.setsockopt(SOL_PACKET, ADD_MEMBERSHIP, struct.pack("iHH8s", socket.if_nametoindex(sys.argv[1]), PROMISC, 0, b""))
print("listening", flush=True)
frames = []
s.settimeout(60)
try:
    while True:
        frame, control, _, _ = s.recvmsg(1 << 17, 256)
        if frame[6:12] != bytes.fromhex("020000000077"):
            continue
        s.settimeout(2)
        for level, kind, data in control:
            status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", data[:20])
            if (level, kind) == (SOL_PACKET, AUXDATA) and status & VLAN_VALID:
                frame = frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]
        frames.append(frame)
except TimeoutError:
    print("\n".join(frame.hex() for frame in frames))
"#;

struct Site {
    near: Gateway,
    _far: Gateway,
    /// Namespace of the near gateway.
    inside: Netns,
    /// Stations behind the ports.
    stations: [Netns; 3],
    scratch: Scratch,
}

impl Site {
    /// The port of vhost-user takes fat frames if its guest, the far gateway, has offloads.
    fn new(far_offloads: bool) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let (wire, inside, outside) = (Netns::new("wire")?, Netns::new("near")?, Netns::new("far")?);
        veth((&inside, "low0"), (&wire, "up0"))?;
        // Frames to other stations pass a macvlan device of this mode alone.
        inside.sh("echo 1 >/proc/sys/net/ipv6/conf/low0/disable_ipv6
            ethtool -K low0 gro off >/dev/null
            ip link add link low0 name up0 type macvlan mode passthru; ip link set up0 up")?;
        wire.sh(&format!("ip addr add {}/24 dev up0", ADDRESSES[0]))?;
        let port = "pvid = 10, tagged = [20]";
        let socket = scratch.file("vm0.sock").display().to_string();
        let vm0 = |kind: &str| {
            format!(
                "[[link]]\nname = \"vm0\"\nkind = \"{kind}\"\nsocket = \"{socket}\"\nmaster = \"br0\"\nport = {{ {port} }}\n"
            )
        };
        let up0 = format!(
            "[[link]]\nname = \"up0\"\nkind = \"packet\"\ninterface = \"up0\"\nmaster = \"br0\"\nport = {{ {port} }}\n"
        );
        let switch = || bridge("br0", "vlan-filtering = true");
        let toml = [switch(), up0, tap("tap0", port), vm0("vhost-user")].concat();
        let near = Gateway::start(&inside, &scratch, "near", &toml)?;
        let offloads = format!("offloads = {far_offloads}\n");
        let toml = [switch(), tap("tap1", port), vm0("virtio-user"), offloads].concat();
        let far = Gateway::start(&outside, &scratch, "far", &toml)?;
        for device in ["tap1", "vm0"] {
            ethtool(&outside, &scratch, "far", &format!("-K {device} gro off"))?;
        }
        let one = guest("one", &inside, "tap0", &format!("{}/24", ADDRESSES[1]))?;
        let two = guest("two", &outside, "tap1", &format!("{}/24", ADDRESSES[2]))?;
        let stations = [wire, one, two];
        for (station, device) in stations.iter().zip(DEVICES) {
            station.sh(&format!("ethtool -K {device} tx off sg off tso off gso off gro off >/dev/null"))?;
        }
        for address in &ADDRESSES[1..] {
            stations[0].sh(&format!("for try in $(seq 50); do ping -c 1 -W 1 {address} && exit; done; exit 1"))?;
        }
        Ok(Self { near, _far: far, inside, stations, scratch })
    }

    fn ethtool(&self, line: &str) -> Outcome {
        ethtool(&self.inside, &self.scratch, "near", line)
    }

    /// Frames that a port sends while a TCP stream goes from one station to another.
    fn frames_of_stream(&self, from: usize, to: usize) -> Outcome<u64> {
        let before = self.counter(to, "tx_packets")?;
        transfer(&self.stations[from], (&self.stations[to], ADDRESSES[to].parse()?), STREAM)?;
        Ok(self.counter(to, "tx_packets")? - before)
    }

    /// Counter of a port of the near gateway.
    fn counter(&self, port: usize, name: &str) -> Outcome<u64> {
        Ok(self.near.link(PORTS[port])?["stats"][name].as_u64().ok_or("no counter")?)
    }

    /// Fails unless frames leave by port `cut` of `to` as they came, and fat by port `fat` of `to`.
    fn cuts_for(&self, from: usize, to: [usize; 2], [cut, fat]: [usize; 2]) -> Outcome {
        let (sent, received) = self.frames(from, to)?;
        let ports = [cut, fat].map(|at| PORTS[to[at]]);
        for version in [4, 6] {
            let [sent, cut, fat] = [&sent, &received[cut], &received[fat]].map(|frames| of_version(frames, version));
            assert_eq!(sent.len(), 200);
            same(&sent, &cut, &format!("IPv{version} by {}, which takes no fat frames", ports[0]));
            let count = fat.len();
            assert!(
                count * 3 < sent.len(),
                "IPv{version} by {}: {count} frames\n{}",
                ports[1],
                self.near.show("links")?
            );
            let ([sent, sent_vlans], [fat, fat_vlans]) = (stream(&sent, version), stream(&fat, version));
            assert_eq!(sent_vlans, fat_vlans, "VLANs in order");
            same(&[&sent], &[&fat], &format!("IPv{version} by {}", ports[1]));
        }
        Ok(())
    }

    /// Sends the frames of [`SENDER`] while the near gateway is stopped, so that it receives them in long bursts. Returns the frames
    /// sent, and those that each of the stations `to` receives.
    fn frames(&self, from: usize, to: [usize; 2]) -> Outcome<(Frames, [Frames; 2])> {
        let receiver = |at: usize| -> Outcome<Process> {
            let mut command = self.stations[at].command("python3");
            let process = Process::spawn(command.args(["-c", RECEIVER, DEVICES[at]]), &self.scratch)?;
            wait_until("the receiver listens", PATIENCE, || process.output().contains("listening"))?;
            Ok(process)
        };
        let receivers = [receiver(to[0])?, receiver(to[1])?];
        let signal = |name: &str| self.inside.sh(&format!("kill -{name} {}", self.near.id()));
        signal("STOP")?;
        let mut sender = self.stations[from].command("python3");
        let sent = run(sender.args(["-c", SENDER, DEVICES[from]]));
        signal("CONT")?;
        let sent = frames_of(&sent?)?;
        let received = |mut receiver: Process| -> Outcome<Vec<Vec<u8>>> {
            receiver.wait(PATIENCE).map_err(|_| self.near.show("links").unwrap_or_default())?;
            frames_of(receiver.output().trim_start_matches("listening\n"))
        };
        let [first, second] = receivers;
        Ok((sent, [received(first)?, received(second)?]))
    }
}

fn ethtool(netns: &Netns, scratch: &Scratch, instance: &str, line: &str) -> Outcome {
    let mut shell = exec(netns, instance);
    run(shell.args(["-c", &format!("ethtool {line}")]).env("FATPATH_RUNDIR", scratch.path())).map(drop)
}

/// Frames of lines of hexadecimal digits.
fn frames_of(text: &str) -> Outcome<Vec<Vec<u8>>> {
    Ok(text.lines().map(bytes_of).collect::<Option<_>>().ok_or_else(|| format!("no frames: {text}"))?)
}

/// Bytes of a line of hexadecimal digits.
fn bytes_of(line: &str) -> Option<Vec<u8>> {
    let byte = |at: usize| u8::from_str_radix(line.get(at..at + 2)?, 16).ok();
    (0..line.len()).step_by(2).map(byte).collect()
}

/// Frames of an IP version, in order.
fn of_version(frames: &[Vec<u8>], version: u8) -> Vec<&[u8]> {
    let is_version = |frame: &&[u8]| frame.get(ip_at(frame)).is_some_and(|byte| byte >> 4 == version);
    frames.iter().map(Vec::as_slice).filter(is_version).collect()
}

/// Offset of a frame's IP header.
fn ip_at(frame: &[u8]) -> usize {
    if frame.get(12..14) == Some(&[0x81, 0]) { 18 } else { 14 }
}

/// Payload of TCP in frames of a version, and for each frame its VLAN's tag, without repetition.
fn stream(frames: &[&[u8]], version: u8) -> [Vec<u8>; 2] {
    let headers = if version == 4 { 20 + 32 } else { 40 + 32 };
    let payload = frames.iter().flat_map(|frame| &frame[ip_at(frame) + headers..]).copied().collect();
    let mut tag_lens: Vec<u8> = frames.iter().map(|frame| ip_at(frame) as u8 - 14).collect();
    tag_lens.dedup();
    [payload, tag_lens]
}

/// Fails with the first difference between frames.
fn same(want: &[&[u8]], got: &[&[u8]], what: &str) {
    let number = want.iter().zip(got).position(|(want, got)| want != got);
    if let Some(number) = number {
        let (want, got) = (want[number], got[number]);
        let at = want.iter().zip(got).take_while(|(want, got)| want == got).count();
        let part =
            |bytes: &[u8]| format!("{:x?} of {}", &bytes[at.min(bytes.len())..bytes.len().min(at + 8)], bytes.len());
        panic!("{what}: frame {number} differs at {at}: {}, not {}", part(got), part(want));
    }
    assert_eq!(want.len(), got.len(), "{what}");
}

/// Thin frames that one port receives leave by the other two: fat by a port that takes them so, and by the other as they came; and as
/// they came by both ports without GRO at the ingress.
fn joined_and_cut(from: usize) -> Outcome {
    let site = Site::new(true)?;
    let to: Vec<usize> = (0..3).filter(|&at| at != from).collect();
    let to = [to[0], to[1]];
    for at in to {
        let with = site.frames_of_stream(from, at)?;
        site.ethtool(&format!("-K {} gro off", PORTS[from]))?;
        let without = site.frames_of_stream(from, at)?;
        site.ethtool(&format!("-K {} gro on", PORTS[from]))?;
        assert!(without as usize > STREAM / 1500, "{}: {without} frames, not one for each received", PORTS[at]);
        assert!(with * 3 < without, "{}: {with} frames with GRO, {without} without", PORTS[at]);
    }
    // The guest of a vhost-user port decides what the port takes.
    for (cut, fat) in [(0, 1), (1, 0)].into_iter().filter(|&(cut, _)| to[cut] != VHOST) {
        let port = PORTS[to[cut]];
        site.ethtool(&format!("-K {port} tx off tso off"))?;
        site.cuts_for(from, to, [cut, fat])?;
        site.ethtool(&format!("-K {port} tx on tso on"))?;
    }
    if from != VHOST {
        Site::new(false)?.cuts_for(from, to, [1, 0])?;
    }
    site.ethtool(&format!("-K {} gro off", PORTS[from]))?;
    let (sent, received) = site.frames(from, to)?;
    for (at, received) in to.into_iter().zip(&received) {
        let [sent, received] = [&sent, received].map(|frames| frames.iter().map(Vec::as_slice).collect::<Vec<_>>());
        same(&sent, &received, &format!("{} without GRO", PORTS[at]));
    }
    let drops = site.near.show("drops")?;
    assert!(!drops.contains("Checksum") && !drops.contains("TooBig"), "{drops}");
    Ok(())
}
