//! The control socket's protocol: one JSON request per line, one JSON reply per line, on a Unix stream socket.
//!
//! A client may send any number of `ping` and `show` requests on one connection. After the reply [`Reply::Capturing`]
//! to a `capture`, the connection carries only one pcapng file from the daemon to the client; it ends when either side
//! closes. The same applies to `monitor` with [`Event`](crate::event::Event)s, and to `trace`.
//!
//! A view socket has the same protocol, without the requests that [do more than look](Request::only_looks).

use serde::{Deserialize, Serialize};

use crate::state::{
    CountersState, DropState, FdbState, FlowState, FragmentsState, HostState, IlaState, LinkState, MemoryState,
    NeighbourState, PmtuState, PolicyState, RouteState, SaState, SaSumsState, SandboxState, SummaryState, WorkerState,
};

/// Maximum length of a request's line that either side must accept, in bytes without the newline.
pub const MAX_REQUEST_LEN: usize = 4096;

/// Limit of rows of a table that a view socket shows.
pub const VIEW_ROWS: usize = 1 << 15;

/// Request of a client.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Request without effect.
    Ping,
    /// Show one kind of state.
    Show {
        /// State to show.
        what: StateKind,
    },
    /// Show the host side, the node's own network namespace.
    ShowHost,
    /// Apply a configuration file, as a whole or not at all. A descriptor with the request, as `SCM_RIGHTS`, is the file;
    /// without one the daemon opens it.
    Load {
        /// Absolute path of the file for the daemon, which a reload reads.
        file: String,
        /// Whether [`Reply::Loading`] precedes the reply of a long load, again and again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        progress: bool,
    },
    /// Save the state that clients have set, for the next start.
    Save,
    /// Hand over to a gateway that starts. A descriptor with the request, as `SCM_RIGHTS`, is a socket of sequenced packets for the messages
    /// of the hand-over, which both gateways know.
    Replace {
        /// Number of the format of these messages.
        format: u32,
    },
    /// Send descriptors with which the client can enter the node's own network namespace: with the reply, as
    /// `SCM_RIGHTS`, the user namespace, if any, and then the network namespace.
    EnterHost,
    /// Send a file of counters, in the format of the file of that name in `/proc/net`.
    StatFile {
        /// See [`procfs`](crate::procfs).
        name: String,
    },
    /// Send events of SAs, policies and links.
    Monitor,
    /// Send a report of each dropped packet, limited in rate.
    MonitorDrops,
    /// Send a copy of each packet of a link, as pcapng.
    Capture {
        /// Name of the link.
        link: String,
        /// After GRO and before segmentation: fat packets, instead of wire packets.
        after_gro: bool,
    },
    /// Send the stages that selected packets pass.
    Trace {
        /// Filter; the empty one selects every packet.
        filter: String,
        /// Maximum number of packets.
        packets: u32,
    },
}

/// Stages of a load.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadStage {
    /// The gateway has other work.
    Waiting,
    /// The file is read and checked.
    Reading,
    /// Links are opened, and routes, SAs and policies are prepared.
    Planning,
    /// The workers take over the configuration.
    Applying,
    /// Netlink clients get the configuration, and the state is written.
    Publishing,
}

/// Kinds of state.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateKind {
    /// Links with their offloads and statistics.
    Links,
    /// Routing tables.
    Routes,
    /// Neighbours on Ethernet links.
    Neighbours,
    /// Forwarding databases of bridges.
    Fdb,
    /// Path MTUs learned from ICMP.
    Pmtus,
    /// Security associations.
    Sa,
    /// Sums of security associations over rekeys, and policies that need one.
    SaSums,
    /// Security policies.
    Policies,
    /// Counters.
    Counters,
    /// Dropped packets.
    Drops,
    /// Fragments in reassembly.
    Fragments,
    /// ILA mappings.
    Ila,
    /// Flows of the host side's sockets.
    Flows,
    /// Packet workers.
    Workers,
    /// Numbers, sums and budgets, at a cost that no table raises.
    Summary,
    /// Memory: its limit, and use by tables, queues and pools.
    Memory,
    /// Restrictions of the gateway's process.
    Sandbox,
}

/// Reply of the daemon.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// Reply to `ping`.
    Pong {
        /// Version of the daemon.
        version: String,
        /// Process id.
        pid: u32,
    },
    /// Reply to `show` and `show-host`.
    Show {
        /// Requested state.
        shown: Shown,
    },
    /// Not yet the reply to `load`.
    Loading {
        /// Stage of the load.
        stage: LoadStage,
        /// Bytes of the file that are read.
        read: u64,
        /// Length of the file.
        len: u64,
    },
    /// Reply to `load`: success.
    Loaded {
        /// Short description of the running configuration.
        running: String,
    },
    /// Reply to `save`: success.
    Saved {
        /// Short description of the saved objects, and the file.
        saved: String,
    },
    /// Reply to `replace`: the messages of the hand-over begin, on the socket that came with the request.
    Replacing {
        /// Process id.
        pid: u32,
        /// Number of workers.
        workers: u8,
        /// Absolute path of the gateway's state; none if it keeps none.
        state: Option<String>,
    },
    /// Reply to `enter-host`.
    EnterHost {
        /// Number of descriptors with the reply; 0 if the node has no host side.
        descriptors: u8,
        /// Reason why a configured host side does not exist.
        why_not: Option<String>,
    },
    /// Reply to `stat-file`.
    StatFile {
        /// Contents.
        text: String,
    },
    /// Reply to `monitor` and `monitor-drops`: events follow, one JSON line each.
    Monitoring,
    /// Reply to `capture`: a pcapng file follows.
    Capturing,
    /// Reply to `trace`: [`PacketTrace`](crate::trace::PacketTrace)s follow, one JSON line each.
    Tracing,
    /// The request was refused.
    Error {
        /// Reason, in one line.
        message: String,
    },
}

/// One kind of state, as a snapshot.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shown {
    /// Links.
    Links(Vec<LinkState>),
    /// Routes.
    Routes(Vec<RouteState>),
    /// Neighbours.
    Neighbours(Vec<NeighbourState>),
    /// Forwarding databases of bridges.
    Fdb(Vec<FdbState>),
    /// Path MTUs.
    Pmtus(Vec<PmtuState>),
    /// Security associations.
    Sa(Vec<SaState>),
    /// Sums of security associations.
    SaSums(SaSumsState),
    /// Policies.
    Policies(Vec<PolicyState>),
    /// Counters.
    Counters(CountersState),
    /// Drops.
    Drops(Vec<DropState>),
    /// Fragments.
    Fragments(Vec<FragmentsState>),
    /// Host side: the node's own network namespace.
    Host(HostState),
    /// ILA mappings.
    Ila(Vec<IlaState>),
    /// Flows of the host side's sockets.
    Flows(Vec<FlowState>),
    /// Packet workers.
    Workers(Vec<WorkerState>),
    /// Numbers, sums and budgets.
    Summary(Box<SummaryState>),
    /// Memory.
    Memory(MemoryState),
    /// Restrictions of the gateway's process.
    Sandbox(SandboxState),
}

impl Request {
    /// Parses one line.
    ///
    /// # Errors
    /// Text for a [`Reply::Error`], if the line is no valid request.
    pub fn from_line(line: &str) -> Result<Self, String> {
        if line.len() > MAX_REQUEST_LEN {
            return Err(format!("a request has at most {MAX_REQUEST_LEN} bytes"));
        }
        serde_json::from_str(line).map_err(|err| format!("request not understood: {err}"))
    }

    /// Serialises the request as one line, with its newline.
    pub fn to_line(&self) -> String {
        line(self)
    }

    /// Decides whether the request shows state and changes none, nor the content of packets: the requests of a view socket.
    ///
    /// # Errors
    /// Name of another request.
    pub const fn only_looks(&self) -> Result<(), &'static str> {
        match self {
            Self::Ping
            | Self::Show { .. }
            | Self::ShowHost
            | Self::StatFile { .. }
            | Self::Monitor
            | Self::MonitorDrops
            | Self::Trace { .. } => Ok(()),
            Self::Load { .. } => Err("load"),
            Self::Save => Err("save"),
            Self::Replace { .. } => Err("replace"),
            Self::EnterHost => Err("enter-host"),
            Self::Capture { .. } => Err("capture"),
        }
    }
}

impl Reply {
    /// Parses one line.
    ///
    /// # Errors
    /// The line is no reply of this version.
    pub fn from_line(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|err| format!("reply not understood: {err}"))
    }

    /// Serialises the reply as one line, with its newline.
    pub fn to_line(&self) -> String {
        line(self)
    }
}

impl Shown {
    /// Serialises the state without the name of its kind, for `--json`.
    pub fn to_json(&self) -> String {
        match self {
            Self::Links(it) => json(it),
            Self::Routes(it) => json(it),
            Self::Neighbours(it) => json(it),
            Self::Fdb(it) => json(it),
            Self::Pmtus(it) => json(it),
            Self::Sa(it) => json(it),
            Self::SaSums(it) => json(it),
            Self::Policies(it) => json(it),
            Self::Counters(it) => json(it),
            Self::Drops(it) => json(it),
            Self::Fragments(it) => json(it),
            Self::Host(it) => json(it),
            Self::Ila(it) => json(it),
            Self::Flows(it) => json(it),
            Self::Workers(it) => json(it),
            Self::Summary(it) => json(it),
            Self::Memory(it) => json(it),
            Self::Sandbox(it) => json(it),
        }
    }
}

pub(crate) fn line(value: &impl Serialize) -> String {
    json(value) + "\n"
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain values with text keys always serialise")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_of_json() {
        let cases = [
            (Request::Ping, r#"{"request":"ping"}"#),
            (Request::Load { file: "/f".to_owned(), progress: false }, r#"{"request":"load","file":"/f"}"#),
            (
                Request::Load { file: "/f".to_owned(), progress: true },
                r#"{"request":"load","file":"/f","progress":true}"#,
            ),
            (Request::Show { what: StateKind::Neighbours }, r#"{"request":"show","what":"neighbours"}"#),
            (
                Request::Capture { link: "wan".to_owned(), after_gro: true },
                r#"{"request":"capture","link":"wan","after_gro":true}"#,
            ),
        ];
        for (request, line) in cases {
            assert_eq!(request.to_line(), format!("{line}\n"));
            assert_eq!(Request::from_line(line), Ok(request));
        }
    }

    #[test]
    fn request_that_does_more_than_look_is_named_as_in_its_line() {
        let capture = Request::Capture { link: "wan".to_owned(), after_gro: false };
        let load = Request::Load { file: "/f".to_owned(), progress: false };
        for request in [load, Request::Save, Request::Replace { format: 1 }, Request::EnterHost, capture] {
            let name = request.only_looks().unwrap_err();
            assert!(request.to_line().starts_with(&format!(r#"{{"request":"{name}""#)), "{name}: {request:?}");
        }
        assert_eq!(Request::Trace { filter: String::new(), packets: 1 }.only_looks(), Ok(()));
    }

    #[test]
    fn line_that_is_no_request_is_refused_with_a_reason() {
        let long = format!(r#"{{"request":"ping"}}{}"#, " ".repeat(MAX_REQUEST_LEN));
        for line in ["", "ping", "{}", r#"{"request":"show"}"#, r#"{"request":"show","what":"all"}"#, "[[[[", &long] {
            let err = Request::from_line(line).unwrap_err();
            assert!(!err.is_empty() && !err.contains('\n'), "{line}: {err}");
        }
    }

    #[test]
    fn a_reply_comes_back_equal() {
        let drops = vec![DropState { link: Some("wan".to_owned()), reason: "EspReplay".to_owned(), count: 3 }];
        let reply = Reply::Show { shown: Shown::Drops(drops) };
        let line = reply.to_line();
        assert_eq!(
            line,
            "{\"reply\":\"show\",\"shown\":{\"drops\":[{\"link\":\"wan\",\"reason\":\"EspReplay\",\"count\":3}]}}\n"
        );
        assert_eq!(Reply::from_line(&line), Ok(reply));
    }
}
