//! AES-GCM of Intel's Multi-Buffer Crypto for IPsec library, an installed package: see `ipsec_mb.c`.

use std::alloc::{self, Layout, handle_alloc_error};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::slice;
use std::sync::OnceLock;

use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use super::open_error::{OpenError, release_or_erase};

/// Bytes of a nonce.
const NONCE_LEN: usize = 12;

/// Bytes of a whole tag.
const TAG_LEN: usize = 16;

unsafe extern "C" {
    static fatpath_gcm_size: usize;
    static fatpath_gcm_align: usize;
    fn fatpath_gcm_functions() -> *const c_void;
    fn fatpath_gcm_is_wide(of: *const c_void) -> c_int;
    fn fatpath_gcm_new(of: *const c_void, gcm: *mut u8, key: *const u8, key_len: usize);
    fn fatpath_gcm_seal(
        gcm: *const u8,
        text: *mut u8,
        len: usize,
        nonce: *const u8,
        aad: *const u8,
        aad_len: usize,
        tag: *mut u8,
        tag_len: usize,
    );
    fn fatpath_gcm_seal_from(
        gcm: *const u8,
        to: *mut u8,
        text: *const u8,
        len: usize,
        trailer: *const u8,
        trailer_len: usize,
        nonce: *const u8,
        aad: *const u8,
        aad_len: usize,
        tag: *mut u8,
        tag_len: usize,
    );
    fn fatpath_gcm_open(
        gcm: *const u8,
        text: *mut u8,
        len: usize,
        nonce: *const u8,
        aad: *const u8,
        aad_len: usize,
        tag: *mut u8,
    );
}

/// The library's functions for this processor. Created once, read-only afterwards.
struct Functions(NonNull<c_void>);

// SAFETY: read-only.
unsafe impl Send for Functions {}
// SAFETY: read-only.
unsafe impl Sync for Functions {}

impl Functions {
    /// `None` if the library's release is not the one that this program was built with, or the processor lacks a needed
    /// instruction.
    fn get() -> Option<&'static Self> {
        static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
        let functions = FUNCTIONS.get_or_init(|| {
            // SAFETY: no preconditions; the returned value is static.
            NonNull::new(unsafe { fatpath_gcm_functions() }.cast_mut()).map(Self)
        });
        functions.as_ref()
    }
}

/// Tells whether the library uses vectors of 512 bits on this processor, with which it is the fastest.
pub(super) fn is_wide() -> bool {
    // SAFETY: the functions are there.
    Functions::get().is_some_and(|functions| unsafe { fatpath_gcm_is_wide(functions.0.as_ptr()) != 0 })
}

/// A key.
///
/// Invariant: a block of [`layout`](Self::layout) that the library has made a key in, and that nothing writes to from
/// then on.
pub(super) struct Gcm(NonNull<u8>);

// SAFETY: the block is its owner's alone and bound to no thread.
unsafe impl Send for Gcm {}
// SAFETY: the block is only read; state of a packet is on the caller's stack. The library's table, which has to be one per
// thread, is not used for packets. Release 1.3 of the library stores "no error" in a variable of the process, which is never
// read.
unsafe impl Sync for Gcm {}

impl Gcm {
    /// AES-GCM with `key`; `None` for a length that AES does not have, or without the library.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        let functions = Functions::get().filter(|_| matches!(key.len(), 16 | 24 | 32))?;
        // SAFETY: the size is not 0.
        let block = NonNull::new(unsafe { alloc::alloc_zeroed(Self::layout()) });
        let block = block.unwrap_or_else(|| handle_alloc_error(Self::layout()));
        // SAFETY: the functions are there, the block has size and alignment of a key, and the bytes their length.
        unsafe { fatpath_gcm_new(functions.0.as_ptr(), block.as_ptr(), key.as_ptr(), key.len()) };
        Some(Self(block))
    }

    /// Layout of a key.
    fn layout() -> Layout {
        // SAFETY: constants.
        let (size, align) = unsafe { (fatpath_gcm_size, fatpath_gcm_align) };
        Layout::from_size_align(size, align).expect("the layout of a type")
    }

    /// Encrypts `text` where it lies, and writes the front of its tag to `icv`: 8, 12 or 16 bytes.
    #[inline]
    pub(super) fn seal(&self, nonce: [u8; NONCE_LEN], aad: &[u8], text: &mut [u8], icv: &mut [u8]) {
        debug_assert!(matches!(icv.len(), 8 | 12 | TAG_LEN), "what the library makes");
        let (at, len) = (text.as_mut_ptr(), text.len());
        let (aad, aad_len) = (aad.as_ptr(), aad.len());
        // SAFETY: a key by the invariant; each pointer comes with the length that is there behind it.
        unsafe { fatpath_gcm_seal(self.0.as_ptr(), at, len, nonce.as_ptr(), aad, aad_len, icv.as_mut_ptr(), icv.len()) }
    }

    /// As [`seal`](Self::seal), for `text` and, behind it, `trailer`, which are read in place and written to `to`.
    ///
    /// # Panics
    /// Unless `to` is as long as both.
    #[inline]
    pub(super) fn seal_from(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        (text, trailer): (&[u8], &[u8]),
        to: &mut [u8],
        icv: &mut [u8],
    ) {
        debug_assert!(matches!(icv.len(), 8 | 12 | TAG_LEN), "what the library makes");
        assert_eq!(to.len(), text.len() + trailer.len(), "a packet of another length");
        // SAFETY: a key by the invariant; each pointer comes with the length that is there behind it, or was just compared.
        unsafe {
            fatpath_gcm_seal_from(
                self.0.as_ptr(),
                to.as_mut_ptr(),
                text.as_ptr(),
                text.len(),
                trailer.as_ptr(),
                trailer.len(),
                nonce.as_ptr(),
                aad.as_ptr(),
                aad.len(),
                icv.as_mut_ptr(),
                icv.len(),
            );
        }
    }

    /// Decrypts `text` where it lies, if `icv` is the front of its tag.
    ///
    /// # Errors
    /// [`OpenError::IcvWrong`]: the text is zeroed.
    #[inline]
    pub(super) fn open(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
        icv: &[u8],
    ) -> Result<(), OpenError> {
        debug_assert!(matches!(icv.len(), 8 | 12 | TAG_LEN), "what the library makes");
        let mut tag = [0; TAG_LEN];
        let (at, len) = (text.as_mut_ptr(), text.len());
        // SAFETY: a key by the invariant; each pointer comes with the length that is there behind it, and the tag has its 16.
        unsafe {
            fatpath_gcm_open(self.0.as_ptr(), at, len, nonce.as_ptr(), aad.as_ptr(), aad.len(), tag.as_mut_ptr());
        }
        release_or_erase(tag[..icv.len()].ct_eq(icv).into(), text)
    }
}

impl Drop for Gcm {
    fn drop(&mut self) {
        let layout = Self::layout();
        // SAFETY: the block is of that size, initialised since it was zeroed, and only `self` refers to it.
        unsafe { slice::from_raw_parts_mut(self.0.as_ptr(), layout.size()) }.zeroize();
        // SAFETY: allocated with this layout, and not used again.
        unsafe { alloc::dealloc(self.0.as_ptr(), layout) }
    }
}
