//! I/O memory of a partition: its mapped buffers, by the addresses that the hypervisor uses.

use packet::Buf;

/// Number of bits for the offset in a region: no buffer is longer than 128 KiB.
const OFFSET_BITS: u32 = 17;

/// Longest region, in bytes.
const MAX_LEN: usize = 1 << OFFSET_BITS;

/// Maximum number of regions: 32-bit addresses, without the region of address 0.
const MAX_REGIONS: usize = (1 << (32 - OFFSET_BITS)) - 1;

/// Mapped buffers. An address consists of a region's number and an offset; 0 is invalid.
#[derive(Debug)]
pub struct IoMemory {
    regions: Vec<Option<Buf>>,
    free: Vec<u32>,
    limit: usize,
}

impl IoMemory {
    /// Memory of at most `limit` regions, the partition's entitlement.
    pub fn new(limit: usize) -> Self {
        Self { regions: Vec::new(), free: Vec::new(), limit: limit.min(MAX_REGIONS) }
    }

    /// Number of regions that can still be mapped.
    pub fn room(&self) -> usize {
        self.limit - (self.regions.len() - self.free.len())
    }

    /// Maps the data of a buffer. Returns its address.
    ///
    /// # Errors
    /// The buffer itself, if no region is free, or the buffer is too long.
    pub fn map(&mut self, buf: Buf) -> Result<u32, Buf> {
        if self.room() == 0 || buf.len() > MAX_LEN {
            return Err(buf);
        }
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.regions.push(None);
                self.regions.len() as u32 - 1
            }
        };
        self.regions[at as usize] = Some(buf);
        Ok((at + 1) << OFFSET_BITS)
    }

    /// Unmaps the buffer of the region at `address`; `None` if there is none.
    pub fn unmap(&mut self, address: u32) -> Option<Buf> {
        let at = Self::region(address)?;
        let buf = self.regions.get_mut(at)?.take()?;
        self.free.push(at as u32);
        Some(buf)
    }

    /// The `len` bytes at `address`, if they are mapped.
    pub fn bytes(&self, address: u32, len: usize) -> Option<&[u8]> {
        let buf = self.regions.get(Self::region(address)?)?.as_ref()?;
        let start = Self::offset(address);
        buf.bytes().get(start..start.checked_add(len)?)
    }

    /// As [`bytes`](Self::bytes), for writing; `None` also if the buffer is shared.
    pub fn bytes_mut(&mut self, address: u32, len: usize) -> Option<&mut [u8]> {
        let buf = self.regions.get_mut(Self::region(address)?)?.as_mut()?;
        let start = Self::offset(address);
        buf.bytes_mut()?.get_mut(start..start.checked_add(len)?)
    }

    fn region(address: u32) -> Option<usize> {
        (address >> OFFSET_BITS).checked_sub(1).map(|at| at as usize)
    }

    const fn offset(address: u32) -> usize {
        address as usize & (MAX_LEN - 1)
    }
}

#[cfg(test)]
mod tests {
    use packet::Memory;

    use super::*;

    fn buf(mem: &Memory, bytes: &[u8]) -> Buf {
        let mut buf = mem.take(0, bytes.len()).unwrap();
        buf.put(bytes.len()).unwrap().copy_from_slice(bytes);
        buf
    }

    #[test]
    fn mapped_bytes_are_found_by_address_alone() {
        let mem = Memory::heap();
        let mut io = IoMemory::new(2);
        let [a, b] = [b"abc", b"def"].map(|bytes| io.map(buf(&mem, bytes)).unwrap());
        assert_eq!((io.bytes(a, 3), io.bytes(b + 1, 2)), (Some(&b"abc"[..]), Some(&b"ef"[..])));
        // Beyond the end, in no region, and at address 0.
        assert_eq!((io.bytes(a, 4), io.bytes(a + 3, 1), io.bytes(b << 1, 1), io.bytes(0, 1)), (None, None, None, None));
        assert_eq!(io.bytes(u32::MAX, usize::MAX), None);
        io.bytes_mut(b, 1).unwrap()[0] = b'x';
        assert_eq!(io.unmap(b).unwrap().bytes(), b"xef");
        assert_eq!(io.bytes(b, 1), None);
        assert!(io.unmap(b).is_none() && io.unmap(0).is_none());
    }

    #[test]
    fn mapping_beyond_the_entitlement_is_refused() {
        let mem = Memory::heap();
        let mut io = IoMemory::new(1);
        let a = io.map(buf(&mem, b"abc")).unwrap();
        assert_eq!(io.room(), 0);
        assert_eq!(io.map(buf(&mem, b"def")).unwrap_err().bytes(), b"def");
        io.unmap(a).unwrap();
        assert_eq!(io.room(), 1);
        assert_eq!(io.map(buf(&mem, b"def")).unwrap(), a);
    }

    #[test]
    fn shared_bytes_are_read_and_not_written() {
        let mem = Memory::heap();
        let mut io = IoMemory::new(1);
        let mut one = buf(&mem, b"abc");
        let other = one.share();
        let a = io.map(one).unwrap();
        assert_eq!(io.bytes(a, 3), Some(&b"abc"[..]));
        assert!(io.bytes_mut(a, 3).is_none());
        drop(other);
        assert!(io.bytes_mut(a, 3).is_some());
    }
}
