//! Serialises values by their `Display` text, so that JSON has the notation of the command line.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serializer, de};

/// Writes the value's `Display`.
///
/// # Errors
/// The serializer's.
pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// Reads the value by its `FromStr`.
///
/// # Errors
/// The deserializer's, or that of `FromStr`.
pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(de::Error::custom)
}

/// The same for a list of values.
pub mod list {
    use super::{Deserialize, Deserializer, Display, FromStr, Serializer, de};

    /// Writes each value's `Display`.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<T: Display, S: Serializer>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(ToString::to_string))
    }

    /// Reads each value by its `FromStr`.
    ///
    /// # Errors
    /// The deserializer's, or that of the first value that `FromStr` refuses.
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(de::Error::custom)).collect()
    }
}
