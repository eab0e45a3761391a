//! Journals of a state: records of any kind and content, damaged requests among them, behind a right checksum, and files
//! of any bytes. Reading ends with an error, or the records are carried out on a gateway in memory, which runs on.

use daemon::fuzzing::{journal_of, restore_journal};
use nlsock::protocol;
use sim::Choices;

use crate::recorded;

/// Kinds of records: a link, a request, the refusal of the request before, a setting, and the name of an SA.
const KINDS: [u8; 6] = [2, 2, 1, 3, 4, 5];

const SETTINGS: [&str; 4] = ["ipv4/ip_forward", "ipv4/conf/all/rp_filter", "net/core/xfrm_acq_expires", "ipv6/x"];

/// Runs one input.
pub fn target(input: &[u8]) {
    let mut input = Choices::new(input);
    if input.once_in(8) {
        let len = usize::from(input.word());
        return restore_journal(input.bytes(len));
    }
    let mut records = Vec::new();
    for _ in 0..16 {
        if input.is_over() {
            break;
        }
        records.push(record(&mut input));
    }
    restore_journal(&journal_of(&records));
}

/// A record's kind, and its content.
fn record(input: &mut Choices<'_>) -> (u8, Vec<u8>) {
    let kind = if input.once_in(16) { input.byte() } else { input.pick(&KINDS) };
    let mut content = match kind {
        1 => [&u32::from(input.byte() % 4).to_le_bytes()[..], input.pick(&["", "lan", "wan", "vrf0"]).as_bytes()]
            .concat(),
        2 => {
            let (number, request) = match input.byte() % 4 {
                0 => (protocol::XFRM, recorded::xfrm(input.word())),
                _ => (protocol::ROUTE, recorded::route(input.word())),
            };
            [&number.to_le_bytes()[..], request].concat()
        }
        4 => [input.pick(&SETTINGS).as_bytes(), &[0], input.pick(&["1", "0", "x", "-7"]).as_bytes()].concat(),
        _ => Vec::new(),
    };
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.word()) % (content.len() + 1);
        match content.get_mut(at) {
            Some(byte) => *byte = input.byte(),
            None => content.push(input.byte()),
        }
    }
    (kind, content)
}
