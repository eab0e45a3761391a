//! Offloading devices of a node, with the SAs and policies on each.

use base::{PortId, SaId};
use xfrm::{ConfigError, Offload, OffloadMode, PolicyConfig, PolicyKey};

use super::driver::{Device, NewState, PacketDevice, Refused};

/// Devices by their links.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    devices: Vec<(PortId, Box<dyn Device>)>,
    policies: Vec<(PortId, PolicyKey)>,
}

impl Devices {
    /// Sets or removes the device of a link. The previous one must have no SA or policy left.
    pub(crate) fn set(&mut self, link: PortId, device: Option<Box<dyn Device>>) {
        self.devices.retain(|(other, _)| *other != link);
        self.devices.extend(device.map(|device| (link, device)));
    }

    pub(crate) fn get(&self, link: PortId) -> Option<&dyn Device> {
        self.devices.iter().find(|(other, _)| *other == link).map(|(_, device)| &**device)
    }

    pub(crate) fn get_mut(&mut self, link: PortId) -> Option<&mut Box<dyn Device>> {
        self.devices.iter_mut().find(|(other, _)| *other == link).map(|(_, device)| device)
    }

    pub(crate) fn packet_mode(&mut self, link: PortId) -> Option<&mut dyn PacketDevice> {
        self.get_mut(link)?.packet_mode()
    }

    /// Offers an SA to the device that its configuration names. `None` if the work is left to software (Linux
    /// `xfrm_dev_state_add`).
    ///
    /// # Errors
    /// The reason to refuse the SA.
    pub(crate) fn add_state(&mut self, state: &NewState<'_>) -> Result<Option<Offload>, ConfigError> {
        let Some(offload) = state.config.offload else { return Ok(None) };
        let Offload { dev, mode, .. } = offload;
        let is_packet = mode == OffloadMode::Packet;
        let none = if is_packet { Err(ConfigError::OffloadUnsupported(dev)) } else { Ok(None) };
        let Some(device) = self.get_mut(dev) else { return none };
        if is_packet && device.packet_mode().is_none() {
            return none;
        }
        if !is_packet && state.config.flags.esn && !device.follows_esn() {
            return Err(ConfigError::Offload("esn"));
        }
        match device.add_state(state) {
            Ok(()) => Ok(Some(offload)),
            Err(Refused::Unsupported) => none,
            Err(Refused::Failed(why)) => Err(ConfigError::OffloadFailed(dev, why)),
        }
    }

    /// Takes an SA off its device.
    pub(crate) fn delete_state(&mut self, offload: Offload, id: SaId) {
        if let Some(device) = self.get_mut(offload.dev) {
            device.delete_state(id);
        }
    }

    /// Offers a policy to the device that its configuration names (Linux `xfrm_dev_policy_add`). It has one template at
    /// most, as for the one driver of Linux that offloads policies (`mlx5e_xfrm_validate_policy`): a device does one
    /// layer of ESP, and the keys of packet mode are used by that device alone.
    ///
    /// # Errors
    /// The reason to refuse the policy.
    pub(crate) fn add_policy(&mut self, policy: &PolicyConfig) -> Result<(), ConfigError> {
        let Some(dev) = policy.offload else { return Ok(()) };
        if policy.templates.len() > 1 {
            return Err(ConfigError::Offload("more than one tmpl"));
        }
        let device = self.packet_mode(dev).ok_or(ConfigError::OffloadUnsupported(dev))?;
        device.add_policy(policy).map_err(|refused| match refused {
            Refused::Unsupported => ConfigError::OffloadUnsupported(dev),
            Refused::Failed(why) => ConfigError::OffloadFailed(dev, why),
        })?;
        self.policies.push((dev, policy.key()));
        Ok(())
    }

    /// Takes a policy off its device, if it is on one.
    pub(crate) fn delete_policy(&mut self, key: &PolicyKey) {
        self.delete_policies(|_, other| other == key);
    }

    /// Takes the policies that `which` selects off their devices.
    pub(crate) fn delete_policies(&mut self, mut which: impl FnMut(PortId, &PolicyKey) -> bool) {
        let gone: Vec<_> = self.policies.extract_if(.., |(link, key)| which(*link, key)).collect();
        for (link, key) in gone {
            if let Some(device) = self.packet_mode(link) {
                device.delete_policy(&key);
            }
        }
    }

    /// The policies on a link's device.
    pub(crate) fn policies_of(&self, link: PortId) -> Vec<PolicyKey> {
        self.policies.iter().filter(|(other, _)| *other == link).map(|(_, key)| *key).collect()
    }
}
