//! Requests of a client of `NETLINK_XFRM`: recorded requests of `ip xfrm` with mutated bytes, and datagrams of any
//! bytes, while time passes. The node does not panic, and its database has the SAs and policies that packets meet.

use std::time::Duration;

use daemon::Alone;

use crate::recorded;
use crate::structured::structured;

/// An action: its kind, a number, and mutated bytes at some places.
type Op = (u8, u16, Vec<(u16, u8)>);

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((privileged, ops)) = structured::<(bool, Vec<Op>)>(input) else { return };
    let mut alone = Alone::new(privileged);
    for (kind, number, bytes) in ops {
        match kind % 16 {
            0..11 => {
                let mut request = recorded::xfrm(number).to_vec();
                for (at, byte) in bytes {
                    let at = usize::from(at) % request.len();
                    request[at] = byte;
                }
                alone.send(&request);
            }
            11 => alone.receive(&bytes.iter().flat_map(|&(at, byte)| [at as u8, byte]).collect::<Vec<u8>>()),
            12 => alone.listen(number % 2 == 0),
            13 => alone.read(),
            _ => alone.pass(Duration::from_secs(number.into())),
        }
    }
    alone.check();
    assert!(privileged || alone.is_empty());
}
