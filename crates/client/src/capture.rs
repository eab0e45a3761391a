//! A capture of a link: packets from the gateway as pcapng, copied by whole blocks.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use ctl::{Reply, Request};

use crate::{CliError, Client, StreamEnd};

/// Block type that begins a pcapng section, the same in both byte orders.
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Block type of an Enhanced Packet Block.
const ENHANCED_PACKET: u32 = 6;
/// Byte-order magic of a little-endian section.
const LITTLE_ENDIAN: [u8; 4] = 0x1a2b_3c4d_u32.to_le_bytes();
/// Limit of a block's length, above that of any block with a 64 KiB packet.
const MAX_BLOCK_LEN: usize = 1 << 20;

/// A capture that a gateway has begun.
#[derive(Debug)]
pub struct Capture {
    from: BufReader<UnixStream>,
    end: StreamEnd,
}

/// Outcome of a capture.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Captured {
    /// Number of packets.
    pub packets: u64,
    /// Whether the gateway has ended the capture, and not a signal or the reader.
    pub by_gateway: bool,
}

/// Outcome of a copy of blocks.
#[derive(Debug, Eq, PartialEq)]
struct Copied {
    packets: u64,
    has_reader: bool,
}

impl Capture {
    /// Begins a capture of the wire packets of `link`, or of its fat packets.
    ///
    /// # Errors
    /// The gateway refuses it: there is no such link, or its socket only shows. Or it does not answer.
    pub fn begin(mut client: Client, link: &str, after_gro: bool) -> Result<Self, CliError> {
        if client.ask(&Request::Capture { link: link.to_owned(), after_gro })? != Reply::Capturing {
            return Err(client.confused());
        }
        let (from, connection) = client.into_stream().map_err(|err| CliError::system("capture", &err))?;
        Ok(Self { from, end: StreamEnd::new(connection) })
    }

    /// Copies the packets to `to` until a signal, or until the gateway or the reader closes its end.
    ///
    /// # Errors
    /// Failure to write, or a malformed block.
    pub fn copy<T: Write + AsFd>(self, to: T) -> io::Result<Captured> {
        self.end.at_signals()?;
        self.end.with_reader(&to)?;
        let Copied { packets, has_reader } = copy_blocks(self.from, to)?;
        Ok(Captured { packets, by_gateway: has_reader && !self.end.is_ended() })
    }
}

/// Copies whole pcapng blocks, so that the file is valid wherever it ends.
fn copy_blocks(mut from: impl Read, mut to: impl Write) -> io::Result<Copied> {
    let mut packets = 0;
    let mut little_endian = true;
    let mut block = vec![0; 12];
    loop {
        if !fill(&mut from, &mut block[..12])? {
            return Ok(Copied { packets, has_reader: true });
        }
        if block[..4] == SECTION_HEADER {
            little_endian = block[8..12] == LITTLE_ENDIAN;
        }
        let (kind, len) = (number(&block[..4], little_endian), number(&block[4..8], little_endian) as usize);
        if !(12..=MAX_BLOCK_LEN).contains(&len) {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("a pcapng block of {len} bytes")));
        }
        block.resize(len, 0);
        if !fill(&mut from, &mut block[12..])? {
            return Ok(Copied { packets, has_reader: true });
        }
        match to.write_all(&block).and_then(|()| to.flush()) {
            Err(err) if err.kind() == ErrorKind::BrokenPipe => {
                return Ok(Copied { packets, has_reader: false });
            }
            result => result?,
        }
        packets += u64::from(kind == ENHANCED_PACKET);
    }
}

fn number(bytes: &[u8], little_endian: bool) -> u32 {
    let fold = |number: u32, byte: &u8| number << 8 | u32::from(*byte);
    if little_endian { bytes.iter().rev().fold(0, fold) } else { bytes.iter().fold(0, fold) }
}

/// Reads exactly `bytes`. Returns false if the connection ends before.
fn fill(from: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(bytes) {
        Err(err) if matches!(err.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => Ok(false),
        result => result.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: [u8; 4], body: &[u8], len: impl Fn(u32) -> [u8; 4]) -> Vec<u8> {
        let total = len(12 + body.len() as u32);
        [&kind, &total, body, &total].concat()
    }

    #[test]
    fn a_capture_is_copied_by_whole_blocks_in_either_byte_order() {
        let magic = 0x1a2b_3c4d_u32;
        for little in [true, false] {
            let bytes = move |n: u32| if little { n.to_le_bytes() } else { n.to_be_bytes() };
            let section = block(SECTION_HEADER, &[bytes(magic), bytes(1), bytes(0), bytes(0)].concat(), bytes);
            let packet = block(bytes(ENHANCED_PACKET), &[7; 32], bytes);
            let other = block(bytes(5), &[], bytes);
            let whole = [section.as_slice(), &packet, &other, &packet].concat();
            for cut in 0..=packet.len() {
                let mut written = Vec::new();
                let got = copy_blocks(&whole[..whole.len() - cut], &mut written).unwrap();
                let want = if cut == 0 { (2, whole.len()) } else { (1, whole.len() - packet.len()) };
                assert_eq!((got.packets, written.len()), want, "cut by {cut}");
                assert!(got.has_reader);
                assert!(whole.starts_with(&written));
            }
        }
    }

    #[test]
    fn a_block_whose_length_cannot_be_is_refused() {
        for len in [0, 4, 11, u32::MAX] {
            let bytes = [SECTION_HEADER, len.to_le_bytes(), LITTLE_ENDIAN].concat();
            let err = copy_blocks(bytes.as_slice(), io::sink()).unwrap_err();
            assert_eq!(err.kind(), ErrorKind::InvalidData, "{len}");
        }
    }
}
