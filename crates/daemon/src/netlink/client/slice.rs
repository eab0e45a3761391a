//! Share of a turn for one read-only client.

use std::time::{Duration, Instant};

use netlink::message::{Messages, align};
use netlink::{Groups, Outbox};

use crate::netlink::protocols::Protocols;
use crate::netlink::socket::NetlinkSocket;

/// Share of a turn for a read-only client: requests are handled until this time, or until their answers reach this many
/// bytes. The last request of a slice is completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    end: Instant,
}

impl Slice {
    const TIME: Duration = Duration::from_millis(1);
    const ANSWERS: usize = 32 << 10;

    pub(super) fn begin() -> Self {
        Self { end: Instant::now() + Self::TIME }
    }

    fn is_over(self, outbox: &Outbox) -> bool {
        outbox.len() >= Self::ANSWERS || Instant::now() >= self.end
    }
}

/// Handles requests until `slice` is over, and returns the remaining ones.
pub(super) fn carry_out<'a>(
    socket: &mut dyn NetlinkSocket,
    messages: &'a [u8],
    protocols: &mut Protocols,
    listeners: Groups,
    outbox: &mut Outbox,
    slice: Option<Slice>,
) -> &'a [u8] {
    let Some(slice) = slice else {
        socket.handle(messages, protocols, listeners, outbox);
        return &[];
    };
    let mut left = messages;
    while let Some(message) = Messages::new(left).next() {
        socket.handle(message.bytes, protocols, listeners, outbox);
        left = left.get(align(message.bytes.len())..).unwrap_or_default();
        if slice.is_over(outbox) {
            return left;
        }
    }
    &[]
}
