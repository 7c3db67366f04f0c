//! The accept loop: connections, their times and their number.
//!
//! axum's own loop installs no timer, so a client that sends its head slowly, or never, keeps a connection
//! for ever. Here every phase has a time: the handshake, the head (and idleness between two), the body (in
//! `extract.rs`) and the answer (in `stall.rs`).

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
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
use crate::problem::Problem;
use crate::stall::Stalling;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait when the system has no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often to say that connections cannot be accepted.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// The most bytes of a request's head, and of what is read ahead.
pub(crate) const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// The most headers of a request.
const HEADERS_MAX: usize = 64;

/// How long a client that is turned away may take to send the rest and to read why.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a connection that has made room for another may take until what it has sent is read. As long as that, its
/// socket is one of those that pass.
const HEARING: Duration = Duration::from_millis(100);

/// How much of what it still sends is read, so that the system does not reset the connection before it has the answer.
const FAREWELL_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Clone)]
pub(crate) struct Listening {
    pub(crate) router: Router,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) limits: Limits,
    /// Cancelled: no new connections, and the present ones end with their request.
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) connections: Arc<Connections>,
    /// How many sockets there are at most, with those that are being closed.
    pub(crate) sockets: Arc<Semaphore>,
    /// How many are turned away at a time. The others are just cut off.
    pub(crate) farewells: Arc<Semaphore>,
}

/// What a connection's requests are answered by: each is told which connection it came by.
struct Entrance {
    router: TowerToHyperService<Router>,
    connection: Arc<Connection>,
}

impl Service<Request<Incoming>> for Entrance {
    type Response = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Response;
    type Error = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Error;
    type Future = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        if matches!(request.uri().path(), "/healthz" | "/readyz") {
            self.connection.ask_for_health();
        }
        request.extensions_mut().insert(self.connection.clone());
        self.router.call(request)
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
    }
}

/// Connections that cannot be accepted, several times a second: said once, and then now and then.
#[derive(Debug, Default)]
struct Complaint {
    said_at: Option<Instant>,
    unsaid: u64,
}

impl Complaint {
    /// Whether to say it now, and how often it was not said since the last time.
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
    /// Accepts until it is told to stop. Connections go on in tasks of their own.
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

    /// Waits until there is room for another socket. That is never long: whoever has to make room for another is closed
    /// at once.
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

    /// A connection that has made room before it was heard may be a health check, and those are always answered: what it has
    /// sent is looked at. Without a place it is told how the server is, and nothing else is begun for it.
    async fn last_word(&self, conversation: impl Future<Output = ()>, connection: &Connection) {
        let mut conversation = pin!(conversation);
        if connection.is_unheard() {
            let _ = timeout(HEARING, &mut conversation).await;
        }
        if connection.is_unheard() && connection.asks_for_health() {
            let _ = timeout(FAREWELL_TIMEOUT, conversation).await;
        }
    }

    /// Tells a client that none of its calls was looked at, rather than to leave it in doubt.
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
        let patience = self.limits.write_timeout;
        let stream = Stalling::new(stream, patience, Some(connection.clone()));
        match &self.tls {
            None => self.serve(stream, connection).await,
            Some(acceptor) => match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => self.serve(stream, connection).await,
                Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                Err(_) => tracing::debug!("a handshake took too long"),
            },
        }
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
        &self,
        stream: S,
        connection: &Arc<Connection>,
    ) {
        let service = Entrance {
            router: TowerToHyperService::new(self.router.clone()),
            connection: connection.clone(),
        };
        let connection = http1::Builder::new()
            .timer(Alarm::default())
            .header_read_timeout(self.limits.head_timeout)
            .max_buf_size(BUFFER_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let result = tokio::select! {
            biased;
            result = connection.as_mut() => result,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.as_mut().await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a connection ended");
        }
    }
}

/// Whether an error of accept says nothing about the next one.
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
