//! Key schedules of libraries that return them by value, and removal of the copies that this leaves on the stack and in
//! vector registers.

use std::mem::MaybeUninit;

use zeroize::Zeroize;

/// Bytes of stack that [`wipe_stack`] zeroes. The constructors of the libraries have frames of some kilobytes, also
/// without optimisation. A fuzzer, which makes hundreds of thousands of SAs a second, has no secrets.
#[expect(unexpected_cfgs, reason = "the flag is that of cargo-fuzz")]
const WIPED: usize = if cfg!(fuzzing) { 8 } else { 64 << 10 };

/// Zeroes the stack below the caller's frame, with the copies that the caller's last call left there, and the vector
/// registers: the dynamic linker saves them on the stack when it looks up a symbol, at any later call.
#[inline(never)]
pub(super) fn wipe_stack() {
    let mut below = [0_u64; WIPED / 8];
    below.zeroize();
    wipe_vector_registers();
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn wipe_vector_registers() {
    use std::arch::asm;

    // SAFETY: writes the registers that it names as changed, and nothing else.
    unsafe {
        asm!(
            "xorps xmm0, xmm0", "xorps xmm1, xmm1", "xorps xmm2, xmm2", "xorps xmm3, xmm3",
            "xorps xmm4, xmm4", "xorps xmm5, xmm5", "xorps xmm6, xmm6", "xorps xmm7, xmm7",
            "xorps xmm8, xmm8", "xorps xmm9, xmm9", "xorps xmm10, xmm10", "xorps xmm11, xmm11",
            "xorps xmm12, xmm12", "xorps xmm13, xmm13", "xorps xmm14, xmm14", "xorps xmm15, xmm15",
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nomem, nostack, preserves_flags),
        );
    }
    if is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX.
        unsafe { wipe_ymm() }
    }
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has AVX-512F.
        unsafe { wipe_zmm() }
    }
}

/// Zeroes the upper halves too, of the first 16 registers.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx")]
fn wipe_ymm() {
    std::arch::x86_64::_mm256_zeroall();
}

/// Zeroes the registers that only AVX-512 has, which `memcpy` uses.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx512f")]
fn wipe_zmm() {
    use std::arch::asm;

    // SAFETY: writes the registers that it names as changed, and nothing else.
    unsafe {
        asm!(
            "vpxorq zmm16, zmm16, zmm16", "vpxorq zmm17, zmm17, zmm17", "vpxorq zmm18, zmm18, zmm18",
            "vpxorq zmm19, zmm19, zmm19", "vpxorq zmm20, zmm20, zmm20", "vpxorq zmm21, zmm21, zmm21",
            "vpxorq zmm22, zmm22, zmm22", "vpxorq zmm23, zmm23, zmm23", "vpxorq zmm24, zmm24, zmm24",
            "vpxorq zmm25, zmm25, zmm25", "vpxorq zmm26, zmm26, zmm26", "vpxorq zmm27, zmm27, zmm27",
            "vpxorq zmm28, zmm28, zmm28", "vpxorq zmm29, zmm29, zmm29", "vpxorq zmm30, zmm30, zmm30",
            "vpxorq zmm31, zmm31, zmm31",
            out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
            out("xmm20") _, out("xmm21") _, out("xmm22") _, out("xmm23") _,
            out("xmm24") _, out("xmm25") _, out("xmm26") _, out("xmm27") _,
            out("xmm28") _, out("xmm29") _, out("xmm30") _, out("xmm31") _,
            options(nomem, nostack, preserves_flags),
        );
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn wipe_vector_registers() {
    use std::arch::asm;

    // SAFETY: writes the registers that it names as changed, and nothing else.
    unsafe {
        asm!(
            "movi v0.2d, #0", "movi v1.2d, #0", "movi v2.2d, #0", "movi v3.2d, #0",
            "movi v4.2d, #0", "movi v5.2d, #0", "movi v6.2d, #0", "movi v7.2d, #0",
            "movi v8.2d, #0", "movi v9.2d, #0", "movi v10.2d, #0", "movi v11.2d, #0",
            "movi v12.2d, #0", "movi v13.2d, #0", "movi v14.2d, #0", "movi v15.2d, #0",
            "movi v16.2d, #0", "movi v17.2d, #0", "movi v18.2d, #0", "movi v19.2d, #0",
            "movi v20.2d, #0", "movi v21.2d, #0", "movi v22.2d, #0", "movi v23.2d, #0",
            "movi v24.2d, #0", "movi v25.2d, #0", "movi v26.2d, #0", "movi v27.2d, #0",
            "movi v28.2d, #0", "movi v29.2d, #0", "movi v30.2d, #0", "movi v31.2d, #0",
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _, out("v7") _,
            out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _, out("v14") _,
            out("v15") _, out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _,
            out("v22") _, out("v23") _, out("v24") _, out("v25") _, out("v26") _, out("v27") _, out("v28") _,
            out("v29") _, out("v30") _, out("v31") _,
            options(nomem, nostack, preserves_flags),
        );
    }
}

/// Zeroes no register: only those of the two architectures above are known here, and Miri has none.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn wipe_vector_registers() {}

/// A value without drop glue or pointers to memory of its own, whose bytes are zeroed when it goes.
///
/// Invariant: the box is initialised from `new` to `drop`.
pub(super) struct Secret<T>(Box<MaybeUninit<T>>);

impl<T> Secret<T> {
    pub(super) fn new(value: T) -> Self {
        const { assert!(!std::mem::needs_drop::<T>()) }
        Self(Box::new(MaybeUninit::new(value)))
    }

    #[inline]
    pub(super) fn get(&self) -> &T {
        // SAFETY: initialised, by the invariant.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // SAFETY: the box is valid for writes of a `T`; nothing reads it as one again, this being its drop, and it has
        // no drop glue that would.
        unsafe { zeroize::zeroize_flat_type(&raw mut *self.0) }
    }
}
