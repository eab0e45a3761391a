//! `execl(3)`, `execlp(3)` and `execle(3)`, whose arguments are a null-terminated list.
//!
//! Stable Rust cannot define variadic functions. So each of these is a few instructions that store the register
//! arguments, and jump to a function with the addresses of the register and the stack arguments.

use std::arch::naked_asm;

use libc::{c_char, c_int};

use super::exec::{execve, execvpe};
use crate::environment::current;
use crate::errno::{Errno, returned};
use crate::stack;

type List = *const *const c_char;

/// Number of register arguments behind the path.
#[cfg(target_arch = "x86_64")]
const REGISTERS: usize = 5;
#[cfg(target_arch = "aarch64")]
const REGISTERS: usize = 7;

macro_rules! listed {
    ($($name:ident, $helper:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the manual page requires.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            naked_asm!(
                "sub rsp, 56",
                "mov [rsp], rsi",
                "mov [rsp + 8], rdx",
                "mov [rsp + 16], rcx",
                "mov [rsp + 24], r8",
                "mov [rsp + 32], r9",
                "mov rsi, rsp",
                "lea rdx, [rsp + 64]",
                "call {helper}",
                "add rsp, 56",
                "ret",
                helper = sym $helper,
            )
        }

        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the manual page requires.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "stp x1, x2, [sp, #16]",
                "stp x3, x4, [sp, #32]",
                "stp x5, x6, [sp, #48]",
                "str x7, [sp, #64]",
                "add x1, sp, #16",
                "add x2, sp, #80",
                "bl {helper}",
                "ldp x29, x30, [sp], #80",
                "ret",
                helper = sym $helper,
            )
        }
    )*};
}

listed! {
    execl, execl_at;
    execlp, execlp_at;
    execle, execle_at;
}

/// Addresses of the arguments behind the path.
#[derive(Clone, Copy)]
struct Arguments {
    registers: List,
    stack: List,
}

impl Arguments {
    /// Argument by its index behind the path.
    ///
    /// # Safety
    /// The caller of the function has passed that many.
    unsafe fn get(self, number: usize) -> *const c_char {
        let place = match number.checked_sub(REGISTERS) {
            None => self.registers.wrapping_add(number),
            Some(number) => self.stack.wrapping_add(number),
        };
        // SAFETY: as the caller promises.
        unsafe { *place }
    }

    /// Number of arguments before the null.
    ///
    /// # Safety
    /// One of the arguments is null.
    unsafe fn count(self) -> usize {
        let mut count = 0;
        // SAFETY: no argument before this one is null.
        while !unsafe { self.get(count) }.is_null() {
            count += 1;
        }
        count
    }

    /// Calls `run` with a list of the first `count` arguments.
    ///
    /// # Errors
    /// `E2BIG`: too many arguments.
    ///
    /// # Safety
    /// At least `count` arguments exist.
    unsafe fn with(self, count: usize, run: impl FnOnce(List) -> c_int) -> Result<c_int, Errno> {
        stack::with_pointers(count + 1, |list| {
            for (number, to) in list.iter_mut().take(count).enumerate() {
                // SAFETY: as the caller promises.
                *to = unsafe { self.get(number) };
            }
            run(list.as_ptr())
        })
    }
}

unsafe extern "C" fn execl_at(path: *const c_char, registers: List, stack: List) -> c_int {
    let arguments = Arguments { registers, stack };
    // SAFETY: as the program promises.
    let count = unsafe { arguments.count() };
    // SAFETY: as the program promises.
    let run = |list| unsafe { execve(path, list, current()) };
    // SAFETY: the arguments were counted.
    returned(unsafe { arguments.with(count, run) })
}

unsafe extern "C" fn execlp_at(file: *const c_char, registers: List, stack: List) -> c_int {
    let arguments = Arguments { registers, stack };
    // SAFETY: as the program promises.
    let count = unsafe { arguments.count() };
    // SAFETY: as the program promises.
    let run = |list| unsafe { execvpe(file, list, current()) };
    // SAFETY: the arguments were counted.
    returned(unsafe { arguments.with(count, run) })
}

unsafe extern "C" fn execle_at(path: *const c_char, registers: List, stack: List) -> c_int {
    let arguments = Arguments { registers, stack };
    // SAFETY: as the program promises.
    let count = unsafe { arguments.count() };
    // SAFETY: the environment is behind the null.
    let environment: List = unsafe { arguments.get(count + 1) }.cast();
    // SAFETY: as the program promises.
    let run = |list| unsafe { execve(path, list, environment) };
    // SAFETY: the arguments were counted.
    returned(unsafe { arguments.with(count, run) })
}
