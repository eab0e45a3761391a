//! Creation of a device, and probing of its offloads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::ShardCount;
use offload::Features;
use rustix::fs::{Mode, OFlags};
use wire::MacAddr;

use super::{TunLink, longest};
use crate::config::Config;
use crate::error::text;
use crate::flow_hash::FlowHash;
use crate::offloads::{BY_CONFIGURATION, Offloads, TX_CSUM, TX_TSO4, TX_TSO6, TX_USO};
use crate::posted::Posted;
use crate::sys::ifreq::{Interface, tun_attach, tun_flags, tun_set_header_len, tun_set_index, tun_set_offload};
use crate::virtio::HEADER_LEN;
use crate::{Common, Layer, OpenError};

/// Device node that creates TUN and TAP devices.
const CLONE_DEVICE: &str = "/dev/net/tun";

/// Flags of `TUNSETOFFLOAD`, tried in order; each needs the ones before it.
const RX_OFFLOADS: [(&str, u32); 5] = [
    ("rx-checksum", libc::TUN_F_CSUM),
    ("rx-tso4", libc::TUN_F_TSO4),
    ("rx-tso6", libc::TUN_F_TSO6),
    ("rx-tso-ecn", libc::TUN_F_TSO_ECN),
    ("rx-uso", libc::TUN_F_USO4 | libc::TUN_F_USO6),
];

impl TunLink {
    /// Creates the device, or attaches to an existing one, and brings it up. Returns its queues: `queues`, but at least one for each shard.
    pub(crate) fn acquire(
        config: &Config,
        layer: Layer,
        queues: u16,
        shards: ShardCount,
    ) -> Result<Vec<OwnedFd>, OpenError> {
        let name = &config.name;
        let failed = |call| move |err| OpenError::new(name, call, err);
        let mut flags = libc::IFF_NO_PI | if layer == Layer::Ip { libc::IFF_TUN } else { libc::IFF_TAP };
        if config.offloads {
            flags |= libc::IFF_VNET_HDR;
        }
        let count = usize::from(queues).max(shards.get());
        if count > 1 {
            flags |= libc::IFF_MULTI_QUEUE;
        }
        let queues = (0..count).map(|_| attach(name, flags, config.index)).collect::<Result<Vec<_>, _>>()?;
        check_flags(queues[0].as_fd(), name, flags)?;
        set_framing(queues[0].as_fd(), name, config.offloads)?;
        let interface = Interface::new(name).map_err(failed("socket"))?;
        let mtu = interface.mtu().map_err(failed("SIOCGIFMTU"))?;
        if let Some(configured) = config.mtu.map(usize::from)
            && configured != mtu
        {
            interface.set_mtu(configured).map_err(failed("SIOCSIFMTU"))?;
        }
        if !interface.is_up().map_err(failed("SIOCGIFFLAGS"))? {
            interface.set_up().map_err(failed("SIOCSIFFLAGS"))?;
        }
        Ok(queues)
    }

    /// Makes a link for each shard over queues of a device, which are dealt to the shards in turn.
    ///
    /// The kernel returns a flow on the queue that wrote it last (Linux `tun_flow_update`), so a shard receives the replies to what it
    /// has sent.
    pub(crate) fn from_queues(
        config: &Config,
        layer: Layer,
        queues: Vec<OwnedFd>,
        shards: ShardCount,
    ) -> Result<Vec<Self>, OpenError> {
        let name = &config.name;
        let failed = |call| move |err| OpenError::new(name, call, err);
        if queues.len() < shards.get() {
            return Err(OpenError::wrong_descriptors(name, queues.len(), shards));
        }
        let mut dealt = std::iter::repeat_with(Vec::new).take(shards.get()).collect::<Vec<_>>();
        for (number, queue) in queues.into_iter().enumerate() {
            dealt[number % shards.get()].push(queue);
        }
        let offloads = probe(dealt[0][0].as_fd(), config.offloads);
        let interface = Interface::new(name).map_err(failed("socket"))?;
        let index = interface.index().map_err(failed("SIOCGIFINDEX"))?;
        let mtu = interface.mtu().map_err(failed("SIOCGIFMTU"))?;
        let layer = match layer {
            Layer::Ip => Layer::Ip,
            Layer::Ethernet(_) => {
                let host = interface.mac().map_err(failed("SIOCGIFHWADDR"))?.unwrap_or_default();
                Layer::Ethernet(other_station(host))
            }
        };
        let features = if config.offloads { offloads.features() } else { Features::NONE };
        let configured_mtu = u16::try_from(mtu).ok();
        let of_shard = |(shard, queues)| {
            Ok(Self {
                common: Common { mtu, ..Common::new(name, configured_mtu, offloads.clone(), features) },
                layer,
                queues,
                next: 0,
                virtio: config.offloads,
                longest: longest(config.offloads, mtu, layer),
                posted: Posted::new(),
                flow_hash: FlowHash::default(),
                interface: Interface::new(name).map_err(failed("socket"))?,
                index,
                down: false,
                gone: false,
                is_first: shard == 0,
                owned: false,
            })
        };
        dealt.into_iter().enumerate().map(of_shard).collect()
    }
}

/// Turns on virtio-net headers of a queue if offloads are `enabled`.
pub(super) fn set_framing(queue: BorrowedFd<'_>, name: &str, enabled: bool) -> Result<(), OpenError> {
    let failed = |call| move |err| OpenError::new(name, call, err);
    if enabled {
        tun_set_header_len(queue, HEADER_LEN).map_err(failed("TUNSETVNETHDRSZ"))
    } else {
        // An existing device may have offloads on.
        tun_set_offload(queue, 0).map_err(failed("TUNSETOFFLOAD"))
    }
}

/// Opens a queue. If that creates the device, its interface index is `index`.
pub(super) fn attach(name: &str, flags: i32, index: Option<u32>) -> Result<OwnedFd, OpenError> {
    let modes = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let queue = rustix::fs::open(CLONE_DEVICE, modes, Mode::empty()).map_err(|err| {
        OpenError::new(name, "open /dev/net/tun", err.into())
            .with_hint(
                libc::ENOENT,
                "make it: mkdir -p /dev/net && mknod /dev/net/tun c 10 200; in docker: --device /dev/net/tun",
            )
            .with_hint(libc::ENODEV, "the kernel lacks TUN: modprobe tun")
            .with_hint(libc::ENXIO, "the kernel lacks TUN: modprobe tun")
            .with_hint(libc::EACCES, "needs access to it and CAP_NET_ADMIN; run as root or grant them")
            .with_hint(libc::EPERM, "the container may not use it; in docker: --device /dev/net/tun")
    })?;
    if let Some(index) = index {
        tun_set_index(queue.as_fd(), index).map_err(|err| OpenError::new(name, "TUNSETIFINDEX", err))?;
    }
    tun_attach(queue.as_fd(), name, flags).map_err(|err| {
        let busy = match index {
            Some(_) => "another program has it, or another interface has its number",
            None => "another program has it",
        };
        let is_multi = flags & libc::IFF_MULTI_QUEUE != 0;
        let refused = OpenError::new(name, "TUNSETIFF", err).with_hint(libc::EBUSY, busy);
        let is_invalid = refused.source.raw_os_error() == Some(libc::EINVAL);
        let hint = match is_multi {
            _ if !is_invalid => return refused,
            true if has_one_queue(name, flags) => make_anew(name, flags),
            true => "an interface of that name is there already, of another kind or with other options".to_owned(),
            false => format!(
                "an interface of that name is there already, of another kind or with other options; a device that was made for several \
                 queues needs `queues` above 1, or is to be deleted with `ip link del {name}`"
            ),
        };
        refused.with_hint(libc::EINVAL, hint)
    })?;
    Ok(queue)
}

/// Checks that the device has the header that these queues were opened with. The kernel takes it from the first queue: a program
/// that has another one, such as the one that makes the device, decides for all.
fn check_flags(queue: BorrowedFd<'_>, name: &str, flags: i32) -> Result<(), OpenError> {
    const HEADERS: i32 = libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let found = tun_flags(queue).map_err(|err| OpenError::new(name, "TUNGETIFF", err))?;
    if found & HEADERS == flags & HEADERS {
        return Ok(());
    }
    let busy = io::Error::from_raw_os_error(libc::EBUSY);
    Err(OpenError::new(name, "TUNSETIFF", busy).with_hint(libc::EBUSY, "another program has a queue of it"))
}

/// Tells whether a device of this name and kind was made without `IFF_MULTI_QUEUE`, by attaching a queue, which is closed at once. The
/// kernel accepts the queue of such a device, or says that the device has its only one.
fn has_one_queue(name: &str, flags: i32) -> bool {
    let attach = |queue: File| tun_attach(queue.as_fd(), name, flags & !libc::IFF_MULTI_QUEUE);
    match OpenOptions::new().read(true).write(true).open(CLONE_DEVICE).and_then(attach) {
        Ok(()) => true,
        Err(err) => err.raw_os_error() == Some(libc::EBUSY),
    }
}

/// Remedy for a device that was made for one queue.
fn make_anew(name: &str, flags: i32) -> String {
    let mode = if flags & libc::IFF_TAP == 0 { "tun" } else { "tap" };
    format!(
        "the device was made for one queue and needs several: delete it with `ip link del {name}`, or make it with \
         `ip tuntap add {name} mode {mode} multi_queue`"
    )
}

/// Tries each offload of a queue.
pub(super) fn probe(queue: BorrowedFd<'_>, enabled: bool) -> Offloads {
    let mut offloads = Offloads::EMPTY;
    let mut granted = 0;
    let mut ask = |bits| {
        if !enabled {
            return Err(BY_CONFIGURATION.to_owned());
        }
        tun_set_offload(queue, granted | bits).map_err(|err| format!("TUNSETOFFLOAD: {}", text(&err)))?;
        granted |= bits;
        Ok(None)
    };
    for (name, bits) in RX_OFFLOADS {
        offloads.add(name, ask(bits));
    }
    // Transmit offloads are not negotiated: the kernel accepts every header type that it supports. USO came for both
    // directions at once (Linux 6.2).
    for name in [TX_CSUM, TX_TSO4, TX_TSO6, TX_USO] {
        let answer = match name {
            _ if !enabled => Err(BY_CONFIGURATION.to_owned()),
            TX_USO if !offloads.is_on("rx-uso") => Err("the kernel is older than 6.2".to_owned()),
            _ => Ok(None),
        };
        offloads.add(name, answer);
    }
    offloads
}

/// Link-layer address of our end, derived from that of the host's end.
pub(crate) fn other_station(host: MacAddr) -> MacAddr {
    let MacAddr([a, b, c, d, e, f]) = host;
    MacAddr([(a | 2) & !1, b, c, d, e, f ^ 1])
}
