//! Needs of a test, and the handling of a machine that does not meet them.

use std::env;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::{Completion, Trial};

use crate::Outcome;

/// Something a test cannot run without.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Need {
    /// Permission to create network namespaces, which takes root.
    Namespaces,
    /// The TUN/TAP driver, `/dev/net/tun`.
    Tun,
    /// VXLAN interfaces, the kernel's module `vxlan`.
    Vxlan,
    /// A program on the path.
    Program {
        /// Name of the program.
        name: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A file.
    File {
        /// Path of the file.
        path: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A file of a Debian package that `scripts/setup` unpacks below the target directory, and does not install.
    Unpacked {
        /// Path in the package.
        path: &'static str,
        /// The package.
        package: &'static str,
    },
}

/// Path of a file of an unpacked package.
#[must_use]
pub fn unpacked(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/unpacked").join(path)
}

impl Need {
    /// A C compiler, with a C library for static programs, too.
    pub const CC: Self = Self::Program { name: "cc", package: "gcc" };
    /// The Go compiler.
    pub const GO: Self = Self::Program { name: "go", package: "golang-go" };
    /// `curl`.
    pub const CURL: Self = Self::Program { name: "curl", package: "curl" };
    /// Python.
    pub const PYTHON: Self = Self::Program { name: "python3", package: "python3-minimal" };
    /// `setpriv` of util-linux.
    pub const SETPRIV: Self = Self::Program { name: "setpriv", package: "util-linux" };
    /// `ping` of iputils.
    pub const PING: Self = Self::Program { name: "ping", package: "iputils-ping" };
    /// `fping`.
    pub const FPING: Self = Self::Program { name: "fping", package: "fping" };
    /// `sysctl` of procps.
    pub const SYSCTL: Self = Self::Program { name: "sysctl", package: "procps" };
    /// `tcpdump`.
    pub const TCPDUMP: Self = Self::Program { name: "tcpdump", package: "tcpdump" };
    /// `tshark`.
    pub const TSHARK: Self = Self::Program { name: "tshark", package: "tshark" };
    /// systemd's checks of unit files.
    pub const SYSTEMD_ANALYZE: Self = Self::Program { name: "systemd-analyze", package: "systemd" };
    /// `ethtool`.
    pub const ETHTOOL: Self = Self::Program { name: "ethtool", package: "ethtool" };
    /// A Linux kernel that runs as a process.
    pub const UML: Self = Self::Program { name: "linux.uml", package: "user-mode-linux" };
    /// `modprobe`, with which that kernel loads its modules.
    pub const MODPROBE: Self = Self::Program { name: "modprobe", package: "kmod" };

    /// `frag6` of SI6 Networks' IPv6 toolkit.
    pub const FRAG6: Self = Self::Program { name: "frag6", package: "ipv6toolkit" };
    /// `atk6-fragmentation6` and related programs of THC's IPv6 attack toolkit.
    pub const THC_IPV6: Self = Self::Program { name: "atk6-fragmentation6", package: "thc-ipv6" };

    /// The missing need and its remedy, if it is missing.
    fn lack(self) -> Option<String> {
        match self {
            Self::Namespaces => {
                let mut probe = Command::new("unshare");
                probe.args(["--net", "--mount", "ip", "link"]).stdout(Stdio::null()).stderr(Stdio::null());
                let works = probe.status().is_ok_and(|status| status.success());
                (!works).then(|| "needs network namespaces: root, and Debian package iproute2".to_owned())
            }
            Self::Tun => {
                let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
                device.err().map(|error| format!("needs /dev/net/tun ({error}): root, and the kernel's tun module"))
            }
            Self::Vxlan => {
                let mut probe = Command::new("unshare");
                probe.args(["--net", "ip", "link", "add", "type", "vxlan", "id", "1", "dstport", "4789"]);
                let works =
                    probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
                (!works).then(|| "needs VXLAN interfaces: root, and the kernel's vxlan module".to_owned())
            }
            Self::Program { name, package } => {
                let path = env::var_os("PATH").unwrap_or_default();
                let found = env::split_paths(&path).any(|directory| directory.join(name).is_file());
                (!found).then(|| format!("needs {name}: Debian package {package}"))
            }
            Self::File { path, package } => {
                (!Path::new(path).exists()).then(|| format!("needs {path}: Debian package {package}"))
            }
            Self::Unpacked { path, package } => (!unpacked(path).exists())
                .then(|| format!("needs {path}: scripts/setup unpacks Debian package {package}")),
        }
    }
}

/// The test `name`, ignored with a reason where one of `needs` is missing; in continuous integration that is a failure.
pub fn trial(
    name: impl Into<String>,
    needs: &'static [Need],
    test: impl FnOnce() -> Outcome + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || match needs.iter().find_map(|need| need.lack()) {
        None => test().map(|()| Completion::Completed),
        Some(lack) if in_ci() => Err(lack.into()),
        Some(lack) => Ok(Completion::ignored_with(lack)),
    })
}

fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true")
}
