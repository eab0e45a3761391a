//! `aead`, `enc`, `auth` and `auth-trunc` of an SA, with the kernel's refusals.

use xfrm::{Aead, Algorithm, Auth, AuthConfig, Enc, Key, MAX_KEY, MIN_ICV_BITS, Name};
use zeroize::Zeroizing;

use super::reader::{Result, Table, Value, one_of, quoted};

/// Keys of an SA with its algorithms.
pub(super) const KEYS: [&str; 4] = ["aead", "enc", "auth", "auth-trunc"];

/// Reads `aead` alone, or `enc` with at most one of `auth` and `auth-trunc` (Linux `verify_newsa_info`,
/// `esp_init_state`).
pub(super) fn read(table: &Table<'_>) -> Result<Algorithm> {
    let [aead, enc, auth, trunc] = KEYS.map(|key| table.get(key));
    match (aead, enc, auth, trunc) {
        (Some(aead), None, None, None) => read_aead(&aead),
        (Some(_), Some(other), ..) | (Some(_), _, Some(other), _) | (Some(_), .., Some(other)) => {
            Err(other.error("an aead encrypts and authenticates; take aead out, or enc, auth and auth-trunc"))
        }
        (None, Some(enc), auth, trunc) => {
            let auth = match (auth, trunc) {
                (Some(_), Some(trunc)) => return Err(trunc.error("an SA has one code; take auth or auth-trunc out")),
                (Some(auth), None) => read_auth(&auth)?,
                (None, Some(trunc)) => Some(read_trunc(&trunc)?),
                (None, None) => None,
            };
            let (enc, key) = read_enc(&enc)?;
            Ok(Algorithm::Separate { enc, key, auth })
        }
        (None, None, None, None) => {
            Err(table.missing("aead", "use { name = \"rfc4106(gcm(aes))\", key = \"0x…\", icv = 128 }"))
        }
        (None, None, ..) => Err(table.missing("enc", "for integrity alone use enc = \"ecb(cipher_null)\"")),
    }
}

fn read_aead(value: &Value<'_>) -> Result<Algorithm> {
    let table = value.table(&["name", "key", "icv"])?;
    let name: Aead = name(&table)?;
    let key = key(&table, name)?;
    let hint = format!("use {}", numbers(name.icv_bits()));
    let icv = table.need("icv", &hint)?;
    let icv_bits = icv.number(0..=u16::MAX)?;
    if !name.icv_bits().contains(&icv_bits) {
        return Err(icv.error(format!("{icv_bits} is not an ICV length of {}; {hint}", name.name())));
    }
    Ok(Algorithm::Aead { name, key, icv_bits })
}

/// Reads a table, or the name alone of an algorithm without a key.
fn read_enc(value: &Value<'_>) -> Result<(Enc, Key)> {
    if value.is_table() {
        let table = value.table(&["name", "key"])?;
        let name: Enc = name(&table)?;
        let key = if name == Enc::Null && table.get("key").is_none() { Key::default() } else { key(&table, name)? };
        return Ok((name, key));
    }
    match known(value, value.str()?)? {
        Enc::Null => Ok((Enc::Null, Key::default())),
        other => Err(value.error(format!("needs a key; use {{ name = \"{}\", key = \"0x…\" }}", other.name()))),
    }
}

/// Reads an authentication algorithm; `None` for Linux's name of no authentication.
fn read_auth(value: &Value<'_>) -> Result<Option<AuthConfig>> {
    let table = value.table(&["name", "key"])?;
    if table.need("name", &format!("use {}", all::<Auth>()))?.str()? == "digest_null" {
        return match table.get("key") {
            Some(key) if !key_bytes(&key)?.is_empty() => Err(key.error("digest_null has no key; take it out")),
            _ => Ok(None),
        };
    }
    let name: Auth = name(&table)?;
    Ok(Some(AuthConfig { name, key: key(&table, name)?, icv_bits: name.default_icv_bits() }))
}

fn read_trunc(value: &Value<'_>) -> Result<AuthConfig> {
    let table = value.table(&["name", "key", "icv"])?;
    let name: Auth = name(&table)?;
    let key = key(&table, name)?;
    let hint = format!("use {MIN_ICV_BITS} to {}, in whole bytes", name.full_bits());
    let icv = table.need("icv", &hint)?;
    let icv_bits = icv.number(0..=u16::MAX)?;
    if !name.takes_icv_of(icv_bits) {
        return Err(icv.error(format!("{icv_bits} is not an ICV length of {}; {hint}", name.name())));
    }
    Ok(AuthConfig { name, key, icv_bits })
}

fn name<N: Name>(table: &Table<'_>) -> Result<N> {
    let value = table.need("name", &format!("use {}", all::<N>()))?;
    known(&value, value.str()?)
}

/// Looks up an algorithm by name (Linux `xfrm_aead_get_byname` and similar; ENOSYS).
pub(super) fn known<N: Name>(value: &Value<'_>, text: &str) -> Result<N> {
    if let Some(name) = N::by_name(text) {
        return Ok(name);
    }
    let all = all::<N>();
    Err(value.error(match N::MISSING.iter().find(|&&missing| missing == text) {
        Some(missing) => format!("{missing} is not supported; use {all}"),
        // A text without parentheses may be a key in the wrong place.
        None if text.contains('(') => {
            format!("Requested {} algorithm not found: {}; use {all}", N::KIND, quoted(text))
        }
        None => format!("Requested {} algorithm not found; use {all}", N::KIND),
    }))
}

/// Names of all algorithms of a kind, each once.
fn all<N: Name>() -> String {
    one_of(N::ALL.iter().map(|name| name.name()))
}

pub(super) fn key<N: Name>(table: &Table<'_>, name: N) -> Result<Key> {
    let (lens, salt) = (name.spec().key_lens, name.spec().salt_len);
    let what = match salt {
        0 => String::new(),
        _ => format!(", the last {salt} of them salt"),
    };
    let takes = match lens {
        [] => format!("1 to {MAX_KEY}"),
        _ => numbers(lens),
    };
    let value = table.need("key", &format!("use 0x and {takes} bytes in hexadecimal{what}"))?;
    let bytes = key_bytes(&value)?;
    let len = bytes.len();
    if name.takes_key_of(len) {
        return Ok(Key::new(bytes));
    }
    let hint = match value.str()? {
        text if text.starts_with("0x") => "",
        text if base64_len(text).is_some_and(|len| name.takes_key_of(len)) => {
            ", in hexadecimal behind 0x; this is base64, of which `base64 -d | xxd -p -c 0` makes hexadecimal"
        }
        _ => ", in hexadecimal behind 0x",
    };
    Err(value.error(format!("{len} bytes are no key of {}; use {takes} bytes{what}{hint}", name.name())))
}

/// Number of bytes that a text in base64 stands for (RFC 4648 §4); `None` for another text.
fn base64_len(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches('=');
    let is_base64 = digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    (is_base64 && text.len().is_multiple_of(4) && text.len() - digits.len() <= 2).then(|| digits.len() * 3 / 4)
}

fn numbers<T: ToString>(numbers: &[T]) -> String {
    let texts: Vec<String> = numbers.iter().map(T::to_string).collect();
    one_of(texts.iter().map(String::as_str))
}

/// Text in the place of a key that is not shown.
pub(super) const HIDDEN: &str = "…";

/// Bytes of a key: hexadecimal after `0x`, else the text's bytes, as in iproute2's `xfrm_algo_parse`.
fn key_bytes(value: &Value<'_>) -> Result<Zeroizing<Vec<u8>>> {
    let text = value.str()?;
    if text == HIDDEN {
        return Err(
            value.error("stands for a key that was left out; use check --expand --with-keys, or put the key here")
        );
    }
    let Some(digits) = text.strip_prefix("0x") else { return Ok(Zeroizing::new(text.as_bytes().to_vec())) };
    if digits.len() % 2 == 1 {
        return Err(value.error("a hexadecimal key has two digits for each byte; a digit is missing or too many"));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
    for pair in digits.as_bytes().chunks_exact(2) {
        let nibble = |digit: u8| char::from(digit).to_digit(16);
        let (Some(high), Some(low)) = (nibble(pair[0]), nibble(pair[1])) else {
            return Err(value.error("the key behind 0x is not hexadecimal; use the digits 0 to 9 and a to f"));
        };
        bytes.push((high << 4 | low) as u8);
    }
    Ok(bytes)
}
