//! Serialisation of values as their `Display` text, so that JSON has the notation of the command line.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serializer, de};

/// Writes the `Display` text of a value.
///
/// # Errors
/// Error of the serializer.
pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// Parses a value with `FromStr`.
///
/// # Errors
/// Error of the deserializer, or of `FromStr`.
pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(de::Error::custom)
}

/// Serialisation of lists of values.
pub mod list {
    use super::{Deserialize, Deserializer, Display, FromStr, Serializer, de};

    /// Writes the `Display` text of each value.
    ///
    /// # Errors
    /// Error of the serializer.
    pub fn serialize<T: Display, S: Serializer>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(ToString::to_string))
    }

    /// Parses each value with `FromStr`.
    ///
    /// # Errors
    /// Error of the deserializer, or of `FromStr` for the first invalid value.
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(de::Error::custom)).collect()
    }
}
