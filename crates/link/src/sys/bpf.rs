//! `bpf(2)`: the programs that redirect an interface's frames to AF_XDP sockets, or drop them before the host's stack,
//! and the BPF links that attach them.
//!
//! A BPF link is a descriptor: when the last one is closed, also by the end of the process, the kernel detaches the
//! program.

use std::ffi::{CStr, c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands of `enum bpf_cmd`.
const MAP_CREATE: c_int = 0;
const MAP_UPDATE_ELEM: c_int = 2;
const PROG_LOAD: c_int = 5;
const LINK_CREATE: c_int = 28;
const LINK_DETACH: c_int = 34;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_SCHED_CLS: u32 = 3;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const ATTACH_TCX_INGRESS: u32 = 46;

/// Flag of a program that accepts frames in several buffers (`BPF_F_XDP_HAS_FRAGS`).
const XDP_HAS_FRAGS: u32 = 1 << 5;

/// Names of the programs, as `bpftool prog` shows them; they end with a zero.
const XSK: [u8; 16] = *b"fatpath_xsk\0\0\0\0\0";
const DROP: [u8; 16] = *b"fatpath_drop\0\0\0\0";

const LICENCE: &CStr = c"Dual MIT/GPL";

/// Place where an XDP program runs (`XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum AttachMode {
    /// In the network stack, on a buffer that the driver made.
    Generic = 1 << 1,
    /// In the driver.
    Native = 1 << 2,
}

/// `union bpf_attr` of one command: numbers, and addresses as numbers.
///
/// # Safety
/// The kernel reads as many bytes as the type has, none of which is padding, and from the addresses in it no more than
/// is borrowed for the call.
unsafe trait Attr {}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}
// SAFETY: no address.
unsafe impl Attr for MapCreate {}

#[repr(C)]
struct MapUpdate {
    map: u32,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
}
// SAFETY: `set` borrows key and value, of the sizes that its map was made with.
unsafe impl Attr for MapUpdate {}

#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    instructions: u32,
    code: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
}
// SAFETY: `load` borrows code and licence; there is no log.
unsafe impl Attr for ProgLoad {}

#[repr(C)]
struct LinkCreate {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
}
// SAFETY: no address.
unsafe impl Attr for LinkCreate {}

#[repr(C)]
struct LinkDetach {
    link: u32,
}
// SAFETY: no address.
unsafe impl Attr for LinkDetach {}

fn bpf(command: c_int, attr: &impl Attr) -> io::Result<c_long> {
    // SAFETY: the kernel reads `attr` and the memory that its addresses point to, and writes nothing for these commands.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of_val(attr)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn new_fd(command: c_int, attr: &impl Attr) -> io::Result<OwnedFd> {
    let fd = bpf(command, attr)?;
    // SAFETY: the kernel has just given it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

/// Creates an empty map from queue numbers below `entries` to AF_XDP sockets (`BPF_MAP_TYPE_XSKMAP`).
pub(crate) fn socket_map(entries: u32) -> io::Result<OwnedFd> {
    new_fd(MAP_CREATE, &MapCreate { map_type: MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: entries })
}

/// Sets the AF_XDP socket of a queue in such a map.
pub(crate) fn set(map: BorrowedFd<'_>, number: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd() as u32;
    let (key, value) = (std::ptr::from_ref(&number) as u64, std::ptr::from_ref(&value) as u64);
    bpf(MAP_UPDATE_ELEM, &MapUpdate { map: map.as_raw_fd() as u32, zero: 0, key, value, flags: 0 })?;
    Ok(())
}

/// Loads the program that redirects a frame to the socket of its receive queue in `map`, or passes it to the host if
/// there is none.
pub(crate) fn load_redirect(map: BorrowedFd<'_>, several_buffers: bool) -> io::Result<OwnedFd> {
    let flags = if several_buffers { XDP_HAS_FRAGS } else { 0 };
    load(&redirect(map.as_raw_fd()), PROG_TYPE_XDP, ATTACH_XDP, flags, XSK)
}

/// Loads the program that drops each frame after packet sockets have seen it, and before the host's stack.
pub(crate) fn load_drop() -> io::Result<OwnedFd> {
    load(&DROP_ALL, PROG_TYPE_SCHED_CLS, 0, 0, DROP)
}

fn load(code: &[[u8; 8]], prog_type: u32, attach_type: u32, flags: u32, name: [u8; 16]) -> io::Result<OwnedFd> {
    new_fd(
        PROG_LOAD,
        &ProgLoad {
            prog_type,
            instructions: code.len() as u32,
            code: code.as_ptr() as u64,
            licence: LICENCE.as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log: 0,
            kernel_version: 0,
            flags,
            name,
            ifindex: 0,
            attach_type,
        },
    )
}

/// Attaches a program to an interface until the descriptor is closed or [detached](detach).
pub(crate) fn attach(program: BorrowedFd<'_>, ifindex: i32, at: AttachMode) -> io::Result<OwnedFd> {
    let (program, ifindex) = (program.as_raw_fd() as u32, ifindex as u32);
    new_fd(LINK_CREATE, &LinkCreate { program, ifindex, attach_type: ATTACH_XDP, flags: at as u32 })
}

/// Attaches a program to an interface's ingress (tcx) until the descriptor is closed.
pub(crate) fn attach_to_ingress(program: BorrowedFd<'_>, ifindex: i32) -> io::Result<OwnedFd> {
    let (program, ifindex) = (program.as_raw_fd() as u32, ifindex as u32);
    new_fd(LINK_CREATE, &LinkCreate { program, ifindex, attach_type: ATTACH_TCX_INGRESS, flags: 0 })
}

/// Detaches a program at once; closing the descriptor does so asynchronously.
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(LINK_DETACH, &LinkDetach { link: link.as_raw_fd() as u32 })?;
    Ok(())
}

/// One instruction: `struct bpf_insn`.
const fn instruction(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let (offset, immediate) = (offset.to_ne_bytes(), immediate.to_ne_bytes());
    // `dst` and `src` are bit fields, which start at the low bits on little-endian machines and at the high bits on
    // others.
    let registers = if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
    [code, registers, offset[0], offset[1], immediate[0], immediate[1], immediate[2], immediate[3]]
}

const MOVE_IMMEDIATE: u8 = 0xb7;
const EXIT: u8 = 0x95;

/// `return TC_ACT_SHOT;`
const DROP_ALL: [[u8; 8]; 2] = [instruction(MOVE_IMMEDIATE, 0, 0, 0, 2), instruction(EXIT, 0, 0, 0, 0)];

/// `return bpf_redirect_map(map, ctx->rx_queue_index, XDP_PASS);`
const fn redirect(map: c_int) -> [[u8; 8]; 6] {
    const LOAD_WORD: u8 = 0x61;
    const LOAD_IMMEDIATE_64: u8 = 0x18;
    const CALL: u8 = 0x85;
    /// Source register of `LOAD_IMMEDIATE_64` for an immediate that is a map's descriptor (`BPF_PSEUDO_MAP_FD`).
    const MAP_FD: u8 = 1;
    /// Offset of `rx_queue_index` in `struct xdp_md`.
    const RX_QUEUE_INDEX: i16 = 16;
    const XDP_PASS: i32 = 2;
    const REDIRECT_MAP: i32 = 51;
    [
        instruction(LOAD_WORD, 2, 1, RX_QUEUE_INDEX, 0),
        instruction(LOAD_IMMEDIATE_64, 1, MAP_FD, 0, map),
        instruction(0, 0, 0, 0, 0),
        instruction(MOVE_IMMEDIATE, 3, 0, 0, XDP_PASS),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_the_kernels_lengths() {
        // Only fields of later kernels follow the last field of each (linux/bpf.h).
        assert_eq!((size_of::<MapUpdate>(), size_of::<ProgLoad>(), size_of::<LinkCreate>()), (32, 72, 16));
        assert_eq!(std::mem::offset_of!(ProgLoad, attach_type), 68);
    }

    #[test]
    fn redirect_program_has_the_kernels_encoding() {
        // r2 = *(u32 *)(r1 + 16); r1 = map 7 ll; r3 = 2; call 51; exit (RFC 9669 §3 and §4).
        let want = [
            [0x61, 0x12, 0x10, 0, 0, 0, 0, 0],
            [0x18, 0x11, 0, 0, 7, 0, 0, 0],
            [0; 8],
            [0xb7, 0x03, 0, 0, 2, 0, 0, 0],
            [0x85, 0, 0, 0, 51, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(redirect(7), want);
        }
    }
}
