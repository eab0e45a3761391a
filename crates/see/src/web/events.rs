//! Server-sent events: the state of a gateway when it changes, once a second.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::watch::{Shown, Watches};
use crate::http::{Body, Connection, of_parts, text};

/// Limit of pages that are open, each with a connection for its events.
const MAX_PAGES: usize = 16;

/// Longest time between two parts of the stream, by which a client notices its end, and the server that of the client.
const HEARTBEAT: Duration = Duration::from_millis(1500);

/// Event without news.
const BEAT: &[u8] = b"event: beat\ndata:\n\n";

/// Pages that are open.
#[derive(Debug)]
pub(super) struct Pages {
    watches: Arc<Watches>,
    places: Arc<Semaphore>,
}

impl Pages {
    pub(super) fn new(watches: Arc<Watches>) -> Self {
        Self { watches, places: Arc::new(Semaphore::new(MAX_PAGES)) }
    }

    /// Reply to a page that is open: events of the gateway that the query names, or of the first one.
    pub(super) fn stream(&self, query: Option<&str>, connection: Arc<Connection>) -> Response<Body> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let why = format!("{MAX_PAGES} pages are open already; close one of them\n");
            let mut response = text(StatusCode::SERVICE_UNAVAILABLE, &why);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
            return response;
        };
        connection.leave_place();
        let (sender, parts) = mpsc::channel(1);
        // Names of gateways have no characters that a query encodes.
        let wanted = query.and_then(|query| query.strip_prefix("gateway=")).map(str::to_owned);
        tokio::spawn(send(Arc::clone(&self.watches), wanted, sender, place));
        of_parts(parts, connection, "text/event-stream")
    }
}

/// Sends events until the client has gone.
async fn send(
    watches: Arc<Watches>,
    wanted: Option<String>,
    sender: mpsc::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
) {
    let mut watched = None;
    loop {
        let names = watches.names();
        let name = wanted.as_ref().or(names.first());
        if watched.is_none() {
            watched = name.and_then(|name| Some((name.clone(), watches.of(name)?)));
        }
        let part = match &mut watched {
            Some((name, receiver)) => match tokio::time::timeout(HEARTBEAT, receiver.changed()).await {
                Ok(Ok(())) => event(&names, Some(name), &receiver.borrow_and_update()),
                Ok(Err(_)) => {
                    watched = None;
                    continue;
                }
                Err(_) => Bytes::from_static(BEAT),
            },
            None => {
                let failure = match name {
                    Some(name) => format!("there is no gateway {name} that this user may look at"),
                    None => "there is no gateway that this user may look at".to_owned(),
                };
                event(&names, None, &Shown { picture: None, failure: Some(failure) })
            }
        };
        if sender.send(part).await.is_err() {
            return;
        }
        if watched.is_none() {
            tokio::time::sleep(HEARTBEAT).await;
        }
    }
}

/// An event as text. JSON has no line breaks.
fn event(names: &[String], name: Option<&String>, shown: &Shown) -> Bytes {
    let json = |value: &serde_json::Value| value.to_string();
    let (picture, age) = match &shown.picture {
        Some((picture, at)) => (&**picture, at.elapsed().as_millis().to_string()),
        None => ("null", "null".to_owned()),
    };
    let text = format!(
        "data: {{\"gateways\":{},\"gateway\":{},\"failure\":{},\"age_ms\":{age},\"picture\":{picture}}}\n\n",
        json(&names.into()),
        json(&name.cloned().into()),
        json(&shown.failure.clone().into()),
    );
    text.into()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn event_is_one_line_of_json() {
        let names = ["a".to_owned(), "b\"\n".to_owned()];
        let shown = Shown { picture: Some(("{\"x\":1}".into(), Instant::now())), failure: Some("gone\n".to_owned()) };
        let text = String::from_utf8(event(&names, Some(&names[1]), &shown).to_vec()).unwrap();
        let line = text.strip_prefix("data: ").and_then(|text| text.strip_suffix("\n\n")).unwrap();
        assert!(!line.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&value["gateway"], &value["failure"]), (&"b\"\n".into(), &"gone\n".into()));
        assert_eq!((&value["picture"]["x"], value["age_ms"].as_u64().is_some()), (&1.into(), true));
        let none = String::from_utf8(event(&[], None, &Shown::default()).to_vec()).unwrap();
        assert_eq!(
            none,
            "data: {\"gateways\":[],\"gateway\":null,\"failure\":null,\"age_ms\":null,\"picture\":null}\n\n"
        );
    }
}
