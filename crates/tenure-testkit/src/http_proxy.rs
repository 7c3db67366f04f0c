//! A proxy that loses answers like networks and gateways do: after the server has acted.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::date::Moment;
use crate::http1::{Message, Server};

/// What happens to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The server gets it and answers, but the connection to the client is closed instead.
    LoseAnswer,
    /// The server gets it and answers, but the client gets this status instead.
    AnswerInstead(&'static str),
    /// The connection is closed before the server has seen anything.
    LoseRequest,
    /// Nothing, but the connection is closed right after the answer, without announcing it.
    CloseAfterwards,
}

/// A proxy in front of a server, which counts requests.
#[derive(Debug)]
pub struct HttpProxy {
    server: Server,
    shared: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    faults: VecDeque<Fault>,
    /// What happens to a write when no single fault is left.
    always: Option<Fault>,
    /// How long a connection may be idle.
    idle: Option<Duration>,
    /// Whether POSTs count as writes too: object stores only get PUTs.
    posts_are_writes: bool,
    /// How far the clock that dates the answers is ahead, if it is not the server's.
    date_ahead: Option<i64>,
    writes: usize,
    /// The text of requests to refuse, and the problem document to refuse them with.
    refused: Option<(&'static str, &'static str)>,
    refusals: usize,
}

impl HttpProxy {
    /// Starts a proxy in front of `upstream`. Has to be called within a tokio runtime.
    pub async fn start(upstream: SocketAddr) -> Self {
        let shared = Arc::new(Mutex::new(State::default()));
        let state = shared.clone();
        Self {
            server: Server::start(move |stream| serve(stream, upstream, state.clone())).await,
            shared,
        }
    }

    /// The proxy's address, which clients use as the server's.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Lets this happen to the next write that has no fault yet.
    pub fn fail_next(&self, fault: Fault) {
        lock(&self.shared).faults.push_back(fault);
    }

    /// Lets this happen to every write from now on.
    pub fn fail_always(&self, fault: Fault) {
        lock(&self.shared).always = Some(fault);
    }

    /// Closes connections that were idle for this long without announcing it, even if a request is just arriving.
    pub fn close_idle_after(&self, idle: Duration) {
        lock(&self.shared).idle = Some(idle);
    }

    /// Makes faults happen to POSTs too, and counts POSTs.
    pub fn count_posts(&self) {
        lock(&self.shared).posts_are_writes = true;
    }

    /// Answers every request whose body contains this text with this problem document, and does not pass it on, like
    /// a server of an older version that does not know the text.
    pub fn refuse(&self, text: &'static str, problem: &'static str) {
        lock(&self.shared).refused = Some((text, problem));
    }

    /// How many requests were refused in this way.
    #[must_use]
    pub fn refusals(&self) -> usize {
        lock(&self.shared).refusals
    }

    /// From now on dates the answers by a separate clock, as many gateways do: this many seconds ahead, or behind.
    pub fn set_date_ahead(&self, seconds: i64) {
        lock(&self.shared).date_ahead = Some(seconds);
    }

    /// How many writes the server received.
    #[must_use]
    pub fn puts(&self) -> usize {
        lock(&self.shared).writes
    }
}

impl State {
    /// The answer to a request that is not passed on.
    fn refusal_of(&mut self, request: &Message) -> Option<Message> {
        let (text, problem) = self.refused?;
        let mut places = request.body.windows(text.len());
        places.find(|&place| place == text.as_bytes())?;
        self.refusals += 1;
        let answer = Message::answer("422 Unprocessable Entity")
            .with_header("content-type", "application/problem+json")
            .with_header("content-length", problem.len().to_string());
        Some(answer.with_body(problem))
    }

    /// What happens to the next request.
    fn fault_of(&mut self, method: &str) -> Option<Fault> {
        if method != "PUT" && !(method == "POST" && self.posts_are_writes) {
            return None;
        }
        let fault = self.faults.pop_front().or(self.always);
        self.writes += usize::from(fault != Some(Fault::LoseRequest));
        fault
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(
    mut client: BufReader<TcpStream>,
    upstream: SocketAddr,
    state: Arc<Mutex<State>>,
) -> io::Result<()> {
    // A connection counts as idle between two requests, not before the first.
    let mut idle = Duration::MAX;
    loop {
        let request = timeout(idle, Message::read(&mut client, false)).await;
        let Ok(Some(request)) = request.unwrap_or(Ok(None)) else {
            return Ok(());
        };
        idle = lock(&state).idle.unwrap_or(Duration::MAX);
        let refusal = lock(&state).refusal_of(&request);
        if let Some(refusal) = refusal {
            refusal.write(&mut client).await?;
            continue;
        }
        let fault = lock(&state).fault_of(request.method());
        if fault == Some(Fault::LoseRequest) {
            return Ok(());
        }
        let mut answer = forward(&request, upstream).await?;
        if let Some(seconds) = lock(&state).date_ahead {
            answer.headers.retain(|(name, _)| name != "date");
            answer = answer.with_header("date", Moment::ahead(seconds).http());
        }
        match fault {
            Some(Fault::LoseAnswer | Fault::LoseRequest) => return Ok(()),
            Some(Fault::AnswerInstead(status)) => {
                let instead = Message::answer(status).with_header("content-length", "0");
                instead.write(&mut client).await?;
            }
            Some(Fault::CloseAfterwards) => return answer.write(&mut client).await,
            None => answer.write(&mut client).await?,
        }
    }
}

/// Sends the request to the server on a new connection, and waits for the whole answer.
async fn forward(request: &Message, upstream: SocketAddr) -> io::Result<Message> {
    let mut server = BufReader::new(TcpStream::connect(upstream).await?);
    let mut request = request.clone();
    request.headers.retain(|(name, _)| name != "connection");
    let request = request.with_header("connection", "close");
    request.write(&mut server).await?;
    let answer = Message::read(&mut server, true).await?;
    let mut answer = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
    if answer.header("transfer-encoding").is_some() {
        answer.body = without_chunks(&answer.body)?;
    }
    // An answer to HEAD, and a 304, has a length but no body.
    let length = answer.header("content-length").map(str::to_owned);
    let length = length.unwrap_or_else(|| answer.body.len().to_string());
    let connection = [
        "connection",
        "keep-alive",
        "transfer-encoding",
        "content-length",
    ];
    answer
        .headers
        .retain(|(name, _)| !connection.contains(&name.as_str()));
    Ok(answer.with_header("content-length", length))
}

/// The body inside a chunked one.
fn without_chunks(mut chunked: &[u8]) -> io::Result<Vec<u8>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut body = Vec::new();
    loop {
        let end = chunked.windows(2).position(|pair| pair == b"\r\n");
        let end = end.ok_or_else(invalid)?;
        let length = std::str::from_utf8(&chunked[..end]).map_err(|_| invalid())?;
        let length = usize::from_str_radix(length.trim(), 16).map_err(|_| invalid())?;
        chunked = &chunked[end + 2..];
        if length == 0 {
            return Ok(body);
        }
        body.extend_from_slice(chunked.get(..length).ok_or_else(invalid)?);
        chunked = chunked.get(length + 2..).ok_or_else(invalid)?;
    }
}
