//! What the session's thread and the application share about one shard in one generation.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::cluster::{Generation, Shard};
use tenure_core::{Moment, NodeId};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::driver::Command;
use crate::driver::cluster::Order;

/// This process may not act for the shard: it is another's, or may be in a moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this process no longer runs {shard} in generation {generation}")]
pub struct Revoked {
    /// Which.
    pub shard: Shard,
    /// In which generation.
    pub generation: Generation,
}

pub(crate) struct ShardState {
    pub(crate) shard: Shard,
    pub(crate) generation: Generation,
    pub(crate) count: u32,
    pub(crate) node: NodeId,
    pub(crate) clock: Clock,
    /// The end of trust, in nanoseconds since the clock's origin: read at every check, without a lock.
    trusted_until: AtomicU64,
    /// Told whenever the end of trust has moved.
    moved: Notify,
    /// Cancelled when the shard is to end in good order.
    pub(crate) drain: CancellationToken,
    /// Cancelled when the shard is over and its work is dropped.
    pub(crate) over: CancellationToken,
    work: Mutex<Count>,
    commands: mpsc::UnboundedSender<Command>,
}

/// How much work there is. The shard has ended when there is none, and that is told once.
#[derive(Debug, Default)]
struct Count {
    running: usize,
    error: Option<String>,
    ended: bool,
}

impl ShardState {
    pub(crate) fn new(
        shard: Shard,
        generation: Generation,
        count: u32,
        node: NodeId,
        clock: Clock,
        commands: mpsc::UnboundedSender<Command>,
    ) -> Arc<Self> {
        Arc::new(Self {
            shard,
            generation,
            count,
            node,
            clock,
            trusted_until: AtomicU64::new(0),
            moved: Notify::new(),
            drain: CancellationToken::new(),
            over: CancellationToken::new(),
            work: Mutex::default(),
            commands,
        })
    }

    pub(crate) fn trust_until(&self, until: Moment) {
        let nanoseconds = u64::try_from(until.since_origin().as_nanos()).unwrap_or(u64::MAX);
        if self.trusted_until.swap(nanoseconds, Ordering::AcqRel) != nanoseconds {
            self.moved.notify_waiters();
        }
    }

    pub(crate) fn trusted_until(&self) -> Moment {
        Moment::from_origin(Duration::from_nanos(
            self.trusted_until.load(Ordering::Acquire),
        ))
    }

    pub(super) async fn trusted_until_after(&self, known: Moment) -> Moment {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            // Registered before the look, so that no move falls in between.
            moved.as_mut().enable();
            let until = self.trusted_until();
            if until != known {
                return until;
            }
            moved.await;
        }
    }

    pub(crate) fn check(&self) -> Result<Duration, Revoked> {
        let remaining = self.trusted_until().since(self.clock.moment());
        if remaining.is_zero() || self.over.is_cancelled() {
            return Err(Revoked {
                shard: self.shard.clone(),
                generation: self.generation,
            });
        }
        Ok(remaining)
    }

    /// Asks the work to end.
    pub(crate) fn tell_to_drain(&self) {
        self.drain.cancel();
    }

    /// Ends the work.
    pub(crate) fn abort(&self) {
        self.trust_until(Moment::default());
        self.drain.cancel();
        self.over.cancel();
    }

    /// Whether the shard was told to end, so that its end is no failure.
    pub(crate) fn was_told(&self) -> bool {
        self.drain.is_cancelled()
    }

    pub(super) fn begin_work(self: Arc<Self>) -> Result<Working, Revoked> {
        // Under the lock, so that a shard that has ended does not begin again.
        let mut work = self.work();
        if work.ended {
            return Err(Revoked {
                shard: self.shard.clone(),
                generation: self.generation,
            });
        }
        self.check()?;
        work.running += 1;
        drop(work);
        Ok(Working { state: self })
    }

    /// The same, also if nothing is trusted yet or any more: for what reports the end.
    pub(super) fn begin(self: Arc<Self>) -> Working {
        self.work().running += 1;
        Working { state: self }
    }

    pub(super) fn started(&self) {
        self.send(Order::Started(self.shard.clone(), self.generation));
    }

    pub(super) fn stuck(&self, error: Option<String>) {
        self.send(Order::Stuck {
            shard: self.shard.clone(),
            generation: self.generation,
            error,
        });
    }

    /// The first thing that went wrong counts.
    pub(super) fn failed(&self, error: String) {
        self.work().error.get_or_insert(error);
    }

    fn finish(&self) {
        let mut work = self.work();
        work.running -= 1;
        if work.running > 0 || work.ended {
            return;
        }
        work.ended = true;
        let error = work.error.take();
        drop(work);
        self.send(Order::Ended {
            shard: self.shard.clone(),
            generation: self.generation,
            error,
        });
    }

    /// A driver that is gone has ended every shard already.
    fn send(&self, order: Order) {
        let _ = self.commands.send(Command::Cluster(order));
    }

    /// Plain data: a panic elsewhere leaves it whole.
    fn work(&self) -> MutexGuard<'_, Count> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ShardState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Shard")
            .field("shard", &self.shard)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// Counts a piece of work for as long as it lives, also if it panics or its future is dropped.
#[derive(Debug)]
#[must_use = "the work counts as ended as soon as this is dropped"]
pub struct Working {
    state: Arc<ShardState>,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.state.finish();
    }
}
