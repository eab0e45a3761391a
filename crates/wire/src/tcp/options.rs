//! TCP options (RFC 9293 §3.1, RFC 7323, RFC 2018).

use crate::Malformed;

/// A TCP option.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TcpOption<'a> {
    /// Maximum segment size of the sender (RFC 9293 §3.7.1).
    Mss(u16),
    /// Shift of the window, 0 to 14 (RFC 7323 §2); a larger value is kept.
    WindowScale(u8),
    /// The sender accepts selective acknowledgments (RFC 2018 §2).
    SackPermitted,
    /// Selective acknowledgments: pairs of 32-bit edges (RFC 2018 §3).
    Sack(&'a [u8]),
    /// Timestamp and its echo (RFC 7323 §3).
    Timestamps {
        /// The sender's clock.
        value: u32,
        /// Latest timestamp that the sender has received.
        echo: u32,
    },
    /// Any other option.
    Other {
        /// The kind byte.
        kind: u8,
        /// Bytes behind the length byte.
        data: &'a [u8],
    },
}

/// The options up to the end of the list, without padding. Iteration ends after an error.
#[derive(Clone, Debug)]
pub struct TcpOptions<'a> {
    rest: &'a [u8],
}

impl<'a> TcpOptions<'a> {
    /// The options in `bytes`, which follow the fixed header.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for TcpOptions<'a> {
    type Item = Result<TcpOption<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (&kind, behind) = self.rest.split_first()?;
            match kind {
                0 => self.rest = &[],
                1 => self.rest = behind,
                _ => {
                    let len = behind.first().map_or(0, |&len| usize::from(len));
                    let option = self.rest.split_at_checked(len).filter(|_| len >= 2);
                    self.rest = option.map_or(&[], |(_, rest)| rest);
                    let option = option.and_then(|(option, _)| typed(kind, &option[2..]));
                    if option.is_none() {
                        self.rest = &[];
                    }
                    return Some(option.ok_or(Malformed::TcpOption));
                }
            }
        }
    }
}

/// The typed option; `None` if the length is wrong for a known kind.
fn typed(kind: u8, data: &[u8]) -> Option<TcpOption<'_>> {
    let word = |bytes: &[u8; 4]| u32::from_be_bytes(*bytes);
    Some(match kind {
        2 => TcpOption::Mss(u16::from_be_bytes(*data.as_array()?)),
        3 => {
            let &[shift] = data.as_array()?;
            TcpOption::WindowScale(shift)
        }
        4 if data.is_empty() => TcpOption::SackPermitted,
        5 if !data.is_empty() && data.len().is_multiple_of(8) => TcpOption::Sack(data),
        4 | 5 => return None,
        8 => {
            let (value, echo) = data.split_at_checked(4)?;
            TcpOption::Timestamps { value: word(value.as_array()?), echo: word(echo.as_array()?) }
        }
        _ => TcpOption::Other { kind, data },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_a_linux_syn_are_read() {
        let bytes = [2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7];
        let options: Vec<_> = TcpOptions::new(&bytes).map(Result::unwrap).collect();
        let timestamps = TcpOption::Timestamps { value: 1, echo: 2 };
        assert_eq!(options, [TcpOption::Mss(1460), TcpOption::SackPermitted, timestamps, TcpOption::WindowScale(7)]);
    }

    #[test]
    fn an_option_has_its_length_or_ends_the_walk() {
        let bad = Err(Malformed::TcpOption);
        let cases: [(&[u8], &[_]); 16] = [
            (&[], &[]),
            (&[0, 2, 4], &[]),
            (&[1, 1, 1], &[]),
            (&[2], &[bad]),
            (&[2, 0], &[bad]),
            (&[2, 1], &[bad]),
            (&[2, 3, 5, 1], &[bad]),
            (&[2, 4, 5], &[bad]),
            (&[3, 2, 1, 1], &[bad]),
            (&[4, 3, 0, 1], &[bad]),
            (&[5, 2], &[bad]),
            (&[5, 9, 1, 2, 3, 4, 5, 6, 7], &[bad]),
            (&[5, 10, 1, 2, 3, 4, 5, 6, 7, 8], &[Ok(TcpOption::Sack(&[1, 2, 3, 4, 5, 6, 7, 8]))]),
            (&[8, 9, 0, 0, 0, 0, 0, 0, 0], &[bad]),
            (&[8, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[bad]),
            (
                &[254, 2, 254, 3, 9],
                &[Ok(TcpOption::Other { kind: 254, data: &[] }), Ok(TcpOption::Other { kind: 254, data: &[9] })],
            ),
        ];
        for (bytes, want) in cases {
            assert_eq!(TcpOptions::new(bytes).collect::<Vec<_>>(), want, "{bytes:?}");
        }
    }
}
