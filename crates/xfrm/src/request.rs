//! Requests of the control plane, kept by the SAs and policies that they made.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Request that made an SA or a policy, in the control plane's own type, which this crate does not read.
///
/// The SA or policy owns it: a removed or expired one frees its request, and the keys in it. An event of its end shares it.
#[derive(Clone)]
pub struct Request(Arc<dyn Any + Send + Sync>);

impl Request {
    /// Wraps a request of the control plane.
    pub fn new<T: Any + Send + Sync>(request: T) -> Self {
        Self(Arc::new(request))
    }

    /// The request, if it is a `T`.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

/// Requests are equal if they are the same one.
impl PartialEq for Request {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Request {}

/// Prints no content: it may hold a key.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Request")
    }
}
