//! Streams events of SAs, policies and links, or reports of drops, to a control client.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};

use ctl::Reply;
use ctl::event::Event;

use super::command::{Handle, same};
use super::node::Node;
use super::notifications;
use super::unix_socket::{LOOK_EVERY, is_gone};

/// Limit of events queued for a slow reader; events that occur while the queue is full are lost to that reader alone.
const QUEUE: usize = 1024;

/// Replies to a monitor request and then writes events until the client disconnects.
pub(crate) fn stream_events(mut stream: &UnixStream, worker: &Handle, is_viewer: bool) -> io::Result<()> {
    let (sink, events) = sync_channel(QUEUE);
    let client = Arc::new(());
    let alive = Arc::downgrade(&client);
    if let Err(gone) = worker.call(move |node| notifications::monitor(node, sink, alive, is_viewer)) {
        return stream.write_all(Reply::Error { message: gone.to_string() }.to_line().as_bytes());
    }
    write_events(stream, &events)
}

/// Replies to a request for drops and then writes reports until the client disconnects.
pub(crate) fn stream_drops(mut stream: &UnixStream, worker: &Handle) -> io::Result<()> {
    let (sink, events) = sync_channel(QUEUE);
    // A call that times out here may still run later: the reports then end when `alive` cannot be upgraded.
    let client = Arc::new(());
    let alive = Arc::downgrade(&client);
    let add = move |node: &mut Node| node.monitors.add_for_drops(&mut node.datapath, sink, alive);
    let started = worker.change(add, same);
    if let Err(gone) = started {
        return stream.write_all(Reply::Error { message: gone.to_string() }.to_line().as_bytes());
    }
    let written = write_events(stream, &events);
    drop(client);
    // Without a drop the worker would not notice that the client has disconnected.
    let _ = worker.change(|node| node.monitors.end_drops(&mut node.datapath), same);
    written
}

fn write_events(mut stream: &UnixStream, events: &Receiver<Event>) -> io::Result<()> {
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
