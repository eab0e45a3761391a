//! Host side devices in the worker: receives, sends, and detaches devices that fail.

use std::io;

use base::{DropReason, Instant, PortId};
use datapath::{PortConfig, SocketBinding, SocketQuestion, host_port};
use link::{Layer, Link, Sent};

use super::host::SocketDiag;
use super::host_device::HostDevice;
use super::node::Node;
use super::slot::RETRY_DEVICE;

impl Node {
    /// Sets the `sock_diag` socket for queries about the host side's sockets, which VRFs need.
    pub(crate) fn set_socket_diag(&mut self, diag: Option<SocketDiag>) {
        self.datapath.enable_socket_lookups(diag.is_some());
        self.socket_diag = diag;
    }

    /// Resolves the socket queries of the datapath.
    pub(crate) fn answer_socket_questions(&mut self, now: Instant) {
        while let Some(question) = self.datapath.socket_question() {
            let binding = self.binding_of(&question).unwrap_or_else(|err| {
                tracing::error!("host side: sock_diag: {err}; sockets bound to a VRF no longer answer new peers");
                self.set_socket_diag(None);
                SocketBinding::Link
            });
            self.datapath.answer_socket_question(now, &self.mem, binding);
        }
    }

    fn binding_of(&mut self, question: &SocketQuestion) -> io::Result<SocketBinding> {
        let index = |id| self.host_devices.get(&id).map(|found| found.index);
        match (&mut self.socket_diag, index(question.link), index(question.vrf)) {
            (Some(diag), Some(link), Some(vrf)) => diag.binding(question, link, vrf),
            // A device was removed while the packet waited.
            _ => Ok(SocketBinding::Link),
        }
    }

    /// Sets or removes the host side device of a link. `device` comes with its index in the namespace.
    pub(crate) fn set_host_device(&mut self, id: PortId, device: Option<(u32, Box<dyn Link>)>) {
        self.discard_held(host_port(id));
        if let Some(before) = self.host_devices.remove(&id) {
            self.poller.remove(&*before.device);
        }
        self.set_ike_port(id, device.is_some());
        let Some((index, device)) = device else {
            self.datapath.set_host_port(id, None);
            return self.set_promiscuous_links();
        };
        self.datapath.set_host_port(id, Some(host_port_config(&*device)));
        self.poller.add_host_device(id, &*device);
        self.host_devices.insert(id, HostDevice { device, index, full: false, retry_at: None });
        self.set_promiscuous_links();
    }

    /// Sets or removes the port of the host side device of a link, which the first shard has.
    pub(crate) fn set_host_device_elsewhere(&mut self, id: PortId, config: Option<PortConfig>) {
        self.datapath.set_host_port_elsewhere(id, config);
        self.set_promiscuous_links();
    }

    /// Sets whether a packet socket on the host side's device of a link is promiscuous, as [`datapath::Datapath::set_watched`]: the
    /// link is promiscuous then, too.
    pub(crate) fn set_watched(&mut self, id: PortId, is_watched: bool) -> bool {
        let is_set = self.datapath.set_watched(id, is_watched);
        self.set_promiscuous_links();
        is_set
    }

    /// Opens or closes the IKE port of a link whose address is the host's.
    fn set_ike_port(&mut self, id: PortId, requested: bool) {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        let is_polled = slot.down.is_none() && slot.admin_up;
        if is_polled {
            self.poller.remove(&*slot.link);
        }
        if let Err(err) = slot.link.set_ike_port(requested) {
            tracing::info!("host side: {err}; key managers there have port 4500 of it alone");
        }
        if is_polled {
            self.poller.add(id, &*slot.link);
            if slot.full {
                self.poller.watch_room(id, &*slot.link, true);
            }
        }
    }

    /// Records that the device of a link has room again.
    pub(crate) fn host_device_has_room(&mut self, id: PortId) {
        if let Some(found) = self.host_devices.get_mut(&id).filter(|found| found.full) {
            found.full = false;
            self.poller.watch_room_of_host_device(id, &*found.device, false);
        }
    }

    /// Receives a burst that sockets have sent through the device of a link. `None`: the link has no device.
    pub(crate) fn receive_of_host_device(&mut self, id: PortId) -> Option<io::Result<()>> {
        let found = self.host_devices.get_mut(&id)?;
        Some(found.device.recv(&self.mem, &mut self.burst))
    }

    /// Passes that burst to the datapath.
    pub(crate) fn take_burst_of_host_device(&mut self, now: Instant, id: PortId) {
        self.datapath.handle_rx(now, &self.mem, host_port(id), &mut self.burst);
        self.send_all(now);
    }

    /// Sends the queued packets to the devices of the host side.
    pub(crate) fn send_to_host_side(&mut self, now: Instant) {
        let mut failed = Vec::new();
        let Self { host_devices, datapath, mem, poller, .. } = self;
        let mut first = PortId(0);
        while let Some(id) = datapath.next_to_send_to_host(first) {
            first = PortId(id.0 + 1);
            let port = host_port(id);
            let Some(found) = host_devices.get_mut(&id).filter(|found| !found.full) else { continue };
            while let Some(waiting) = datapath.take_tx(port).filter(|waiting| !waiting.is_empty()) {
                match found.device.send(waiting) {
                    Ok(Sent::All) => {
                        datapath.set_busy(now, mem, port, false);
                        break;
                    }
                    Ok(Sent::Busy) => {
                        datapath.set_busy(now, mem, port, true);
                        if found.device.room_fds().is_empty() {
                            found.retry_at = Some(now + RETRY_DEVICE);
                        } else {
                            found.full = true;
                            poller.watch_room_of_host_device(id, &*found.device, true);
                        }
                        break;
                    }
                    Ok(Sent::Refit) => datapath.refit(now, mem, port, found.device.features()),
                    // The device is down at present; the host side sets it up again.
                    Err(_) if !found.device.is_gone() => {
                        datapath.drop_tx(port, DropReason::LinkDown);
                        break;
                    }
                    Err(err) => {
                        failed.push((id, err));
                        break;
                    }
                }
            }
        }
        for (id, err) in failed {
            self.host_device_failed(id, &err);
        }
    }

    /// Reclaims buffers of the host side's devices.
    pub(crate) fn settle_host_side(&mut self, now: Instant) {
        for found in self.host_devices.values_mut() {
            found.retry_at = found.retry_at.filter(|&at| at > now);
            if found.device.settle(&self.mem) {
                found.retry_at.get_or_insert(now + RETRY_DEVICE);
            }
        }
    }

    /// Detaches a device that was deleted, or whose read failed. The link continues without a device.
    #[cold]
    pub(crate) fn host_device_failed(&mut self, id: PortId, err: &io::Error) {
        tracing::error!("host side: {err}; the link continues without sockets");
        self.set_host_device(id, None);
        self.run_on_others(move |node| node.set_host_device_elsewhere(id, None));
    }
}

/// Configuration of the port of a device of the host side.
pub(crate) fn host_port_config(device: &dyn Link) -> PortConfig {
    let mac = match device.layer() {
        Layer::Ethernet(mac) => Some(mac),
        Layer::Ip => None,
    };
    let (name, mtu) = (device.name().to_owned(), device.mtu());
    PortConfig { name, mac, mtu, features: device.features(), gro: false, esp_gro: false }
}
