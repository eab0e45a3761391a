//! Part of fatpath.
