//! Packet mode of the software device: a complete IPsec gateway between the node and the wire.

use std::collections::HashMap;
use std::net::IpAddr;

use base::{Counters, Instant, SaId};
use ipsec::device::{NewState, Refused};
use ipsec::{Decision, Ipsec, Opened, Sa, SaStats, Train};
use offload::ip_headers;
use packet::{Memory, Packet};
use wire::{FlowKey, Spi};
use xfrm::{Dir, Flowi, PolicyConfig, PolicyKey, SaConfig, SaDir};

/// Number of bytes that hold the ports, behind a packet's headers.
const PORTS_LEN: usize = 8;

/// The gateway in the device.
#[derive(Debug, Default)]
pub(super) struct Engine {
    ipsec: Ipsec,
    /// The node's SAs by their ids in the device, and the reverse.
    ours: HashMap<SaId, SaId>,
    theirs: HashMap<SaId, SaId>,
    /// Inbound SAs, by destination and SPI.
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
        drop(self.ipsec.remove_sa_of(ours));
    }

    /// Adds a policy.
    pub(super) fn add_policy(&mut self, policy: &PolicyConfig) -> Result<(), Refused> {
        // The node itself checks forwarded packets.
        if policy.dir == Dir::Fwd {
            return Err(Refused::Unsupported);
        }
        let config = PolicyConfig { offload: None, ..policy.clone() };
        self.ipsec.add_policy(config).map_err(|_| Refused::Failed("it has no room for it"))
    }

    pub(super) fn delete_policy(&mut self, key: &PolicyKey) {
        drop(self.ipsec.remove_policy(key));
    }

    /// The node's inbound SA with that destination and SPI.
    pub(super) fn receives(&self, key: (IpAddr, Spi)) -> Option<SaId> {
        self.inbound.get(&key).and_then(|ours| self.theirs.get(ours)).copied()
    }

    /// Counters of an SA of the node.
    pub(super) fn stats(&self, id: SaId) -> Option<SaStats> {
        self.ipsec.sa(*self.ours.get(&id)?).map(Sa::stats)
    }

    /// Number of SAs and policies.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.ipsec.sad().len(), self.ipsec.spd().len())
    }

    /// Encrypts a packet, if a policy with that SA matches.
    pub(super) fn protect(
        &mut self,
        mem: &Memory,
        now: Instant,
        sa: SaId,
        mut pkt: Packet,
        out: &mut Vec<Packet>,
    ) -> Option<()> {
        let Self { ipsec, ours, counters, .. } = self;
        let ours = *ours.get(&sa)?;
        let flow = flow_of(mem, &mut pkt)?;
        match ipsec.lookup(now, &flow, counters) {
            Decision::Protect(bundle) if bundle.last() == Some(&ours) => {}
            _ => return None,
        }
        ipsec.seal(mem, now, ours, pkt, Train::None, usize::from(u16::MAX), out, counters).ok()
    }

    /// Decrypts a packet, and drops it unless a policy accepts it.
    pub(super) fn unprotect(&mut self, mem: &Memory, now: Instant, pkt: Packet) -> Vec<Packet> {
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

/// Flow of a packet, for policy look-up.
fn flow_of(mem: &Memory, pkt: &mut Packet) -> Option<Flowi> {
    let info = ip_headers(mem, pkt).ok()?;
    pkt.may_pull(mem, pkt.len().min(info.header_len + PORTS_LEN)).ok()?;
    Some(Flowi { mark: pkt.meta.mark, ..FlowKey::new(&info, pkt.head()).into() })
}
