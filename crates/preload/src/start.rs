//! Start of this library in a process.

use libc::{c_char, c_int};

use crate::{gateway, libc_next, sysctl, vrf_exec};

/// Runs before the program, which may change its environment.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char) = start;

extern "C" fn start(count: c_int, arguments: *const *const c_char) {
    libc_next::find_all();
    vrf_exec::refuse(count, arguments);
    if gateway::address().is_some() {
        sysctl::find_inherited();
    }
}
