//! Netlink messages: parsing of a datagram into messages, and serialisation (RFC 3549 §2.2, `linux/netlink.h`).

use zeroize::Zeroize;

/// Length of `struct nlmsghdr`.
pub const HEADER_LEN: usize = 16;

/// Types of control messages, which all protocols share (`NLMSG_*`).
pub mod kind {
    /// An error, or an acknowledgement.
    pub const ERROR: u16 = 2;
    /// The end of a dump.
    pub const DONE: u16 = 3;
    /// The first type that a protocol defines.
    pub const MIN: u16 = 16;
}

/// Flags of a message (`NLM_F_*`).
pub mod flag {
    /// Request.
    pub const REQUEST: u16 = 0x1;
    /// One message of several, the last of which is [`DONE`](super::kind::DONE).
    pub const MULTI: u16 = 0x2;
    /// Requests an acknowledgement.
    pub const ACK: u16 = 0x4;
    /// Requests a copy of the notifications that the request causes.
    pub const ECHO: u16 = 0x8;
    /// The dump was interrupted by a change.
    pub const DUMP_INTR: u16 = 0x10;
    /// The dump is filtered by the attributes of the request.
    pub const DUMP_FILTERED: u16 = 0x20;
    /// Get: all entries.
    pub const ROOT: u16 = 0x100;
    /// Get: all entries that match.
    pub const MATCH: u16 = 0x200;
    /// Get: a dump.
    pub const DUMP: u16 = ROOT | MATCH;
    /// New: replaces an existing object.
    pub const REPLACE: u16 = 0x100;
    /// New: fails if the object exists.
    pub const EXCL: u16 = 0x200;
    /// Flag of a delete request for every object that fits (`NLM_F_BULK`).
    pub const BULK: u16 = 0x200;
    /// New: creates the object if it does not exist.
    pub const CREATE: u16 = 0x400;
    /// New: adds the object behind existing ones.
    pub const APPEND: u16 = 0x800;
    /// An error: the request is not quoted.
    pub const CAPPED: u16 = 0x100;
    /// An error: attributes follow.
    pub const ACK_TLVS: u16 = 0x200;
}

/// `struct nlmsghdr`, without its length.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Header {
    /// Type of the message.
    pub kind: u16,
    /// See [`flag`].
    pub flags: u16,
    /// Sequence number, which the requester chooses.
    pub seq: u32,
    /// The requester's port.
    pub port: u32,
}

impl Header {
    /// Whether all of `flags` are set.
    pub const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

/// One message of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Message<'a> {
    /// Header.
    pub header: Header,
    /// All bytes of the message, with the header.
    pub bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// Bytes behind the header.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..]
    }
}

/// `len` rounded up to the boundary at which messages and attributes begin.
pub const fn align(len: usize) -> usize {
    len.saturating_add(3) & !3
}

/// Iterator over the messages of a datagram. A message with a wrong length ends the iteration: the start of the next
/// message is unknown (Linux `netlink_rcv_skb`).
#[derive(Clone, Debug)]
pub struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    /// Messages of `datagram`.
    pub const fn new(datagram: &'a [u8]) -> Self {
        Self(datagram)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = *self.0.first_chunk()?;
        let len = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
        let bytes = self.0.get(..len).filter(|bytes| bytes.len() >= HEADER_LEN)?;
        self.0 = self.0.get(align(len)..).unwrap_or_default();
        let header = Header {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            seq: u32::from_ne_bytes([s0, s1, s2, s3]),
            port: u32::from_ne_bytes([p0, p1, p2, p3]),
        };
        Some(Message { header, bytes })
    }
}

/// Serialised messages, one behind the other.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Writer that does not reallocate until `len` bytes are written.
    pub fn with_capacity(len: usize) -> Self {
        Self { bytes: Vec::with_capacity(len) }
    }

    /// Written bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Written bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Number of written bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Removes all messages, and keeps the allocation.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Removes all messages and overwrites their bytes in memory, which may contain keys.
    pub fn wipe(&mut self) {
        self.bytes.zeroize();
    }

    /// Frees the allocation above `capacity` bytes.
    pub(super) fn shrink_to(&mut self, capacity: usize) {
        self.bytes.shrink_to(capacity);
    }

    /// Truncates the buffer to its first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Writes a message; `body` writes the payload.
    pub fn message(&mut self, header: Header, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        for half in [header.kind, header.flags] {
            self.bytes.extend_from_slice(&half.to_ne_bytes());
        }
        for word in [header.seq, header.port] {
            self.bytes.extend_from_slice(&word.to_ne_bytes());
        }
        body(self);
        // The length is that of the aligned end, as in the kernel, whose messages end with a padded attribute.
        let len = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Writes the fixed part of a payload, with padding.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    /// Writes an attribute.
    ///
    /// # Panics
    /// If `data` is longer than an attribute can be. A payload received from a client never is: it arrived in an
    /// attribute.
    pub fn put(&mut self, kind: u16, data: &[u8]) {
        let len = u16::try_from(data.len() + 4).unwrap_or_else(|_| panic!("attribute {kind}: {} bytes", data.len()));
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    /// Writes an attribute of 8 bits.
    pub fn put_u8(&mut self, kind: u16, value: u8) {
        self.put(kind, &[value]);
    }

    /// Writes an attribute of 16 bits.
    pub fn put_u16(&mut self, kind: u16, value: u16) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// Writes an attribute of 32 bits.
    pub fn put_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// Writes an attribute of 64 bits.
    pub fn put_u64(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// Writes a text with its terminating zero byte.
    pub fn put_str(&mut self, kind: u16, text: &str) {
        let with_nul: Vec<u8> = text.bytes().chain([0]).collect();
        self.put(kind, &with_nul);
    }

    /// Writes an address, in the length of its family.
    pub fn put_ip(&mut self, kind: u16, addr: std::net::IpAddr) {
        match addr {
            std::net::IpAddr::V4(addr) => self.put(kind, &addr.octets()),
            std::net::IpAddr::V6(addr) => self.put(kind, &addr.octets()),
        }
    }

    /// Writes a nested attribute; `body` writes the attributes inside.
    ///
    /// # Panics
    /// As [`put`](Self::put).
    pub fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        body(self);
        let len = self.bytes.len() - start;
        let len = u16::try_from(len).unwrap_or_else(|_| panic!("attribute {kind}: {len} bytes"));
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(align(self.bytes.len()), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(lens: &[(u32, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (at, &(header_len, real)) in lens.iter().enumerate() {
            let mut message = vec![0; real];
            if real >= HEADER_LEN {
                message[..4].copy_from_slice(&header_len.to_ne_bytes());
                message[8] = at as u8;
            }
            bytes.extend(message);
        }
        bytes
    }

    #[test]
    fn a_datagram_is_cut_into_messages_until_a_length_is_wrong() {
        let cases: [(&[(u32, usize)], usize); 9] = [
            (&[(16, 16)], 1),
            (&[(16, 16), (20, 20), (16, 16)], 3),
            (&[(17, 20), (16, 16)], 2), // padded
            (&[(17, 17)], 1),           // the last attribute needs no padding
            (&[(15, 16), (16, 16)], 0),
            (&[(0, 16), (16, 16)], 0),
            (&[(33, 32)], 0),
            (&[(u32::MAX, 32)], 0),
            (&[(16, 16), (16, 15)], 1),
        ];
        for (lens, want) in cases {
            let bytes = datagram(lens);
            let seqs: Vec<_> = Messages::new(&bytes).map(|message| message.header.seq).collect();
            assert_eq!(seqs.len(), want, "{lens:?}");
        }
    }

    #[test]
    fn written_message_is_read_again() {
        let mut writer = Writer::default();
        let header = Header { kind: 24, flags: flag::REQUEST | flag::ACK, seq: 7, port: 8 };
        writer.message(header, |w| {
            w.fixed(&[1, 2, 3]);
            w.put_u32(4, 5);
            w.nest(6, |w| w.put_str(7, "tun0"));
        });
        writer.message(header, |_| {});
        let messages: Vec<_> = Messages::new(writer.as_bytes()).collect();
        assert_eq!(
            messages.iter().map(|m| (m.header, m.bytes.len())).collect::<Vec<_>>(),
            [(header, 44), (header, 16)]
        );
        assert_eq!(messages[0].payload()[..4], [1, 2, 3, 0]);
        assert!(messages[0].header.has(flag::ACK) && !messages[0].header.has(flag::ACK | flag::ECHO));
    }
}
