//! The accept loop: it limits how many connections there are, and how long each phase takes.
//!
//! axum's own loop installs no timer, so a client that sends its head slowly, or never, would keep a connection for
//! ever. Here every phase has a time limit: the handshake, the head (and the idle time between two), the body (in
//! `extract.rs`) and the answer (in `stall.rs`).

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use std::future::poll_fn;
use std::task::Poll;

use axum::Router;
use axum::http::{HeaderValue, header};
use futures_util::FutureExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::alarm::Alarm;
use crate::config::Limits;
use crate::connections::{Connection, Connections};
use crate::handlers::osqueue::Door;
use crate::problem::Problem;
use crate::stall::Stalling;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait when the system has no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often to log that connections cannot be accepted.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// The most bytes of a request's head, and of what is read ahead.
pub(crate) const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// The most headers of a request.
const HEADERS_MAX: usize = 64;

/// The most concurrent calls of an HTTP/2 connection. Clients assume a hundred until they learn the limit, and calls
/// that they send above a lower limit before that would fail (RFC 9113, 6.5.2).
const STREAMS_MAX: u32 = 128;

/// How much of a body may arrive by HTTP/2 before any of it is read, and counted.
const WINDOW_BYTES: u32 = 64 * 1024;

/// How long a client may take to answer a ping on an HTTP/2 connection.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// How an HTTP/2 connection begins. No method of HTTP/1.1 does.
const PREFACE: &[u8] = b"PRI ";

/// How often to look for the rest of a preface.
const PREFACE_LOOK: Duration = Duration::from_millis(10);

/// How long a client that is turned away may take to send the rest and to read the reason.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a connection that was closed to make room may take until what it has sent is read. Until then its socket
/// still counts, as one of those that come and go.
const HEARING: Duration = Duration::from_millis(100);

/// How much of what a client still sends is read. Otherwise the system would reset the connection before the client
/// has the answer.
const FAREWELL_BYTES_MAX: u64 = 1024 * 1024;

/// The same for a client whose call was answered before all of it was read.
const UNREAD_BYTES_MAX: u64 = 64 * 1024 * 1024;

#[derive(Clone)]
pub(crate) struct Listening {
    pub(crate) router: Router,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) limits: Limits,
    /// When cancelled, there are no new connections, and present ones end with their request.
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) connections: Arc<Connections>,
    /// Room for sockets, including those that are being closed.
    pub(crate) sockets: Arc<Semaphore>,
    /// Room for connections that are turned away with an answer. Others are just cut off.
    pub(crate) farewells: Arc<Semaphore>,
    /// Who may use this listener, and with which token, if it serves only osqueue's calls.
    pub(crate) door: Option<Arc<Door>>,
}

/// Passes a connection's requests to the router, each with its connection attached.
struct Entrance {
    router: TowerToHyperService<Router>,
    connection: Arc<Connection>,
    door: Option<Arc<Door>>,
    /// Whether there may be several calls at a time.
    is_shared: bool,
}

impl Service<Request<Incoming>> for Entrance {
    type Response = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Response;
    type Error = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Error;
    type Future = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let connection = if self.is_shared {
            named(&mut request);
            self.connection.stream()
        } else {
            self.connection.clone()
        };
        if let Some(door) = &self.door {
            door.enter(&mut request, connection.peer());
        }
        if matches!(request.uri().path(), "/healthz" | "/readyz") {
            self.connection.ask_for_health();
        }
        request.extensions_mut().insert(connection);
        self.router.call(request)
    }
}

/// Copies the host to the header, since HTTP/2 names it elsewhere.
fn named(request: &mut Request<Incoming>) {
    if request.headers().contains_key(header::HOST) {
        return;
    }
    let host = request.uri().authority();
    let host = host.and_then(|host| HeaderValue::try_from(host.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
    }
}

/// Whether a connection begins as HTTP/2. Only peeks: consumes nothing.
async fn is_http2(stream: &TcpStream) -> bool {
    let mut start = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut start).await {
            Ok(0) | Err(_) => return false,
            Ok(bytes) if bytes < PREFACE.len() && PREFACE.starts_with(&start[..bytes]) => {
                tokio::time::sleep(PREFACE_LOOK).await;
            }
            Ok(bytes) => return start[..bytes] == *PREFACE,
        }
    }
}

/// Gives a connection's place back, however it ends.
struct Leaving {
    connections: Arc<Connections>,
    connection: Arc<Connection>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.connections.left(&self.connection);
        // Breaks a reference cycle: a protocol switch that never happened holds its connection, which holds it.
        drop(self.connection.take_switched());
    }
}

/// Limits log lines about connections that cannot be accepted, which may happen several times a second.
#[derive(Debug, Default)]
struct Complaint {
    said_at: Option<Instant>,
    unsaid: u64,
}

impl Complaint {
    /// Whether to log now: if so, how many times it was not logged since the last line.
    fn is_due(&mut self, now: Instant) -> Option<u64> {
        if self.said_at.is_some_and(|at| now < at + SAY_AGAIN) {
            self.unsaid += 1;
            return None;
        }
        self.said_at = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Listening {
    /// Accepts connections until it is told to stop. Each connection runs in its own task.
    pub(crate) async fn run(self, listener: TcpListener) {
        let mut complaint = Complaint::default();
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                accepted = self.accept(&listener) => accepted,
            };
            match accepted {
                Ok((stream, peer, socket)) => {
                    let connection = self.clone().connection(stream, peer);
                    self.tasks.spawn(async move {
                        connection.await;
                        drop(socket);
                    });
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    if let Some(unsaid) = complaint.is_due(Instant::now()) {
                        tracing::error!(%error, unsaid, "cannot accept connections");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Waits until there is room for another socket. This never takes long: a connection that has to make room for
    /// another is closed at once.
    async fn accept(
        &self,
        listener: &TcpListener,
    ) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let socket = self.sockets.clone().acquire_owned().await;
        let socket = socket.expect("the semaphore is never closed");
        let (stream, peer) = listener.accept().await?;
        Ok((stream, peer, socket))
    }

    async fn connection(self, mut stream: TcpStream, peer: SocketAddr) {
        let connection = self.connections.admit(peer);
        let leaving = Leaving {
            connections: self.connections.clone(),
            connection: connection.clone(),
        };
        let made_room = {
            let mut conversation = pin!(self.converse(&mut stream, &connection));
            tokio::select! {
                biased;
                () = connection.closed() => {
                    self.last_word(conversation, &connection).await;
                    true
                }
                () = &mut conversation => false,
            }
        };
        drop(leaving);
        if made_room {
            tracing::debug!(%peer, "closed a connection to make room for others");
            if self.tls.is_none() && connection.is_unheard() {
                self.turn_away(stream).await;
            }
        }
    }

    /// Gives a connection that was closed to make room, before any of its calls was read, a last chance: it may be a
    /// health check, and those are always answered. So what it has sent is read. Without a place, only a health check
    /// is answered, and no other call is started.
    async fn last_word(&self, conversation: impl Future<Output = ()>, connection: &Connection) {
        let mut conversation = pin!(conversation);
        if connection.is_unheard() {
            let _ = timeout(HEARING, &mut conversation).await;
        }
        if connection.is_unheard() && connection.asks_for_health() {
            let _ = timeout(FAREWELL_TIMEOUT, conversation).await;
        }
    }

    /// Tells a client that none of its calls was read, so that it does not have to wonder.
    async fn turn_away(&self, mut stream: TcpStream) {
        let Ok(_place) = self.farewells.try_acquire() else {
            return;
        };
        let answer = Problem::overloaded("all connections are in use").to_http();
        let _ = timeout(FAREWELL_TIMEOUT, async {
            stream.write_all(&answer).await?;
            stream.shutdown().await?;
            let mut rest = stream.take(FAREWELL_BYTES_MAX);
            tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
        })
        .await;
    }

    async fn converse(&self, stream: &mut TcpStream, connection: &Arc<Connection>) {
        // Answers are small and wanted at once.
        let _ = stream.set_nodelay(true);
        let http2 = match &self.tls {
            Some(_) => false,
            None => {
                let begun = timeout(self.limits.head_timeout, is_http2(stream));
                let begun = tokio::select! {
                    biased;
                    begun = begun => begun.ok(),
                    () = self.stop.cancelled() => None,
                };
                // The client has sent nothing.
                let Some(is_http2) = begun else {
                    return;
                };
                is_http2
            }
        };
        let patience = self.limits.write_timeout;
        let stream = Stalling::new(stream, patience, Some(connection.clone()));
        match &self.tls {
            None if http2 => self.serve_http2(stream, connection).await,
            None => self.serve(stream, connection).await,
            Some(acceptor) => match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                    self.serve_http2(stream, connection).await;
                }
                Ok(Ok(stream)) => self.serve(stream, connection).await,
                Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                Err(_) => tracing::debug!("a handshake took too long"),
            },
        }
    }

    fn entrance(&self, connection: &Arc<Connection>, is_shared: bool) -> Entrance {
        Entrance {
            router: TowerToHyperService::new(self.router.clone()),
            connection: connection.clone(),
            door: self.door.clone(),
            is_shared,
        }
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
        &self,
        stream: S,
        connection: &Arc<Connection>,
    ) {
        let mut http = http1::Builder::new()
            .timer(Alarm::default())
            .header_read_timeout(self.limits.head_timeout)
            .max_buf_size(BUFFER_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), self.entrance(connection, false));
        let mut stopped = pin!(self.stop.cancelled());
        let mut is_told = false;
        let result = poll_fn(|context| {
            if !is_told && stopped.as_mut().poll(context) == Poll::Ready(()) {
                is_told = true;
                std::pin::Pin::new(&mut http).graceful_shutdown();
            }
            http.poll_without_shutdown(context)
        })
        .await;
        if let Err(error) = result {
            tracing::debug!(%error, "a connection ended");
            return;
        }
        let parts = http.into_parts();
        let stream = parts.io.into_inner();
        match connection.take_switched() {
            Some(socket) => socket.run(stream, parts.read_buf.to_vec()).await,
            None => see_off(stream).await,
        }
    }

    async fn serve_http2<S: AsyncRead + AsyncWrite + Unpin + Send>(
        &self,
        stream: S,
        connection: &Arc<Connection>,
    ) {
        let http = http2::Builder::new(TokioExecutor::new())
            .timer(Alarm::default())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(u32::try_from(BUFFER_BYTES_MAX).unwrap_or(u32::MAX))
            .max_send_buf_size(BUFFER_BYTES_MAX)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(4 * WINDOW_BYTES)
            .keep_alive_interval(Some(self.limits.head_timeout))
            .keep_alive_timeout(ALIVE_TIMEOUT)
            .serve_connection(TokioIo::new(stream), self.entrance(connection, true));
        let mut http = pin!(http);
        let result = tokio::select! {
            biased;
            result = http.as_mut() => result,
            () = self.stop.cancelled() => {
                http.as_mut().graceful_shutdown();
                http.as_mut().await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a connection ended");
        }
    }
}

/// Closes a connection on which nothing more is answered. A client that is still sending, whose call was refused before its
/// body was read, may send on for a while: the system would reset the connection otherwise, and the client would lose the
/// answer.
async fn see_off<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let _ = stream.shutdown().await;
    let mut piece = [0; 1024];
    let is_sending = matches!(stream.read(&mut piece).now_or_never(), Some(Ok(1..)));
    if is_sending {
        let mut rest = stream.take(UNREAD_BYTES_MAX);
        let mut nowhere = tokio::io::sink();
        let rest = tokio::io::copy(&mut rest, &mut nowhere);
        let _ = timeout(FAREWELL_TIMEOUT, rest).await;
    }
}

/// Whether an error of `accept` concerns only one connection, and the next may succeed.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_all_the_time_is_said_now_and_then() {
        let mut complaint = Complaint::default();
        let now = Instant::now();
        assert_eq!(complaint.is_due(now), Some(0));
        for looks in 1..20 {
            assert_eq!(complaint.is_due(now + ACCEPT_PAUSE * looks), None);
        }
        assert_eq!(complaint.is_due(now + SAY_AGAIN), Some(19));
    }
}
