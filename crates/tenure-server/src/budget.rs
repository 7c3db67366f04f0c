//! Limits how many bytes are in memory at once, over all connections: request bodies that arrive, and answers that
//! clients are reading.
//!
//! A connection may have one of each, and there may be thousands of connections: the product of two harmless limits is
//! more memory than any host has. So all of them take their bytes from one budget. A body takes bytes as they arrive,
//! not as announced: a client that announces much and sends little holds little. An answer holds its bytes until the
//! last one is written. When none are left, connections that make no progress are closed, and the caller waits a
//! moment for their bytes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::connections::{Connection, Connections};

/// How long to wait for the bytes of connections that were closed.
const PATIENCE: Duration = Duration::from_millis(500);

/// Smaller answers are not counted: they take no more memory than the connection's buffers do.
pub(crate) const SMALL_BYTES: usize = 16 * 1024;

/// A number of bytes that all connections share.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes_max: usize,
    used: AtomicUsize,
    freed: Notify,
}

/// Bytes taken from a budget, returned when this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    budget: Budget,
    bytes: usize,
    holder: Option<Arc<Connection>>,
}

impl Budget {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Shared {
            bytes_max,
            used: AtomicUsize::new(0),
            freed: Notify::new(),
        }))
    }

    /// How many bytes are in use.
    pub(crate) fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// An empty room for a connection.
    pub(crate) fn room(&self, holder: Option<Arc<Connection>>) -> Room {
        Room {
            budget: self.clone(),
            bytes: 0,
            holder,
        }
    }
}

impl Room {
    /// Takes more bytes. Returns false, and takes none, if there are not enough left.
    pub(crate) fn try_grow(&mut self, bytes: usize) -> bool {
        let Shared {
            bytes_max, used, ..
        } = &*self.budget.0;
        let order = Ordering::Relaxed;
        let taken = used.fetch_update(order, order, |used| {
            used.checked_add(bytes).filter(|sum| sum <= bytes_max)
        });
        if taken.is_ok() {
            self.note(bytes);
        }
        taken.is_ok()
    }

    /// Like [`try_grow`](Self::try_grow), but when memory is short it closes slow connections and waits a moment.
    pub(crate) async fn grow(&mut self, bytes: usize, connections: &Connections) -> bool {
        if self.try_grow(bytes) {
            return true;
        }
        connections.shed_slow(bytes);
        let budget = self.budget.clone();
        let grown = async {
            loop {
                let freed = budget.0.freed.notified();
                tokio::pin!(freed);
                // From here on no release is missed.
                freed.as_mut().enable();
                if self.try_grow(bytes) {
                    return;
                }
                freed.await;
            }
        };
        timeout(PATIENCE, grown).await.is_ok()
    }

    /// Sets the room to exactly this size, even beyond the budget: what is in memory already has to be counted.
    pub(crate) fn set(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(more) => {
                self.budget.0.used.fetch_add(more, Ordering::Relaxed);
                self.note(more);
            }
            None => self.release(self.bytes - bytes),
        }
    }

    /// An empty room for the same connection.
    pub(crate) fn another(&self) -> Self {
        self.budget.room(self.holder.clone())
    }

    /// Stops counting these bytes against the connection: all of the body has arrived, so from now on the client waits
    /// for us and is not slow.
    pub(crate) fn settle(&mut self) {
        if let Some(holder) = self.holder.take() {
            holder.subtract(self.bytes);
        }
    }

    fn note(&mut self, bytes: usize) {
        self.bytes += bytes;
        if let Some(holder) = &self.holder {
            holder.add(bytes);
        }
    }

    fn release(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.bytes -= bytes;
        if let Some(holder) = &self.holder {
            holder.subtract(bytes);
        }
        self.budget.0.used.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.0.freed.notify_waiters();
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

/// Marks an answer that is counted already.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted;

/// Marks an answer that is given even when the budget is used up: that is when an operator needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Essential;

/// Attaches a room to an answer, until the last byte is written.
pub(crate) fn counted(response: Response, room: Room) -> Response {
    let mut response = response.map(|body| {
        Body::new(Roomed {
            body,
            room: Some(room),
        })
    });
    response.extensions_mut().insert(Counted);
    response
}

/// A body in one piece. The room moves along with the piece, since the body is dropped before the piece is written.
struct Roomed {
    body: Body,
    room: Option<Room>,
}

struct Piece {
    bytes: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl http_body::Body for Roomed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let room = &mut self.room;
        let frame = frame.map(|frame| {
            frame.map_data(|bytes| match room.take() {
                Some(room) => Bytes::from_owner(Piece { bytes, _room: room }),
                None => bytes,
            })
        });
        Poll::Ready(Some(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let budget = Budget::new(10_000);
        let mut most = budget.room(None);
        assert!(most.try_grow(9_000));
        let mut other = budget.room(None);
        assert!(!other.try_grow(2_000) && other.try_grow(1_000));
        assert!(!other.try_grow(usize::MAX));
        drop(most);
        assert!(other.try_grow(9_000));
        other.set(20_000);
        assert_eq!(budget.used(), 20_000);
        other.set(1);
        assert_eq!(budget.used(), 1);
        drop(other);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_loses_its_bytes_to_whoever_asks() {
        let connections = Connections::new(9);
        let budget = Budget::new(100);
        let slow = connections.admit("127.0.0.1:9".parse().unwrap());
        let mut held = budget.room(Some(slow.clone()));
        assert!(held.try_grow(100));
        let mut wanted = budget.room(None);
        assert!(!wanted.grow(1, &connections).await, "it is not slow yet");
        tokio::time::advance(Duration::from_secs(1)).await;
        let connection = async {
            slow.closed().await;
            drop(held);
        };
        let (grown, ()) = tokio::join!(wanted.grow(100, &connections), connection);
        assert!(grown);
    }

    #[tokio::test]
    async fn an_answer_is_counted_until_its_bytes_are_gone() {
        let budget = Budget::new(100);
        let mut room = budget.room(None);
        room.set(5);
        let mut body = counted(Response::new(Body::from("12345")), room).into_body();
        let frame = body.frame().await.unwrap().unwrap();
        drop(body);
        assert_eq!(budget.used(), 5);
        drop(frame);
        assert_eq!(budget.used(), 0);
    }
}
