//! The accept loop: connections, their times and their number.
//!
//! axum's own loop installs no timer, so a client that sends its head slowly, or never, keeps a connection
//! for ever. Here every phase has a time: the handshake, the head (and idleness between two), the body (in
//! `extract.rs`) and the answer (in `stall.rs`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::alarm::Alarm;
use crate::config::Limits;
use crate::stall::Stalling;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait when the system has no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The most bytes of a request's head, and of what is read ahead.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// The most headers of a request.
const HEADERS_MAX: usize = 64;

#[derive(Clone)]
pub(crate) struct Listening {
    pub(crate) router: Router,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) limits: Limits,
    /// Cancelled: no new connections, and the present ones end with their request.
    pub(crate) stop: CancellationToken,
    pub(crate) connections: TaskTracker,
}

impl Listening {
    /// Accepts until it is told to stop. Connections go on in tasks of their own.
    pub(crate) async fn run(self, listener: TcpListener) {
        let room = Arc::new(Semaphore::new(self.limits.connections_max));
        loop {
            let permit = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                permit = room.clone().acquire_owned() => permit.expect("nobody closes it"),
            };
            let accepted = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    self.connections
                        .spawn(self.clone().connection(stream, permit));
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn connection(self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        // Answers are small and wanted at once.
        let _ = stream.set_nodelay(true);
        let stream = Stalling::new(stream, self.limits.write_timeout);
        match &self.tls {
            None => self.serve(stream).await,
            Some(acceptor) => match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => self.serve(stream).await,
                Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                Err(_) => tracing::debug!("a handshake took too long"),
            },
        }
        drop(permit);
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S) {
        let service = TowerToHyperService::new(self.router.clone());
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
