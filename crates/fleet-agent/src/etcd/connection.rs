//! One connection to one member: gRPC over HTTP/2, as far as etcd's API takes it (the gRPC HTTP/2 protocol mapping, RFC 9113).
//!
//! A connection is closed when its value is dropped, and when the member does not answer a PING in time.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{Ping, PingPong, RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Version};
use prost::Message;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::endpoint::Endpoint;
use super::tls::tls_error;

/// Time between two PINGs, also of an idle connection, and the longest time to the answer.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// Longest time until a connection is made, or a change answered.
pub(crate) const LIMIT: Duration = Duration::from_secs(1);

/// Longest time that a member takes to judge this program's certificate before requests are sent.
const VERDICT: Duration = Duration::from_millis(500);

/// Longest time until a page of keys has been read.
pub(crate) const READ_LIMIT: Duration = Duration::from_secs(10);

/// Longest message.
const MAX_MESSAGE: usize = 64 << 20;

/// Bytes that a member may send before this program has read them: of a stream, and of a connection.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Length of a message's prefix: one byte for compression, four for the length.
const PREFIX: usize = 5;

/// Failure of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum CallError {
    /// The member has not answered, or the connection is lost.
    Lost(String),
    /// The answer is longer than this program takes: so many bytes.
    TooLong(usize),
    /// The member has refused the request, with gRPC's number of the reason.
    Refused { code: u32, text: String },
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost(text) => f.write_str(text),
            Self::TooLong(len) => write!(f, "a message of {len} bytes"),
            Self::Refused { code, text } => write!(f, "{text} (gRPC status {code})"),
        }
    }
}

fn lost(err: impl std::fmt::Display) -> CallError {
    CallError::Lost(err.to_string())
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    requests: SendRequest<Bytes>,
    /// Beginning of the URI of a request.
    base: String,
    /// Common name of this program's certificate.
    user: Option<String>,
    /// Proof of a password, for requests that follow.
    token: Option<String>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects to a member.
    ///
    /// # Errors
    /// The member does not answer within a second.
    pub(crate) async fn open(endpoint: &Endpoint) -> Result<Self, CallError> {
        timeout(LIMIT, Self::connect(endpoint)).await.map_err(|_| lost("no connection within a second"))?
    }

    async fn connect(endpoint: &Endpoint) -> Result<Self, CallError> {
        // The files before the connection: a member counts connections that say nothing.
        let tls = endpoint.tls().map(|files| files.read()).transpose().map_err(lost)?;
        let stream = TcpStream::connect((endpoint.host(), endpoint.port())).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let Some(tls) = tls else { return Self::start(endpoint, stream, None).await };
        let name = ServerName::try_from(endpoint.host().to_owned()).map_err(lost)?;
        let mut stream = TlsConnector::from(tls.config).connect(name, stream).await.map_err(|err| {
            let inner = err.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            inner.map_or_else(|| lost(&err), |inner| lost(tls_error(inner, "the member's certificate")))
        })?;
        // No verdict in time: the member lets the client speak first.
        if let Ok(Err(err)) = timeout(VERDICT, receive_verdict(&mut stream)).await {
            return Err(lost(format_args!("the member refuses the connection: {err}")));
        }
        Self::start(endpoint, stream, tls.user).await
    }

    async fn start(
        endpoint: &Endpoint,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        user: Option<String>,
    ) -> Result<Self, CallError> {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        let (requests, mut connection) = builder.handshake::<_, Bytes>(stream).await.map_err(lost)?;
        let pings = connection.ping_pong();
        let driver = tokio::spawn(async move {
            tokio::select! {
                _ = connection => {}
                () = watch_pings(pings) => {}
            }
        });
        Ok(Self { requests, base: endpoint.to_string(), user, token: None, driver })
    }

    /// Common name of this program's certificate: the user for etcd.
    pub(super) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Sends requests that follow with the proof of a password, or without one.
    pub(super) fn set_token(&mut self, token: Option<String>) {
        self.token = token;
    }

    /// Sends one message and receives one.
    ///
    /// # Errors
    /// No answer within `limit`, or a refusal.
    pub(crate) async fn call<A: Message + Default>(
        &self,
        path: &'static str,
        message: &impl Message,
        limit: Duration,
    ) -> Result<A, CallError> {
        let exchange = async {
            let (mut out, mut answers) = self.open_stream(path).await?;
            out.send_data(framed(message), true).map_err(lost)?;
            answers.next().await?.ok_or_else(|| lost("an answer without a message"))
        };
        timeout(limit, exchange).await.map_err(|_| lost("no answer in time"))?
    }

    /// Opens a stream of messages in both directions.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) async fn stream<A: Message + Default>(
        &self,
        path: &'static str,
    ) -> Result<(Outbound, Inbound<A>), CallError> {
        let (out, answers) = timeout(LIMIT, self.open_stream(path)).await.map_err(|_| lost("no answer in time"))??;
        Ok((Outbound(out), answers))
    }

    async fn open_stream<A>(&self, path: &'static str) -> Result<(SendStream<Bytes>, Inbound<A>), CallError> {
        let uri = format!("{}{path}", self.base);
        let request = Request::builder().method(Method::POST).version(Version::HTTP_2).uri(uri);
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let mut request = request.header("user-agent", "fatpath-fleet");
        if let Some(token) = &self.token {
            request = request.header("token", token);
        }
        let request = request.body(()).map_err(lost)?;
        let mut requests = self.requests.clone().ready().await.map_err(lost)?;
        let (response, out) = requests.send_request(request, false).map_err(lost)?;
        let answers =
            Inbound { head: Some(response), body: None, buffer: BytesMut::new(), _answer: std::marker::PhantomData };
        Ok((out, answers))
    }
}

/// Receives the first bytes after the handshake. In TLS 1.3 a member judges the client's certificate once the client is through, and its
/// alert would be lost if a write failed first.
async fn receive_verdict(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    struct Received<'a>(&'a TcpStream);

    impl io::Read for Received<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.try_read(buffer)
        }
    }

    let (tcp, session) = stream.get_mut();
    loop {
        tcp.readable().await?;
        match session.read_tls(&mut Received(tcp)) {
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
            Err(err) => return Err(err),
            Ok(_) => return session.process_new_packets().map(drop).map_err(io::Error::other),
        }
    }
}

/// Returns when a PING has no answer.
async fn watch_pings(pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return };
    loop {
        sleep(KEEPALIVE).await;
        if !matches!(timeout(KEEPALIVE, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}

/// Sending half of a stream.
#[derive(Debug)]
pub(crate) struct Outbound(SendStream<Bytes>);

impl Outbound {
    /// Sends a message.
    ///
    /// # Errors
    /// The stream has ended.
    pub(crate) fn send(&mut self, message: &impl Message) -> Result<(), CallError> {
        self.0.send_data(framed(message), false).map_err(lost)
    }
}

/// Receiving half of a stream.
#[derive(Debug)]
pub(crate) struct Inbound<A> {
    head: Option<h2::client::ResponseFuture>,
    body: Option<RecvStream>,
    buffer: BytesMut,
    _answer: std::marker::PhantomData<A>,
}

impl<A: Message + Default> Inbound<A> {
    /// Receives the next message; `None` after the last one. A dropped call loses nothing.
    ///
    /// # Errors
    /// The connection is lost, or the member refuses the request.
    pub(crate) async fn next(&mut self) -> Result<Option<A>, CallError> {
        if let Some(head) = &mut self.head {
            let response = head.await.map_err(lost)?;
            self.head = None;
            let (parts, body) = response.into_parts();
            if !parts.status.is_success() {
                return Err(lost(format_args!("HTTP status {}", parts.status)));
            }
            check(&parts.headers)?;
            self.body = Some(body);
        }
        loop {
            if let Some(message) = take_message(&mut self.buffer)? {
                return A::decode(message).map(Some).map_err(lost);
            }
            let Some(body) = &mut self.body else { return Ok(None) };
            match body.data().await {
                Some(data) => {
                    let data = data.map_err(lost)?;
                    body.flow_control().release_capacity(data.len()).map_err(lost)?;
                    self.buffer.extend_from_slice(&data);
                }
                None => {
                    let trailers = poll_fn(|cx| body.poll_trailers(cx)).await.map_err(lost)?;
                    self.body = None;
                    check(&trailers.unwrap_or_default())?;
                }
            }
        }
    }
}

/// Message with its prefix.
fn framed(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + len);
    bytes.put_u8(0);
    bytes.put_u32(len as u32);
    message.encode(&mut bytes).expect("the buffer grows");
    bytes.freeze()
}

/// Takes the first message of the received bytes, if it is whole.
fn take_message(buffer: &mut BytesMut) -> Result<Option<Bytes>, CallError> {
    let Some([compression, length @ ..]) = buffer.first_chunk::<PREFIX>() else { return Ok(None) };
    if *compression != 0 {
        return Err(lost("a compressed message"));
    }
    let len = u32::from_be_bytes(*length) as usize;
    if len > MAX_MESSAGE {
        return Err(CallError::TooLong(len));
    }
    if buffer.len() < PREFIX + len {
        return Ok(None);
    }
    buffer.advance(PREFIX);
    Ok(Some(buffer.split_to(len).freeze()))
}

/// Checks gRPC's status in a header or a trailer.
fn check(headers: &HeaderMap) -> Result<(), CallError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match text("grpc-status").parse() {
        Ok(0) | Err(_) => Ok(()),
        Ok(code) => Err(CallError::Refused { code, text: text("grpc-message").to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_taken_when_it_is_whole() {
        let mut whole = BytesMut::from(&[0, 0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 0, 0, 0][..]);
        for len in 0..8 {
            assert_eq!(take_message(&mut BytesMut::from(&whole[..len])), Ok(None));
        }
        assert_eq!(take_message(&mut whole), Ok(Some(Bytes::from_static(&[1, 2, 3]))));
        assert_eq!(take_message(&mut whole), Ok(Some(Bytes::new())));
        assert_eq!(take_message(&mut whole), Ok(None));
        assert!(take_message(&mut BytesMut::from(&[1, 0, 0, 0, 0][..])).is_err());
        let long = take_message(&mut BytesMut::from(&[0, 255, 0, 0, 0][..]));
        assert_eq!(long, Err(CallError::TooLong(255 << 24)));
    }
}
