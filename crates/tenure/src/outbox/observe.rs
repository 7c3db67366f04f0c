//! What happens in an outbox, for those who want to know.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tenure_core::JobId;
use tokio::time::Instant;

use super::Status;

/// Something happened to a row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It was written in a transaction that is still open, and may yet be rolled back.
    Enqueued {
        /// The job.
        id: JobId,
    },
    /// It is about to be delivered, unless one before it in its group cannot be.
    Delivering {
        /// The row's id.
        id: String,
    },
    /// It was delivered.
    Delivered {
        /// The row's id.
        id: String,
        /// How long after the insert, by the database's clock: for people.
        lag: Duration,
    },
    /// It was refused, or could not be delivered.
    Failed {
        /// The row's id.
        id: String,
        /// Why.
        error: String,
        /// Whether it is in the dead table now.
        dead: bool,
    },
}

/// Who is told of events. Called within the relay's own task, or that of the submit: it must not block.
#[derive(Clone, Default)]
pub struct Observer(Option<Arc<Callback>>);

type Callback = dyn Fn(&Event) + Send + Sync;

impl Observer {
    /// Calls a closure.
    pub fn new(observer: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observer)))
    }

    pub(super) fn tell(&self, event: &Event) {
        if let Some(observer) = &self.0 {
            observer(event);
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_there() { "Observer" } else { "None" })
    }
}

/// What a relay has counted since its process was started, and how its outbox stood at its last look.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// Whether this process runs the relay now.
    pub running: bool,
    /// Rows delivered.
    pub delivered: u64,
    /// Deliveries that failed, of rows that are tried again.
    pub failed: u64,
    /// Rows given up.
    pub died: u64,
    /// How often this process was not let in: another cluster relays the outbox, or a later generation does.
    pub refused: u64,
    /// Rounds in which the target or the database could not be reached.
    pub unavailable: u64,
    /// How long after its insert the last row was delivered, in milliseconds, by the database's clock.
    pub lag_ms: u64,
    /// How long the relay that runs in this process has been unable to use its database, in milliseconds; 0 if it can.
    pub unavailable_ms: u64,
    /// The outbox as it was looked at last, if this process runs the relay. While its database is away, the oldest row grows older all the same.
    pub status: Option<Status>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) running: AtomicU64,
    pub(super) delivered: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) died: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) unavailable: AtomicU64,
    pub(super) lag_ms: AtomicU64,
    pub(super) sight: std::sync::Mutex<Sight>,
}

/// What a relay knows of its outbox.
#[derive(Debug, Default)]
pub(super) struct Sight {
    /// As it was looked at last, and when.
    status: Option<(Status, Instant)>,
    /// Since when the database is away.
    trouble: Option<Instant>,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(super) fn note(&self, status: Status) {
        self.sight().status = Some((status, Instant::now()));
    }

    /// Since when the database is away, if it is.
    pub(super) fn note_trouble(&self, since: Option<Instant>) {
        self.sight().trouble = since;
    }

    fn sight(&self) -> std::sync::MutexGuard<'_, Sight> {
        let sight = self.sight.lock();
        sight.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn snapshot(&self) -> Metrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let running = read(&self.running) > 0;
        let sight = self.sight();
        let trouble = sight.trouble.filter(|_| running);
        let status = sight.status.as_ref().filter(|_| running);
        let status = status.map(|(status, seen_at)| {
            let mut status = status.clone();
            if trouble.is_some() {
                // Nothing was delivered since, as far as the database knows.
                let since = milliseconds(seen_at.elapsed());
                status.oldest_ms = status.oldest_ms.map(|oldest| oldest.saturating_add(since));
            }
            status
        });
        Metrics {
            running,
            delivered: read(&self.delivered),
            failed: read(&self.failed),
            died: read(&self.died),
            refused: read(&self.refused),
            unavailable: read(&self.unavailable),
            lag_ms: read(&self.lag_ms),
            // Not 0, which says that all is well.
            unavailable_ms: trouble.map_or(0, |since| milliseconds(since.elapsed()).max(1)),
            status,
        }
    }
}
