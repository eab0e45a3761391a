//! The control socket's protocol: one JSON request per line, one JSON reply per line, on a Unix stream socket.
//!
//! A client may send any number of `ping` and `show` requests on one connection. After a `capture` that was answered
//! with [`Reply::Capturing`] the connection carries one pcapng file from the daemon to the client and nothing else;
//! it ends when either side closes. So it is after a `monitor` with [`Event`](crate::event::Event)s, and after a `trace`.

use serde::{Deserialize, Serialize};

use crate::state::{
    CountersState, DropState, FdbState, FlowState, FragmentsState, HostState, IlaState, LinkState, NeighbourState,
    PmtuState, PolicyState, RouteState, SaState,
};

/// The longest line that either side has to accept, in bytes without the newline, of a request.
pub const MAX_REQUEST_LEN: usize = 4096;

/// Request of a client.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Request that is only answered.
    Ping,
    /// Show one kind of thing.
    Show {
        /// State that is shown.
        what: What,
    },
    /// Show the network namespace of the node's own.
    ShowHost,
    /// Become what a configuration file says, as a whole or not at all.
    Load {
        /// The file's absolute path, as the daemon finds it.
        file: String,
    },
    /// Keep what programs have set, over a restart.
    Save,
    /// Send descriptors of the node's own network namespace, by which the client can enter it: with the reply, as `SCM_RIGHTS`,
    /// that of the user namespace around it, if there is one, and then its own.
    EnterHost,
    /// Give a file of counters, as one of that name in `/proc/net` would be.
    StatFile {
        /// See [`procfs`](crate::procfs).
        name: String,
    },
    /// Tell what happens to SAs and policies.
    Monitor,
    /// Send a copy of each packet of a link, as pcapng.
    Capture {
        /// The link's name.
        link: String,
        /// After GRO and before segmentation: fat packets, instead of what the wire sees.
        after_gro: bool,
    },
    /// Send the stages that chosen packets pass.
    Trace {
        /// Filter; the empty one chooses every packet.
        filter: String,
        /// Most packets.
        packets: u32,
    },
}

/// State that can be shown.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Links with their offloads and statistics.
    Links,
    /// The routing tables.
    Routes,
    /// Neighbours on Ethernet links.
    Neighbours,
    /// Forwarding databases of bridges.
    Fdb,
    /// MTUs of paths beyond their first link, as reported by ICMP.
    Pmtus,
    /// Security associations.
    Sa,
    /// Security policies.
    Policies,
    /// Counters.
    Counters,
    /// Dropped packets.
    Drops,
    /// Fragments that wait for others of their datagrams.
    Fragments,
    /// ILA mappings.
    Ila,
    /// Flows of the host side's sockets.
    Flows,
}

/// Answer of the daemon.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// To `ping`.
    Pong {
        /// The daemon's version.
        version: String,
        /// Process id.
        pid: u32,
    },
    /// To `show` and `show-host`.
    Show {
        /// Requested state.
        shown: Shown,
    },
    /// To `load`: it is done.
    Loaded {
        /// Description of what runs now, in a few words.
        running: String,
    },
    /// To `save`: it is done.
    Saved {
        /// Description of what was saved, and where, in a few words.
        saved: String,
    },
    /// To `enter-host`.
    EnterHost {
        /// Descriptors that come with it; 0 if the node is to have no namespace of its own.
        descriptors: u8,
        /// Reason for which there is none, though there is to be one.
        why_not: Option<String>,
    },
    /// To `stat-file`.
    StatFile {
        /// Contents.
        text: String,
    },
    /// To `monitor`: events follow, one JSON line each.
    Monitoring,
    /// To `capture`: a pcapng file follows.
    Capturing,
    /// To `trace`: [`PacketTrace`](crate::trace::PacketTrace)s follow, one JSON line each.
    Tracing,
    /// The request was refused.
    Error {
        /// Reason, in one line.
        message: String,
    },
}

/// One kind of thing, as it was at one moment.
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
    /// Policies.
    Policies(Vec<PolicyState>),
    /// Counters.
    Counters(CountersState),
    /// Drops.
    Drops(Vec<DropState>),
    /// Fragments.
    Fragments(Vec<FragmentsState>),
    /// The network namespace of the node's own.
    Host(HostState),
    /// ILA mappings.
    Ila(Vec<IlaState>),
    /// Flows of the host side's sockets.
    Flows(Vec<FlowState>),
}

impl Request {
    /// Reads one line.
    ///
    /// # Errors
    /// A line that says what the daemon does not understand; send it back as [`Reply::Error`].
    pub fn from_line(line: &str) -> Result<Self, String> {
        if line.len() > MAX_REQUEST_LEN {
            return Err(format!("a request has at most {MAX_REQUEST_LEN} bytes"));
        }
        serde_json::from_str(line).map_err(|err| format!("request not understood: {err}"))
    }

    /// The request as one line, with its newline.
    pub fn to_line(&self) -> String {
        line(self)
    }
}

impl Reply {
    /// Reads one line.
    ///
    /// # Errors
    /// If it is no reply of this version.
    pub fn from_line(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|err| format!("reply not understood: {err}"))
    }

    /// The reply as one line, with its newline.
    pub fn to_line(&self) -> String {
        line(self)
    }
}

impl Shown {
    /// The same without the name around it, for `--json`.
    pub fn to_json(&self) -> String {
        match self {
            Self::Links(it) => json(it),
            Self::Routes(it) => json(it),
            Self::Neighbours(it) => json(it),
            Self::Fdb(it) => json(it),
            Self::Pmtus(it) => json(it),
            Self::Sa(it) => json(it),
            Self::Policies(it) => json(it),
            Self::Counters(it) => json(it),
            Self::Drops(it) => json(it),
            Self::Fragments(it) => json(it),
            Self::Host(it) => json(it),
            Self::Ila(it) => json(it),
            Self::Flows(it) => json(it),
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
            (Request::Show { what: What::Neighbours }, r#"{"request":"show","what":"neighbours"}"#),
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
