//! HTTP on loopback or a Unix socket: places and time limits of connections, the host that a request names, and replies.
//!
//! A page in a browser reaches loopback. So the host that a request to a loopback address names has to be one of loopback, whatever address
//! the program listens at: a name of another site that leads here is refused.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

/// Limit of connections that are no streams; a further one is closed at once.
pub(crate) const MAX_CONNECTIONS: usize = 16;

/// Limit of a request's head in bytes.
const MAX_HEAD_LEN: usize = 64 << 10;

/// Limit of hyper's buffer: it reads once more, as much again, while the buffer is below.
const MAX_BUFFER_LEN: usize = MAX_HEAD_LEN / 2;

/// Send buffer of a connection in bytes: what the kernel keeps for a client that does not read.
const SEND_BUFFER_LEN: usize = 64 << 10;

/// Longest time from the acceptance of a connection to the end of the reply, and from one part of a stream to the next. Two scrapes, the
/// one in progress and the next, take less than half of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Socket that accepts connections.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Replies to requests.
pub(crate) trait Service: Send + Sync + 'static {
    /// Reply to a request of a connection.
    fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
        connection: Arc<Connection>,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// State of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Whether the client reached it at an address of loopback, or at a Unix socket, to which a port of a client's own host may lead.
    is_local: bool,
    /// The connection's place, which is free when the client has gone and work for it has ended.
    place: Mutex<Option<OwnedSemaphorePermit>>,
    /// Time at which the connection is closed.
    deadline: Mutex<Instant>,
}

impl Connection {
    /// Refuses a request that names another host than the connection's.
    pub(crate) fn misdirected(&self, request: &Request<Incoming>) -> Option<Response<Body>> {
        let hosts: Vec<&str> = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or("")).collect();
        let in_uri = request.uri().authority().map(hyper::http::uri::Authority::as_str);
        let is_ours = hosts.len() == 1 && hosts.into_iter().chain(in_uri).all(is_loopback_host);
        (self.is_local && !is_ours).then(|| text(StatusCode::MISDIRECTED_REQUEST, "the host is not this one\n"))
    }

    /// Gives the place to other connections: this one has another place.
    pub(crate) fn leave_place(&self) {
        drop(lock(&self.place).take());
    }

    /// Permits the connection to last for a time from now.
    fn extend(&self, time: Duration) {
        *lock(&self.deadline) = Instant::now() + time;
    }

    /// Waits until the time of the connection is over.
    async fn over(&self) {
        loop {
            let deadline = *lock(&self.deadline);
            if deadline <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(deadline).await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Content of a reply.
#[derive(Debug)]
pub(crate) enum Body {
    Whole(Full<Bytes>),
    Parts(Parts),
}

/// Parts of a reply that come one by one. The next one is asked for when the client has read most of those before.
#[derive(Debug)]
pub(crate) struct Parts {
    parts: mpsc::Receiver<Bytes>,
    connection: Arc<Connection>,
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.get_mut() {
            Self::Whole(whole) => Pin::new(whole).poll_frame(cx),
            Self::Parts(Parts { parts, connection }) => parts.poll_recv(cx).map(|part| {
                let part = part?;
                connection.extend(PATIENCE);
                Some(Ok(Frame::data(part)))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(whole) if whole.is_end_stream())
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Parts(_) => hyper::body::SizeHint::default(),
        }
    }
}

/// Runtime for a program that serves.
///
/// # Errors
/// No thread can be started.
pub(crate) fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_io().enable_time().max_blocking_threads(MAX_CONNECTIONS).build()
}

/// Serves connections for ever.
pub(crate) async fn serve<S: Service>(listener: Listener, service: Arc<S>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = match &listener {
            Listener::Tcp(listener) => listener.accept().await.and_then(|(stream, _)| {
                let is_local = stream.local_addr()?.ip().to_canonical().is_loopback();
                accepted(stream, is_local, &places, &service)
            }),
            Listener::Unix(listener) => {
                listener.accept().await.and_then(|(stream, _)| accepted(stream, true, &places, &service))
            }
        };
        if let Err(err) = accepted {
            // Such as a full table of descriptors.
            tracing::warn!("accept: {err}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Stream of either kind of socket.
trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + std::os::fd::AsFd + 'static {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
}

impl ClientStream for tokio::net::TcpStream {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        Self::try_write(self, bytes)
    }
}

impl ClientStream for tokio::net::UnixStream {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        Self::try_write(self, bytes)
    }
}

fn accepted<S: Service>(
    stream: impl ClientStream,
    is_local: bool,
    places: &Arc<Semaphore>,
    service: &Arc<S>,
) -> io::Result<()> {
    let Ok(place) = Arc::clone(places).try_acquire_owned() else {
        // The reply fits the socket's buffer, or the client reads none.
        let _ = stream.try_write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        return Ok(());
    };
    set_socket_send_buffer_size(&stream, SEND_BUFFER_LEN)?;
    let deadline = Mutex::new(Instant::now() + PATIENCE);
    let connection = Arc::new(Connection { is_local, place: Mutex::new(Some(place)), deadline });
    let service = Arc::clone(service);
    tokio::spawn(async move {
        let mut served = pin!(requests(stream, service, Arc::clone(&connection)));
        let mut over = pin!(connection.over());
        let ended = poll_fn(|cx| match served.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready("a client has gone"),
            Poll::Pending => over.as_mut().poll(cx).map(|()| "a client was too slow"),
        });
        let why = ended.await;
        tracing::debug!("{why}");
    });
    Ok(())
}

async fn requests<S: Service>(stream: impl ClientStream, service: Arc<S>, connection: Arc<Connection>) {
    let respond = service_fn(move |request| {
        let (service, connection) = (Arc::clone(&service), Arc::clone(&connection));
        async move { Ok::<_, Infallible>(service.respond(request, connection).await) }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_BUFFER_LEN)
        .serve_connection(TokioIo::new(stream), respond);
    if let Err(err) = served.await {
        tracing::debug!("a client disconnected: {err}");
    }
}

/// Whether a host, with any port, is one of loopback.
fn is_loopback_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Reply of plain text.
pub(crate) fn text(status: StatusCode, body: &str) -> Response<Body> {
    of_type(status, body.to_owned(), "text/plain; charset=utf-8")
}

/// Reply of a type.
pub(crate) fn of_type(status: StatusCode, body: impl Into<Bytes>, content_type: &'static str) -> Response<Body> {
    with_body(status, Body::Whole(Full::new(body.into())), content_type)
}

/// Reply whose parts come one by one.
pub(crate) fn of_parts(
    parts: mpsc::Receiver<Bytes>,
    connection: Arc<Connection>,
    content_type: &'static str,
) -> Response<Body> {
    with_body(StatusCode::OK, Body::Parts(Parts { parts, connection }), content_type)
}

fn with_body(status: StatusCode, body: Body, content_type: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
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
            ("user@127.0.0.1", false),
            ("192.0.2.1:9847", false),
            ("", false),
        ] {
            assert_eq!(is_loopback_host(host), want, "{host}");
        }
    }
}
