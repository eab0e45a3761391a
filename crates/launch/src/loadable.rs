//! Check whether a program would load a preloaded library (ld.so(8), `LD_PRELOAD`).
//!
//! The check runs in children of `vfork` and in signal handlers, so it allocates no memory, and makes all system calls
//! without the C library. The kernel itself refuses files that are no program, unreadable or missing.

use std::ffi::CStr;
use std::fmt::{self, Display, Formatter};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::process::{getegid, geteuid, getgid, getuid};

use crate::sys::File;

/// File name of the GNU C library's loader.
#[cfg(target_arch = "x86_64")]
const LOADER: &[u8] = b"ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
const LOADER: &[u8] = b"ld-linux-aarch64.so.1";
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LOADER: &[u8] = b"ld.so.1";

/// `EM_*` of this machine.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Maximum depth of interpreters that are scripts themselves (`exec_binprm`).
const MAX_SCRIPTS: usize = 5;

/// Number of bytes of a script's first line that Linux reads (`BINPRM_BUF_SIZE`).
const LINE: usize = 256;

/// Reason why a program would not load the library, or would not call it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// The program has no dynamic loader.
    Static,
    /// The program was built by the Go compiler.
    Go,
    /// The loader is not the GNU C library's.
    OtherLoader,
    /// The program is for another word size or processor.
    OtherMachine,
    /// The program runs with the privileges of its file's owner or group (setuid, setgid), or this process's real and
    /// effective accounts differ.
    OtherAccount,
    /// The file has capabilities.
    Capabilities,
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "it is linked statically and loads no library",
            Self::Go => "it is a Go program, which makes system calls without the C library",
            Self::OtherLoader => "it is linked with another C library than GNU's",
            Self::OtherMachine => "it is no 64-bit program of this machine's kind",
            Self::OtherAccount => {
                "it would run with another account's rights (setuid or setgid), and its loader ignore the library; use \
                 that account first, as with sudo"
            }
            Self::Capabilities => "its file has capabilities, which makes its loader ignore the library; use root",
        })
    }
}

/// Program that must not be started.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NotLoadable {
    /// Reason.
    pub reason: Reason,
    /// Inode number of the program, or of its interpreter.
    pub inode: u64,
}

/// Checks the program at `path`, relative to the directory `at`.
///
/// # Errors
/// The program would run without the library.
pub fn check(at: BorrowedFd<'_>, path: &CStr) -> Result<(), NotLoadable> {
    open(at, path).map_or(Ok(()), check_file)
}

/// Checks the program that `fd` refers to, which may be unreadable.
///
/// # Errors
/// The program would run without the library.
pub fn check_open(fd: BorrowedFd<'_>) -> Result<(), NotLoadable> {
    let mut path = [0_u8; 32];
    if write!(&mut path[..], "/proc/self/fd/{}\0", fd.as_raw_fd()).is_err() {
        return Ok(());
    }
    CStr::from_bytes_until_nul(&path).map_or(Ok(()), |path| check(CWD, path))
}

/// Checks the program `name`, found like execvp(3) finds it in the directories of `path`, which are separated by
/// colons.
///
/// # Errors
/// The program would run without the library.
pub fn check_found(path: &[u8], name: &[u8]) -> Result<(), NotLoadable> {
    let mut room = [0_u8; libc::PATH_MAX as usize];
    for directory in path.split(|&byte| byte == b':') {
        match joined(directory, name, &mut room) {
            Some(candidate) if is_executable(candidate) => return check(CWD, candidate),
            _ => {}
        }
    }
    Ok(())
}

fn joined<'a>(directory: &[u8], name: &[u8], room: &'a mut [u8]) -> Option<&'a CStr> {
    let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    let (path, end) = room.split_at_mut_checked(directory.len() + separator.len() + name.len())?;
    path.iter_mut().zip(directory.iter().chain(separator).chain(name)).for_each(|(to, &byte)| *to = byte);
    *end.first_mut()? = 0;
    CStr::from_bytes_until_nul(room).ok()
}

fn is_executable(path: &CStr) -> bool {
    let is_file = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    rustix::fs::stat(path).is_ok_and(is_file) && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// Opens a file that may be a program, but no device: opening a device may have effects.
fn open(at: BorrowedFd<'_>, path: &CStr) -> Option<File> {
    let stat = rustix::fs::statat(at, path, AtFlags::empty()).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let open = || rustix::fs::openat(at, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    is_file.then(|| open().ok().map(File::from))?
}

fn check_file(mut file: File) -> Result<(), NotLoadable> {
    for _ in 0..MAX_SCRIPTS {
        let mut start = [0_u8; LINE];
        let len = read_at(file.as_fd(), 0, &mut start);
        let start = start.get(..len).unwrap_or_default();
        if !start.starts_with(b"#!") {
            let inode = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_ino);
            let judged = check_binary(file.as_fd(), start).and_then(|()| check_rights(file.as_fd()));
            return judged.map_err(|reason| NotLoadable { reason, inode });
        }
        let mut path = [0_u8; LINE];
        let Some(next) = interpreter(start, &mut path).and_then(|path| open(CWD, path)) else { return Ok(()) };
        file = next;
    }
    Ok(())
}

/// Path of the interpreter in the first line of a script.
fn interpreter<'a>(start: &[u8], room: &'a mut [u8; LINE]) -> Option<&'a CStr> {
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | 0)).filter(|word| !word.is_empty());
    let path = words.next()?;
    let (to, end) = room.split_at_mut_checked(path.len())?;
    to.copy_from_slice(path);
    *end.first_mut()? = 0;
    CStr::from_bytes_until_nul(room).ok()
}

/// Fields of an ELF file's header (elf(5), `Elf64_Ehdr`).
struct Header {
    machine: u16,
    first: u64,
    size: u64,
    count: u64,
}

impl Header {
    /// Parses a program's header, in this machine's byte order; `None` for other files.
    fn of(start: &[u8]) -> Option<Self> {
        const EXECUTABLE: [u16; 2] = [2, 3];
        let kind = half(start, 16)?;
        EXECUTABLE.contains(&kind).then_some(())?;
        Some(Self {
            machine: half(start, 18)?,
            first: long(start, 32)?,
            size: half(start, 54)?.into(),
            count: half(start, 56)?.into(),
        })
    }
}

/// Segment of a program: its type and its range in the file (elf(5), `Elf64_Phdr`).
struct Segment {
    kind: u32,
    at: u64,
    len: u64,
}

impl Segment {
    const LEN: u64 = 56;
    const INTERPRETER: u32 = 3;
    const NOTE: u32 = 4;

    fn of(bytes: &[u8]) -> Option<Self> {
        Some(Self { kind: word(bytes, 0)?, at: long(bytes, 8)?, len: long(bytes, 32)? })
    }
}

/// Checks a file's contents.
fn check_binary(file: BorrowedFd<'_>, start: &[u8]) -> Result<(), Reason> {
    const NATIVE: [u8; 2] = [2, if cfg!(target_endian = "little") { 1 } else { 2 }];
    let Some(ident) = start.strip_prefix(b"\x7fELF") else { return Ok(()) };
    if !ident.starts_with(&NATIVE) {
        return Err(Reason::OtherMachine);
    }
    let Some(header) = Header::of(start) else { return Ok(()) };
    if header.machine != MACHINE {
        return Err(Reason::OtherMachine);
    }
    if header.size != Segment::LEN {
        return Ok(());
    }
    let mut has_loader = false;
    for number in 0..header.count {
        let mut bytes = [0_u8; Segment::LEN as usize];
        let Some(at) = header.first.checked_add(number * Segment::LEN) else { return Ok(()) };
        if read_at(file, at, &mut bytes) < bytes.len() {
            return Ok(());
        }
        let Some(segment) = Segment::of(&bytes) else { return Ok(()) };
        match segment.kind {
            Segment::NOTE if is_by_go(file, &segment) => return Err(Reason::Go),
            Segment::INTERPRETER if !is_gnu_loader(file, &segment) => return Err(Reason::OtherLoader),
            Segment::INTERPRETER => has_loader = true,
            _ => {}
        }
    }
    if has_loader { Ok(()) } else { Err(Reason::Static) }
}

fn is_gnu_loader(file: BorrowedFd<'_>, segment: &Segment) -> bool {
    let mut room = [0_u8; libc::PATH_MAX as usize];
    let Some(path) = contents(file, segment, &mut room) else { return false };
    let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
    path.rsplit(|&byte| byte == b'/').next() == Some(LOADER)
}

/// Tells whether a note segment contains the note that Go's linker adds to each program (`.note.go.buildid`).
fn is_by_go(file: BorrowedFd<'_>, segment: &Segment) -> bool {
    const NAME: &[u8] = b"Go\0\0";
    const BUILD_ID: u32 = 4;
    let mut room = [0_u8; 1024];
    let Some(mut notes) = contents(file, segment, &mut room) else { return false };
    while let (Some(name_len), Some(len), Some(kind)) = (word(notes, 0), word(notes, 4), word(notes, 8)) {
        let name = notes.get(12..).unwrap_or_default();
        if kind == BUILD_ID && name_len == NAME.len() as u32 && name.starts_with(NAME) {
            return true;
        }
        let [name_len, len] = [name_len, len].map(|len| (len as usize).next_multiple_of(4));
        notes = name.get(name_len..).and_then(|rest| rest.get(len..)).unwrap_or_default();
    }
    false
}

/// First bytes of a segment, as many as fit.
fn contents<'a>(file: BorrowedFd<'_>, segment: &Segment, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let max_len = usize::try_from(segment.len).unwrap_or(usize::MAX).min(room.len());
    let len = read_at(file, segment.at, room.get_mut(..max_len)?);
    room.get(..len)
}

/// Checks a program's privileges: if they differ from this process's, the loader ignores the library (`AT_SECURE`;
/// Linux `cap_bprm_creds_from_file`).
fn check_rights(file: BorrowedFd<'_>) -> Result<(), Reason> {
    let Ok(stat) = rustix::fs::fstat(file) else { return Ok(()) };
    let (mut euid, mut egid) = (geteuid().as_raw(), getegid().as_raw());
    let gains = !rustix::thread::no_new_privs().unwrap_or(false) && !is_without_rights(file);
    if gains && stat.st_mode & libc::S_ISUID != 0 {
        euid = stat.st_uid;
    }
    let set_gid = libc::S_ISGID | libc::S_IXGRP;
    if gains && stat.st_mode & set_gid == set_gid {
        egid = stat.st_gid;
    }
    if euid != getuid().as_raw() || egid != getgid().as_raw() {
        return Err(Reason::OtherAccount);
    }
    if gains && !getuid().is_root() && has_capabilities(file) {
        return Err(Reason::Capabilities);
    }
    Ok(())
}

/// Tells whether the file system is mounted without setuid and file capabilities (`nosuid`).
fn is_without_rights(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatvfs(file).is_ok_and(|on| on.f_flag.contains(StatVfsMountFlags::NOSUID))
}

/// Tells whether the program's file has capabilities (`struct vfs_ns_cap_data`).
fn has_capabilities(file: BorrowedFd<'_>) -> bool {
    const EFFECTIVE: u32 = 1;
    let mut room = [0_u8; 24];
    let Ok(len) = rustix::fs::fgetxattr(file, c"security.capability", &mut room) else { return false };
    let room = room.get(..len).unwrap_or_default();
    // Little-endian: flags, then permitted and inheritable capabilities alternately.
    let word =
        |at: usize| room.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word));
    word(0) & EFFECTIVE != 0 || word(4) != 0 || word(12) != 0
}

/// Reads at an offset of a file, up to its end or an error, and returns the number of bytes.
fn read_at(file: BorrowedFd<'_>, at: u64, into: &mut [u8]) -> usize {
    let mut done = 0;
    while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, at.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    done
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|half| u16::from_ne_bytes(*half))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|long| u64::from_ne_bytes(*long))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// File in memory.
    fn file(bytes: &[u8]) -> fs::File {
        let fd = rustix::fs::memfd_create(c"program", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = fs::File::from(fd);
        file.write_all(bytes).unwrap();
        file
    }

    fn judged(bytes: &[u8]) -> Result<(), Reason> {
        check_open(file(bytes).as_fd()).map_err(|refused| refused.reason)
    }

    /// Types and contents of segments.
    type Segments<'a> = &'a [(u32, &'a [u8])];

    /// ELF file for this machine.
    fn elf(segments: Segments<'_>) -> Vec<u8> {
        let mut elf = vec![0; 64 + 56 * segments.len()];
        elf[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, if cfg!(target_endian = "little") { 1 } else { 2 }]);
        elf[16..18].copy_from_slice(&3_u16.to_ne_bytes());
        elf[18..20].copy_from_slice(&MACHINE.to_ne_bytes());
        elf[32..40].copy_from_slice(&64_u64.to_ne_bytes());
        elf[54..56].copy_from_slice(&56_u16.to_ne_bytes());
        elf[56..58].copy_from_slice(&(segments.len() as u16).to_ne_bytes());
        for (number, (kind, bytes)) in segments.iter().enumerate() {
            let end = elf.len() as u64;
            let header = &mut elf[64 + 56 * number..];
            header[..4].copy_from_slice(&kind.to_ne_bytes());
            header[8..16].copy_from_slice(&end.to_ne_bytes());
            header[32..40].copy_from_slice(&(bytes.len() as u64).to_ne_bytes());
            elf.extend_from_slice(bytes);
        }
        elf
    }

    fn note(name: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [name.len() as u32, desc.len() as u32, kind] {
            note.extend(word.to_ne_bytes());
        }
        for part in [name, desc] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn check_judges_programs_by_loader_machine_and_notes() {
        let gnu = [b"/lib64/", LOADER, b"\0"].concat();
        let load = 1;
        let interp = Segment::INTERPRETER;
        let notes = Segment::NOTE;
        let of_gnu = note(b"GNU\0", 3, &[7; 20]);
        let of_go = note(b"Go\0\0", 4, &[b'x'; 83]);
        let both = [&of_gnu[..], &of_go].concat();
        let cases: [(Segments<'_>, Result<(), Reason>); 10] = [
            (&[(interp, &gnu), (load, b"x"), (notes, &of_gnu)], Ok(())),
            (&[(load, b"x"), (notes, &of_gnu)], Err(Reason::Static)),
            (&[], Err(Reason::Static)),
            (&[(notes, &of_go), (load, b"x")], Err(Reason::Go)),
            (&[(interp, &gnu), (notes, &both)], Err(Reason::Go)),
            (&[(interp, &gnu), (notes, &note(b"Go\0\0", 5, b"x"))], Ok(())),
            (&[(interp, b"/lib/ld-musl-x86_64.so.1\0")], Err(Reason::OtherLoader)),
            (&[(interp, b"/lib64/ld-linux-x86-64.so.2.old\0")], Err(Reason::OtherLoader)),
            (&[(interp, b"")], Err(Reason::OtherLoader)),
            (&[(interp, &[b"/nix/store/glibc/lib/", LOADER].concat())], Ok(())),
        ];
        for (segments, want) in cases {
            assert_eq!(judged(&elf(segments)), want, "{segments:?}");
        }
        let mut other = elf(&[(interp, &gnu)]);
        other[4] = 1;
        assert_eq!(judged(&other), Err(Reason::OtherMachine));
        other[4] = 2;
        other[18] = 3;
        assert_eq!(judged(&other), Err(Reason::OtherMachine));
    }

    #[test]
    fn truncated_files_and_non_programs_are_left_to_the_kernel() {
        let whole = elf(&[(Segment::INTERPRETER, &[b"/lib64/", LOADER].concat()), (1, b"x")]);
        for len in 0..64 + 56 {
            // A header that ends before the byte of the word size counts as another machine's.
            let want = if (4..6).contains(&len) { Err(Reason::OtherMachine) } else { Ok(()) };
            assert_eq!(judged(&whole[..len]), want, "{len}");
        }
        for bytes in [&b""[..], b"echo\n", b"\x7fEL", &[0; 300]] {
            assert_eq!(judged(bytes), Ok(()), "{bytes:?}");
        }
        let mut far = whole;
        far[32..40].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(judged(&far), Ok(()));
    }

    #[test]
    fn check_follows_interpreters_of_scripts() {
        let own = std::env::current_exe().unwrap();
        let by = |interpreter: &str| judged(format!("#! {interpreter} -x\nexit\n").as_bytes());
        assert_eq!(by(&own.display().to_string()), Ok(()));
        assert_eq!(by("/nowhere/sh"), Ok(()));
        assert_eq!(judged(b"#!\n"), Ok(()));
        assert_eq!(judged(b"#! \t \n/bin/sh"), Ok(()));
        let program = file(&elf(&[(1, b"x")]));
        assert_eq!(by(&format!("/proc/self/fd/{}", program.as_raw_fd())), Err(Reason::Static));
        let script = file(format!("#!/proc/self/fd/{}\n", program.as_raw_fd()).as_bytes());
        assert_eq!(by(&format!("/proc/self/fd/{}", script.as_raw_fd())), Err(Reason::Static));
        assert_eq!(check_open(program.as_fd()).map_err(|refused| refused.reason), Err(Reason::Static));
        let mut endless = file(b"");
        let again = format!("#!/proc/self/fd/{}\n", endless.as_raw_fd());
        endless.write_all(again.as_bytes()).unwrap();
        assert_eq!(check_open(endless.as_fd()), Ok(()));
    }

    #[test]
    fn check_found_judges_the_first_executable_file() {
        let scratch = std::env::temp_dir().join(format!("fatpath-launch-{}", std::process::id()));
        let directory = |name: &str| scratch.join(name).display().to_string();
        fs::create_dir_all(scratch.join("a/tool")).unwrap();
        let place = |name: &str, mode, program: &[u8]| {
            fs::create_dir_all(scratch.join(name)).unwrap();
            let file = fs::File::create(scratch.join(name).join("tool")).unwrap();
            (&file).write_all(program).unwrap();
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).unwrap();
        };
        place("b", 0o644, &elf(&[]));
        place("c", 0o755, &elf(&[]));
        place("d", 0o755, &elf(&[(Segment::INTERPRETER, LOADER)]));
        let cases = [("a:b:c:d", Err(Reason::Static)), ("a:b:d:c", Ok(())), ("", Ok(())), ("a:b", Ok(()))];
        let found = cases.map(|(path, _)| {
            let path: Vec<String> = path.split(':').map(directory).collect();
            check_found(path.join(":").as_bytes(), b"tool").map_err(|refused| refused.reason)
        });
        fs::remove_dir_all(&scratch).unwrap();
        assert_eq!(found, cases.map(|(_, want)| want));
    }

    #[test]
    fn check_refuses_programs_of_other_rights() {
        let program = file(&elf(&[(Segment::INTERPRETER, LOADER)]));
        let reason = || check_open(program.as_fd()).map_err(|refused| refused.reason);
        rustix::fs::fchmod(&program, Mode::from_raw_mode(0o4755)).unwrap();
        assert_eq!(reason(), Ok(()), "the file is this account's own");
        if getuid().is_root() {
            let other = rustix::fs::Uid::from_raw(1);
            rustix::fs::fchown(&program, Some(other), None).unwrap();
            rustix::fs::fchmod(&program, Mode::from_raw_mode(0o4755)).unwrap();
            assert_eq!(reason(), Err(Reason::OtherAccount));
            rustix::fs::fchmod(&program, Mode::from_raw_mode(0o755)).unwrap();
            let all = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            rustix::fs::fsetxattr(&program, c"security.capability", &all, rustix::fs::XattrFlags::empty()).unwrap();
            assert!(has_capabilities(program.as_fd()));
            assert_eq!(reason(), Ok(()), "root has all capabilities anyway");
        }
    }
}
