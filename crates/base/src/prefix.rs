//! Address prefixes of routes and selectors, and the addresses of a link with their prefixes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address prefix whose host bits are all zero, such as `10.0.0.0/8` (RFC 4632 §3.1, RFC 4291 §2.3).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

/// An address of a link with its prefix, such as `10.1.0.254/24`. Linux: `struct ifaddr`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct IfAddr {
    addr: IpAddr,
    len: u8,
}

/// Error: a text or a pair of values is not a prefix. `Display` names the offending value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PrefixError {
    given: String,
    why: &'static str,
}

impl Prefix {
    /// All IPv4 addresses.
    pub const ANY_V4: Self = Self { addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED), len: 0 };
    /// All IPv6 addresses.
    pub const ANY_V6: Self = Self { addr: IpAddr::V6(Ipv6Addr::UNSPECIFIED), len: 0 };

    /// The prefix of `len` bits that begins with `addr`.
    ///
    /// # Errors
    /// If `len` exceeds the length of an address of that family, or `addr` has bits set after the first `len`.
    pub fn new(addr: IpAddr, len: u8) -> Result<Self, PrefixError> {
        let prefix = Self::containing(addr, len)?;
        if prefix.addr != addr {
            return Err(PrefixError { given: format!("{addr}/{len}"), why: "host bits set" });
        }
        Ok(prefix)
    }

    /// The prefix of `len` bits that contains `addr`: its host bits are cleared.
    ///
    /// # Errors
    /// If `len` exceeds the length of an address of that family.
    pub fn containing(addr: IpAddr, len: u8) -> Result<Self, PrefixError> {
        check_len(addr, len, || format!("{addr}/{len}"))?;
        Ok(Self { addr: masked(addr, len), len })
    }

    /// The prefix that contains only `addr`.
    pub const fn host(addr: IpAddr) -> Self {
        Self { addr, len: bits_of(addr) }
    }

    /// The first address, whose host bits are zero.
    pub const fn addr(self) -> IpAddr {
        self.addr
    }

    /// Number of leading bits in the prefix.
    #[allow(clippy::len_without_is_empty, reason = "a prefix length, not a number of items")]
    pub const fn len(self) -> u8 {
        self.len
    }

    /// Tells whether this is an IPv4 prefix.
    pub const fn is_ipv4(self) -> bool {
        self.addr.is_ipv4()
    }

    /// Tells whether the prefix is a single address: `/32`, or `/128` for IPv6.
    pub const fn is_host(self) -> bool {
        self.len == bits_of(self.addr)
    }

    /// Tells whether the prefix contains `addr`. False for an address of the other family.
    pub fn contains(self, addr: IpAddr) -> bool {
        self.addr.is_ipv4() == addr.is_ipv4() && masked(addr, self.len) == self.addr
    }
}

impl IfAddr {
    /// The address `addr` in a subnet whose prefix has `len` bits.
    ///
    /// # Errors
    /// If `len` exceeds the length of an address of that family.
    pub fn new(addr: IpAddr, len: u8) -> Result<Self, PrefixError> {
        check_len(addr, len, || format!("{addr}/{len}"))?;
        Ok(Self { addr, len })
    }

    /// An address that is alone in its subnet.
    pub const fn host(addr: IpAddr) -> Self {
        Self { addr, len: bits_of(addr) }
    }

    /// The address itself.
    pub const fn addr(self) -> IpAddr {
        self.addr
    }

    /// The subnet's prefix, the destination of the connected route.
    pub fn prefix(self) -> Prefix {
        Prefix { addr: masked(self.addr, self.len), len: self.len }
    }

    /// The anycast address of all routers on the subnet, unless this address equals it (RFC 4291 §2.6.1; Linux
    /// `addrconf_join_anycast`). `None` for IPv4, and for a subnet of one or two addresses (RFC 6164 §4).
    pub fn subnet_router_anycast(self) -> Option<IpAddr> {
        let addr = masked(self.addr, self.len);
        (addr.is_ipv6() && self.len < 127 && !addr.is_unspecified() && addr != self.addr).then_some(addr)
    }
}

/// Length of an address: 32 or 128.
const fn bits_of(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn check_len(addr: IpAddr, len: u8, given: impl FnOnce() -> String) -> Result<(), PrefixError> {
    match addr {
        IpAddr::V4(_) if len > 32 => Err(PrefixError { given: given(), why: "an IPv4 prefix has at most 32 bits" }),
        IpAddr::V6(_) if len > 128 => Err(PrefixError { given: given(), why: "an IPv6 prefix has at most 128 bits" }),
        _ => Ok(()),
    }
}

fn masked(addr: IpAddr, len: u8) -> IpAddr {
    match addr {
        IpAddr::V4(addr) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(addr.to_bits() & mask))
        }
        IpAddr::V6(addr) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(addr.to_bits() & mask))
        }
    }
}

/// Parses `ADDRESS[/LENGTH]`; the length defaults to the full address, as in iproute2.
fn parse(text: &str) -> Result<(IpAddr, u8), PrefixError> {
    let error = |why| PrefixError { given: text.to_owned(), why };
    let (addr, len) = match text.split_once('/') {
        Some((addr, len)) => (addr, Some(len)),
        None => (text, None),
    };
    let addr: IpAddr = addr.parse().map_err(|_| error("no IPv4 or IPv6 address"))?;
    let Some(len) = len else { return Ok((addr, bits_of(addr))) };
    if len.is_empty() || !len.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(error("the length after the slash is no number"));
    }
    let len = len.parse().unwrap_or(u8::MAX);
    check_len(addr, len, || text.to_owned())?;
    Ok((addr, len))
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (addr, len) = parse(text)?;
        Self::new(addr, len)
    }
}

impl FromStr for IfAddr {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (addr, len) = parse(text)?;
        Ok(Self { addr, len })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

impl fmt::Display for IfAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Invalid prefix {}: {}", self.given, self.why)
    }
}

impl std::error::Error for PrefixError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_reads_and_prints_as_iproute2_does() {
        let cases = [
            ("10.0.0.0/8", Ok("10.0.0.0/8")),
            ("0.0.0.0/0", Ok("0.0.0.0/0")),
            ("10.0.0.1", Ok("10.0.0.1/32")),
            ("fd00:0:0::/48", Ok("fd00::/48")),
            ("::/0", Ok("::/0")),
            ("fd00::1", Ok("fd00::1/128")),
            ("10.0.0.1/8", Err("Invalid prefix 10.0.0.1/8: host bits set")),
            ("fd00::1/127", Err("Invalid prefix fd00::1/127: host bits set")),
            ("10.0.0.0/33", Err("Invalid prefix 10.0.0.0/33: an IPv4 prefix has at most 32 bits")),
            ("::/129", Err("Invalid prefix ::/129: an IPv6 prefix has at most 128 bits")),
            ("::/999", Err("Invalid prefix ::/999: an IPv6 prefix has at most 128 bits")),
            ("10.0.0.0/", Err("Invalid prefix 10.0.0.0/: the length after the slash is no number")),
            ("10.0.0.0/+8", Err("Invalid prefix 10.0.0.0/+8: the length after the slash is no number")),
            ("10.0/8", Err("Invalid prefix 10.0/8: no IPv4 or IPv6 address")),
            ("", Err("Invalid prefix : no IPv4 or IPv6 address")),
        ];
        for (text, want) in cases {
            let got = text.parse::<Prefix>().map(|prefix| prefix.to_string()).map_err(|err| err.to_string());
            assert_eq!(got, want.map(str::to_owned).map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn a_prefix_contains_its_own_addresses_and_no_others() {
        let cases = [
            ("10.0.0.0/8", "10.255.255.255", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/8", "9.255.255.255", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "::", false),
            ("10.0.0.1/32", "10.0.0.1", true),
            ("10.0.0.1/32", "10.0.0.0", false),
            ("fd00::/64", "fd00::ffff:ffff:ffff:ffff", true),
            ("fd00::/64", "fd00:0:0:1::", false),
            ("::/0", "ffff::1", true),
            ("::/0", "1.2.3.4", false),
        ];
        for (prefix, addr, want) in cases {
            let prefix: Prefix = prefix.parse().unwrap();
            assert_eq!(prefix.contains(addr.parse().unwrap()), want, "{addr} in {prefix}");
        }
    }

    #[test]
    fn an_address_of_a_link_keeps_its_host_bits_beside_its_prefix() {
        let addr: IfAddr = "10.1.0.254/24".parse().unwrap();
        assert_eq!(addr.to_string(), "10.1.0.254/24");
        assert_eq!(addr.prefix().to_string(), "10.1.0.0/24");
        assert_eq!("fd00::1/0".parse::<IfAddr>().unwrap().prefix(), Prefix::ANY_V6);
    }
}
