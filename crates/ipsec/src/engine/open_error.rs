//! Failure to open an ESP packet.

/// Reason why a packet cannot be opened. Its bytes are then of no use, and not the plaintext.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OpenError {
    /// The integrity check value does not match: the packet is forged or damaged.
    IcvWrong,
    /// It is authentic, if anything says so, but not whole blocks of its cipher.
    NotBlocks,
}

/// Zeroes `text` if it is not authentic.
///
/// # Errors
/// [`OpenError::IcvWrong`] then.
pub(super) fn judge(is_authentic: bool, text: &mut [u8]) -> Result<(), OpenError> {
    if is_authentic {
        return Ok(());
    }
    text.fill(0);
    Err(OpenError::IcvWrong)
}
