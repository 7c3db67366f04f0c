//! Closes connections whose writes stall.
//!
//! hyper limits how long a head takes to arrive, and handlers limit bodies, but nothing limits how long a client
//! takes to read an answer. A client that reads nothing would keep its connection, and the answer's memory, for as
//! long as it likes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::connections::Connection;

/// A stream whose writes fail if they make no progress for too long. An idle stream never fails.
#[derive(Debug)]
pub(crate) struct Stalling<S> {
    stream: S,
    patience: Duration,
    /// Notified of every byte that moves.
    connection: Option<Arc<Connection>>,
    /// Runs while a write waits. Created by the first write that waits, which for most connections never happens.
    deadline: Option<Pin<Box<Sleep>>>,
    is_running: bool,
}

impl<S> Stalling<S> {
    pub(crate) fn new(stream: S, patience: Duration, connection: Option<Arc<Connection>>) -> Self {
        Self {
            stream,
            patience,
            connection,
            deadline: None,
            is_running: false,
        }
    }

    fn progressed(&self) {
        if let Some(connection) = &self.connection {
            connection.progressed();
        }
    }

    fn wrote(&self) {
        self.progressed();
        if let Some(connection) = &self.connection {
            connection.answered();
        }
    }

    /// Passes on the outcome of a write, or fails if it has waited for too long.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.is_running = false;
            return result;
        }
        let until = Instant::now() + self.patience;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(Duration::ZERO)));
        if !self.is_running {
            self.is_running = true;
            deadline.as_mut().reset(until);
        }
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.progressed();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        if result.is_ready() {
            self.wrote();
        }
        self.judge(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if result.is_ready() {
            self.wrote();
        }
        self.judge(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(context, result)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_is_given_up_and_a_slow_one_is_not() {
        let (ours, mut theirs) = duplex(8);
        let mut stream = Stalling::new(ours, Duration::from_secs(10), None);
        let slow = tokio::spawn(async move {
            let mut buffer = [0; 1];
            for _ in 0..16 {
                sleep(Duration::from_secs(9)).await;
                theirs.read_exact(&mut buffer).await.unwrap();
            }
            theirs
        });
        stream.write_all(&[0; 24]).await.unwrap();
        let _theirs = slow.await.unwrap();
        let error = stream.write_all(&[0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
