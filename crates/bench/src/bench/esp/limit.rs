//! Lower bound of the time: the cipher's own calls over the same bytes, without other work.

use std::hint::black_box;

use ipsec::engine;
use packet::{Buf, Memory};
use wire::{esp, ipv4};
use xfrm::Mode;

use super::gateway::Pair;
use super::setting::{Cipher, EspSetting, Measured, Traffic};
use crate::bench::case::{Copied, Load, Turn};

/// Offset of ESP in a frame: after the room that the sending gateway leaves for a link's header, and an outer IPv4
/// header.
const ESP_AT: usize = 32 + ipv4::Ipv4Header::LEN;

/// The upper half of the extended sequence numbers.
const HIGH: Option<u32> = Some(0);

/// Cipher calls for as many frames as in a turn of the gateway, in as many pages.
pub(super) struct Limit {
    work: Work,
    cipher: engine::Cipher,
    mem: Memory,
    stride: usize,
    /// Content of a page before each turn.
    master: Vec<u8>,
    frames: usize,
    pages: Vec<Buf>,
    /// Source buffers, in a case that only copies.
    sources: Vec<Buf>,
    number: u64,
}

/// Work on each frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Work {
    Seal,
    Open,
    Copy,
    Sum,
}

impl Limit {
    /// The limit for a setting, with frames as of this pair.
    pub(super) fn new(setting: EspSetting, pair: &Pair) -> Self {
        let cipher = engine::Cipher::new(&setting.cipher.algorithm()).expect("a good key");
        let work = match (setting.cipher, setting.measured) {
            (Cipher::Null, Measured::Tx) => Work::Copy,
            (Cipher::Null, Measured::Rx) => Work::Sum,
            (_, Measured::Tx) => Work::Seal,
            (_, Measured::Rx) => Work::Open,
        };
        let Load { packets: frames, payload, .. } = pair.load(setting.traffic);
        let inner = match setting.traffic {
            Traffic::SuperPackets | Traffic::Streams | Traffic::Sas => pair.inner_mtu(),
            Traffic::Small => payload / frames + ipv4::Ipv4Header::LEN + wire::udp::UdpHeader::LEN,
        };
        let inside = if setting.mode == Mode::Tunnel { inner } else { inner - ipv4::Ipv4Header::LEN };
        let esp_len = cipher.overhead() + inside + esp::trailer_len(inside, cipher.align());
        let stride = ESP_AT + esp_len;
        let per_page = Memory::LARGE / stride;
        let mut limit = Self {
            work,
            cipher,
            mem: Memory::heap(),
            stride,
            master: vec![0x5a; per_page * stride],
            frames,
            pages: Vec::new(),
            sources: Vec::new(),
            number: 0,
        };
        if work == Work::Open {
            limit.seal_master();
        }
        limit
    }

    fn seal_master(&mut self) {
        for (number, frame) in self.master.chunks_exact_mut(self.stride).enumerate() {
            self.cipher.seal(&mut frame[ESP_AT..], (number as u64).to_be_bytes(), HIGH);
        }
    }

    /// Fills pages with the content of `master`.
    fn fill(master: &[u8], stride: usize, frames: usize, mem: &Memory, pages: &mut Vec<Buf>) {
        pages.clear();
        let per_page = master.len() / stride;
        for first in (0..frames).step_by(per_page) {
            let bytes = &master[..per_page.min(frames - first) * stride];
            let mut page = mem.large().take(0).expect("a heap without limit");
            page.put(bytes.len()).expect("room for as many frames as fit").copy_from_slice(bytes);
            pages.push(page);
        }
    }
}

impl Turn for Limit {
    fn prepare(&mut self) {
        Self::fill(&self.master, self.stride, self.frames, &self.mem, &mut self.pages);
        if self.work == Work::Copy {
            Self::fill(&self.master, self.stride, self.frames, &self.mem, &mut self.sources);
        }
    }

    fn run(&mut self) {
        let Self { work, cipher, stride, pages, sources, number, .. } = self;
        for (nth, page) in pages.iter_mut().enumerate() {
            let bytes = page.bytes_mut().expect("a page of its own");
            for (index, frame) in bytes.chunks_exact_mut(*stride).enumerate() {
                let packet = &mut frame[ESP_AT..];
                match work {
                    Work::Seal => {
                        *number += 1;
                        cipher.seal(packet, number.to_be_bytes(), HIGH);
                    }
                    Work::Open => {
                        assert!(cipher.open(packet, HIGH).is_ok(), "what was sealed opens");
                    }
                    Work::Copy => {
                        let source = &sources[nth].bytes()[index * *stride + ESP_AT..][..packet.len()];
                        packet.copy_from_slice(source);
                    }
                    Work::Sum => {
                        black_box(offload::checksum::sum(packet));
                    }
                }
            }
            black_box(bytes);
        }
    }

    fn copied(&self) -> Copied {
        Copied::default()
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
