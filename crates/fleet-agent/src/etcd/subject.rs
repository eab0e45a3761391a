//! Common name of a certificate's subject (RFC 5280 §4.1, X.690).

/// Tags of X.690.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// Version of a certificate.
const VERSION: u8 = 0xa0;

/// Object identifier of the common name, 2.5.4.3.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// Common name of the subject, if the certificate has one.
pub(super) fn common_name(certificate: &[u8]) -> Option<String> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut rest, _) = element(certificate, SEQUENCE)?;
    if let Some((_, behind)) = element(rest, VERSION) {
        rest = behind;
    }
    // Serial number, algorithm, issuer and validity.
    for _ in 0..4 {
        (_, _, rest) = any(rest)?;
    }
    let (mut names, _) = element(rest, SEQUENCE)?;
    let mut last = None;
    while !names.is_empty() {
        let (mut attributes, behind) = element(names, SET)?;
        names = behind;
        while !attributes.is_empty() {
            let (attribute, behind) = element(attributes, SEQUENCE)?;
            attributes = behind;
            let (kind, value) = element(attribute, OBJECT_IDENTIFIER)?;
            if kind == COMMON_NAME {
                let (_, text, _) = any(value)?;
                last = Some(String::from_utf8(text.to_vec()).ok()?);
            }
        }
    }
    last
}

/// Contents of the first element, which has a tag, and the bytes behind it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, contents, rest) = any(bytes)?;
    (found == tag).then_some((contents, rest))
}

/// Tag and contents of the first element, and the bytes behind it.
fn any(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, first, rest @ ..] = bytes else { return None };
    let (len, rest) = match *first {
        short @ 0..0x80 => (usize::from(short), rest),
        long => {
            let count = usize::from(long & 0x7f);
            if !(1..=3).contains(&count) {
                return None;
            }
            let (digits, rest) = rest.split_at_checked(count)?;
            (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
        }
    };
    let (contents, rest) = rest.split_at_checked(len)?;
    Some((*tag, contents, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn certificate(names: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, text) in names {
            params.distinguished_name.push(kind.clone(), *text);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn common_name_is_read() {
        let long = "f".repeat(200);
        for (names, want) in [
            (&[(DnType::CommonName, "f/node/a")][..], Some("f/node/a")),
            (&[(DnType::OrganizationName, "o"), (DnType::CommonName, &long)], Some(&long)),
            (&[(DnType::CommonName, "ä"), (DnType::OrganizationName, "o")], Some("ä")),
            (&[(DnType::OrganizationName, "o")], None),
            (&[], None),
        ] {
            assert_eq!(common_name(&certificate(names)).as_deref(), want);
        }
    }

    #[test]
    fn damaged_certificate_has_no_name_and_no_panic() {
        let whole = certificate(&[(DnType::CommonName, "a")]);
        for len in 0..100 {
            assert_eq!(common_name(&whole[..len]), None);
        }
        for at in 0..whole.len() {
            for byte in [0, 0x7f, 0x80, 0x83, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _ = common_name(&damaged);
            }
        }
    }
}
