//! Streams traces of packets to a control client.

use std::collections::HashSet;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};

use ctl::Reply;
use ctl::trace::PacketTrace;

use super::command::{Handle, agreed, same};
use super::node::Node;
use super::unix_socket::{LOOK_EVERY, is_gone};

/// Limit of traces queued for a slow reader; traces that arrive while the queue is full are lost.
const QUEUE: usize = 1024;

/// Replies to a trace request, and then writes traces until the client disconnects.
pub(crate) fn stream_traces(mut stream: &UnixStream, worker: &Handle, filter: &str, packets: u32) -> io::Result<()> {
    let (sink, traces) = sync_channel(QUEUE);
    let text = filter.to_owned();
    // A call that times out here may still run later: the trace then ends when `alive` cannot be upgraded.
    let client = Arc::new(());
    let alive = Arc::downgrade(&client);
    let start = move |node: &mut Node| {
        let clock = node.trace_clock();
        node.traces.start(&mut node.datapath, &text, packets, sink, alive, clock)
    };
    let started = worker.change(start, agreed);
    let number = match started.map_err(|err| err.to_string()).and_then(|answer| answer) {
        Ok(number) => number,
        Err(message) => return stream.write_all(Reply::Error { message }.to_line().as_bytes()),
    };
    let streamed = stream_until_end(stream, &traces, packets);
    drop(client);
    // Without matching packets the worker would not notice that the client has disconnected.
    let _ = worker.change(move |node| node.traces.stop(&mut node.datapath, number), same);
    streamed
}

/// Writes traces until the client disconnects or has those that it asked for: each worker traces as many.
fn stream_until_end(mut stream: &UnixStream, traces: &Receiver<PacketTrace>, packets: u32) -> io::Result<()> {
    stream.write_all(Reply::Tracing.to_line().as_bytes())?;
    let mut chosen = HashSet::new();
    loop {
        match traces.recv_timeout(LOOK_EVERY) {
            Ok(trace) => {
                chosen.insert(trace.packet);
                if chosen.len() > packets as usize {
                    return Ok(());
                }
                stream.write_all(trace.to_line().as_bytes())?;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if is_gone(stream) || chosen.len() >= packets as usize => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
