//! `GET /metrics`.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use client::CliError;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::TcpListener;

use crate::exposition::Format;
use crate::families::families;
use crate::http::{self, Body, Connection, Listener, Service, of_type, text};
use crate::scrape::{Gateways, Scraped};

/// Path of the metrics.
const METRICS: &str = "/metrics";

/// Serves metrics at `listen` until the process ends.
///
/// # Errors
/// The address cannot be bound.
pub(crate) fn serve(gateways: Gateways, listen: SocketAddr) -> Result<(), CliError> {
    let runtime = http::runtime().map_err(|err| CliError::system("start a thread", &err))?;
    let failed = |err: io::Error| CliError::system(&listen.to_string(), &err);
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        tracing::info!("metrics at http://{bound}{METRICS}");
        if !bound.ip().to_canonical().is_loopback() {
            tracing::warn!("{bound}: every host that reaches this address may read the metrics");
        }
        http::serve(Listener::Tcp(listener), Arc::new(Scrapes(Mutex::new((gateways, None))))).await;
        Ok(())
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

impl Service for Scrapes {
    async fn respond(self: Arc<Self>, request: Request<Incoming>, connection: Arc<Connection>) -> Response<Body> {
        if let Some(refusal) = connection.misdirected(&request) {
            return refusal;
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
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
            let scraped = self.next();
            // The place is the connection's until here, also if the client has gone.
            drop(connection);
            format.text(&families(&scraped))
        });
        match scrape.await {
            Ok(metrics) => of_type(StatusCode::OK, metrics, format.content_type()),
            Err(err) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{err}\n")),
        }
    }
}
