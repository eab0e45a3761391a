//! Streams traces of packets to a control client.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use base::ShardCount;
use ctl::Reply;
use ctl::trace::PacketTrace;

use super::command::{Handle, agreed, same};
use super::node::Node;
use super::trace_parts::{TraceJoiner, TracePart};
use super::traces::{IS_RUNNING, TraceClient};
use super::unix_socket::{LOOK_EVERY, is_gone};

/// Limit of traces queued for a slow reader; traces that arrive while the queue is full are lost.
const QUEUE: usize = 1024;

/// Trace that a client asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceRequest<'a> {
    /// Packets to choose.
    pub(crate) filter: &'a str,
    /// Number of packets.
    pub(crate) packets: u32,
    /// Whether the client is one of the view socket.
    pub(crate) is_viewer: bool,
}

/// Replies to a trace request, and then writes traces until the client disconnects.
pub(crate) fn stream_traces(mut stream: &UnixStream, worker: &Handle, request: TraceRequest<'_>) -> io::Result<()> {
    let TraceRequest { filter, packets, is_viewer } = request;
    let (sink, traces) = sync_channel(QUEUE);
    let text = filter.to_owned();
    // A call that times out here may still run later: the trace then ends when `alive` cannot be upgraded.
    let client = Arc::new(());
    let alive = Arc::downgrade(&client);
    let in_node = TraceClient { sink, alive: Weak::clone(&alive), is_viewer };
    let start = move || {
        let (client, text) = (in_node.clone(), text.clone());
        move |node: &mut Node| {
            let clock = node.trace_clock();
            node.traces.start(&mut node.datapath, &text, packets, client, clock)
        }
    };
    // A trace whose client has just gone ends when its thread looks.
    let limit = Instant::now() + 2 * LOOK_EVERY;
    let started = loop {
        match worker.change(start(), agreed).map_err(|err| err.to_string()).and_then(|answer| answer) {
            Err(why) if why == IS_RUNNING && Instant::now() < limit => thread::sleep(LOOK_EVERY / 8),
            started => break started,
        }
    };
    // Its sender: the stream ends when the workers have dropped theirs.
    drop(start);
    if let Err(message) = started {
        return stream.write_all(Reply::Error { message }.to_line().as_bytes());
    }
    let streamed = stream_until_end(stream, &traces, worker.count(), packets);
    drop(client);
    // Without matching packets the worker would not notice that the client has disconnected.
    let _ = worker.change(move |node| node.traces.stop(&mut node.datapath, &alive), same);
    streamed
}

/// Writes traces until the client disconnects or has those that it asked for: each worker traces as many.
fn stream_until_end(
    stream: &UnixStream,
    parts: &Receiver<TracePart>,
    count: ShardCount,
    packets: u32,
) -> io::Result<()> {
    let mut out = stream;
    out.write_all(Reply::Tracing.to_line().as_bytes())?;
    let mut chosen = HashSet::new();
    // Numbers of the workers say which of them has chosen a packet. A client counts from one.
    let mut numbers = HashMap::new();
    let mut write = |mut trace: PacketTrace| {
        let next = (numbers.len() as u16).wrapping_add(1);
        trace.packet = *numbers.entry(trace.packet).or_insert(next);
        out.write_all(trace.to_line().as_bytes())
    };
    let mut joiner = TraceJoiner::new(count);
    loop {
        let limit = joiner.limit(Instant::now());
        let mut is_over = false;
        match parts.recv_timeout(limit.unwrap_or(LOOK_EVERY)) {
            Ok(part) if chosen.contains(&part.trace.packet) || chosen.len() < packets as usize => {
                chosen.insert(part.trace.packet);
                joiner.add(Instant::now(), part);
            }
            Ok(_) => is_over = true,
            Err(RecvTimeoutError::Disconnected) => {
                return joiner.take_all().try_for_each(write);
            }
            Err(RecvTimeoutError::Timeout) if is_gone(stream) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => is_over = chosen.len() >= packets as usize,
        }
        while let Some(trace) = joiner.take(Instant::now()) {
            write(trace)?;
        }
        if is_over && joiner.limit(Instant::now()).is_none() {
            return Ok(());
        }
    }
}
