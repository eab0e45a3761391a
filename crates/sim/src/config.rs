//! Short constructors of IPsec configurations.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use wire::Spi;
use xfrm::{Aead, Algorithm, Dir, EspInUdp, Level, Mode, PolicyConfig, SaConfig, SaFlags, Selector, Template};

use crate::{Node, Rng};

/// An SA from `src` to `dst`, for packets of both families, with AES-GCM-128, a window of 1024 and the SPI as its
/// `reqid`; ESP in UDP from port 4500 to port 4500 if `udp`.
///
/// # Panics
/// If an address is invalid.
pub fn esp(src: &str, dst: &str, spi: u32, mode: Mode, udp: bool) -> SaConfig {
    let [src, dst] = [src, dst].map(|addr| addr.parse().expect("an address"));
    let algorithm = Algorithm::aead(Aead::GcmAes, (0..20).map(|at| at ^ spi as u8).collect::<Vec<u8>>().into(), 128);
    SaConfig {
        reqid: spi,
        replay_window: 1024,
        flags: SaFlags { af_unspec: true, ..SaFlags::default() },
        encap: udp.then_some(EspInUdp { sport: 4500, dport: 4500 }),
        ..SaConfig::new(src, dst, Spi(spi), mode, algorithm)
    }
}

/// Template for that SA.
pub const fn template(sa: &SaConfig) -> Template {
    let (src, dst): (Option<IpAddr>, Option<IpAddr>) = (Some(sa.src), Some(sa.dst));
    Template { src, dst, spi: None, mode: sa.mode, reqid: sa.reqid, level: Level::Required }
}

/// A policy that requires these SAs, the innermost first, for packets from `src` to `dst`.
///
/// # Panics
/// If a prefix is invalid.
pub fn policy(dir: Dir, src: &str, dst: &str, sas: &[SaConfig]) -> PolicyConfig {
    let [src, dst] = [src, dst].map(|prefix| prefix.parse().expect("a prefix"));
    PolicyConfig { templates: sas.iter().map(template).collect(), ..PolicyConfig::new(dir, Selector::new(src, dst)) }
}

/// Configures `near` to protect packets from `src` to `dst` with these SAs, the innermost first, and `far` to require
/// the protection, for forwarded packets and for its own.
///
/// # Panics
/// If an SA or a policy is refused.
pub fn link_pair(near: &mut Node, far: &mut Node, (src, dst): (&str, &str), sas: &[SaConfig]) {
    for sa in sas {
        for node in [&mut *near, &mut *far] {
            node.datapath.ipsec.add_sa(sa, unique_mask()).expect("a good SA");
        }
    }
    near.datapath.ipsec.add_policy(policy(Dir::Out, src, dst, sas)).expect("a good policy");
    for dir in [Dir::In, Dir::Fwd] {
        far.datapath.ipsec.add_policy(policy(dir, src, dst, sas)).expect("a good policy");
    }
}

/// Mask that makes the initialisation vectors of an SA unique: the worlds of one test share keys, and IPsec's register
/// of nonces covers all of these worlds.
pub fn unique_mask() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Rng::new(NEXT.fetch_add(1, Relaxed)).bits()
}
