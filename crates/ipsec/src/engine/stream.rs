//! AES-GCM (NIST SP 800-38D) that opens a text piece by piece, or by the front of its tag, through AWS-LC's
//! `EVP_CIPHER`.
//!
//! The one-shot interfaces need the whole text in one buffer and a whole tag. Here the tag is compared last, when the
//! decrypted text is in the caller's buffer already, so a forged text is zeroed before the call returns.

use std::alloc::{Layout, handle_alloc_error};
use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use aws_lc_sys as aws_lc;
use zeroize::Zeroizing;

use super::open_error::{OpenError, release_or_erase};

/// Bytes of a nonce.
const NONCE_LEN: usize = 12;

/// A key, with a pool of contexts: one is created for each packet that is opened at the same time, and kept.
pub(super) struct GcmStream {
    key: Zeroizing<Box<[u8]>>,
    idle: Mutex<Vec<Context>>,
}

impl GcmStream {
    /// AES-GCM with `key`; `None` for a length that AES does not have.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        matches!(key.len(), 16 | 24 | 32).then(|| Self { key: Zeroizing::new(key.into()), idle: Mutex::default() })
    }

    /// Opens a text in place if `icv`, of 4 to 16 bytes, is the front of its tag.
    ///
    /// # Errors
    /// [`OpenError::IcvWrong`]: the text is zeroed.
    pub(super) fn open(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
        icv: &[u8],
    ) -> Result<(), OpenError> {
        let is_authentic = self.with_context(|context| {
            context.begin(nonce, aad);
            context.decrypt_in_place(text);
            context.ends_with(icv)
        });
        release_or_erase(is_authentic, text)
    }

    /// Opens the text that is the next `text.len()` bytes of `pieces`, if the `icv_len` bytes behind it are the front
    /// of its tag. The plaintext is written to `text`.
    ///
    /// # Errors
    /// [`OpenError::IcvWrong`]: `text` is zeroed.
    pub(super) fn open_from<'p>(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        pieces: &mut StreamPieces<'p, impl Iterator<Item = &'p [u8]>>,
        text: &mut [u8],
        icv_len: usize,
    ) -> Result<(), OpenError> {
        let mut icv = [0; 16];
        let icv = &mut icv[..icv_len];
        let is_authentic = self.with_context(|context| {
            context.begin(nonce, aad);
            let is_all = pieces.read(text, |from, to| context.decrypt(from, to))
                && pieces.read(icv, |from, to| to.copy_from_slice(from));
            is_all && context.ends_with(icv)
        });
        release_or_erase(is_authentic, text)
    }

    /// Lends a context that no other call uses.
    fn with_context<T>(&self, f: impl FnOnce(&mut Context) -> T) -> T {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut context = idle.unwrap_or_else(|| Context::new(&self.key));
        let result = f(&mut context);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(context);
        result
    }
}

/// Bytes in several places, from front to back.
pub(super) struct StreamPieces<'p, I> {
    front: &'p [u8],
    behind: I,
}

impl<'p, I: Iterator<Item = &'p [u8]>> StreamPieces<'p, I> {
    pub(super) fn new(pieces: I) -> Self {
        Self { front: &[], behind: pieces }
    }

    /// Lets `each` fill `to` with the next bytes, stretch by stretch. `false` if there are fewer.
    pub(super) fn read(&mut self, mut to: &mut [u8], mut each: impl FnMut(&'p [u8], &mut [u8])) -> bool {
        while !to.is_empty() {
            if self.front.is_empty() {
                let Some(next) = self.behind.next() else { return false };
                self.front = next;
                continue;
            }
            let (from, left) = self.front.split_at(self.front.len().min(to.len()));
            let (here, behind) = to.split_at_mut(from.len());
            each(from, here);
            (self.front, to) = (left, behind);
        }
        true
    }
}

/// Key schedule and progress of one packet.
///
/// Invariant: a context that is valid, initialised for decryption, and not shared. AWS-LC zeroes it when it is freed.
struct Context(NonNull<aws_lc::EVP_CIPHER_CTX>);

// SAFETY: the context is memory of its owner's alone and is bound to no thread.
unsafe impl Send for Context {}

impl Context {
    /// For a key whose length has been checked.
    fn new(key: &[u8]) -> Self {
        let cipher: unsafe extern "C" fn() -> *const aws_lc::EVP_CIPHER = match key.len() {
            16 => aws_lc::EVP_aes_128_gcm,
            24 => aws_lc::EVP_aes_192_gcm,
            _ => aws_lc::EVP_aes_256_gcm,
        };
        // SAFETY: no preconditions; the returned cipher is static.
        let cipher = unsafe { cipher() };
        // SAFETY: no preconditions.
        let context = NonNull::new(unsafe { aws_lc::EVP_CIPHER_CTX_new() });
        let context = Self(context.unwrap_or_else(|| handle_alloc_error(Layout::new::<aws_lc::EVP_CIPHER_CTX>())));
        // SAFETY: the context is valid; the key has the cipher's length; no engine and no nonce yet.
        let done = unsafe {
            aws_lc::EVP_DecryptInit_ex(context.0.as_ptr(), cipher, ptr::null_mut(), key.as_ptr(), ptr::null())
        };
        assert_eq!(done, 1, "memory for the schedule of a key");
        context
    }

    /// Begins a packet.
    fn begin(&mut self, nonce: [u8; NONCE_LEN], aad: &[u8]) {
        // SAFETY: the context has its cipher and key, and that cipher reads 12 bytes of nonce.
        let done = unsafe {
            let nonce = nonce.as_ptr();
            aws_lc::EVP_DecryptInit_ex(self.0.as_ptr(), ptr::null(), ptr::null_mut(), ptr::null(), nonce)
        };
        assert_eq!(done, 1, "a nonce for a key that is there");
        // SAFETY: without a place to write to, these bytes are authenticated alone.
        unsafe { self.update(ptr::null_mut(), aad.as_ptr(), aad.len()) }
    }

    /// Decrypts the next bytes.
    fn decrypt(&mut self, from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len(), "a key stream changes no length");
        // SAFETY: both are as long, and apart from each other, one being borrowed alone.
        unsafe { self.update(to.as_mut_ptr(), from.as_ptr(), from.len()) }
    }

    /// Decrypts the next bytes where they lie.
    fn decrypt_in_place(&mut self, text: &mut [u8]) {
        let at = text.as_mut_ptr();
        // SAFETY: the cipher may write where it reads, and the text is borrowed mutably.
        unsafe { self.update(at, at, text.len()) }
    }

    /// Hands the cipher `len` bytes.
    ///
    /// # Safety
    /// `from` may be read and `to`, unless it is null, written for `len` bytes; they are the same or apart.
    unsafe fn update(&mut self, to: *mut u8, from: *const u8, len: usize) {
        let (mut written, len) = (0, c_int::try_from(len).expect("a packet within 2 GiB"));
        // SAFETY: the context has begun a packet; the caller promises valid pointers. GCM buffers no bytes.
        let done = unsafe { aws_lc::EVP_DecryptUpdate(self.0.as_ptr(), to, &raw mut written, from, len) };
        assert_eq!((done, written), (1, len), "a packet within 64 GiB");
    }

    /// Ends a packet, and tells whether its tag begins with `icv`. Compared in constant time (`CRYPTO_memcmp`).
    fn ends_with(&mut self, icv: &[u8]) -> bool {
        let mut icv_copy = [0; 16];
        let mut nothing = [0; 16];
        let mut written = 0;
        icv_copy[..icv.len()].copy_from_slice(icv);
        let (len, icv) = (icv.len() as c_int, icv_copy.as_mut_ptr().cast());
        // SAFETY: the context is valid and copies `len` bytes, which are there.
        let is_set =
            unsafe { aws_lc::EVP_CIPHER_CTX_ctrl(self.0.as_ptr(), aws_lc::EVP_CTRL_AEAD_SET_TAG as c_int, len, icv) };
        // SAFETY: the context has begun a packet, and has nothing left to write, for which there is room.
        let is_right = unsafe { aws_lc::EVP_DecryptFinal_ex(self.0.as_ptr(), nothing.as_mut_ptr(), &raw mut written) };
        (is_set, is_right) == (1, 1)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: valid, and not shared.
        unsafe { aws_lc::EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}
