//! tshark reassembles datagrams that we fragment, some of them again after reassembly.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use base::{Counters, DropReason, Instant};
use link::capture::LinkType;
use link::pcap;
use packet::{Memory, Packet};
use reassembly::{Coalesce, Config, Reassembly, ReassemblyContext, User, Verdict, fragment, fragment_v6};
use system::{Outcome, Scratch, run};
use wire::ip::Info;
use wire::{Version, ipv4};

use crate::cases::PROTOCOL;
use crate::world::{BOTH, Piece, part, payload};

/// Bytes of payload, and an MTU.
const CASES: [(usize, usize); 8] = [
    (1500, 1500),
    (3000, 1280),
    (9000, 1499),
    (20_001, 1500),
    (65_000, 1500),
    (65_480, 9000),
    (1300, 1280),
    (40_000, 1281),
];

pub(crate) fn judge() -> Outcome {
    let scratch = Scratch::new()?;
    for version in BOTH {
        let file = scratch.file(&format!("{version}.pcap"));
        let mut capture = pcap::PcapWriter::new(File::create(&file)?, LinkType::Raw)?;
        let mem = Memory::heap();
        let mut want = Vec::new();
        for (n, (len, mtu)) in CASES.into_iter().enumerate() {
            let piece = Piece { id: n as u32, protocol: PROTOCOL, ..part(0, 0) };
            let packet = Packet::with_data(&mem, &piece.whole(version, len)).map_err(|dry| dry.to_string())?;
            let mut fragments = cut(&mem, packet, mtu, n as u32).map_err(DropReason::name)?;
            if n % 2 == 1 {
                fragments = again(&mem, fragments, mtu, n as u32 + 100);
            }
            assert!(fragments.len() > 1);
            for fragment in &fragments {
                capture.write(Duration::from_secs(1), &fragment.to_vec())?;
            }
            want.push(payload(0, len).map(|byte| format!("{byte:02x}")).collect::<String>());
        }
        capture.flush()?;
        drop(capture);
        let (bad_check, family) =
            if version == Version::V4 { ("ip.checksum.status == 0", "ip") } else { ("ipv6.fragment.error", "ipv6") };
        let ask = |filter: &str, field: &str| {
            let mut tshark = Command::new("tshark");
            tshark.args(["-n", "-r"]).arg(&file).args([
                "-o",
                "ip.check_checksum:TRUE",
                "-Y",
                filter,
                "-T",
                "fields",
                "-e",
                field,
            ]);
            run(&mut tshark)
        };
        let got = ask(&format!("{family}.reassembled.length"), "data.data")?;
        assert!(got.lines().map(|line| line.replace(':', "")).eq(want), "{version}: other bytes");
        assert_eq!(ask(bad_check, "frame.number")?, "", "{version}: {bad_check}");
    }
    Ok(())
}

fn cut(mem: &Memory, packet: Packet, mtu: usize, id: u32) -> Result<Vec<Packet>, DropReason> {
    let mut fragments = Vec::new();
    match Version::of(packet.head())? {
        Version::V4 => fragment(mem, packet, mtu, &mut fragments)?,
        Version::V6 => fragment_v6(mem, packet, mtu, id, &mut fragments)?,
    }
    Ok(fragments)
}

/// The same datagram, reassembled for a host and fragmented at the boundaries of its children, with another
/// identification.
fn again(mem: &Memory, fragments: Vec<Packet>, mtu: usize, id: u32) -> Vec<Packet> {
    let mut reassembly = Reassembly::new(Config { coalesce: Coalesce::Off, ..Config::default() });
    let context = ReassemblyContext { user: User::Host, ..ReassemblyContext::LOCAL };
    let mut counters = Counters::ZERO;
    for pkt in fragments {
        let info = Info::parse(pkt.head(), pkt.len()).expect("a fragment");
        if let Verdict::Whole { mut pkt, .. } =
            reassembly.handle_fragment(Instant::ZERO, mem, context, pkt, &info, &mut counters)
        {
            if info.version() == Version::V4 {
                let head = pkt.head_mut().expect("a header of its own");
                ipv4::Ipv4Header::mut_from(head).expect("a header").set_id(id as u16);
                ipv4::fill_check(head).expect("a header");
            }
            return cut(mem, pkt, mtu, id).expect("the datagram was fragmented for this MTU before");
        }
    }
    Vec::new()
}
