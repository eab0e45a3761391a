//! Streams traces of packets to a control client.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};

use ctl::Reply;
use ctl::trace::PacketTrace;

use super::command::Handle;
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
    let started = worker.call(move |node| {
        let clock = node.trace_clock();
        node.traces.start(&mut node.datapath, &text, packets, sink, alive, clock)
    });
    let number = match started.map_err(|err| err.to_string()).and_then(|answer| answer) {
        Ok(number) => number,
        Err(message) => return stream.write_all(Reply::Error { message }.to_line().as_bytes()),
    };
    let streamed = stream_until_end(stream, &traces);
    drop(client);
    // Without matching packets the worker would not notice that the client has disconnected.
    let _ = worker.call(move |node| node.traces.stop(&mut node.datapath, number));
    streamed
}

fn stream_until_end(mut stream: &UnixStream, traces: &Receiver<PacketTrace>) -> io::Result<()> {
    stream.write_all(Reply::Tracing.to_line().as_bytes())?;
    loop {
        match traces.recv_timeout(LOOK_EVERY) {
            Ok(trace) => stream.write_all(trace.to_line().as_bytes())?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if is_gone(stream) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
