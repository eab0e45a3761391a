//! The session of the printed URL: its secret, and the cookie that a browser gets for it.
//!
//! The secret is in the URL's fragment, which browsers send to no server and in no `Referer`. The page's script sends it once.

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{COOKIE, HOST, HeaderMap, HeaderValue, ORIGIN, SET_COOKIE};
use hyper::{Request, Response, StatusCode};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use subtle::ConstantTimeEq;

use crate::http::{Body, text};

/// Length of a secret in bytes.
const SECRET_LEN: usize = 32;

/// Limit of a request's body in bytes.
pub(super) const MAX_BODY_LEN: usize = 8 << 10;

/// Secrets of this process.
#[derive(Debug)]
pub(super) struct Session {
    token: String,
    /// Name of the cookie: ports of a host share their cookies, so another such program has another name.
    name: String,
    cookie: String,
}

impl Session {
    pub(super) fn new() -> Result<Self, Errno> {
        let number: String = secret()?.chars().take(8).collect();
        Ok(Self { token: secret()?, name: format!("fatpath-{number}"), cookie: secret()? })
    }

    /// Secret of the URL.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Whether a request has the cookie.
    pub(super) fn has(&self, headers: &HeaderMap) -> bool {
        let headers = headers.get_all(COOKIE).iter().filter_map(|header| header.to_str().ok());
        let mut cookies =
            headers.flat_map(|header| header.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
        cookies.any(|(name, value)| name == self.name && is_equal(value, &self.cookie))
    }

    /// Reply to the URL's secret: the cookie.
    pub(super) async fn begin(&self, request: Request<Incoming>) -> Response<Body> {
        let body = match body(request).await {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        if !is_equal(&String::from_utf8_lossy(&body), &self.token) {
            return text(StatusCode::FORBIDDEN, "this is not the secret of the URL that `fatpath web` has printed\n");
        }
        let cookie = format!("{}={}; Path=/; SameSite=Strict; HttpOnly", self.name, self.cookie);
        let mut response = text(StatusCode::OK, "");
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
        response
    }
}

/// A random secret, as text.
fn secret() -> Result<String, Errno> {
    let mut bytes = [0; SECRET_LEN];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn is_equal(given: &str, secret: &str) -> bool {
    given.as_bytes().ct_eq(secret.as_bytes()).into()
}

/// Whether a request's origin is the host that it names, which is one of loopback: a browser sends the origin with each POST.
pub(super) fn is_of_this_page(headers: &HeaderMap) -> bool {
    let value = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let (origin, host) = (value(ORIGIN), value(HOST));
    let of_host = origin.and_then(|origin| origin.strip_prefix("http://"));
    of_host.is_some() && of_host == host
}

/// Body of a request.
///
/// # Errors
/// Refusal of one that is too long, or has broken off.
pub(super) async fn body(request: Request<Incoming>) -> Result<Vec<u8>, Response<Body>> {
    match Limited::new(request.into_body(), MAX_BODY_LEN).collect().await {
        Ok(body) => Ok(body.to_bytes().to_vec()),
        Err(err) if err.is::<LengthLimitError>() => {
            Err(text(StatusCode::PAYLOAD_TOO_LARGE, &format!("a body has at most {MAX_BODY_LEN} bytes\n")))
        }
        Err(_) => Err(text(StatusCode::BAD_REQUEST, "the body has broken off\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(hyper::header::HeaderName, &str)]) -> HeaderMap {
        of.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn cookie_of_this_session_alone_is_accepted() {
        let (session, other) = (Session::new().unwrap(), Session::new().unwrap());
        let own = format!("{}={}", session.name, session.cookie);
        for (cookie, want) in [
            (own.clone(), true),
            (format!("a=b; {own};c=d"), true),
            (format!("{}={}", session.name, other.cookie), false),
            (format!("{}={}", other.name, session.cookie), false),
            (format!("{}={}", session.name, session.token), false),
            (format!("{}=", session.name), false),
            (session.cookie.clone(), false),
            (String::new(), false),
        ] {
            assert_eq!(session.has(&headers(&[(COOKIE, &cookie)])), want, "{cookie}");
        }
        assert!(!session.has(&HeaderMap::new()));
        assert_eq!(session.token.len(), 64);
        assert_ne!(session.token, other.token);
    }

    #[test]
    fn origin_is_that_of_the_host() {
        for (origin, host, want) in [
            ("http://localhost:9848", "localhost:9848", true),
            ("http://[::1]:9848", "[::1]:9848", true),
            ("http://127.0.0.1:9848", "localhost:9848", false),
            ("http://localhost:3000", "localhost:9848", false),
            ("http://evil.example", "localhost:9848", false),
            ("https://localhost:9848", "localhost:9848", false),
            ("null", "localhost:9848", false),
        ] {
            assert_eq!(is_of_this_page(&headers(&[(ORIGIN, origin), (HOST, host)])), want, "{origin} at {host}");
        }
        assert!(!is_of_this_page(&headers(&[(HOST, "localhost")])));
        assert!(!is_of_this_page(&HeaderMap::new()));
    }
}
