//! SAs with a time limit over an orderly restart: in sealed memory, which the service manager keeps meanwhile.
//!
//! Such SAs belong to a key manager, and their keys are in no file. The memory (memfd_create(2)) has the requests that
//! restore them, as the [file](super::file) has those of other SAs, with all of their sequence numbers; it is written when
//! packets have ceased, so the numbers are exact. Times are those of `CLOCK_BOOTTIME`, and valid for one boot of the
//! machine, as is the memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use base::Instant;
use netlink::kind_of;
use netlink::xfrm::nums::msg;
use netlink::xfrm::sa_key;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use zeroize::{Zeroize, Zeroizing};

use crate::framing::{put, split};
use crate::node::since_boot;
use crate::sa_name::SaName;

/// Name of the memory, and of its descriptor in the service manager's store.
pub(crate) const NAME: &str = "sas";

/// First bytes; the number of the format follows.
const MAGIC: &[u8; 12] = b"fatpath SAs ";

/// Number of the format.
const FORMAT: u32 = 1;

/// Largest size in bytes.
const MAX_LEN: u64 = 256 << 20;

/// Bytes that are written at once.
const PIECE: usize = 64 << 10;

/// Seals under which nothing changes any more.
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// Age from which the SAs are those of an earlier run than the last one: the key manager and the peer have others by now.
const OLDEST: Duration = Duration::from_secs(300);

const LINK: u8 = 1;
const SA: u8 = 2;
const END: u8 = 3;
const TIME: u8 = 4;

/// An SA with a time limit.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct SealedSa {
    pub(crate) name: SaName,
    /// Time of its addition.
    pub(crate) added: Instant,
    /// Time of its first use.
    pub(crate) first_used: Option<Instant>,
    /// The request that restores it, with its keys.
    pub(crate) message: Zeroizing<Vec<u8>>,
}

/// SAs of a gateway that ends, for the next one.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct SealedSas {
    /// The links that requests refer to, by their numbers.
    pub(crate) links: BTreeMap<u32, String>,
    /// The SAs, the oldest first.
    pub(crate) sas: Vec<SealedSa>,
}

impl SealedSas {
    /// Writes the SAs to memory that cannot be changed from then on.
    ///
    /// # Errors
    /// The system's error; they are too many.
    pub(crate) fn seal(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memory(NAME)?);
        let mut piece = Zeroizing::new(Vec::with_capacity(2 * PIECE));
        piece.extend_from_slice(MAGIC);
        piece.extend_from_slice(&FORMAT.to_le_bytes());
        put(&mut piece, TIME, &[&since_boot().as_nanos().to_le_bytes()]);
        for (index, name) in &self.links {
            put(&mut piece, LINK, &[&index.to_le_bytes(), name.as_bytes()]);
            write_piece(&mut file, &mut piece, PIECE)?;
        }
        for SealedSa { name: _, added, first_used, message } in &self.sas {
            let first_used = first_used.map_or(0, Instant::as_nanos);
            put(&mut piece, SA, &[&added.as_nanos().to_le_bytes(), &first_used.to_le_bytes(), message]);
            write_piece(&mut file, &mut piece, PIECE)?;
        }
        put(&mut piece, END, &[&(self.sas.len() as u32).to_le_bytes()]);
        write_piece(&mut file, &mut piece, 0)?;
        if file.metadata()?.len() > MAX_LEN {
            return Err(io::Error::other(format!("more than {} MiB", MAX_LEN >> 20)));
        }
        fcntl_add_seals(&file, SEALS)?;
        Ok(file.into())
    }

    /// Reads what an earlier gateway has written.
    ///
    /// # Errors
    /// The reason why the memory is refused: another process may have written it.
    pub(crate) fn open(memory: OwnedFd) -> Result<Self, String> {
        Self::parse(&unseal(memory, MAX_LEN)?, since_boot())
    }

    /// Reads bytes at the time `now`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn parse(bytes: &[u8], now: Instant) -> Result<Self, String> {
        let format = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk);
        let Some((format, mut rest)) = format else { return Err("it has no SAs of a gateway".to_owned()) };
        let format = u32::from_le_bytes(*format);
        if format != FORMAT {
            return Err(format!("format {format}, and this version supports {FORMAT}"));
        }
        let (mut found, mut sealed) = (Self::default(), None);
        loop {
            let at = bytes.len() - rest.len();
            let damaged = || format!("the record at byte {at} is damaged");
            let (content, after) = split(rest).map_err(|_| damaged())?.ok_or("it is truncated")?;
            let (&kind, content) = content.split_first().ok_or_else(damaged)?;
            match kind {
                LINK => {
                    let (index, name) = content.split_first_chunk().ok_or_else(damaged)?;
                    let name = String::from_utf8(name.to_vec()).map_err(|_| damaged())?;
                    found.links.insert(u32::from_le_bytes(*index), name);
                }
                TIME => {
                    let nanos: [u8; 8] = content.try_into().map_err(|_| damaged())?;
                    let at = Instant::from_nanos(u64::from_le_bytes(nanos));
                    if at > now || now.since(at) > OLDEST {
                        return Err("it is older than a restart".to_owned());
                    }
                    sealed = Some(at);
                }
                SA => found.sas.push(SealedSa::parse(content).ok_or_else(damaged)?),
                END => {
                    let is_all = content == (found.sas.len() as u32).to_le_bytes() && after.is_empty();
                    let is_whole = is_all && sealed.is_some();
                    return if is_whole { Ok(found) } else { Err(damaged()) };
                }
                _ => return Err(damaged()),
            }
            rest = after;
        }
    }
}

impl SealedSa {
    fn parse(content: &[u8]) -> Option<Self> {
        let (added, rest) = content.split_first_chunk()?;
        let (first_used, message) = rest.split_first_chunk()?;
        let [added, first_used] = [added, first_used].map(|nanos| u64::from_le_bytes(*nanos));
        let (dst, spi, mark) = sa_key(message).filter(|_| kind_of(message) == msg::NEW_SA)?;
        Some(Self {
            name: SaName { dst, spi, mark },
            added: Instant::from_nanos(added),
            first_used: (first_used != 0).then_some(Instant::from_nanos(first_used)),
            message: Zeroizing::new(message.to_vec()),
        })
    }
}

/// Writes bytes to memory with that name, which cannot be changed from then on.
///
/// # Errors
/// The system's error.
pub(crate) fn seal(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memory(name)?);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// Bytes of sealed memory, at most `most`.
///
/// # Errors
/// The reason why the memory is refused.
pub(crate) fn unseal(memory: OwnedFd, most: u64) -> Result<Zeroizing<Vec<u8>>, String> {
    let seals = fcntl_get_seals(&memory).map_err(|err| format!("it is no sealed memory: {err}"))?;
    if !seals.contains(SEALS) {
        return Err("it is not sealed".to_owned());
    }
    let file = File::from(memory);
    let len = file.metadata().map_err(|err| err.to_string())?.len();
    if len > most {
        return Err(format!("{len} bytes, more than {} MiB", most >> 20));
    }
    let mut bytes = Zeroizing::new(vec![0; len as usize]);
    file.read_exact_at(&mut bytes, 0).map_err(|err| err.to_string())?;
    Ok(bytes)
}

/// Bytes with records of these kinds and contents.
#[cfg(feature = "fuzzing")]
pub(crate) fn bytes_of(records: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &FORMAT.to_le_bytes()].concat();
    records.iter().for_each(|(kind, content)| put(&mut bytes, *kind, &[content]));
    bytes
}

/// Empty memory that is not executable, where the kernel knows the difference.
fn memory(name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL);
    // Before Linux 6.3.
    made.or_else(|_| memfd_create(name, flags))
}

/// Writes the records that are complete, if they have more than `most` bytes.
fn write_piece(file: &mut File, piece: &mut Zeroizing<Vec<u8>>, most: usize) -> io::Result<()> {
    if piece.len() > most {
        file.write_all(piece)?;
        // It has keys.
        piece.zeroize();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::fs::ftruncate;

    use super::*;

    fn sas() -> SealedSas {
        let sa = |spi: u32, first_used| {
            // A request of the type, with destination, SPI and family where they belong.
            let mut message = Zeroizing::new(vec![0; 16 + 224]);
            message[..4].copy_from_slice(&240_u32.to_ne_bytes());
            message[4..6].copy_from_slice(&msg::NEW_SA.to_ne_bytes());
            message[16 + 56..16 + 60].copy_from_slice(&[192, 0, 2, 1]);
            message[16 + 72..16 + 76].copy_from_slice(&spi.to_be_bytes());
            message[16 + 212..16 + 214].copy_from_slice(&2_u16.to_ne_bytes());
            let (dst, mark) = ("192.0.2.1".parse().unwrap(), xfrm::Mark::default());
            SealedSa { name: SaName { dst, spi, mark }, added: Instant::from_nanos(5), first_used, message }
        };
        SealedSas {
            links: BTreeMap::from([(4, "wan".to_owned()), (5, "tun0".to_owned())]),
            sas: vec![sa(0x1000, None), sa(0x1001, Some(Instant::from_nanos(7)))],
        }
    }

    /// Memory with these bytes, sealed or not.
    fn memory_of(bytes: &[u8], seals: SealFlags) -> OwnedFd {
        let mut file = File::from(memory(NAME).unwrap());
        file.write_all(bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file.into()
    }

    fn bytes_of(sas: &SealedSas) -> Vec<u8> {
        let file = File::from(sas.seal().unwrap());
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn sealed_sas_are_read_back_and_cannot_be_changed() {
        for sas in [SealedSas::default(), sas()] {
            let sealed = sas.seal().unwrap();
            let mut file = File::from(sealed.try_clone().unwrap());
            assert!(file.write_all(b"x").is_err() && file.set_len(0).is_err());
            assert_eq!(SealedSas::open(sealed), Ok(sas));
        }
    }

    #[test]
    fn more_sas_than_one_piece_are_read_back() {
        let mut many = sas();
        while many.sas.len() < 2000 {
            many.sas.extend(sas().sas);
        }
        assert_eq!(SealedSas::open(many.seal().unwrap()), Ok(many));
    }

    #[test]
    fn memory_of_another_kind_is_refused_with_the_reason() {
        let bytes = bytes_of(&sas());
        let newer = [&MAGIC[..], &2_u32.to_le_bytes(), &bytes[16..]].concat();
        let long = memory(NAME).unwrap();
        ftruncate(&long, MAX_LEN + 1).unwrap();
        fcntl_add_seals(&long, SEALS).unwrap();
        for (memory, want) in [
            (OwnedFd::from(File::open("/dev/null").unwrap()), "it is no sealed memory: Invalid argument (os error 22)"),
            (memory_of(&bytes, SealFlags::SHRINK | SealFlags::GROW), "it is not sealed"),
            (long, "268435457 bytes, more than 256 MiB"),
            (memory_of(&newer, SEALS), "format 2, and this version supports 1"),
            (memory_of(b"", SEALS), "it has no SAs of a gateway"),
            (memory_of(&bytes[..bytes.len() - 1], SEALS), "it is truncated"),
            (
                memory_of(&[&bytes[..], b"x"].concat(), SEALS),
                &format!("the record at byte {} is damaged", bytes.len() - 17),
            ),
        ] {
            assert_eq!(SealedSas::open(memory).unwrap_err(), want);
        }
    }

    #[test]
    fn each_changed_byte_and_each_length_is_noticed() {
        let bytes = bytes_of(&sas());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(
                SealedSas::parse(&damaged, since_boot()).is_err()
                    && SealedSas::parse(&bytes[..at], since_boot()).is_err(),
                "byte {at}"
            );
        }
    }

    #[test]
    fn memory_of_an_earlier_run_is_refused() {
        let bytes = bytes_of(&sas());
        let at = |now| SealedSas::parse(&bytes, now);
        assert_eq!(at(since_boot()), Ok(sas()));
        for now in [since_boot() + OLDEST + Duration::from_secs(1), Instant::from_nanos(1)] {
            assert_eq!(at(now).unwrap_err(), "it is older than a restart");
        }
    }

    #[test]
    fn request_of_another_type_is_damage() {
        let mut other = sas();
        other.sas[1].message[4..6].copy_from_slice(&msg::DEL_SA.to_ne_bytes());
        assert!(SealedSas::parse(&bytes_of(&other), since_boot()).unwrap_err().ends_with("is damaged"));
        other.sas[1].message.truncate(100);
        assert!(SealedSas::parse(&bytes_of(&other), since_boot()).unwrap_err().ends_with("is damaged"));
    }
}
