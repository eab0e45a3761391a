//! Link types, records, errors and byte order of both capture formats.

use std::fmt;
use std::io::{self, Read};
use std::time::Duration;

/// Longest packet that is read: libpcap's `MAXIMUM_SNAPLEN`. A longer one is an error.
pub const MAX_PACKET: usize = 256 << 10;

/// Outermost header of captured packets (<https://www.tcpdump.org/linktypes.html>).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkType {
    /// An Ethernet header.
    Ethernet,
    /// An IP header.
    Raw,
    /// Another type, by its number.
    Other(u16),
}

impl LinkType {
    /// Number of the type (`LINKTYPE_*`).
    pub const fn number(self) -> u16 {
        match self {
            Self::Ethernet => 1,
            Self::Raw => 101,
            Self::Other(number) => number,
        }
    }

    /// The type of that number.
    pub const fn from_number(number: u16) -> Self {
        match number {
            1 => Self::Ethernet,
            101 => Self::Raw,
            number => Self::Other(number),
        }
    }
}

/// A captured packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// Time since the Unix epoch.
    pub at: Duration,
    /// Outermost header.
    pub link_type: LinkType,
    /// Direction, if the file has it.
    pub outbound: Option<bool>,
    /// Length before the capture truncated the packet.
    pub original_len: usize,
    /// Captured bytes.
    pub bytes: Vec<u8>,
}

/// Errors that end the reading of a file.
#[derive(Debug)]
pub enum CaptureError {
    /// Error of the system.
    Io(io::Error),
    /// The file ends within a header, packet or block.
    CutShort,
    /// The magic number is not one of this format.
    Magic,
    /// A version other than 2.4 or 1.0.
    Version,
    /// A packet or block above the limit, with its length.
    TooLong(u32),
    /// A block whose lengths contradict each other or its contents.
    Block,
    /// A packet of an interface that the file has not described.
    Interface(u32),
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(err) => err.fmt(f),
            Self::CutShort => f.write_str("the file is truncated"),
            Self::Magic => f.write_str("not a capture file of this kind"),
            Self::Version => f.write_str("unsupported version"),
            Self::TooLong(len) => write!(f, "length of {len} bytes is above the limit"),
            Self::Block => f.write_str("inconsistent lengths in a block"),
            Self::Interface(number) => write!(f, "packet of interface {number}, which has no description"),
        }
    }
}

impl std::error::Error for CaptureError {}

impl From<io::Error> for CaptureError {
    fn from(err: io::Error) -> Self {
        if err.kind() == io::ErrorKind::UnexpectedEof { Self::CutShort } else { Self::Io(err) }
    }
}

/// The order of a file's bytes, from its magic.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Order {
    /// The 16-bit number at `at`, 0 if there is none.
    pub(crate) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
        if self == Self::Little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) }
    }

    /// The 32-bit number at `at`, 0 if there is none.
    pub(crate) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
        if self == Self::Little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
    }
}

/// Fills `bytes`, or finds that the file has ended before the first of them.
pub(crate) fn read_or_end(file: &mut impl Read, bytes: &mut [u8]) -> Result<bool, CaptureError> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read(&mut bytes[got..]) {
            Ok(0) if got == 0 => return Ok(false),
            Ok(0) => return Err(CaptureError::CutShort),
            Ok(more) => got += more,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(true)
}
