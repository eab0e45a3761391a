//! Streams a capture to a control client as pcapng.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use control::Reply;
use rustix::net::{RecvFlags, recv};

use super::command::{CaptureLink, Command, Handle};

/// Packets that may wait for a slow reader; what comes while they do is lost to the capture alone.
const QUEUE: usize = 1024;

/// How often a quiet capture looks whether its reader is still there.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Answers a capture request and then writes packets until the client goes.
pub(crate) fn stream_capture(
    mut stream: &UnixStream,
    worker: &Handle,
    link: String,
    after_gro: bool,
) -> io::Result<()> {
    let (sink, frames) = sync_channel(QUEUE);
    let asked = worker.ask(|reply| Command::Capture { link: link.clone(), after_gro, sink, reply });
    let CaptureLink { ethernet, epoch } = match asked.map_err(|err| err.to_string()).and_then(|answer| answer) {
        Ok(found) => found,
        Err(message) => return stream.write_all(Reply::Error { message }.to_line().as_bytes()),
    };
    stream.write_all(Reply::Capturing.to_line().as_bytes())?;
    let link_type = if ethernet { link::pcapng::LinkType::Ethernet } else { link::pcapng::LinkType::Raw };
    let mut file = link::pcapng::Writer::new(io::BufWriter::with_capacity(1 << 18, stream), &link, link_type)?;
    file.flush()?;
    loop {
        match frames.try_recv() {
            Ok(frame) => file.write(epoch + frame.at.since(base::Instant::ZERO), frame.outbound, &frame.bytes)?,
            Err(_) => {
                file.flush()?;
                match frames.recv_timeout(LOOK_EVERY) {
                    Ok(frame) => {
                        file.write(epoch + frame.at.since(base::Instant::ZERO), frame.outbound, &frame.bytes)?
                    }
                    Err(RecvTimeoutError::Timeout) if is_gone(stream) => return Ok(()),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
        }
    }
}

/// Tells whether the other side has closed.
fn is_gone(stream: &UnixStream) -> bool {
    let mut byte = [0_u8; 1];
    match recv(stream, byte.as_mut_slice(), RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => true,
        Ok(_) => false,
        Err(err) => err != rustix::io::Errno::AGAIN,
    }
}
