//! `fatpath web` in a namespace of its own, and raw requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use system::{Netns, Outcome, Process, Scratch, fatpath, wait_until};

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// The page, served for gateways in `scratch`.
pub(super) struct Served {
    pub(super) host: Netns,
    pub(super) process: Process,
    pub(super) address: SocketAddr,
    pub(super) token: String,
}

/// Reply to a request.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) code: u16,
    /// Lines of the head, in lower case up to the colon.
    pub(super) head: Vec<String>,
    pub(super) body: String,
}

impl Reply {
    /// Value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find_map(|line| line.split_once(": ").filter(|(known, _)| *known == name)).map(|(_, it)| it)
    }
}

/// Events of an open page.
pub(super) struct Events(BufReader<TcpStream>);

impl Served {
    pub(super) fn start(scratch: &Scratch, options: &[&str]) -> Outcome<Self> {
        let host = Netns::new("w")?;
        let mut command = host.command(fatpath());
        command.args(["web", "--listen", "127.0.0.1:9848"]).args(options).env("FATPATH_RUNDIR", scratch.path());
        let mut process = Process::spawn(&mut command, scratch)?;
        wait_until("the page is served", PATIENCE, || process.output().contains("/#") || !process.is_running())?;
        let output = process.output();
        let url = output.lines().find_map(|line| line.strip_prefix("http://")).ok_or(format!("no URL: {output}"))?;
        let (address, token) = url.split_once("/#").ok_or("no secret")?;
        Ok(Self { host, address: address.parse()?, token: token.to_owned(), process })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/#{}", self.address, self.token)
    }

    pub(super) fn connect(&self) -> Outcome<TcpStream> {
        let stream = self.host.enter(|| TcpStream::connect(self.address))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Reply to a head of lines, without its last line, and a body. `HOST` in it is the page's.
    pub(super) fn request(&self, head: &[&str], body: &str) -> Outcome<Reply> {
        let mut stream = self.connect()?;
        let length = format!("Content-Length: {}", body.len());
        let lines = head.iter().copied().chain((!body.is_empty()).then_some(length.as_str()));
        let lines: Vec<String> = lines.map(|line| line.replace("HOST", &self.address.to_string())).collect();
        // A server that refuses a long request closes before the end.
        let _ = stream.write_all(format!("{}\r\n\r\n{body}", lines.join("\r\n")).as_bytes());
        read_reply(stream)
    }

    /// Reply to `GET PATH` with the cookie.
    pub(super) fn get(&self, path: &str, cookie: &str) -> Outcome<Reply> {
        self.request(&[&format!("GET {path} HTTP/1.1"), "Host: HOST", &format!("Cookie: {cookie}")], "")
    }

    /// Cookie for the secret of the URL.
    pub(super) fn cookie(&self) -> Outcome<String> {
        let reply = self.request(&["POST /session HTTP/1.1", "Host: HOST", "Origin: http://HOST"], &self.token)?;
        let cookie = reply.header("set-cookie").and_then(|cookie| cookie.split(';').next());
        Ok(cookie.ok_or(format!("no cookie: {reply:?}"))?.to_owned())
    }

    /// An open page for a gateway.
    pub(super) fn events(&self, cookie: &str, gateway: &str) -> Outcome<Result<Events, Reply>> {
        let mut stream = self.connect()?;
        let head = format!("GET /events?gateway={gateway} HTTP/1.1\r\nHost: {}\r\nCookie: {cookie}", self.address);
        stream.write_all(format!("{head}\r\n\r\n").as_bytes())?;
        let mut reader = BufReader::new(stream);
        let head = read_head(&mut reader)?;
        if head[0].contains(" 200 ") {
            return Ok(Ok(Events(reader)));
        }
        Ok(Err(reply_of(head, String::new())?))
    }

    /// Starts a trace, and returns its stream behind the head.
    pub(super) fn trace(
        &self,
        cookie: &str,
        gateway: &str,
        filter: &str,
        packets: u32,
    ) -> Outcome<BufReader<TcpStream>> {
        let mut stream = self.connect()?;
        let body = serde_json::json!({ "gateway": gateway, "filter": filter, "packets": packets }).to_string();
        let (address, length) = (self.address, body.len());
        let head = format!(
            "POST /trace HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nCookie: {cookie}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes())?;
        let mut reader = BufReader::new(stream);
        let head = read_head(&mut reader)?;
        if head[0].contains(" 200 ") { Ok(reader) } else { Err(format!("{head:?}").into()) }
    }
}

impl Events {
    /// The next event.
    pub(super) fn next(&mut self) -> Outcome<Value> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err("the stream has ended".into());
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Ok(serde_json::from_str(data)?);
            }
        }
    }

    /// The next event for which `is_wanted` holds, within `limit`.
    pub(super) fn until(&mut self, limit: Duration, is_wanted: impl Fn(&Value) -> bool) -> Outcome<Value> {
        let deadline = Instant::now() + limit;
        let mut last = Value::Null;
        while Instant::now() < deadline {
            last = self.next()?;
            if is_wanted(&last) {
                return Ok(last);
            }
        }
        Err(format!("not within {limit:?}; the last event: {last}").into())
    }
}

/// The next line of JSON of a trace.
pub(super) fn next_line(reader: &mut BufReader<TcpStream>) -> Outcome<Value> {
    // Lines of a chunked body: its lengths are lines, too.
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err("the trace has ended".into());
        }
        if line.starts_with('{') {
            return Ok(serde_json::from_str(&line)?);
        }
    }
}

fn read_head(reader: &mut impl BufRead) -> Outcome<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(format!("no whole head: {lines:?}").into());
        }
        match line.trim_end() {
            "" => return Ok(lines),
            line => lines.push(line.to_owned()),
        }
    }
}

fn read_reply(stream: TcpStream) -> Outcome<Reply> {
    let mut reader = BufReader::new(stream);
    let head = read_head(&mut reader)?;
    let mut body = Vec::new();
    reader.read_to_end(&mut body)?;
    reply_of(head, String::from_utf8_lossy(&body).into_owned())
}

fn reply_of(head: Vec<String>, body: String) -> Outcome<Reply> {
    let code = head[0].split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(format!("no code: {head:?}"))?;
    Ok(Reply { code, head, body })
}
