//! Limit of the gateway's memory: the least of `[limits] memory` and nine tenths of what the system allows.
//!
//! The [`Budget`] is one for all threads, as the allocator is. Here the system's limits and the use of memory are read,
//! at the start, once a second and before a configuration is applied. Between two readings the budget counts the bytes
//! that threads allocate.
//!
//! Two kinds of limits are compared with two kinds of use. The memory of `[limits]`, of the control group and of the
//! machine is compared with anonymous memory and page tables: pages of guests' memory are the guests', their page tables
//! are the gateway's. `RLIMIT_AS` is compared with the address space.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ctl::size;
use packet::{Allocations, Budget};
use rustix::process::{Resource, getrlimit};

/// Time between two readings.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// Time between two returns of free heap pages to the system, each of which locks the heap.
const TRIM_PERIOD: Duration = Duration::from_secs(10);

/// `[limits] memory` of the applied configuration in bytes; 0 if it has none.
static KEY: AtomicU64 = AtomicU64::new(0);

/// Time of the last return of free heap pages.
static TRIMMED: Mutex<Option<Instant>> = Mutex::new(None);

/// Source of a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Source {
    /// `[limits] memory`.
    File,
    /// A control group, or one above it.
    Cgroup,
    /// `RLIMIT_AS`.
    AddressSpace,
    /// The machine's memory.
    Machine,
}

impl Source {
    /// The source in words.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::File => "[limits]",
            Self::Cgroup => "the control group",
            Self::AddressSpace => "RLIMIT_AS",
            Self::Machine => "the machine",
        }
    }
}

/// A limit in bytes, and its source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    pub(crate) source: Source,
}

impl Limit {
    /// Nine tenths of what the system allows.
    const fn of_system(bytes: u64, source: Source) -> Self {
        Self { bytes: bytes / 10 * 9, source }
    }

    /// Text of a refusal.
    fn text(self) -> String {
        let source = self.source.name();
        let size = size(self.bytes);
        match self.source {
            Source::File => format!("memory limit {size} of {source}"),
            _ => format!("memory limit {size}, nine tenths of {source}"),
        }
    }
}

/// Use of memory, in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Use {
    /// Anonymous pages in memory or in swap.
    pub(crate) anonymous: u64,
    /// Page tables.
    pub(crate) page_tables: u64,
    /// Address space.
    pub(crate) addresses: u64,
}

/// One reading.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Reading {
    /// The limit that leaves the least room; `None` if the system names none.
    pub(crate) limit: Option<Limit>,
    /// Bytes in use that this limit counts.
    pub(crate) counted: u64,
    /// Bytes that the gateway has allocated.
    pub(crate) live: u64,
    /// Use of memory.
    pub(crate) used: Use,
}

impl Reading {
    /// Reading for the limits and the use; `live` are the allocated bytes.
    fn of(limits: &[Limit], used: Use, live: u64) -> Self {
        // Allocated pages that were never touched are not in memory yet.
        let memory = used.anonymous.max(live).saturating_add(used.page_tables);
        let counted = |limit: &Limit| if limit.source == Source::AddressSpace { used.addresses } else { memory };
        let limit = limits.iter().min_by_key(|limit| i128::from(limit.bytes) - i128::from(counted(limit))).copied();
        let counted = limit.as_ref().map_or(memory, counted);
        Self { limit, counted, live, used }
    }

    /// The limits and the use now, if `[limits] memory` is `key`.
    pub(crate) fn now(key: Option<u64>) -> Self {
        let live = Allocations::live();
        Self::of(&limits(key), used(), live)
    }

    /// Bytes that are left; negative above the limit.
    fn room(&self) -> i64 {
        let Some(limit) = self.limit else { return i64::MAX };
        i64::try_from(i128::from(limit.bytes) - i128::from(self.counted)).unwrap_or(i64::MIN)
    }
}

/// Begins to limit the memory, before files are read.
pub(crate) fn start() {
    if getrlimit(Resource::As).current.is_some() {
        // Each further heap takes 64 MiB of address space.
        Allocations::share_one_heap();
    }
    refresh();
}

/// Sets `[limits] memory` of the applied configuration.
pub(crate) fn set_key(key: Option<u64>) {
    KEY.store(key.unwrap_or(0), Relaxed);
    refresh();
}

/// `[limits] memory` of the applied configuration.
pub(crate) fn key() -> Option<u64> {
    Some(KEY.load(Relaxed)).filter(|key| *key > 0)
}

/// Reads limits and use again, and sets the budget.
pub(crate) fn refresh() {
    let mut reading = Reading::now(key());
    // Free heap pages are returned before requests are refused for them.
    let kept = Budget::RESERVE.saturating_add(Budget::for_growth());
    let is_free = reading.used.anonymous.saturating_sub(reading.live) > Budget::RESERVE;
    if reading.room() < kept as i64 && is_free && may_trim() {
        Allocations::trim();
        reading = Reading::now(key());
    }
    Budget::set(reading.live, reading.room(), reading.limit.map(Limit::text).unwrap_or_default());
    if reading.room() > 0 {
        // Without address space for it an allocation may fail, which the budget knows by the limit.
        Budget::keep_reserve();
    }
}

/// Refuses a configuration whose `[limits] memory` is `key` if the gateway's memory is above it.
///
/// # Errors
/// The text of the refusal.
pub(crate) fn admit_key(key: Option<u64>) -> Result<(), String> {
    let reading = Reading::now(key);
    let kept = Budget::RESERVE.saturating_add(Budget::for_growth());
    match reading.limit {
        Some(limit) if reading.room() < kept as i64 => {
            let [used, kept] = [reading.counted, kept].map(size);
            Err(format!("{}: {used} are in use, and {kept} stay free", limit.text()))
        }
        _ => Ok(()),
    }
}

/// Bytes of memory for each byte of a configuration file, at the peak of reading, planning and applying it.
const FILE_FACTOR: u64 = 24;

/// Refuses a configuration file of `len` bytes for which the system has no memory. Its own `[limits]` are not read yet.
///
/// # Errors
/// The text of the refusal.
pub(crate) fn admit_file(len: u64) -> Result<(), String> {
    let needed = len.saturating_mul(FILE_FACTOR).saturating_add(Budget::RESERVE);
    // A small file always fits, so that a gateway above its limit can be given a smaller configuration.
    if len < SMALL_FILE {
        return Ok(());
    }
    let reading = Reading::now(None);
    match reading.limit {
        Some(limit) if reading.room() < i64::try_from(needed).unwrap_or(i64::MAX) => {
            let [used, needed] = [reading.counted, needed].map(size);
            Err(format!("{}: {used} are in use, and the file may take {needed}", limit.text()))
        }
        _ => Ok(()),
    }
}

/// Length of a file that takes less than half of the reserve.
const SMALL_FILE: u64 = Budget::RESERVE / 2 / FILE_FACTOR;

/// Tells whether free heap pages may be returned again.
fn may_trim() -> bool {
    let mut trimmed = TRIMMED.lock().unwrap_or_else(PoisonError::into_inner);
    let may = trimmed.is_none_or(|at| at.elapsed() >= TRIM_PERIOD);
    if may {
        *trimmed = Some(Instant::now());
    }
    may
}

/// All limits, for `[limits] memory` of `key`.
fn limits(key: Option<u64>) -> Vec<Limit> {
    let mut all: Vec<Limit> = key.map(|bytes| Limit { bytes, source: Source::File }).into_iter().collect();
    let of_system = [
        (least_cgroup(), Source::Cgroup),
        (getrlimit(Resource::As).current, Source::AddressSpace),
        (field("/proc/meminfo", "MemTotal"), Source::Machine),
    ];
    all.extend(of_system.into_iter().filter_map(|(bytes, source)| Some(Limit::of_system(bytes?, source))));
    all
}

/// The gateway's use of memory.
fn used() -> Use {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |name| field_of(&status, name).unwrap_or(0);
    Use { anonymous: bytes("RssAnon") + bytes("VmSwap"), page_tables: bytes("VmPTE"), addresses: bytes("VmSize") }
}

/// A field of a file of `/proc` in kB, in bytes.
fn field(file: &str, name: &str) -> Option<u64> {
    field_of(&fs::read_to_string(file).ok()?, name)
}

fn field_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Mount of a hierarchy of control groups.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Mount {
    at: PathBuf,
    /// Group that is mounted.
    root: PathBuf,
    is_v2: bool,
}

/// Mounts of hierarchies with the memory controller, in the text of `/proc/self/mountinfo`.
fn mounts(text: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (head, tail) = line.split_once(" - ")?;
        let mut fields = head.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        let mut tail = tail.split(' ');
        let is_v2 = match tail.next()? {
            "cgroup2" => true,
            "cgroup" if tail.nth(1)?.split(',').any(|option| option == "memory") => false,
            _ => return None,
        };
        Some(Mount { at: at.into(), root: root.into(), is_v2 })
    };
    text.lines().filter_map(mount).collect()
}

/// The least limit of the gateway's control groups and those above them.
fn least_cgroup() -> Option<u64> {
    let mounts = mounts(&fs::read_to_string("/proc/self/mountinfo").ok()?);
    least_of(&mounts, &fs::read_to_string("/proc/self/cgroup").ok()?)
}

/// The least limit of the groups in the text of `/proc/self/cgroup`.
fn least_of(mounts: &[Mount], groups: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
        let is_v2 = number == "0" && controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|controller| controller == "memory") {
            return None;
        }
        let file = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        let of_mount = |mount: &Mount| {
            // A group outside what is mounted is that of another namespace.
            let below = Path::new(group).strip_prefix(&mount.root).unwrap_or(Path::new(""));
            let limit = |dir: &Path| fs::read_to_string(mount.at.join(dir).join(file)).ok()?.trim().parse::<u64>().ok();
            below.ancestors().filter_map(limit).min()
        };
        mounts.iter().filter(|mount| mount.is_v2 == is_v2).filter_map(of_mount).min()
    };
    groups.lines().filter_map(of_line).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn limit_that_leaves_the_least_room_counts() {
        let file = Limit { bytes: 300 * MIB, source: Source::File };
        let space = Limit { bytes: 500 * MIB, source: Source::AddressSpace };
        let used = Use { anonymous: 100 * MIB, page_tables: 20 * MIB, addresses: 350 * MIB };
        let reading = |limits: &[Limit], live| {
            let reading = Reading::of(limits, used, live);
            (reading.limit.map(Limit::text), reading.room() / MIB as i64)
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(reading(&[], 0), (None, i64::MAX / MIB as i64));
        assert_eq!(reading(&[file], 50 * MIB), (text("memory limit 300M of [limits]"), 180));
        assert_eq!(reading(&[file], 150 * MIB), (text("memory limit 300M of [limits]"), 130));
        assert_eq!(reading(&[file, space], 150 * MIB), (text("memory limit 300M of [limits]"), 130));
        let by_space = text("memory limit 500M, nine tenths of RLIMIT_AS");
        assert_eq!(reading(&[file, space], 0), (by_space, 150));
        let small = Limit::of_system(100 * MIB, Source::Cgroup);
        assert_eq!(reading(&[file, small], 0), (text("memory limit 90M, nine tenths of the control group"), -30));
    }

    #[test]
    fn fields_of_proc_are_bytes() {
        let status = "VmSize:\t  628628 kB\nRssAnon:\t    1916 kB\nVmPTE:\t     156 kB\nThreads:\t10\n";
        assert_eq!(field_of(status, "RssAnon"), Some(1916 * 1024));
        assert_eq!([field_of(status, "Threads"), field_of(status, "Rss"), field_of("", "VmPTE")], [None; 3]);
        assert!(used().anonymous > 0 && used().page_tables > 0 && used().addresses > used().anonymous);
        assert!(limits(None).iter().any(|limit| limit.source == Source::Machine));
    }

    #[test]
    fn least_limit_of_all_levels_of_both_hierarchies_counts() {
        let dir = std::env::temp_dir().join(format!("fatpath-cgroup-{}", std::process::id()));
        let mount_info = format!(
            "30 1 0:1 / / rw - ext4 /dev/x rw\n35 31 0:32 / {0}/v1 rw - cgroup cgroup rw,memory\n\
             36 31 0:33 / {0}/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 /pod {0}/v2 rw shared:3 - cgroup2 cgroup2 rw\n",
            dir.display()
        );
        let mounts = mounts(&mount_info);
        assert_eq!(mounts.iter().map(|mount| mount.is_v2).collect::<Vec<_>>(), [false, true]);
        let set = |file: &str, text: &str| {
            let file = dir.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let groups = "9:name=systemd:/\n4:memory:/a/b\n1:cpu:/\n0::/pod/x/y\n";
        assert_eq!(least_of(&mounts, groups), None);
        set("v1/memory.limit_in_bytes", "9223372036854771712\n");
        set("v1/a/b/memory.limit_in_bytes", "900\n");
        set("v2/x/y/memory.max", "max\n");
        assert_eq!(least_of(&mounts, groups), Some(900));
        set("v1/a/memory.limit_in_bytes", "800\n");
        assert_eq!(least_of(&mounts, groups), Some(800));
        set("v2/x/memory.max", "700\n");
        set("v2/memory.max", "750\n");
        assert_eq!(least_of(&mounts, groups), Some(700));
        assert_eq!(least_of(&mounts, "0::/elsewhere\n"), Some(750), "the group that is mounted");
        fs::remove_dir_all(&dir).unwrap();
    }
}
