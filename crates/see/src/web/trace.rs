//! `POST /trace`: stages of packets, by the view socket, as lines of JSON.

use std::collections::BTreeSet;
use std::io::{BufRead, ErrorKind, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use client::{CliError, Client};
use ctl::trace::PacketTrace;
use ctl::{Reply, Request};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::{Response, StatusCode};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::session;
use super::watch::{Watches, one_line};
use crate::http::{Body, Connection, of_parts, text};

/// Limit of packets.
const MAX_PACKETS: u32 = 100;

/// Packets that the gateway is asked for besides, so that it goes on until steps behind a wait are there.
const FURTHER_PACKETS: u32 = 50;

/// Longest time of a trace.
const TIME: Duration = Duration::from_secs(60);

/// Time after the last packet for its steps behind a wait, such as that for the ciphers.
const REST: Duration = Duration::from_millis(500);

/// Time between two lines without news, for a connection that would be closed without a part.
const BEAT: Duration = Duration::from_secs(2);

/// Longest time until the thread notices that the client has gone.
const TICK: Duration = Duration::from_millis(250);

/// Limit of a gateway's line in bytes.
const MAX_LINE: u64 = 1 << 20;

/// Longest time for the gateway's answer to the request.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Request of the page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceRequest {
    gateway: String,
    filter: String,
    packets: u32,
}

/// Reply to a request for a trace.
pub(super) async fn stream(
    watches: &Watches,
    request: hyper::Request<Incoming>,
    connection: Arc<Connection>,
) -> Response<Body> {
    let is_json = request.headers().get(CONTENT_TYPE).is_some_and(|of| of == "application/json");
    if !is_json {
        // A form of another site cannot have this type.
        return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "application/json is expected\n");
    }
    let body = match session::body(request).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let asked: TraceRequest = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(err) => return text(StatusCode::BAD_REQUEST, &format!("{}\n", one_line(&err.to_string()))),
    };
    if !(1..=MAX_PACKETS).contains(&asked.packets) {
        return text(StatusCode::BAD_REQUEST, &format!("1 to {MAX_PACKETS} packets\n"));
    }
    let Some(path) = watches.path(&asked.gateway) else {
        return text(StatusCode::NOT_FOUND, "there is no such gateway\n");
    };
    let (sender, parts) = mpsc::channel(16);
    let trace = move || {
        let end = match trace(&asked, path, &sender) {
            Ok(end) => serde_json::json!({ "end": end }),
            Err(err) => serde_json::json!({ "error": one_line(&err.message) }),
        };
        let _ = sender.blocking_send(format!("{end}\n").into());
    };
    match thread::Builder::new().name("trace".to_owned()).spawn(trace) {
        Ok(_) => of_parts(parts, connection, "application/x-ndjson"),
        Err(err) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{err}\n")),
    }
}

/// Sends the traced packets until the client has gone. Returns the reason of the end.
fn trace(asked: &TraceRequest, path: PathBuf, sender: &mpsc::Sender<Bytes>) -> Result<String, CliError> {
    let name = path.display().to_string();
    let failed = |err: std::io::Error| CliError::system(&name, &err);
    let mut client = Client::view_within(&asked.gateway, path, ANSWER_LIMIT)?;
    let packets = asked.packets + FURTHER_PACKETS;
    match client.ask(&Request::Trace { filter: asked.filter.clone(), packets })? {
        Reply::Tracing => {}
        _ => return Err(client.confused()),
    }
    let (mut stream, _) = client.into_stream().map_err(failed)?;
    stream.get_ref().set_read_timeout(Some(TICK)).map_err(failed)?;
    let send = |line: serde_json::Value| sender.blocking_send(format!("{line}\n").into());
    let _ = send(serde_json::json!({ "tracing": true }));
    let mut end = Instant::now() + TIME;
    let mut beaten = Instant::now();
    let mut packets = BTreeSet::new();
    let mut line = Vec::new();
    loop {
        let left = MAX_LINE - line.len() as u64;
        match stream.by_ref().take(left).read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => {
                let text = String::from_utf8_lossy(&line);
                let trace = PacketTrace::from_line(text.trim_end());
                let trace = trace.map_err(|err| CliError::failed(format!("{name}: reply not understood: {err}")))?;
                line.clear();
                if packets.len() < asked.packets as usize
                    && packets.insert(trace.packet)
                    && packets.len() == asked.packets as usize
                {
                    end = end.min(Instant::now() + REST);
                }
                let value = serde_json::json!({ "packet": trace.packet, "steps": trace.steps });
                if packets.contains(&trace.packet) && send(value).is_err() {
                    return Ok("the page has gone".to_owned());
                }
            }
            Ok(_) if line.len() as u64 == MAX_LINE => {
                return Err(CliError::failed(format!("{name}: reply not understood: a line is too long")));
            }
            Ok(_) => return Ok(ended(&packets, "the gateway has ended the trace")),
            Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(err) => return Err(failed(err)),
        }
        if Instant::now() >= end {
            let time = format!("{} seconds are over", TIME.as_secs());
            let is_whole = packets.len() >= asked.packets as usize;
            return Ok(ended(&packets, if is_whole { "all are here" } else { &time }));
        }
        if beaten.elapsed() >= BEAT {
            beaten = Instant::now();
            // A client that reads nothing has parts that wait.
            let _ = sender.try_send(Bytes::from_static(b"\n"));
        }
        if sender.is_closed() {
            return Ok("the page has gone".to_owned());
        }
    }
}

fn ended(packets: &BTreeSet<u16>, why: &str) -> String {
    let count = packets.len();
    format!("{count} packet{}: {why}", if count == 1 { "" } else { "s" })
}
