//! `NETLINK_XFRM` with hostile input: every message gets a reply, and none causes a panic.

use std::collections::VecDeque;

use netlink::message::{Header, Messages, Writer, flag};
use netlink::xfrm::nums::{attr, msg};
use netlink::xfrm::{Counts, Database, NewSa, NewSpi, Policy, PolicyQuery, Sa, SaQuery, Xfrm};
use netlink::{Error, Groups, Outbox, Session};
use xfrm::MAX_KEY;

/// Empty database that accepts every SA and policy, and records them.
#[derive(Debug, Default)]
struct Empty {
    sas: Vec<NewSa>,
    policies: Vec<Policy>,
}

const NOT_THERE: i32 = 3;

impl Database for Empty {
    fn add_sa(&mut self, sa: Box<NewSa>, _: bool) -> Result<(), Error> {
        self.sas.push(*sa);
        Ok(())
    }

    fn find_sa(&mut self, _: &SaQuery) -> Result<Sa, Error> {
        Err(Error::new(NOT_THERE))
    }

    fn remove_sa(&mut self, _: &SaQuery) -> Result<Sa, Error> {
        Err(Error::new(NOT_THERE))
    }

    fn expire_sa(&mut self, _: &SaQuery, _: bool) -> Result<(), Error> {
        Err(Error::new(NOT_THERE))
    }

    fn set_counts(&mut self, _: &SaQuery, _: Counts) -> Result<(), Error> {
        Ok(())
    }

    fn alloc_spi(&mut self, _: Box<NewSpi>) -> Result<Sa, Error> {
        Err(Error::new(NOT_THERE))
    }

    fn flush_sas(&mut self, _: u8) -> Result<bool, Error> {
        Ok(true)
    }

    fn sas(&mut self, _: u64, _: usize) -> Result<VecDeque<(u64, Sa)>, Error> {
        Ok(VecDeque::new())
    }

    fn count_sas(&mut self) -> Result<u32, Error> {
        Ok(u32::MAX)
    }

    fn add_policy(&mut self, policy: Box<Policy>, _: bool) -> Result<(), Error> {
        self.policies.push(*policy);
        Ok(())
    }

    fn find_policy(&mut self, _: &PolicyQuery, _: bool) -> Result<Policy, Error> {
        Ok(Policy::default())
    }

    fn flush_policies(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    fn policies(&mut self, _: u64, _: usize) -> Result<VecDeque<(u64, Policy)>, Error> {
        Ok(VecDeque::new())
    }

    fn count_policies(&mut self) -> Result<[u32; 3], Error> {
        Ok([u32::MAX, 1, 2])
    }

    fn defaults(&mut self) -> Result<[bool; 3], Error> {
        Ok([true, false, true])
    }

    fn set_defaults(&mut self, _: [Option<bool>; 3]) -> Result<(), Error> {
        Ok(())
    }
}

/// Sends a message of `kind` with that payload, and returns the error in its acknowledgement; `None` for another reply.
fn ask(database: Empty, privileged: bool, kind: u16, payload: &[u8]) -> (Option<i32>, Empty) {
    let mut writer = Writer::default();
    let header = Header { kind, flags: flag::REQUEST | flag::ACK, seq: 7, port: 0 };
    writer.message(header, |w| w.fixed(payload));
    let (mut xfrm, mut outbox) = (Xfrm::new(database), Outbox::default());
    let mut session = Session::new(privileged);
    session.bind(9, 0).expect("it is free");
    session.handle(writer.as_bytes(), &mut xfrm, Groups::default(), &mut outbox);
    let last = outbox.iter().last().expect("an answer").1.to_vec();
    let answer = Messages::new(&last).next().expect("a message");
    assert_eq!(answer.header.seq, 7);
    let error = (answer.header.kind == 2).then(|| answer.payload().first_chunk().map(|it| -i32::from_ne_bytes(*it)));
    (error.flatten(), std::mem::take(xfrm.database_mut()))
}

/// SA as in a request of `ip xfrm state add`: tunnel mode, AES-GCM, ESN.
fn sa() -> Vec<u8> {
    let mut bytes = vec![0; 224];
    bytes[40..42].copy_from_slice(&2_u16.to_ne_bytes());
    bytes[56..60].copy_from_slice(&[192, 0, 2, 2]);
    bytes[72..76].copy_from_slice(&[0, 0, 0x10, 0]);
    bytes[76] = 50;
    bytes[80..84].copy_from_slice(&[192, 0, 2, 1]);
    bytes[96..128].fill(0xff);
    bytes[212..214].copy_from_slice(&2_u16.to_ne_bytes());
    (bytes[214], bytes[216]) = (1, 128);
    let mut w = Writer::default();
    let mut aead = vec![0; 72 + 20];
    aead[..17].copy_from_slice(b"rfc4106(gcm(aes))");
    aead[64..68].copy_from_slice(&160_u32.to_ne_bytes());
    aead[68..72].copy_from_slice(&128_u32.to_ne_bytes());
    w.put(attr::ALG_AEAD, &aead);
    let esn: Vec<u8> = [4, 0, 0, 0, 0, 128, 0, 0, 0, 0].iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
    w.put(attr::REPLAY_ESN_VAL, &esn);
    w.put(attr::MARK, &[5, 0, 0, 0, 255, 0, 0, 0]);
    w.put(attr::ENCAP, &[&[2, 0, 0x11, 0x94, 0x11, 0x94][..], &[0; 18]].concat());
    bytes.extend(w.as_bytes());
    bytes
}

/// Policy with one template.
fn policy() -> Vec<u8> {
    let mut bytes = vec![0; 168];
    bytes[40..42].copy_from_slice(&2_u16.to_ne_bytes());
    (bytes[42], bytes[43], bytes[160]) = (24, 24, 1);
    let mut tmpl = vec![0; 64];
    tmpl[..4].copy_from_slice(&[192, 0, 2, 2]);
    (tmpl[20], tmpl[48]) = (50, 1);
    let mut w = Writer::default();
    w.put(attr::TMPL, &tmpl);
    bytes.extend(w.as_bytes());
    bytes
}

#[test]
fn sa_and_policy_are_decoded_with_every_attribute() {
    let (error, got) = ask(Empty::default(), true, msg::NEW_SA, &sa());
    assert_eq!((error, got.sas.len()), (Some(0), 1));
    let sa = &got.sas[0];
    assert_eq!(
        (sa.info.spi, sa.replay_window(), sa.mark.value, sa.algorithm.name()),
        (0x1000, 128, 5, "rfc4106(gcm(aes))")
    );
    assert!(!format!("{sa:?}").contains("[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"), "{sa:?}");
    let (error, got) = ask(Empty::default(), true, msg::NEW_POLICY, &policy());
    assert_eq!((error, got.policies[0].templates.len(), got.policies[0].info.sel.prefixlen_d), (Some(0), 1, 24));
}

/// Prefix lengths from which Linux hashes policies: its defaults are no change, strongSwan may set them.
#[test]
fn hash_thresholds_other_than_linux_defaults_are_refused() {
    for (kind, bits, want) in [
        (attr::SPD_IPV4_HTHRESH, [32, 32], 0),
        (attr::SPD_IPV6_HTHRESH, [128, 128], 0),
        (attr::SPD_IPV4_HTHRESH, [24, 32], 95),
        (attr::SPD_IPV6_HTHRESH, [128, 0], 95),
        (attr::SPD_IPV4_HTHRESH, [33, 32], 22),
    ] {
        let mut w = Writer::default();
        w.fixed(&[0; 4]);
        w.put(kind, &bits);
        let (error, _) = ask(Empty::default(), true, msg::NEW_SPD_INFO, w.as_bytes());
        assert_eq!(error, Some(want), "{kind}: {bits:?}");
    }
}

/// An accepted key is written twice into a message of at most 64 KiB.
#[test]
fn sa_key_too_long_for_its_dump_message_is_refused() {
    for (len, refused) in [(16, 0), (MAX_KEY, 0), (MAX_KEY + 1, 22), (65_000, 22)] {
        let mut bytes = sa()[..224].to_vec();
        let mut w = Writer::default();
        let mut auth = vec![0; 68 + len];
        auth[..12].copy_from_slice(b"hmac(sha256)");
        auth[64..68].copy_from_slice(&(8 * len as u32).to_ne_bytes());
        w.put(attr::ALG_AUTH, &auth);
        let mut enc = vec![0; 68];
        enc[..11].copy_from_slice(b"cipher_null");
        w.put(attr::ALG_CRYPT, &enc);
        bytes.extend(w.as_bytes());
        // Without ESN, which requires an ESN replay window.
        bytes[216] = 0;
        let (error, got) = ask(Empty::default(), true, msg::NEW_SA, &bytes);
        assert_eq!((error, got.sas.len()), (Some(refused), usize::from(refused == 0)), "{len} bytes");
    }
}

#[test]
fn xfrm_request_of_unprivileged_client_is_refused() {
    for kind in [msg::NEW_SA, msg::GET_SA, msg::FLUSH_SA, msg::GET_POLICY, msg::GET_SAD_INFO, msg::GET_DEFAULT] {
        assert_eq!(ask(Empty::default(), false, kind, &sa()).0, Some(1), "{kind:#x}");
    }
}

#[test]
fn truncated_or_altered_xfrm_message_is_answered() {
    for (kind, whole) in [(msg::NEW_SA, sa()), (msg::UPD_SA, sa()), (msg::NEW_POLICY, policy())] {
        for len in 0..whole.len() {
            let (error, _) = ask(Empty::default(), true, kind, &whole[..len]);
            assert!(error.is_some_and(|error| error >= 0), "{kind:#x} of {len} bytes");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 4, 0x7f, 0x80, 0xff] {
                let mut altered = whole.clone();
                altered[at] = value;
                let (error, _) = ask(Empty::default(), true, kind, &altered);
                assert!(error.is_some_and(|error| error >= 0), "{kind:#x}: byte {at} is {value}");
            }
        }
    }
}

#[test]
fn every_xfrm_type_with_any_payload_is_answered() {
    for kind in 16..64 {
        for filler in [0, 1, 2, 0xff] {
            for len in [0, 1, 3, 4, 24, 48, 64, 168, 176, 224, 232, 280, 400] {
                ask(Empty::default(), true, kind, &vec![filler; len]);
            }
        }
    }
}
