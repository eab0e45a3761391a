//! ESP against scapy, whose encoder and decoder share no code with fatpath's: each end decrypts the other's packets.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base::{Counters, Instant, SaId};
use ipsec::{Ipsec, Opened, Train};
use libtest_mimic::Trial;
use offload::{Features, fit};
use packet::{Memory, Packet};
use serde_json::{Value, json};
use sim::{Flow, esp, unique_mask};
use system::{Need, Outcome, trial};
use wire::Version;
use xfrm::{Aead, Algorithm, Auth, AuthConfig, Enc};
use xfrm::{Mode, SaConfig, SaFlags};

/// Debian's Python, also if another one is first on the path.
const PYTHON: &str = "/usr/bin/python3";

const NEEDS: &[Need] = &[
    Need::File { path: "/usr/lib/python3/dist-packages/scapy/layers/ipsec.py", package: "python3-scapy" },
    Need::File { path: "/usr/lib/python3/dist-packages/cryptography/__init__.py", package: "python3-cryptography" },
];

/// An algorithm by our name and by scapy's.
struct Suite {
    name: &'static str,
    algorithm: Algorithm,
    /// Encryption and its key, and authentication and its key.
    scapy: Value,
    /// Whether scapy supports extended sequence numbers with it: separate authentication leaves the upper half out.
    esn: bool,
}

fn suites() -> Vec<Suite> {
    let aead = |name, algorithm, crypt, key: Vec<u8>, icv_len: usize| Suite {
        name,
        algorithm,
        scapy: json!({ "crypt": crypt, "key": hex(&key), "icv": icv_len }),
        esn: true,
    };
    let gcm = |name, len| aead(name, Algorithm::aead(Aead::GcmAes, key(len).into(), 128), "AES-GCM", key(len), 16);
    let ccm = |name, len, icv_len| {
        aead(name, Algorithm::aead(Aead::CcmAes, key(len).into(), 8 * icv_len as u16), "AES-CCM", key(len), icv_len)
    };
    let chacha = Algorithm::aead(Aead::ChaCha20Poly1305, key(36).into(), 128);
    let separate = |name, (enc, crypt, len): (Enc, _, _), (code, auth, auth_len, icv_len): (_, _, _, _)| Suite {
        name,
        algorithm: Algorithm::separate(
            enc,
            key(len).into(),
            Some(AuthConfig::new(code, key(auth_len).into(), 8 * icv_len as u16)),
        ),
        scapy: json!({ "crypt": crypt, "key": hex(&key(len)), "auth": auth, "auth_key": hex(&key(auth_len)) }),
        esn: false,
    };
    let null = || (Enc::Null, "NULL", 0);
    let cbc = |len| (Enc::CbcAes, "AES-CBC", len);
    let ctr = |len| (Enc::CtrAes, "AES-CTR", len);
    let sha1 = (Auth::HmacSha1, "HMAC-SHA1-96", 20, 12);
    let sha256 = (Auth::HmacSha256, "SHA2-256-128", 32, 16);
    vec![
        Suite { name: "null", algorithm: Algorithm::null(), scapy: json!({ "crypt": "NULL", "key": "" }), esn: true },
        gcm("gcm_128", 20),
        gcm("gcm_192", 28),
        gcm("gcm_256", 36),
        aead("chacha20_poly1305", chacha, "CHACHA20-POLY1305", key(36), 16),
        ccm("ccm_128_64", 19, 8),
        ccm("ccm_192_96", 27, 12),
        ccm("ccm_256_128", 35, 16),
        separate("null_hmac_sha1", null(), sha1),
        separate("null_hmac_md5", null(), (Auth::HmacMd5, "HMAC-MD5-96", 16, 12)),
        separate("cbc_128_hmac_sha1", cbc(16), sha1),
        separate("cbc_192_hmac_sha256", cbc(24), sha256),
        separate("cbc_256_hmac_sha384", cbc(32), (Auth::HmacSha384, "SHA2-384-192", 48, 24)),
        separate("cbc_256_hmac_sha512", cbc(32), (Auth::HmacSha512, "SHA2-512-256", 64, 32)),
        separate("cbc_128_cmac", cbc(16), (Auth::CmacAes, "AES-CMAC-96", 16, 12)),
        separate("ctr_128_hmac_sha256", ctr(20), sha256),
        separate("ctr_256_hmac_sha256", ctr(36), sha256),
    ]
}

/// The sequence numbers before the first packet: of a new SA, and right before the lower half wraps.
const STARTS: [(bool, u64); 3] = [(false, 0), (true, 0), (true, (1 << 32) - 3)];

/// The ends of a tunnel, by family.
const ENDS: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]];

/// Sizes of payload around which padding changes.
const SIZES: [usize; 12] = [0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 1300];

pub(crate) fn trials() -> Vec<Trial> {
    let of = |suite: Suite| {
        trial(format!("scapy/{}", suite.name), NEEDS, move || {
            for mode in [Mode::Tunnel, Mode::Transport] {
                cases(&suite, mode, false)?;
                cases(&suite, mode, true)?;
            }
            Ok(())
        })
    };
    suites().into_iter().map(of).collect()
}

/// Both directions, for each outer and inner family, with and without extended sequence numbers.
fn cases(suite: &Suite, mode: Mode, udp: bool) -> Outcome {
    let mut scapy = Scapy::start()?;
    for flow in [Flow::new("10.1.0.1", "10.2.0.1"), Flow::new("fd00:1::1", "fd00:2::1")] {
        for [src, dst] in ends(mode, &flow) {
            // Scapy 2.5 leaves the next header of IPv6 as it is when it takes off a UDP header in transport mode.
            if udp && mode == Mode::Transport && flow.version() == Version::V6 {
                continue;
            }
            for (esn, start) in STARTS.into_iter().filter(|(esn, _)| suite.esn || !esn) {
                let config = SaConfig {
                    algorithm: suite.algorithm.clone(),
                    replay_window: 64,
                    flags: SaFlags { esn, af_unspec: mode == Mode::Tunnel, ..SaFlags::default() },
                    oseq: start,
                    seq: start,
                    ..esp(&src, &dst, 0x0102_0304, mode, udp)
                };
                let mut sa = suite.scapy.clone();
                (sa["spi"], sa["udp"], sa["esn"]) = (config.spi.0.into(), udp.into(), esn.into());
                if mode == Mode::Tunnel {
                    sa["ends"] = json!([src, dst]);
                }
                let case =
                    format!("{mode:?}, UDP {udp}, {src} to {dst}, inside {:?}, ESN {esn} from {start}", flow.version());
                opens(&mut scapy, &config, &sa, &flow).map_err(|why| format!("{case}: {}", message(&why)))?;
                seals(&mut scapy, &config, &sa, &flow).map_err(|why| format!("{case}: {}", message(&why)))?;
            }
        }
    }
    Ok(())
}

/// Addresses of ESP: both families in tunnel mode, the packet's own in transport mode.
fn ends(mode: Mode, flow: &Flow) -> Vec<[String; 2]> {
    match mode {
        Mode::Tunnel => ENDS.map(|ends| ends.map(str::to_owned)).to_vec(),
        _ => vec![[flow.src.to_string(), flow.dst.to_string()]],
    }
}

/// Scapy encrypts, fatpath decrypts.
fn opens(scapy: &mut Scapy, config: &SaConfig, sa: &Value, flow: &Flow) -> Outcome {
    let (mem, mut ipsec, _) = gateway(config);
    for (at, packet) in packets(flow).into_iter().enumerate() {
        let sealed = scapy.ask(sa, "encrypt", config.seq + 1 + at as u64, &packet)?;
        let pkt = Packet::with_data(&mem, &sealed).expect("memory");
        let (mut opened, mut counters) = (Opened::default(), Counters::ZERO);
        ipsec.open(&mem, Instant::ZERO, pkt, &mut opened, &mut counters);
        let [inside] = &opened.packets[..] else {
            return Err(format!("packet {at} is refused: {:?} {counters:?} {sealed:02x?}", opened.drops).into());
        };
        same(&inside.to_vec(), &packet)?;
    }
    Ok(())
}

/// Fatpath encrypts single packets and a super-packet, and scapy decrypts.
fn seals(scapy: &mut Scapy, config: &SaConfig, sa: &Value, flow: &Flow) -> Outcome {
    let (mem, mut ipsec, id) = gateway(config);
    let single = packets(flow).into_iter().map(|packet| Packet::with_data(&mem, &packet).expect("memory"));
    let fat = [flow.fat_tcp(&mem, 7, 5 * 1200 + 11, 1200), flow.fat_udp(&mem, 4 * 900 + 1, 900)];
    let mut seq = config.oseq;
    for pkt in single.chain(fat) {
        let mut want = Vec::new();
        let mut copy = Packet::with_data(&mem, &pkt.to_vec()).expect("memory");
        (copy.meta.csum, copy.meta.cut) = (pkt.meta.csum, pkt.meta.cut);
        fit(&mem, &Features::NONE, copy, 0, &mut want).expect("a packet that can be cut");
        let mut frames = Vec::new();
        let mut counters = Counters::ZERO;
        let sealed = ipsec.seal(&mem, Instant::ZERO, id, pkt, Train::None, 1500, &mut frames, &mut counters);
        sealed.map_err(|reason| format!("not sealed: {reason:?}"))?;
        assert_eq!(frames.len(), want.len());
        for (frame, want) in frames.into_iter().zip(want) {
            seq += 1;
            let mut plain = Vec::new();
            fit(&mem, &Features::NONE, frame, 0, &mut plain).expect("a finished packet");
            same(&scapy.ask(sa, "decrypt", seq, &plain[0].to_vec())?, &want.to_vec())?;
        }
    }
    Ok(())
}

pub(crate) fn gateway(config: &SaConfig) -> (Memory, Ipsec, SaId) {
    let mut ipsec = Ipsec::new();
    let id = ipsec.add_sa(config, unique_mask()).expect("a good SA");
    (Memory::heap(), ipsec, id)
}

/// Datagrams, pings and segments of every size.
fn packets(flow: &Flow) -> Vec<Vec<u8>> {
    let small = SIZES.iter().flat_map(|&len| [flow.udp(len), flow.ping(len as u16, len)]);
    small.chain([flow.tcp(1, 0), flow.tcp(1, 1201)]).collect()
}

/// Tells whether two packets are the same, byte for byte.
fn same(got: &[u8], want: &[u8]) -> Outcome {
    if got == want { Ok(()) } else { Err(format!("inside is {got:02x?}, not {want:02x?}").into()) }
}

fn message(failed: &libtest_mimic::Failed) -> &str {
    failed.message().unwrap_or_default()
}

pub(crate) fn key(len: u8) -> Vec<u8> {
    (0..len).map(|at| at.wrapping_mul(29) ^ 0x35).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A running scapy.
struct Scapy {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Scapy {
    fn start() -> Outcome<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/esp_peer.py");
        let mut command = Command::new(PYTHON);
        let mut child =
            command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Self { child, input, output })
    }

    /// Encrypts or decrypts a packet with scapy, under the full sequence number `seq`.
    fn ask(&mut self, sa: &Value, what: &str, seq: u64, packet: &[u8]) -> Outcome<Vec<u8>> {
        let request = json!({ "sa": sa, "do": what, "seq": seq, "packet": hex(packet) });
        writeln!(self.input, "{request}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let reply: Value = serde_json::from_str(&line)?;
        let Some(text) = reply["packet"].as_str() else {
            return Err(format!("scapy does not {what} {packet:02x?}: {}", reply["error"]).into());
        };
        let octets = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16));
        Ok(octets.collect::<Result<_, _>>()?)
    }
}

impl Drop for Scapy {
    fn drop(&mut self) {
        // Both fail only if it has ended and been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
