//! `fatpath demo`, `fatpath bench` and `fatpath plot`: command lines that `fatpath` documents and checks, and `fatpath-bench` executes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

/// Commands of `fatpath-bench`, which `fatpath` has, too.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure plain veth against fatpath thin and fat, end to end
    ///
    /// Two network namespaces are connected by a 1500-byte veth wire and a gateway is started in each, with AES-256-GCM
    /// ESP between them. One kernel TCP stream is then measured in three ways in alternating rounds: over plain veth,
    /// through fatpath with all offloads off (thin), and through fatpath with its default offloads (fat). Namespaces
    /// and gateways are removed afterwards.
    ///
    /// Without root, all of it is in a user namespace; where /dev/net/tun does not open, the gateways are routers, as with
    /// --router, and the result says so. Other cases than the one stream need /dev/net/tun.
    ///
    /// Standard error says how far the demo is, unless the result is JSON.
    Demo(DemoArgs),
    /// Measure one mechanism, with and without it, in memory
    ///
    /// Packets go through gateways in this process, over links in memory: no device, no kernel, no privilege. The cases
    /// of a group are measured in turns, so that a disturbance of the machine affects all of them, and ratios are
    /// computed per round. An upper limit is measured, too: the cipher alone on the same bytes.
    ///
    /// The measurement stays on one processor, with a thread on another in some cases, and runs at real-time priority
    /// if permitted: do not run it on a machine whose gateway is in use.
    ///
    /// Standard error says how far the benchmark is, unless the result is JSON.
    Bench(BenchArgs),
    /// Draw the result of a demo or a benchmark as a bar chart
    ///
    /// The input is the output of `fatpath demo --json` or `fatpath bench --json`; the chart is SVG, with colours for
    /// light and dark pages, and has a bar for the throughput of each case.
    Plot(PlotArgs),
}

/// Arguments of `plot`.
#[derive(Args, Debug)]
pub struct PlotArgs {
    /// The result; - for standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// File to write; standard output if not given
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Heading
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
}

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Print the result as JSON
    #[arg(short, long)]
    pub json: bool,
    /// Duration of each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Number of measurements of each case
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Four namespaces: host, gateway, gateway, host; with the links owned by the gateways, and raw ESP
    #[arg(long)]
    pub router: bool,
    /// Measure others as well, where there are any: wireguard-go, boringtun, strongSwan and the kernel's own ESP; with
    /// --switch Open vSwitch
    #[arg(long, conflicts_with = "router")]
    pub peers: bool,
    /// Send UDP datagrams of 65473 bytes between the gateways' own sockets instead of TCP
    ///
    /// The datagrams are encrypted by ESP in transport mode over IPv6 and then fragmented, with AES-128-GCM and 96 bits
    /// of ICV (s0) and AES-256-GCM; fragmented within a tunnel of ESP in UDP (tunnel); and received by a ring of 256
    /// frames, with fragments coalesced and not (ring-256).
    #[arg(long, conflicts_with_all = ["iperf3", "router", "peers"])]
    pub udp_fragments: bool,
    /// Send the stream from one guest of a bridge to another instead
    ///
    /// Guests are namespaces with a TAP device each. The stream goes through a bridge with all offloads off (thin) and
    /// with large send (fat), through a loop that only moves packets between the devices (bare), and through a tunnel
    /// behind the bridge's device (esp).
    #[arg(long, conflicts_with_all = ["router", "udp_fragments", "storm"])]
    pub switch: bool,
    /// Measure the limit of a tunnel in user space as well
    ///
    /// Two loops read a TUN device, encrypt pieces of 1400 bytes with AES-256-GCM, and send them as one train; and receive,
    /// decrypt and write, without a datapath (bare). The ratio of processor times says what fatpath needs beyond that.
    #[arg(long, conflicts_with_all = ["router", "udp_fragments", "switch", "storm"])]
    pub bare: bool,
    /// Count transactions of CONNECTIONS TCP connections instead, one byte each way; 200 by default
    ///
    /// The connections are between the gateways' own sockets. Their packets have their own addresses (none), or ILA
    /// addresses that are translated back by a route (lwt), or by a mapping before early demux (hook).
    #[arg(long, value_name = "CONNECTIONS", num_args = 0..=1, default_missing_value = "200",
          value_parser = clap::value_parser!(u16).range(1..=1000),
          conflicts_with_all = ["iperf3", "router", "peers", "udp_fragments", "storm", "switch", "bare"])]
    pub rr: Option<u16>,
    /// Measure the tunnel with and without CHANGES changes of routes and SAs a second at the same time; 1000 by default
    ///
    /// At each gateway, the system's `ip` adds and deletes routes and SAs, an equal number of each. Short streams and
    /// many rounds give the best results.
    #[arg(long, value_name = "CHANGES", num_args = 0..=1, default_missing_value = "1000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with_all = ["peers", "udp_fragments"])]
    pub storm: Option<u32>,
    /// Measure with iperf3 instead of the built-in sender and receiver
    #[arg(long)]
    pub iperf3: bool,
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Mechanism to measure
    #[arg(value_name = "NAME")]
    pub name: BenchName,
    /// Print the result as JSON
    #[arg(short, long)]
    pub json: bool,
    /// Number of measurements of each case
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Duration of a case in each round
    #[arg(long, value_name = "MS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    slice: u32,
    /// Only cases with this in their names, as in tx/tunnel
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
}

impl BenchArgs {
    /// Duration of a case in each round.
    pub fn slice(&self) -> Duration {
        Duration::from_millis(self.slice.into())
    }
}

/// Mechanisms for `fatpath bench`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum BenchName {
    /// ESP: encryption and decryption, fat or packet by packet
    Esp,
    /// Forwarding: packets of 64 bytes through a gateway, over TUN, packet sockets, AF_XDP and vhost-user, with ESP, and by
    /// Linux; needs root, of a user namespace at least
    Forward,
    /// ILA: 200 request/response streams, with and without translation of the destination by a hook
    Ila,
    /// vhost-user: frames from a front end to a back end in another process, compared with copies of the same size
    Vhost,
    /// VRF: transactions of sockets in a VRF, with and without a queueing discipline, and without a VRF
    Vrf,
    /// Trunk adapter: TCP between guests and the wire through a model of virtual Ethernet adapters, with and without
    /// large send
    Trunk,
    /// Reassembly: large datagrams through small receive rings, fragments in any order, floods beside a good flow
    Reassembly,
    /// Shards: work of two threads with a gateway each, on a processor each, compared with one
    Shards,
    /// Workers: processor time of a small packet on one of two workers, from TUN through ESP to UDP, compared with a gateway of
    /// one; needs root, of a user namespace at least
    Workers,
}
