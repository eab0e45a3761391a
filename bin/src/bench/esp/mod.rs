//! `fatpath bench esp`: ESP at the cipher's speed, or how far from it.
//!
//! Two gateways speak raw ESP over a 1500-byte wire, and each has a device towards its hosts. A turn moves a few super-
//! packets of TCP, or as many small packets of UDP.
//!
//! - `tx` is the sending gateway, from the device to the wire; `rx` the receiving one, from the wire to the device.
//! - `baseline` is packet by packet, as with `offloads = false`: what comes in has the wire's size already, and nothing
//!   is glued.
//! - `fat` has every offload on, as a gateway has them.
//! - `limit` is the cipher alone, by the same calls over as many bytes in pages as many. Null has none: in its place
//!   stand a copy of the bytes for `tx` and a sum of them for `rx`, which is what is left to do.
//!
//! In transport mode a gateway does ESP for the host behind it, from whose address to whose address the SA is.

mod gateway;
mod limit;
mod load;
mod turn;

use ipsec::{Algorithm, Mode};

use self::gateway::{Pair, Way};
use self::limit::Limit;
use self::load::Traffic;
use self::turn::{Receiving, Sending};
use super::case::{Group, Plan, Turn};

/// Which of the two gateways is looked at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Side {
    Tx,
    Rx,
}

/// What the cases of a group have in common.
#[derive(Clone, Copy, Debug)]
struct Setting {
    side: Side,
    mode: Mode,
    cipher: Cipher,
    traffic: Traffic,
}

/// What encrypts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Cipher {
    Null,
    AesGcm128,
    AesGcm256,
}

impl Cipher {
    const ALL: [Self; 3] = [Self::Null, Self::AesGcm128, Self::AesGcm256];

    const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::AesGcm128 => "aes-gcm-128",
            Self::AesGcm256 => "aes-gcm-256",
        }
    }

    /// With a key, which protects nothing that anybody sends.
    fn algorithm(self) -> Algorithm {
        let gcm = |len: u8| Algorithm::GcmAes { key: (0..len).collect::<Vec<u8>>().into(), icv_len: 16 };
        match self {
            Self::Null => Algorithm::Null,
            Self::AesGcm128 => gcm(16 + 4),
            Self::AesGcm256 => gcm(32 + 4),
        }
    }
}

/// What is divided by what.
const RATIOS: [[&str; 2]; 2] = [["fat", "baseline"], ["fat", "limit"]];

/// Every case.
pub(super) fn groups() -> Vec<Group> {
    let mut groups = Vec::new();
    for side in [Side::Tx, Side::Rx] {
        for mode in [Mode::Transport, Mode::Tunnel] {
            for cipher in Cipher::ALL {
                groups.push(Setting { side, mode, cipher, traffic: Traffic::SuperPackets }.group());
            }
        }
        let (mode, cipher) = (Mode::Tunnel, Cipher::AesGcm256);
        groups.push(Setting { side, mode, cipher, traffic: Traffic::Small }.group());
    }
    groups
}

impl Setting {
    fn name(self) -> String {
        let side = if self.side == Side::Tx { "tx" } else { "rx" };
        let mode = if self.mode == Mode::Tunnel { "tunnel" } else { "transport" };
        let small = if self.traffic == Traffic::Small { "-64b" } else { "" };
        format!("{side}/{mode}/{}{small}", self.cipher.name())
    }

    fn group(self) -> Group {
        let through = move |way: Way| -> Box<dyn Turn> {
            let pair = Pair::new(self, way);
            match self.side {
                Side::Tx => Box::new(Sending::new(pair, self.traffic)),
                Side::Rx => Box::new(Receiving::new(pair, self.traffic)),
            }
        };
        let load = Pair::new(self, Way::Fat).load(self.traffic);
        let plan = |name, setup| Plan { name, load, setup };
        let cases = vec![
            plan("baseline", Box::new(move || through(Way::Baseline)) as Box<dyn Fn() -> Box<dyn Turn>>),
            plan("fat", Box::new(move || through(Way::Fat))),
            plan("limit", Box::new(move || Box::new(Limit::new(self, &Pair::new(self, Way::Fat))))),
        ];
        Group { name: self.name(), cases, ratios: RATIOS.to_vec() }
    }
}
