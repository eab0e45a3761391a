//! IPv4 options (RFC 791 §3.1).

use std::net::Ipv4Addr;
use std::ops::Range;

use crate::Malformed;

/// An option's type byte and the bytes behind its length byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ipv4Option<'a> {
    /// The type byte: copy bit, class and number.
    pub kind: u8,
    /// Bytes behind the length byte.
    pub data: &'a [u8],
}

impl Ipv4Option<'_> {
    /// End of the option list.
    pub const END: u8 = 0;
    /// One byte of padding.
    pub const NOP: u8 = 1;
    /// Record route.
    pub const RECORD_ROUTE: u8 = 7;
    /// Timestamps.
    pub const TIMESTAMP: u8 = 68;
    /// Loose source route.
    pub const LOOSE_SOURCE_ROUTE: u8 = 131;
    /// Strict source route.
    pub const STRICT_SOURCE_ROUTE: u8 = 137;
    /// Router alert (RFC 2113).
    pub const ROUTER_ALERT: u8 = 148;

    /// Tells whether every fragment carries this option, not only the first.
    pub const fn copied(self) -> bool {
        self.kind & 0x80 != 0
    }
}

/// The options up to the end of the list, without padding. Iteration ends after an error.
#[derive(Clone, Debug)]
pub struct Ipv4Options<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Ipv4Options<'a> {
    /// The options in `bytes`, which follow the fixed header.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }
}

impl<'a> Iterator for Ipv4Options<'a> {
    type Item = Result<Ipv4Option<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let place = next_option(self.bytes, self.at)?;
        self.at = place.as_ref().map_or(self.bytes.len(), |place| place.end);
        let option = place
            .map(|place| Ipv4Option { kind: self.bytes[place.start], data: &self.bytes[place.start + 2..place.end] });
        Some(option.map_err(|_| Malformed::Ipv4Option))
    }
}

/// Range of the first option at or after `at`, padding skipped: from its type byte to its end. The error is the offset
/// of the type byte of an option with an impossible length.
fn next_option(options: &[u8], mut at: usize) -> Option<Result<Range<usize>, usize>> {
    loop {
        match *options.get(at)? {
            Ipv4Option::END => return None,
            Ipv4Option::NOP => at += 1,
            _ => {
                let len = options.get(at + 1).map_or(0, |&len| usize::from(len));
                let fits = len >= 2 && len <= options.len() - at;
                return Some(if fits { Ok(at..at + len) } else { Err(at) });
            }
        }
    }
}

/// Offset of the pointer in record route and timestamp options. It counts from 1 (RFC 791 §3.1).
const POINTER_AT: usize = 2;
/// Offset of overflow (high half) and flag (low half) in a timestamp option.
const FLAG_AT: usize = 3;
/// Smallest pointer of a record route option, and of a timestamp option.
const MIN_POINTERS: [usize; 2] = [4, 5];
/// Flags of a timestamp option: times only; addresses filled in by the sender. Other values: addresses and times.
const TIMES_ONLY: u8 = 0;
const PRESPECIFIED: u8 = 3;
/// Stands in for a flag: a record route option holds addresses only.
const ADDRESS_ALONE: u8 = 0xff;
const MAX_OVERFLOW: u8 = 15;
/// Bytes of a router alert option.
const ROUTER_ALERT_LEN: usize = 4;

/// Length of the next entry of a record route or timestamp option.
fn entry_len(option: &[u8]) -> usize {
    match option[0] {
        Ipv4Option::TIMESTAMP if option[FLAG_AT] & 0xf != TIMES_ONLY => 8,
        _ => 4,
    }
}

/// Checks the options of a header, as each node on a packet's path must (RFC 791 §3.1; Linux `ip_options_compile`).
///
/// # Errors
/// Offset of the wrong byte in `options`.
pub fn check_options(options: &[u8]) -> Result<(), usize> {
    let (mut at, mut seen) = (0, [false; 2]);
    while let Some(place) = next_option(options, at) {
        let place = place?;
        let (start, option) = (place.start, &options[place.clone()]);
        let which = match option[0] {
            Ipv4Option::RECORD_ROUTE => 0,
            Ipv4Option::TIMESTAMP => 1,
            Ipv4Option::ROUTER_ALERT if option.len() < ROUTER_ALERT_LEN => return Err(start + 1),
            _ => {
                at = place.end;
                continue;
            }
        };
        let least = MIN_POINTERS[which];
        if std::mem::replace(&mut seen[which], true) {
            return Err(start);
        }
        if option.len() < least - 1 {
            return Err(start + 1);
        }
        let pointer = usize::from(option[POINTER_AT]);
        if pointer < least || pointer <= option.len() && pointer - 1 + entry_len(option) > option.len() {
            return Err(start + POINTER_AT);
        }
        let is_full = pointer > option.len() && which == 1 && option[FLAG_AT] & 0xf != PRESPECIFIED;
        if is_full && option[FLAG_AT] >> 4 == MAX_OVERFLOW {
            return Err(start + FLAG_AT);
        }
        at = place.end;
    }
    Ok(())
}

/// Fills in the next entry of the record route and timestamp options of a packet that passes a node with the address
/// `addr`, at `time`, in milliseconds since midnight UT (RFC 791 §3.1; Linux `ip_forward_options`). A full timestamp
/// option counts the node as an overflow; an option with given addresses is filled in only if `is_own` accepts the next
/// address. Returns whether the packet has such options. Options that [`check_options`] refuses stay unchanged.
pub fn record_visit(options: &mut [u8], addr: Ipv4Addr, time: u32, is_own: impl Fn(Ipv4Addr) -> bool) -> bool {
    let (mut at, mut found) = (0, false);
    if check_options(options).is_err() {
        return false;
    }
    while let Some(Ok(place)) = next_option(options, at) {
        at = place.end;
        let option = &mut options[place];
        let has_time = match option[0] {
            Ipv4Option::RECORD_ROUTE => false,
            Ipv4Option::TIMESTAMP => true,
            _ => continue,
        };
        found = true;
        let flag = if has_time { option[FLAG_AT] & 0xf } else { ADDRESS_ALONE };
        let (from, len) = (usize::from(option[POINTER_AT]) - 1, entry_len(option));
        let Some(entry) = option.get_mut(from..from + len) else {
            if has_time && flag != PRESPECIFIED && option[FLAG_AT] >> 4 < MAX_OVERFLOW {
                option[FLAG_AT] += 1 << 4;
            }
            continue;
        };
        if flag == PRESPECIFIED {
            if !entry.first_chunk().is_some_and(|&octets: &[u8; 4]| is_own(octets.into())) {
                continue;
            }
        } else if flag != TIMES_ONLY {
            entry[..4].copy_from_slice(&addr.octets());
        }
        if has_time {
            entry[len - 4..].copy_from_slice(&time.to_be_bytes());
        }
        option[POINTER_AT] += len as u8;
    }
    found
}

/// Keeps only the record route and timestamp options, which an echo reply returns (RFC 1122 §3.2.2.6), moved to the
/// front and padded to full words; the remainder of `options` is zeroed. Returns their length.
pub fn keep_recorded(options: &mut [u8]) -> usize {
    let (mut at, mut len) = (0, 0);
    while let Some(Ok(place)) = next_option(options, at) {
        at = place.end;
        if matches!(options[place.start], Ipv4Option::RECORD_ROUTE | Ipv4Option::TIMESTAMP) {
            options.copy_within(place.clone(), len);
            len += place.len();
        }
    }
    options[len..].fill(Ipv4Option::END);
    len.next_multiple_of(4).min(options.len())
}

/// Overwrites options that only the first fragment carries with padding, in place, for later fragments (RFC 791 §3.2;
/// Linux `ip_options_fragment`).
///
/// # Errors
/// [`Malformed::Ipv4Option`]; options before the wrong one are changed.
pub fn blank_uncopied_options(options: &mut [u8]) -> Result<(), Malformed> {
    let mut at = 0;
    while let Some(place) = next_option(options, at) {
        let place = place.map_err(|_| Malformed::Ipv4Option)?;
        at = place.end;
        if options[place.start] & 0x80 == 0 {
            options[place].fill(Ipv4Option::NOP);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const TIME: u32 = 0x0102_0304;

    #[test]
    fn the_wrong_byte_of_an_option_is_named() {
        let cases: [(&[u8], _); 19] = [
            (&[7, 7, 4, 0, 0, 0, 0], Ok(())),
            (&[1, 7, 7, 8, 0, 0, 0, 0], Ok(())), // full
            (&[7, 2], Err(1)),
            (&[1, 7, 9, 4], Err(1)),
            (&[7, 7, 3, 0, 0, 0, 0], Err(2)),
            (&[7, 7, 5, 0, 0, 0, 0], Err(2)), // no room for a complete address
            (&[7, 3, 4, 7, 3, 4], Err(3)),
            (&[68, 8, 5, 0, 0, 0, 0, 0], Ok(())),
            (&[68, 3, 5], Err(1)),
            (&[68, 8, 4, 0, 0, 0, 0, 0], Err(2)),
            (&[68, 8, 6, 0, 0, 0, 0, 0], Err(2)),
            (&[68, 8, 5, 1, 0, 0, 0, 0], Err(2)),
            (&[68, 8, 5, 3, 0, 0, 0, 0], Err(2)),
            (&[68, 4, 5, 0xe0], Ok(())),
            (&[68, 4, 5, 0xf0], Err(3)),
            (&[68, 4, 5, 0xf3], Ok(())),
            (&[68, 4, 5, 0, 1, 68, 4, 5, 0], Err(5)),
            (&[148, 4, 0, 0], Ok(())),
            (&[148, 3, 0, 0], Err(1)),
        ];
        for (options, want) in cases {
            assert_eq!(check_options(options), want, "{options:?}");
        }
    }

    #[test]
    fn a_visit_fills_in_the_next_entry() {
        let cases: [(&[u8], &[u8]); 10] = [
            (&[7, 7, 4, 0, 0, 0, 0], &[7, 7, 8, 10, 0, 0, 1]),
            (&[7, 7, 8, 9, 9, 9, 9], &[7, 7, 8, 9, 9, 9, 9]),
            (&[7, 11, 8, 9, 9, 9, 9, 0, 0, 0, 0], &[7, 11, 12, 9, 9, 9, 9, 10, 0, 0, 1]),
            (&[68, 8, 5, 0, 0, 0, 0, 0], &[68, 8, 9, 0, 1, 2, 3, 4]),
            (&[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[68, 12, 13, 1, 10, 0, 0, 1, 1, 2, 3, 4]),
            (&[68, 12, 5, 3, 10, 0, 0, 1, 0, 0, 0, 0], &[68, 12, 13, 3, 10, 0, 0, 1, 1, 2, 3, 4]),
            (&[68, 12, 5, 3, 10, 0, 0, 2, 0, 0, 0, 0], &[68, 12, 5, 3, 10, 0, 0, 2, 0, 0, 0, 0]),
            (&[68, 8, 9, 0x10, 1, 1, 1, 1], &[68, 8, 9, 0x20, 1, 1, 1, 1]),
            (&[1, 148, 4, 0, 0, 7, 7, 4, 0, 0, 0, 0], &[1, 148, 4, 0, 0, 7, 7, 8, 10, 0, 0, 1]),
            (&[68, 4, 5, 0xf3], &[68, 4, 5, 0xf3]),
        ];
        for (options, want) in cases {
            let mut got = options.to_vec();
            assert!(record_visit(&mut got, HERE, TIME, |addr| addr == HERE), "{options:?}");
            assert_eq!(got, want, "{options:?}");
        }
        for options in [&[1, 1, 1, 0][..], &[148, 4, 0, 0], &[7, 7, 1, 0, 0, 0, 0], &[7, 9]] {
            let mut got = options.to_vec();
            assert!(!record_visit(&mut got, HERE, TIME, |_| true), "{options:?}");
            assert_eq!(got, options);
        }
    }

    #[test]
    fn no_bytes_of_options_are_too_wrong_for_a_visit() {
        let mut bytes = [0; 40];
        let mut state = 1_u32;
        for round in 0..20_000 {
            for byte in &mut bytes {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = [7, 68, 1, (state >> 8) as u8 % 44, (state >> 20) as u8][state as usize % 5];
            }
            let options = &mut bytes[..round % 41];
            record_visit(options, HERE, TIME, |_| round % 2 == 0);
            let len = keep_recorded(options);
            assert!(len.is_multiple_of(4) || len == options.len(), "{len}");
        }
    }

    #[test]
    fn ping_returns_the_recorded_options() {
        let mut options = [1, 148, 4, 0, 0, 7, 7, 8, 1, 2, 3, 4, 68, 4, 5, 0, 0, 0, 0, 0];
        assert_eq!(keep_recorded(&mut options), 12);
        assert_eq!(options, [7, 7, 8, 1, 2, 3, 4, 68, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn options_are_walked_up_to_the_end_of_the_list() {
        let alert = Ipv4Option { kind: Ipv4Option::ROUTER_ALERT, data: &[0, 0] };
        let bad = Err(Malformed::Ipv4Option);
        let cases: [(&[u8], &[_]); 9] = [
            (&[], &[]),
            (&[Ipv4Option::NOP, Ipv4Option::NOP, Ipv4Option::END, 7], &[]),
            (&[148, 4, 0, 0], &[Ok(alert)]),
            (&[Ipv4Option::NOP, 148, 4, 0, 0, 148, 4, 0, 0, 0], &[Ok(alert), Ok(alert)]),
            (&[7, 2], &[Ok(Ipv4Option { kind: 7, data: &[] })]),
            (&[7, 1, 148, 4, 0, 0], &[bad]),
            (&[7, 0], &[bad]),
            (&[7], &[bad]),
            (&[148, 4, 0, 0, 7, 3], &[Ok(alert), bad]),
        ];
        for (bytes, want) in cases {
            assert_eq!(Ipv4Options::new(bytes).collect::<Vec<_>>(), want, "{bytes:?}");
        }
    }

    #[test]
    fn fragments_after_the_first_keep_the_options_with_the_copy_bit() {
        let cases: [(&[u8], Result<&[u8], _>); 6] = [
            (&[7, 3, 4, 148, 4, 0, 0, 0], Ok(&[1, 1, 1, 148, 4, 0, 0, 0])),
            (&[1, 68, 2, 131, 3, 4, 0, 7], Ok(&[1, 1, 1, 131, 3, 4, 0, 7])),
            (&[], Ok(&[])),
            (&[7, 1, 0, 0], Err(Malformed::Ipv4Option)),
            (&[148, 5, 0, 0], Err(Malformed::Ipv4Option)),
            (&[1, 1, 1, 7], Err(Malformed::Ipv4Option)),
        ];
        for (bytes, want) in cases {
            let mut options = bytes.to_vec();
            let got = blank_uncopied_options(&mut options).map(|()| &options[..]);
            assert_eq!(got, want, "{bytes:?}");
        }
    }
}
