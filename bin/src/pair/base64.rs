//! Base64 (RFC 4648): with the alphabet of URLs and without padding for lines, the usual one for PEM.

const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

const USUAL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Text of `bytes` in the alphabet of URLs, without padding.
pub(super) fn encode_url(bytes: &[u8]) -> String {
    let mut text = String::new();
    push(&mut text, bytes, URL);
    text
}

/// Appends `bytes` in the usual alphabet, padded. With room for four characters for each three bytes, `text` does not move.
pub(super) fn push_padded(text: &mut String, bytes: &[u8]) {
    push(text, bytes, USUAL);
    for _ in 0..(3 - bytes.len() % 3) % 3 {
        text.push('=');
    }
}

fn push(text: &mut String, bytes: &[u8], alphabet: &[u8; 64]) {
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for at in 0..=group.len() {
            text.push(alphabet[(bits >> (18 - 6 * at) & 63) as usize].into());
        }
    }
}

/// Bytes of a text in the alphabet of URLs without padding; `None` if it is none, or has bits beyond its bytes.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    for group in text.as_bytes().chunks(4) {
        let mut bits: u32 = 0;
        for letter in group {
            bits = bits << 6 | URL.iter().position(|it| it == letter)? as u32;
        }
        let len = (group.len() * 6) / 8;
        let spare = group.len() * 6 - len * 8;
        if len == 0 || bits & ((1 << spare) - 1) != 0 {
            return None;
        }
        bytes.extend_from_slice(&(bits >> spare << (32 - 8 * len)).to_be_bytes()[..len]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4648 §10.
    #[test]
    fn vectors_of_rfc_4648_agree() {
        for (bytes, text) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode_url(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        for (bytes, padded) in [(&b"f"[..], "Zg=="), (&[0xfb, 0xff], "+/8="), (b"foo", "Zm9v")] {
            let mut text = String::new();
            push_padded(&mut text, bytes);
            assert_eq!(text, padded);
        }
        for wrong in ["Z", "Zh", "Zm9", "Zg==", "Zm9vY", "+/"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
