//! The limit: the cipher's own calls over the same bytes, and nothing else.

use std::hint::black_box;

use ipsec::Mode;
use ipsec::engine::Aead;
use packet::{Buf, Memory};
use wire::{esp, ipv4};

use super::gateway::Pair;
use super::load::Traffic;
use super::{Cipher, Setting, Side};
use crate::bench::case::{Load, Turn};

/// Room in front of a frame, as the sending gateway leaves for a link's header.
const HEADROOM: usize = 32;

/// SPI and extended sequence number (RFC 4106 §5).
const AAD: [u8; 12] = [0; 12];

/// As many frames as a turn of the gateway has, in as many pages.
pub(super) struct Limit {
    work: Work,
    aead: Aead,
    mem: Memory,
    /// Where in its frame the encrypted bytes begin, and how many there are.
    text: (usize, usize),
    icv_len: usize,
    stride: usize,
    /// What a page holds before each turn.
    master: Vec<u8>,
    frames: usize,
    pages: Vec<Buf>,
    /// What is copied, where that is all.
    sources: Vec<Buf>,
    number: u64,
    scratch: Vec<u8>,
}

/// What is done with each frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Work {
    Seal,
    Open,
    Copy,
    Sum,
}

impl Limit {
    /// The limit of a setting, for frames as this pair has them.
    pub(super) fn new(setting: Setting, pair: &Pair) -> Self {
        let aead = Aead::new(&setting.cipher.algorithm()).expect("a good key");
        let work = match (setting.cipher, setting.side) {
            (Cipher::Null, Side::Tx) => Work::Copy,
            (Cipher::Null, Side::Rx) => Work::Sum,
            (_, Side::Tx) => Work::Seal,
            (_, Side::Rx) => Work::Open,
        };
        let Load { packets: frames, payload, .. } = pair.load(setting.traffic);
        let inner = match setting.traffic {
            Traffic::SuperPackets => pair.inner_mtu(),
            Traffic::Small => payload / frames + ipv4::Header::LEN + wire::udp::Header::LEN,
        };
        let inside = if setting.mode == Mode::Tunnel { inner } else { inner - ipv4::Header::LEN };
        let text_len = inside + esp::trailer_len(inside, aead.align());
        let text_at = HEADROOM + ipv4::Header::LEN + esp::Header::LEN + aead.iv_len();
        let icv_len = aead.icv_len();
        let stride = text_at + text_len + icv_len;
        let per_page = Memory::LARGE / stride;
        let mut limit = Self {
            work,
            aead,
            mem: Memory::heap(),
            text: (text_at, text_len),
            icv_len,
            stride,
            master: vec![0x5a; per_page * stride],
            frames,
            pages: Vec::new(),
            sources: Vec::new(),
            number: 0,
            scratch: Vec::new(),
        };
        if work == Work::Open {
            limit.seal_master();
        }
        limit
    }

    fn seal_master(&mut self) {
        for (number, frame) in self.master.chunks_exact_mut(self.stride).enumerate() {
            let (text, icv) = frame[self.text.0..].split_at_mut(self.text.1);
            self.aead.seal((number as u64).to_be_bytes(), &AAD, text, icv);
        }
    }

    /// Pages with what the master has.
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
        let Self { work, aead, text: (at, len), icv_len, stride, pages, sources, number, scratch, .. } = self;
        for (nth, page) in pages.iter_mut().enumerate() {
            let bytes = page.bytes_mut().expect("a page of its own");
            for (index, frame) in bytes.chunks_exact_mut(*stride).enumerate() {
                let sealed = &mut frame[*at..*at + *len + *icv_len];
                match work {
                    Work::Seal => {
                        *number += 1;
                        let (text, icv) = sealed.split_at_mut(*len);
                        aead.seal(number.to_be_bytes(), &AAD, text, icv);
                    }
                    Work::Open => {
                        let opened = aead.open((index as u64).to_be_bytes(), &AAD, sealed, scratch);
                        assert!(opened.is_ok(), "what was sealed opens");
                    }
                    Work::Copy => {
                        let source = &sources[nth].bytes()[index * *stride + *at..][..sealed.len()];
                        sealed.copy_from_slice(source);
                    }
                    Work::Sum => {
                        black_box(wire::checksum::sum(sealed));
                    }
                }
            }
            black_box(bytes);
        }
    }

    fn copied(&self) -> u64 {
        0
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
