//! A cost ceiling: object stores bill per request, and a loop gone wrong should cost minutes, not money.
//!
//! **Per minute.** Reads and writes each have a token bucket. A request over the rate waits its turn; first come, first
//! served. In any minute at most the rate plus the [burst](Config::burst) is sent. Dropping a request that waits costs
//! nothing and holds up nobody.
//!
//! **Per day.** Writes have a budget. When it is used up, `put` and `delete` are refused at once, with a
//! hint that says when it resets; nothing is written, and reads go on. A day begins with the first write
//! after the last day has ended, and lasts 24 hours on the monotonic clock. So the spending never depends
//! on a wall clock or time zone, an idle process starts its day with a whole budget, and two budgets may
//! fall into one calendar day. Where the monotonic clock stops while the machine is suspended, the day
//! becomes longer, never shorter.
//!
//! **Reserve.** A part of the day's budget is reserved for a session's own writes: enough for its heartbeats until the
//! end of the day. Nothing else may use it. A session's requests never wait for a turn either; they are counted, so
//! others wait longer. The rest of the budget runs low when less than a fifth of it is left and it would not last the
//! day. Then the log says so, [`Throttle::is_low`] is true, and [`Store::pause_before_write`] asks writers that can
//! wait to spread what is left over the day.
//!
//! **Take-over.** Reads inside [`unlimited_reads`] have no rate. Who takes over a log must have read it before anything can
//! be done, within the time that a request and a term last: at a rate it would begin anew for ever, and read more.
//!
//! Every request counts, whatever its outcome: providers bill a conflict as they bill a success. A page of a listing is
//! one read. Hints are free.
//!
//! Rates and budget live in this process's memory. Each process has its own, so divide by the number of processes; and
//! a restart begins with a whole one.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Serialize;
use tokio::time::Instant;

mod gate;

use gate::Gate;

use crate::urgent::is_urgent;
use crate::{
    AppendFolder, Change, Description, Error, Expect, IfMissing, Key, Object, Page, Prefix, Store,
    Version, Watch,
};

tokio::task_local! {
    static UNLIMITED: ();
}

/// Reads made inside `work` pass every [`Throttle`] at once. They are counted in its statistics, and use up nothing.
pub async fn unlimited_reads<F: Future>(work: F) -> F::Output {
    UNLIMITED.scope((), work).await
}

/// Keeps the number of requests under a ceiling.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure_store::Error> {
/// use tenure_store::wrap::throttled::{Config, Throttled};
/// use tenure_store::{Error, Expect, Key, Store};
///
/// let memory = tenure_store::open("memory:").await?;
/// let store = Throttled::new(memory, Config { writes_per_day: Some(1), ..Config::default() })?;
/// store.put(&Key::new("a")?, "1".into(), &Expect::Absent).await?;
///
/// let refused = store.put(&Key::new("b")?, "1".into(), &Expect::Absent).await.unwrap_err();
/// assert!(matches!(refused, Error::Refused { .. }));
/// assert!(refused.hint().contains("resets in 24 h"), "{}", refused.hint());
/// assert_eq!(store.statistics().remaining_today, Some(0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Throttled {
    inner: Arc<dyn Store>,
    throttle: Arc<Throttle>,
    is_of_session: bool,
}

/// A ceiling that several stores of one process share.
#[derive(Debug)]
pub struct Throttle {
    reads: Gate,
    writes: Gate,
}

/// The ceilings. The default has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// How many reads and pages of listings per minute. A candidate polls about once per retry interval:
    /// leave room for every election of the process.
    pub reads_per_minute: Option<u32>,
    /// How many puts and deletes per minute. A leader renews about three times per lease; a rate that
    /// makes renewals wait costs it the lease.
    pub writes_per_minute: Option<u32>,
    /// How many puts and deletes per day. Once it is used up, reserve included, every lease of the process ends. Set it
    /// as an emergency brake, well above a normal day.
    pub writes_per_day: Option<u32>,
    /// How many of these are reserved for the session: as many as its heartbeats take in a day. Default 0.
    pub reserved_per_day: u32,
    /// How many requests may go at once after a pause; never more than a minute's worth.
    pub burst: u32,
    /// How many requests may wait for their turn, reads and writes each. Further requests end as
    /// [`Error::Unavailable`].
    pub waiters_max: usize,
}

/// What a [`Throttled`] has done so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Gets and listings.
    pub reads: Turns,
    /// Puts and deletes.
    pub writes: Turns,
    /// How many writes were refused because the budget of the day was used up.
    pub refused: u64,
    /// Whether the budget of the day runs low.
    pub is_low: bool,
    /// Whether it is used up, except for what is reserved for the session.
    pub is_used_up: bool,
    /// How many writes were sent in this day.
    pub spent_today: u64,
    /// How many more may be; `None` without a budget.
    pub remaining_today: Option<u64>,
    /// How long until a new day may begin; `None` if no write has begun this one.
    pub resets_in: Option<Duration>,
}

/// How requests got their turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Turns {
    /// How many were sent.
    pub sent: u64,
    /// How many had to wait. Includes those dropped while they waited, and pauses before a write.
    pub waited: u64,
    /// How long they waited in total.
    pub waited_total: Duration,
    /// How long the longest waited.
    pub waited_longest: Duration,
    /// How many were turned away because too many waited.
    pub turned_away: u64,
    /// How many wait now.
    pub waiting: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            reads_per_minute: None,
            writes_per_minute: None,
            writes_per_day: None,
            reserved_per_day: 0,
            burst: 10,
            waiters_max: 1000,
        }
    }
}

impl Config {
    /// Reports every violation at once.
    fn check(&self) -> Result<(), Error> {
        let reserve = format!(
            "writes_per_day is not more than the {} that are kept for heartbeats: nothing else could be written",
            self.reserved_per_day
        );
        let violations: Vec<&str> = [
            (
                self.reads_per_minute == Some(0),
                "reads_per_minute is 0: nothing could be read",
            ),
            (
                self.writes_per_minute == Some(0),
                "writes_per_minute is 0: nothing could be written",
            ),
            (
                self.writes_per_day == Some(0),
                "writes_per_day is 0: nothing could be written",
            ),
            (
                self.writes_per_day
                    .is_some_and(|all| all > 0 && all <= self.reserved_per_day),
                &reserve,
            ),
            (
                self.burst == 0,
                "burst is 0: no request would ever have its turn",
            ),
            (
                self.waiters_max == 0,
                "waiters_max is 0: the second of two requests would fail",
            ),
        ]
        .into_iter()
        .filter_map(|(violated, what)| violated.then_some(what))
        .collect();
        if violations.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(
            format!("the ceiling is not valid: {}", violations.join("; ")),
            "use at least 1, or leave a ceiling out to have none",
        ))
    }
}

impl Throttle {
    /// Checks the ceilings; a zero is refused.
    pub fn new(config: Config) -> Result<Self, Error> {
        config.check()?;
        let Config {
            burst, waiters_max, ..
        } = config;
        let reserved = u64::from(config.reserved_per_day);
        let per_day = config.writes_per_day.map(|all| (u64::from(all), reserved));
        let gate = |per_minute, per_day| Gate::new(per_minute, per_day, burst, waiters_max);
        Ok(Self {
            reads: gate(config.reads_per_minute, None),
            writes: gate(config.writes_per_minute, per_day),
        })
    }

    /// Whether the budget of the day runs low, see the [module](self).
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.writes.is_low()
    }

    /// What was sent, waited and refused so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let reads = self.reads.state().turns;
        let mut writes = self.writes.state();
        let now = Instant::now();
        writes.begin_day(now);
        Statistics {
            reads,
            writes: writes.turns,
            refused: writes.refused,
            is_low: self.writes.pace(&writes, now).is_some(),
            is_used_up: self.writes.spendable(&writes, now) == Some(0),
            spent_today: writes.spent,
            remaining_today: self
                .writes
                .per_day
                .map(|(budget, _)| budget.saturating_sub(writes.spent)),
            resets_in: writes.day_ends.map(|ends| ends - now),
        }
    }
}

impl Throttled {
    /// Checks the ceilings; a zero is refused.
    pub fn new(inner: Arc<dyn Store>, config: Config) -> Result<Self, Error> {
        Ok(Self::sharing(inner, Arc::new(Throttle::new(config)?)))
    }

    /// Shares ceilings with other stores.
    #[must_use]
    pub fn sharing(inner: Arc<dyn Store>, throttle: Arc<Throttle>) -> Self {
        Self {
            inner,
            throttle,
            is_of_session: false,
        }
    }

    /// As [`Throttled::sharing`], for the store that only a session uses: its requests about leases and other sessions
    /// count as its heartbeats do.
    #[must_use]
    pub fn of_session(inner: Arc<dyn Store>, throttle: Arc<Throttle>) -> Self {
        Self {
            is_of_session: true,
            ..Self::sharing(inner, throttle)
        }
    }

    /// What was sent, waited and refused so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.throttle.statistics()
    }

    async fn read(&self, doing: impl FnOnce() -> String) -> Result<(), Error> {
        if UNLIMITED.try_with(|()| ()).is_ok() {
            self.throttle.reads.pass_unlimited();
            return Ok(());
        }
        self.pass(&self.throttle.reads, doing).await
    }

    async fn write(&self, doing: impl FnOnce() -> String) -> Result<(), Error> {
        self.pass(&self.throttle.writes, doing).await
    }

    async fn pass(&self, gate: &Gate, doing: impl FnOnce() -> String) -> Result<(), Error> {
        let passed = if self.is_of_session || is_urgent() {
            gate.pass_at_once()
        } else {
            gate.pass().await
        };
        passed.map_err(|stop| stop.explain(doing()))
    }
}

#[async_trait]
impl Store for Throttled {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.read(|| format!("reading {key}")).await?;
        self.inner.get(key).await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.read(|| format!("reading {key}")).await?;
        self.inner.get_if_changed(key, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        self.write(|| format!("writing {key}")).await?;
        self.inner.put(key, value, expect).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.write(|| format!("deleting {key}")).await?;
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.read(|| format!("listing {prefix}")).await?;
        self.inner.list(prefix, after).await
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.inner.watch(prefix)
    }

    /// Not passed on: files would be written past the limit.
    fn append_folder(&self, _: &Prefix) -> Option<Arc<dyn AppendFolder>> {
        None
    }

    fn is_replaced(&self) -> bool {
        self.inner.is_replaced()
    }

    fn pin(&self, prefix: &Prefix, missing: IfMissing) {
        self.inner.pin(prefix, missing);
    }

    fn pause_before_write(&self) -> Duration {
        let inner = self.inner.pause_before_write();
        inner.max(self.throttle.writes.pause())
    }
}

#[cfg(test)]
mod tests;
