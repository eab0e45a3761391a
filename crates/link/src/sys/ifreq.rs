//! `struct ifreq`: ioctl requests on interfaces and `/dev/net/tun` (netdevice(7)).

use std::ffi::{c_int, c_ulong};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use wire::eth::MacAddr;

use super::check;

/// `linux/sockios.h` and `linux/ethtool.h`.
const SIOCETHTOOL: c_int = 0x8946;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;

/// `struct ethtool_link_settings`: its length, the offset of the word count of a set of link modes, and the sets behind
/// it.
const SETTINGS_LEN: usize = 48;
const SET_WORDS_AT: usize = 15;
const SETS: usize = 3;

/// `struct ifreq` as bytes: a name and a union.
#[repr(C, align(8))]
struct IfReq {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

const _: () = assert!(size_of::<IfReq>() == size_of::<libc::ifreq>());

impl IfReq {
    fn new(name: &str) -> io::Result<Self> {
        let mut req = Self { name: [0; libc::IFNAMSIZ], value: [0; 24] };
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an interface name has 1 to 15 bytes"));
        }
        req.name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(req)
    }

    fn call(&mut self, fd: BorrowedFd<'_>, request: c_ulong) -> io::Result<()> {
        // SAFETY: every request this module passes takes a `struct ifreq`, which `self` is laid out as; the kernel
        // keeps no pointer to it. An `ethtool` request holds the address of a structure that outlives this call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), request as libc::Ioctl, std::ptr::from_mut(self)) })?;
        Ok(())
    }

    fn value<const N: usize>(&self) -> [u8; N] {
        *self.value.first_chunk().expect("the union has 24 bytes")
    }

    fn set_value(&mut self, bytes: &[u8]) {
        self.value[..bytes.len()].copy_from_slice(bytes);
    }
}

/// Buffer for link settings, with their alignment.
#[repr(C, align(4))]
struct Settings([u8; SETTINGS_LEN + SETS * 4 * i8::MAX as usize]);

/// Interface, by name, in the network namespace where this value was made.
#[derive(Debug)]
pub(crate) struct Interface {
    name: String,
    control: OwnedFd,
}

impl Interface {
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let control = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { name: name.to_owned(), control })
    }

    /// The interface of that name in the network namespace of a socket.
    pub(crate) fn with_control(name: &str, control: OwnedFd) -> Self {
        Self { name: name.to_owned(), control }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn get<const N: usize>(&self, request: c_ulong) -> io::Result<[u8; N]> {
        let mut req = IfReq::new(&self.name)?;
        req.call(self.control.as_fd(), request)?;
        Ok(req.value())
    }

    fn set(&self, request: c_ulong, value: &[u8]) -> io::Result<()> {
        let mut req = IfReq::new(&self.name)?;
        req.set_value(value);
        req.call(self.control.as_fd(), request)
    }

    pub(crate) fn index(&self) -> io::Result<i32> {
        Ok(c_int::from_ne_bytes(self.get(libc::SIOCGIFINDEX)?))
    }

    /// Present name of the interface with that index, if there is one.
    pub(crate) fn name_of(&self, index: i32) -> Option<String> {
        let mut req = IfReq::new("?").ok()?;
        req.set_value(&index.to_ne_bytes());
        req.call(self.control.as_fd(), libc::SIOCGIFNAME as c_ulong).ok()?;
        let end = req.name.iter().position(|&byte| byte == 0)?;
        String::from_utf8(req.name[..end].to_vec()).ok()
    }

    pub(crate) fn mtu(&self) -> io::Result<usize> {
        Ok(usize::try_from(c_int::from_ne_bytes(self.get(libc::SIOCGIFMTU)?)).unwrap_or(0))
    }

    pub(crate) fn set_mtu(&self, mtu: usize) -> io::Result<()> {
        let mtu = c_int::try_from(mtu).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.set(libc::SIOCSIFMTU, &mtu.to_ne_bytes())
    }

    /// The link-layer address, if it is an Ethernet one.
    pub(crate) fn mac(&self) -> io::Result<Option<MacAddr>> {
        // `struct sockaddr`: the type of link, then the address.
        let [family_0, family_1, address @ ..]: [u8; 8] = self.get(libc::SIOCGIFHWADDR)?;
        let ethernet = u16::from_ne_bytes([family_0, family_1]) == libc::ARPHRD_ETHER;
        Ok(ethernet.then_some(MacAddr(address)))
    }

    /// Sets the Ethernet address.
    pub(crate) fn set_mac(&self, mac: MacAddr) -> io::Result<()> {
        let [family_0, family_1] = libc::ARPHRD_ETHER.to_ne_bytes();
        let [a, b, c, d, e, f] = mac.0;
        self.set(libc::SIOCSIFHWADDR, &[family_0, family_1, a, b, c, d, e, f])
    }

    /// Number of receive queues (`ETHTOOL_GCHANNELS`); 1 if the driver does not report it.
    pub(crate) fn rx_queues(&self) -> io::Result<u32> {
        // `struct ethtool_channels`: the command; the maximum of receive, transmit, other and combined channels; then
        // the present number of each.
        let mut channels = [ETHTOOL_GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
        match self.ethtool(&mut channels) {
            Ok(()) => Ok(channels[5].saturating_add(channels[8]).max(1)),
            Err(err) if err.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
            Err(err) => Err(err),
        }
    }

    /// Link settings from the driver: `struct ethtool_link_settings`, followed by the link modes that are supported,
    /// advertised, and advertised by the link partner, each set in `words` words of 32 bits.
    ///
    /// # Errors
    /// Error of the system; `EOPNOTSUPP` if the driver does not support the request.
    pub(crate) fn link_settings(&self, words: usize) -> io::Result<Vec<u8>> {
        // Room for the largest word count that the structure can hold.
        let mut block = Settings([0; SETTINGS_LEN + SETS * 4 * i8::MAX as usize]);
        block.0[..4].copy_from_slice(&ETHTOOL_GLINKSETTINGS.to_ne_bytes());
        self.ethtool(&mut block)?;
        // The kernel answers with its negated word count, which the second request must contain.
        let kernel_words = (block.0[SET_WORDS_AT] as i8).unsigned_abs();
        block.0[SET_WORDS_AT] = kernel_words;
        self.ethtool(&mut block)?;
        let (head, sets) = block.0.split_at(SETTINGS_LEN);
        let mut settings = head.to_vec();
        settings[SET_WORDS_AT] = words as u8;
        for set in sets.chunks(4 * usize::from(kernel_words).max(1)).take(SETS) {
            let end = settings.len() + 4 * words;
            settings.extend(set.iter().take(4 * words));
            settings.resize(end, 0);
        }
        Ok(settings)
    }

    /// Makes the `SIOCETHTOOL` request with a structure whose first word is the command.
    fn ethtool<T>(&self, block: &mut T) -> io::Result<()> {
        let mut req = IfReq::new(&self.name)?;
        // The address is used during the call only.
        req.set_value(&std::ptr::from_mut(block).expose_provenance().to_ne_bytes());
        req.call(self.control.as_fd(), SIOCETHTOOL as c_ulong)
    }

    pub(crate) fn is_up(&self) -> io::Result<bool> {
        Ok(i32::from(self.flags()?) & libc::IFF_UP != 0)
    }

    /// Checks that the interface is up and still has `index`: a socket is not bound to another interface of the same
    /// name.
    ///
    /// # Errors
    /// The request, and its error.
    pub(crate) fn check_up(&mut self, index: i32) -> Result<(), (&'static str, io::Error)> {
        let (number, flags) = ("SIOCGIFINDEX", "SIOCGIFFLAGS");
        if let Some(name) = self.name_of(index) {
            self.name = name;
        }
        let now = self.index().map_err(|err| (number, err))?;
        let up = self.is_up().map_err(|err| (flags, err))?;
        if now != index {
            return Err((number, io::Error::other(format!("{} is another interface now", self.name))));
        }
        if up { Ok(()) } else { Err((flags, io::Error::from_raw_os_error(libc::ENETDOWN))) }
    }

    /// MTU of a link: `configured`, or the interface's own. The interface must [be up](Self::check_up).
    ///
    /// # Errors
    /// The request, and its error.
    pub(crate) fn mtu_now(&mut self, index: i32, configured: Option<u16>) -> Result<usize, (&'static str, io::Error)> {
        self.check_up(index)?;
        let limit = self.mtu().map_err(|err| ("SIOCGIFMTU", err))?;
        Ok(configured.map_or(limit, |configured| limit.min(configured.into())))
    }

    pub(crate) fn set_up(&self) -> io::Result<()> {
        let flags = i32::from(self.flags()?) | libc::IFF_UP;
        self.set(libc::SIOCSIFFLAGS, &(flags as i16).to_ne_bytes())
    }

    /// Turns address resolution off (`IFF_NOARP`).
    pub(crate) fn set_no_arp(&self) -> io::Result<()> {
        let flags = i32::from(self.flags()?) | libc::IFF_NOARP;
        self.set(libc::SIOCSIFFLAGS, &(flags as i16).to_ne_bytes())
    }

    fn flags(&self) -> io::Result<i16> {
        Ok(i16::from_ne_bytes(self.get(libc::SIOCGIFFLAGS)?))
    }
}

/// Attaches a queue of `/dev/net/tun` to the device of that name, which is created if missing (`TUNSETIFF`).
pub(crate) fn tun_attach(fd: BorrowedFd<'_>, name: &str, flags: c_int) -> io::Result<()> {
    let mut req = IfReq::new(name)?;
    req.set_value(&(flags as i16).to_ne_bytes());
    req.call(fd, libc::TUNSETIFF as c_ulong)
}

/// Whether a queue has a device (`TUNGETIFF`).
pub(crate) fn tun_is_attached(fd: BorrowedFd<'_>) -> bool {
    tun_flags(fd).is_ok()
}

/// Flags in effect for a queue's device (`TUNGETIFF`), those of its first queue.
pub(crate) fn tun_flags(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    let mut req = IfReq::new("?")?;
    req.call(fd, libc::TUNGETIFF as c_ulong)?;
    Ok(c_int::from(i16::from_ne_bytes(req.value())))
}

/// Sets the length of the virtio-net header (`TUNSETVNETHDRSZ`).
pub(crate) fn tun_set_header_len(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let len = c_int::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: this request reads one `int` at the address, and keeps no pointer to it.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, std::ptr::from_ref(&len)) })?;
    Ok(())
}

/// Sets the interface index of the device that an unattached queue will create (`TUNSETIFINDEX`).
pub(crate) fn tun_set_index(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    // SAFETY: this request reads one number at the address, and keeps no pointer to it.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFINDEX, std::ptr::from_ref(&index)) })?;
    Ok(())
}

/// Sets whether the device outlives its queues (`TUNSETPERSIST`).
pub(crate) fn tun_set_persistent(fd: BorrowedFd<'_>, persistent: bool) -> io::Result<()> {
    // SAFETY: this request's argument is a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETPERSIST, c_ulong::from(persistent)) })?;
    Ok(())
}

/// Sets the offloads that the reader understands (`TUNSETOFFLOAD`).
pub(crate) fn tun_set_offload(fd: BorrowedFd<'_>, offloads: u32) -> io::Result<()> {
    // SAFETY: this request's argument is a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, c_ulong::from(offloads)) })?;
    Ok(())
}
