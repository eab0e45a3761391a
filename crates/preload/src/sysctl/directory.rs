//! Directories of `/proc/sys/net`, for `opendir(3)` and `readdir(3)`.

use std::ffi::{CStr, CString};
use std::mem;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use libc::{c_char, c_int, c_long, dirent};
use nlsock::Sysctl;

use super::{Name, OF_SOCKETS, OF_TRANSPORTS, query};
use crate::errno::{Errno, returned};
use crate::plain::zeroed;
use crate::program_memory::{Directory, Text};
use crate::replaced::replaced;
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
        let (known, last) = (Vec::new(), Vec::new());
        Box::new(Self { name, known, last, has_kernels: false, position: 0, entry: zeroed() })
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
    let Ok(path) = CString::new([b"/proc/sys/net/", &directory[..]].concat()) else { return names };
    // SAFETY: the path is a C string.
    let dir = unsafe { libc_next::opendir(path.as_c_str().into()) };
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
fn place(dir: Directory<'_>) -> Option<&'static AtomicPtr<Listing>> {
    OPEN.iter().find(|open| !dir.is_null() && open.load(Acquire).cast() == dir.address())
}

/// Calls `then` with the listing of a `DIR`, if it is one of this library's. No other thread uses it at the same time.
fn with<T>(dir: Directory<'_>, then: impl FnOnce(&mut Listing) -> T) -> Option<T> {
    // SAFETY: a listing in the table is live, and the program uses its directories in one thread at a time.
    let listing = place(dir).and_then(|open| unsafe { open.load(Acquire).as_mut() });
    listing.map(then)
}

/// Takes a listing back that is in the table no more.
fn free(made: *mut Listing) {
    // SAFETY: `open` has allocated the listing, and it has no other owner.
    drop(unsafe { Box::from_raw(made) });
}

fn open(name: Name) -> Result<Directory<'static>, Errno> {
    if name.mode()? & libc::S_IFMT != libc::S_IFDIR {
        return Err(Errno(libc::ENOTDIR));
    }
    let made = Box::into_raw(Listing::new(name));
    let is_free = |open: &&AtomicPtr<Listing>| open.compare_exchange(ptr::null_mut(), made, AcqRel, Relaxed).is_ok();
    if OPEN.iter().find(is_free).is_some() {
        // SAFETY: the directory is open, and the functions of this library find it by its pointer.
        return Ok(unsafe { Directory::new(made.cast()) });
    }
    free(made);
    Err(Errno(libc::EMFILE))
}

macro_rules! reads {
    ($($name:ident;)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(3)`.")]
            fn $name(dir: Directory<'_>) -> *mut dirent, next {
                with(dir, |listing| returned(listing.read())).unwrap_or_else(next)
            }
        )*}
    };
}

// On 64-bit machines the function for large files is the same.
reads! { readdir; readdir64; }

replaced! {
    /// `opendir(3)`.
    fn opendir(path: Text<'_>) -> Directory<'static>, next {
        Name::of(libc::AT_FDCWD, path).map_or_else(next, |name| returned(open(name)))
    }

    /// `closedir(3)`.
    fn closedir(dir: Directory<'_>) -> c_int, next {
        let Some(open) = place(dir) else { return next() };
        free(open.swap(ptr::null_mut(), AcqRel));
        0
    }

    /// `rewinddir(3)`.
    fn rewinddir(dir: Directory<'_>) -> (), next {
        with(dir, Listing::rewind).unwrap_or_else(next);
    }

    /// `telldir(3)`.
    fn telldir(dir: Directory<'_>) -> c_long, next {
        with(dir, |listing| listing.position).unwrap_or_else(next)
    }

    /// `seekdir(3)`.
    fn seekdir(dir: Directory<'_>, at: c_long) -> (), next {
        let sought = with(dir, |listing| {
            listing.rewind();
            while listing.position < at && matches!(listing.next(), Ok(Some(_))) {}
        });
        sought.unwrap_or_else(next);
    }

    /// `dirfd(3)`.
    fn dirfd(dir: Directory<'_>) -> c_int, next {
        place(dir).map_or_else(next, |_| returned(Err(Errno(libc::EOPNOTSUPP))))
    }
}
