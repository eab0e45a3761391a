//! Directories of `/proc/sys/net`, for `opendir(3)` and `readdir(3)`.

use std::ffi::CStr;
use std::mem;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use libc::{DIR, c_char, c_int, c_long, dirent};
use nlsock::Sysctl;

use super::{Name, OF_SOCKETS, OF_TRANSPORTS, query};
use crate::errno::{Errno, returned};
use crate::{gateway, libc_next};

/// Maximum number of open directories.
const MAX_OPEN: usize = 64;

static OPEN: [AtomicPtr<Listing>; MAX_OPEN] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_OPEN];

/// Contents of a `DIR` of this library.
struct Listing {
    name: Name,
    /// Names that are fetched but not returned yet, and the name before them.
    known: Vec<(bool, Vec<u8>)>,
    last: Vec<u8>,
    /// Whether `known` has the names of the kernel's settings, which follow the gateway's.
    has_kernels: bool,
    /// Number of returned names.
    position: c_long,
    entry: dirent,
}

impl Listing {
    fn new(name: Name) -> Box<Self> {
        // SAFETY: any bytes are valid.
        let entry: dirent = unsafe { mem::zeroed() };
        Box::new(Self { name, known: Vec::new(), last: Vec::new(), has_kernels: false, position: 0, entry })
    }

    fn rewind(&mut self) {
        self.known.clear();
        self.last.clear();
        self.has_kernels = false;
        self.position = 0;
    }

    /// Next name, and whether it is a directory. `None` at the end.
    fn next(&mut self) -> Result<Option<(bool, Vec<u8>)>, Errno> {
        self.position += 1;
        match self.position {
            1 => return Ok(Some((true, b".".to_vec()))),
            2 => return Ok(Some((true, b"..".to_vec()))),
            _ => {}
        }
        if self.known.is_empty() && !self.has_kernels {
            let Name(name) = &self.name;
            let reply = query(Sysctl::List, &[name, &b"\0"[..], &self.last].concat())?;
            let lines = reply.text.split(|&byte| byte == 0).filter_map(<[u8]>::split_first);
            self.known = lines.map(|(kind, name)| (*kind == b'd', name.to_vec())).collect();
            self.known.reverse();
            if self.known.is_empty() {
                self.known = names_of_kernel(&self.name);
                self.has_kernels = true;
            }
        }
        let next = self.known.pop();
        if let Some((_, name)) = &next {
            self.last.clone_from(name);
        }
        Ok(next)
    }

    fn read(&mut self) -> Result<*mut dirent, Errno> {
        let Some((is_dir, name)) = self.next()? else {
            self.position -= 1;
            return Ok(ptr::null_mut());
        };
        let room = self.entry.d_name.iter_mut();
        room.zip(name.iter().chain([&0])).for_each(|(to, &byte)| *to = byte as c_char);
        self.entry.d_ino = self.position as u64;
        self.entry.d_off = self.position;
        self.entry.d_reclen = mem::size_of::<dirent>() as u16;
        self.entry.d_type = if is_dir { libc::DT_DIR } else { libc::DT_REG };
        Ok(&raw mut self.entry)
    }
}

/// Names of the kernel's settings of sockets in a directory.
fn names_of_kernel(name: &Name) -> Vec<(bool, Vec<u8>)> {
    let Name(directory) = name;
    let is_in_it = |setting: &[u8]| setting.strip_prefix(&directory[..]).is_some_and(|rest| rest.starts_with(b"/"));
    let mut names = Vec::new();
    if !gateway::is_on_host_side() || !OF_SOCKETS.iter().chain(&OF_TRANSPORTS).any(|setting| is_in_it(setting)) {
        return names;
    }
    let path = [b"/proc/sys/net/", &directory[..], b"\0"].concat();
    // SAFETY: the path is a C string.
    let dir = unsafe { libc_next::opendir(path.as_ptr().cast()) };
    if dir.is_null() {
        return names;
    }
    loop {
        // SAFETY: the directory is open, and no other thread has it.
        let entry = unsafe { libc_next::readdir(dir) };
        // SAFETY: an entry is valid until the next call, and its name is a C string.
        let Some(file) = (unsafe { entry.as_ref() }).map(|entry| unsafe { CStr::from_ptr(entry.d_name.as_ptr()) })
        else {
            break;
        };
        if Name([&directory[..], b"/", file.to_bytes()].concat()).is_of_kernel() {
            names.push((false, file.to_bytes().to_vec()));
        }
    }
    // SAFETY: the directory is open.
    unsafe { libc_next::closedir(dir) };
    names
}

/// Entry of the table of this library's `DIR`s.
fn place(dir: *mut DIR) -> Option<&'static AtomicPtr<Listing>> {
    OPEN.iter().find(|open| !dir.is_null() && open.load(Acquire).cast() == dir)
}

/// Listing of a `DIR`, if it is one of this library's.
///
/// # Safety
/// No other thread uses the `DIR` at the same time.
unsafe fn listing<'a>(dir: *mut DIR) -> Option<&'a mut Listing> {
    // SAFETY: a listing in the table is live, and the caller promises that no other thread uses it.
    place(dir).and_then(|open| unsafe { open.load(Acquire).as_mut() })
}

fn open(name: Name) -> Result<*mut DIR, Errno> {
    if name.mode()? & libc::S_IFMT != libc::S_IFDIR {
        return Err(Errno(libc::ENOTDIR));
    }
    let made = Box::into_raw(Listing::new(name));
    let is_free = |open: &&AtomicPtr<Listing>| open.compare_exchange(ptr::null_mut(), made, AcqRel, Relaxed).is_ok();
    if OPEN.iter().find(is_free).is_some() {
        return Ok(made.cast());
    }
    // SAFETY: the listing was allocated here, and has no other owner.
    drop(unsafe { Box::from_raw(made) });
    Err(Errno(libc::EMFILE))
}

/// `opendir(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: as the caller promises.
    match unsafe { Name::of(libc::AT_FDCWD, path) } {
        Some(name) => returned(open(name)),
        // SAFETY: passed on.
        None => unsafe { libc_next::opendir(path) },
    }
}

macro_rules! reads {
    ($($name:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the manual page requires.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(dir: *mut DIR) -> *mut dirent {
            // SAFETY: as the caller promises.
            match unsafe { listing(dir) } {
                Some(listing) => returned(listing.read()),
                // SAFETY: passed on.
                None => unsafe { libc_next::$name(dir) },
            }
        }
    )*};
}

// On 64-bit machines the function for large files is the same.
reads! { readdir; readdir64; }

/// `closedir(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn closedir(dir: *mut DIR) -> c_int {
    let Some(open) = place(dir) else {
        // SAFETY: passed on.
        return unsafe { libc_next::closedir(dir) };
    };
    let made = open.swap(ptr::null_mut(), AcqRel);
    // SAFETY: `open` has allocated the listing, and the table does not contain it any more.
    drop(unsafe { Box::from_raw(made) });
    0
}

/// `rewinddir(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rewinddir(dir: *mut DIR) {
    // SAFETY: as the caller promises.
    match unsafe { listing(dir) } {
        Some(listing) => listing.rewind(),
        // SAFETY: passed on.
        None => unsafe { libc_next::rewinddir(dir) },
    }
}

/// `telldir(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn telldir(dir: *mut DIR) -> c_long {
    // SAFETY: as the caller promises.
    match unsafe { listing(dir) } {
        Some(listing) => listing.position,
        // SAFETY: passed on.
        None => unsafe { libc_next::telldir(dir) },
    }
}

/// `seekdir(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn seekdir(dir: *mut DIR, at: c_long) {
    // SAFETY: as the caller promises.
    let Some(listing) = (unsafe { listing(dir) }) else {
        // SAFETY: passed on.
        return unsafe { libc_next::seekdir(dir, at) };
    };
    listing.rewind();
    while listing.position < at && matches!(listing.next(), Ok(Some(_))) {}
}

/// `dirfd(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn dirfd(dir: *mut DIR) -> c_int {
    match place(dir) {
        Some(_) => returned(Err(Errno(libc::EOPNOTSUPP))),
        // SAFETY: passed on.
        None => unsafe { libc_next::dirfd(dir) },
    }
}
