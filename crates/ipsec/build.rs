//! Compiles the shim of Intel's library, if that feature is on.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "ipsec-mb")]
    {
        const SHIM: &str = "src/engine/ipsec_mb.c";
        println!("cargo::rerun-if-changed={SHIM}");
        // A program works with the release that it was built for.
        println!("cargo::rerun-if-changed=/usr/include/intel-ipsec-mb.h");
        cc::Build::new().file(SHIM).warnings_into_errors(true).compile("fatpath_ipsec_mb");
        println!("cargo::rustc-link-lib=IPSec_MB");
    }
}
