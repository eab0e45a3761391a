//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use base::DropReason;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use client::BenchCommand;
use ctl::{Request, What};

/// A Linux-style network data path in user space that keeps packets fat
///
/// fatpath is an IPsec gateway and a router that moves packets of up to 64 KiB and segments them to the wire's size as
/// its last step. `fatpath run` starts a gateway from a file; `fatpath show` prints the state of a running one;
/// `fatpath demo` measures, in network namespaces of its own, the benefit of fat packets on this machine.
#[derive(Debug, Parser)]
#[command(name = "fatpath", version, max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Command to run
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a gateway until SIGTERM or SIGINT
    ///
    /// The configuration is a TOML file, or a file of lines for ip in the format of `ip -batch`, or a TOML file and
    /// then such a file, each with its own -c. The system's ip executes the lines before the gateway reports that it is
    /// ready; if a line fails, the gateway ends.
    ///
    /// SIGHUP reads the TOML file again: the new configuration is applied as a whole or, if anything in it is wrong,
    /// not at all. Security associations that are in both keep their sequence numbers. A file of lines cannot be
    /// reloaded: its lines are commands, and do not describe a state.
    ///
    /// Log lines go to standard error; the environment variable FATPATH_LOG selects them. FATPATH_LOG=trace has one for
    /// every dropped packet.
    ///
    /// TUN and TAP devices that the gateway makes stay when it ends, with their addresses and routes, as do blackhole
    /// routes behind the routes over them: packets into a device are lost until the gateway runs again, and none leaves
    /// in clear by another route. `fatpath down` removes them.
    Run(RunArgs),
    /// End a gateway, and remove the devices and routes that it leaves
    ///
    /// A gateway of that name that runs gets SIGTERM. Then the TUN and TAP devices with its mark in this network
    /// namespace are removed, with all their addresses and routes, and the blackhole routes behind those. If nothing of
    /// it is here, the command says so; the exit code is 0 all the same.
    Down(DownArgs),
    /// Check configuration files and change nothing
    ///
    /// The exit code is 0 if the files would be accepted together and 2 if not; then one line contains the file, the
    /// line, the key and a correct value. Lines for ip are executed on a gateway in memory; if a line fails, the error
    /// of ip is printed. Devices and privileges are not checked.
    Check(CheckArgs),
    /// Apply a configuration file to a running gateway
    ///
    /// The file is applied as a whole or not at all, as by SIGHUP, also to a gateway that was started without a file.
    /// Objects that have not changed stay as they are. From then on SIGHUP reads this file.
    Load(LoadArgs),
    /// Save the state that programs have set on a running gateway, for its next start
    ///
    /// Objects that netlink clients have created and that are not in the configuration (links, addresses, routes,
    /// rules, permanent neighbours, SAs, policies) are written to the file of `fatpath run --state`; they replace its
    /// content as a whole or not at all. SAs with a time limit are not saved; the IKE daemon negotiates new ones.
    ///
    /// The file contains keys, and only the user of the gateway may read it.
    Save(SaveArgs),
    /// Show the state and the counters of a running gateway
    ///
    /// Links, routes and neighbours are formatted as by ip, security associations and policies as by `ip -s xfrm`,
    /// counters as by nstat. The control socket of a gateway is /run/fatpath/NAME.sock, or, for users other than root,
    /// $XDG_RUNTIME_DIR/fatpath/NAME.sock; the environment variable FATPATH_RUNDIR replaces the directory.
    Show(ShowArgs),
    /// Print cause and remedy of a reason for drops
    ///
    /// Reasons are those of `fatpath show drops` and `fatpath trace`; without one, all are listed with their causes.
    Explain(ExplainArgs),
    #[command(flatten)]
    Measure(BenchCommand),
    /// Write a link's packets to a pcapng file
    ///
    /// The packets are those of the wire, in both directions, until Ctrl-C. Any tool that reads pcapng shows them, as
    /// in `fatpath capture wan | tcpdump -r -`.
    Capture(CaptureArgs),
    /// Print the stages that packets pass in a gateway
    ///
    /// A block for each packet: IP input, hooks, the table and route, local delivery or forwarding, policies and
    /// ciphers, the queue of the link, or the reason for a drop; with the packet's geometry at each step: bytes, bytes
    /// in the head, page slots, child packets, memory, checksum state, segments. The result of ESP encryption or
    /// decryption counts as another packet, with a new number. The trace ends with Ctrl-C, or after the requested
    /// number of packets.
    ///
    /// A filter is one argument: terms joined by `and`, each negated by `not`. Terms are `ip`, `ip6`, `tcp`, `udp`,
    /// `icmp`, `icmp6`, `esp`, `proto NUMBER`, `[src|dst] host ADDRESS`, `[src|dst] net PREFIX`,
    /// `[src|dst] port NUMBER` and `dev LINK`, the packet's input link, or its VRF. The trace ends with the last
    /// packet: its steps after a wait for a neighbour or an SA are omitted.
    ///
    /// During a trace, packets take no fast paths, so the gateway is slower.
    Trace(TraceArgs),
    /// Print events of SAs and policies as they happen
    ///
    /// A line for each event: a packet needs an SA that does not exist (acquire), an SA or a policy has reached a soft
    /// or a hard limit (expire), a peer's address or port has changed (mapping). While a monitor runs, a missing SA is
    /// requested once, and packets wait for it, as in Linux.
    Monitor(MonitorArgs),
    /// Run a program whose netlink sockets reach a gateway instead of the kernel
    ///
    /// The program is unmodified, like the system's `ip`, `bridge` or strongSwan's `charon`: it reads and configures
    /// the gateway's links, addresses, routes, SAs and policies. The same applies to its child processes. Its other
    /// sockets are in the gateway's host side, a network namespace, if the gateway has one and the caller may enter it,
    /// with /sys and the files in /etc/netns/fatpath-NAME mounted again as by `ip netns exec`; without a host side,
    /// they stay in the caller's namespace.
    ///
    /// The program must be linked with the system's C library, dynamically, and must not run with another account's
    /// rights: a program that would not load the library is not started, nor are such child processes. Netlink sockets
    /// of the kernel, io_uring, requests that create or change interfaces of the host, and network namespaces are
    /// refused (seccomp). If seccomp requires privileges that the caller does not have, setuid programs start without
    /// theirs.
    ///
    /// The preloaded library, libfatpath_preload.so, is searched for in the directory of fatpath and in ../lib/fatpath;
    /// the environment variable FATPATH_PRELOAD replaces the path.
    Exec(ExecArgs),
    /// Run the system's `ip` on a gateway
    ///
    /// Same as `fatpath exec -- ip`: all further arguments are ip's.
    Ip(IpArgs),
    /// Create a gateway's host side, by the gateway's orders on standard input, a socket
    #[command(hide = true)]
    HostMaker,
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the man pages into a directory
    Man(ManArgs),
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The configuration, TOML or lines for ip; without one the gateway starts empty
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Vec<PathBuf>,
    /// File of `fatpath save`; its state is restored at the start, and a missing file is created
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) state: Option<PathBuf>,
    /// Leave no device behind: TUN and TAP devices end with the gateway
    #[arg(long)]
    pub(crate) ephemeral: bool,
    /// Name of this gateway and of its control socket
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = instance)]
    pub(crate) instance: String,
}

/// Arguments of `down`.
#[derive(Args, Debug)]
pub(crate) struct DownArgs {
    /// Name of the gateway
    #[arg(value_name = "NAME", value_parser = instance)]
    pub(crate) name: String,
}

/// Arguments of `save`.
#[derive(Args, Debug)]
pub(crate) struct SaveArgs {
    /// Name of the gateway
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = instance)]
    pub(crate) instance: String,
}

/// Arguments of `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The configuration, TOML or lines for ip
    #[arg(short, long, value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) config: Vec<PathBuf>,
}

/// Arguments of `load`.
#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    /// The configuration
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Name of the gateway
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = instance)]
    pub(crate) instance: String,
}

/// Arguments of `show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// State to show
    #[arg(value_name = "WHAT")]
    pub(crate) what: ShowWhat,
    /// Print JSON
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Print counters that are zero as well
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Name of the gateway
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = instance)]
    pub(crate) instance: String,
}

/// States for `fatpath show`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ShowWhat {
    /// Links, their offloads (on, off, and why), and their traffic
    Links,
    /// Routes of every table
    Routes,
    /// Neighbours by ARP and neighbour discovery
    Neighbours,
    /// Addresses behind the ports of bridges, as from bridge fdb
    Fdb,
    /// Path MTUs learned from ICMP
    Pmtus,
    /// Security associations, larval ones included; keys are not shown
    Sa,
    /// Security policies
    Policies,
    /// Counters by their Linux names, and copied bytes by reason
    Counters,
    /// Dropped packets by link and reason
    Drops,
    /// Incomplete datagrams in reassembly, and the memory of their fragments
    Fragments,
    /// Network namespace of the gateway: its devices, or the reason for having none
    Host,
    /// ILA mappings
    Ila,
    /// Flows of the host side's sockets, for early demux
    Flows,
}

impl From<ShowWhat> for Request {
    fn from(what: ShowWhat) -> Self {
        let what = match what {
            ShowWhat::Links => What::Links,
            ShowWhat::Routes => What::Routes,
            ShowWhat::Neighbours => What::Neighbours,
            ShowWhat::Fdb => What::Fdb,
            ShowWhat::Pmtus => What::Pmtus,
            ShowWhat::Sa => What::Sa,
            ShowWhat::Policies => What::Policies,
            ShowWhat::Counters => What::Counters,
            ShowWhat::Drops => What::Drops,
            ShowWhat::Fragments => What::Fragments,
            ShowWhat::Ila => What::Ila,
            ShowWhat::Flows => What::Flows,
            ShowWhat::Host => return Self::ShowHost,
        };
        Self::Show { what }
    }
}

/// Arguments of `explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// Reason for drops, such as EspIcv
    #[arg(value_name = "REASON", value_parser = crate::explain::reason)]
    pub(crate) reason: Option<DropReason>,
}

/// Arguments of `capture`.
#[derive(Args, Debug)]
pub(crate) struct CaptureArgs {
    /// The link
    #[arg(value_name = "LINK")]
    pub(crate) link: String,
    /// File to write; standard output if not given
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) write: Option<PathBuf>,
    /// Capture the fat packets: after GRO on the way in, before segmentation on the way out
    #[arg(long)]
    pub(crate) after_gro: bool,
    /// Name of the gateway
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = instance)]
    pub(crate) instance: String,
}

/// Arguments of `trace`.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// Packets to trace; all if not given
    #[arg(long, value_name = "EXPR")]
    pub(crate) filter: Option<String>,
    /// Number of packets to trace
    #[arg(short, long, value_name = "N", default_value_t = u32::MAX, hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// One JSON object per packet
    #[arg(long)]
    pub(crate) json: bool,
    /// Name of the gateway
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = instance)]
    pub(crate) instance: String,
}

/// Arguments of `monitor`.
#[derive(Args, Debug)]
pub(crate) struct MonitorArgs {
    /// One JSON object per event
    #[arg(long)]
    pub(crate) json: bool,
    /// Name of the gateway
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = instance)]
    pub(crate) instance: String,
}

/// Arguments of `exec`.
#[derive(Args, Debug)]
pub(crate) struct ExecArgs {
    /// Name of the gateway
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = instance)]
    pub(crate) instance: String,
    /// Namespace of the program's other sockets
    #[arg(long, value_name = "PLACE", default_value = "gateway")]
    pub(crate) sockets: Sockets,
    /// VRF that the program's Internet sockets are bound to
    #[arg(long, value_name = "NAME", conflicts_with = "sockets")]
    pub(crate) vrf: Option<String>,
    /// Allow changes of the packet filter of the host side's kernel (nft, iptables)
    ///
    /// The rules apply to sockets on the gateway's host side, and not to packets that the gateway forwards.
    #[arg(long, conflicts_with = "sockets")]
    pub(crate) host_firewall: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(crate) program: Vec<OsString>,
}

/// Namespace of the sockets other than netlink sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Sockets {
    /// Namespace of the gateway's host side, if it has one
    Gateway,
    /// Namespace of fatpath exec itself
    Host,
}

/// Arguments of `ip`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct IpArgs {
    /// Name of the gateway; comes before ip's own options
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = instance)]
    pub(crate) instance: String,
    /// Arguments for ip
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<OsString>,
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The directory, which must exist
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

/// Parses an instance's name, which becomes a file name: letters, digits, `-`, `_` and `.`, at most 64, the first no
/// dot.
fn instance(name: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(allowed) {
        return Err("use 1 to 64 letters, digits, '-', '_' and '.', beginning with no dot".to_owned());
    }
    Ok(name.to_owned())
}
