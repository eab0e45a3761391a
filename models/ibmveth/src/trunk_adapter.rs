//! Adapter as a link of a node. In trunk mode the adapter is the bridge port that connects guests with the outside.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::DropReason;
use link::{Common, Layer, Link, Offloads, OpenError, Sent};
use offload::{CsumOffload, Features};
use packet::{Copied, CopyReason, Memory, Packet};
use wire::MacAddr;

use crate::{Adapter, AdapterConfig, FragListMode, Lan, SettingError, TxError, TxOffloads, Unit};

/// Default MTU of an adapter, in bytes.
const DEFAULT_MTU: usize = 1500;

/// Limit of packets that one call of [`Link::recv`] returns.
const BURST_PACKETS: usize = 64;

/// LAN that connects several links and guests.
pub type SharedLan = Arc<Mutex<Lan>>;

/// An adapter as a link.
#[derive(Debug)]
pub struct TrunkAdapter {
    common: Common,
    lan: SharedLan,
    adapter: Adapter,
    /// Number of lost frames of the receive queue that are counted already.
    lost: u64,
    /// Copies that are in the ledger already.
    entered: [Copied; CopyReason::ALL.len()],
}

impl TrunkAdapter {
    /// Opens the adapter of a unit.
    ///
    /// # Errors
    /// The hypervisor refuses the registration, or a setting is out of range.
    pub fn open(name: &str, lan: &SharedLan, unit: Unit, config: AdapterConfig) -> Result<Self, OpenError> {
        let mut locked = lock(lan);
        let adapter = Adapter::probe(&mut locked, unit, config).and_then(|mut adapter| {
            adapter.open(&mut locked)?;
            Ok(adapter)
        });
        drop(locked);
        let adapter = adapter.map_err(|why| refused(name, "H_REGISTER_LOGICAL_LAN", why))?;
        let configured_mtu = u16::try_from(adapter.mtu()).ok();
        let mut link = Self {
            common: Common {
                mtu: adapter.mtu(),
                ..Common::new(name, configured_mtu, Offloads::EMPTY, adapter.features())
            },
            lan: Arc::clone(lan),
            adapter,
            lost: 0,
            entered: [Copied::default(); CopyReason::ALL.len()],
        };
        link.list_offloads();
        Ok(link)
    }

    /// The adapter.
    pub const fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// Changes the adapter's settings with `change`, as its operator does.
    ///
    /// # Errors
    /// As `change`.
    pub fn configure<T>(
        &mut self,
        change: impl FnOnce(&mut Adapter, &mut Lan) -> Result<T, SettingError>,
    ) -> Result<T, SettingError> {
        let lan = Arc::clone(&self.lan);
        let result = change(&mut self.adapter, &mut lock(&lan));
        self.common.mtu = self.adapter.mtu();
        self.count_lost();
        result
    }

    /// Sets offloads, as `ethtool -K`.
    ///
    /// # Errors
    /// As [`Adapter::set_offloads`].
    pub fn set_offloads(&mut self, wanted: TxOffloads) -> Result<(), SettingError> {
        self.configure(|adapter, lan| adapter.set_offloads(lan, wanted))
    }

    /// Sets the treatment of fat packets in pieces.
    pub fn set_frag_list_mode(&mut self, mode: FragListMode) {
        self.adapter.set_frag_list_mode(mode);
    }

    /// Current features, as seen by the datapath.
    fn current(&self) -> Features {
        self.adapter.features()
    }

    fn list_offloads(&mut self) {
        let Features { csum, tso4, tso6, .. } = self.common.features;
        let mut offloads = Offloads::EMPTY;
        for (name, on) in [("tx-checksum", csum != CsumOffload::None), ("tx-tso4", tso4), ("tx-tso6", tso6)] {
            offloads.add(name, if on { Ok(None) } else { Err("not negotiated with the hypervisor".to_owned()) });
        }
        offloads.add("tx-uso", Err("the adapter segments TCP only".to_owned()));
        self.common.offloads = offloads;
    }

    /// Counts frames that a change of settings has lost.
    fn count_lost(&mut self) {
        let lost = self.adapter.counters().rx_lost;
        (self.lost..lost).for_each(|_| self.common.stats.rx_drop(DropReason::LinkDown));
        self.lost = lost;
    }
}

fn lock(lan: &SharedLan) -> MutexGuard<'_, Lan> {
    lan.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(name: &str, call: &'static str, why: SettingError) -> OpenError {
    let kind = match why {
        SettingError::Range(_) | SettingError::Address => io::ErrorKind::InvalidInput,
        SettingError::LastPool => io::ErrorKind::PermissionDenied,
        SettingError::Refused => io::ErrorKind::Unsupported,
        SettingError::NotRegistered => io::ErrorKind::NotFound,
        SettingError::Memory => io::ErrorKind::OutOfMemory,
    };
    OpenError { device: name.to_owned(), call, source: io::Error::new(kind, why), hint: None }
}

/// Drop reason of a packet that was not sent.
const fn reason(why: TxError) -> DropReason {
    match why {
        TxError::Closed => DropReason::LinkDown,
        TxError::Truncated => DropReason::EthTruncated,
        TxError::Offload(reason) => reason,
        TxError::NoQueue | TxError::OwnAddress | TxError::TooLong | TxError::Refused(_) => DropReason::TxError,
    }
}

impl Drop for TrunkAdapter {
    fn drop(&mut self) {
        self.adapter.close(&mut lock(&self.lan));
    }
}

impl Link for TrunkAdapter {
    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn set_mtu(&mut self, mtu: Option<u16>) -> Result<(), OpenError> {
        let bytes = mtu.map_or(DEFAULT_MTU, usize::from);
        let set = self.configure(|adapter, lan| adapter.set_mtu(lan, bytes));
        set.map_err(|why| refused(&self.common.name, "MTU", why))?;
        self.common.configured_mtu = mtu;
        Ok(())
    }

    fn set_mac(&mut self, mac: MacAddr) -> Result<(), OpenError> {
        let set = self.configure(|adapter, lan| adapter.set_mac(lan, mac));
        set.map_err(|why| refused(&self.common.name, "H_CHANGE_LOGICAL_LAN_MAC", why))
    }

    fn layer(&self) -> Layer {
        Layer::Ethernet(self.adapter.mac())
    }

    /// Enters the adapter's copies of sent frames and of frames in small buffers in the ledger. The hypervisor counts
    /// its own copies ([`LanCounters`](crate::LanCounters)).
    fn settle(&mut self, mem: &Memory) -> bool {
        for (reason, copied) in self.adapter.copies() {
            let entered = &mut self.entered[reason as usize];
            let (copies, bytes) = (copied.copies - entered.copies, copied.bytes - entered.bytes);
            mem.copies().add_all(reason, Copied { copies, bytes });
            *entered = copied;
        }
        false
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        let before = out.len();
        let lan = Arc::clone(&self.lan);
        self.adapter.poll(&mut lock(&lan), mem, BURST_PACKETS, out);
        self.count_lost();
        out[before..].iter().for_each(|packet| self.common.stats.received(packet));
        self.common.stats.rx_calls += u64::from(out.len() > before);
        if self.adapter.is_open() {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::NetworkDown, format!("{}: closed by the hypervisor", self.common.name)))
        }
    }

    /// Sends a complete burst. A burst that was fitted to features other than the current ones has to be fitted again
    /// first.
    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent> {
        let current = self.current();
        if self.common.features != current {
            self.common.features = current;
            self.list_offloads();
            return Ok(if burst.is_empty() { Sent::All } else { Sent::Refit });
        }
        let lan = Arc::clone(&self.lan);
        let mut lan = lock(&lan);
        self.common.stats.tx_calls += u64::from(!burst.is_empty());
        for packet in burst.drain(..) {
            let (segs, len) = (packet.meta.cut.segs(), packet.len() as u64);
            match self.adapter.transmit(&mut lan, 0, packet) {
                Ok(()) => {
                    self.common.stats.tx_packets += 1;
                    self.common.stats.tx_wire_packets += segs;
                    self.common.stats.tx_bytes += len;
                }
                Err(why) => self.common.stats.tx_drop(reason(why)),
            }
        }
        Ok(Sent::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdapterPlace, Firmware};

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn pair() -> (TrunkAdapter, TrunkAdapter) {
        let lan = Arc::new(Mutex::new(Lan::new(Firmware::CURRENT)));
        let open = |name: &str, place| {
            let unit = lock(&lan).add_adapter(place).unwrap();
            TrunkAdapter::open(name, &lan, unit, AdapterConfig::default()).unwrap()
        };
        (open("trunk", AdapterPlace::trunk(A, 1, Vec::new())), open("guest", AdapterPlace::guest(B)))
    }

    fn frame(mem: &Memory, len: usize) -> Packet {
        let bytes = [&B.0[..], &A.0, &[0x88, 0xb5], &vec![7; len]].concat();
        Packet::with_data(mem, &bytes).unwrap()
    }

    #[test]
    fn burst_is_sent_received_and_counted() {
        let mem = Memory::heap();
        let (mut trunk, mut guest) = pair();
        assert_eq!((trunk.layer(), trunk.mtu()), (Layer::Ethernet(A), 1500));
        assert!(trunk.features().frag_list && !guest.features().frag_list);
        let mut burst = vec![frame(&mem, 20), frame(&mem, 1000)];
        assert_eq!(trunk.send(&mut burst).unwrap(), Sent::All);
        let mut got = Vec::new();
        guest.recv(&mem, &mut got).unwrap();
        assert_eq!(got.iter().map(Packet::len).collect::<Vec<_>>(), [34, 1014]);
        assert_eq!((trunk.stats().tx_packets, trunk.stats().tx_bytes, trunk.stats().tx_calls), (2, 1048, 1));
        assert_eq!((guest.stats().rx_packets, guest.stats().rx_bytes, guest.stats().rx_calls), (2, 1048, 1));
        assert!(!trunk.settle(&mem) && !guest.settle(&mem));
        // Both frames were copied into the transmit buffer, and the small one out of its receive buffer.
        assert_eq!(mem.copies().get(CopyReason::DeviceFrame), Copied { copies: 3, bytes: 1048 + 34 });
    }

    #[test]
    fn burst_is_fitted_again_after_offloads_change() {
        let mem = Memory::heap();
        let (mut trunk, _guest) = pair();
        assert!(trunk.features().tso6 && trunk.offloads().iter().filter(|offload| offload.on).count() == 3);
        trunk.set_offloads(TxOffloads::NONE).unwrap();
        assert!(trunk.features().tso6, "until the next send");
        let mut burst = vec![frame(&mem, 20)];
        assert_eq!((trunk.send(&mut burst).unwrap(), burst.len()), (Sent::Refit, 1));
        assert!(!trunk.features().tso6 && trunk.offloads().iter().all(|offload| !offload.on));
        assert_eq!((trunk.send(&mut burst).unwrap(), burst.len()), (Sent::All, 0));
    }

    #[test]
    fn refused_setting_names_link_and_reason() {
        let (mut trunk, _guest) = pair();
        let err = trunk.set_mtu(Some(67)).unwrap_err();
        assert_eq!(err.to_string(), "trunk: MTU: 67 is out of range");
        assert_eq!((trunk.mtu(), trunk.configured_mtu()), (1500, Some(1500)));
        trunk.set_mtu(Some(9000)).unwrap();
        assert_eq!((trunk.mtu(), trunk.configured_mtu()), (9000, Some(9000)));
        assert!(trunk.set_mac(MacAddr::BROADCAST).is_err());
        trunk.set_mac(MacAddr([2, 0, 0, 0, 0, 9])).unwrap();
        assert_eq!(trunk.layer(), Layer::Ethernet(MacAddr([2, 0, 0, 0, 0, 9])));
    }

    #[test]
    fn frames_lost_by_a_restart_are_counted() {
        let mem = Memory::heap();
        let (mut trunk, mut guest) = pair();
        let mut burst = vec![frame(&mem, 20), frame(&mem, 20)];
        assert_eq!(trunk.send(&mut burst).unwrap(), Sent::All);
        guest.set_mtu(Some(1400)).unwrap();
        assert_eq!((guest.stats().rx_dropped, guest.stats().dropped_for(DropReason::LinkDown)), (2, 2));
    }
}
