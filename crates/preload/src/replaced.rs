//! Declaration of functions of the C library that this library replaces.

/// Declares functions that the program calls.
macro_rules! exported {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $returned:ty $body:block
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the manual page requires.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $returned $body
    )*};
}

/// Declares functions, in whose bodies `next()` is the [next function](crate::libc_next) of that name, called with the
/// program's arguments as they are.
macro_rules! replaced {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $returned:ty, $next:ident $body:block
    )*) => {
        $crate::replaced::exported! {$(
            $(#[$doc])*
            fn $name($($arg: $type),*) -> $returned {
                // SAFETY: the arguments are the program's, unchanged.
                let $next = || unsafe { $crate::libc_next::$name($($arg),*) };
                $body
            }
        )*}
    };
}

pub(crate) use {exported, replaced};
