//! `execl(3)`, `execlp(3)` and `execle(3)`, whose arguments are a null-terminated list.
//!
//! Stable Rust cannot define variadic functions. So each of these is a few instructions that store the register
//! arguments, and jump to a function with the addresses of the register and the stack arguments.

use std::arch::naked_asm;

use libc::c_int;

use super::exec::{execute, execute_found};
use crate::errno::returned;
use crate::program_memory::{List, Text};
use crate::{stack, sys};

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
        pub(crate) unsafe extern "C" fn $name(path: Text<'_>, first: Text<'_>) -> c_int {
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
        pub(crate) unsafe extern "C" fn $name(path: Text<'_>, first: Text<'_>) -> c_int {
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

/// Arguments behind the path, in registers and on the stack of a call of the program's.
#[derive(Clone, Copy)]
struct Arguments<'a> {
    registers: *const Text<'a>,
    stack: *const Text<'a>,
}

impl<'a> Arguments<'a> {
    /// Argument by its index behind the path.
    ///
    /// # Safety
    /// The caller of the function has passed that many.
    unsafe fn get(self, number: usize) -> Text<'a> {
        let place = match number.checked_sub(REGISTERS) {
            None => self.registers.wrapping_add(number),
            Some(number) => self.stack.wrapping_add(number),
        };
        // SAFETY: as the caller promises.
        unsafe { *place }
    }

    /// Arguments before the null, which each of the functions has.
    fn texts(self) -> impl Iterator<Item = Text<'a>> {
        // SAFETY: no argument before this one is null.
        (0..).map(move |number| unsafe { self.get(number) }).take_while(|text| !text.is_null())
    }

    /// Calls `run` with a list of the arguments.
    fn with(self, run: impl FnOnce(List<'_>) -> c_int) -> c_int {
        returned(stack::with_list(self.texts().count(), self.texts(), run))
    }

    /// List behind the null: the environment of `execle(3)`.
    ///
    /// # Safety
    /// There is one.
    unsafe fn environment(self) -> List<'a> {
        // SAFETY: as the caller promises.
        let environment = unsafe { self.get(self.texts().count() + 1) };
        // SAFETY: as the caller promises.
        unsafe { environment.as_list() }
    }
}

unsafe extern "C" fn execl_at<'a>(path: Text<'a>, registers: *const Text<'a>, stack: *const Text<'a>) -> c_int {
    Arguments { registers, stack }.with(|list| execute(path, list, sys::environment()))
}

unsafe extern "C" fn execlp_at<'a>(file: Text<'a>, registers: *const Text<'a>, stack: *const Text<'a>) -> c_int {
    Arguments { registers, stack }.with(|list| execute_found(file, list, sys::environment()))
}

unsafe extern "C" fn execle_at<'a>(path: Text<'a>, registers: *const Text<'a>, stack: *const Text<'a>) -> c_int {
    let arguments = Arguments { registers, stack };
    // SAFETY: the manual page requires an environment.
    arguments.with(|list| execute(path, list, unsafe { arguments.environment() }))
}
