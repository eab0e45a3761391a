//! Offload of an SA to a device, and the device's verdict on a received packet.

use base::{DropReason, Mib, PortId};
use packet::{Esp, EspStatus};
use xfrm::{Offload, OffloadMode, SaDir};

use super::Sa;

impl Sa {
    /// The device that it is offloaded to.
    pub const fn offload(&self) -> Option<Offload> {
        self.offload
    }

    /// The device of an SA in packet mode.
    pub(crate) fn packet_device(&self) -> Option<PortId> {
        self.offload.filter(|offload| offload.mode == OffloadMode::Packet).map(|offload| offload.dev)
    }

    /// Verdict about a packet of `link` by a device's report; without a report, whether the packet can be opened here.
    ///
    /// # Errors
    /// The counter and reason of the drop (Linux `xfrm_input`).
    #[cold]
    pub(crate) fn check_offload(&mut self, link: Option<PortId>, esp: Option<Esp>) -> Result<(), (Mib, DropReason)> {
        let Some(esp) = esp else {
            // The device keeps the replay window: opened here, every packet would pass again.
            let is_devices = self.packet_device().is_some();
            return if is_devices { Err((Mib::XfrmInStateMismatch, DropReason::EspMismatch)) } else { Ok(()) };
        };
        let is_its = self.offload.is_some_and(|offload| (Some(offload.dev), offload.dir) == (link, SaDir::In));
        let Esp::Opened { sa, status } = esp else { return Err((Mib::XfrmInError, DropReason::EspDevice)) };
        if !is_its || sa != self.id() {
            return Err((Mib::XfrmInStateInvalid, DropReason::EspDevice));
        }
        match status {
            EspStatus::Success => Ok(()),
            EspStatus::AuthFailed => {
                self.stats.failed += 1;
                Err((Mib::XfrmInStateProtoError, DropReason::EspIcv))
            }
            EspStatus::BadProtocol => Err((Mib::XfrmInStateProtoError, DropReason::EspFormat)),
            EspStatus::BadSyntax | EspStatus::Failed => Err((Mib::XfrmInBufferError, DropReason::EspDevice)),
        }
    }
}
