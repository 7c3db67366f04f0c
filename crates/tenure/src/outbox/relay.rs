//! The relay: takes the outbox over, then reads, delivers and writes down, as the [`Plan`] says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tenure_core::{DaemonId, ElectionName};
use tokio::time::Instant;

use super::database::{Database, Error, Fenced, Hints, Identity, Settlement};
use super::deliver::{Deliver, Outcome, Token, told};
use super::observe::{Counters, Event, Metrics, Observer};
use super::plan::{Plan, Policy, Step};
use super::row::Row;
use crate::cluster::{Cluster, Definition};
use crate::daemon::{Context, Daemon, DaemonError, Work};
use crate::inspect::NamespaceView;
use crate::{Error as NodeError, Node};

/// How long the database may be away before the relay is tried on another node.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the numbers for [`Metrics`] are read, and how long that may take. Behind an old snapshot they are slow to count: then the relay waits
/// for so many times as long before it looks again.
const STATUS_EVERY: Duration = Duration::from_secs(10);
const STATUS_PATIENCE: Duration = Duration::from_secs(3);
const STATUS_REST: u32 = 20;

/// How many groups are looked at at once when idle ones are forgotten, and how many are remembered at most.
const GROUPS_PAGE: usize = 1_000;
const GROUPS_NOTED_MAX: usize = 100_000;

/// How a relay is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The outbox's name: its daemon is `outbox:<name>`. Default `default`.
    pub name: String,
    /// How it goes about it.
    pub policy: Policy,
    /// Who is told of each row.
    pub observer: Observer,
    /// How long a group is unused before its counter is dropped. Default 1 h.
    pub group_keep: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            policy: Policy::default(),
            observer: Observer::default(),
            group_keep: Duration::from_secs(3600),
        }
    }
}

/// Hands the rows of one outbox over. Cheap to clone; [`Relay::register`] makes it a daemon of the cluster.
pub struct Relay<D> {
    shared: Arc<Shared<D>>,
}

impl<D> Clone for Relay<D> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

struct Shared<D> {
    daemon: DaemonId,
    database: Database,
    deliver: D,
    options: Options,
    view: NamespaceView,
    counters: Counters,
}

impl<D: Deliver> Relay<D> {
    /// A relay of the outbox in `database`, coordinated in the namespace of `node`.
    pub fn new(
        node: &Node,
        database: Database,
        deliver: D,
        options: Options,
    ) -> Result<Self, NodeError> {
        let daemon = DaemonId::new(format!("outbox:{}", options.name))?;
        let shared = Shared {
            daemon,
            database,
            deliver,
            options,
            view: node.view().clone(),
            counters: Counters::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Makes it a daemon of the cluster: one of the nodes that have registered it runs it.
    pub fn register(&self, cluster: &Cluster) -> Result<(), NodeError> {
        cluster.register(self.clone(), Definition::shards(1))
    }

    /// The name of its daemon.
    #[must_use]
    pub fn daemon(&self) -> &DaemonId {
        &self.shared.daemon
    }

    /// What it has counted in this process.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.shared.counters.snapshot()
    }
}

impl<D: Deliver> Daemon for Relay<D> {
    fn id(&self) -> &str {
        self.shared.daemon.as_str()
    }

    async fn start(&self, context: Context) -> Result<Work, DaemonError> {
        let shared = self.shared.clone();
        let takeover = shared.take_over(&context).await.inspect_err(|error| {
            if matches!(error.downcast_ref(), Some(Error::Fenced(_))) {
                Counters::add(&shared.counters.refused, 1);
            }
            let error = told(&**error);
            tracing::warn!(daemon = %shared.daemon, error, outbox = shared.database.location(), "cannot take the outbox over");
        })?;
        tracing::info!(daemon = %shared.daemon, takeover, outbox = shared.database.location(), "relaying");
        let token = Token {
            takeover,
            generation: context.generation(),
        };
        Ok(Box::pin(async move {
            shared.counters.running.fetch_add(1, Ordering::Relaxed);
            let _running = Running(&shared.counters);
            shared.counters.note_trouble(None);
            let ended = Run::new(&shared, &context, token).await.run().await;
            if let Err(error) = &ended {
                tracing::warn!(daemon = %shared.daemon, error = told(error), "the relay has ended");
            }
            Ok(ended?)
        }))
    }
}

/// Counts a run for as long as it lives, also if its future is dropped.
struct Running<'a>(&'a Counters);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<D: Deliver> Shared<D> {
    async fn take_over(&self, context: &Context) -> Result<i64, DaemonError> {
        self.database.create().await?;
        self.database.check_version().await?;
        let cluster = self.view.status(&ElectionName::cluster()).await?;
        let fence = cluster
            .fence
            .ok_or("the cluster's election has no fence yet")?;
        let identity = Identity {
            owner: format!("{}/{}", self.view.namespace(), self.daemon),
            lineage: fence.lineage.to_string(),
            generation: context.generation(),
            holder: context.node().to_string(),
        };
        context.check()?;
        Ok(self.database.take_over(&identity).await?)
    }
}

/// What is delivered together: jobs, or ends of claims.
type Parcel = Vec<Row>;

fn completes_jobs(parcel: &[Row]) -> bool {
    parcel.first().is_some_and(|row| row.completes.is_some())
}

/// How a parcel was delivered, as long as that may not be in the database.
struct Unwritten {
    parcel: Parcel,
    outcomes: Vec<Outcome>,
    settlement: Settlement,
}

/// One run of a relay.
struct Run<'a, D> {
    shared: &'a Shared<D>,
    context: &'a Context,
    token: Token,
    plan: Plan,
    hints: Hints,
    ready: VecDeque<Parcel>,
    under_way: FuturesUnordered<BoxFuture<'a, (Parcel, Vec<Outcome>)>>,
    unwritten: Vec<Unwritten>,
    began: Instant,
    /// Since when the database is away.
    trouble: Option<Instant>,
    is_waiting: bool,
    status_due: Instant,
    groups_due: Instant,
    groups_noted: BTreeMap<String, i64>,
}

impl<'a, D: Deliver> Run<'a, D> {
    async fn new(shared: &'a Shared<D>, context: &'a Context, token: Token) -> Self {
        let now = Instant::now();
        Self {
            plan: Plan::new(shared.options.policy.clone()),
            hints: shared.database.hints().await,
            shared,
            context,
            token,
            ready: VecDeque::new(),
            under_way: FuturesUnordered::new(),
            unwritten: Vec::new(),
            began: now,
            trouble: None,
            is_waiting: false,
            status_due: now,
            groups_due: now + shared.options.group_keep,
            groups_noted: BTreeMap::new(),
        }
    }

    /// Until the shard is to end, or it is this process's no longer.
    async fn run(mut self) -> Result<(), Error> {
        let draining = self.context.stopping();
        loop {
            if draining.is_cancelled() {
                return self.finish().await;
            }
            match self.round(&draining).await {
                Ok(()) => {}
                Err(error @ (Error::Fenced(_) | Error::Newer { .. } | Error::Url(_))) => {
                    return Err(error);
                }
                Err(error) => self.recover(error).await?,
            }
        }
    }

    /// Nothing new is begun. What is under way is waited for, and written down.
    async fn finish(&mut self) -> Result<(), Error> {
        self.write().await?;
        while let Some((parcel, outcomes)) = self.under_way.next().await {
            self.settle(parcel, outcomes).await?;
        }
        if self.is_waiting {
            self.shared.database.set_waiting(false).await?;
        }
        Ok(())
    }

    /// The database has done what a relay needs of it. A read alone does not say so: a database may allow no changes.
    fn is_well(&mut self) {
        if self.trouble.take().is_some() {
            self.shared.counters.note_trouble(None);
        }
    }

    /// The database failed, and what was sent to it may have been done or not. So the plan begins anew, from what the tables say. What was
    /// delivered is kept, and written before anything is read again: the queue would recognise it, but only for as long as it knows the ids.
    async fn recover(&mut self, error: Error) -> Result<(), Error> {
        Counters::add(&self.shared.counters.unavailable, 1);
        let since = *self.trouble.get_or_insert_with(Instant::now);
        self.shared.counters.note_trouble(self.trouble);
        tracing::warn!(daemon = %self.shared.daemon, error = told(&error), outbox = self.shared.database.location(), "the outbox is not available");
        if since.elapsed() > PATIENCE {
            return Err(error);
        }
        // Their rows may be read again before they are through: groups would be out of order.
        while let Some((parcel, outcomes)) = self.under_way.next().await {
            self.note(parcel, outcomes);
        }
        self.ready.clear();
        self.plan = self.plan.after_trouble();
        self.is_waiting = false;
        self.status_due = Instant::now();
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(())
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    async fn round(&mut self, draining: &tokio_util::sync::CancellationToken) -> Result<(), Error> {
        // First of all: what is delivered and stands in the tables would be read and delivered again.
        self.write().await?;
        self.dispatch()?;
        self.look_at_status().await?;
        let concurrency = self.shared.deliver.concurrency();
        if !self.ready.is_empty() || self.under_way.len() >= concurrency {
            let done = self.under_way.next().await;
            return match done {
                Some((parcel, outcomes)) => self.settle(parcel, outcomes).await,
                None => Ok(()),
            };
        }
        match self.plan.next(self.now()) {
            Step::Read(wanted) => {
                let takeover = self.token.takeover;
                let rows = self.shared.database.rows(takeover, &wanted).await?;
                if !rows.is_empty() {
                    self.say_waiting(false).await?;
                }
                let rows = self.plan.read(&wanted, rows, self.now());
                self.pack(rows);
                Ok(())
            }
            Step::Sweep { from, to, limit } => {
                let before = self.now();
                let found = self.shared.database.sweep(from, to, limit).await?;
                let now = self.now();
                self.plan.swept(to, &found, now - before, now);
                Ok(())
            }
            Step::Wait(wait) => self.wait(wait, draining).await,
        }
    }

    /// Begins deliveries.
    fn dispatch(&mut self) -> Result<(), Error> {
        while self.under_way.len() < self.shared.deliver.concurrency()
            && let Some(parcel) = self.ready.pop_front()
        {
            // Right before the act: the process may have been paused.
            if self.context.check().is_err() {
                return Err(Fenced::Stale {
                    holder: "unknown, since this process is not trusted any more".to_owned(),
                    generation: self.context.generation().0,
                }
                .into());
            }
            for row in &parcel {
                let observer = &self.shared.options.observer;
                if observer.is_there() {
                    observer.tell(&Event::Delivering { id: row.id.clone() });
                }
            }
            let (deliver, token) = (&self.shared.deliver, self.token);
            self.under_way.push(Box::pin(async move {
                let outcomes = if completes_jobs(&parcel) {
                    deliver.complete(&parcel, token).await
                } else {
                    deliver.deliver(&parcel, token).await
                };
                (parcel, outcomes)
            }));
        }
        Ok(())
    }

    /// One parcel, or one for each group. Rows that complete jobs go apart: they are not for a handler.
    fn pack(&mut self, rows: Vec<Row>) {
        let (ends, rows): (Parcel, Parcel) =
            rows.into_iter().partition(|row| row.completes.is_some());
        if !ends.is_empty() {
            self.ready.push_back(ends);
        }
        if rows.is_empty() {
            return;
        }
        if self.shared.deliver.concurrency() == 1 {
            self.ready.push_back(rows);
            return;
        }
        let mut groups: BTreeMap<String, Parcel> = BTreeMap::new();
        for row in rows {
            match row.group.clone() {
                None => self.ready.push_back(vec![row]),
                Some(group) => groups.entry(group).or_default().push(row),
            }
        }
        self.ready.extend(groups.into_values());
    }

    async fn settle(&mut self, parcel: Parcel, outcomes: Vec<Outcome>) -> Result<(), Error> {
        self.note(parcel, outcomes);
        self.write().await
    }

    /// Takes note of how a parcel was delivered. It is in the database once [`write`](Self::write) has succeeded.
    fn note(&mut self, parcel: Parcel, outcomes: Vec<Outcome>) {
        let now = self.now();
        let settlement = self.plan.settle(&parcel, &outcomes, now);
        self.unwritten.push(Unwritten {
            parcel,
            outcomes,
            settlement,
        });
    }

    /// Writes down what was delivered, failed or died. May be called again after an error: what was deleted or moved already is left alone.
    async fn write(&mut self) -> Result<(), Error> {
        let mut all = Settlement::default();
        for unwritten in &self.unwritten {
            all.delivered.extend(&unwritten.settlement.delivered);
            all.failed.extend_from_slice(&unwritten.settlement.failed);
            all.dead.extend_from_slice(&unwritten.settlement.dead);
        }
        if all != Settlement::default() {
            let database = &self.shared.database;
            let written = database.settle(self.token.takeover, &all).await;
            if written.is_err() {
                // These may have been counted: no attempt is counted twice.
                for unwritten in &mut self.unwritten {
                    unwritten.settlement.failed.clear();
                }
            }
            written?;
            self.is_well();
        }
        for written in std::mem::take(&mut self.unwritten) {
            self.tell(&written.parcel, &written.outcomes, &written.settlement);
        }
        Ok(())
    }

    fn tell(&self, parcel: &Parcel, outcomes: &[Outcome], settlement: &Settlement) {
        let counters = &self.shared.counters;
        Counters::add(&counters.delivered, settlement.delivered.len());
        Counters::add(&counters.failed, settlement.failed.len());
        Counters::add(&counters.died, settlement.dead.len());
        let unavailable = outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Unavailable { error } => Some(error),
            _ => None,
        });
        if let Some(error) = unavailable {
            Counters::add(&counters.unavailable, 1);
            tracing::warn!(daemon = %self.shared.daemon, error, "rows of the outbox cannot be delivered for now");
        }
        let delivered = |outcome: &Outcome| *outcome == Outcome::Delivered;
        let oldest = parcel.iter().zip(outcomes);
        let oldest = oldest.filter(|(_, outcome)| delivered(outcome));
        if let Some(lag) = oldest.map(|(row, _)| row.age).max() {
            let lag = u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
            counters.lag_ms.store(lag, Ordering::Relaxed);
        }
        for (seq, error) in &settlement.dead {
            tracing::warn!(daemon = %self.shared.daemon, seq, error, "a row of the outbox is dead");
        }
        let observer = &self.shared.options.observer;
        if !observer.is_there() {
            return;
        }
        for (row, outcome) in parcel.iter().zip(outcomes) {
            let id = row.id.clone();
            match outcome {
                Outcome::Delivered => observer.tell(&Event::Delivered { id, lag: row.age }),
                Outcome::Refused { error } | Outcome::Failed { error } => {
                    let dead = settlement.dead.iter().any(|(seq, _)| *seq == row.seq);
                    let error = error.clone();
                    observer.tell(&Event::Failed { id, error, dead });
                }
                Outcome::Unavailable { .. } | Outcome::Skipped => {}
            }
        }
    }

    async fn wait(
        &mut self,
        wait: Duration,
        draining: &tokio_util::sync::CancellationToken,
    ) -> Result<(), Error> {
        if self.under_way.is_empty() && self.hints.are_there() && !self.is_waiting {
            // Said first, and looked once more then: what is committed in between is either seen or told of.
            self.say_waiting(true).await?;
            self.plan.look_again();
            return Ok(());
        }
        if Instant::now() >= self.groups_due {
            self.groups_due = Instant::now() + self.shared.options.group_keep;
            self.drop_idle_groups().await?;
        }
        // All that could be read was read.
        self.is_well();
        tokio::select! {
            biased;
            () = draining.cancelled() => {}
            Some((parcel, outcomes)) = self.under_way.next(), if !self.under_way.is_empty() => {
                self.settle(parcel, outcomes).await?;
            }
            () = self.hints.next() => self.plan.wake(),
            () = tokio::time::sleep(wait) => {}
        }
        Ok(())
    }

    async fn say_waiting(&mut self, waits: bool) -> Result<(), Error> {
        if self.is_waiting != waits && self.hints.are_there() {
            self.shared.database.set_waiting(waits).await?;
            self.is_waiting = waits;
        }
        Ok(())
    }

    /// Notes how the outbox stands, above all while there is more than can be delivered. It is for people: if it takes long or fails, the
    /// rows do not wait for it.
    async fn look_at_status(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        if began < self.status_due {
            return Ok(());
        }
        let asked = tokio::time::timeout(STATUS_PATIENCE, self.shared.database.status()).await;
        self.status_due = Instant::now() + STATUS_EVERY.max(began.elapsed() * STATUS_REST);
        match asked {
            Ok(Ok(status)) => {
                // One that has nothing to do learns here that it was replaced.
                if i64::try_from(status.takeover) != Ok(self.token.takeover) {
                    self.shared
                        .database
                        .check_takeover(self.token.takeover)
                        .await?;
                }
                self.shared.counters.note(status);
                self.listen_again().await;
            }
            Ok(Err(error)) => {
                tracing::debug!(daemon = %self.shared.daemon, error = told(&error), "cannot count the outbox's rows");
            }
            Err(_) => {
                tracing::debug!(daemon = %self.shared.daemon, "counting the outbox's rows takes too long");
            }
        }
        Ok(())
    }

    /// The connection that listened may have been lost alone, or with all others.
    async fn listen_again(&mut self) {
        if self.hints.are_there() {
            return;
        }
        let hints = tokio::time::timeout(STATUS_PATIENCE, self.shared.database.hints()).await;
        if let Ok(hints) = hints {
            self.hints = hints;
            // Said again, and looked once more then.
            self.is_waiting = false;
        }
    }

    /// Drops the counters that stand where they stood the last time, with no row waiting then and now.
    async fn drop_idle_groups(&mut self) -> Result<(), Error> {
        let before = std::mem::take(&mut self.groups_noted);
        let mut after = String::new();
        loop {
            let page = self
                .shared
                .database
                .idle_groups(&after, GROUPS_PAGE)
                .await?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            after.clone_from(last);
            let (gone, kept): (Vec<_>, Vec<_>) = page
                .into_iter()
                .partition(|(group, count)| before.get(group) == Some(count));
            self.plan
                .forget_groups(gone.iter().map(|(group, _)| &**group));
            self.shared
                .database
                .drop_groups(self.token.takeover, &gone)
                .await?;
            let room = GROUPS_NOTED_MAX.saturating_sub(self.groups_noted.len());
            self.groups_noted.extend(kept.into_iter().take(room));
        }
    }
}
