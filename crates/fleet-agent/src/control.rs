//! The agent's socket: one request and one reply a connection, as a line of JSON each.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use client::CliError;
use fleet::{Refusal, Status};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::etcd::MemberStatus;

/// Longest time of a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest request.
const MAX_REQUEST: u64 = 64;

/// Request for the agent.
#[derive(Debug)]
pub(crate) enum ControlRequest {
    Status(oneshot::Sender<Report>),
    Approve(oneshot::Sender<()>),
}

/// State of the agent.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) status: Status,
    pub(crate) refused: Vec<(String, Refusal)>,
    /// VRFs that the gateway does not have.
    pub(crate) missing_vrfs: Vec<String>,
    pub(crate) member: Option<String>,
    /// Reason for which no member is connected.
    pub(crate) failure: Option<String>,
    /// Reason for which the store refuses this node's keys.
    pub(crate) denied: Option<String>,
    pub(crate) has_gateway: bool,
    /// Time since the store's last answer.
    pub(crate) answer_age: Option<Duration>,
    /// Revision up to which the agent has all changes.
    pub(crate) synced: u64,
    pub(crate) member_status: Option<MemberStatus>,
    pub(crate) quota_bytes: u64,
}

/// Report as it is sent.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct ReportText {
    pub(crate) member: Option<String>,
    pub(crate) failure: Option<String>,
    pub(crate) denied: Option<String>,
    pub(crate) answer_age_ms: Option<u64>,
    /// Revisions of the store that have not arrived.
    pub(crate) behind: Option<u64>,
    pub(crate) store_bytes: Option<u64>,
    pub(crate) store_quota_bytes: u64,
    pub(crate) store_errors: Vec<String>,
    pub(crate) gateway: bool,
    pub(crate) revision: u64,
    pub(crate) tasks: usize,
    pub(crate) nodes: usize,
    pub(crate) networks: usize,
    pub(crate) missing_vrfs: Vec<String>,
    pub(crate) mappings: usize,
    pub(crate) routes: usize,
    pub(crate) withdrawals: usize,
    pub(crate) held: Option<String>,
    pub(crate) held_by: Option<String>,
    pub(crate) refused_by_gateway: usize,
    /// Number of the objects that are left alone, for each reason.
    pub(crate) refused_objects: BTreeMap<String, usize>,
    pub(crate) refused: BTreeMap<String, String>,
}

/// Share of the quota, in per cent, from which on the size of the store is a warning.
pub(crate) const FULL_PERCENT: u64 = 80;

/// Share of its quota that a store takes, in per cent.
pub(crate) const fn percent_of(bytes: u64, quota_bytes: u64) -> u64 {
    (bytes as u128 * 100 / quota_bytes as u128) as u64
}

impl From<Report> for ReportText {
    fn from(report: Report) -> Self {
        let Report {
            status,
            refused,
            missing_vrfs,
            member,
            failure,
            denied,
            has_gateway,
            answer_age,
            synced,
            member_status,
            quota_bytes,
        } = report;
        let of_reasons = status.refused.iter();
        Self {
            member,
            failure,
            denied,
            answer_age_ms: answer_age.map(|age| age.as_millis() as u64),
            behind: member_status.as_ref().map(|it| it.revision.saturating_sub(synced.max(status.revision))),
            store_bytes: member_status.as_ref().map(|it| it.db_bytes),
            store_quota_bytes: quota_bytes,
            store_errors: member_status.map(|it| it.errors).unwrap_or_default(),
            held_by: status.hold.map(|hold| hold.name().to_owned()),
            refused_objects: of_reasons.map(|(refusal, count)| (refusal.name().to_owned(), *count)).collect(),
            gateway: has_gateway,
            revision: status.revision,
            tasks: status.tasks,
            nodes: status.nodes,
            networks: status.networks,
            missing_vrfs,
            mappings: status.mappings,
            routes: status.routes,
            withdrawals: status.withdrawals,
            held: status.hold.map(|hold| hold.to_string()),
            refused_by_gateway: status.refused_by_gateway,
            refused: refused.into_iter().map(|(key, refusal)| (key, refusal.to_string())).collect(),
        }
    }
}

/// Listens at the socket of an instance's agent, which this user alone may use.
///
/// # Errors
/// The socket cannot be made.
pub(crate) fn listen(instance: &str) -> Result<mpsc::Receiver<ControlRequest>, CliError> {
    let path = socket_of(instance);
    let failed = |err: io::Error| CliError::system(&path.display().to_string(), &err);
    // The state's file is this agent's, so a socket that is there is no other agent's.
    match fs::remove_file(&path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(failed(err)),
        _ => {}
    }
    let listener = UnixListener::bind(&path).map_err(failed)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let (requests, of_agent) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let requests = requests.clone();
            tokio::spawn(async move {
                let _ = timeout(PATIENCE, serve(stream, requests)).await;
            });
        }
    });
    Ok(of_agent)
}

async fn serve(stream: tokio::net::UnixStream, requests: mpsc::Sender<ControlRequest>) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    tokio::io::BufReader::new(read.take(MAX_REQUEST)).read_line(&mut line).await?;
    let gone = || io::Error::other("the agent has ended");
    let mut answer = match line.trim() {
        "status" => {
            let (to, from) = oneshot::channel();
            requests.send(ControlRequest::Status(to)).await.map_err(|_| gone())?;
            serde_json::to_vec(&ReportText::from(from.await.map_err(|_| gone())?))?
        }
        "approve" => {
            let (to, from) = oneshot::channel();
            requests.send(ControlRequest::Approve(to)).await.map_err(|_| gone())?;
            from.await.map_err(|_| gone())?;
            b"{}".to_vec()
        }
        _ => b"{\"error\":\"unknown request\"}".to_vec(),
    };
    answer.push(b'\n');
    write.write_all(&answer).await
}

/// Sends a request to the agent of an instance, and returns the reply.
///
/// # Errors
/// No agent runs.
pub(crate) fn ask(instance: &str, request: &str) -> Result<String, CliError> {
    let path = socket_of(instance);
    let failed = |err: io::Error| CliError::system(&path.display().to_string(), &err);
    let mut stream = UnixStream::connect(&path).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    writeln!(stream, "{request}").map_err(failed)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).map_err(failed)?;
    if line.is_empty() {
        return Err(CliError::failed("the agent has ended"));
    }
    Ok(line)
}

/// Path of the agent's socket, beside its gateway's. Names that end in `.sock` are those of gateways.
fn socket_of(instance: &str) -> PathBuf {
    client::netlink_path(instance).with_extension("agent")
}
