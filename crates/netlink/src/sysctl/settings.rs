//! One number of [`Settings`], as a file of `/proc/sys`.

use std::ops::RangeInclusive;

use base::PathHashPolicy;

use super::number::{self, INT, SECONDS, UINT, ULONG};
use crate::error::errno;
use config::model::{FragLimits, ReassemblyConfig, TableLimits};
use config::settings::Settings;

/// One number of [`Settings`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Setting {
    AcqExpires,
    AeventEtime,
    AeventRseqth,
    LarvalDrop,
    IpEarlyDemux,
    TcpEarlyDemux,
    UdpEarlyDemux,
    TcpL3mdevAccept,
    UdpL3mdevAccept,
    VrfStrictMode,
    HighThresh(Family),
    LowThresh(Family),
    Time(Family),
    MaxDist,
    Limit(Limit),
    PathHash(Family),
}

/// Table with a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Limit {
    Routes,
    Sas,
    Policies,
    Neighbours,
    Mappings,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Family {
    V4,
    V6,
}

/// Settings after a reload from `old` to `new`: values that the configuration file changes are applied; values that
/// clients have set otherwise stay.
#[must_use]
pub fn reloaded(mut now: Settings, old: &Settings, new: &Settings) -> Settings {
    for setting in super::settings() {
        let requested = setting.get(new);
        if requested != setting.get(old) {
            // The value of a configuration file is valid.
            let _ = setting.set(&mut now, requested);
        }
    }
    let ReassemblyConfig { policy, coalesce, .. } = new.reassembly;
    now.reassembly = ReassemblyConfig { policy, coalesce, ..now.reassembly };
    for family in [Family::V4, Family::V6] {
        let limits = frag_mut(&mut now, family);
        limits.low_thresh = limits.low_thresh.min(limits.high_thresh);
    }
    now
}

const fn frag(settings: &Settings, family: Family) -> &FragLimits {
    match family {
        Family::V4 => &settings.reassembly.v4,
        Family::V6 => &settings.reassembly.v6,
    }
}

const fn frag_mut(settings: &mut Settings, family: Family) -> &mut FragLimits {
    match family {
        Family::V4 => &mut settings.reassembly.v4,
        Family::V6 => &mut settings.reassembly.v6,
    }
}

impl Limit {
    /// The number of this table.
    const fn of(self, tables: &mut TableLimits) -> &mut u32 {
        match self {
            Self::Routes => &mut tables.routes,
            Self::Sas => &mut tables.sas,
            Self::Policies => &mut tables.policies,
            Self::Neighbours => &mut tables.neighbours,
            Self::Mappings => &mut tables.mappings,
        }
    }
}

impl Setting {
    pub(super) fn get(self, settings: &Settings) -> i128 {
        match self {
            Self::AcqExpires => settings.xfrm.acq_expires.into(),
            Self::AeventEtime => settings.xfrm.aevent_etime.into(),
            Self::AeventRseqth => settings.xfrm.aevent_rseqth.into(),
            Self::LarvalDrop => settings.xfrm.larval_drop.into(),
            Self::IpEarlyDemux => settings.early_demux.ip.into(),
            Self::TcpEarlyDemux => settings.early_demux.tcp.into(),
            Self::UdpEarlyDemux => settings.early_demux.udp.into(),
            Self::TcpL3mdevAccept => settings.l3mdev_accept.tcp.into(),
            Self::UdpL3mdevAccept => settings.l3mdev_accept.udp.into(),
            Self::VrfStrictMode => settings.vrf_strict_mode.into(),
            Self::HighThresh(family) => frag(settings, family).high_thresh.into(),
            Self::LowThresh(family) => frag(settings, family).low_thresh.into(),
            Self::Time(family) => frag(settings, family).timeout_secs.into(),
            Self::MaxDist => settings.reassembly.max_distance.into(),
            Self::Limit(limit) => (*limit.of(&mut { settings.tables })).into(),
            Self::PathHash(family) => match settings.path_hash[family as usize] {
                PathHashPolicy::Addresses => 0,
                PathHashPolicy::Ports => 1,
            },
        }
    }

    /// Sets the value in `text`.
    ///
    /// # Errors
    /// `EINVAL` if Linux refuses the value; else as [`set`](Self::set).
    pub(super) fn write(self, settings: &mut Settings, text: &[u8]) -> Result<(), i32> {
        let value = number::within(self.bounds(settings), text)?;
        self.set(settings, value)
    }

    /// Values that Linux accepts.
    fn bounds(self, settings: &Settings) -> RangeInclusive<i128> {
        match self {
            Self::AcqExpires | Self::LarvalDrop => INT,
            Self::AeventEtime | Self::AeventRseqth => UINT,
            Self::IpEarlyDemux | Self::TcpEarlyDemux | Self::UdpEarlyDemux => 0..=u8::MAX.into(),
            Self::TcpL3mdevAccept | Self::UdpL3mdevAccept | Self::VrfStrictMode => 0..=1,
            Self::HighThresh(family) => frag(settings, family).low_thresh.into()..=*ULONG.end(),
            Self::LowThresh(family) => 0..=frag(settings, family).high_thresh.into(),
            Self::Time(_) => SECONDS,
            Self::MaxDist | Self::Limit(_) => 0..=*INT.end(),
            Self::PathHash(_) => 0..=3,
        }
    }

    /// Sets a value that is within the bounds.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: a node does not support the value.
    fn set(self, settings: &mut Settings, value: i128) -> Result<(), i32> {
        let unable = errno::EOPNOTSUPP;
        let narrow = |value: i128| u32::try_from(value).map_err(|_| unable);
        let wide = |value: i128| u64::try_from(value).map_err(|_| unable);
        let byte = |value: i128| u8::try_from(value).map_err(|_| unable);
        match self {
            Self::AcqExpires if value == 0 => return Err(unable),
            Self::AcqExpires => settings.xfrm.acq_expires = narrow(value)?,
            Self::AeventEtime => settings.xfrm.aevent_etime = narrow(value)?,
            Self::AeventRseqth => settings.xfrm.aevent_rseqth = narrow(value)?,
            Self::LarvalDrop => {
                settings.xfrm.larval_drop = match value {
                    0 => false,
                    1 => true,
                    _ => return Err(unable),
                }
            }
            Self::IpEarlyDemux => settings.early_demux.ip = byte(value)?,
            Self::TcpEarlyDemux => settings.early_demux.tcp = byte(value)?,
            Self::UdpEarlyDemux => settings.early_demux.udp = byte(value)?,
            Self::TcpL3mdevAccept => settings.l3mdev_accept.tcp = value != 0,
            Self::UdpL3mdevAccept => settings.l3mdev_accept.udp = value != 0,
            Self::VrfStrictMode => settings.vrf_strict_mode = value != 0,
            Self::HighThresh(family) => frag_mut(settings, family).high_thresh = wide(value)?,
            Self::LowThresh(family) => frag_mut(settings, family).low_thresh = wide(value)?,
            Self::Time(family) => frag_mut(settings, family).timeout_secs = narrow(value)?,
            Self::MaxDist => settings.reassembly.max_distance = narrow(value)?,
            Self::Limit(limit) => *limit.of(&mut settings.tables) = narrow(value)?,
            Self::PathHash(family) => {
                settings.path_hash[family as usize] = match value {
                    0 => PathHashPolicy::Addresses,
                    1 => PathHashPolicy::Ports,
                    _ => return Err(unable),
                }
            }
        }
        Ok(())
    }
}
