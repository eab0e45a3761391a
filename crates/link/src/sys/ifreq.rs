//! `struct ifreq`: what is asked of interfaces and of `/dev/net/tun` by ioctl (netdevice(7)).

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

/// `struct ethtool_link_settings`: its length, where it says how many words a set of link modes has, and the sets behind it.
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
        // keeps no pointer to it. Those with an address in it, of `ethtool`, have a structure there that outlives this.
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

/// Room for link settings, aligned as they are.
#[repr(C, align(4))]
struct Settings([u8; SETTINGS_LEN + SETS * 4 * i8::MAX as usize]);

/// An interface of the network namespace in which this was made, asked by the name that it has.
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

    /// The name that the interface of that number has now, if there is one.
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

    /// Gives it another Ethernet address.
    pub(crate) fn set_mac(&self, mac: MacAddr) -> io::Result<()> {
        let [family_0, family_1] = libc::ARPHRD_ETHER.to_ne_bytes();
        let [a, b, c, d, e, f] = mac.0;
        self.set(libc::SIOCSIFHWADDR, &[family_0, family_1, a, b, c, d, e, f])
    }

    /// How many receive queues it has now (`ETHTOOL_GCHANNELS`); 1 if its driver does not say.
    pub(crate) fn rx_queues(&self) -> io::Result<u32> {
        // `struct ethtool_channels`: the command; the most there can be for receiving, for sending, for other things and
        // for all; then how many of each there are.
        let mut channels = [ETHTOOL_GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
        match self.ethtool(&mut channels) {
            Ok(()) => Ok(channels[5].saturating_add(channels[8]).max(1)),
            Err(err) if err.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
            Err(err) => Err(err),
        }
    }

    /// What its driver says of its link: `struct ethtool_link_settings`, and behind it link modes that are supported, advertised,
    /// and advertised by the other end, each set in `words` words of 32 bits.
    ///
    /// # Errors
    /// What the system says; `EOPNOTSUPP`: the driver says nothing.
    pub(crate) fn link_settings(&self, words: usize) -> io::Result<Vec<u8>> {
        // As many words as the structure can say, so that there is room whatever it says.
        let mut block = Settings([0; SETTINGS_LEN + SETS * 4 * i8::MAX as usize]);
        block.0[..4].copy_from_slice(&ETHTOOL_GLINKSETTINGS.to_ne_bytes());
        self.ethtool(&mut block)?;
        // So many words the kernel has, and asks for that number.
        let asked = (block.0[SET_WORDS_AT] as i8).unsigned_abs();
        block.0[SET_WORDS_AT] = asked;
        self.ethtool(&mut block)?;
        let (head, sets) = block.0.split_at(SETTINGS_LEN);
        let mut settings = head.to_vec();
        settings[SET_WORDS_AT] = words as u8;
        for set in sets.chunks(4 * usize::from(asked).max(1)).take(SETS) {
            let end = settings.len() + 4 * words;
            settings.extend(set.iter().take(4 * words));
            settings.resize(end, 0);
        }
        Ok(settings)
    }

    /// Has the kernel read and write the structure by whose first word it knows the command.
    fn ethtool<T>(&self, block: &mut T) -> io::Result<()> {
        let mut req = IfReq::new(&self.name)?;
        // By this address, for as long as the call takes.
        req.set_value(&std::ptr::from_mut(block).expose_provenance().to_ne_bytes());
        req.call(self.control.as_fd(), SIOCETHTOOL as c_ulong)
    }

    pub(crate) fn is_up(&self) -> io::Result<bool> {
        Ok(i32::from(self.flags()?) & libc::IFF_UP != 0)
    }

    /// Whether it is up, and the one that had the number `index`: another interface of the same name is not the one that a
    /// socket is bound to.
    ///
    /// # Errors
    /// What was asked, and why not.
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

    /// The MTU of a link that is to have `wanted`, or the interface's own, if that [is up](Self::check_up).
    ///
    /// # Errors
    /// What was asked, and why not.
    pub(crate) fn mtu_now(&mut self, index: i32, wanted: Option<u16>) -> Result<usize, (&'static str, io::Error)> {
        self.check_up(index)?;
        let limit = self.mtu().map_err(|err| ("SIOCGIFMTU", err))?;
        Ok(wanted.map_or(limit, |wanted| limit.min(wanted.into())))
    }

    pub(crate) fn set_up(&self) -> io::Result<()> {
        let flags = i32::from(self.flags()?) | libc::IFF_UP;
        self.set(libc::SIOCSIFFLAGS, &(flags as i16).to_ne_bytes())
    }

    /// Makes it resolve no addresses (`IFF_NOARP`).
    pub(crate) fn set_no_arp(&self) -> io::Result<()> {
        let flags = i32::from(self.flags()?) | libc::IFF_NOARP;
        self.set(libc::SIOCSIFFLAGS, &(flags as i16).to_ne_bytes())
    }

    fn flags(&self) -> io::Result<i16> {
        Ok(i16::from_ne_bytes(self.get(libc::SIOCGIFFLAGS)?))
    }
}

/// Attaches a queue of `/dev/net/tun` to the device of that name, which is made if it is not there (`TUNSETIFF`).
pub(crate) fn tun_attach(fd: BorrowedFd<'_>, name: &str, flags: c_int) -> io::Result<()> {
    let mut req = IfReq::new(name)?;
    req.set_value(&(flags as i16).to_ne_bytes());
    req.call(fd, libc::TUNSETIFF as c_ulong)
}

/// Sets how many bytes the virtio-net header has (`TUNSETVNETHDRSZ`).
pub(crate) fn tun_set_header_len(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let len = c_int::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: this request reads one `int` at the address, and keeps no pointer to it.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, std::ptr::from_ref(&len)) })?;
    Ok(())
}

/// Says which number the device is to have that a queue, which is attached to none yet, makes (`TUNSETIFINDEX`).
pub(crate) fn tun_set_index(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    // SAFETY: this request reads one number, which is there.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFINDEX, std::ptr::from_ref(&index)) })?;
    Ok(())
}

/// Says whether the device outlives its queues (`TUNSETPERSIST`).
pub(crate) fn tun_set_persistent(fd: BorrowedFd<'_>, persistent: bool) -> io::Result<()> {
    // SAFETY: this request's argument is a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETPERSIST, c_ulong::from(persistent)) })?;
    Ok(())
}

/// Says which offloads the reader understands (`TUNSETOFFLOAD`).
pub(crate) fn tun_set_offload(fd: BorrowedFd<'_>, offloads: u32) -> io::Result<()> {
    // SAFETY: this request's argument is a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, c_ulong::from(offloads)) })?;
    Ok(())
}
