//! Requests of the control plane, kept by the SAs and policies that they created.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Request that created an SA or a policy, in a type of the control plane that is opaque to this crate.
///
/// The SA or policy owns the request: removal or expiry frees the request with the keys in it. The event of the
/// object's end shares it.
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

/// Requests are equal if they are the same object.
impl PartialEq for Request {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Request {}

/// Prints no content, as that may hold a key.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Request")
    }
}
