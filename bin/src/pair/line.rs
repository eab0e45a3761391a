//! The line that one end of a pair gives to the other: `fp1:` and base64url of its public key, address, port and networks.
//!
//! Nothing in it is secret. A program that changes it on its way becomes the peer, so each end prints the [fingerprint](PairLine::fingerprint) of both lines.
//! Layout of version 1, numbers big-endian:
//!
//! | bytes | |
//! |---|---|
//! | 32 | Ed25519 public key (RFC 8032) |
//! | 1 + 4 or 16 | address: 4 or 6, and its bytes |
//! | 2 | UDP port of IKE and ESP |
//! | 1 | number of networks |
//! | 2 + 4 or 16, each | network: 4 or 6, length of the prefix, and its bytes |
//! | 4 | first bytes of the SHA-256 of all before |

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::Prefix;
use ring::digest::{SHA256, digest};

use super::base64;

/// Start of a line.
const START: &str = "fp1:";
/// Bytes of the checksum.
const CHECK_LEN: usize = 4;
/// Networks at most.
pub(super) const MAX_NETS: usize = 32;
/// Characters of a line at most: longer ones are refused unread.
const MAX_CHARS: usize = 1200;

/// Public part of one end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PairLine {
    pub(super) key: [u8; 32],
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) nets: Vec<Prefix>,
}

impl PairLine {
    /// Reads a line.
    ///
    /// # Errors
    /// The line is cut, damaged, of a newer version, or none of a pair.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let Some(coded) = text.strip_prefix(START) else {
            let version = text.strip_prefix("fp").and_then(|rest| rest.split_once(':')?.0.parse::<u32>().ok());
            return Err(match version {
                Some(version) if version > 1 => {
                    format!("the line is of version {version} of pairs; this program reads version 1: update it")
                }
                _ => format!("this is no line of fatpath pair, which begins with {START}"),
            });
        };
        let damaged = || "the line is cut or damaged: copy it again, from fp1: to its end".to_owned();
        if text.len() > MAX_CHARS {
            return Err(damaged());
        }
        let bytes = base64::decode(coded).ok_or_else(damaged)?;
        let (content, check) = bytes.split_last_chunk::<CHECK_LEN>().ok_or_else(damaged)?;
        if checksum(content) != *check {
            return Err(damaged());
        }
        let mut rest = content;
        let line = Self::read(&mut rest).filter(|_| rest.is_empty()).ok_or_else(damaged)?;
        Ok(line)
    }

    fn read(rest: &mut &[u8]) -> Option<Self> {
        let key = *take(rest)?;
        let [family] = *take(rest)?;
        let address = read_address(rest, family)?;
        let port = u16::from_be_bytes(*take(rest)?);
        let [count] = *take(rest)?;
        let nets = (0..count).map(|_| {
            let [family, len] = *take(rest)?;
            Prefix::new(read_address(rest, family)?, len).ok()
        });
        let nets: Vec<Prefix> = nets.collect::<Option<_>>()?;
        (port > 0 && (1..=MAX_NETS).contains(&nets.len())).then_some(Self { key, address, port, nets })
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = self.key.to_vec();
        push_family(&mut bytes, self.address);
        push_address(&mut bytes, self.address);
        bytes.extend(self.port.to_be_bytes());
        bytes.push(self.nets.len() as u8);
        for net in &self.nets {
            push_family(&mut bytes, net.addr());
            bytes.push(net.len());
            push_address(&mut bytes, net.addr());
        }
        bytes
    }

    /// Four words by which a line is compared at both ends: 64 bits of its SHA-256, as proquints (Wilkerson, 2009).
    pub(super) fn fingerprint(&self) -> String {
        const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
        const VOWELS: &[u8; 4] = b"aiou";
        let hash = digest(&SHA256, &self.content());
        let words = hash.as_ref()[..8].chunks(2).map(|pair| {
            let bits = usize::from(pair[0]) << 8 | usize::from(pair[1]);
            let letters = [
                CONSONANTS[bits >> 12],
                VOWELS[bits >> 10 & 3],
                CONSONANTS[bits >> 6 & 15],
                VOWELS[bits >> 4 & 3],
                CONSONANTS[bits & 15],
            ];
            letters.map(char::from).iter().collect::<String>()
        });
        words.collect::<Vec<_>>().join("-")
    }
}

impl fmt::Display for PairLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.content();
        bytes.extend(checksum(&bytes));
        write!(f, "{START}{}", base64::encode_url(&bytes))
    }
}

fn checksum(content: &[u8]) -> [u8; CHECK_LEN] {
    let hash = digest(&SHA256, content);
    let mut check = [0; CHECK_LEN];
    check.copy_from_slice(&hash.as_ref()[..CHECK_LEN]);
    check
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (front, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(front)
}

fn read_address(rest: &mut &[u8], family: u8) -> Option<IpAddr> {
    match family {
        4 => take::<4>(rest).map(|&bytes| Ipv4Addr::from(bytes).into()),
        6 => take::<16>(rest).map(|&bytes| Ipv6Addr::from(bytes).into()),
        _ => None,
    }
}

fn push_family(bytes: &mut Vec<u8>, address: IpAddr) {
    bytes.push(if address.is_ipv4() { 4 } else { 6 });
}

fn push_address(bytes: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => bytes.extend(v4.octets()),
        IpAddr::V6(v6) => bytes.extend(v6.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> PairLine {
        PairLine {
            key: std::array::from_fn(|at| at as u8),
            address: "192.0.2.1".parse().unwrap(),
            port: 4500,
            nets: vec!["10.1.0.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()],
        }
    }

    #[test]
    fn line_is_read_as_it_was_written() {
        for address in ["192.0.2.1", "2001:db8::1"] {
            let line = PairLine { address: address.parse().unwrap(), ..line() };
            let text = line.to_string();
            assert!(
                text.len() < 140 && text.chars().all(|it| it.is_ascii_alphanumeric() || "-_:".contains(it)),
                "{text}"
            );
            assert_eq!(PairLine::parse(&format!(" {text}\n")), Ok(line));
        }
    }

    #[test]
    fn line_that_is_cut_or_has_another_character_is_refused() {
        let text = line().to_string();
        for len in START.len()..text.len() {
            assert!(PairLine::parse(&text[..len]).is_err_and(|why| why.contains("cut or damaged")), "{len}");
        }
        for at in START.len()..text.len() {
            for other in ["A", "b", "7", "_", "=", "/", " ", "ü"] {
                let damaged = format!("{}{other}{}", &text[..at], &text[at + 1..]);
                if damaged != text {
                    assert!(PairLine::parse(&damaged).is_err(), "{damaged}");
                }
            }
        }
        for longer in [format!("{text}A"), format!("{text}AAAA"), format!("{START}{}", "A".repeat(2000))] {
            assert!(PairLine::parse(&longer).is_err(), "{longer}");
        }
    }

    #[test]
    fn right_checksum_over_wrong_content_is_refused() {
        type Change = fn(&mut Vec<u8>);
        let contents: [Change; 6] = [
            |it| it.truncate(30),
            |it| it[32] = 5,
            |it| it[37..39].fill(0),
            |it| it[39] = 0,
            |it| it[39] = 255,
            |it| it.push(0),
        ];
        for change in contents {
            let mut bytes = line().content();
            change(&mut bytes);
            bytes.extend(checksum(&bytes));
            assert!(PairLine::parse(&format!("{START}{}", base64::encode_url(&bytes))).is_err());
        }
    }

    #[test]
    fn newer_version_and_other_text_are_named() {
        assert!(PairLine::parse("fp2:AAAA").is_err_and(|why| why.contains("version 2")));
        for text in ["", "fp:", "fpx:AA", "10.2.0.0/24", "fp0:AA"] {
            assert!(PairLine::parse(text).is_err_and(|why| why.contains("no line of fatpath pair")), "{text}");
        }
    }

    #[test]
    fn fingerprint_is_of_the_whole_line() {
        let (one, other) = (line(), PairLine { port: 4501, ..line() });
        assert_ne!(one.fingerprint(), other.fingerprint());
        assert_eq!(one.fingerprint().split('-').map(str::len).collect::<Vec<_>>(), [5; 4]);
    }
}
