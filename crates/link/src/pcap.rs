//! The classic capture format (draft-ietf-opsawg-pcap): read in both byte orders and both resolutions, written with
//! nanoseconds.

use std::io::{self, Read, Write};
use std::time::Duration;

use crate::capture::{CaptureError, LinkType, MAX_PACKET, Order, Record, read_or_end};

/// Time stamps in microseconds.
const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
/// Time stamps in nanoseconds.
const MAGIC_NANOS: u32 = 0xa1b2_3c4d;

/// Writes a capture file.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    file: W,
}

impl<W: Write> PcapWriter<W> {
    /// Starts a file of packets of one link type.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn new(mut file: W, link_type: LinkType) -> io::Result<Self> {
        let mut header = [0; 24];
        header[..4].copy_from_slice(&MAGIC_NANOS.to_le_bytes());
        header[4..6].copy_from_slice(&2_u16.to_le_bytes());
        header[6..8].copy_from_slice(&4_u16.to_le_bytes());
        header[16..20].copy_from_slice(&(MAX_PACKET as u32).to_le_bytes());
        header[20..24].copy_from_slice(&u32::from(link_type.number()).to_le_bytes());
        file.write_all(&header)?;
        Ok(Self { file })
    }

    /// Appends a packet captured `at`, counted from the Unix epoch.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn write(&mut self, at: Duration, bytes: &[u8]) -> io::Result<()> {
        let kept = &bytes[..bytes.len().min(MAX_PACKET)];
        let mut header = [0; 16];
        header[..4].copy_from_slice(&(at.as_secs() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&at.subsec_nanos().to_le_bytes());
        header[8..12].copy_from_slice(&(kept.len() as u32).to_le_bytes());
        header[12..].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.file.write_all(&header)?;
        self.file.write_all(kept)
    }

    /// Flushes the file's buffer.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Reads a capture file, which should be buffered.
#[derive(Debug)]
pub struct PcapReader<R: Read> {
    file: R,
    order: Order,
    nanos: bool,
    link_type: LinkType,
}

impl<R: Read> PcapReader<R> {
    /// Reads the file's header.
    ///
    /// # Errors
    /// [`CaptureError`] for a file of another format.
    pub fn new(mut file: R) -> Result<Self, CaptureError> {
        let mut header = [0; 24];
        file.read_exact(&mut header)?;
        let order = [Order::Little, Order::Big]
            .into_iter()
            .find(|order| [MAGIC_MICROS, MAGIC_NANOS].contains(&order.u32(&header, 0)))
            .ok_or(CaptureError::Magic)?;
        if (order.u16(&header, 4), order.u16(&header, 6)) != (2, 4) {
            return Err(CaptureError::Version);
        }
        // The upper bits tell whether frames have an FCS.
        let link_type = LinkType::from_number(order.u32(&header, 20) as u16);
        Ok(Self { nanos: order.u32(&header, 0) == MAGIC_NANOS, order, link_type, file })
    }

    /// The next packet; `None` at the end.
    ///
    /// # Errors
    /// [`CaptureError`]; reading cannot continue.
    pub fn read(&mut self) -> Result<Option<Record>, CaptureError> {
        let mut header = [0; 16];
        if !read_or_end(&mut self.file, &mut header)? {
            return Ok(None);
        }
        let field = |at| self.order.u32(&header, at);
        let len = field(8);
        if len as usize > MAX_PACKET {
            return Err(CaptureError::TooLong(len));
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_exact(&mut bytes)?;
        let unit = if self.nanos { Duration::from_nanos(1) } else { Duration::from_micros(1) };
        let at = Duration::from_secs(field(0).into()) + unit * field(4);
        let original_len = field(12) as usize;
        Ok(Some(Record { at, link_type: self.link_type, outbound: None, original_len, bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_read_as_they_were_written() {
        let mut file = Vec::new();
        let mut writer = PcapWriter::new(&mut file, LinkType::Ethernet).unwrap();
        let at = Duration::new(1_700_000_000, 123_456_789);
        for len in [0, 1, 60, 65_549] {
            writer.write(at, &vec![len as u8; len]).unwrap();
        }
        writer.flush().unwrap();
        let mut reader = PcapReader::new(&file[..]).unwrap();
        for len in [0, 1, 60, 65_549] {
            let bytes = vec![len as u8; len];
            let want = Record { at, link_type: LinkType::Ethernet, outbound: None, original_len: len, bytes };
            assert_eq!(reader.read().unwrap(), Some(want));
        }
        assert_eq!(reader.read().unwrap(), None);
    }

    #[test]
    fn both_byte_orders_and_resolutions_are_read() {
        for (magic, unit) in [(MAGIC_MICROS, Duration::from_micros(1)), (MAGIC_NANOS, Duration::from_nanos(1))] {
            let numbers = [magic, 0, 0, 65_535, 101, 5, 7, 2, 9];
            let mut little: Vec<u8> = numbers.iter().flat_map(|number: &u32| number.to_le_bytes()).collect();
            let mut big: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
            little.splice(4..4, [2, 0, 4, 0]);
            big.splice(4..4, [0, 2, 0, 4]);
            for mut file in [little, big] {
                file.extend([0x45, 0x00]);
                let record = PcapReader::new(&file[..]).unwrap().read().unwrap().unwrap();
                let want = (Duration::from_secs(5) + unit * 7, LinkType::Raw, 9, vec![0x45, 0x00]);
                assert_eq!((record.at, record.link_type, record.original_len, record.bytes), want);
            }
        }
    }

    #[test]
    fn malformed_file_is_an_error() {
        let mut file = Vec::new();
        PcapWriter::new(&mut file, LinkType::Raw).unwrap().write(Duration::ZERO, &[1; 40]).unwrap();
        for len in 0..24 {
            assert!(matches!(PcapReader::new(&file[..len]), Err(CaptureError::CutShort)), "{len} bytes");
        }
        for len in 25..80 {
            let end = PcapReader::new(&file[..len]).unwrap().read();
            assert!(matches!(end, Err(CaptureError::CutShort)), "{len} bytes");
        }
        let with = |at: usize, byte| {
            let mut file = file.clone();
            file[at] = byte;
            file
        };
        assert!(matches!(PcapReader::new(&with(0, 0)[..]), Err(CaptureError::Magic)));
        assert!(matches!(PcapReader::new(&with(4, 3)[..]), Err(CaptureError::Version)));
        let lie = with(35, 0xff);
        assert!(matches!(PcapReader::new(&lie[..]).unwrap().read(), Err(CaptureError::TooLong(0xff00_0028))));
    }
}
