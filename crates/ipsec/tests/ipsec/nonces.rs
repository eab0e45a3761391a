//! The register of nonces: accepted and refused pairs. Release builds have none.
#![cfg(debug_assertions)]

use std::panic::AssertUnwindSafe;

use crate::common::{NAT_T, Pair, cbc, fat, gcm, mask, sa, udp_packet};
use base::{Counters, Instant};
use ipsec::{Ipsec, Train};
use packet::{Memory, Packet};
use wire::{Spi, Version};
use xfrm::{Aead, Algorithm, Enc, SaConfig};

fn algorithms() -> [Algorithm; 6] {
    let key = |len| vec![9; len].into();
    [
        gcm(36, 16),
        cbc(16, 12),
        Algorithm::separate(Enc::CtrAes, key(20), None),
        Algorithm::aead(Aead::GmacAes, key(20), 128),
        Algorithm::aead(Aead::CcmAes, key(19), 64),
        Algorithm::aead(Aead::ChaCha20Poly1305, key(36), 128),
    ]
}

fn seal_one(node: &mut Ipsec, sa: base::SaId, mem: &Memory) {
    let pkt = Packet::with_data(mem, &udp_packet(Version::V4, 9)).unwrap();
    let mut counters = Counters::ZERO;
    node.seal(mem, Instant::ZERO, sa, pkt, Train::None, 1500, &mut Vec::new(), &mut counters).unwrap();
}

#[test]
fn one_key_in_both_directions_never_repeats_a_nonce() {
    for algorithm in algorithms() {
        one_key_in_both_directions(&SaConfig { encap: NAT_T, algorithm, ..sa() });
    }
}

fn one_key_in_both_directions(config: &SaConfig) {
    let (mut there, mut back) = (Pair::new(config), Pair::new(config));
    for round in 0..50 {
        for pair in [&mut there, &mut back] {
            let (bytes, csum, cut) = fat(Version::V4, round % 2 == 0, 500, 500 * (1 + round % 7));
            let mut pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
            (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
            let train = if round % 3 == 0 { Train::None } else { Train::Udp };
            for wire in pair.seal(pkt, train) {
                assert!(!pair.open(wire).is_empty());
            }
            seal_one(&mut pair.sender, pair.out_sa, &pair.mem);
        }
    }
}

#[test]
fn two_sas_with_one_key_and_mask_are_detected() {
    for algorithm in algorithms() {
        let (mut node, mem, mask) = (Ipsec::new(), Memory::heap(), mask());
        let config = SaConfig { algorithm, ..sa() };
        let first = node.add_sa(&config, mask).unwrap();
        let second = node.add_sa(&SaConfig { spi: Spi(9), ..config }, mask).unwrap();
        seal_one(&mut node, first, &mem);
        let again = AssertUnwindSafe(|| seal_one(&mut node, second, &mem));
        let panicked = std::panic::catch_unwind(again).expect_err("a vector used twice");
        let error = panicked.downcast_ref::<String>().unwrap();
        assert!(error.contains("used twice with one key"), "{error}");
    }
}

#[test]
fn a_node_can_move_to_another_thread() {
    let (mut node, mem) = (Ipsec::new(), Memory::heap());
    let id = node.add_sa(&sa(), mask()).unwrap();
    std::thread::scope(|scope| scope.spawn(move || seal_one(&mut node, id, &mem)).join()).unwrap();
}
