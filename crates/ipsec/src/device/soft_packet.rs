//! Packet mode of the device in software: a whole gateway of its own, that sees packets after the node and before the
//! wire.

use std::collections::HashMap;
use std::net::IpAddr;

use base::{Counters, Instant, SaId};
use offload::ip_headers;
use packet::{Csum, Esp, EspStatus, Memory, Packet};
use wire::eth::EtherType;
use wire::{FlowKey, Spi, Version, eth};

use super::soft::State;
use super::{NewState, PacketDevice, Refused, SoftDevice};
use crate::config::{Dir, PolicyConfig, PolicyKey, SaConfig, SaDir};
use crate::flowi::Flowi;
use crate::gateway::Ipsec;
use crate::input::Opened;
use crate::output::Train;
use crate::policy::Decision;
use crate::sa::{Sa, SaStats};

/// Bytes of a packet in which its ports are, behind its headers.
const PORTS_LEN: usize = 8;

/// The gateway in the device.
#[derive(Debug, Default)]
pub(super) struct Engine {
    ipsec: Ipsec,
    /// The node's SAs by their numbers here, and the other way round.
    ours: HashMap<SaId, SaId>,
    theirs: HashMap<SaId, SaId>,
    /// Those that receive, by destination and SPI.
    inbound: HashMap<(IpAddr, Spi), SaId>,
    opened: Opened,
    counters: Counters,
}

impl Engine {
    pub(super) fn add_state(&mut self, new: &NewState<'_>) -> Result<(), Refused> {
        if new.config.encap.is_some() {
            return Err(Refused::Unsupported);
        }
        let config = SaConfig { offload: None, ..new.config.clone() };
        let ours = self.ipsec.add_sa(&config, new.mask).map_err(|_| Refused::Failed("it has no room for it"))?;
        if new.config.offload.is_some_and(|offload| offload.dir == SaDir::In) {
            self.inbound.insert((config.dst, config.spi), ours);
        }
        self.ours.insert(new.id, ours);
        self.theirs.insert(ours, new.id);
        Ok(())
    }

    pub(super) fn delete_state(&mut self, id: SaId) {
        let Some(ours) = self.ours.remove(&id) else { return };
        self.theirs.remove(&ours);
        self.inbound.retain(|_, other| *other != ours);
        if let Some((dst, spi, mark)) = self.ipsec.sa(ours).map(|sa| (sa.dst, sa.spi, sa.mark.sought())) {
            drop(self.ipsec.remove_sa(dst, spi, mark));
        }
    }

    /// How many SAs and policies there are.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.ipsec.sad().len(), self.ipsec.spd().len())
    }

    /// Makes ESP of a packet, if a policy says so, and by that SA.
    fn protect(&mut self, mem: &Memory, now: Instant, sa: SaId, mut pkt: Packet, out: &mut Vec<Packet>) -> Option<()> {
        let Self { ipsec, ours, counters, .. } = self;
        let ours = *ours.get(&sa)?;
        let flow = flow_of(mem, &mut pkt)?;
        match ipsec.lookup(now, &flow, counters) {
            Decision::Protect(bundle) if bundle.last() == Some(&ours) => {}
            _ => return None,
        }
        ipsec.seal(mem, now, ours, pkt, Train::None, usize::from(u16::MAX), out, counters).ok()
    }

    /// Opens a packet, and keeps what a policy lets pass.
    fn unprotect(&mut self, mem: &Memory, now: Instant, pkt: Packet) -> Vec<Packet> {
        let Self { ipsec, opened, counters, .. } = self;
        ipsec.open(mem, now, pkt, opened, counters);
        opened.drops.clear();
        let mut allowed = Vec::new();
        for mut pkt in opened.packets.drain(..) {
            let flow = flow_of(mem, &mut pkt);
            let ok = flow
                .is_some_and(|flow| ipsec.check(now, Dir::In, &flow, &pkt.meta.sec_path, || None, counters).is_ok());
            if ok {
                allowed.push(pkt);
            }
        }
        allowed
    }
}

/// What policies are asked about a packet.
fn flow_of(mem: &Memory, pkt: &mut Packet) -> Option<Flowi> {
    let info = ip_headers(mem, pkt).ok()?;
    pkt.may_pull(mem, pkt.len().min(info.header_len + PORTS_LEN)).ok()?;
    Some(Flowi { mark: pkt.meta.mark, ..FlowKey::new(&info, pkt.head()).into() })
}

/// Puts a link's header in front of a packet again, for the family that the packet is of now.
fn frame(mem: &Memory, header: &[u8], mut pkt: Packet) -> Option<Packet> {
    if header.is_empty() {
        return Some(pkt);
    }
    let ethertype = match Version::of(pkt.head()).ok()? {
        Version::V4 => EtherType::IPV4,
        Version::V6 => EtherType::IPV6,
    };
    pkt.meta.csum = match pkt.meta.csum {
        // Of the bytes without the header that comes now.
        Csum::Complete(_) => Csum::None,
        other => other,
    };
    let front = pkt.push(mem, header.len()).ok()?;
    front.copy_from_slice(header);
    eth::Header::mut_from(front).ok()?.set_ethertype(ethertype);
    Some(pkt)
}

impl State {
    /// Sends a packet by an SA in packet mode. Its IP header is at `l3`.
    pub(super) fn protect(
        &mut self,
        mem: &Memory,
        now: Instant,
        sa: SaId,
        mut pkt: Packet,
        l3: usize,
        out: &mut Vec<Packet>,
    ) {
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

    /// Receives ESP of an SA in packet mode, if it is that. Its IP header is at `l3`.
    pub(super) fn unprotect(
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
        let Some(&sa) = engine.inbound.get(&key).and_then(|ours| engine.theirs.get(ours)) else { return out.push(pkt) };
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
        let engine = state.engine.as_mut().ok_or(Refused::Unsupported)?;
        // What is forwarded is for the node to judge.
        if policy.dir == Dir::Fwd {
            return Err(Refused::Unsupported);
        }
        let config = PolicyConfig { offload: None, ..policy.clone() };
        engine.ipsec.add_policy(config).map_err(|_| Refused::Failed("it has no room for it"))
    }

    fn delete_policy(&mut self, key: &PolicyKey) {
        if let Some(engine) = &mut self.state().engine {
            drop(engine.ipsec.remove_policy(key));
        }
    }

    fn stats(&self, id: SaId) -> Option<SaStats> {
        let state = self.state();
        let engine = state.engine.as_ref()?;
        engine.ipsec.sa(*engine.ours.get(&id)?).map(Sa::stats)
    }
}
