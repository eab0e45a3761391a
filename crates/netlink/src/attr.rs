//! Attributes: parsed by type and validated by a policy table, as Linux's `nla_policy` does (`lib/nlattr.c`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::{Error, errno};
use super::message::align;

/// Length of `struct nlattr`.
const HEADER_LEN: usize = 4;
/// Type bits of an attribute's `nla_type` field (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;
/// Flag of an attribute that contains nested attributes (`NLA_F_NESTED`).
const NESTED: u16 = 0x8000;

/// Required form of an attribute's payload.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Kind {
    /// Unknown: ignored, or refused by a strict parse.
    #[default]
    Unknown,
    /// Anything.
    Any,
    /// At least this many bytes, of which this many are read; exactly this many in a strict parse.
    Int(u16),
    /// At least this many bytes.
    Min(u16),
    /// At most this many bytes.
    Max(u16),
    /// Exactly this many bytes.
    Exact(u16),
    /// Text of at most this many bytes before its end.
    Str(u16),
    /// Text of at most this many bytes, followed by a required zero byte.
    NulStr(u16),
    /// Flag without a payload.
    Flag,
    /// Nested attributes.
    Nested,
    /// Forbidden attribute (`NLA_REJECT`).
    Reject,
}

/// Kinds by type.
pub type AttrPolicy<const N: usize> = [Kind; N];

/// Policy table with the given kinds, and [`Kind::Unknown`] for all other types.
pub const fn policy<const N: usize>(kinds: &[(u16, Kind)]) -> AttrPolicy<N> {
    let mut table = [Kind::Unknown; N];
    let mut at = 0;
    while at < kinds.len() {
        table[kinds[at].0 as usize] = kinds[at].1;
        at += 1;
    }
    table
}

/// Tolerance of a parse.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Strictness {
    /// Unknown attributes are ignored, and numbers may be too long (`NL_VALIDATE_LIBERAL`).
    Liberal,
    /// Unknown attributes, overlong numbers and trailing bytes are refused (`NL_VALIDATE_STRICT`).
    Strict,
}

/// One attribute.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Attr<'a> {
    /// Type, without flags.
    pub kind: u16,
    /// Whether the attribute has the flag `NLA_F_NESTED`.
    pub nested: bool,
    /// Payload.
    pub data: &'a [u8],
    /// Offset, counted from the message's header.
    pub offset: u32,
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $from:path;)*) => {$(
        $(#[$doc])*
        pub fn $name(&self) -> $type {
            self.data.first_chunk().map_or(0, |bytes| $from(*bytes))
        }
    )*};
}

impl<'a> Attr<'a> {
    numbers! {
        /// First 8 bits, or 0 if the payload is shorter.
        u8: u8 = u8::from_ne_bytes;
        /// First 16 bits, or 0 if the payload is shorter.
        u16: u16 = u16::from_ne_bytes;
        /// First 16 bits in network byte order, or 0 if the payload is shorter.
        be16: u16 = u16::from_be_bytes;
        /// First 32 bits, or 0 if the payload is shorter.
        u32: u32 = u32::from_ne_bytes;
        /// First 32 bits in network byte order, or 0 if the payload is shorter.
        be32: u32 = u32::from_be_bytes;
        /// First 64 bits, or 0 if the payload is shorter.
        u64: u64 = u64::from_ne_bytes;
    }

    /// Bytes up to a zero byte, as text. `None` if the bytes are no UTF-8.
    pub fn text(&self) -> Option<&'a str> {
        let end = self.data.iter().position(|&byte| byte == 0).unwrap_or(self.data.len());
        std::str::from_utf8(&self.data[..end]).ok()
    }

    /// The address at the start of the payload. `None` if the payload is shorter than an address of the family.
    pub fn ip(&self, v4: bool) -> Option<IpAddr> {
        if v4 {
            self.data.first_chunk().map(|octets: &[u8; 4]| Ipv4Addr::from(*octets).into())
        } else {
            self.data.first_chunk().map(|octets: &[u8; 16]| Ipv6Addr::from(*octets).into())
        }
    }

    /// Parses the nested attributes.
    ///
    /// # Errors
    /// As [`parse`].
    pub fn parse<const N: usize>(&self, policy: &AttrPolicy<N>, strict: Strictness) -> Result<Attrs<'a, N>, Error> {
        if strict == Strictness::Strict && !self.nested {
            return Err(self.refused("NLA_F_NESTED is missing"));
        }
        parse(self.data, self.offset + HEADER_LEN as u32, policy, strict)
    }

    /// Nested attributes, without validation.
    pub fn iter(&self) -> Iter<'a> {
        Iter::new(self.data, self.offset + HEADER_LEN as u32)
    }

    /// An `EINVAL` that names this attribute.
    pub fn refused(&self, text: &'static str) -> Error {
        Error::text(errno::EINVAL, text).at(self.offset)
    }

    fn check(&self, kind: Kind, strict: Strictness) -> Result<(), Error> {
        let strict = strict == Strictness::Strict;
        let len = self.data.len();
        let failed = |errno| Err(Error::text(errno, "Attribute failed policy validation").at(self.offset));
        match kind {
            Kind::Int(want) | Kind::Exact(want) if strict && len != usize::from(want) => {
                Err(self.refused("invalid attribute length"))
            }
            Kind::Exact(want) if len != usize::from(want) => failed(errno::ERANGE),
            Kind::Int(least) | Kind::Min(least) if len < usize::from(least) => failed(errno::ERANGE),
            Kind::Max(most) if len > usize::from(most) => failed(errno::ERANGE),
            Kind::NulStr(most) if !self.data.iter().take(usize::from(most) + 1).any(|&byte| byte == 0) => {
                failed(errno::EINVAL)
            }
            Kind::Str(most) | Kind::NulStr(most) => match self.data {
                [] => failed(errno::ERANGE),
                data if data.strip_suffix(&[0]).unwrap_or(data).len() > usize::from(most) => failed(errno::ERANGE),
                _ => Ok(()),
            },
            Kind::Flag if len > 0 => failed(errno::ERANGE),
            // An empty nest is allowed.
            Kind::Nested if len > 0 && len < HEADER_LEN => failed(errno::ERANGE),
            Kind::Reject => failed(errno::EINVAL),
            Kind::Unknown if strict => Err(self.refused("Unsupported attribute")),
            _ => Ok(()),
        }
    }
}

/// The attributes of a message or a nest, by type. If a type occurs several times, the last attribute counts.
#[derive(Clone, Copy, Debug)]
pub struct Attrs<'a, const N: usize>([Option<Attr<'a>>; N]);

impl<'a, const N: usize> Attrs<'a, N> {
    /// Attribute of type `kind`, if present.
    pub fn get(&self, kind: u16) -> Option<&Attr<'a>> {
        self.0.get(usize::from(kind))?.as_ref()
    }

    /// Attributes that are present, in the order of their types.
    pub fn iter(&self) -> impl Iterator<Item = &Attr<'a>> {
        self.0.iter().flatten()
    }
}

/// Parses the attributes in `bytes`, which begin `offset` bytes behind the message's header, and validates them.
///
/// # Errors
/// The first attribute that violates `policy`; if `strict`, also an attribute of unknown type, and trailing bytes that
/// are no attribute.
pub fn parse<'a, const N: usize>(
    bytes: &'a [u8],
    offset: u32,
    policy: &AttrPolicy<N>,
    strict: Strictness,
) -> Result<Attrs<'a, N>, Error> {
    let mut found = [None; N];
    let mut all = Iter::new(bytes, offset);
    for attr in &mut all {
        match policy.get(usize::from(attr.kind)).filter(|_| attr.kind > 0) {
            Some(&kind) => {
                attr.check(kind, strict)?;
                found[usize::from(attr.kind)] = Some(attr);
            }
            None if strict == Strictness::Strict => return Err(attr.refused("Unknown attribute type")),
            None => {}
        }
    }
    if strict == Strictness::Strict && !all.rest.is_empty() {
        return Err(Error::text(errno::EINVAL, "bytes leftover after parsing attributes"));
    }
    Ok(Attrs(found))
}

/// Iterator over attributes; an attribute with a wrong length ends the iteration.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    rest: &'a [u8],
    offset: u32,
}

impl<'a> Iter<'a> {
    /// Attributes in `bytes`, which begin `offset` bytes behind the message's header.
    pub const fn new(bytes: &'a [u8], offset: u32) -> Self {
        Self { rest: bytes, offset }
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = Attr<'a>;

    fn next(&mut self) -> Option<Attr<'a>> {
        let [l0, l1, k0, k1] = *self.rest.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let kind = u16::from_ne_bytes([k0, k1]);
        let data = self.rest.get(HEADER_LEN..len)?;
        let attr = Attr { kind: kind & TYPE_MASK, nested: kind & NESTED != 0, data, offset: self.offset };
        let whole = align(len).min(self.rest.len());
        self.rest = &self.rest[whole..];
        self.offset = self.offset.saturating_add(whole as u32);
        Some(attr)
    }
}

#[cfg(test)]
mod tests {
    use super::Kind::*;
    use super::Strictness::*;
    use super::*;

    const POLICY: AttrPolicy<10> = policy(&[
        (1, Int(4)),
        (2, Str(4)),
        (3, NulStr(4)),
        (4, Nested),
        (5, Flag),
        (6, Exact(4)),
        (7, Max(4)),
        (8, Reject),
    ]);

    fn attr(len: u16, kind: u16, data: &[u8]) -> Vec<u8> {
        [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), data].concat()
    }

    #[test]
    fn an_attribute_is_judged_by_its_policy_as_linux_does() {
        const FAILED: &str = "Attribute failed policy validation";
        type Verdict = Result<(), (i32, &'static str)>;
        let ok = Ok(());
        let cases: [(&[u8], u16, Verdict, Verdict); 23] = [
            (&[1, 2, 3, 4], 1, ok, ok),
            (&[1, 2, 3], 1, Err((34, FAILED)), Err((22, "invalid attribute length"))),
            (&[1, 2, 3, 4, 5], 1, ok, Err((22, "invalid attribute length"))),
            (b"abcd", 2, ok, ok),
            (b"abcd\0", 2, ok, ok),
            (b"abcde", 2, Err((34, FAILED)), Err((34, FAILED))),
            (b"", 2, Err((34, FAILED)), Err((34, FAILED))),
            (b"abc\0", 3, ok, ok),
            (b"abcd\0", 3, ok, ok),
            (b"abcd", 3, Err((22, FAILED)), Err((22, FAILED))),
            (b"ab\0de", 3, Err((34, FAILED)), Err((34, FAILED))),
            (b"", 4, ok, ok),
            (b"abc", 4, Err((34, FAILED)), Err((34, FAILED))),
            (b"", 5, ok, ok),
            (b"a", 5, Err((34, FAILED)), Err((34, FAILED))),
            (b"abcd", 6, ok, ok),
            (b"abcde", 6, Err((34, FAILED)), Err((22, "invalid attribute length"))),
            (b"abcd", 7, ok, ok),
            (b"abcde", 7, Err((34, FAILED)), Err((34, FAILED))),
            (b"", 8, Err((22, FAILED)), Err((22, FAILED))),
            (b"", 9, ok, Err((22, "Unsupported attribute"))),
            (b"", 10, ok, Err((22, "Unknown attribute type"))),
            (b"", 0, ok, Err((22, "Unknown attribute type"))),
        ];
        for (data, kind, liberal, strict) in cases {
            let bytes = attr(data.len() as u16 + 4, kind, data);
            for (strictness, want) in [(Liberal, liberal), (Strict, strict)] {
                let got = parse(&bytes, 16, &POLICY, strictness);
                let want = want.map_err(|(errno, text)| Error::text(errno, text).at(16));
                assert_eq!(got.map(drop), want, "{kind} {data:?} {strictness:?}");
            }
        }
    }

    #[test]
    fn a_wrong_length_ends_the_attributes() {
        let good = attr(8, 1, &[1, 0, 0, 0]);
        for bad in [attr(3, 1, &[0; 8]), attr(13, 1, &[0; 8]), attr(u16::MAX, 1, &[0; 8]), vec![8, 0, 1]] {
            let bytes = [good.clone(), bad].concat();
            let found = parse(&bytes, 28, &POLICY, Liberal).unwrap();
            assert_eq!(found.get(1).map(|attr| (attr.u32(), attr.offset)), Some((1, 28)));
            let error = parse(&bytes, 28, &POLICY, Strict).map(drop).unwrap_err();
            assert_eq!(error, Error::text(22, "bytes leftover after parsing attributes"));
        }
    }

    #[test]
    fn last_attribute_of_a_type_counts_with_offset_in_the_message() {
        let inner = [attr(8, 1, &[1, 0, 0, 0]), attr(8, 1, &[2, 0, 0, 0])].concat();
        let bytes = [attr(5, 7, &[9, 0, 0, 0]), attr(20, 4 | NESTED, &inner)].concat();
        let found = parse(&bytes, 16, &POLICY, Strict).unwrap();
        let nest = found.get(4).unwrap();
        assert_eq!((nest.offset, nest.iter().map(|attr| attr.offset).collect::<Vec<_>>()), (24, vec![28, 36]));
        let inner = nest.parse(&POLICY, Strict).unwrap();
        assert_eq!((inner.get(1).unwrap().u32(), inner.iter().count()), (2, 1));
        let flat = Attr { nested: false, ..*nest };
        assert_eq!(flat.parse(&POLICY, Strict).unwrap_err(), flat.refused("NLA_F_NESTED is missing"));
        assert_eq!(found.get(7).unwrap().u32(), 0);
        assert_eq!(found.get(200), None);
    }
}
