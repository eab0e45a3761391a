//! `fatpath web`: a page that shows gateways, once a second.
//!
//! The page itself is a constant, and has nothing of a gateway. Replies that show one need the [session] of the printed URL. Names
//! that operators give reach the page as JSON, and its script writes them as text.

mod events;
mod results;
mod session;
mod socket;
mod trace;
mod watch;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use client::{CliError, WebArgs};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::TcpListener;

use crate::http::{self, Body, Connection, Listener, Service, of_type, text};
use events::Pages;
use session::Session;
use watch::Watches;

/// Headers of each reply. The page loads nothing from elsewhere, runs no script but its own, and is in no frame of another page.
const SECURITY: [(&str, &str); 5] = [
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
];

/// Policy of contents.
const POLICY: &str = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

/// Files of the page: path, type and content.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page.js")),
    ("/icon.svg", "image/svg+xml", include_str!("icon.svg")),
];

/// Serves the page until the process ends.
///
/// # Errors
/// The address or path cannot be bound, or standard output cannot be written.
pub(crate) fn run(args: WebArgs) -> Result<(), CliError> {
    let session = Session::new().map_err(|err| CliError::system("random numbers", &err.into()))?;
    let runtime = http::runtime().map_err(|err| CliError::system("start a thread", &err))?;
    runtime.block_on(async {
        let (listener, host) = match &args.socket {
            Some(path) => {
                let failed = |err: io::Error| CliError::system(&path.display().to_string(), &err);
                let listener = socket::bind(path).map_err(failed)?;
                let path = path.display();
                tracing::info!("{path}: forward a port to it, as with `ssh -L 9848:{path} HOST`");
                (Listener::Unix(listener), "localhost:9848".to_owned())
            }
            None => {
                let failed = |err: io::Error| CliError::system(&args.listen.to_string(), &err);
                let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                (Listener::Tcp(listener), bound.to_string())
            }
        };
        client::print(format!("http://{host}/#{}\n", session.token()).as_bytes())?;
        let watches = Arc::new(Watches::new(args.instance));
        let pages = Pages::new(Arc::clone(&watches));
        http::serve(listener, Arc::new(Page { session, watches, results: args.results, pages })).await;
        Ok(())
    })
}

/// State of the served page.
#[derive(Debug)]
struct Page {
    session: Session,
    watches: Arc<Watches>,
    results: Vec<PathBuf>,
    pages: Pages,
}

impl Service for Page {
    async fn respond(self: Arc<Self>, request: Request<Incoming>, connection: Arc<Connection>) -> Response<Body> {
        let mut response = self.reply(request, connection).await;
        let headers = response.headers_mut();
        for (name, value) in SECURITY {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
        response
    }
}

impl Page {
    async fn reply(self: Arc<Self>, request: Request<Incoming>, connection: Arc<Connection>) -> Response<Body> {
        if let Some(refusal) = connection.misdirected(&request) {
            return refusal;
        }
        let path = request.uri().path().to_owned();
        let is_post = match *request.method() {
            Method::GET | Method::HEAD => false,
            Method::POST if matches!(path.as_str(), "/session" | "/trace") => true,
            _ => return not_allowed("GET, HEAD"),
        };
        if let Some((_, content_type, content)) = FILES.iter().find(|(file, ..)| *file == path) {
            return of_type(StatusCode::OK, *content, content_type);
        }
        if is_post && !session::is_of_this_page(request.headers()) {
            return text(StatusCode::FORBIDDEN, "the request is of another page\n");
        }
        if path == "/session" {
            return if is_post { self.session.begin(request).await } else { not_allowed("POST") };
        }
        if !self.session.has(request.headers()) || is_of_another_site(request.headers()) {
            return text(StatusCode::FORBIDDEN, "open the URL that `fatpath web` has printed\n");
        }
        match path.as_str() {
            "/events" => self.pages.stream(request.uri().query(), connection),
            "/trace" if is_post => trace::stream(&self.watches, request, connection).await,
            "/trace" => not_allowed("POST"),
            "/results" => results::list(self.results.clone()).await,
            _ => match results::place(&path).and_then(|at| self.results.get(at)) {
                Some(file) => results::chart(file.clone()).await,
                None => text(StatusCode::NOT_FOUND, "there is nothing here\n"),
            },
        }
    }
}

/// Whether a browser says that another site, or another port of this host, makes the request.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none")
}

fn not_allowed(allowed: &'static str) -> Response<Body> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, &format!("only {allowed}\n"));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_fits_its_budget_and_names_no_other_host() {
        let len: usize = FILES.iter().map(|(.., content)| content.len()).sum();
        assert!(len <= 200_000, "{len} bytes");
        let [(.., html), (.., css), (.., js), (.., icon)] = FILES;
        for (name, content) in [("html", html), ("css", css), ("js", js)] {
            let others: Vec<&str> = content
                .split("http")
                .skip(1)
                .filter(|rest| rest.starts_with("://") || rest.starts_with("s://"))
                .collect();
            let is_known = |rest: &&str| rest.starts_with("://www.w3.org/2000/svg");
            assert!(others.iter().all(is_known), "{name}: {others:?}");
        }
        assert!(icon.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
        // Inline scripts and styles, which the policy forbids, and calls that parse texts as markup.
        for (content, word) in [
            (html, "<script>"),
            (html, "<style"),
            (html, " style="),
            (html, " onclick"),
            (js, "innerHTML"),
            (js, "outerHTML"),
            (js, "insertAdjacentHTML"),
            (js, "document.write"),
            (js, "eval("),
            (js, "setAttribute(\"style\""),
        ] {
            assert!(!content.contains(word), "{word}");
        }
    }
}
