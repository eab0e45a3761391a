//! Plan of one seed: the configuration of the gateways, and the faults of the wires.

use std::time::Duration;

use offload::{CsumOffload, Features};
use sim::{Medium, Rng, Wire};
use xfrm::{Aead, Algorithm, Auth, AuthConfig, Enc, Key};
use xfrm::{Lifetime, Limits, Mode};

/// Form of the packets between the gateways.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// ESP in IP, in tunnel mode.
    Tunnel,
    /// ESP in UDP, in tunnel mode.
    UdpTunnel,
    /// Transport mode for the hosts behind the gateways, raw or in UDP.
    Transport,
}

/// Place of a gateway's ciphers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Worker {
    /// The gateway's own thread, at once.
    Itself,
    /// A device that takes at most so many microseconds, and is sometimes busy.
    Device(u64),
    /// Crypto threads.
    Threads,
}

/// Configuration of a site. The seed determines every choice.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) mode: Mode,
    pub(crate) udp: bool,
    /// Whether tunnels are over IPv6.
    pub(crate) v6: bool,
    pub(crate) algorithm: Algorithm,
    pub(crate) esn: bool,
    pub(crate) window: u32,
    /// The last sequence number before the first packet.
    pub(crate) start: u64,
    /// The mode of a second SA around each tunnel, if any.
    pub(crate) around: Option<Mode>,
    /// Length to which inner packets of tunnels are padded.
    pub(crate) tfcpad: u32,
    /// Limits of outbound SAs.
    pub(crate) lifetime: Lifetime,
    /// Whether packets are held for a missing SA.
    pub(crate) holds: bool,
    pub(crate) workers: [Worker; 2],
    /// Whether SAs have a direction.
    pub(crate) directed: bool,
    /// Whether Ethernet joins the gateways.
    pub(crate) ethernet: bool,
    /// The MTU of the wires between the gateways.
    pub(crate) mtu: usize,
    /// Whether the inner and the outer links have GRO.
    pub(crate) gro: [bool; 2],
    /// Offloads of the inner and the outer links.
    pub(crate) features: [Features; 2],
}

impl Plan {
    pub(crate) fn new(kind: Kind, seed: u64, rng: &mut Rng) -> Self {
        let mode = if kind == Kind::Transport { Mode::Transport } else { Mode::Tunnel };
        let udp = kind == Kind::UdpTunnel || kind == Kind::Transport && rng.happens(300);
        let algorithm = algorithm(rng);
        // Without integrity the upper half of a number cannot be verified.
        let esn = rng.happens(500) && !algorithm.is_null();
        let wrap = u64::from(u32::MAX);
        let arounds = [None, None, Some(Mode::Transport), Some(Mode::Tunnel)];
        let around = rng.pick(&arounds).filter(|_| mode == Mode::Tunnel);
        // Two SAs must leave IPv6 its minimum MTU, or their frames are fragmented.
        let mtus = if around.is_some() { [1500, 1500, 1600, 9000] } else { [1500, 1500, 1400, 9000] };
        let starts = if esn { [0, wrap - 100, 3 * wrap - 40, 7 << 32] } else { [0, 0, 5000, wrap / 2] };
        Self {
            seed,
            mode,
            udp,
            v6: rng.happens(500),
            algorithm,
            esn,
            window: *rng.pick(&[32, 64, 128, 1024, 4096]),
            start: *rng.pick(&starts),
            around,
            tfcpad: if mode == Mode::Tunnel { *rng.pick(&[0, 0, 100, 700, u32::MAX]) } else { 0 },
            lifetime: lifetime(rng),
            holds: rng.happens(500),
            workers: [worker(rng), worker(rng)],
            directed: mode == Mode::Transport || rng.happens(500),
            ethernet: !udp && rng.happens(300),
            mtu: *rng.pick(&mtus),
            gro: [rng.happens(700), rng.happens(700)],
            features: [features(rng), features(rng)],
        }
    }

    /// Tells whether the payload is readable on the wire.
    pub(crate) const fn is_clear(&self) -> bool {
        !self.algorithm.encrypts()
    }

    /// A wire between the gateways, with faults that the seed determines.
    pub(crate) fn wire(&self, rng: &mut Rng) -> Wire {
        let mut some = |most: &[u16]| *rng.pick(most);
        let (loss, late, twice) = (some(&[0, 0, 5, 50]), some(&[0, 0, 30, 200]), some(&[0, 0, 10, 200]));
        let (busy, damaged) = (some(&[0, 0, 100, 300]), some(&[0, 0, 5, 50]));
        // Without integrity a packet with a flipped bit is delivered.
        let damaged = if self.algorithm.is_null() { 0 } else { damaged };
        Wire { damaged, ..self.good_wire().troubled(loss, late, twice, busy) }
    }

    /// The same wire without faults.
    pub(crate) const fn good_wire(&self) -> Wire {
        Wire::new(if self.udp { Medium::UdpSocket } else { Medium::Cable }, self.mtu)
    }
}

/// Soft limits and slightly higher hard ones: none, or of packets, bytes or time.
fn lifetime(rng: &mut Rng) -> Lifetime {
    let soft = 1 + rng.below(300) as u64;
    let hard = soft + rng.below(200) as u64;
    let limits = |n: u64| match soft % 4 {
        0 => Limits { packets: n, ..Limits::NONE },
        1 => Limits { bytes: 2000 * n, ..Limits::NONE },
        2 => Limits { added: Some(Duration::from_millis(n)), ..Limits::NONE },
        _ => Limits { used: Some(Duration::from_millis(n)), ..Limits::NONE },
    };
    if rng.happens(500) { Lifetime::default() } else { Lifetime { soft: limits(soft), hard: limits(hard) } }
}

fn worker(rng: &mut Rng) -> Worker {
    match rng.below(8) {
        0..3 => Worker::Itself,
        3 => Worker::Threads,
        _ => Worker::Device(*rng.pick(&[20, 200, 1000])),
    }
}

fn algorithm(rng: &mut Rng) -> Algorithm {
    let mut key = |len: u8| (0..len).map(|_| rng.bits() as u8).collect::<Vec<u8>>().into();
    let hmac = |code, key, icv_bits| Some(AuthConfig::new(code, key, icv_bits));
    let kinds = [
        Algorithm::null(),
        Algorithm::aead(Aead::GcmAes, key(20), 128),
        Algorithm::aead(Aead::GcmAes, key(28), 96),
        Algorithm::aead(Aead::GcmAes, key(36), 64),
        Algorithm::aead(Aead::GcmAes, key(36), 128),
        Algorithm::aead(Aead::GmacAes, key(36), 128),
        Algorithm::aead(Aead::CcmAes, key(19), 64),
        Algorithm::aead(Aead::ChaCha20Poly1305, key(36), 128),
        Algorithm::separate(Enc::Null, Key::default(), hmac(Auth::HmacSha1, key(20), 96)),
        Algorithm::separate(Enc::CbcAes, key(32), hmac(Auth::HmacSha256, key(32), 128)),
        Algorithm::separate(Enc::CtrAes, key(20), hmac(Auth::HmacSha512, key(64), 256)),
    ];
    rng.pick(&kinds).clone()
}

fn features(rng: &mut Rng) -> Features {
    match rng.below(4) {
        0 => Features::NONE,
        1 => Features { sg: true, csum: CsumOffload::Any, ..Features::NONE },
        2 => Features { frag_list: false, uso: false, ..Features::ALL },
        _ => Features::ALL,
    }
}
