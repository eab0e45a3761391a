//! tshark decrypts packets of each algorithm that it supports, and accepts their ICVs and all checksums.

use std::fs::File;
use std::io::BufWriter;
use std::time::Duration;

use base::{Counters, Instant};
use ipsec::Train;
use libtest_mimic::Trial;
use link::capture::LinkType;
use link::pcap::PcapWriter;
use offload::{Features, fit};
use packet::Packet;
use sim::{Flow, esp};
use system::{Need, Outcome, Scratch, decrypted, trial};
use xfrm::{Aead, Algorithm, Auth, AuthConfig, Enc};
use xfrm::{Mode, SaConfig};

use crate::scapy::{gateway, hex, key};

/// The ends of the tunnels, by family.
const ENDS: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]];

/// An algorithm by our name and by tshark's: encryption with its key, authentication with its key.
struct Suite {
    name: &'static str,
    algorithm: Algorithm,
    tshark: [(&'static str, Vec<u8>); 2],
}

fn suites() -> Vec<Suite> {
    let gcm = |name, len, icv_len, tshark| Suite {
        name,
        algorithm: Algorithm::aead(Aead::GcmAes, key(len).into(), 8 * icv_len as u16),
        tshark: [(tshark, key(len)), ("NULL", Vec::new())],
    };
    let separate = |name, (enc, cipher): (Enc, (&'static str, Vec<u8>)), (code, icv_len, len, auth): (_, _, _, _)| {
        let auth_key = AuthConfig::new(code, key(len).into(), 8 * icv_len as u16);
        Suite {
            name,
            algorithm: Algorithm::separate(enc, cipher.1.clone().into(), Some(auth_key)),
            tshark: [cipher, (auth, key(len))],
        }
    };
    let null = || (Enc::Null, ("NULL", Vec::new()));
    let cbc = |len| (Enc::CbcAes, ("AES-CBC [RFC3602]", key(len)));
    let ctr = |len| (Enc::CtrAes, ("AES-CTR [RFC3686]", key(len)));
    let md5 = (Auth::HmacMd5, 12, 16, "HMAC-MD5-96 [RFC2403]");
    let sha1 = (Auth::HmacSha1, 12, 20, "HMAC-SHA-1-96 [RFC2404]");
    let sha256_96 = (Auth::HmacSha256, 12, 32, "HMAC-SHA-256-96 [draft-ietf-ipsec-ciph-sha-256-00]");
    let sha256 = (Auth::HmacSha256, 16, 32, "HMAC-SHA-256-128 [RFC4868]");
    let sha384 = (Auth::HmacSha384, 24, 48, "HMAC-SHA-384-192 [RFC4868]");
    let sha512 = (Auth::HmacSha512, 32, 64, "HMAC-SHA-512-256 [RFC4868]");
    vec![
        gcm("gcm_128_64", 20, 8, "AES-GCM with 8 octet ICV [RFC4106]"),
        gcm("gcm_192_96", 28, 12, "AES-GCM with 12 octet ICV [RFC4106]"),
        gcm("gcm_256_128", 36, 16, "AES-GCM with 16 octet ICV [RFC4106]"),
        separate("null_hmac_md5", null(), md5),
        separate("null_hmac_sha256_96", null(), sha256_96),
        separate("cbc_128_hmac_sha1", cbc(16), sha1),
        separate("cbc_192_hmac_sha256", cbc(24), sha256),
        separate("cbc_256_hmac_sha256_96", cbc(32), sha256_96),
        separate("cbc_256_hmac_sha384", cbc(32), sha384),
        separate("cbc_256_hmac_sha512", cbc(32), sha512),
        separate("ctr_128_hmac_sha1", ctr(20), sha1),
        separate("ctr_256_hmac_sha256", ctr(36), sha256),
    ]
}

pub(crate) fn trials() -> Vec<Trial> {
    let of = |suite: Suite| trial(format!("tshark/{}", suite.name), &[Need::TSHARK], move || judge(&suite));
    suites().into_iter().map(of).collect()
}

/// Writes a capture of packets of all sizes in tunnel and transport mode, raw and in UDP, and has it decrypted.
fn judge(suite: &Suite) -> Outcome {
    let scratch = Scratch::new()?;
    let path = scratch.file("sealed.pcap");
    let mut file = PcapWriter::new(BufWriter::new(File::create(&path)?), LinkType::Raw)?;
    let (mut rows, mut want) = (Vec::new(), Vec::new());
    for (at, outer) in ENDS.iter().enumerate() {
        let flow = if at == 0 { Flow::new("10.1.0.1", "10.2.0.1") } else { Flow::new("fd00:1::1", "fd00:2::1") };
        for (spi, mode, udp) in [(1, Mode::Tunnel, false), (2, Mode::Tunnel, true), (3, Mode::Transport, false)] {
            let (src, dst) = match mode {
                Mode::Tunnel => (outer[0].to_owned(), outer[1].to_owned()),
                _ => (flow.src.to_string(), flow.dst.to_string()),
            };
            let spi = 0x1000 + spi;
            let config = SaConfig { algorithm: suite.algorithm.clone(), ..esp(&src, &dst, spi, mode, udp) };
            rows.push(row(suite, at, [&src, &dst], spi));
            let (mem, mut ipsec, id) = gateway(&config);
            let bytes = |packet: &[u8]| Packet::with_data(&mem, packet).expect("memory");
            let (ip, ping) = if at == 0 { ("ip:", "icmp") } else { ("ipv6:", "icmpv6") };
            let ip = if mode == Mode::Tunnel { ip } else { "" };
            let mut send = |pkt: Packet, segs: usize, inside: &str| -> Outcome {
                let (mut frames, mut counters) = (Vec::new(), Counters::ZERO);
                let sealed = ipsec.seal(&mem, Instant::ZERO, id, pkt, Train::None, 1500, &mut frames, &mut counters);
                sealed.map_err(|reason| format!("not sealed: {reason:?}"))?;
                assert_eq!(frames.len(), segs);
                for frame in frames {
                    let mut plain = Vec::new();
                    fit(&mem, &Features::NONE, frame, 0, &mut plain).expect("a finished packet");
                    file.write(Duration::ZERO, &plain[0].to_vec())?;
                    want.push(format!("{ip}{inside}"));
                }
                Ok(())
            };
            for len in [8, 9, 10, 11, 12, 13, 56, 1300] {
                send(bytes(&flow.ping(len as u16, len)), 1, ping)?;
            }
            send(flow.fat_tcp(&mem, 7, 5 * 1200 + 11, 1200), 6, "tcp")?;
        }
    }
    file.flush()?;
    let inside = decrypted(&path, &rows)?;
    assert_eq!(inside.len(), want.len());
    for (inside, want) in inside.iter().zip(&want) {
        assert!(inside.starts_with(want.as_str()), "{inside} is no {want}");
    }
    Ok(())
}

/// An SA as a row of tshark's table.
fn row(suite: &Suite, family: usize, [src, dst]: [&str; 2], spi: u32) -> String {
    let family = ["IPv4", "IPv6"][family];
    let [(enc, enc_key), (auth, auth_key)] = &suite.tshark;
    let hex = |key: &[u8]| if key.is_empty() { String::new() } else { format!("0x{}", hex(key)) };
    let (enc_key, auth_key) = (hex(enc_key), hex(auth_key));
    format!("\"{family}\",\"{src}\",\"{dst}\",\"{spi:#010x}\",\"{enc}\",\"{enc_key}\",\"{auth}\",\"{auth_key}\"")
}
