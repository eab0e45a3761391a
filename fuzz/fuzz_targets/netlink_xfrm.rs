//! Requests of a client of `NETLINK_XFRM`: recorded requests of `ip xfrm` with mutated bytes, and datagrams of any
//! bytes, while time passes. The node does not panic, and its database has the SAs and policies that packets meet.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use daemon::Alone;
use libfuzzer_sys::fuzz_target;

static RECORDED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let text = include_str!("../../crates/netlink/tests/recordings/xfrm_requests.txt");
    let byte = |hex: &str, at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("recorded in hexadecimal digits");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|hex| (0..hex.len()).step_by(2).map(|at| byte(hex, at)).collect()).collect()
});

/// An action: its kind, a number, and mutated bytes at some places.
type Op = (u8, u16, Vec<(u16, u8)>);

fuzz_target!(|input: (bool, Vec<Op>)| {
    let (privileged, ops) = input;
    let mut alone = Alone::new(privileged);
    for (kind, number, bytes) in ops {
        match kind % 16 {
            0..11 => {
                let mut request = RECORDED[usize::from(number) % RECORDED.len()].clone();
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
});
