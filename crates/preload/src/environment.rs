//! Environment variables through which a program loads this library and connects to the gateway. They are restored in
//! the environment of every started program that lacks them.

use std::ffi::{CStr, CString, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use libc::c_char;

use crate::errno::Errno;
use crate::stack;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const NETLINK: &[u8] = b"FATPATH_NETLINK=";
/// Maximum length of a restored `LD_PRELOAD`, with its name.
const MAX_LEN: usize = 2 * libc::PATH_MAX as usize;

unsafe extern "C" {
    /// The program's environment (environ(7)).
    static environ: *const *const c_char;
}

/// The library's variables at the program's start, with their names.
struct Own {
    preload: CString,
    netlink: CString,
}

static OWN: OnceLock<Own> = OnceLock::new();

/// Saves the variables before the program can change them. `gateway` is the value of the gateway's variable.
pub(crate) fn keep(gateway: &CStr) {
    let Some(library) = library() else { return };
    let variable = |name: &[u8], value: &CStr| CString::new([name, value.to_bytes()].concat());
    if let (Ok(preload), Ok(netlink)) = (variable(PRELOAD, &library), variable(NETLINK, gateway)) {
        // The variables are set once, before the program has threads.
        let _ = OWN.set(Own { preload, netlink });
    }
}

/// Tells whether this program was started for a gateway.
pub(crate) fn is_kept() -> bool {
    OWN.get().is_some()
}

/// Path of this library.
fn library() -> Option<CString> {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the address is in this library, and the buffer has the type's size.
    if unsafe { libc::dladdr((&raw const OWN).cast(), found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: the call has filled the buffer in.
    let name = unsafe { found.assume_init() }.dli_fname;
    // SAFETY: the loader's names are C strings and are never freed.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_owned())
}

/// The program's environment.
pub(crate) fn current() -> *const *const c_char {
    // SAFETY: the C library's variable always exists; a program that changes it while it starts another races with
    // itself.
    unsafe { (&raw const environ).read_volatile() }
}

/// Calls `then` with `environment`, or with a copy to which the library's variables are added.
///
/// # Errors
/// `E2BIG`: the variables exceed the limit.
///
/// # Safety
/// `environment`, if not null, is a list of C strings that ends in null.
pub(crate) unsafe fn restored<T>(
    environment: *const *const c_char,
    then: impl FnOnce(*const *const c_char) -> T,
) -> Result<T, Errno> {
    let Some(own) = OWN.get() else { return Ok(then(environment)) };
    // SAFETY: as the caller promises.
    let seen = unsafe { Seen::of(environment, &own.preload) };
    if seen.has_library && seen.has_gateway {
        return Ok(then(environment));
    }
    let mut room = [0_u8; MAX_LEN];
    let preload = if seen.has_library { None } else { Some(own.before(seen.preload, &mut room)?) };
    stack::with_pointers(seen.count + 3, |slots| {
        // SAFETY: as the caller promises.
        let others = unsafe { entries(environment) }.filter(|&entry| {
            // SAFETY: as the caller promises.
            let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
            let is_replaced = |name, is_there: bool| !is_there && entry.starts_with(name);
            !is_replaced(PRELOAD, seen.has_library) && !is_replaced(NETLINK, seen.has_gateway)
        });
        let netlink = (!seen.has_gateway).then_some(own.netlink.as_ptr());
        let all = preload.into_iter().chain(netlink).chain(others);
        slots.iter_mut().zip(all).for_each(|(slot, entry)| *slot = entry);
        then(slots.as_ptr())
    })
}

/// Shell command that sets the library's variables, and replaces its shell by one that runs `command`. `None`: the
/// program's environment contains the variables.
pub(crate) fn shell_command(command: &CStr) -> Option<CString> {
    let own = OWN.get()?;
    // SAFETY: the program's environment is such a list.
    let seen = unsafe { Seen::of(current(), &own.preload) };
    if seen.has_library && seen.has_gateway {
        return None;
    }
    let mut script = Vec::new();
    let mut room = [0_u8; MAX_LEN];
    if !seen.has_library {
        let preload = own.before(seen.preload, &mut room).ok()?;
        // SAFETY: the pointer is to a C string, in `own` or in `room`.
        script.extend(assignment(unsafe { CStr::from_ptr(preload) }));
    }
    if !seen.has_gateway {
        script.extend(assignment(&own.netlink));
    }
    script.extend_from_slice(b"exec /bin/sh -c ");
    script.extend(quoted(command.to_bytes()));
    CString::new(script).ok()
}

/// Variable assignment in a shell command.
fn assignment(variable: &CStr) -> Vec<u8> {
    let bytes = variable.to_bytes();
    let at = bytes.iter().position(|&byte| byte == b'=').map_or(bytes.len(), |at| at + 1);
    let (name, value) = bytes.split_at(at);
    [name, &quoted(value)[..], b" "].concat()
}

/// Quotes a word for a shell.
fn quoted(word: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in word {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            byte => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

impl Own {
    /// `LD_PRELOAD` with this library before the libraries in the value `others`.
    ///
    /// # Errors
    /// `E2BIG`: the value exceeds the limit.
    fn before(&self, others: Option<&[u8]>, room: &mut [u8; MAX_LEN]) -> Result<*const c_char, Errno> {
        let Some(others) = others.filter(|others| !others.is_empty()) else { return Ok(self.preload.as_ptr()) };
        let own = self.preload.to_bytes();
        let parts = own.iter().chain(b":").chain(others);
        if own.len() + others.len() + 2 > room.len() {
            return Err(Errno(libc::E2BIG));
        }
        room.iter_mut().zip(parts).for_each(|(to, &byte)| *to = byte);
        Ok(room.as_ptr().cast())
    }
}

/// The library's variables in an environment.
struct Seen<'a> {
    count: usize,
    /// Last value of `LD_PRELOAD`, the one that the loader uses.
    preload: Option<&'a [u8]>,
    has_library: bool,
    /// Whether the variable of a gateway is set: possibly of another one, as by nested `fatpath exec`.
    has_gateway: bool,
}

impl<'a> Seen<'a> {
    /// # Safety
    /// `environment`, if not null, is a list of C strings that ends in null, for as long as `'a`.
    unsafe fn of(environment: *const *const c_char, own: &CStr) -> Self {
        let mut seen = Self { count: 0, preload: None, has_library: false, has_gateway: false };
        // SAFETY: as the caller promises.
        for entry in unsafe { entries(environment) } {
            seen.count += 1;
            // SAFETY: as the caller promises.
            let entry: &'a [u8] = unsafe { CStr::from_ptr(entry) }.to_bytes();
            if let Some(value) = entry.strip_prefix(PRELOAD) {
                seen.preload = Some(value);
            } else if entry.strip_prefix(NETLINK).is_some_and(|value| !value.is_empty()) {
                seen.has_gateway = true;
            }
        }
        let own = own.to_bytes().strip_prefix(PRELOAD).unwrap_or_default();
        seen.has_library = seen.preload.is_some_and(|value| names(value, own));
        seen
    }
}

/// Tells whether a value of `LD_PRELOAD` contains the library `own`, or another file of the same name.
fn names(value: &[u8], own: &[u8]) -> bool {
    let file = |path| Path::new(OsStr::from_bytes(path)).file_name();
    value.split(|byte| b": ".contains(byte)).any(|path| file(path).is_some() && file(path) == file(own))
}

/// Entries of a null-terminated list.
///
/// # Safety
/// `list`, if not null, is a null-terminated list.
unsafe fn entries(list: *const *const c_char) -> impl Iterator<Item = *const c_char> {
    let mut at = list;
    std::iter::from_fn(move || {
        if at.is_null() {
            return None;
        }
        // SAFETY: the end of the list was not passed.
        let entry = unsafe { *at };
        at = if entry.is_null() { ptr::null() } else { at.wrapping_add(1) };
        (!entry.is_null()).then_some(entry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: *const *const c_char) -> Vec<String> {
        // SAFETY: the list contains C strings and ends in null.
        let entries = unsafe { entries(list) };
        // SAFETY: as above.
        entries.map(|entry| unsafe { CStr::from_ptr(entry) }.to_str().unwrap().to_owned()).collect()
    }

    /// Environment of a program that is started with the environment `given`.
    fn got(given: &[&str]) -> Vec<String> {
        let _ = OWN.set(Own {
            preload: c"LD_PRELOAD=/lib/ours.so".to_owned(),
            netlink: c"FATPATH_NETLINK=/run/x.netlink".to_owned(),
        });
        let given: Vec<CString> = given.iter().map(|&entry| CString::new(entry).unwrap()).collect();
        let list: Vec<_> = given.iter().map(|entry| entry.as_ptr()).chain([ptr::null()]).collect();
        // SAFETY: the list contains C strings and ends in null.
        unsafe { restored(list.as_ptr(), texts) }.unwrap()
    }

    #[test]
    fn restored_environment_has_library_and_gateway() {
        let both = ["LD_PRELOAD=/lib/ours.so", "FATPATH_NETLINK=/run/x.netlink"];
        let cases: [(&[&str], &[&str]); 8] = [
            (&[], &both),
            (&["A=b", "PATH=/bin"], &[both[0], both[1], "A=b", "PATH=/bin"]),
            (&[both[1], "A=b", both[0]], &[both[1], "A=b", both[0]]),
            (&["FATPATH_NETLINK=", "A=b"], &[both[0], both[1], "A=b"]),
            (&["FATPATH_NETLINK=/run/y.netlink"], &[both[0], "FATPATH_NETLINK=/run/y.netlink"]),
            (&["LD_PRELOAD=/x.so /y.so", both[1]], &["LD_PRELOAD=/lib/ours.so:/x.so /y.so", both[1]]),
            (&["LD_PRELOAD=", both[1], "A=b"], &[both[0], both[1], "A=b"]),
            (&["LD_PRELOAD=/x.so:/other/ours.so"], &[both[1], "LD_PRELOAD=/x.so:/other/ours.so"]),
        ];
        for (given, want) in cases {
            assert_eq!(got(given), want, "{given:?}");
        }
        let many: Vec<String> = (0..5000).map(|number| format!("V{number}=")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(got(&many)[2..], many);
    }

    #[test]
    fn restored_null_environment_has_library_and_gateway() {
        got(&[]);
        // SAFETY: null is an empty environment.
        let got = unsafe { restored(ptr::null(), texts) }.unwrap();
        assert_eq!(got.len(), 2, "{got:?}");
    }

    #[test]
    fn quoted_word_is_one_to_a_shell() {
        assert_eq!(quoted(b"echo 'a b' \"$x\""), br#"'echo '\''a b'\'' "$x"'"#);
        assert_eq!(assignment(c"A=b=c d"), b"A='b=c d' ");
    }
}
