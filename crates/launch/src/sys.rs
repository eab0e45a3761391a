//! System calls: `seccomp` with a handler of its signal, and `close` without the C library.

#![allow(unsafe_code)]

use std::io::{self, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::{c_int, c_long, c_ulong, c_ushort, sock_filter, sock_fprog};

/// Open file. It is closed without the C library, whose `close` is a cancellation point.
#[derive(Debug)]
pub(crate) struct File(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor.
        unsafe { libc::syscall(libc::SYS_close, self.0.as_raw_fd()) };
    }
}

/// Sets `program` as the seccomp filter of this thread, and of all its later child processes.
///
/// # Errors
/// `EACCES`: the thread has neither `CAP_SYS_ADMIN` nor `no_new_privs`; else as `seccomp(2)`.
pub(crate) fn set_filter(program: &[sock_filter]) -> io::Result<()> {
    seccomp(program, 0).map(drop)
}

/// Sets `program` as the seccomp filter of all threads of this process, and of all later ones. All threads get
/// `no_new_privs` if this one has it.
///
/// # Errors
/// As [`set_filter`], and if a thread has a filter that this one does not have. No thread has the filter then.
pub(crate) fn set_filter_of_all(program: &[sock_filter]) -> io::Result<()> {
    match seccomp(program, libc::SECCOMP_FILTER_FLAG_TSYNC)? {
        0 => Ok(()),
        thread => Err(io::Error::other(format!("the thread {thread} has another filter"))),
    }
}

fn seccomp(program: &[sock_filter], flags: c_ulong) -> io::Result<c_long> {
    let len = c_ushort::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // The kernel copies the instructions and writes nothing.
    let program = sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: `program` points to `len` instructions that live until the call returns.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// Lets a call that a filter traps end the process, with a line on standard error that names the call.
///
/// # Errors
/// Error of sigaction(2).
pub(crate) fn name_trapped_calls() -> io::Result<()> {
    // SAFETY: an action of zeroes is a valid one, with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = name_trapped_call as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the action is valid, and its handler makes no call but write(2) and _exit(2).
    let done = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Handler of `SIGSYS`.
extern "C" fn name_trapped_call(_signal: c_int, info: *const libc::siginfo_t, context: *const libc::ucontext_t) {
    /// Offset of `si_syscall` in `siginfo_t`, behind three numbers, padding and the address of the call.
    const SI_SYSCALL: usize = 24;
    // SAFETY: the kernel passes a `siginfo_t` of `SIGSYS`, which has an aligned number there.
    let number = unsafe { info.cast::<u8>().wrapping_add(SI_SYSCALL).cast::<c_int>().read() };
    // SAFETY: the kernel passes the registers of the thread, which live until the handler returns.
    let context = unsafe { &*context };
    let [first, second, third] = arguments(context);
    let mut line = [0; 160];
    let mut rest = &mut line[..];
    // Numbers are written without an allocation. What does not fit is cut off.
    let _ = writeln!(
        rest,
        "fatpath: system call {number} ({first:#x}, {second:#x}, {third:#x}) is not in the list of the sandbox"
    );
    let len = 160 - rest.len();
    // SAFETY: the buffer has `len` bytes. A process without standard error ends without the line.
    unsafe { libc::write(2, line.as_ptr().cast(), len) };
    // SAFETY: ends the process.
    unsafe { libc::_exit(TRAPPED) };
}

/// Exit code of a process with a trapped call, that of a shell for `SIGSYS`.
const TRAPPED: c_int = 128 + libc::SIGSYS;

/// First three arguments of a system call.
#[cfg(target_arch = "x86_64")]
fn arguments(context: &libc::ucontext_t) -> [u64; 3] {
    [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX].map(|register| context.uc_mcontext.gregs[register as usize] as u64)
}

/// First three arguments of a system call.
#[cfg(target_arch = "aarch64")]
fn arguments(context: &libc::ucontext_t) -> [u64; 3] {
    [0, 1, 2].map(|register| context.uc_mcontext.regs[register])
}

/// The registers of another processor have no known names here.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn arguments(_context: &libc::ucontext_t) -> [u64; 3] {
    [0; 3]
}
