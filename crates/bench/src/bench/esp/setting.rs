//! Settings of the cases.

use xfrm::{Aead, Algorithm, Mode};

/// Number of streams with interleaved segments.
pub(super) const STREAMS: u8 = 16;

/// The measured gateway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Measured {
    Tx,
    Rx,
}

/// Common settings of the cases of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct EspSetting {
    pub(super) measured: Measured,
    pub(super) mode: Mode,
    pub(super) cipher: Cipher,
    pub(super) traffic: Traffic,
    /// Whether ESP is in UDP; in trains if packets are fat.
    pub(super) udp: bool,
}

/// Kind of the packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::bench) enum Traffic {
    /// One TCP stream in packets of up to 64 KiB with a partial checksum, as from a TUN device.
    SuperPackets,
    /// Interleaved segments of several such streams to as many hosts, as from a wire.
    Streams,
    /// As `Streams`, with an SA for each stream.
    Sas,
    /// UDP in packets of 64 bytes, each packet of a burst in a different flow.
    Small,
}

/// Configuration of a gateway's packet path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Way {
    /// Packet by packet, as with `offloads = false`.
    Baseline,
    /// Every offload enabled.
    Fat,
    /// Every offload enabled, and a crypto thread for the measured gateway on another CPU.
    Worker,
}

/// Cipher.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Cipher {
    Null,
    AesGcm128,
    AesGcm256,
    ChaCha20Poly1305,
}

impl Cipher {
    pub(super) const ALL: [Self; 4] = [Self::Null, Self::AesGcm128, Self::AesGcm256, Self::ChaCha20Poly1305];

    const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::AesGcm128 => "aes-gcm-128",
            Self::AesGcm256 => "aes-gcm-256",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// Algorithm with a fixed key, which protects no real traffic.
    pub(super) fn algorithm(self) -> Algorithm {
        let key = |len: u8| (0..len).collect::<Vec<u8>>().into();
        let gcm = |len| Algorithm::aead(Aead::GcmAes, key(len), 128);
        match self {
            Self::Null => Algorithm::null(),
            Self::AesGcm128 => gcm(16 + 4),
            Self::AesGcm256 => gcm(32 + 4),
            Self::ChaCha20Poly1305 => Algorithm::aead(Aead::ChaCha20Poly1305, key(32 + 4), 128),
        }
    }
}

impl EspSetting {
    /// Setting of most cases.
    pub(super) const COMMON: Self = Self {
        measured: Measured::Rx,
        mode: Mode::Tunnel,
        cipher: Cipher::AesGcm256,
        traffic: Traffic::SuperPackets,
        udp: false,
    };

    /// Name of the group.
    pub(super) fn name(self) -> String {
        let measured = if self.measured == Measured::Tx { "tx" } else { "rx" };
        let mode = if self.mode == Mode::Tunnel { "tunnel" } else { "transport" };
        let traffic = match self.traffic {
            Traffic::SuperPackets => String::new(),
            Traffic::Streams => format!("-{STREAMS}streams"),
            Traffic::Sas => format!("-{STREAMS}sas"),
            Traffic::Small => "-64b".to_owned(),
        };
        let udp = if self.udp { "-udp" } else { "" };
        format!("{measured}/{mode}/{}{udp}{traffic}", self.cipher.name())
    }
}
