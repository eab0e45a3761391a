//! Start of this library in a process.

use libc::c_int;

use crate::program_memory::List;
use crate::{gateway, libc_next, sysctl, vrf_exec};

/// Runs before the program, which may change its environment.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, List<'static>) = start;

extern "C" fn start(_count: c_int, arguments: List<'static>) {
    libc_next::find_all();
    vrf_exec::refuse(arguments);
    if gateway::address().is_some() {
        sysctl::find_inherited();
    }
}
