//! VRFs: links with a separate routing table (Linux `l3mdev`, `drivers/net/vrf.c`).

use base::{Domain, PortId, TableId};

/// VRFs by their devices, with their member links.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vrfs {
    /// VRFs by the numbers of their devices, up to the last one.
    vrfs: Vec<Option<Vrf>>,
    /// Domain of each link by its number, up to the last link in a VRF; empty without VRFs.
    domains: Vec<Domain>,
}

/// A VRF.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Vrf {
    /// Table for packets in the VRF, looked up by a rule `l3mdev`.
    pub table: TableId,
    /// Whether the VRF's device is up. If it is not, the node sends no packets of its own in the VRF; forwarded packets
    /// pass.
    pub up: bool,
}

impl Vrfs {
    /// The domain of a link.
    #[inline(always)]
    pub(crate) fn domain(&self, link: PortId) -> Domain {
        self.domains.get(link.0 as usize).copied().unwrap_or(Domain::DEFAULT)
    }

    /// Tells whether a link is in a VRF.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        !self.domains.is_empty()
    }

    /// The VRF of a domain.
    #[inline]
    pub(crate) fn of(&self, domain: Domain) -> Option<&Vrf> {
        self.get(domain.vrf_device()?)
    }

    /// The VRF with that device.
    pub(crate) fn get(&self, device: PortId) -> Option<&Vrf> {
        self.vrfs.get(device.0 as usize)?.as_ref()
    }

    /// Adds, replaces or removes a VRF, whose device is in its own domain. The links of a removed VRF leave it.
    pub(crate) fn set(&mut self, device: PortId, vrf: Option<Vrf>) {
        match vrf {
            Some(vrf) => {
                let at = device.0 as usize;
                if self.vrfs.len() <= at {
                    self.vrfs.resize(at + 1, None);
                }
                self.vrfs[at] = Some(vrf);
                self.set_domain(device, Domain::vrf(device));
            }
            None => {
                if let Some(vrf) = self.vrfs.get_mut(device.0 as usize) {
                    *vrf = None;
                }
                let len = self.vrfs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
                self.vrfs.truncate(len);
                let gone = Domain::vrf(device);
                self.domains.iter_mut().filter(|domain| **domain == gone).for_each(|domain| *domain = Domain::DEFAULT);
                self.trim();
            }
        }
    }

    /// Adds a link to a VRF, or removes it.
    pub(crate) fn set_domain(&mut self, link: PortId, domain: Domain) {
        let at = link.0 as usize;
        if self.domains.len() <= at {
            self.domains.resize(at + 1, Domain::DEFAULT);
        }
        self.domains[at] = domain;
        self.trim();
    }

    fn trim(&mut self) {
        let len = self.domains.iter().rposition(|&domain| domain != Domain::DEFAULT).map_or(0, |last| last + 1);
        self.domains.truncate(len);
    }
}
