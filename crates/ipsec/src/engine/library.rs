//! Libraries that implement AES-GCM.

use std::fmt;

/// Library that implements AES-GCM.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Library {
    /// `ring`, the fastest with vectors of 256 bits, although it encrypts in place alone, so that texts are copied first. It has
    /// no 192-bit keys.
    Ring,
    /// AWS-LC, faster than `ring` with vectors of 512 bits, and without vectors of AES (AES-NI), where it saves the copy.
    AwsLc,
    /// Intel's Multi-Buffer Crypto for IPsec, the fastest with vectors of 512 bits. Algorithms that it lacks are
    /// AWS-LC's.
    #[cfg(feature = "ipsec-mb")]
    IpsecMb,
}

impl Library {
    /// Libraries that this program is built with.
    pub const ALL: &[Self] = &[
        Self::Ring,
        Self::AwsLc,
        #[cfg(feature = "ipsec-mb")]
        Self::IpsecMb,
    ];

    /// The fastest one on this processor.
    pub fn fastest() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let has_vectors = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("vaes")
                && is_x86_feature_detected!("vpclmulqdq");
            let is_wide = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl");
            #[cfg(feature = "ipsec-mb")]
            if has_vectors && is_wide && super::ipsec_mb::is_wide() {
                return Self::IpsecMb;
            }
            if is_wide || !has_vectors {
                return Self::AwsLc;
            }
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
