//! Libraries that AES-GCM is taken from.

use std::fmt;

/// Library that AES-GCM is taken from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Library {
    /// `ring`, ahead where vectors have 256 bits. It has no 192-bit keys.
    Ring,
    /// AWS-LC, ahead of that where they have 512.
    AwsLc,
    /// Intel's Multi-Buffer Crypto for IPsec, for AES-GCM, ahead of both where they have 512. What it has not is AWS-LC's.
    #[cfg(feature = "ipsec-mb")]
    IpsecMb,
}

impl Library {
    /// All that this program is built with.
    pub const ALL: &[Self] = &[
        Self::Ring,
        Self::AwsLc,
        #[cfg(feature = "ipsec-mb")]
        Self::IpsecMb,
    ];

    /// The fastest one on this processor.
    pub fn fastest() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq")
        {
            #[cfg(feature = "ipsec-mb")]
            if super::ipsec_mb::is_wide() {
                return Self::IpsecMb;
            }
            return Self::AwsLc;
        }
        Self::Ring
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::AwsLc => "AWS-LC",
            #[cfg(feature = "ipsec-mb")]
            Self::IpsecMb => "ipsec-mb",
        })
    }
}
