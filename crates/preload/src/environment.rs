//! Environment variables through which a program loads this library and connects to the gateway. They are restored in
//! the environment of every started program that lacks them.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::errno::Errno;
use crate::program_memory::List;
use crate::{stack, sys};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const NETLINK: &[u8] = b"FATPATH_NETLINK=";
/// Maximum length of a restored `LD_PRELOAD`, with its name.
const MAX_LEN: usize = 2 * libc::PATH_MAX as usize;

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
    sys::file_of((&raw const OWN).cast()).map(CStr::to_owned)
}

/// Calls `then` with `environment`, or with a copy to which the library's variables are added.
///
/// # Errors
/// `E2BIG`: the variables exceed the limit.
pub(crate) fn restored<T>(environment: List<'_>, then: impl FnOnce(List<'_>) -> T) -> Result<T, Errno> {
    let Some(own) = OWN.get() else { return Ok(then(environment)) };
    let seen = Seen::of(environment, &own.preload);
    if seen.has_library && seen.has_gateway {
        return Ok(then(environment));
    }
    let mut room = [0_u8; MAX_LEN];
    let preload = if seen.has_library { None } else { Some(own.before(seen.preload, &mut room)?.into()) };
    let netlink = (!seen.has_gateway).then_some(own.netlink.as_c_str().into());
    let others = environment.texts().filter(|entry| {
        let entry = entry.get().unwrap_or_default().to_bytes();
        let is_replaced = |name, is_there: bool| !is_there && entry.starts_with(name);
        !is_replaced(PRELOAD, seen.has_library) && !is_replaced(NETLINK, seen.has_gateway)
    });
    stack::with_list(seen.count + 2, preload.into_iter().chain(netlink).chain(others), then)
}

/// Shell command that sets the library's variables, and replaces its shell by one that runs `command`. `None`: the
/// program's environment contains the variables.
pub(crate) fn shell_command(command: &CStr) -> Option<CString> {
    let own = OWN.get()?;
    let seen = Seen::of(sys::environment(), &own.preload);
    if seen.has_library && seen.has_gateway {
        return None;
    }
    let mut script = Vec::new();
    let mut room = [0_u8; MAX_LEN];
    if !seen.has_library {
        script.extend(assignment(own.before(seen.preload, &mut room).ok()?));
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
    fn before<'a>(&'a self, others: Option<&[u8]>, room: &'a mut [u8; MAX_LEN]) -> Result<&'a CStr, Errno> {
        let Some(others) = others.filter(|others| !others.is_empty()) else { return Ok(&self.preload) };
        let own = self.preload.to_bytes();
        let parts = own.iter().chain(b":").chain(others);
        if own.len() + others.len() + 2 > room.len() {
            return Err(Errno(libc::E2BIG));
        }
        room.iter_mut().zip(parts).for_each(|(to, &byte)| *to = byte);
        CStr::from_bytes_until_nul(room).map_err(|_| Errno(libc::E2BIG))
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
    fn of(environment: List<'a>, own: &CStr) -> Self {
        let mut seen = Self { count: 0, preload: None, has_library: false, has_gateway: false };
        for entry in environment.texts() {
            seen.count += 1;
            let entry = entry.get().unwrap_or_default().to_bytes();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: List<'_>) -> Vec<String> {
        list.texts().map(|text| text.get().unwrap().to_str().unwrap().to_owned()).collect()
    }

    /// Environment of a program that is started with the environment `given`.
    fn got(given: &[&str]) -> Vec<String> {
        let _ = OWN.set(Own {
            preload: c"LD_PRELOAD=/lib/ours.so".to_owned(),
            netlink: c"FATPATH_NETLINK=/run/x.netlink".to_owned(),
        });
        let given: Vec<CString> = given.iter().map(|&entry| CString::new(entry).unwrap()).collect();
        let given = given.iter().map(|entry| entry.as_c_str().into());
        stack::with_list(given.len(), given, |list| restored(list, texts)).unwrap().unwrap()
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
        let got = restored(List::NULL, texts).unwrap();
        assert_eq!(got.len(), 2, "{got:?}");
    }

    #[test]
    fn quoted_word_is_one_to_a_shell() {
        assert_eq!(quoted(b"echo 'a b' \"$x\""), br#"'echo '\''a b'\'' "$x"'"#);
        assert_eq!(assignment(c"A=b=c d"), b"A='b=c d' ");
    }
}
