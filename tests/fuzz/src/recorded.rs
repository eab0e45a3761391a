//! Recorded requests of iproute2, which targets change.

use std::sync::LazyLock;

/// Request of `NETLINK_ROUTE` with a number, which wraps.
pub(crate) fn route(number: u16) -> &'static [u8] {
    static RECORDED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let text = include_str!("../../../crates/netlink/tests/recordings/iproute2.txt");
        text.lines().filter_map(|line| line.strip_prefix("> ")?.split_once(' ')).map(|(_, hex)| bytes(hex)).collect()
    });
    &RECORDED[usize::from(number) % RECORDED.len()]
}

/// Request of `NETLINK_XFRM` with a number, which wraps.
pub(crate) fn xfrm(number: u16) -> &'static [u8] {
    static RECORDED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let text = include_str!("../../../crates/netlink/tests/recordings/xfrm_requests.txt");
        text.lines().filter(|line| !line.starts_with('#')).map(bytes).collect()
    });
    &RECORDED[usize::from(number) % RECORDED.len()]
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("recorded in hexadecimal digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}
