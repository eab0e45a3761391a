//! IPv4 options (RFC 791 §3.1).

use crate::Malformed;

/// An option's type byte and what follows its length byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Opt<'a> {
    /// The type byte: copy bit, class and number.
    pub kind: u8,
    /// What follows the length byte.
    pub data: &'a [u8],
}

impl Opt<'_> {
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

/// The options up to the end of the list, without padding. Ends after an error.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Options<'a> {
    /// The options in `bytes`, which follow the fixed header.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<Opt<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (&kind, behind) = self.rest.split_first()?;
            match kind {
                Opt::END => self.rest = &[],
                Opt::NOP => self.rest = behind,
                _ => {
                    let len = behind.first().map_or(0, |&len| usize::from(len));
                    let Some((option, rest)) = self.rest.split_at_checked(len).filter(|_| len >= 2) else {
                        self.rest = &[];
                        return Some(Err(Malformed::Ipv4Option));
                    };
                    self.rest = rest;
                    return Some(Ok(Opt { kind, data: &option[2..] }));
                }
            }
        }
    }
}

/// Turns the options that only the first fragment carries into padding, in place, for the fragments after it
/// (RFC 791 §3.2; Linux `ip_options_fragment`).
///
/// # Errors
/// [`Malformed::Ipv4Option`]; what was walked until then is changed.
pub fn blank_uncopied_options(mut options: &mut [u8]) -> Result<(), Malformed> {
    while let Some(&kind) = options.first() {
        let len = match kind {
            Opt::END => return Ok(()),
            Opt::NOP => 1,
            _ => options.get(1).map_or(0, |&len| usize::from(len)).max(1),
        };
        if kind != Opt::NOP && len < 2 {
            return Err(Malformed::Ipv4Option);
        }
        let (option, rest) = options.split_at_mut_checked(len).ok_or(Malformed::Ipv4Option)?;
        if kind & 0x80 == 0 {
            option.fill(Opt::NOP);
        }
        options = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_walked_up_to_the_end_of_the_list() {
        let alert = Opt { kind: Opt::ROUTER_ALERT, data: &[0, 0] };
        let bad = Err(Malformed::Ipv4Option);
        let cases: [(&[u8], &[_]); 9] = [
            (&[], &[]),
            (&[Opt::NOP, Opt::NOP, Opt::END, 7], &[]),
            (&[148, 4, 0, 0], &[Ok(alert)]),
            (&[Opt::NOP, 148, 4, 0, 0, 148, 4, 0, 0, 0], &[Ok(alert), Ok(alert)]),
            (&[7, 2], &[Ok(Opt { kind: 7, data: &[] })]),
            (&[7, 1, 148, 4, 0, 0], &[bad]),
            (&[7, 0], &[bad]),
            (&[7], &[bad]),
            (&[148, 4, 0, 0, 7, 3], &[Ok(alert), bad]),
        ];
        for (bytes, want) in cases {
            assert_eq!(Options::new(bytes).collect::<Vec<_>>(), want, "{bytes:?}");
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
