//! `struct ifreq`: the name of an interface, and a value.

use libc::{c_int, c_void, sockaddr};

/// `struct ifreq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct InterfaceRequest {
    pub(super) name: [u8; libc::IFNAMSIZ],
    /// A union; each value is at its front.
    value: [u8; 24],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

impl InterfaceRequest {
    pub(super) const LEN: usize = size_of::<Self>();

    /// Request with an address.
    pub(super) fn new(name: &[u8], address: &sockaddr) -> Self {
        let mut request = Self { name: padded(name), value: [0; 24] };
        request.set_address(address);
        request
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        [&self.name[..], &self.value].concat()
    }

    /// Number, MTU, metric and others.
    pub(super) const fn number(&self) -> c_int {
        let [a, b, c, d, ..] = self.value;
        c_int::from_ne_bytes([a, b, c, d])
    }

    pub(super) fn set_number(&mut self, number: c_int) {
        self.value[..4].copy_from_slice(&number.to_ne_bytes());
    }

    pub(super) const fn flags(&self) -> i16 {
        let [a, b, ..] = self.value;
        i16::from_ne_bytes([a, b])
    }

    pub(super) fn set_flags(&mut self, flags: i16) {
        self.value[..2].copy_from_slice(&flags.to_ne_bytes());
    }

    pub(super) fn address(&self) -> sockaddr {
        let mut data = self.value[2..].iter();
        sockaddr { sa_family: self.flags() as u16, sa_data: [(); 14].map(|()| data.next().copied().unwrap_or(0) as _) }
    }

    pub(super) fn set_address(&mut self, address: &sockaddr) {
        self.value[..2].copy_from_slice(&address.sa_family.to_ne_bytes());
        self.value[2..].iter_mut().zip(address.sa_data).for_each(|(to, byte)| *to = byte as u8);
    }

    /// Pointer of the program's.
    pub(super) fn pointer(&self) -> *mut c_void {
        let [a, b, c, d, e, f, g, h, ..] = self.value;
        std::ptr::with_exposed_provenance_mut(usize::from_ne_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// Name, truncated and padded with zeros.
pub(super) fn padded(name: &[u8]) -> [u8; libc::IFNAMSIZ] {
    let mut padded = [0; libc::IFNAMSIZ];
    padded[..libc::IFNAMSIZ - 1].iter_mut().zip(name).for_each(|(to, &byte)| *to = byte);
    padded
}
