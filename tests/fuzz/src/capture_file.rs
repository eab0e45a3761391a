//! Capture file of either format: records or an error, with memory for at most one packet.

use link::capture::MAX_PACKET;
use link::{pcap, pcapng};

/// Runs one input.
pub fn target(file: &[u8]) {
    if let Ok(mut reader) = pcap::PcapReader::new(file) {
        while let Ok(Some(record)) = reader.read() {
            assert!(record.bytes.len() <= MAX_PACKET);
        }
    }
    if let Ok(mut reader) = pcapng::PcapngReader::new(file) {
        while let Ok(Some(record)) = reader.read() {
            assert!(record.bytes.len() <= MAX_PACKET);
        }
    }
}
