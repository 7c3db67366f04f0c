//! The tables of the outbox, and a way to them that is as bad as any.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure::outbox::{
    Dead, Error, Identity, Light, RelayRow, Row, Settlement, Status, Wanted, Which,
};
use tenure_core::queue::{Completion, Key, Payload, Submission, Token};
use tenure_core::{JobId, JobType};
use tokio::sync::Notify;

use super::super::faults::Fault;
use super::super::invariants::outbox_is_relayed as invariant;
use super::super::world::World;

/// What every program and every relay of a run shares.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    state: Mutex<State>,
    /// Told whenever a transaction has ended.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    last_seq: i64,
    rows: BTreeMap<i64, Kept>,
    dead: BTreeMap<i64, Kept>,
    groups: BTreeMap<String, Counter>,
    takeover: i64,
    owner: Option<(String, String)>,
    generation: i64,
    holder: Option<String>,
    /// Take-overs whose relay has been told that another has followed.
    over: BTreeSet<i64>,
    /// Which rows each take-over's relay has delivered.
    delivered: BTreeSet<(i64, i64)>,
    /// What became of every row that was ever inserted.
    truth: BTreeMap<JobId, Fate>,
    /// How many rows of each group were ever committed that can be delivered.
    committed: BTreeMap<String, u64>,
}

/// The counter of a group.
#[derive(Debug, Default)]
struct Counter {
    last: i64,
    /// Which transaction holds it.
    held_by: Option<u64>,
}

/// A row.
#[derive(Debug, Clone)]
struct Kept {
    id: JobId,
    group: Option<String>,
    position: i64,
    attempts: u32,
    is_poison: bool,
    /// It completes a job, and is none.
    completes: Option<Completion>,
}

/// A row that was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gone {
    /// It was a job.
    Job(JobId),
    /// It was the end of this claim.
    End(JobId, Token),
}

impl From<Kept> for Gone {
    fn from(row: Kept) -> Self {
        match row.completes {
            None => Gone::Job(row.id),
            Some(end) => Gone::End(end.id, end.token),
        }
    }
}

/// What became of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its transaction is open, or was rolled back.
    NotCommitted,
    /// It was committed, as this one of its group, counted from 1.
    Committed(Option<(String, u64)>),
    /// It was committed, and can never be a job.
    Poison,
}

/// A transaction of a program: what it has inserted, and not yet committed.
#[derive(Debug)]
pub(crate) struct Transaction {
    number: u64,
    rows: Vec<(i64, Kept)>,
}

impl Transaction {
    pub(crate) fn begin(number: u64) -> Self {
        let rows = Vec::new();
        Self { number, rows }
    }
}

impl Tables {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inserts a row. Its number is taken first; then it waits for its group.
    pub(super) async fn insert(
        &self,
        transaction: &mut Transaction,
        id: JobId,
        group: Option<String>,
        is_poison: bool,
    ) {
        let seq = {
            let mut state = self.state();
            state.last_seq += 1;
            state.truth.insert(id.clone(), Fate::NotCommitted);
            state.last_seq
        };
        let position = match &group {
            None => 0,
            Some(group) => loop {
                let freed = self.freed.notified();
                let counted = self.state().count(group, transaction.number);
                match counted {
                    Some(position) => break position,
                    None => freed.await,
                }
            },
        };
        let row = Kept {
            id,
            group,
            position,
            attempts: 0,
            is_poison,
            completes: None,
        };
        transaction.rows.push((seq, row));
    }

    /// Inserts a row that completes a job.
    pub(crate) fn insert_end(&self, transaction: &mut Transaction, end: Completion) {
        let mut state = self.state();
        state.last_seq += 1;
        let row = Kept {
            id: end.id.clone(),
            group: None,
            position: 0,
            attempts: 0,
            is_poison: false,
            completes: Some(end),
        };
        transaction.rows.push((state.last_seq, row));
    }

    pub(crate) fn commit(&self, transaction: Transaction) {
        let mut state = self.state();
        for (seq, row) in transaction.rows {
            if row.completes.is_none() {
                let fate = state.commit(&row);
                state.truth.insert(row.id.clone(), fate);
            }
            state.rows.insert(seq, row);
        }
        state.free(transaction.number);
        drop(state);
        self.freed.notify_waiters();
    }

    pub(crate) fn roll_back(&self, transaction: &Transaction) {
        let mut state = self.state();
        // The counters take their numbers back.
        for (_, row) in transaction.rows.iter().rev() {
            if let Some(group) = &row.group {
                let counter = state.groups.entry(group.clone()).or_default();
                counter.last = row.position - 1;
            }
        }
        state.free(transaction.number);
        drop(state);
        self.freed.notify_waiters();
    }

    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state();
        let is_held = |counter: &Counter| counter.held_by.is_some();
        state.rows.is_empty() && !state.groups.values().any(is_held)
    }

    /// What became of a row, if there ever was such a one.
    pub(crate) fn fate(&self, id: &JobId) -> Option<Fate> {
        self.state().truth.get(id).cloned()
    }

    pub(super) fn has_delivered(&self, takeover: i64, seq: i64) -> bool {
        self.state().delivered.contains(&(takeover, seq))
    }

    pub(super) fn note_delivered(&self, takeover: i64, seq: i64) {
        self.state().delivered.insert((takeover, seq));
    }

    /// All rows that were committed and can be delivered.
    pub(crate) fn committed(&self) -> Vec<JobId> {
        let state = self.state();
        let all = state.truth.iter();
        let committed = all.filter(|(_, fate)| matches!(fate, Fate::Committed(_)));
        committed.map(|(id, _)| id.clone()).collect()
    }
}

impl State {
    fn count(&mut self, group: &str, transaction: u64) -> Option<i64> {
        let counter = self.groups.entry(group.to_owned()).or_default();
        if counter.held_by.is_some_and(|holder| holder != transaction) {
            return None;
        }
        counter.held_by = Some(transaction);
        counter.last += 1;
        Some(counter.last)
    }

    fn commit(&mut self, row: &Kept) -> Fate {
        if row.is_poison {
            return Fate::Poison;
        }
        let place = row.group.clone().map(|group| {
            let committed = self.committed.entry(group.clone()).or_default();
            *committed += 1;
            (group, *committed)
        });
        Fate::Committed(place)
    }

    fn free(&mut self, transaction: u64) {
        for counter in self.groups.values_mut() {
            if counter.held_by == Some(transaction) {
                counter.held_by = None;
            }
        }
    }

    fn take_over(&mut self, identity: &Identity) -> Option<i64> {
        let who = (identity.owner.clone(), identity.lineage.clone());
        let generation = i64::try_from(identity.generation.0).unwrap_or(i64::MAX);
        let may = match &self.owner {
            None => true,
            Some(owner) => *owner == who && self.generation <= generation,
        };
        may.then(|| {
            self.takeover += 1;
            (self.owner, self.generation) = (Some(who), generation);
            self.holder = Some(identity.holder.clone());
            self.takeover
        })
    }

    fn rows(&self, wanted: &Wanted) -> Vec<Row> {
        match wanted {
            Wanted::After(after, limit) => {
                let behind = self.rows.range(after.saturating_add(1)..);
                behind.take(*limit).map(shown).collect()
            }
            Wanted::These(seqs) => {
                let seqs: BTreeSet<i64> = seqs.iter().copied().collect();
                let found = seqs.iter().filter_map(|seq| self.rows.get_key_value(seq));
                found.map(shown).collect()
            }
            Wanted::Groups(groups, limit) => {
                let is_asked =
                    |row: &Kept| row.group.as_ref().is_some_and(|it| groups.contains(it));
                let found = self.rows.iter().filter(|(_, row)| is_asked(row));
                let mut found: Vec<_> = found.collect();
                found.sort_by_key(|(_, row)| (row.group.clone(), row.position));
                found.into_iter().take(*limit).map(shown).collect()
            }
        }
    }

    /// The rows that are deleted, or `None` if another has taken over.
    fn settle(&mut self, takeover: i64, settlement: &Settlement) -> Option<Vec<Gone>> {
        if self.takeover != takeover {
            return None;
        }
        let mut deleted = Vec::new();
        for seq in &settlement.delivered {
            deleted.extend(self.rows.remove(seq).map(Gone::from));
        }
        for (seq, _) in &settlement.failed {
            if let Some(row) = self.rows.get_mut(seq) {
                row.attempts += 1;
            }
        }
        for (seq, _) in &settlement.dead {
            if let Some(row) = self.rows.remove(seq) {
                self.dead.insert(*seq, row);
            }
        }
        Some(deleted)
    }

    fn drop_groups(&mut self, takeover: i64, groups: &[(String, i64)]) {
        if self.takeover != takeover {
            return;
        }
        for (group, last) in groups {
            let counter = self.groups.get(group);
            if counter.is_some_and(|it| it.last == *last && it.held_by.is_none()) {
                self.groups.remove(group);
            }
        }
    }
}

fn shown((seq, row): (&i64, &Kept)) -> Row {
    let job = if row.is_poison || row.completes.is_some() {
        Err("type: no such name".to_owned())
    } else {
        let mut job = Submission::new(JobType::new("a").expect("a valid type"));
        job.id = Some(row.id.clone());
        job.payload = Payload::new("{}").expect("valid JSON");
        job.group = row.group.as_ref().and_then(|group| Key::new(group).ok());
        Ok(job)
    };
    Row {
        seq: *seq,
        id: row.id.to_string(),
        group: row.group.clone(),
        position: row.position,
        attempts: row.attempts,
        age: Duration::ZERO,
        bytes: 200,
        job,
        completes: row.completes.clone(),
    }
}

/// How a relay reaches the tables.
pub(super) struct Way {
    world: Arc<World>,
}

impl Way {
    pub(super) fn new(world: &Arc<World>) -> Self {
        let world = world.clone();
        Self { world }
    }

    /// Carries a statement out: now, or later though its caller has given up, or not at all.
    async fn ask<T: Send + 'static>(
        &self,
        statement: impl FnOnce(&World) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (world, bad) = (&self.world, self.world.plan.calls_bad);
        self.travel().await;
        if world.strikes(Fault::CallSlow, bad) {
            world.pause_about(Duration::from_secs(3)).await;
        }
        if world.strikes(Fault::CallLost, bad) {
            // Half of what is lost to its caller arrives all the same.
            if world.random().chance(500) {
                let world = world.clone();
                tokio::spawn(async move {
                    world.pause_about(Duration::from_secs(10)).await;
                    statement(&world);
                });
            }
            return Err(Error::TimedOut);
        }
        let answer = statement(world);
        self.travel().await;
        if world.strikes(Fault::CallAnswerLost, bad) {
            return Err(Error::TimedOut);
        }
        Ok(answer)
    }

    async fn travel(&self) {
        let least = Duration::from_micros(200);
        let time = self.world.random().between(least, least * 20);
        tokio::time::sleep(time).await;
    }
}

#[async_trait]
impl tenure::outbox::Tables for Way {
    fn schema(&self) -> &'static str {
        ""
    }

    async fn is_there(&self) -> Result<bool, Error> {
        Ok(true)
    }

    async fn create(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn relay(&self) -> Result<RelayRow, Error> {
        self.ask(|world| {
            let state = world.outbox.state();
            let (owner, lineage) = state.owner.clone().unzip();
            RelayRow {
                version: 1,
                owner,
                lineage,
                generation: state.generation,
                holder: state.holder.clone(),
                takeover: state.takeover,
            }
        })
        .await
    }

    async fn take_over(&self, identity: &Identity) -> Result<Option<i64>, Error> {
        let identity = identity.clone();
        self.ask(move |world| {
            let taken = world.outbox.state().take_over(&identity);
            let holder = &identity.holder;
            world.say("outbox", &format!("is taken over by {holder}: {taken:?}"));
            taken
        })
        .await
    }

    async fn release(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn rows(&self, wanted: &Wanted) -> Result<Vec<Row>, Error> {
        let wanted = wanted.clone();
        self.ask(move |world| world.outbox.state().rows(&wanted))
            .await
    }

    async fn sweep(&self, from: i64, to: i64, limit: usize) -> Result<Vec<Light>, Error> {
        self.ask(move |world| {
            let state = world.outbox.state();
            let found = state.rows.range(from.saturating_add(1)..=to).take(limit);
            let light = |(seq, row): (&i64, &Kept)| Light {
                seq: *seq,
                group: row.group.clone(),
            };
            found.map(light).collect()
        })
        .await
    }

    async fn settle(&self, takeover: i64, settlement: &Settlement) -> Result<bool, Error> {
        let settlement = settlement.clone();
        let settled = self.ask(move |world| {
            let settled = world.outbox.state().settle(takeover, &settlement);
            let was_told = world.outbox.state().over.contains(&takeover);
            world.judge(invariant::settled(
                world,
                takeover,
                was_told,
                settled.as_deref(),
            ));
            settled.is_some()
        });
        let settled = settled.await?;
        if !settled {
            self.world.outbox.state().over.insert(takeover);
        }
        Ok(settled)
    }

    async fn idle_groups(&self, after: &str, limit: usize) -> Result<Vec<(String, i64)>, Error> {
        let after = after.to_owned();
        self.ask(move |world| {
            let state = world.outbox.state();
            let waits = |group: &String| {
                state
                    .rows
                    .values()
                    .any(|row| row.group.as_ref() == Some(group))
            };
            let idle = state.groups.iter();
            let idle = idle.filter(|(group, _)| **group > after && !waits(group));
            let idle = idle.map(|(group, counter)| (group.clone(), counter.last));
            idle.take(limit).collect()
        })
        .await
    }

    async fn drop_groups(&self, takeover: i64, groups: &[(String, i64)]) -> Result<(), Error> {
        let groups = groups.to_vec();
        self.ask(move |world| world.outbox.state().drop_groups(takeover, &groups))
            .await
    }

    async fn status(&self) -> Result<Status, Error> {
        self.ask(|world| {
            let state = world.outbox.state();
            Status {
                waiting: state.rows.len() as u64,
                dead: state.dead.len() as u64,
                takeover: state.takeover.unsigned_abs(),
                ..Status::default()
            }
        })
        .await
    }

    // For people, of whom there are none here.

    async fn dead(&self, _limit: usize) -> Result<Vec<Dead>, Error> {
        Ok(Vec::new())
    }

    async fn last_dead(&self) -> Result<Option<i64>, Error> {
        Ok(None)
    }

    async fn retry(&self, _which: &Which, _last: i64, _limit: usize) -> Result<u64, Error> {
        Ok(0)
    }

    async fn purge(&self, _which: &Which, _limit: usize) -> Result<u64, Error> {
        Ok(0)
    }

    async fn purge_claims(&self, _older_than: Duration, _limit: usize) -> Result<u64, Error> {
        Ok(0)
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Way")
    }
}
