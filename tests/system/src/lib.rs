//! Common parts of tests against real kernels: namespaces, processes, captures and gateways that are removed
//! on drop, and requirements that a machine may not meet.
//!
//! # Decides
//! - End of resources: a [`Netns`] is deleted, a [`Process`] killed, a [`Scratch`] directory removed when its value is
//!   dropped, also when a test panics (crate `testbed`). Namespaces that a killed run left behind are removed by the next.
//! - Tests that run: a test lists its needs ([`Need`]) and is reported as ignored, with the reason, where one is
//!   missing; with `CI=true` in the environment it fails instead.
//!
//! # Leaves to others
//! Expected results (the tests of this crate, and of `interop`), and installation of what is missing (`scripts/setup`).
//!
//! # Limits
//! A gateway starts and a namespace's state appears within 20 seconds (`PATIENCE` in `gateway.rs` and `netns.rs`), a
//! guest boots within 90 (`qemu.rs`).
//!
//! # Standards
//! No RFC.

#![forbid(unsafe_code)]

mod capture;
mod charon;
mod esp;
mod front_end;
mod gateway;
mod manager;
mod memory;
mod needs;
mod netns;
mod process;
mod qemu;
mod traffic;

pub use capture::{Capture, decrypted, wire_checksums};
pub use charon::{Auth, Charon, CharonFiles, outer_v6, strongswan_example};
pub use esp::{Esp, Mode, OUTER_V4, OUTER_V6, Suite};
pub use front_end::{FrontEnd, exchange};
pub use gateway::{Gateway, add_user, change_user, fatpath, have_several_workers, with_workers};
pub use manager::{Manager, Manners, notify_socket};
pub use memory::Secrets;
pub use needs::{Need, trial, unpacked};
pub use netns::{Cable, Netns, macvlan, veth, vxlan};
pub use process::{LINE_RUNNER, Process, kill_group, run, wait_until};
pub use qemu::{ESP_GUEST_NEEDS, Guest, GuestDevice, Initramfs, QEMU_NEEDS};
pub use testbed::Scratch;
pub use traffic::{
    Digest, Endpoint, PING_SIZES, blob, digest, longest_gap, lossless, numbered, ping_script, transfer, transfer_during,
};

/// Outcome of a test or of one of its steps; any error that can be displayed becomes its failure.
pub type Outcome<T = ()> = Result<T, libtest_mimic::Failed>;
