//! The outboxes that this broker was told about: which rows wait in their databases, and which are dead.
//!
//! Open pages ask for them, and any broker answers: each has the database's address, whichever broker relays. The
//! databases are read once for all pages, and less often the longer that takes, since it counts rows.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use futures_util::future::BoxFuture;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::app::App;
use crate::extract::ok;
use crate::problem::Problem;

/// How old an answer may be: at least this long, and this many times as long as it took.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const LOOK_REST: u32 = 20;

/// An outbox, as the dashboard shows it.
#[derive(Debug, Clone, Serialize)]
pub struct OutboxView {
    /// Its name: its daemon is `outbox:<name>`.
    pub name: String,
    /// Where it is, without user and password.
    pub database: String,
    /// Whether this broker relays it.
    pub relays_here: bool,
    /// Rows that this broker has delivered since it was started.
    pub delivered: u64,
    /// How long after its insert the last of them was delivered, in milliseconds.
    pub lag_ms: Option<u64>,
    /// What its tables hold.
    pub tables: Option<OutboxTables>,
    /// Why the tables cannot be read.
    pub problem: Option<String>,
}

/// What an outbox's tables hold. Counts of rows stop at 100,000.
#[derive(Debug, Clone, Serialize)]
pub struct OutboxTables {
    /// Rows that wait to be delivered.
    pub waiting: u64,
    /// Those among them that have failed before.
    pub failing: u64,
    /// Dead rows: they could not be delivered.
    pub dead: u64,
    /// How long the oldest row has waited, in milliseconds, by the database's clock.
    pub oldest_ms: Option<u64>,
    /// The namespace and daemon that deliver the rows, if any ever did.
    pub owner: Option<String>,
    /// The node that last took over.
    pub holder: Option<String>,
    /// Some dead rows, the oldest first.
    pub dead_rows: Vec<DeadRow>,
}

/// A dead row.
#[derive(Debug, Clone, Serialize)]
pub struct DeadRow {
    /// Its number in the table.
    pub seq: i64,
    /// Its id.
    pub id: String,
    /// Its type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// Its group.
    pub group: Option<String>,
    /// How often it was tried.
    pub attempts: u64,
    /// Why it could not be delivered.
    pub error: String,
    /// How long ago it died, in milliseconds, by the database's clock.
    pub age_ms: u64,
}

/// Reads all outboxes.
type Look = dyn Fn() -> BoxFuture<'static, Vec<OutboxView>> + Send + Sync;

/// How to read the outboxes, and what was last read.
#[derive(Default)]
pub(crate) struct Outboxes {
    look: OnceLock<Box<Look>>,
    seen: Mutex<Option<Seen>>,
}

struct Seen {
    outboxes: Arc<Vec<OutboxView>>,
    fresh_until: Instant,
}

impl Outboxes {
    /// Sets how to read them. Only the first call counts.
    pub(crate) fn set(&self, look: Box<Look>) {
        let _ = self.look.set(look);
    }

    async fn seen(&self) -> Arc<Vec<OutboxView>> {
        let Some(look) = self.look.get() else {
            return Arc::default();
        };
        // One request reads, and those that come meanwhile share its result.
        let mut seen = self.seen.lock().await;
        let began = Instant::now();
        if let Some(seen) = &*seen
            && began < seen.fresh_until
        {
            return seen.outboxes.clone();
        }
        let outboxes = Arc::new(look().await);
        let rest = LOOK_EVERY.max(began.elapsed() * LOOK_REST);
        let fresh_until = Instant::now() + rest;
        *seen = Some(Seen {
            outboxes: outboxes.clone(),
            fresh_until,
        });
        outboxes
    }
}

impl fmt::Debug for Outboxes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Outboxes")
    }
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    outboxes: &'a [OutboxView],
}

/// The outboxes that this broker was told of
pub(super) async fn show(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let outboxes = app.dashboard.outboxes.seen().await;
    Ok(ok(&Answer {
        outboxes: &outboxes,
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn databases_are_looked_at_once_for_all_pages_and_rarely_while_that_is_slow() {
        let outboxes = Outboxes::default();
        assert!(outboxes.seen().await.is_empty());
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = looks.clone();
        outboxes.set(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Vec::new()
            })
        }));
        let _ = tokio::join!(outboxes.seen(), outboxes.seen(), outboxes.seen());
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        tokio::time::advance(Duration::from_secs(19)).await;
        outboxes.seen().await;
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        tokio::time::advance(Duration::from_secs(2)).await;
        outboxes.seen().await;
        assert_eq!(looks.load(Ordering::Relaxed), 2);
    }
}
