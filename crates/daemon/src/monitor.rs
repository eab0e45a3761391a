//! Streams events of SAs and policies to a control client.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

use ctl::Reply;

use super::command::Handle;
use super::notifications;
use super::unix_socket::{LOOK_EVERY, is_gone};

/// Limit of events queued for a slow reader; events that occur while the queue is full are lost to that reader alone.
const QUEUE: usize = 1024;

/// Replies to a monitor request and then writes events until the client disconnects.
pub(crate) fn stream_events(mut stream: &UnixStream, worker: &Handle) -> io::Result<()> {
    let (sink, events) = sync_channel(QUEUE);
    if let Err(gone) = worker.call(|node| notifications::monitor(node, sink)) {
        return stream.write_all(Reply::Error { message: gone.to_string() }.to_line().as_bytes());
    }
    stream.write_all(Reply::Monitoring.to_line().as_bytes())?;
    loop {
        match events.recv_timeout(LOOK_EVERY) {
            Ok(event) => stream.write_all(event.to_line().as_bytes())?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if is_gone(stream) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
