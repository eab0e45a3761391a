//! XDP mode of an interface: native or generic program, zero copy or copy.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use driver::XdpMode;

use crate::OpenError;
use crate::error::text;
use crate::sys::bpf::{self, AttachMode};
use crate::sys::errno;
use crate::sys::xsk::{self, Failed, Xsk, XskQueue};

/// Attempts to get a busy interface or queue, and the pause between attempts: the kernel detaches the previous owner
/// shortly after its descriptors are closed.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

const EPERM: &str = "needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF; run as root or grant them";

/// XDP program attached to an interface, detached when dropped.
#[derive(Debug)]
pub(super) struct Attached {
    link: OwnedFd,
    map: OwnedFd,
    is_native: bool,
    /// Reason why the program does not run in the driver, if that was tried.
    pub(super) why_generic: Option<String>,
}

/// Attaches the redirect program to an interface with `queues` receive queues. Returns the map of sockets, the BPF link, and the reason why
/// the program does not run in the driver, if that was tried.
pub(super) fn attach(
    (name, index): (&str, i32),
    queues: u32,
    several_buffers: bool,
    mode: XdpMode,
) -> Result<([OwnedFd; 2], Option<String>), OpenError> {
    let failed = |call| move |err| OpenError::new(name, call, err).with_hint(libc::EPERM, EPERM);
    let map = bpf::socket_map(queues).map_err(failed("BPF_MAP_CREATE"))?;
    let program = bpf::load_redirect(map.as_fd(), several_buffers).map_err(failed("BPF_PROG_LOAD"))?;
    let put = |at| patiently(|| bpf::attach(program.as_fd(), index, at), errno);
    let busy = "another XDP program is on the interface; `ip link show` names it";
    let failed = |err| {
        let err = failed("BPF_LINK_CREATE")(err).with_hint(libc::EBUSY, busy).with_hint(libc::EEXIST, busy);
        err.with_hint(libc::EINVAL, "needs Linux 5.9 or later")
    };
    let native = match mode {
        XdpMode::Auto | XdpMode::Native => put(AttachMode::Native).map_err(Some),
        XdpMode::Generic => Err(None),
    };
    let (link, why_generic) = match (native, mode) {
        (Ok(link), _) => (link, None),
        (Err(Some(err)), XdpMode::Native) => return Err(failed(err)),
        (Err(refused), _) => {
            let link = put(AttachMode::Generic).map_err(failed)?;
            (link, refused.map(|err| text(&err)))
        }
    };
    Ok(([map, link], why_generic))
}

impl Attached {
    /// The program of a map and a BPF link that [`attach`] has returned.
    pub(super) fn of([map, link]: [OwnedFd; 2], mode: XdpMode, why_generic: Option<String>) -> Self {
        let is_native = mode != XdpMode::Generic && why_generic.is_none();
        Self { link, map, is_native, why_generic }
    }

    /// Detaches the program from the interface, if it is still attached.
    pub(super) fn detach(&self) {
        // If this fails, the kernel detaches the program when the descriptor is closed.
        let _ = bpf::detach(self.link.as_fd());
    }

    pub(super) const fn is_native(&self) -> bool {
        self.is_native
    }

    /// Binds a socket to each queue, in the mode of `flags`, and redirects that queue's frames to it. Returns the reason why zero copy
    /// failed, if that was tried.
    pub(super) fn open_queues(
        &self,
        name: &str,
        sockets: impl IntoIterator<Item = OwnedFd>,
        mut queue: XskQueue,
        flags: u16,
    ) -> Result<(Vec<Xsk>, Option<String>), OpenError> {
        let flags = flags | libc::XDP_USE_NEED_WAKEUP;
        let (zero_copy, copy) = (flags | libc::XDP_ZEROCOPY, flags | libc::XDP_COPY);
        let mut mode = if self.is_native() { zero_copy } else { copy };
        let mut queues = Vec::new();
        let mut refused = None;
        for (number, socket) in (0..).zip(sockets) {
            queue.queue = number;
            let mut xsk = Xsk::new(queue, socket).map_err(|failed| refusal(name, failed))?;
            let mut bound = patiently(|| xsk.bind(mode), errno);
            // The first queue decides between zero copy and copy for all. A busy queue fails in copy mode as well.
            if let (Err(err), 0, true) = (&bound, number, self.is_native())
                && errno(err) != libc::EBUSY
            {
                refused = Some(text(err));
                mode = copy;
                bound = patiently(|| xsk.bind(mode), errno);
            }
            bound.map_err(|err| refusal(name, ("bind", err)))?;
            bpf::set(self.map.as_fd(), number, xsk.fd())
                .map_err(|err| OpenError::new(name, "BPF_MAP_UPDATE_ELEM", err).with_hint(libc::EPERM, EPERM))?;
            queues.push(xsk);
        }
        Ok((queues, refused))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Retries a call that fails with `EBUSY`.
fn patiently<T, E>(mut call: impl FnMut() -> Result<T, E>, errno: impl Fn(&E) -> i32) -> Result<T, E> {
    for _ in 1..TRIES {
        match call() {
            Err(err) if errno(&err) == libc::EBUSY => thread::sleep(PAUSE),
            done => return done,
        }
    }
    call()
}

/// Makes a socket, not bound to a queue, whose send buffer has this many bytes.
pub(super) fn socket(name: &str, send_buffer: u32) -> Result<OwnedFd, OpenError> {
    xsk::socket(send_buffer).map_err(|failed| refusal(name, failed))
}

/// Error of opening a link, with a remedy.
fn refusal(name: &str, (call, err): Failed) -> OpenError {
    let hints = match call {
        "socket AF_XDP" => &[
            (libc::EAFNOSUPPORT, "the kernel has no AF_XDP (CONFIG_XDP_SOCKETS); use kind \"packet\""),
            (libc::EPERM, "needs CAP_NET_RAW; run as root or grant it"),
        ][..],
        "XDP_UMEM_REG" => &[(
            libc::ENOBUFS,
            "more memory than RLIMIT_MEMLOCK lets a process pin; raise it, grant CAP_IPC_LOCK or use a smaller `ring`",
        )],
        "bind" => &[
            (libc::EBUSY, "another AF_XDP socket has this interface's queue"),
            (libc::EINVAL, "the kernel cannot do this; use kind \"packet\""),
        ],
        _ => &[],
    };
    let plain = OpenError { device: name.to_owned(), call, source: err, hint: None };
    hints.iter().fold(plain, |err, &(errno, hint)| err.with_hint(errno, hint))
}

/// Error of opening a link for a reason other than a system call.
pub(super) fn unfit(name: &str, call: &'static str, what: String) -> OpenError {
    OpenError::new(name, call, io::Error::new(io::ErrorKind::InvalidInput, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_a_remedy() {
        let cases = [
            ("socket AF_XDP", libc::EAFNOSUPPORT, "use kind \"packet\""),
            ("socket AF_XDP", libc::EPERM, "needs CAP_NET_RAW"),
            ("XDP_UMEM_REG", libc::ENOBUFS, "smaller `ring`"),
            ("bind", libc::EBUSY, "another AF_XDP socket"),
        ];
        for (call, errno, want) in cases {
            let err = refusal("eth1", (call, io::Error::from_raw_os_error(errno))).to_string();
            assert!(err.starts_with(&format!("eth1: {call}: ")) && err.contains(want), "{err}");
        }
        let err = refusal("eth1", ("mmap", io::Error::from_raw_os_error(libc::ENOMEM)));
        assert_eq!(err.to_string(), "eth1: mmap: Cannot allocate memory");
    }
}
