//! Streams a capture to a control client as pcapng.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use ctl::Reply;
use link::pcapng::{LinkType, PcapngWriter};

use super::captures::{CaptureLink, Frame};
use super::command::{Handle, agreed, same};
use super::node::Node;
use super::unix_socket::{LOOK_EVERY, is_gone};

/// Limit of packets queued for a slow reader; packets that arrive while the queue is full are missing from the capture, and are forwarded.
const QUEUE: usize = 1024;

/// Answers a capture request and then writes packets until the client disconnects.
pub(crate) fn stream_capture(
    mut stream: &UnixStream,
    worker: &Handle,
    link: String,
    after_gro: bool,
) -> io::Result<()> {
    let (sink, frames) = sync_channel(QUEUE);
    let name = link.clone();
    let client = Arc::new(());
    let alive = Arc::downgrade(&client);
    let start = move |node: &mut Node| node.captures.start(&mut node.datapath, &name, after_gro, sink, alive);
    let started = worker.change(start, agreed);
    let CaptureLink { ethernet, epoch } = match started.map_err(|err| err.to_string()).and_then(|answer| answer) {
        Ok(found) => found,
        Err(message) => return stream.write_all(Reply::Error { message }.to_line().as_bytes()),
    };
    let streamed = stream_until_end(stream, &frames, &link, (ethernet, epoch));
    drop(client);
    // Without a packet of the link a worker would not notice that the client has disconnected.
    let _ = worker.change(|node| node.captures.sweep(&mut node.datapath), same);
    streamed
}

/// Writes packets until the client disconnects.
fn stream_until_end(
    mut stream: &UnixStream,
    frames: &Receiver<Frame>,
    link: &str,
    (ethernet, epoch): (bool, Duration),
) -> io::Result<()> {
    stream.write_all(Reply::Capturing.to_line().as_bytes())?;
    let link_type = if ethernet { LinkType::Ethernet } else { LinkType::Raw };
    let mut file = PcapngWriter::new(io::BufWriter::with_capacity(1 << 18, stream), link, link_type)?;
    file.flush()?;
    while let Some(frame) = next_frame(frames, &mut file, stream)? {
        file.write(epoch + frame.at.since(base::Instant::ZERO), frame.outbound, &frame.bytes)?;
    }
    Ok(())
}

/// The next packet; flushes earlier ones before waiting for it. `None` once either side is gone.
fn next_frame<W: Write>(
    frames: &Receiver<Frame>,
    file: &mut PcapngWriter<W>,
    stream: &UnixStream,
) -> io::Result<Option<Frame>> {
    if let Ok(frame) = frames.try_recv() {
        return Ok(Some(frame));
    }
    file.flush()?;
    loop {
        match frames.recv_timeout(LOOK_EVERY) {
            Ok(frame) => return Ok(Some(frame)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) if is_gone(stream) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
