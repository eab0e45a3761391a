//! Device in software that offloads ESP in crypto mode, as a network card with inline encryption does: it encrypts marked packets
//! when they are sent, and decrypts and marks packets when they are received.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::SaId;
use packet::{Cut, Esp, EspStatus, Memory, Packet};
use wire::eth::{self, EtherType};
use wire::ip::Info;
use wire::{Protocol, Spi, Version, esp};
use xfrm::{Mark, OffloadMode, SaDir};

use super::driver::{Device, NewState, OffloadFacts, PacketDevice, Refused, seed};
use crate::engine::{Cipher, OpenError};

/// Number of bytes at the front of a packet in which ESP has to begin.
const LOOKED_AT: usize = 128;

/// Software device of a link. All clones are one device: one is [given to the node](crate::Ipsec::set_device), another processes the
/// packets of the link.
#[derive(Clone, Debug, Default)]
pub struct SoftwareDevice(Arc<Mutex<DeviceStates>>);

/// SAs of crypto mode on a device in software, with their ciphers.
#[derive(Debug, Default)]
pub struct DeviceStates {
    states: HashMap<SaId, DeviceState>,
    /// Inbound SAs, by destination and SPI.
    inbound: HashMap<(IpAddr, Spi), SaId>,
}

#[derive(Debug)]
struct DeviceState {
    cipher: Cipher,
    esn: bool,
    /// Highest sequence number that the node has reported.
    top: u64,
    key: (IpAddr, Spi),
    dir: SaDir,
}

/// ESP of a received packet, as far as a device finds it.
#[derive(Debug)]
pub struct ReceivedEsp {
    /// IP headers.
    pub info: Info,
    /// Destination and SPI.
    pub key: (IpAddr, Spi),
}

/// Finds raw ESP in a received packet, whose IP header begins at `l3`. `None` for other packets, and for fragments, tagged frames and
/// super-packets, which a device passes on unchanged.
pub fn find_esp(mem: &Memory, pkt: &mut Packet, l3: usize) -> Option<ReceivedEsp> {
    if pkt.meta.cut != Cut::Whole
        || pkt.meta.vlan.is_some()
        || !pkt.may_pull(mem, pkt.len().min(l3 + LOOKED_AT)).ok()?
    {
        return None;
    }
    let info = Info::parse(pkt.head().get(l3..)?, pkt.len().checked_sub(l3)?).ok()?;
    if info.protocol != Protocol::ESP || info.fragment.is_some() {
        return None;
    }
    if l3 == eth::EthHeader::LEN {
        let wanted = if info.version() == Version::V4 { EtherType::IPV4 } else { EtherType::IPV6 };
        eth::EthHeader::ref_from(pkt.head()).ok().filter(|header| header.ethertype() == wanted)?;
    }
    let mut front = [0; esp::EspHeader::LEN];
    let is_whole = pkt.read_at(l3 + info.header_len, &mut front);
    let header = esp::EspHeader::ref_from(&front).ok().filter(|_| is_whole)?;
    let key = (info.dst, header.spi());
    Some(ReceivedEsp { info, key })
}

impl SoftwareDevice {
    fn states(&self) -> MutexGuard<'_, DeviceStates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Encrypts the marked packets among those that the link is about to send, whose IP headers begin at `l3`. A packet that cannot
    /// be encrypted, as its SA is gone, is removed and returned.
    pub fn transmit(&self, l3: usize, packets: &mut Vec<Packet>) -> Vec<Packet> {
        if packets.iter().all(|pkt| pkt.meta.esp.is_none()) {
            return Vec::new();
        }
        let states = self.states();
        let fails = |pkt: &mut Packet| match pkt.meta.esp {
            None => false,
            Some(Esp::Seal { sa, high }) => {
                let sealed = states.seal(sa, high, pkt, l3);
                if sealed.is_some() {
                    pkt.meta.esp = None;
                }
                sealed.is_none()
            }
            Some(Esp::Protect(_) | Esp::Opened { .. }) => true,
        };
        packets.extract_if(.., fails).collect()
    }

    /// Decrypts packets that the link has received, whose IP headers begin at `l3`, and marks them with the result.
    pub fn receive(&self, mem: &Memory, l3: usize, packets: &mut [Packet]) {
        let mut states = self.states();
        if states.inbound.is_empty() {
            return;
        }
        for pkt in packets {
            let Some(found) = find_esp(mem, pkt, l3) else { continue };
            if let Some(sa) = states.inbound(found.key) {
                let status = states.open(mem, sa, pkt, l3, &found.info);
                pkt.meta.esp = Some(Esp::Opened { sa, status });
            }
        }
    }
}

impl Device for SoftwareDevice {
    fn add_state(&mut self, new: &NewState<'_>) -> Result<(), Refused> {
        if new.config.encap.is_some() {
            return Err(Refused::Failed("an SA with UDP encapsulation"));
        }
        if new.config.mark != Mark::default() {
            return Err(Refused::Failed("an SA with a mark"));
        }
        self.states().add(new)
    }

    fn delete_state(&mut self, id: SaId) {
        self.states().remove(id);
    }

    fn offload_ok(&self, _: &OffloadFacts) -> bool {
        true
    }

    fn follows_esn(&self) -> bool {
        true
    }

    fn advance_esn(&mut self, id: SaId, top: u64) {
        self.states().advance(id, top);
    }

    fn packet_mode(&mut self) -> Option<&mut dyn PacketDevice> {
        None
    }
}

impl DeviceStates {
    /// Number of SAs.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether there are no SAs.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Adds an SA of crypto mode.
    ///
    /// # Errors
    /// The mode is another one; the key is invalid; another SA receives packets of this destination and SPI.
    pub fn add(&mut self, new: &NewState<'_>) -> Result<(), Refused> {
        let Some(offload) = new.config.offload.filter(|offload| offload.mode == OffloadMode::Crypto) else {
            return Err(Refused::Unsupported);
        };
        let cipher = Cipher::new(&new.config.algorithm).map_err(|_| Refused::Failed("an SA with an invalid key"))?;
        let key = (new.config.dst, new.config.spi);
        if offload.dir == SaDir::In {
            if self.inbound.get(&key).is_some_and(|&other| other != new.id) {
                return Err(Refused::Failed("a second SA of this destination and SPI"));
            }
            self.inbound.insert(key, new.id);
        }
        let (esn, top) = (new.config.flags.esn, new.config.seq);
        self.states.insert(new.id, DeviceState { cipher, esn, top, key, dir: offload.dir });
        Ok(())
    }

    /// Removes an SA. Returns whether it was there.
    pub fn remove(&mut self, id: SaId) -> bool {
        let Some(DeviceState { key, dir, .. }) = self.states.remove(&id) else { return false };
        if dir == SaDir::In {
            self.inbound.remove(&key);
        }
        true
    }

    /// Sets the highest received number of an SA.
    pub fn advance(&mut self, id: SaId, top: u64) {
        if let Some(state) = self.states.get_mut(&id) {
            state.top = top;
        }
    }

    /// The inbound SA of a destination and SPI.
    pub fn inbound(&self, key: (IpAddr, Spi)) -> Option<SaId> {
        self.inbound.get(&key).copied()
    }

    /// Encrypts a packet that is laid out as ESP, whose IP header is at `l3`. `None` if its SA is gone, or the layout is wrong.
    pub fn seal(&self, sa: SaId, high: u32, pkt: &mut Packet, l3: usize) -> Option<()> {
        let DeviceState { cipher, esn, .. } = self.states.get(&sa)?;
        let at = l3 + Info::parse(pkt.head().get(l3..)?, pkt.len() - l3).ok()?.header_len;
        let frame = if pkt.is_linear() { pkt.head_mut()?.get_mut(at..)? } else { return None };
        let iv = seed(frame, cipher.iv_len())?;
        cipher.seal(frame, iv, esn.then_some(high));
        Some(())
    }

    /// Decrypts the ESP behind the IP headers `info`, which begin at `l3`, in place.
    pub fn open(&mut self, mem: &Memory, sa: SaId, pkt: &mut Packet, l3: usize, info: &Info) -> EspStatus {
        let Some(state) = self.states.get(&sa) else { return EspStatus::Failed };
        if pkt.linearize(mem).is_err() {
            return EspStatus::Failed;
        }
        let Ok(head) = pkt.writable_head(mem) else { return EspStatus::Failed };
        let frame = head.get_mut(l3 + info.header_len..l3 + info.total_len);
        let Some(frame) = frame else { return EspStatus::BadSyntax };
        if frame.len() < state.cipher.overhead() + esp::TRAILER_LEN {
            return EspStatus::BadSyntax;
        }
        let low = esp::EspHeader::ref_from(frame).map_or(0, esp::EspHeader::seq);
        let high = state.esn.then(|| (state.number(low) >> 32) as u32);
        // A cipher does not move the text, but returns its range.
        match state.cipher.open(frame, high) {
            Ok(_) => EspStatus::Success,
            Err(OpenError::IcvWrong) => EspStatus::AuthFailed,
            Err(OpenError::NotBlocks) => EspStatus::BadSyntax,
        }
    }
}

impl DeviceState {
    /// The full sequence number of a packet with the lower half `low`: the first match at or above 2³⁰ below the number
    /// that the node reported.
    const fn number(&self, low: u32) -> u64 {
        let from = self.top.saturating_sub(1 << 30);
        from + low.wrapping_sub(from as u32) as u64
    }
}
