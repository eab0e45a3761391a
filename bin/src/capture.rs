//! `fatpath capture`: receives a link's packets as pcapng and writes them to a file or a pipe.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;

use client::{CliError, Client};
use ctl::{Reply, Request};
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::CaptureArgs;

/// Block type that begins a pcapng section, the same in both byte orders.
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Block type of an Enhanced Packet Block.
const ENHANCED_PACKET: u32 = 6;
/// Byte-order magic of a little-endian section.
const LITTLE_ENDIAN: [u8; 4] = 0x1a2b_3c4d_u32.to_le_bytes();
/// Limit of a block's length, above that of any block with a 64 KiB packet.
const MAX_BLOCK_LEN: usize = 1 << 20;

/// Captures until a signal, or until the gateway or the reader of the output closes its end.
///
/// # Errors
/// The link does not exist, the gateway does not run, or the output cannot be written.
pub(crate) fn main(args: &CaptureArgs, instance: &str) -> Result<(), CliError> {
    if args.write.is_none() && io::stdout().is_terminal() {
        return Err(CliError::failed("a capture is not text; name a file with -w, or pipe it to another program."));
    }
    let mut client = Client::connect(instance)?;
    let request = Request::Capture { link: args.link.clone(), after_gro: args.after_gro };
    if client.ask(&request)? != Reply::Capturing {
        return Err(client.confused());
    }
    let failed = |err: io::Error| CliError::failed(format!("capture: {err}"));
    let (from, connection) = client.into_stream().map_err(failed)?;
    end_on_signal(connection.try_clone().map_err(failed)?).map_err(failed)?;
    let packets = match &args.write {
        Some(path) => {
            let named = |err: io::Error| CliError::failed(format!("{}: {err}", path.display()));
            let file = File::create(path).map_err(named)?;
            end_with_reader(&file, connection).map_err(named)?;
            copy_blocks(from, file).map_err(named)?
        }
        None => {
            end_with_reader(io::stdout(), connection).map_err(failed)?;
            copy_blocks(from, io::stdout().lock()).map_err(failed)?
        }
    };
    let _ = writeln!(io::stderr(), "{packets} {} captured", if packets == 1 { "packet" } else { "packets" });
    Ok(())
}

/// Closes the connection on SIGINT and SIGTERM, so that the copy ends after the last whole block.
pub(crate) fn end_on_signal(connection: UnixStream) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if signals.forever().next().is_some() {
            // The call fails only if the gateway has closed the connection already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    })?;
    Ok(())
}

/// Closes the connection when `output` loses its reader: without packets to write, a write would not report it.
pub(crate) fn end_with_reader(output: impl AsFd, connection: UnixStream) -> io::Result<()> {
    let output = output.as_fd().try_clone_to_owned()?;
    thread::Builder::new().name("reader".to_owned()).spawn(move || {
        // No events are requested: poll(2) reports a hang-up and an error in any case.
        let mut fds = [PollFd::new(&output, PollFlags::empty())];
        while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
        if fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    })?;
    Ok(())
}

/// Copies whole pcapng blocks, so that the file is valid wherever it ends. Returns the number of packets.
fn copy_blocks(mut from: impl Read, mut to: impl Write) -> io::Result<u64> {
    let mut packets = 0;
    let mut little_endian = true;
    let mut block = vec![0; 12];
    loop {
        if !fill(&mut from, &mut block[..12])? {
            return Ok(packets);
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
            return Ok(packets);
        }
        match to.write_all(&block).and_then(|()| to.flush()) {
            Err(err) if err.kind() == ErrorKind::BrokenPipe => return Ok(packets),
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
                assert_eq!((got, written.len()), want, "cut by {cut}");
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
