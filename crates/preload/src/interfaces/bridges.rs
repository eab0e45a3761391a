//! Requests of `ioctl` for bridges, as brctl(8) uses them (Linux `br_ioctl_stub`, `br_dev_siocdevprivate`), as requests
//! of rtnetlink.

use std::mem;

use libc::{c_int, c_ulong, c_void};

use super::exchange::{
    CREATE, DUMP, EXCL, INFO_KIND, INFO_SLAVE_KIND, Link, LinkKey, attribute, change, exchange, link, links,
    put_attribute, word,
};
use super::link_settings;
use crate::errno::Errno;
use crate::program_memory::InOut;

/// `IFLA_INFO_*`.
const INFO_DATA: u16 = 2;
const INFO_SLAVE_DATA: u16 = 5;
/// `RTM_NEWLINK` and `RTM_DELLINK`.
const KIND: &[u8] = b"bridge";

/// Commands of `SIOCGIFBR`, `SIOCSIFBR` and `SIOCDEVPRIVATE` (`linux/if_bridge.h`).
const GET_VERSION: c_ulong = 0;
const GET_BRIDGES: c_ulong = 1;
const ADD_BRIDGE: c_ulong = 2;
const DEL_BRIDGE: c_ulong = 3;
const ADD_IF: c_ulong = 4;
const DEL_IF: c_ulong = 5;
const GET_BRIDGE_INFO: c_ulong = 6;
const GET_PORT_LIST: c_ulong = 7;
const SET_BRIDGE_FORWARD_DELAY: c_ulong = 8;
const SET_BRIDGE_HELLO_TIME: c_ulong = 9;
const SET_BRIDGE_MAX_AGE: c_ulong = 10;
const SET_AGEING_TIME: c_ulong = 11;
const GET_PORT_INFO: c_ulong = 13;
const SET_BRIDGE_STP_STATE: c_ulong = 14;
const SET_BRIDGE_PRIORITY: c_ulong = 15;
const SET_PORT_PRIORITY: c_ulong = 16;
const SET_PATH_COST: c_ulong = 17;
const GET_FDB_ENTRIES: c_ulong = 18;

/// `BRCTL_VERSION`.
const VERSION: c_int = 1;
/// Maximum number of ports of a bridge (`BR_MAX_PORTS`), and of bridges and entries in an answer.
const MAX_PORTS: usize = 1024;
const MAX_BRIDGES: usize = 2048;
const MAX_ENTRIES: usize = 4096;

/// Request for bridges.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BridgeRequest {
    /// `SIOCGIFBR` and `SIOCSIFBR`, whose command is in memory.
    Command,
    /// `SIOCBRADDBR`.
    Add,
    /// `SIOCBRDELBR`.
    Delete,
    /// `SIOCBRADDIF`.
    AddPort,
    /// `SIOCBRDELIF`.
    DeletePort,
    /// `SIOCDEVPRIVATE`, whose command is in memory.
    OfBridge,
}

/// `struct __bridge_info`.
#[repr(C)]
struct BridgeInfo {
    designated_root: [u8; 8],
    bridge_id: [u8; 8],
    root_path_cost: u32,
    max_age: u32,
    hello_time: u32,
    forward_delay: u32,
    bridge_max_age: u32,
    bridge_hello_time: u32,
    bridge_forward_delay: u32,
    topology_change: u8,
    topology_change_detected: u8,
    root_port: u8,
    stp_enabled: u8,
    ageing_time: u32,
    gc_interval: u32,
    hello_timer_value: u32,
    tcn_timer_value: u32,
    topology_change_timer_value: u32,
    gc_timer_value: u32,
}

/// `struct __port_info`.
#[repr(C)]
struct PortInfo {
    designated_root: [u8; 8],
    designated_bridge: [u8; 8],
    port_id: u16,
    designated_port: u16,
    path_cost: u32,
    designated_cost: u32,
    state: u8,
    flags: u8,
    unused: [u8; 2],
    message_age_timer_value: u32,
    forward_delay_timer_value: u32,
    hold_timer_value: u32,
}

/// `struct __fdb_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct FdbEntry {
    mac_addr: [u8; 6],
    port_no: u8,
    is_local: u8,
    ageing_timer_value: u32,
    port_hi: u8,
    unused: [u8; 3],
}

/// Executes a command of `SIOCGIFBR` or `SIOCSIFBR`.
///
/// # Errors
/// `EFAULT`; `EOPNOTSUPP`; the gateway's error.
pub(super) fn command(arguments: &CommandArguments<'_>) -> Result<c_int, Errno> {
    match arguments.word(0)? {
        GET_VERSION => Ok(VERSION),
        GET_BRIDGES => {
            let bridges = links()?.into_iter().filter(|link| link.is(INFO_KIND, KIND));
            let indices: Vec<c_int> = bridges.map(|link| link.index).collect();
            let room = (arguments.word(2)? as usize).min(MAX_BRIDGES);
            arguments.copy_out(&indices, room)
        }
        ADD_BRIDGE => arguments.name().and_then(|name| add(&name)).map(|()| 0),
        DEL_BRIDGE => arguments.name().and_then(|name| delete(&name)).map(|()| 0),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

/// Adds a bridge.
pub(super) fn add(name: &[u8]) -> Result<(), Errno> {
    let mut info = Vec::new();
    put_attribute(&mut info, INFO_KIND, b"bridge\0");
    let name = [name, b"\0"].concat();
    let body = link_settings::message(0, 0, 0, &[(libc::IFLA_IFNAME, &name), (libc::IFLA_LINKINFO, &info)]);
    change(libc::RTM_NEWLINK, CREATE | EXCL, &body)
}

/// Deletes a bridge.
///
/// # Errors
/// `ENXIO`: it does not exist; `EPERM`: it is no bridge; `EBUSY`: it is up; the gateway's error.
pub(super) fn delete(name: &[u8]) -> Result<(), Errno> {
    let found = link(LinkKey::Name(name)).map_err(|errno| match errno.0 {
        libc::ENODEV => Errno(libc::ENXIO),
        _ => errno,
    })?;
    if !found.is(INFO_KIND, KIND) {
        return Err(Errno(libc::EPERM));
    }
    if found.flags & libc::IFF_UP as u32 != 0 {
        return Err(Errno(libc::EBUSY));
    }
    change(libc::RTM_DELLINK, 0, &link_settings::message(found.index, 0, 0, &[]))
}

/// Bridge of that name.
///
/// # Errors
/// `ENODEV`: it does not exist; `EOPNOTSUPP`: it is no bridge.
fn bridge(name: &[u8]) -> Result<Link, Errno> {
    let found = link(LinkKey::Name(name))?;
    if found.is(INFO_KIND, KIND) { Ok(found) } else { Err(Errno(libc::EOPNOTSUPP)) }
}

/// Makes an interface a port of a bridge.
///
/// # Errors
/// `EINVAL`: it does not exist; `EBUSY`: it is a port already; the gateway's error.
pub(super) fn add_port(name: &[u8], index: c_int) -> Result<(), Errno> {
    let bridge = bridge(name)?;
    if port_link(index)?.master.is_some() {
        return Err(Errno(libc::EBUSY));
    }
    link_settings::set(index, 0, 0, &[(libc::IFLA_MASTER, &bridge.index.to_ne_bytes())])
}

/// Removes a port from a bridge.
///
/// # Errors
/// `EINVAL`: it is no port of that bridge; the gateway's error.
pub(super) fn delete_port(name: &[u8], index: c_int) -> Result<(), Errno> {
    let bridge = bridge(name)?;
    if port_link(index)?.master != Some(bridge.index) {
        return Err(Errno(libc::EINVAL));
    }
    link_settings::set(index, 0, 0, &[(libc::IFLA_MASTER, &0_u32.to_ne_bytes())])
}

fn port_link(index: c_int) -> Result<Link, Errno> {
    link(LinkKey::Index(index)).map_err(|errno| if errno.0 == libc::ENODEV { Errno(libc::EINVAL) } else { errno })
}

/// Executes a command of `SIOCDEVPRIVATE` for the bridge `name`.
///
/// # Errors
/// `ENODEV`: the interface does not exist; `EOPNOTSUPP`: it is no bridge; `EFAULT`; the gateway's error.
pub(super) fn of_bridge(name: &[u8], arguments: &CommandArguments<'_>) -> Result<c_int, Errno> {
    let bridge = bridge(name)?;
    let argument = |at: usize| arguments.word(at);
    let command = argument(0)?;
    match command {
        ADD_IF => add_port(name, argument(1)? as c_int).map(|()| 0),
        DEL_IF => delete_port(name, argument(1)? as c_int).map(|()| 0),
        GET_BRIDGE_INFO => arguments.copy_out(&[bridge_info(&bridge)], 1).map(|_| 0),
        GET_PORT_LIST => {
            let room = match argument(2)? as usize {
                0 => 256,
                room => room.min(MAX_PORTS),
            };
            let mut indices = vec![0_i32; room];
            for (number, link) in ports(&bridge)? {
                indices.get_mut(usize::from(number)).into_iter().for_each(|index| *index = link.index);
            }
            arguments.copy_out(&indices, room)
        }
        GET_PORT_INFO => {
            let wanted = argument(2)?;
            let ports = ports(&bridge)?;
            let (_, port) =
                ports.iter().find(|(number, _)| c_ulong::from(*number) == wanted).ok_or(Errno(libc::EINVAL))?;
            arguments.copy_out(&[port_info(port)], 1).map(|_| 0)
        }
        GET_FDB_ENTRIES => {
            let (room, skipped) = (argument(2)? as usize, argument(3)? as usize);
            let entries: Vec<FdbEntry> = entries(&bridge)?.into_iter().skip(skipped).collect();
            arguments.copy_out(&entries, room.min(MAX_ENTRIES))
        }
        SET_PORT_PRIORITY | SET_PATH_COST => {
            let wanted = argument(1)?;
            let ports = ports(&bridge)?;
            let (_, port) =
                ports.iter().find(|(number, _)| c_ulong::from(*number) == wanted).ok_or(Errno(libc::EINVAL))?;
            let value = argument(2)?;
            let mut data = Vec::new();
            match command {
                SET_PATH_COST => put_attribute(&mut data, BRPORT_COST, &(value as u32).to_ne_bytes()),
                _ => {
                    let value = u16::try_from(value).map_err(|_| Errno(libc::ERANGE))?;
                    put_attribute(&mut data, BRPORT_PRIORITY, &value.to_ne_bytes());
                }
            }
            set_info(port, INFO_SLAVE_KIND, INFO_SLAVE_DATA, &data).map(|()| 0)
        }
        command => set_bridge(&bridge, command, argument(1)?).map(|()| 0),
    }
}

/// Changes a setting of a bridge. The gateway refuses settings of the spanning tree.
fn set_bridge(bridge: &Link, command: c_ulong, value: c_ulong) -> Result<(), Errno> {
    let number = (value as u32).to_ne_bytes();
    let mut data = Vec::new();
    match command {
        SET_BRIDGE_FORWARD_DELAY => put_attribute(&mut data, BR_FORWARD_DELAY, &number),
        SET_BRIDGE_HELLO_TIME => put_attribute(&mut data, BR_HELLO_TIME, &number),
        SET_BRIDGE_MAX_AGE => put_attribute(&mut data, BR_MAX_AGE, &number),
        SET_AGEING_TIME => put_attribute(&mut data, BR_AGEING_TIME, &number),
        SET_BRIDGE_STP_STATE => put_attribute(&mut data, BR_STP_STATE, &u32::from(value != 0).to_ne_bytes()),
        SET_BRIDGE_PRIORITY => put_attribute(&mut data, BR_PRIORITY, &(value as u16).to_ne_bytes()),
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    }
    set_info(bridge, INFO_KIND, INFO_DATA, &data)
}

fn set_info(link: &Link, kind: u16, data: u16, attributes: &[u8]) -> Result<(), Errno> {
    let mut info = Vec::new();
    put_attribute(&mut info, kind, b"bridge\0");
    put_attribute(&mut info, data, attributes);
    change(libc::RTM_NEWLINK, 0, &link_settings::message(link.index, 0, 0, &[(libc::IFLA_LINKINFO, &info)]))
}

/// `IFLA_BR_*`.
const BR_FORWARD_DELAY: u16 = 1;
const BR_HELLO_TIME: u16 = 2;
const BR_MAX_AGE: u16 = 3;
const BR_AGEING_TIME: u16 = 4;
const BR_STP_STATE: u16 = 5;
const BR_PRIORITY: u16 = 6;
const BR_ROOT_ID: u16 = 10;
const BR_BRIDGE_ID: u16 = 11;
const BR_ROOT_PORT: u16 = 12;
const BR_ROOT_PATH_COST: u16 = 13;
const BR_TOPOLOGY_CHANGE: u16 = 14;
const BR_TOPOLOGY_CHANGE_DETECTED: u16 = 15;
const BR_HELLO_TIMER: u16 = 16;
const BR_TCN_TIMER: u16 = 17;
const BR_TOPOLOGY_CHANGE_TIMER: u16 = 18;
const BR_GC_TIMER: u16 = 19;
/// `IFLA_BRPORT_*`.
const BRPORT_STATE: u16 = 1;
const BRPORT_PRIORITY: u16 = 2;
const BRPORT_COST: u16 = 3;
const BRPORT_ROOT_ID: u16 = 13;
const BRPORT_BRIDGE_ID: u16 = 14;
const BRPORT_DESIGNATED_PORT: u16 = 15;
const BRPORT_DESIGNATED_COST: u16 = 16;
const BRPORT_ID: u16 = 17;
const BRPORT_NO: u16 = 18;
const BRPORT_MESSAGE_AGE_TIMER: u16 = 21;
const BRPORT_FORWARD_DELAY_TIMER: u16 = 22;
const BRPORT_HOLD_TIMER: u16 = 23;

/// Attributes that are numbers; 0 in place of missing ones.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn bytes<const N: usize>(&self, kind: u16) -> [u8; N] {
        attribute(self.0, kind).and_then(|value| value.first_chunk()).copied().unwrap_or([0; N])
    }

    fn u8(&self, kind: u16) -> u8 {
        self.bytes::<1>(kind)[0]
    }

    fn u16(&self, kind: u16) -> u16 {
        u16::from_ne_bytes(self.bytes(kind))
    }

    fn u32(&self, kind: u16) -> u32 {
        u32::from_ne_bytes(self.bytes(kind))
    }

    /// A time of 64 bits, in the unit of the requests (`USER_HZ`).
    fn time(&self, kind: u16) -> u32 {
        u64::from_ne_bytes(self.bytes(kind)) as u32
    }
}

fn bridge_info(bridge: &Link) -> BridgeInfo {
    let of = Numbers(bridge.info(INFO_DATA).unwrap_or_default());
    let [max_age, hello_time, forward_delay] = [BR_MAX_AGE, BR_HELLO_TIME, BR_FORWARD_DELAY].map(|kind| of.u32(kind));
    BridgeInfo {
        designated_root: of.bytes(BR_ROOT_ID),
        bridge_id: of.bytes(BR_BRIDGE_ID),
        root_path_cost: of.u32(BR_ROOT_PATH_COST),
        max_age,
        hello_time,
        forward_delay,
        bridge_max_age: max_age,
        bridge_hello_time: hello_time,
        bridge_forward_delay: forward_delay,
        topology_change: of.u8(BR_TOPOLOGY_CHANGE),
        topology_change_detected: of.u8(BR_TOPOLOGY_CHANGE_DETECTED),
        root_port: of.u16(BR_ROOT_PORT) as u8,
        stp_enabled: u8::from(of.u32(BR_STP_STATE) != 0),
        ageing_time: of.u32(BR_AGEING_TIME),
        gc_interval: 0,
        hello_timer_value: of.time(BR_HELLO_TIMER),
        tcn_timer_value: of.time(BR_TCN_TIMER),
        topology_change_timer_value: of.time(BR_TOPOLOGY_CHANGE_TIMER),
        gc_timer_value: of.time(BR_GC_TIMER),
    }
}

fn port_info(port: &Link) -> PortInfo {
    let of = Numbers(port.info(INFO_SLAVE_DATA).unwrap_or_default());
    PortInfo {
        designated_root: of.bytes(BRPORT_ROOT_ID),
        designated_bridge: of.bytes(BRPORT_BRIDGE_ID),
        port_id: of.u16(BRPORT_ID),
        designated_port: of.u16(BRPORT_DESIGNATED_PORT),
        path_cost: of.u32(BRPORT_COST),
        designated_cost: of.u16(BRPORT_DESIGNATED_COST).into(),
        state: of.u8(BRPORT_STATE),
        flags: 0,
        unused: [0; 2],
        message_age_timer_value: of.time(BRPORT_MESSAGE_AGE_TIMER),
        forward_delay_timer_value: of.time(BRPORT_FORWARD_DELAY_TIMER),
        hold_timer_value: of.time(BRPORT_HOLD_TIMER),
    }
}

/// Ports of a bridge, with their numbers.
fn ports(bridge: &Link) -> Result<Vec<(u16, Link)>, Errno> {
    let is_port = |link: &Link| link.master == Some(bridge.index) && link.is(INFO_SLAVE_KIND, KIND);
    let ports = links()?.into_iter().filter(is_port);
    Ok(ports.map(|link| (Numbers(link.info(INFO_SLAVE_DATA).unwrap_or_default()).u16(BRPORT_NO), link)).collect())
}

/// Addresses that a bridge has learnt or was given, and those of its ports, in the order of the dump; an address with
/// several VLANs once.
fn entries(bridge: &Link) -> Result<Vec<FdbEntry>, Errno> {
    const MESSAGE: usize = 12;
    let ports = ports(bridge)?;
    let mut body = vec![libc::AF_BRIDGE as u8, 0, 0, 0];
    body.resize(MESSAGE, 0);
    put_attribute(&mut body, libc::NDA_MASTER, &bridge.index.to_ne_bytes());
    let mut found: Vec<FdbEntry> = Vec::new();
    exchange(libc::RTM_GETNEIGH, DUMP, &body, |body| {
        let entry = parse_entry(body, &ports, bridge.index);
        found.extend(entry.filter(|entry| !found.iter().any(|other| is_same(other, entry))));
    })?;
    Ok(found)
}

fn is_same(one: &FdbEntry, other: &FdbEntry) -> bool {
    let key = |entry: &FdbEntry| (entry.mac_addr, entry.port_no, entry.port_hi, entry.is_local);
    key(one) == key(other)
}

fn parse_entry(body: &[u8], ports: &[(u16, Link)], bridge: c_int) -> Option<FdbEntry> {
    let index = word(body.get(4..)?)? as c_int;
    let state = u16::from_ne_bytes(*body.get(8..)?.first_chunk()?);
    let attributes = body.get(12..)?;
    if attribute(attributes, libc::NDA_MASTER).and_then(word) != Some(bridge as u32) {
        return None;
    }
    let (number, _) = ports.iter().find(|(_, port)| port.index == index)?;
    // `struct nda_cacheinfo`: confirmed, used, updated, references; in the unit of the requests.
    let updated = attribute(attributes, libc::NDA_CACHEINFO).and_then(|times| word(times.get(8..)?));
    let is_static = state & (libc::NUD_PERMANENT | libc::NUD_NOARP) != 0;
    let [port_no, port_hi] = number.to_le_bytes();
    Some(FdbEntry {
        mac_addr: *attribute(attributes, libc::NDA_LLADDR)?.first_chunk()?,
        port_no,
        is_local: u8::from(state & libc::NUD_PERMANENT != 0),
        ageing_timer_value: if is_static { 0 } else { updated.unwrap_or(0) },
        port_hi,
        unused: [0; 3],
    })
}

/// Arguments of a command: an array of words in the program's memory, the first of which is the command. The second may be
/// a pointer.
pub(super) struct CommandArguments<'a>(InOut<'a, c_ulong>);

impl<'a> CommandArguments<'a> {
    /// Arguments at a pointer.
    ///
    /// # Safety
    /// The pointer, if not null, is that of as many words as the command has, and the words are as the command requires.
    pub(super) const unsafe fn new(array: *mut c_void) -> Self {
        // SAFETY: as the caller promises.
        Self(unsafe { InOut::new(array) })
    }

    /// Word of the array, whose command has it.
    fn word(&self, at: usize) -> Result<c_ulong, Errno> {
        // SAFETY: as the caller of `new` promises.
        unsafe { self.0.array(at + 1) }.nth(at).ok_or(Errno(libc::EFAULT))?.read()
    }

    fn pointer<T>(&self) -> Result<*mut T, Errno> {
        self.word(1).map(|address| std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// Name at the second argument, of a command that has it there.
    fn name(&self) -> Result<Vec<u8>, Errno> {
        // SAFETY: as the caller of `new` promises.
        unsafe { name_at(self.pointer()?) }
    }

    /// Copies at most `room` elements to the second argument, for which the command has room there. Returns their number.
    fn copy_out<T>(&self, elements: &[T], room: usize) -> Result<c_int, Errno> {
        let to: *mut T = self.pointer()?;
        let count = elements.len().min(room);
        if to.is_null() && count > 0 {
            return Err(Errno(libc::EFAULT));
        }
        let (from, len) = (elements.as_ptr().cast::<u8>(), count * mem::size_of::<T>());
        // SAFETY: as the caller of `new` promises. The elements have no padding.
        unsafe { std::ptr::copy_nonoverlapping(from, to.cast(), len) };
        Ok(count as c_int)
    }
}

/// Name of an interface, up to its zero byte.
///
/// # Safety
/// `name`, if not null, has `IFNAMSIZ` bytes, or a zero byte before.
pub(super) unsafe fn name_at(name: *const u8) -> Result<Vec<u8>, Errno> {
    if name.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: as the caller promises.
    let bytes = (0..libc::IFNAMSIZ - 1).map(|at| unsafe { name.wrapping_add(at).read() });
    Ok(bytes.take_while(|&byte| byte != 0).collect())
}
