//! Software device for tests and simulations, between a port and its wire: a network card that offloads ESP.

mod engine;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Instant, SaId};
use ipsec::SaStats;
use ipsec::device::{Device, DeviceStates, NewState, OffloadFacts, PacketDevice, ReceivedEsp, Refused, find_esp};
use packet::{Csum, Esp, EspStatus, Memory, Packet};
use wire::eth::EtherType;
use wire::ip::Info;
use wire::{Spi, Version, eth};
use xfrm::{OffloadMode, PolicyConfig, PolicyKey};

use engine::Engine;

/// A software device. All clones are one device: one clone is [given to the node](ipsec::Ipsec::set_device), another
/// processes its packets.
#[derive(Clone, Debug)]
pub struct SoftDevice(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    follows_esn: bool,
    states: DeviceStates,
    /// The packet mode, if enabled.
    engine: Option<Engine>,
    faults: Faults,
    stats: SoftStats,
}

/// Injected faults.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Faults {
    /// Reason for which the device refuses SAs and policies.
    pub refuse: Option<Refused>,
    /// The device processes no packets: offloads are refused, and received packets pass unchanged.
    pub busy: bool,
    /// Status that the device reports for each decrypted packet, regardless of the real result; the packet is unchanged
    /// then.
    pub status: Option<EspStatus>,
}

/// Counters of the device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SoftStats {
    /// Encrypted ESP packets.
    pub sealed: u64,
    /// Decrypted ESP packets.
    pub opened: u64,
    /// Outbound packets without an SA on the device, or with a failed encryption (`tx_dropped`).
    pub tx_dropped: u64,
    /// Dropped inbound packets.
    pub rx_dropped: u64,
}

impl SoftDevice {
    /// A device that accepts every SA in crypto mode; `packet_mode` and `follows_esn` enable packet mode and extended
    /// sequence numbers.
    pub fn new(packet_mode: bool, follows_esn: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            follows_esn,
            states: DeviceStates::default(),
            engine: packet_mode.then(Engine::default),
            faults: Faults::default(),
            stats: SoftStats::default(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets or clears faults.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Counters.
    pub fn stats(&self) -> SoftStats {
        self.state().stats
    }

    /// Number of SAs and policies on the device.
    pub fn load(&self) -> (usize, usize) {
        let state = self.state();
        let (sas, policies) = state.engine.as_ref().map_or((0, 0), Engine::load);
        (state.states.len() + sas, policies)
    }

    /// Processes packets from the port to the wire, whose IP headers begin at `l3`. Packets that the device cannot
    /// process as required are dropped.
    pub fn transmit(&self, mem: &Memory, now: Instant, l3: usize, packets: &mut Vec<Packet>) {
        let mut state = self.state();
        for mut pkt in std::mem::take(packets) {
            match pkt.meta.esp.take() {
                None => packets.push(pkt),
                Some(Esp::Seal { sa, high }) => match state.states.seal(sa, high, &mut pkt, l3) {
                    Some(()) => {
                        state.stats.sealed += 1;
                        packets.push(pkt);
                    }
                    None => state.stats.tx_dropped += 1,
                },
                Some(Esp::Protect(sa)) => state.protect(mem, now, sa, pkt, l3, packets),
                Some(Esp::Opened { .. }) => state.stats.tx_dropped += 1,
            }
        }
    }

    /// Processes packets from the wire to the port.
    pub fn receive(&self, mem: &Memory, now: Instant, l3: usize, packets: &mut Vec<Packet>) {
        let mut state = self.state();
        if state.faults.busy {
            return;
        }
        for mut pkt in std::mem::take(packets) {
            match find_esp(mem, &mut pkt, l3) {
                None => packets.push(pkt),
                Some(ReceivedEsp { info, key }) => match state.states.inbound(key) {
                    Some(sa) => {
                        let status = state.open(mem, sa, &mut pkt, l3, &info);
                        pkt.meta.esp = Some(Esp::Opened { sa, status });
                        packets.push(pkt);
                    }
                    None => state.unprotect(mem, now, key, pkt, l3, packets),
                },
            }
        }
    }
}

impl State {
    /// Decrypts the ESP behind the IP headers `info` in place.
    fn open(&mut self, mem: &Memory, sa: SaId, pkt: &mut Packet, l3: usize, info: &Info) -> EspStatus {
        if let Some(status) = self.faults.status {
            return status;
        }
        let status = self.states.open(mem, sa, pkt, l3, info);
        self.stats.opened += u64::from(status == EspStatus::Success);
        status
    }
}

impl Device for SoftDevice {
    fn add_state(&mut self, new: &NewState<'_>) -> Result<(), Refused> {
        let mut state = self.state();
        if let Some(refused) = state.faults.refuse {
            return Err(refused);
        }
        if new.config.offload.is_some_and(|offload| offload.mode == OffloadMode::Packet) {
            return state.engine.as_mut().ok_or(Refused::Unsupported)?.add_state(new);
        }
        if new.config.encap.is_some() {
            return Err(Refused::Unsupported);
        }
        state.states.add(new)
    }

    fn delete_state(&mut self, id: SaId) {
        let mut state = self.state();
        if !state.states.remove(id)
            && let Some(engine) = &mut state.engine
        {
            engine.delete_state(id);
        }
    }

    fn offload_ok(&self, _: &OffloadFacts) -> bool {
        !self.state().faults.busy
    }

    fn follows_esn(&self) -> bool {
        self.state().follows_esn
    }

    fn advance_esn(&mut self, id: SaId, top: u64) {
        self.state().states.advance(id, top);
    }

    fn packet_mode(&mut self) -> Option<&mut dyn PacketDevice> {
        let has_it = self.state().engine.is_some();
        has_it.then_some(self as &mut dyn PacketDevice)
    }
}

impl State {
    /// Sends a packet, whose IP header is at `l3`, with an SA in packet mode.
    fn protect(&mut self, mem: &Memory, now: Instant, sa: SaId, mut pkt: Packet, l3: usize, out: &mut Vec<Packet>) {
        let mut frames = Vec::new();
        let header = pkt.head().get(..l3).unwrap_or_default().to_vec();
        pkt.pull(header.len());
        let made = self.engine.as_mut().and_then(|engine| engine.protect(mem, now, sa, pkt, &mut frames));
        if made.is_none() {
            self.stats.tx_dropped += 1;
        }
        for pkt in frames {
            match frame(mem, &header, pkt) {
                Some(pkt) => {
                    self.stats.sealed += 1;
                    out.push(pkt);
                }
                None => self.stats.tx_dropped += 1,
            }
        }
    }

    /// Decrypts the ESP of a packet, whose IP header is at `l3`, if its SA is in packet mode.
    fn unprotect(
        &mut self,
        mem: &Memory,
        now: Instant,
        key: (IpAddr, Spi),
        mut pkt: Packet,
        l3: usize,
        out: &mut Vec<Packet>,
    ) {
        let Self { engine, faults, stats, .. } = self;
        let Some(engine) = engine else { return out.push(pkt) };
        let Some(sa) = engine.receives(key) else { return out.push(pkt) };
        if let Some(status) = faults.status {
            pkt.meta.esp = Some(Esp::Opened { sa, status });
            return out.push(pkt);
        }
        let header = pkt.head().get(..l3).unwrap_or_default().to_vec();
        pkt.pull(header.len());
        let inner = engine.unprotect(mem, now, pkt);
        if inner.is_empty() {
            stats.rx_dropped += 1;
        }
        for mut pkt in inner {
            pkt.meta.sec_path.clear();
            pkt.meta.esp = Some(Esp::Opened { sa, status: EspStatus::Success });
            if let Some(pkt) = frame(mem, &header, pkt) {
                stats.opened += 1;
                out.push(pkt);
            } else {
                stats.rx_dropped += 1;
            }
        }
    }
}

impl PacketDevice for SoftDevice {
    fn add_policy(&mut self, policy: &PolicyConfig) -> Result<(), Refused> {
        let mut state = self.state();
        if let Some(refused) = state.faults.refuse {
            return Err(refused);
        }
        state.engine.as_mut().ok_or(Refused::Unsupported)?.add_policy(policy)
    }

    fn delete_policy(&mut self, key: &PolicyKey) {
        if let Some(engine) = &mut self.state().engine {
            engine.delete_policy(key);
        }
    }

    fn stats(&self, id: SaId) -> Option<SaStats> {
        self.state().engine.as_ref()?.stats(id)
    }
}

/// Restores a link's header, for the packet's present family.
fn frame(mem: &Memory, header: &[u8], mut pkt: Packet) -> Option<Packet> {
    if header.is_empty() {
        return Some(pkt);
    }
    let ethertype = match Version::of(pkt.head()).ok()? {
        Version::V4 => EtherType::IPV4,
        Version::V6 => EtherType::IPV6,
    };
    pkt.meta.csum = match pkt.meta.csum {
        // The sum does not cover the restored header.
        Csum::Complete(_) => Csum::None,
        other => other,
    };
    let front = pkt.push(mem, header.len()).ok()?;
    front.copy_from_slice(header);
    eth::EthHeader::mut_from(front).ok()?.set_ethertype(ethertype);
    Some(pkt)
}
