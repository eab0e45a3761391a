//! Memory of the program, as arguments of the functions that this library [replaces](crate::replaced).
//!
//! The types have the layout of the pointers and structures that they stand for, so that a call of the program makes their
//! values. This library makes them of its own memory, or by `unsafe` functions. The program's memory is copied and not
//! borrowed, but for strings and arrays of buffers, which no other thread may change during a call.
//!
//! Invariant 1: each pointer is null, or for the lifetime `'a`, the time of a call, as the function's manual page requires.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::{iter, mem, ptr, slice};

use libc::{DIR, FILE, c_char, c_int, c_uint, iovec, msghdr, sockaddr, socklen_t};

use crate::errno::{Errno, Returned};
use crate::plain::{Plain, zeroed};

/// C string, or null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Text<'a>(*const c_char, PhantomData<&'a CStr>);

impl<'a> Text<'a> {
    pub(crate) const NULL: Self = Self(ptr::null(), PhantomData);

    /// String of a pointer.
    ///
    /// # Safety
    /// The pointer, if not null, is that of a C string for the lifetime `'a`.
    pub(crate) const unsafe fn new(text: *const c_char) -> Self {
        Self(text, PhantomData)
    }

    /// The string; `None`: null.
    pub(crate) fn get(self) -> Option<&'a CStr> {
        // SAFETY: by invariant 1 a C string.
        (!self.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }

    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The string's pointer as that of the list that a variable argument is.
    ///
    /// # Safety
    /// It is such a list, or null.
    pub(crate) const unsafe fn as_list(self) -> List<'a> {
        List(self.0.cast(), PhantomData)
    }
}

impl<'a> From<&'a CStr> for Text<'a> {
    fn from(text: &'a CStr) -> Self {
        Self(text.as_ptr(), PhantomData)
    }
}

/// List of C strings that ends in null, or null: an environment, or a program's arguments.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct List<'a>(*const Text<'a>, PhantomData<&'a [Text<'a>]>);

impl<'a> List<'a> {
    #[cfg(test)]
    pub(crate) const NULL: Self = Self(ptr::null(), PhantomData);

    /// List of all strings up to the last one, which becomes null.
    pub(crate) const fn new<const N: usize>(texts: &'a mut [Text<'a>; N]) -> Self {
        const { assert!(N > 0, "the last one is null") };
        texts[N - 1] = Text::NULL;
        Self(texts.as_ptr(), PhantomData)
    }

    /// Strings of the list; none of null.
    pub(crate) fn texts(self) -> impl Iterator<Item = Text<'a>> {
        let mut at = self.0;
        iter::from_fn(move || {
            if at.is_null() {
                return None;
            }
            // SAFETY: by invariant 1 the list ends in null, which no earlier step has passed.
            let text = unsafe { *at };
            at = if text.is_null() { ptr::null() } else { at.wrapping_add(1) };
            (!text.is_null()).then_some(text)
        })
    }
}

/// Pointer to a value that the function reads, or null.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct In<'a, T>(*const T, PhantomData<&'a T>);

/// Pointer to a value that the function writes, after it has read it where the manual page says so; or null.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct InOut<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<T> Clone for In<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<'_, T> {}

impl<T> Clone for InOut<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for InOut<'_, T> {}

impl<T: Copy> In<'_, T> {
    /// Copy of the value.
    ///
    /// # Errors
    /// `EFAULT`: null.
    pub(crate) fn read(self) -> Result<T, Errno> {
        // SAFETY: by invariant 1 the pointer is a value's.
        if self.0.is_null() { Err(Errno(libc::EFAULT)) } else { Ok(unsafe { self.0.read_unaligned() }) }
    }
}

impl<'a, T: Copy> InOut<'a, T> {
    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Copy of the value.
    ///
    /// # Errors
    /// `EFAULT`: null.
    pub(crate) fn read(self) -> Result<T, Errno> {
        In(self.0, PhantomData).read()
    }

    /// Writes the value.
    ///
    /// # Errors
    /// `EFAULT`: null.
    pub(crate) fn write(self, value: T) -> Result<(), Errno> {
        if self.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: by invariant 1 the pointer is that of a value that may be written.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Pointers to the values of an array; none of null.
    ///
    /// # Safety
    /// The pointer, if not null, is that of `count` values.
    pub(crate) unsafe fn array(self, count: usize) -> impl Iterator<Item = Self> {
        let count = if self.is_null() { 0 } else { count };
        (0..count).map(move |at| Self(self.0.wrapping_add(at), PhantomData))
    }

    /// Pointer of the program's to a `T`.
    ///
    /// # Safety
    /// The pointer, if not null, is that of such a value for the lifetime `'a`.
    pub(crate) const unsafe fn new<U>(place: *mut U) -> Self {
        Self(place.cast(), PhantomData)
    }
}

impl<'a, T> From<&'a T> for In<'a, T> {
    fn from(value: &'a T) -> Self {
        Self(value, PhantomData)
    }
}

impl<'a, T> From<&'a mut T> for InOut<'a, T> {
    fn from(value: &'a mut T) -> Self {
        Self(value, PhantomData)
    }
}

/// Buffer that the function reads: a `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Bytes<'a>(iovec, PhantomData<&'a [u8]>);

/// Buffer that the function writes: a `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Room<'a>(iovec, PhantomData<&'a mut [u8]>);

impl Bytes<'_> {
    pub(crate) const NONE: Self = Self(iovec { iov_base: ptr::null_mut(), iov_len: 0 }, PhantomData);

    /// Buffer of `len` bytes.
    ///
    /// # Safety
    /// `start`, if not null, is the pointer of so many bytes that may be read. An invalid one may be passed to the kernel.
    pub(crate) const unsafe fn new<T>(start: *const T, len: usize) -> Self {
        Self(iovec { iov_base: start.cast_mut().cast(), iov_len: len }, PhantomData)
    }

    pub(crate) const fn is_null(self) -> bool {
        self.0.iov_base.is_null()
    }

    pub(crate) const fn len(self) -> usize {
        self.0.iov_len
    }

    /// The buffer behind its first `len` bytes, or behind its end.
    pub(crate) fn skip(self, len: usize) -> Self {
        let len = len.min(self.len());
        let start = self.0.iov_base.cast::<u8>().wrapping_add(len);
        Self(iovec { iov_base: start.cast(), iov_len: self.len() - len }, PhantomData)
    }

    /// Copies the bytes, up to the length of `into`. Returns their number: 0 of null.
    pub(crate) fn copy_to<T: Plain>(self, into: &mut [T]) -> usize {
        let len = if self.is_null() { 0 } else { self.len().min(mem::size_of_val(into)) };
        // SAFETY: by invariant 1 that many bytes may be read, `into` is that long, and any bytes are its values.
        unsafe { ptr::copy_nonoverlapping(self.0.iov_base.cast::<u8>(), into.as_mut_ptr().cast(), len) };
        len
    }

    /// Copy of the value at the front; `None`: the buffer is null, or shorter.
    pub(crate) fn read<T: Plain>(self) -> Option<T> {
        let is_there = !self.is_null() && self.len() >= mem::size_of::<T>();
        // SAFETY: by invariant 1 that many bytes may be read, and any bytes are a value.
        is_there.then(|| unsafe { self.0.iov_base.cast::<T>().read_unaligned() })
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }, PhantomData)
    }
}

impl<'a> Room<'a> {
    /// Buffer of `len` bytes.
    ///
    /// # Safety
    /// `start`, if not null, is the pointer of so many bytes that may be written. An invalid one may be passed to the
    /// kernel.
    pub(crate) const unsafe fn new<T>(start: *mut T, len: usize) -> Self {
        Self(iovec { iov_base: start.cast(), iov_len: len }, PhantomData)
    }

    pub(crate) const fn is_null(self) -> bool {
        self.0.iov_base.is_null()
    }

    pub(crate) const fn len(self) -> usize {
        self.0.iov_len
    }

    pub(crate) const fn start<T>(self) -> *mut T {
        self.0.iov_base.cast()
    }

    /// Copies the bytes of `values` to the front, up to the length of the buffer; none to null.
    pub(crate) fn write<T: Plain>(self, values: &[T]) {
        let len = if self.is_null() { 0 } else { self.len().min(mem::size_of_val(values)) };
        // SAFETY: by invariant 1 that many bytes may be written, and `values` is that long.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), self.0.iov_base.cast(), len) };
    }

    /// The buffer behind its first `len` bytes, or behind its end.
    pub(crate) fn skip(self, len: usize) -> Self {
        let len = len.min(self.len());
        let start = self.0.iov_base.cast::<u8>().wrapping_add(len);
        Self(iovec { iov_base: start.cast(), iov_len: self.len() - len }, PhantomData)
    }
}

impl<'a> From<&'a mut [u8]> for Room<'a> {
    fn from(room: &'a mut [u8]) -> Self {
        Self(iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }, PhantomData)
    }
}

/// Buffer for the address of a socket, and its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressRoom<'a> {
    start: *mut sockaddr,
    len: InOut<'a, socklen_t>,
}

impl<'a> AddressRoom<'a> {
    /// Buffer of `len` bytes.
    ///
    /// # Safety
    /// `start`, if neither it nor `len` is null, is the pointer of so many bytes that may be written.
    pub(crate) const unsafe fn new(start: *mut sockaddr, len: InOut<'a, socklen_t>) -> Self {
        Self { start, len }
    }

    /// Writes an address, truncated to the buffer, and its length.
    ///
    /// # Errors
    /// `EFAULT`: one of the pointers is null.
    pub(crate) fn write<T: Plain>(self, address: &T) -> Result<(), Errno> {
        let room = self.len.read()?;
        if self.start.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the buffer is that long.
        unsafe { Room::new(self.start, room as usize) }.write(slice::from_ref(address));
        self.len.write(mem::size_of::<T>() as socklen_t)
    }
}

/// [`Bytes`] or [`Room`], a `struct iovec`.
pub(crate) trait Buffer<'a>: Copy {}

impl<'a> Buffer<'a> for Bytes<'a> {}

impl<'a> Buffer<'a> for Room<'a> {}

/// Buffers of an array of `struct iovec`.
///
/// # Errors
/// `EMSGSIZE`: more buffers than Linux accepts; `EFAULT`: null.
///
/// # Safety
/// `first`, if not null, is the pointer of `count` buffers for the lifetime `'a`.
pub(crate) unsafe fn pieces<'a, B>(first: *const B, count: usize) -> Result<&'a [B], Errno> {
    match count {
        0 => Ok(&[]),
        // SAFETY: as the caller promises.
        1..=1024 if !first.is_null() => Ok(unsafe { slice::from_raw_parts(first, count) }),
        1..=1024 => Err(Errno(libc::EFAULT)),
        _ => Err(Errno(libc::EMSGSIZE)),
    }
}

/// Message of `sendmsg(2)`, with buffers `B` that are [`Bytes`], or of `recvmsg(2)`, with [`Room`]: a `struct msghdr`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Message<B>(msghdr, PhantomData<B>);

/// Message of `sendmmsg(2)` or `recvmmsg(2)`: a `struct mmsghdr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CountedMessage<B> {
    pub(crate) message: Message<B>,
    pub(crate) len: c_uint,
}

impl<'a, B: Buffer<'a>> Message<B> {
    /// Message of these buffers.
    pub(crate) fn new(pieces: &'a [B]) -> Self {
        let mut message: msghdr = zeroed();
        (message.msg_iov, message.msg_iovlen) = (pieces.as_ptr().cast_mut().cast(), pieces.len());
        Self(message, PhantomData)
    }

    /// Buffers of the contents.
    ///
    /// # Errors
    /// As [`pieces`].
    pub(crate) fn pieces(&self) -> Result<&[B], Errno> {
        // SAFETY: by invariant 1 the array is that long.
        unsafe { pieces(self.0.msg_iov.cast(), self.0.msg_iovlen) }
    }
}

impl<'a> Message<Bytes<'a>> {
    /// The message to a destination.
    pub(crate) fn to<T: Plain>(mut self, name: &'a T) -> Self {
        (self.0.msg_name, self.0.msg_namelen) =
            (ptr::from_ref(name).cast_mut().cast(), mem::size_of::<T>() as socklen_t);
        self
    }

    /// Destination address.
    pub(crate) fn name(&self) -> Bytes<'a> {
        // SAFETY: by invariant 1 the buffer is that long.
        unsafe { Bytes::new(self.0.msg_name, self.0.msg_namelen as usize) }
    }

    /// Control messages.
    pub(crate) fn control(&self) -> Bytes<'a> {
        // SAFETY: by invariant 1 the buffer is that long.
        unsafe { Bytes::new(self.0.msg_control, self.0.msg_controllen) }
    }
}

impl<'a> Message<Room<'a>> {
    /// The message with a buffer for its source address.
    #[cfg(test)]
    pub(crate) fn with_name(mut self, room: &'a mut [u8]) -> Self {
        (self.0.msg_name, self.0.msg_namelen) = (room.as_mut_ptr().cast(), room.len() as socklen_t);
        self
    }

    /// Length of the source address.
    #[cfg(test)]
    pub(crate) const fn name_len(&self) -> usize {
        self.0.msg_namelen as usize
    }

    /// Writes the source address, truncated to its buffer, and its length; without a buffer nothing.
    pub(crate) fn put_name<T: Plain>(&mut self, address: &T) {
        // SAFETY: by invariant 1 the buffer is that long.
        let room = unsafe { Room::new(self.0.msg_name, self.0.msg_namelen as usize) };
        if !room.is_null() {
            room.write(slice::from_ref(address));
            self.0.msg_namelen = mem::size_of::<T>() as socklen_t;
        }
    }

    /// Buffer for control messages; empty without one.
    pub(crate) fn control(&self) -> Room<'a> {
        let len = if self.0.msg_control.is_null() { 0 } else { self.0.msg_controllen };
        // SAFETY: by invariant 1 the buffer is that long.
        unsafe { Room::new(self.0.msg_control, len) }
    }

    /// Sets the length of all control messages.
    pub(crate) const fn set_control_len(&mut self, len: usize) {
        self.0.msg_controllen = len;
    }

    pub(crate) const fn flags(&self) -> c_int {
        self.0.msg_flags
    }

    pub(crate) const fn set_flags(&mut self, flags: c_int) {
        self.0.msg_flags = flags;
    }
}

/// Maximum number of buffers of a message (`IOV_MAX`).
const MAX_PIECES: usize = 1024;

/// Array for a first buffer and further ones. It is not moved once built, as most of it stays uninitialized.
pub(crate) struct Pieces<B>([MaybeUninit<B>; MAX_PIECES]);

impl<'a, B: Buffer<'a>> Pieces<B> {
    /// Empty array.
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; MAX_PIECES])
    }

    /// Message of the buffers `first` and then `pieces`.
    ///
    /// # Errors
    /// `EMSGSIZE`: too many buffers.
    pub(crate) fn message(&'a mut self, first: B, pieces: &[B]) -> Result<Message<B>, Errno> {
        let room = self.0.get_mut(..1 + pieces.len()).ok_or(Errno(libc::EMSGSIZE))?;
        for (to, piece) in room.iter_mut().zip(iter::once(&first).chain(pieces)) {
            to.write(*piece);
        }
        let mut message = Message::new(&[]);
        (message.0.msg_iov, message.0.msg_iovlen) = (room.as_mut_ptr().cast(), room.len());
        Ok(message)
    }
}

/// Open stream of the C library, or null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Stream<'a>(*mut FILE, PhantomData<&'a FILE>);

/// Open directory of the C library or of this one, or null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Directory<'a>(*mut DIR, PhantomData<&'a DIR>);

impl Stream<'_> {
    pub(crate) const NULL: Self = Self(ptr::null_mut(), PhantomData);

    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) const fn address(self) -> *mut FILE {
        self.0
    }
}

impl Directory<'_> {
    /// Directory of this library.
    ///
    /// # Safety
    /// The pointer is that of an open one.
    pub(crate) const unsafe fn new(open: *mut DIR) -> Self {
        Self(open, PhantomData)
    }

    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) const fn address(self) -> *mut DIR {
        self.0
    }
}

impl<T> Returned for InOut<'_, T> {
    const FAILED: Self = Self(ptr::null_mut(), PhantomData);
}

impl Returned for Stream<'_> {
    const FAILED: Self = Self::NULL;
}

impl Returned for Directory<'_> {
    const FAILED: Self = Self(ptr::null_mut(), PhantomData);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_refused_or_has_nothing() {
        let fault = Errno(libc::EFAULT);
        let mut bytes = [7; 4];
        assert!(Text::NULL.get().is_none());
        assert_eq!(List::NULL.texts().count(), 0);
        assert_eq!(<InOut<'_, u32> as Returned>::FAILED.read(), Err(fault));
        assert_eq!(<InOut<'_, u32> as Returned>::FAILED.write(1), Err(fault));
        // SAFETY: null has no bytes.
        let from = unsafe { Bytes::new(ptr::null::<u8>(), 4) };
        // SAFETY: null has no bytes.
        let to = unsafe { Room::new(ptr::null_mut::<u8>(), 4) };
        assert_eq!((from.copy_to(&mut bytes), from.read::<u32>()), (0, None));
        to.write(&bytes);
        assert_eq!(bytes, [7; 4]);
        // SAFETY: there are no buffers to read.
        let pieces = [0, 1, 1024, 1025].map(|count| unsafe { pieces(ptr::null::<Bytes<'_>>(), count) }.map(<[_]>::len));
        assert_eq!(pieces, [Ok(0), Err(fault), Err(fault), Err(Errno(libc::EMSGSIZE))]);
    }

    #[test]
    fn no_byte_behind_a_buffer_is_read_or_written() {
        let from = Bytes::from(&[1_u8, 2, 3, 4, 5][..]);
        let mut copy = [0_u8; 4];
        assert_eq!((from.copy_to(&mut copy), copy), (4, [1, 2, 3, 4]));
        assert_eq!((from.skip(3).copy_to(&mut copy), copy), (2, [4, 5, 3, 4]));
        assert_eq!(from.skip(3).read::<u16>(), Some(u16::from_ne_bytes([4, 5])));
        assert_eq!((from.skip(4).read::<u16>(), from.skip(9).len()), (None, 0));
        let mut bytes = [0; 4];
        let room = Room::from(&mut bytes[..3]);
        room.write(&[0x0101_u16, 0x0202]);
        room.skip(5).write(&[9_u8]);
        assert_eq!((bytes[..2].to_vec(), bytes[2], bytes[3]), (vec![1, 1], 2, 0));
    }

    #[test]
    fn list_ends_at_its_first_null_and_always_ends() {
        let texts = [c"a", c"b", c"c"].map(Text::from);
        let all = |list: List<'_>| list.texts().map(|text| text.get().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(all(List::new(&mut texts.clone())), [c"a", c"b"].map(CStr::to_owned));
        let [first, _, last] = texts;
        assert_eq!(all(List::new(&mut [first, Text::NULL, last])), [c"a".to_owned()]);
        assert!(all(List::new(&mut [first])).is_empty());
    }

    #[test]
    fn address_is_truncated_and_its_whole_length_told() {
        let mut bytes = [0_u8; 6];
        let mut len = 5;
        // SAFETY: the buffer is longer.
        let room = unsafe { AddressRoom::new(bytes.as_mut_ptr().cast(), (&mut len).into()) };
        assert_eq!(room.write::<libc::c_ulong>(&0x0101_0101_0101_0101), Ok(()));
        assert_eq!((bytes, len), ([1, 1, 1, 1, 1, 0], 8));
    }
}
