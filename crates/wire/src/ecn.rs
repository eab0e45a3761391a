//! Explicit congestion notification (RFC 3168 §5).

/// Explicit congestion notification, the lower two bits of TOS and traffic class (RFC 3168 §5).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Ecn {
    /// The transport is not ECN-capable.
    NotEct = 0,
    /// ECN-capable transport, ECT(1).
    Ect1 = 1,
    /// ECN-capable transport, ECT(0).
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// The lower two bits of `tos`.
    pub const fn from_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// `tos` with its lower two bits replaced.
    pub const fn in_tos(self, tos: u8) -> u8 {
        tos & !3 | self as u8
    }
}
