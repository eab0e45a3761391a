//! The pcapng capture format (draft-ietf-opsawg-pcapng): written with one interface, nanoseconds and directions; read
//! with any number of sections and interfaces, in either byte order. Blocks other than packets are skipped.

use std::io::{self, Read, Write};
use std::time::Duration;

pub use crate::capture::LinkType;
use crate::capture::{CaptureError, MAX_PACKET, Order, Record, read_or_end};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

const OPTION_NAME: u16 = 2;
const OPTION_FLAGS: u16 = 2;
const OPTION_RESOLUTION: u16 = 9;
const OPTION_OFFSET: u16 = 14;

/// Direction of a packet, in the lowest two bits of `epb_flags`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A block without its body: type, length, length again.
const FRAME: usize = 12;

/// The longest block that is read.
const MAX_BLOCK: usize = MAX_PACKET + (64 << 10);

/// Interfaces in one section.
const MAX_INTERFACES: usize = 1024;

/// Writes a capture file.
#[derive(Debug)]
pub struct PcapngWriter<W: Write> {
    file: W,
}

impl<W: Write> PcapngWriter<W> {
    /// Starts a file of packets of one interface.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn new(mut file: W, interface: &str, link_type: LinkType) -> io::Result<Self> {
        let mut section = BYTE_ORDER_MAGIC.to_le_bytes().to_vec();
        section.extend([1, 0, 0, 0]);
        section.extend(u64::MAX.to_le_bytes());
        write_block(&mut file, SECTION, &[&section])?;

        let mut body = u32::from(link_type.number()).to_le_bytes().to_vec();
        body.extend(0_u32.to_le_bytes());
        let name = &interface.as_bytes()[..interface.len().min(255)];
        push_option(&mut body, OPTION_NAME, name);
        push_option(&mut body, OPTION_RESOLUTION, &[9]);
        push_option(&mut body, 0, &[]);
        write_block(&mut file, INTERFACE, &[&body])?;
        Ok(Self { file })
    }

    /// Appends a packet captured `at`, counted from the Unix epoch.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn write(&mut self, at: Duration, outbound: bool, bytes: &[u8]) -> io::Result<()> {
        let kept = &bytes[..bytes.len().min(MAX_PACKET)];
        let nanos = at.as_nanos() as u64;
        let mut header = [0; 20];
        header[4..8].copy_from_slice(&((nanos >> 32) as u32).to_le_bytes());
        header[8..12].copy_from_slice(&(nanos as u32).to_le_bytes());
        header[12..16].copy_from_slice(&(kept.len() as u32).to_le_bytes());
        header[16..].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        let padding = &[0; 3][..kept.len().next_multiple_of(4) - kept.len()];
        let [direction, ..] = if outbound { OUTBOUND } else { INBOUND }.to_le_bytes();
        let options = [OPTION_FLAGS as u8, 0, 4, 0, direction, 0, 0, 0, 0, 0, 0, 0];
        write_block(&mut self.file, ENHANCED_PACKET, &[&header, kept, padding, &options])
    }

    /// Flushes the file's buffer.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes a block whose body, in pieces, is a multiple of four bytes long.
fn write_block(file: &mut impl Write, kind: u32, body: &[&[u8]]) -> io::Result<()> {
    let len = FRAME + body.iter().map(|piece| piece.len()).sum::<usize>();
    file.write_all(&kind.to_le_bytes())?;
    file.write_all(&(len as u32).to_le_bytes())?;
    for piece in body {
        file.write_all(piece)?;
    }
    file.write_all(&(len as u32).to_le_bytes())
}

fn push_option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Reads a capture file, which should be buffered.
#[derive(Debug)]
pub struct PcapngReader<R: Read> {
    file: R,
    order: Order,
    interfaces: Vec<Interface>,
}

/// Interface description of a section.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: LinkType,
    snap_len: usize,
    /// Time stamps in one second.
    units: u64,
    /// Added to each time stamp.
    offset: Duration,
}

impl<R: Read> PcapngReader<R> {
    /// Reads the header of the first section.
    ///
    /// # Errors
    /// [`CaptureError`] for a file of another format.
    pub fn new(file: R) -> Result<Self, CaptureError> {
        let mut reader = Self { file, order: Order::Little, interfaces: Vec::new() };
        let mut kind = [0; 4];
        reader.file.read_exact(&mut kind)?;
        // The section header's type is a palindrome: it reads the same in both byte orders.
        if kind != SECTION.to_le_bytes() {
            return Err(CaptureError::Magic);
        }
        reader.section()?;
        Ok(reader)
    }

    /// The next packet; `None` at the end.
    ///
    /// # Errors
    /// [`CaptureError`]; reading cannot continue.
    pub fn read(&mut self) -> Result<Option<Record>, CaptureError> {
        loop {
            let mut kind = [0; 4];
            if !read_or_end(&mut self.file, &mut kind)? {
                return Ok(None);
            }
            if kind == SECTION.to_le_bytes() {
                self.section()?;
                continue;
            }
            let kind = self.order.u32(&kind, 0);
            let mut len = [0; 4];
            self.file.read_exact(&mut len)?;
            let body = self.body(self.order.u32(&len, 0), FRAME)?;
            match kind {
                INTERFACE => self.interface(&body)?,
                ENHANCED_PACKET => return self.enhanced(&body).map(Some),
                SIMPLE_PACKET => return self.simple(&body).map(Some),
                _ => {}
            }
        }
    }

    /// Remainder of the body of a block of `len` bytes, of which `known` are its framing and the part already read.
    fn body(&mut self, len: u32, known: usize) -> Result<Vec<u8>, CaptureError> {
        let rest = (len as usize).checked_sub(known).filter(|_| len.is_multiple_of(4)).ok_or(CaptureError::Block)?;
        if rest > MAX_BLOCK {
            return Err(CaptureError::TooLong(len));
        }
        let mut body = vec![0; rest + 4];
        self.file.read_exact(&mut body)?;
        if self.order.u32(&body, rest) != len {
            return Err(CaptureError::Block);
        }
        body.truncate(rest);
        Ok(body)
    }

    /// Reads a section header behind its type: the byte order and the interfaces are new from here on.
    fn section(&mut self) -> Result<(), CaptureError> {
        let mut start = [0; 12];
        self.file.read_exact(&mut start)?;
        let orders = [Order::Little, Order::Big];
        let order = orders.into_iter().find(|order| order.u32(&start, 4) == BYTE_ORDER_MAGIC);
        self.order = order.ok_or(CaptureError::Magic)?;
        if self.order.u16(&start, 8) != 1 {
            return Err(CaptureError::Version);
        }
        self.interfaces.clear();
        self.body(self.order.u32(&start, 0), FRAME + 8).map(drop)
    }

    fn interface(&mut self, body: &[u8]) -> Result<(), CaptureError> {
        if body.len() < 8 || self.interfaces.len() == MAX_INTERFACES {
            return Err(CaptureError::Block);
        }
        let link_type = LinkType::from_number(self.order.u16(body, 0));
        let snap_len = match self.order.u32(body, 4) as usize {
            0 => MAX_PACKET,
            len => len.min(MAX_PACKET),
        };
        let mut interface = Interface { link_type, snap_len, units: 1_000_000, offset: Duration::ZERO };
        for (code, value) in options(self.order, &body[8..]) {
            match (code, value) {
                (OPTION_RESOLUTION, &[exponent, ..]) => {
                    let base: u64 = if exponent & 0x80 == 0 { 10 } else { 2 };
                    let units = base.checked_pow(u32::from(exponent & 0x7f));
                    interface.units = units.filter(|&units| units <= 1 << 32).ok_or(CaptureError::Block)?;
                }
                (OPTION_OFFSET, value) if value.len() >= 8 => {
                    // Seconds; an offset before the epoch is ignored.
                    let (low, high) = (self.order.u32(value, 0), self.order.u32(value, 4));
                    let (low, high) = if self.order == Order::Little { (low, high) } else { (high, low) };
                    let seconds = i64::from(high) << 32 | i64::from(low);
                    interface.offset = Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(1 << 40));
                }
                _ => {}
            }
        }
        self.interfaces.push(interface);
        Ok(())
    }

    fn enhanced(&self, body: &[u8]) -> Result<Record, CaptureError> {
        let field = |at| self.order.u32(body, at);
        let (number, len) = (field(0), field(12));
        let interface = self.interfaces.get(number as usize).ok_or(CaptureError::Interface(number))?;
        if len as usize > MAX_PACKET {
            return Err(CaptureError::TooLong(len));
        }
        let bytes = body.get(20..20 + len as usize).ok_or(CaptureError::Block)?.to_vec();
        let rest = body.get(20 + bytes.len().next_multiple_of(4)..).unwrap_or_default();
        let flags = options(self.order, rest).find(|&(code, value)| code == OPTION_FLAGS && value.len() >= 4);
        let outbound = match flags.map(|(_, value)| self.order.u32(value, 0) & 3) {
            Some(INBOUND) => Some(false),
            Some(OUTBOUND) => Some(true),
            _ => None,
        };
        let stamp = u64::from(field(4)) << 32 | u64::from(field(8));
        let (seconds, part) = (stamp / interface.units, stamp % interface.units);
        let nanos = u128::from(part) * 1_000_000_000 / u128::from(interface.units);
        let at = interface.offset.saturating_add(Duration::new(seconds, nanos as u32));
        Ok(Record { at, link_type: interface.link_type, outbound, original_len: field(16) as usize, bytes })
    }

    /// A packet of the first interface, without a time.
    fn simple(&self, body: &[u8]) -> Result<Record, CaptureError> {
        let interface = self.interfaces.first().ok_or(CaptureError::Interface(0))?;
        let original_len = self.order.u32(body, 0) as usize;
        let len = original_len.min(interface.snap_len);
        let bytes = body.get(4..4 + len).ok_or(CaptureError::Block)?.to_vec();
        Ok(Record { at: Duration::ZERO, link_type: interface.link_type, outbound: None, original_len, bytes })
    }
}

/// The options of a block, up to the end or the first that runs past it.
fn options(order: Order, mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (code, len) = (order.u16(bytes, 0), usize::from(order.u16(bytes, 2)));
        let value = bytes.get(4..4 + len).filter(|_| code != 0)?;
        bytes = bytes.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
        Some((code, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::new(1_700_000_000, 123_456_789);

    fn written() -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = PcapngWriter::new(&mut file, "tun0", LinkType::Raw).unwrap();
        for (len, outbound) in [(0, false), (1, true), (60, false), (65_535, true)] {
            writer.write(AT, outbound, &vec![len as u8; len]).unwrap();
        }
        writer.flush().unwrap();
        file
    }

    #[test]
    fn packets_read_as_they_were_written() {
        let file = written();
        let mut reader = PcapngReader::new(&file[..]).unwrap();
        for (len, outbound) in [(0, false), (1, true), (60, false), (65_535, true)] {
            let bytes = vec![len as u8; len];
            let outbound = Some(outbound);
            let want = Record { at: AT, link_type: LinkType::Raw, outbound, original_len: len, bytes };
            assert_eq!(reader.read().unwrap(), Some(want));
        }
        assert_eq!(reader.read().unwrap(), None);
    }

    /// A block in network byte order.
    fn big(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = (FRAME + body.len()) as u32;
        [&kind.to_be_bytes(), &len.to_be_bytes(), body, &len.to_be_bytes()].concat()
    }

    fn words(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    #[test]
    fn sections_of_either_byte_order_follow_each_other() {
        let section = big(SECTION, &words(&[BYTE_ORDER_MAGIC, 0x0001_0000, u32::MAX, u32::MAX]));
        let interface = big(INTERFACE, &words(&[0x0001_0000, 0]));
        let micros = 5_000_007_u64;
        let packet = words(&[0, (micros >> 32) as u32, micros as u32, 2, 9, 0xabcd_0000]);
        let file = [
            written(),
            section,
            big(0x1234, &[0; 8]),
            interface,
            big(ENHANCED_PACKET, &packet),
            big(SIMPLE_PACKET, &words(&[4, 0x0102_0304])),
        ]
        .concat();
        let mut reader = PcapngReader::new(&file[..]).unwrap();
        for _ in 0..4 {
            assert_eq!(reader.read().unwrap().unwrap().link_type, LinkType::Raw);
        }
        let (link_type, outbound) = (LinkType::Ethernet, None);
        let at = Duration::from_micros(micros);
        let want = Record { at, link_type, outbound, original_len: 9, bytes: vec![0xab, 0xcd] };
        assert_eq!(reader.read().unwrap(), Some(want));
        let want = Record { at: Duration::ZERO, link_type, outbound, original_len: 4, bytes: vec![1, 2, 3, 4] };
        assert_eq!(reader.read().unwrap(), Some(want));
        assert_eq!(reader.read().unwrap(), None);
    }

    #[test]
    fn malformed_file_is_an_error() {
        let good = big(SECTION, &words(&[BYTE_ORDER_MAGIC, 0x0001_0000, u32::MAX, u32::MAX]));
        let interface = big(INTERFACE, &words(&[0x0001_0000, 0]));
        let resolution =
            |value: u8| big(INTERFACE, &[&words(&[0x0001_0000, 0]), &[0, 9, 0, 1, value, 0, 0, 0][..]].concat());
        let second = |block: Vec<u8>| PcapngReader::new(&[&good[..], &block].concat()[..]).unwrap().read();
        let after_interface = |block: Vec<u8>| second([interface.clone(), block].concat());

        assert!(matches!(PcapngReader::new(&b"\x0a\x0d\x0d"[..]), Err(CaptureError::CutShort)));
        assert!(matches!(PcapngReader::new(&[7; 40][..]), Err(CaptureError::Magic)));
        assert!(matches!(PcapngReader::new(&big(SECTION, &[7; 16])[..]), Err(CaptureError::Magic)));
        let old = big(SECTION, &words(&[BYTE_ORDER_MAGIC, 0x0002_0000, 0, 0]));
        assert!(matches!(PcapngReader::new(&old[..]), Err(CaptureError::Version)));

        assert!(matches!(second(words(&[1, 8, 8])), Err(CaptureError::Block)));
        assert!(matches!(second(words(&[1, 15, 0, 15])), Err(CaptureError::Block)));
        assert!(matches!(second(words(&[1, 16, 0, 20])), Err(CaptureError::Block)));
        assert!(matches!(second(words(&[1, 0xffff_fff0, 0])), Err(CaptureError::TooLong(0xffff_fff0))));
        assert!(matches!(second(words(&[1, 400, 0])), Err(CaptureError::CutShort)));
        assert!(matches!(second(words(&[1])), Err(CaptureError::CutShort)));
        assert!(matches!(second(resolution(0x7f)), Err(CaptureError::Block)));
        assert!(matches!(second(resolution(0x80 | 60)), Err(CaptureError::Block)));
        assert!(matches!(second(resolution(6)), Ok(None)));
        let far = big(INTERFACE, &words(&[0x0001_0000, 0, 0x0009_0001, 0, 0x000e_0008, 0x7fff_ffff, u32::MAX]));
        let latest = big(ENHANCED_PACKET, &words(&[0, u32::MAX, u32::MAX, 0, 0]));
        assert_eq!(second([far, latest].concat()).unwrap().unwrap().at, Duration::MAX);

        let packet = |numbers: &[u32]| big(ENHANCED_PACKET, &words(numbers));
        assert!(matches!(second(packet(&[0, 0, 0, 4, 4, 0])), Err(CaptureError::Interface(0))));
        assert!(matches!(after_interface(packet(&[1, 0, 0, 4, 4, 0])), Err(CaptureError::Interface(1))));
        assert!(matches!(after_interface(packet(&[0, 0, 0, 5, 5, 0])), Err(CaptureError::Block)));
        assert!(matches!(after_interface(packet(&[0, 0, 0, u32::MAX, 5, 0])), Err(CaptureError::TooLong(u32::MAX))));
        assert!(matches!(after_interface(packet(&[0, 0])), Err(CaptureError::Block)));
        assert!(matches!(after_interface(big(SIMPLE_PACKET, &words(&[5, 0]))), Err(CaptureError::Block)));
        assert!(matches!(after_interface(packet(&[0, u32::MAX, u32::MAX, 4, 4, 0])), Ok(Some(_))));
    }
}
