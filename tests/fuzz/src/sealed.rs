//! SAs of key managers that an earlier gateway has left in sealed memory: records of any kind and content behind right checksums,
//! damaged requests and times among them, and any bytes. They are refused, or restored on a gateway in memory, which runs on.

use std::fs;

use daemon::fuzzing::{restore_sealed_sas, sealed_sas_of};
use sim::Choices;

use crate::recorded;

/// Kinds of records: a link, an SA, the end, and the time.
const LINK: u8 = 1;
const SA: u8 = 2;
const END: u8 = 3;
const TIME: u8 = 4;

/// `XFRM_MSG_NEWSA`.
const NEW_SA: u16 = 0x10;

/// Requests among which one that adds an SA is looked for.
const REQUESTS: u16 = 200;

/// Runs one input.
pub fn target(input: &[u8]) {
    let mut input = Choices::new(input);
    if input.once_in(16) {
        let len = usize::from(input.word());
        restore_sealed_sas(input.bytes(len));
        return;
    }
    let now = nanos_since_boot();
    let mut records = vec![(TIME, time(&mut input, now))];
    let mut count = 0_u32;
    for _ in 0..16 {
        if input.is_over() {
            break;
        }
        let record = record(&mut input, now);
        count += u32::from(record.0 == SA);
        records.push(record);
    }
    let count = if input.once_in(16) { input.word().into() } else { count };
    records.push((END, count.to_le_bytes().to_vec()));
    restore_sealed_sas(&sealed_sas_of(&records));
}

/// Nanoseconds since the boot of the machine, to a hundredth of a second.
fn nanos_since_boot() -> u64 {
    let text = fs::read_to_string("/proc/uptime").expect("procfs");
    let seconds: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    (seconds * 1e9) as u64
}

/// A time: lately, or any.
fn time(input: &mut Choices<'_>, now: u64) -> Vec<u8> {
    let nanos = match input.byte() % 16 {
        0 => u64::from(input.word()) << (input.byte() % 64),
        1 => 0,
        _ => now.saturating_sub(u64::from(input.byte()) * 100_000_000),
    };
    nanos.to_le_bytes().to_vec()
}

/// A recorded request, in most cases one that adds an SA.
fn request(input: &mut Choices<'_>) -> Vec<u8> {
    let first = input.word();
    let is_any = input.once_in(8);
    let requests = (0..REQUESTS).map(|more| recorded::xfrm(first.wrapping_add(more)));
    let found = requests.into_iter().find(|request| is_any || request[4..6] == NEW_SA.to_ne_bytes());
    found.unwrap_or_default().to_vec()
}

fn record(input: &mut Choices<'_>, now: u64) -> (u8, Vec<u8>) {
    let kind = if input.once_in(16) { input.byte() } else { input.pick(&[SA, SA, SA, LINK]) };
    let mut content = match kind {
        LINK => [&u32::from(input.byte() % 4).to_le_bytes()[..], input.pick(&["", "lan", "wan"]).as_bytes()].concat(),
        SA => [time(input, now), time(input, now), request(input)].concat(),
        _ => Vec::new(),
    };
    for _ in 0..input.byte() % 8 / 3 {
        let at = usize::from(input.word()) % (content.len() + 1);
        match content.get_mut(at) {
            Some(byte) => *byte = input.byte(),
            None => content.push(input.byte()),
        }
    }
    (kind, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_with_recorded_requests_is_restored() {
        let now = nanos_since_boot().to_le_bytes().to_vec();
        let sa = |number| [now.clone(), vec![0; 8], recorded::xfrm(number).to_vec()].concat();
        let restored = (0..200).filter(|&number| {
            let records = [(TIME, now.clone()), (SA, sa(number)), (END, vec![1, 0, 0, 0])];
            restore_sealed_sas(&sealed_sas_of(&records))
        });
        assert!(restored.count() > 0);
        assert!(restore_sealed_sas(&sealed_sas_of(&[(TIME, now), (END, vec![0; 4])])));
        assert!(!restore_sealed_sas(&sealed_sas_of(&[(END, vec![0; 4])])));
    }
}
