//! Properties of every algorithm, and packets that another program made.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipsec::engine::{Cipher, OpenError};
use xfrm::{Aead, Algorithm, AlgorithmError, Auth, AuthConfig, Enc, Name};

fn hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// The algorithm of that name.
fn named(name: &str, key: Vec<u8>, auth: Option<(&str, Vec<u8>)>, icv_bits: u16) -> Algorithm {
    if let Some(name) = Aead::by_name(name) {
        return Algorithm::aead(name, key.into(), icv_bits);
    }
    let auth = auth.map(|(name, key)| AuthConfig::new(Auth::by_name(name).unwrap(), key.into(), icv_bits));
    Algorithm::separate(Enc::by_name(name).unwrap(), key.into(), auth)
}

/// Every algorithm with every key and ICV length; key bytes are `fill`.
fn every(fill: u8) -> Vec<Algorithm> {
    let mut all = vec![Algorithm::null()];
    let key = |len: usize| vec![fill; len];
    for (name, lens, icvs) in [
        ("rfc4106(gcm(aes))", &[20, 28, 36][..], &[64, 96, 128][..]),
        ("rfc4543(gcm(aes))", &[20, 28, 36], &[128]),
        ("rfc4309(ccm(aes))", &[19, 27, 35], &[64, 96, 128]),
        ("rfc7539esp(chacha20,poly1305)", &[36], &[128]),
    ] {
        for &len in lens {
            all.extend(icvs.iter().map(|&icv_bits| named(name, key(len), None, icv_bits)));
        }
    }
    for (name, lens) in [("ecb(cipher_null)", &[0][..]), ("cbc(aes)", &[16, 24, 32]), ("rfc3686(ctr(aes))", &[20, 36])]
    {
        for &len in lens {
            for &auth in Auth::ALL {
                for icv_bits in [96, auth.full_bits() / 2, auth.full_bits()] {
                    all.push(named(name, key(len), Some((auth.name(), key(16))), icv_bits));
                }
            }
        }
    }
    all
}

/// A sealed packet with a text of this many bytes.
fn sealed(cipher: &Cipher, number: u64, high: Option<u32>, len: usize) -> Vec<u8> {
    let header = [0x1000u32.to_be_bytes(), (number as u32).to_be_bytes()].concat();
    let text: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x5a).collect();
    let mut packet = [header, vec![0; cipher.iv_len()], text, vec![0; cipher.icv_len()]].concat();
    cipher.seal(&mut packet, number.to_be_bytes(), high);
    packet
}

fn open(cipher: &Cipher, packet: &[u8], high: Option<u32>) -> Result<Vec<u8>, OpenError> {
    cipher.open(&mut packet.to_vec(), high).map(|text| text.to_vec())
}

#[test]
fn packets_that_scapy_made_open_and_are_made_alike() {
    let mut tried = BTreeMap::new();
    let vectors = include_str!("../vectors/scapy.txt").lines().filter(|line| !line.starts_with('#'));
    for (n, line) in vectors.enumerate() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [name, key, auth, auth_key, icv_len, high, payload, packet] = fields[..] else { panic!("{line}") };
        let bytes = |field: &str| if field == "-" { vec![] } else { hex(field) };
        let with = (auth != "-").then(|| (auth, bytes(auth_key)));
        let cipher = Cipher::new(&named(name, bytes(key), with, 8 * icv_len.parse::<u16>().unwrap())).unwrap();
        let high = (high != "-").then(|| u32::from_str_radix(high, 16).unwrap());
        let (payload, packet) = (bytes(payload), bytes(packet));
        let text = open(&cipher, &packet, high).unwrap_or_else(|err| panic!("{n}, {line}: {err:?}"));
        let pad_len = text.len() - payload.len() - 2;
        let trailer: Vec<u8> = (1..=pad_len as u8).chain([pad_len as u8, 17]).collect();
        assert_eq!(text, [payload, trailer].concat(), "{n}, {line}");
        assert_eq!(text.len() % cipher.align(), 0);
        if cipher.iv_len() <= 8 {
            let iv = packet[8..].first_chunk().copied().unwrap();
            let mut again = [&packet[..8], &vec![0; cipher.iv_len()], &text, &vec![0; cipher.icv_len()]].concat();
            cipher.seal(&mut again, iv, high);
            assert_eq!(again, packet, "{n}, {line}");
        }
        *tried.entry((name, auth, high.is_some())).or_insert(0) += 1;
    }
    // Four AEAD ciphers; three ciphers with six codes each; each with and without ESN.
    assert_eq!(tried.len(), (4 + 3 * 6) * 2, "{tried:?}");
}

#[test]
fn every_algorithm_opens_what_it_seals_at_every_length() {
    for algorithm in every(3) {
        let cipher = Cipher::new(&algorithm).unwrap();
        for (len, high) in (0..=300).step_by(cipher.align()).flat_map(|len| [(len, None), (len, Some(len as u32))]) {
            let packet = sealed(&cipher, 7, high, len);
            assert_eq!(packet.len(), cipher.overhead() + len);
            let want: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x5a).collect();
            for trailer in [0, 2, 5, 16].into_iter().filter(|&trailer| trailer <= len) {
                let (text, trailer) = want.split_at(len - trailer);
                let mut from = packet.clone();
                from[8..].fill(0xee);
                cipher.seal_from(&mut from, text, trailer, 7u64.to_be_bytes(), high);
                assert_eq!(from, packet, "{algorithm:?}, {} bytes and {}", text.len(), trailer.len());
            }
            assert_eq!(open(&cipher, &packet, high), Ok(want), "{algorithm:?}, {len} bytes");
        }
    }
}

//= test RFC 4303 §3.4.4.1 wrong-icv
#[test]
fn one_wrong_bit_anywhere_is_refused_by_every_algorithm() {
    for algorithm in every(3).into_iter().filter(|it| !it.is_null()) {
        let cipher = Cipher::new(&algorithm).unwrap();
        for high in [None, Some(5)] {
            let packet = sealed(&cipher, 7, high, 48);
            for bit in 0..packet.len() * 8 {
                let mut forged = packet.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open(&cipher, &forged, high), Err(OpenError::IcvWrong), "{algorithm:?}, bit {bit}");
            }
            let other = if high.is_none() { Some(0) } else { Some(4) };
            assert_eq!(open(&cipher, &packet, other), Err(OpenError::IcvWrong), "{algorithm:?}");
            for len in 0..packet.len() {
                assert_eq!(open(&cipher, &packet[..len], high), Err(OpenError::IcvWrong), "{algorithm:?}, {len} bytes");
            }
            let longer = [&packet[..], &[0]].concat();
            assert_eq!(open(&cipher, &longer, high), Err(OpenError::IcvWrong), "{algorithm:?}");
        }
    }
}

#[test]
fn a_packet_of_another_key_is_refused_by_every_algorithm() {
    for (ours, theirs) in every(3).iter().zip(every(4)).filter(|(ours, _)| !ours.is_null()) {
        let (ours, theirs) = (Cipher::new(ours).unwrap(), Cipher::new(&theirs).unwrap());
        assert_eq!(open(&ours, &sealed(&theirs, 7, None, 48), None), Err(OpenError::IcvWrong));
    }
}

#[test]
fn encrypted_bytes_do_not_show_and_null_ones_do() {
    for algorithm in every(3) {
        let cipher = Cipher::new(&algorithm).unwrap();
        let packet = sealed(&cipher, 7, None, 64);
        let text: Vec<u8> = (0..64).map(|at| at ^ 0x5a).collect();
        let in_clear = !algorithm.encrypts();
        assert_eq!(packet[8 + cipher.iv_len()..][..64] == text, in_clear, "{algorithm:?}");
    }
}

/// NIST SP 800-38A appendix C: an initialisation vector of CBC is unpredictable without the key.
#[test]
fn cbc_vectors_do_not_repeat_or_show_their_numbers() {
    let cipher = |fill| Cipher::new(&named("cbc(aes)", vec![fill; 16], None, 0)).unwrap();
    let (ours, theirs) = (cipher(3), cipher(4));
    let iv = |cipher: &Cipher, number| sealed(cipher, number, None, 16)[8..24].to_vec();
    let mut seen: Vec<_> = (0..2000).map(|number| iv(&ours, number)).collect();
    for pair in seen.windows(2) {
        let bits: u32 = pair[0].iter().zip(&pair[1]).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert!((24..104).contains(&bits), "numbers next to each other differ in {bits} of 128 bits");
    }
    assert_eq!(iv(&ours, 1), iv(&ours, 1));
    assert_ne!(iv(&ours, 1), iv(&theirs, 1));
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 2000);
    // Nor is the vector the cipher's output for the number: a plaintext that begins with the number would reveal it.
    let block: Vec<u8> = [[0; 8], 1u64.to_be_bytes()].concat();
    let mut packet = [vec![0; 8], vec![0; 16], block].concat();
    ours.seal(&mut packet, [0; 8], None);
    assert_ne!(packet[24..], iv(&ours, 1));
}

#[test]
fn lengths_that_an_algorithm_does_not_have_are_refused() {
    let key = |algorithm: &Algorithm| match Cipher::new(algorithm).err() {
        Some(AlgorithmError::KeyLen { name, len, .. }) => Some((name, len)),
        Some(other) => panic!("{other}"),
        None => None,
    };
    for len in 0..80 {
        for (name, right) in [
            ("rfc4106(gcm(aes))", &[20, 28, 36][..]),
            ("rfc4543(gcm(aes))", &[20, 28, 36]),
            ("rfc4309(ccm(aes))", &[19, 27, 35]),
            ("rfc7539esp(chacha20,poly1305)", &[36]),
            ("cbc(aes)", &[16, 24, 32]),
            ("rfc3686(ctr(aes))", &[20, 28, 36]),
        ] {
            let want = (!right.contains(&len)).then_some((name, len));
            assert_eq!(key(&named(name, vec![0; len], None, 128)), want);
        }
        for &auth in Auth::ALL {
            let right = match auth {
                Auth::CmacAes => [16, 24, 32].contains(&len),
                Auth::XcbcAes => len == 16,
                _ => len > 0,
            };
            let algorithm = named("ecb(cipher_null)", vec![], Some((auth.name(), vec![0; len])), 96);
            assert_eq!(key(&algorithm), (!right).then_some((auth.name(), len)));
        }
    }
    for icv_bits in 0..640 {
        let icv = |algorithm: &Algorithm| match Cipher::new(algorithm).err() {
            Some(AlgorithmError::IcvBits { bits, .. }) => Some(bits),
            Some(other) => panic!("{other}"),
            None => None,
        };
        for (name, key_len) in [("rfc4106(gcm(aes))", 20), ("rfc4309(ccm(aes))", 19)] {
            let want = (![64, 96, 128].contains(&icv_bits)).then_some(icv_bits);
            assert_eq!(icv(&named(name, vec![0; key_len], None, icv_bits)), want, "{name}");
        }
        for &auth in Auth::ALL {
            let algorithm = named("ecb(cipher_null)", vec![], Some((auth.name(), vec![0; 16])), icv_bits);
            let is_right = (32..=auth.full_bits()).contains(&icv_bits) && icv_bits % 8 == 0;
            assert_eq!(icv(&algorithm), (!is_right).then_some(icv_bits), "{auth:?}");
        }
    }
}

#[test]
fn key_is_not_in_debug_output() {
    for algorithm in every(0xab) {
        let cipher = Cipher::new(&algorithm).unwrap();
        let shown = format!("{algorithm:?} {cipher:?}").to_lowercase();
        assert!(!shown.contains("ab") && !shown.contains("171"), "{shown}");
    }
}

#[test]
fn several_threads_use_one_cipher_at_once() {
    for algorithm in every(3) {
        let cipher = Arc::new(Cipher::new(&algorithm).unwrap());
        let want = sealed(&cipher, 7, Some(1), 64);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| assert_eq!(sealed(&cipher, 7, Some(1), 64), want));
            }
        });
    }
}
