//! HTTP: `GET /metrics`, a connection for each request.
//!
//! A page in a browser reaches loopback. So the host that a request to a loopback address names has to be one of loopback, whatever address
//! the program listens at: a name of another site that leads here is refused.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use client::CliError;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HOST, HeaderMap};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::exposition::Format;
use crate::families::families;
use crate::scrape::{Gateways, Scraped};

/// Limit of connections; a further one is closed at once.
const MAX_CONNECTIONS: usize = 16;

/// Limit of a request's head in bytes. Bodies are not read.
const MAX_REQUEST_LEN: usize = 64 << 10;

/// Limit of hyper's buffer: it reads once more, as much again, while the buffer is below.
const MAX_BUFFER_LEN: usize = MAX_REQUEST_LEN / 2;

/// Longest time from the acceptance of a connection to the end of the reply. Two scrapes, the one in progress and the next, take less than
/// half of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Path of the metrics.
const METRICS: &str = "/metrics";

/// Serves metrics at `listen` until the process ends.
///
/// # Errors
/// The address cannot be bound.
pub(crate) fn serve(gateways: Gateways, listen: SocketAddr) -> Result<(), CliError> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().enable_time();
    let runtime = runtime.max_blocking_threads(MAX_CONNECTIONS).build();
    let runtime = runtime.map_err(|err| CliError::system("start a thread", &err))?;
    let failed = |err: io::Error| CliError::system(&listen.to_string(), &err);
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        tracing::info!("metrics at http://{bound}{METRICS}");
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        if !bound.ip().to_canonical().is_loopback() {
            tracing::warn!("{bound}: every host that reaches this address may read the metrics");
        }
        let scrapes = Arc::new(Scrapes(Mutex::new((gateways, None))));
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(err) => {
                    // Such as a full table of descriptors.
                    tracing::warn!("accept: {err}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                // The reply fits the socket's buffer, or the client reads none.
                let _ = stream
                    .try_write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                continue;
            };
            let Ok(local) = stream.local_addr() else { continue };
            let is_loopback = local.ip().to_canonical().is_loopback();
            let served = Arc::new(Served { scrapes: Arc::clone(&scrapes), is_loopback, _place: place });
            tokio::spawn(async move {
                if tokio::time::timeout(PATIENCE, connection(stream, served)).await.is_err() {
                    tracing::debug!("a client was too slow");
                }
            });
        }
    })
}

/// Beginning of a scrape, and its outcome.
type LastScrape = (Instant, Arc<[Scraped]>);

/// The gateways, which one scrape at a time asks, and the last one.
#[derive(Debug)]
struct Scrapes(Mutex<(Gateways, Option<LastScrape>)>);

impl Scrapes {
    /// Outcome of a scrape that begins now or later: requests that wait for one in progress share the next.
    fn next(&self) -> Arc<[Scraped]> {
        let asked = Instant::now();
        let (gateways, last) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, scraped)) = last.as_ref().filter(|(began, _)| *began >= asked) {
            return Arc::clone(scraped);
        }
        let began = Instant::now();
        let scraped: Arc<[Scraped]> = gateways.scrape().into();
        *last = Some((began, Arc::clone(&scraped)));
        scraped
    }
}

/// State of a connection.
#[derive(Debug)]
struct Served {
    scrapes: Arc<Scrapes>,
    /// Whether the client reached it at an address of loopback.
    is_loopback: bool,
    /// The connection's place, which is free when the client has gone and a scrape for it has ended.
    _place: OwnedSemaphorePermit,
}

async fn connection(stream: TcpStream, served: Arc<Served>) {
    let service = service_fn(move |request| {
        let served = Arc::clone(&served);
        async move { Ok::<_, Infallible>(respond(&request, served).await) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_BUFFER_LEN)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(err) = connection.await {
        tracing::debug!("a client disconnected: {err}");
    }
}

async fn respond(request: &Request<Incoming>, served: Arc<Served>) -> Response<Full<Bytes>> {
    if served.is_loopback && !names_loopback(request.headers()) {
        return text(StatusCode::MISDIRECTED_REQUEST, "the host is not this one\n");
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        METRICS => {}
        "/" => return text(StatusCode::OK, "fatpath: the metrics are at /metrics\n"),
        _ => return text(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
    }
    let accepts = request.headers().get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let format = Format::accepted(&accepts.collect::<Vec<_>>().join(","));
    let scrape = tokio::task::spawn_blocking(move || {
        let scraped = served.scrapes.next();
        format.text(&families(&scraped))
    });
    match scrape.await {
        Ok(metrics) => of_type(StatusCode::OK, metrics, format.content_type()),
        Err(err) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{err}\n")),
    }
}

/// Whether a request names a host of loopback, with any port.
fn names_loopback(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    of_type(status, body.to_owned(), "text/plain; charset=utf-8")
}

fn of_type(status: StatusCode, body: String, content_type: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn host_of_loopback_is_told_from_others() {
        for (host, want) in [
            ("localhost", true),
            ("LocalHost:9847", true),
            ("127.0.0.1:9847", true),
            ("127.8.0.1", true),
            ("[::1]:9847", true),
            ("[::ffff:127.0.0.1]:9847", true),
            ("[::1]", true),
            ("evil.example", false),
            ("evil.example:9847", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("192.0.2.1:9847", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
            assert_eq!(names_loopback(&headers), want, "{host}");
        }
        assert!(!names_loopback(&HeaderMap::new()));
    }
}
