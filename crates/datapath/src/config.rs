//! Configuration of ports, bridges, queueing disciplines, neighbours and shortcuts. A change that packets in flight depend on runs them to
//! their end first.

use std::net::IpAddr;

use base::{Domain, DropReason, Instant, PortId};
use fib::Known;
use offload::Features;
use packet::Memory;
use qdisc::{Options, OptionsError, Qdisc};
use switch::BridgeError;

use crate::next::Cx;
use crate::node::Datapath;
use crate::node::ports::{Device, HostRole, PortConfig, TapPoints};
use crate::run::run_deferred;
use crate::tx::{device, esp_device, queue};
use crate::{bridge, hand_over, local, vlan};

impl Datapath {
    /// Adds a port, or changes the configuration of an existing one, also of the device of a bridge or of a VLAN device.
    pub fn set_port(&mut self, id: PortId, config: PortConfig) {
        self.ipsec.invalidate_templates();
        let loses_esp = !config.features.esp && self.ports.get(id).is_some_and(|port| port.config.features.esp);
        let (mac, mtu) = (config.mac, config.mtu);
        let device = self.ports.get(id).map_or(Device::Link, |port| port.device);
        self.ports.set(id, device, config);
        bridge::follow_config(self, id, mac, mtu);
        self.update_shortcuts();
        if loses_esp {
            esp_device::seal_waiting(self, id);
        }
    }

    /// Removes a port, with the packets queued in it or for its neighbours, the SAs and policies on its device, and its
    /// IKE ports. The caller removes the routes by it.
    pub fn remove_port(&mut self, now: Instant, mem: &Memory, id: PortId) {
        self.finish(now, mem);
        bridge::forget(self, id);
        vlan::forget(self, id);
        self.drop_tx(id, DropReason::LinkDown);
        self.ipsec.set_device(id, None);
        self.forget_ike(id);
        queue::reset(self, now, id, DropReason::LinkDown);
        self.ports.remove(id);
        self.forget_ila_of(id);
        self.forget_neighbours(Cx { now, mem }, id);
    }

    /// Adds the port of a VRF, changes it, or removes it with `None`. Its links are in the domain of that device
    /// ([`Fib::set_domain`](fib::Fib::set_domain)). Packets in the queueing discipline of a VRF that is removed, or is not up, are dropped.
    pub fn set_vrf_port(&mut self, now: Instant, id: PortId, vrf: Option<(String, usize)>) {
        if vrf.is_none() || !self.fib.may_send(Domain::vrf(id)) {
            queue::reset(self, now, id, DropReason::LinkDown);
        }
        match vrf {
            Some((name, mtu)) => {
                let config = PortConfig { name, mac: None, mtu, features: Features::NONE, gro: false, esp_gro: false };
                self.ports.set(id, Device::Vrf, config);
            }
            None if self.ports.get(id).is_some_and(|port| port.device == Device::Vrf) => {
                self.ports.remove(id);
                self.forget_ila_of(id);
            }
            None => {}
        }
        self.update_shortcuts();
    }

    /// Makes an Ethernet link a port of a bridge, or a link of this node again with `None`. It leaves the bridge that it was in.
    ///
    /// # Errors
    /// [`BridgeError::NoPort`] if there is no such bridge, or no such Ethernet link; [`BridgeError::Loop`]; as [`Bridge::add_port`](switch::Bridge::add_port). It is in no bridge
    /// then.
    pub fn set_bridge(
        &mut self,
        now: Instant,
        mem: &Memory,
        link: PortId,
        bridge: Option<PortId>,
    ) -> Result<(), BridgeError> {
        let port = self.ports.get(link).filter(|port| matches!(port.device, Device::Link | Device::Vlan { .. }));
        let port = port.and_then(|port| Some((port.config.mac?, port.config.mtu, port.up)));
        let (mac, mtu, is_up) = port.ok_or(BridgeError::NoPort(link))?;
        self.finish(now, mem);
        bridge::forget(self, link);
        if let Some(own) = bridge {
            if switch::is_above(link, own, |device| self.ports_below(device)) {
                return Err(BridgeError::Loop(link));
            }
            let is_bridge_up = self.ports.get(own).is_some_and(|port| port.up);
            let bridge = self.bridges.get_mut(own).ok_or(BridgeError::NoPort(own))?;
            bridge.add_port(link, mac, mtu)?;
            bridge.set_link_up(link, is_up && is_bridge_up)?;
            if let Some(port) = self.ports.get_mut(link) {
                port.bridge = Some(own);
            }
        }
        self.update_shortcuts();
        Ok(())
    }

    /// Ports directly below a device: the port of a VLAN device, the ports of a bridge.
    fn ports_below(&self, device: PortId) -> Vec<PortId> {
        match self.ports.get(device).map(|port| port.device) {
            Some(Device::Vlan { lower, .. }) => vec![lower],
            Some(Device::Bridge) => {
                let is_port = |port: &crate::Port| port.bridge == Some(device);
                self.ports.iter().filter(|(_, port)| is_port(port)).map(|(id, _)| id).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Sets whether a port's link is up. While the link is down, nothing is queued for it, and its neighbours are unknown. The
    /// SAs and policies on its device are removed when it goes down (Linux `xfrm_dev_down`).
    pub fn set_up(&mut self, now: Instant, mem: &Memory, id: PortId, up: bool) {
        // Packets in flight were decided about with the previous configuration.
        self.finish(now, mem);
        if let Some(port) = self.ports.get_mut(id) {
            port.up = up;
            port.set_busy(mem, false);
        }
        bridge::follow_state(self, id, up);
        if !up {
            queue::reset(self, now, id, DropReason::LinkDown);
            self.drop_tx(id, DropReason::LinkDown);
            self.ipsec.flush_device(id);
            self.forget_neighbours(Cx { now, mem }, id);
        }
    }

    /// Sets or removes the ESP offload device of a link. SAs and policies on the previous device are removed, and packets queued for
    /// it are dropped: they are laid out as ESP, but still in clear.
    pub fn set_device(
        &mut self,
        now: Instant,
        mem: &Memory,
        link: PortId,
        device: Option<Box<dyn ipsec::device::Device>>,
    ) {
        // Packets in flight were decided about with the previous configuration.
        self.finish(now, mem);
        self.ipsec.set_device(link, device);
        esp_device::seal_waiting(self, link);
    }

    /// Sets a link's queueing discipline, or removes it with `None`. Packets in the previous discipline are dropped.
    ///
    /// # Errors
    /// [`OptionsError`]; nothing has changed then.
    pub fn set_qdisc(
        &mut self,
        now: Instant,
        mem: &Memory,
        id: PortId,
        options: Option<Options>,
    ) -> Result<(), OptionsError> {
        let new = options.map(|options| Qdisc::new(now, options)).transpose()?;
        self.finish(now, mem);
        queue::reset(self, now, id, DropReason::QdiscRemoved);
        self.ports.shaped.retain(|&shaped| shaped != id);
        if let Some(port) = self.ports.get_mut(id) {
            port.qdisc = new.map(Box::new);
            if port.qdisc.is_some() {
                self.ports.shaped.push(id);
            }
        }
        Ok(())
    }

    /// Tells whether a queueing discipline may have these options: for a shard that leaves disciplines to the first one, and refuses what
    /// that one refuses.
    ///
    /// # Errors
    /// As [`set_qdisc`](Self::set_qdisc).
    pub fn check_qdisc(now: Instant, options: Options) -> Result<(), OptionsError> {
        Qdisc::<crate::node::qdisc::QueuedPacket>::new(now, options).map(drop)
    }

    /// Changes the options of a link's queueing discipline and keeps its packets, or adds a discipline to a link without one.
    ///
    /// # Errors
    /// [`OptionsError`]; nothing has changed then.
    pub fn change_qdisc(
        &mut self,
        now: Instant,
        mem: &Memory,
        id: PortId,
        options: Options,
    ) -> Result<(), OptionsError> {
        let Some(qdisc) = self.ports.get_mut(id).and_then(|port| port.qdisc.as_deref_mut()) else {
            return self.set_qdisc(now, mem, id, Some(options));
        };
        qdisc.change(now, options)?;
        let cx = Cx { now, mem };
        device::run_queue(self, cx, id);
        run_deferred(self, cx);
        Ok(())
    }

    /// Sets a neighbour entry for the operator, or for the `protocol` (`RTPROT_*`) that sets it; 0 leaves the protocol as it is.
    pub fn set_neighbour(
        &mut self,
        now: Instant,
        mem: &Memory,
        link: PortId,
        addr: IpAddr,
        known: Known,
        protocol: u8,
    ) {
        if !self.shard.is_first() {
            return self.forget_shared_neighbour(now, link, addr);
        }
        self.neighbours.set(now, link, addr, known, &mut self.actions);
        if protocol != 0 {
            self.neighbours.set_protocol(link, addr, protocol);
        }
        self.drain_all(Cx { now, mem });
    }

    /// Removes the neighbours of a link, and drops the packets that waited for them.
    fn forget_neighbours(&mut self, cx: Cx<'_>, link: PortId) {
        let held = self.shard.fences.forget_link(link);
        hand_over::hand_over_held(self, held);
        // Another shard's link may be up, and the first one has no updates then: it is asked for each neighbour that was known here.
        let known: Vec<IpAddr> = match self.shard.is_first() {
            true => Vec::new(),
            false => self.neighbours.iter().filter(|known| known.link == link).map(|known| known.addr).collect(),
        };
        self.neighbours.remove_link(link, &mut self.actions);
        known.into_iter().for_each(|addr| hand_over::send_fence(self, (link, addr), true));
        self.drain_all(cx);
    }

    /// Sets the captures of a port.
    pub fn set_tap(&mut self, id: PortId, tap: TapPoints) {
        if let Some(port) = self.ports.get_mut(id) {
            port.tap = tap;
        }
        self.update_shortcuts();
    }

    /// Sets the place of the host's own stack at a port. By default the stack has no part in the link.
    pub fn set_host_role(&mut self, id: PortId, role: HostRole) {
        if let Some(port) = self.ports.get_mut(id) {
            port.host = role;
        }
    }

    /// Sets the reassembly limits, also for fragments in the cache.
    pub fn set_reassembly(&mut self, mut config: reassembly::Config) {
        // Each shard has its part of the memory.
        let shards = self.shard.count().get();
        config.v4.high_thresh /= shards;
        config.v6.high_thresh /= shards;
        self.reassembly.configure(config, &mut self.counters);
        local::reassembly::drop_evicted(self);
    }

    /// Sets the links with MSS clamping: the MSS of forwarded SYNs is lowered to the path MTU in both directions.
    pub fn set_clamp_mss(&mut self, links: Vec<PortId>) {
        self.clamp_mss = links;
    }

    /// Sets the UDP ports of the host side's sockets that bypass policies, in addition to IKE's.
    pub fn set_bypass_ports(&mut self, ports: Vec<u16>) {
        self.bypass_ports = ports;
    }

    /// Sets the links to which forwarded datagrams are sent whole, for any MTU: fragments are reassembled first.
    pub fn set_defrag(&mut self, links: Vec<PortId>) {
        self.defrag = links;
    }

    /// Turns all shortcuts off, or on again where they may run: packets out, counters, taps and drops are the same.
    pub fn set_shortcuts(&mut self, is_on: bool) {
        self.no_shortcuts = !is_on;
        self.update_shortcuts();
    }
}
