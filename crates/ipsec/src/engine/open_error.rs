//! Failure to open an ESP packet.

/// Reason why a packet cannot be opened. Its bytes are then not the plaintext, and must not be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OpenError {
    /// The integrity check value does not match: the packet is forged or damaged.
    IcvWrong,
    /// The packet is authentic, or has no ICV, but its length is no multiple of the cipher's block.
    NotBlocks,
}

/// Zeroes `text` if it is not authentic.
///
/// # Errors
/// [`OpenError::IcvWrong`] then.
pub(super) fn release_or_erase(is_authentic: bool, text: &mut [u8]) -> Result<(), OpenError> {
    if is_authentic {
        return Ok(());
    }
    text.fill(0);
    Err(OpenError::IcvWrong)
}
