//! The command line.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::PathBuf;

use base::{DropReason, Prefix};
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use client::{BenchCommand, CliError, SeeCommand, instance_name, instance_or_default};
use ctl::{Request, StateKind};
use daemon::{LinkRight, OpenerWork, RunOptions, StatePlace};

/// A Linux-style network data path in user space that keeps packets fat
///
/// fatpath is an IPsec gateway and a router that moves packets of up to 64 KiB and segments them to the wire's size as
/// its last step. `fatpath run` starts a gateway from a file; `fatpath show` prints the state of a running one;
/// `fatpath demo` measures, in network namespaces of its own, the benefit of fat packets on this machine.
#[derive(Debug, Parser)]
#[command(name = "fatpath", version = env!("FATPATH_VERSION"), max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    gateway: GatewayArg,
    /// Command to run; status without one
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
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
    /// Make a tunnel to another host: each end prints a line for the other
    ///
    /// The first call makes a key and prints the line of this end, in which nothing is secret. With the other end's line a
    /// call writes NAME.toml, a tunnel with keys by IKEv2 and raw public keys, and NAME.ike with the files of strongSwan's
    /// charon-systemd, and starts both as `fatpath up` does. The files are yours from then on: no later call changes them.
    ///
    /// Both ends print four words for each line; if they are the same at both ends, no line was changed on its way.
    ///
    /// The directory is /etc/fatpath for root, and $XDG_CONFIG_HOME/fatpath or ~/.config/fatpath for other users; the environment
    /// variable FATPATH_CONFDIR replaces it.
    Pair(PairArgs),
    /// Start the gateway of NAME.toml, and the IKE daemon of a pair
    ///
    /// NAME.toml is in the directory of `fatpath pair`. Where systemd runs, and neither FATPATH_CONFDIR nor FATPATH_RUNDIR is set, the
    /// units fatpath@NAME and fatpath-pair@NAME are enabled and started; elsewhere both programs run in the background, with NAME.log and NAME.ike.log in the run
    /// directory. What runs already stays.
    Up(UpArgs),
    /// End a gateway and the IKE daemon of a pair, and remove the devices and routes that the gateway leaves
    ///
    /// Units that `fatpath up` has enabled are stopped and disabled. A gateway of that name that runs gets SIGTERM. Then the TUN and TAP devices with its mark in this network
    /// namespace are removed, with all their addresses and routes, and the blackhole routes behind those. If nothing of
    /// it is here, the command says so; the exit code is 0 all the same.
    Down(DownArgs),
    /// Check configuration files and change nothing
    ///
    /// The exit code is 0 if the files would be accepted together and 2 if not; then a line for each error contains the
    /// file, the line, the key and a correct value. What cannot work or is dangerous, as a policy whose packets pass in
    /// clear, is a warning, and does not change the exit code. Lines for ip are executed on a gateway in memory; if a line fails, the error
    /// of ip is printed. Devices and privileges are not checked.
    Check(CheckArgs),
    /// Print a fresh key for a static tunnel or SA
    ///
    /// The key is made of the system's random numbers and printed as the file takes it: 0x and hexadecimal digits, by
    /// default 36 bytes for AES-256-GCM. Each direction of a tunnel needs a key of its own; both ends have the same two.
    Genkey(GenkeyArgs),
    /// Apply a configuration file to a running gateway
    ///
    /// The file is applied as a whole or not at all, as by SIGHUP, also to a gateway that was started without a file.
    /// Objects that have not changed stay as they are. From then on SIGHUP reads this file.
    ///
    /// Standard error says how far a load is that takes more than a second.
    Load(LoadArgs),
    /// Save the state that programs have set on a running gateway, for its next start
    ///
    /// Objects that netlink clients have created and that are not in the configuration (links, addresses, routes,
    /// rules, permanent neighbours, SAs, policies) are written to the gateway's state; they replace what an earlier save
    /// has written, as a whole or not at all. A gateway has these objects again after a restart without a save, until the
    /// machine is booted; with a save, after that too. SAs with a time limit are not saved; the IKE daemon negotiates new ones.
    ///
    /// The file contains keys, and only the user of the gateway may read it.
    Save(SaveArgs),
    /// Show the state and the counters of a running gateway
    ///
    /// Links, routes and neighbours are formatted as by ip, security associations and policies as by `ip -s xfrm`,
    /// counters as by nstat. The control socket of a gateway is /run/fatpath/NAME.sock, or, for users other than root,
    /// $XDG_RUNTIME_DIR/fatpath/NAME.sock; the environment variable FATPATH_RUNDIR replaces the directory.
    Show(ShowArgs),
    /// Print one line for each tunnel, and why those that are down are
    ///
    /// Tunnels of all gateways that this user has started, and of root's, or of one. A tunnel is `up` if a packet was received
    /// in the last two minutes, `idle` if its SAs exist and none was received, and `down` if packets cannot pass; then
    /// the reason follows. Below are links that are down, and drops with cause and remedy. Rates are those of half a
    /// second, or of the time between two lines with --watch.
    ///
    /// The exit code is 0 if no tunnel is down, 1 if one is or a gateway does not answer, and 3 if no gateway runs.
    Status(StatusArgs),
    /// Try a tunnel on this machine: two gateways, a ping through ESP, and a shell
    ///
    /// Two hosts are simulated by network namespaces, with a gateway in each and a wire between them. The first host
    /// pings the second through the tunnel; then a shell runs on the first host, if standard input is a terminal. All of
    /// it is in namespaces of this command, needs no privilege, and is gone when the command ends.
    ///
    /// The exit code is that of ping, or of the shell.
    Try,
    /// Check this machine for the requirements of a gateway
    ///
    /// A line for each: `ok`, `note` if only some links or commands are affected, or `missing`, with a remedy. Nothing is
    /// changed. With a peer's address, also whether this host's datagrams to its UDP port 4500 return an error: one is
    /// sent, of one byte, which gateways ignore. The exit code is 1 if something is missing.
    Doctor(DoctorArgs),
    /// Print cause and remedy of a reason for drops
    ///
    /// Reasons are those of `fatpath show drops` and `fatpath trace`; without one, all are listed with their causes.
    Explain(ExplainArgs),
    #[command(flatten)]
    Measure(BenchCommand),
    #[command(flatten)]
    See(SeeCommand),
    /// Write a link's packets to a pcapng file
    ///
    /// The packets are those of the wire, in both directions, until Ctrl-C. Any tool that reads pcapng shows them, as
    /// in `fatpath capture wan | tcpdump -r -`.
    Capture(CaptureArgs),
    /// Print the stages that packets pass in a gateway
    ///
    /// A block for each packet, with the seconds since its first step: IP input, hooks, the table and route, local
    /// delivery or forwarding, policies and SAs, the queue of the link, or the reason for a drop, with SPI and peer if
    /// ESP is the reason. With -v also the packet's geometry at each step: bytes, bytes in the head, page slots, child
    /// packets, memory, checksum state, segments; --json always has it. The result of ESP encryption or decryption
    /// counts as another packet, with a new number. The trace ends with Ctrl-C, or after the requested number of
    /// packets.
    ///
    /// A filter is one argument: terms joined by `and`, each negated by `not`. Terms are `ip`, `ip6`, `tcp`, `udp`,
    /// `icmp`, `icmp6`, `esp`, `proto NUMBER`, `[src|dst] host ADDRESS`, `[src|dst] net PREFIX`,
    /// `[src|dst] port NUMBER` and `dev LINK`, the packet's input link, or its VRF. The trace ends with the last
    /// packet: its steps after a wait for a neighbour or an SA are omitted.
    ///
    /// During a trace, packets take no fast paths, so the gateway is slower.
    Trace(TraceArgs),
    /// Print events of SAs, policies and links, or dropped packets, as they happen
    ///
    /// A line for each event: an SA was added, rekeyed (added beside one of the same addresses and reqid) or removed, a
    /// packet needs an SA that does not exist (acquire), an SA or a policy has reached a soft or a hard limit (expire),
    /// a peer's address or port has changed (mapping), a link is up or down. While a monitor of events runs, a missing
    /// SA is requested once, and packets wait for it, as in Linux.
    ///
    /// With --drops a line for each dropped packet instead: input link, reason, addresses, protocol and ports, and the
    /// SPI if ESP is the reason; at most 100 lines a second, and a line with the number of further drops. A reader that
    /// is too slow loses lines, and a line says how many. `fatpath explain` has cause and remedy of a reason.
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
    /// With -c, a gateway is started for this program and ends with it; it keeps no state. Its log has warnings only,
    /// unless FATPATH_LOG selects others.
    ///
    /// The preloaded library, libfatpath_preload.so, is searched for in the directory of fatpath and in ../lib/fatpath;
    /// the environment variable FATPATH_PRELOAD replaces the path.
    Exec(ExecArgs),
    /// Run the system's `ip` on a gateway
    ///
    /// Same as `fatpath exec -- ip`: all further arguments are ip's.
    Ip(IpArgs),
    /// Carry out a gateway's orders on standard input, a socket, with capabilities that the gateway does not have
    #[command(hide = true)]
    Opener(OpenerArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the man pages into a directory
    Man(ManArgs),
}

/// Choice of a gateway, before the command or behind it.
#[derive(Args, Debug, Default)]
pub(crate) struct GatewayArg {
    /// Name of the gateway; if not given, that of FATPATH_INSTANCE in the environment, or `default`
    #[arg(short, long, value_name = "NAME", value_parser = instance_name, value_hint = ValueHint::Other)]
    instance: Option<String>,
}

impl Cli {
    /// Name of the gateway that the command is for; empty for a command without a gateway.
    ///
    /// # Errors
    /// Two different names are given, or one for a command without a gateway, or the environment has an invalid one.
    pub(crate) fn instance(&self) -> Result<String, CliError> {
        let before = self.gateway.instance.as_deref();
        let Some(behind) = self.command.as_ref().map_or(Some(None), Command::instance) else {
            return before.map_or(Ok(String::new()), |name| {
                Err(CliError::failed(format!("-i {name}: this command is about no gateway; leave it out.")))
            });
        };
        let named = match (before, behind) {
            (Some(before), Some(behind)) if before != behind => {
                return Err(CliError::failed(format!("-i {before} and -i {behind}: use one name.")));
            }
            (before, behind) => behind.or(before),
        };
        instance_or_default(named)
    }
}

impl Cli {
    /// Whether an option chooses the gateway.
    pub(crate) fn has_instance(&self) -> bool {
        let behind = self.command.as_ref().and_then(Command::instance).flatten();
        self.gateway.instance.is_some() || behind.is_some()
    }
}

impl Command {
    /// Name of a gateway behind the command, if one is given there. The outer `None`: the command is about no gateway.
    fn instance(&self) -> Option<Option<&str>> {
        let gateway = match self {
            Self::Run(args) => &args.gateway,
            Self::Load(args) => &args.gateway,
            Self::Save(args) => &args.gateway,
            Self::Show(args) => &args.gateway,
            Self::Status(args) => &args.gateway,
            Self::Capture(args) => &args.gateway,
            Self::Trace(args) => &args.gateway,
            Self::Monitor(args) => &args.gateway,
            Self::Exec(args) => &args.gateway,
            Self::Ip(args) => return Some(args.instance.as_deref()),
            Self::Check(_)
            | Self::Pair(_)
            | Self::Up(_)
            | Self::Down(_)
            | Self::Genkey(_)
            | Self::Doctor(_)
            | Self::Try
            | Self::Explain(_)
            | Self::Measure(_)
            | Self::See(_)
            | Self::Opener(_)
            | Self::Completions(_)
            | Self::Man(_) => return None,
        };
        Some(gateway.instance.as_deref())
    }
}

/// Configuration file without its option.
#[derive(Args, Debug)]
pub(crate) struct BareFile {
    #[arg(hide = true, value_name = "FILE", value_parser = bare_file)]
    bare: Option<PathBuf>,
}

/// Refuses a file without its option.
fn bare_file(word: &str) -> Result<PathBuf, String> {
    Err(format!("a file is named with -c: -c {word}"))
}

/// Parser of a kind of links.
fn link_right(word: &str) -> Result<LinkRight, String> {
    let found = LinkRight::ALL.into_iter().find(|right| right.word() == word);
    found.ok_or_else(|| {
        let words = LinkRight::ALL.map(LinkRight::word).join(", ");
        format!("no kind of links that takes privilege; these are {words}")
    })
}

/// Arguments of `opener`.
#[derive(Args, Debug)]
pub(crate) struct OpenerArgs {
    /// Subject of the orders
    #[arg(value_parser = opener_work)]
    pub(crate) work: OpenerWork,
}

/// Parser of the subject of an opener's orders.
fn opener_work(word: &str) -> Result<OpenerWork, String> {
    let found = OpenerWork::ALL.into_iter().find(|work| work.name() == word);
    found.ok_or_else(|| "neither links nor host-side".to_owned())
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    bare: BareFile,
    /// The configuration, TOML or lines for ip, `-` for standard input; without one the gateway starts empty
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Vec<PathBuf>,
    /// File of the state that is kept over a restart, or `none`; by default NAME.state in /var/lib/fatpath
    ///
    /// The state is restored at the start, and a missing file is created. For users other than root the default
    /// directory is $XDG_STATE_HOME/fatpath or ~/.local/state/fatpath. If FATPATH_RUNDIR is set, it is that directory.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) state: Option<PathBuf>,
    /// Replace the running gateway of this name: start with this configuration, and take over its links
    ///
    /// The running gateway forwards packets until this one has read and planned its configuration, and stops then as by SIGTERM.
    /// If this one fails before, the other goes on. Only the user of the running gateway, and root, may replace it.
    #[arg(long)]
    pub(crate) replace: bool,
    /// Leave no device behind: TUN and TAP devices end with the gateway
    #[arg(long)]
    pub(crate) ephemeral: bool,
    /// Kinds of links that a reload or a program may add, besides those of the configuration
    ///
    /// tun, tap, packet, exclusive (packet with that key), xdp, and udp, which stands for ports below 1024. Other kinds take
    /// no privilege, and may always be added. Without this option a gateway without a TOML file, or with lines for ip, may
    /// add all.
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = link_right)]
    pub(crate) allow_links: Vec<LinkRight>,
    /// User of a gateway that root starts, by name or number; `root` for none. By default fatpath, if this host has that user
    ///
    /// The gateway changes to it before it starts threads. Its openers, which open links, and read and make the gateway's files, stay root's.
    #[arg(long, value_name = "USER", conflicts_with = "no_sandbox")]
    pub(crate) user: Option<String>,
    /// Leave out the restrictions of the process, as for a core file of a fault
    ///
    /// `fatpath show sandbox` prints the restrictions that hold.
    #[arg(long)]
    pub(crate) no_sandbox: bool,
    #[command(flatten)]
    pub(crate) gateway: GatewayArg,
    /// Process that started this gateway for itself; the gateway ends with it
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) parent: Option<i32>,
}

impl RunArgs {
    /// Options of the gateway.
    pub(crate) fn options(&self) -> RunOptions {
        RunOptions {
            replaces: self.replace,
            keeps_devices: !self.ephemeral,
            is_confined: !self.no_sandbox,
            allowed_links: self.allow_links.clone(),
            user: self.user.clone(),
        }
    }

    /// Place of the state.
    pub(crate) fn state_place(&self) -> StatePlace<'_> {
        match self.state.as_deref() {
            None => StatePlace::Default,
            Some(file) if file == "none" => StatePlace::None,
            Some(file) => StatePlace::File(file),
        }
    }
}

/// Arguments of `pair`.
#[derive(Args, Debug)]
pub(crate) struct PairArgs {
    /// Name of the tunnel, its gateway and its TUN device
    #[arg(value_name = "NAME", value_parser = instance_name)]
    pub(crate) name: String,
    /// Line of the other end
    #[arg(value_name = "LINE")]
    pub(crate) line: Option<String>,
    /// Network behind this end, as 10.1.0.0/24; may be repeated
    #[arg(long, value_name = "NETWORK", value_hint = ValueHint::Other)]
    pub(crate) net: Vec<Prefix>,
    /// Address of this end that the peer reaches; by default that of the route to the peer
    #[arg(long, value_name = "ADDRESS", value_hint = ValueHint::Other)]
    pub(crate) endpoint: Option<IpAddr>,
}

/// Arguments of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Address of a peer
    #[arg(value_name = "PEER", value_hint = ValueHint::Hostname)]
    pub(crate) peer: Option<IpAddr>,
}

/// Arguments of `up`.
#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    /// Name of the gateway
    #[arg(value_name = "NAME", value_parser = instance_name)]
    pub(crate) name: String,
}

/// Arguments of `down`.
#[derive(Args, Debug)]
pub(crate) struct DownArgs {
    /// Name of the gateway
    #[arg(value_name = "NAME", value_parser = instance_name)]
    pub(crate) name: String,
}

/// Arguments of `save`.
#[derive(Args, Debug)]
pub(crate) struct SaveArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArg,
}

/// Arguments of `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    bare: BareFile,
    /// Print the file with each `[[tunnel]]` replaced by the tables that it stands for, without keys
    #[arg(long)]
    pub(crate) expand: bool,
    /// Print the keys, too: a file without them is refused
    #[arg(long, requires = "expand")]
    pub(crate) with_keys: bool,
    /// Check that this version can read a state and its journal, also that of a running gateway
    #[arg(long, value_name = "FILE", conflicts_with = "expand", value_hint = ValueHint::FilePath)]
    pub(crate) state: Option<PathBuf>,
    /// The configuration, TOML or lines for ip, `-` for standard input
    #[arg(short, long, value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) config: Vec<PathBuf>,
}

/// Arguments of `genkey`.
#[derive(Args, Debug)]
pub(crate) struct GenkeyArgs {
    /// Algorithm of the key, as in the file
    #[arg(long, value_name = "NAME", default_value = "rfc4106(gcm(aes))", value_parser = super::genkey::key_len)]
    pub(crate) cipher: usize,
}

/// Arguments of `load`.
#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    bare: BareFile,
    /// The configuration
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) gateway: GatewayArg,
}

/// Arguments of `status`.
#[derive(Args, Debug, Default)]
pub(crate) struct StatusArgs {
    /// Print JSON
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Print the status again and again, each time after so many seconds
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) watch: Option<u16>,
    #[command(flatten)]
    gateway: GatewayArg,
}

impl StatusArgs {
    /// Arguments that print one status.
    pub(crate) fn once(json: bool) -> Self {
        Self { json, ..Self::default() }
    }
}

/// Arguments of `show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// State to show; status without one
    #[arg(value_name = "WHAT", value_parser = ShowWhatParser)]
    pub(crate) what: Option<ShowWhat>,
    /// Print JSON
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Print counters that are zero as well
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Print sums of SAs by addresses, reqid and direction, which rekeys do not lower, and policies without an SA; with sa
    #[arg(long)]
    pub(crate) sums: bool,
    #[command(flatten)]
    pub(crate) gateway: GatewayArg,
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
    /// Packet workers: how busy each is, and the packets that they hand to each other
    Workers,
    /// Numbers of entries, budgets, queues and workers, at a cost that no table raises
    Summary,
    /// Memory: its limit, and use by tables, queues and pools
    Memory,
    /// Sandbox: restrictions of the gateway's process, and those that this kernel lacks
    Sandbox,
}

impl From<ShowWhat> for Request {
    fn from(what: ShowWhat) -> Self {
        let what = match what {
            ShowWhat::Links => StateKind::Links,
            ShowWhat::Routes => StateKind::Routes,
            ShowWhat::Neighbours => StateKind::Neighbours,
            ShowWhat::Fdb => StateKind::Fdb,
            ShowWhat::Pmtus => StateKind::Pmtus,
            ShowWhat::Sa => StateKind::Sa,
            ShowWhat::Policies => StateKind::Policies,
            ShowWhat::Counters => StateKind::Counters,
            ShowWhat::Drops => StateKind::Drops,
            ShowWhat::Fragments => StateKind::Fragments,
            ShowWhat::Ila => StateKind::Ila,
            ShowWhat::Flows => StateKind::Flows,
            ShowWhat::Workers => StateKind::Workers,
            ShowWhat::Summary => StateKind::Summary,
            ShowWhat::Memory => StateKind::Memory,
            ShowWhat::Sandbox => StateKind::Sandbox,
            ShowWhat::Host => return Self::ShowHost,
        };
        Self::Show { what }
    }
}

/// Parser of states, which suggests one for the names that other programs use.
#[derive(Clone, Debug)]
struct ShowWhatParser;

impl TypedValueParser for ShowWhatParser {
    type Value = ShowWhat;

    fn parse_ref(&self, cmd: &clap::Command, arg: Option<&Arg>, value: &OsStr) -> Result<ShowWhat, clap::Error> {
        EnumValueParser::new().parse_ref(cmd, arg, value).map_err(|mut err: clap::Error| {
            if let Some(near) = value.to_str().and_then(near) {
                err.insert(ContextKind::SuggestedValue, ContextValue::String(near.to_owned()));
            }
            err
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(ShowWhat::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

/// State that a word of other programs means.
fn near(word: &str) -> Option<&'static str> {
    let words: &[(&str, &[&str])] = &[
        ("links", &["link", "interface", "interfaces", "device", "devices", "addr", "address", "addresses"]),
        ("routes", &["route", "routing", "fib"]),
        ("neighbours", &["neighbour", "neighbor", "neighbors", "neigh", "arp", "nd"]),
        ("fdb", &["bridge", "mac", "macs"]),
        ("pmtus", &["pmtu", "mtu", "mtus"]),
        ("sa", &["sas", "sad", "spi", "state", "states", "xfrm", "ipsec", "esp"]),
        ("policies", &["policy", "spd"]),
        ("counters", &["counter", "stats", "statistics", "snmp"]),
        ("drops", &["drop", "dropped", "errors"]),
        ("fragments", &["fragment", "frags", "reassembly"]),
        ("host", &["namespace", "netns"]),
        ("ila", &["mapping", "mappings"]),
        ("flows", &["flow", "socket", "sockets"]),
        ("sandbox", &["seccomp", "landlock", "capabilities", "confinement"]),
        ("memory", &["mem", "limits", "limit", "budget", "pools"]),
    ];
    let word = word.to_ascii_lowercase();
    words.iter().find(|(_, words)| words.contains(&word.as_str())).map(|(what, _)| *what)
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
    #[command(flatten)]
    pub(crate) gateway: GatewayArg,
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
    /// Print the packet's geometry at each step
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) gateway: GatewayArg,
}

/// Arguments of `monitor`.
#[derive(Args, Debug)]
pub(crate) struct MonitorArgs {
    /// Print dropped packets
    #[arg(long)]
    pub(crate) drops: bool,
    /// One JSON object per event
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) gateway: GatewayArg,
}

/// Arguments of `exec`.
#[derive(Args, Debug)]
pub(crate) struct ExecArgs {
    /// Start a gateway with this configuration first, and end it after the program
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) gateway: GatewayArg,
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
    /// Name of the gateway; comes before ip's own options, or as -i before `ip`
    #[arg(long, value_name = "NAME", value_parser = instance_name, value_hint = ValueHint::Other)]
    instance: Option<String>,
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
