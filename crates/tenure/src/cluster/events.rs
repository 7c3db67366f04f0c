//! What happens in the cluster, as events for subscribers.
//!
//! The session's thread tells; it never waits for a listener. Each listener has a queue of its own. One that
//! falls behind loses the newest events, and is told how many when it gets to that place; everything else
//! arrives in order. A listener that panics is called again with the next event.
//!
//! What is told of shards, and in which order, is decided in [`tenure_core::cluster::witness`]; here it is only
//! kept, so that a listener who comes later hears how things stand. The latest events are kept too, with numbers, so
//! that a listener who was away for a moment can go on where it was.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use tenure_core::cluster::witness::{Turn, What};
use tenure_core::cluster::{Generation, Part, Shard};
use tenure_core::election::{Leader, Term};
use tenure_core::session::Record;
use tenure_core::{Incarnation, NodeId, Wall};
use tokio::sync::Notify;

use crate::Runtime;
use crate::metrics::Counters;

/// How far behind a listener may fall, and how much further for every shard there is: a whole life of it.
const WAITING_MAX: usize = 4096;
const WAITING_MAX_PER_SHARD: usize = 4;

/// How many of the latest events are kept for listeners who come back, and about how many bytes of them.
const PAST_MAX: usize = 1024;
const PAST_BYTES_MAX: usize = 1024 * 1024;

/// Something has happened.
///
/// Every node is told of all leaders, nodes and shards, as soon as it learns of them: of its own shards at once,
/// of those of others when it next looks at the assignments, with a hint or a heartbeat.
///
/// Of each generation of a shard, `Assigned` comes first and `Stopped` or `Failed` last, each once; `Started`
/// and `Revoked` come in between, unless they did not happen or came and went between two looks. Then the next
/// generation follows, which is always higher. A whole generation can be missed in this way, unless it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A node leads, and hands the work out.
    LeaderElected {
        /// Which.
        node: NodeId,
        /// In which term.
        term: Term,
    },
    /// It leads no longer.
    LeaderLost {
        /// Which.
        node: NodeId,
        /// In which term.
        term: Term,
    },
    /// A node has joined.
    NodeJoined(Member),
    /// A node has left by itself.
    NodeLeft(Member),
    /// A node was not heard from for its ttl and was evicted, or its session was deleted.
    NodeEvicted(Member),
    /// A node was given a shard, and is to start it.
    Assigned {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
        /// To which node.
        node: NodeId,
    },
    /// It has started.
    Started {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
        /// On which node.
        node: NodeId,
    },
    /// It is to end: it goes elsewhere, its node leaves, or trust has ended.
    Revoked {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
        /// On which node.
        node: NodeId,
    },
    /// It has ended as it was told to, or with its node.
    Stopped {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
        /// On which node.
        node: NodeId,
    },
    /// It could not start, ended by itself, went wrong while it ended, or did not start or end in time. Nothing
    /// of it is trusted any more.
    Failed {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
        /// On which node.
        node: NodeId,
        /// What went wrong.
        error: String,
    },
    /// This listener was too slow: so many events are missing here.
    Missed(u64),
}

impl From<Turn> for Event {
    fn from(turn: Turn) -> Self {
        let Turn {
            shard,
            generation,
            node,
            what,
        } = turn;
        match what {
            What::Assigned => Event::Assigned {
                shard,
                generation,
                node,
            },
            What::Started => Event::Started {
                shard,
                generation,
                node,
            },
            What::Revoked => Event::Revoked {
                shard,
                generation,
                node,
            },
            What::Stopped => Event::Stopped {
                shard,
                generation,
                node,
            },
            What::Failed { error } => Event::Failed {
                shard,
                generation,
                node,
                error,
            },
        }
    }
}

/// A node that takes part, as it said of itself when it was last read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub node: NodeId,
    /// This start of its process.
    pub incarnation: Incarnation,
    /// When it joined, on its own clock.
    pub joined_at: Wall,
    /// Where to reach it.
    pub address: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The most work it takes; any amount if it does not say.
    pub capacity: Option<u32>,
    /// The software it runs.
    pub version: Option<String>,
}

impl Member {
    pub(crate) fn of(record: &Record) -> Self {
        let part = Part::of(&record.about);
        Self {
            node: record.node.clone(),
            incarnation: record.incarnation,
            joined_at: record.joined_at,
            address: record.about.address.clone(),
            labels: record.about.labels.clone(),
            capacity: part.capacity,
            version: part.version.clone(),
        }
    }
}

/// A place among the events that one process tells, to go on from later: see
/// [`Cluster::subscribe_after`](super::Cluster::subscribe_after). As text it can be kept anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Which process, since when. Another one counts from the beginning.
    feed: u64,
    number: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}.{}", self.feed, self.number)
    }
}

/// It is not a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of events")]
pub struct NotACursor;

impl FromStr for Cursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let (feed, number) = text.split_once('.').ok_or(NotACursor)?;
        Ok(Self {
            feed: u64::from_str_radix(feed, 16).map_err(|_| NotACursor)?,
            number: number.parse().map_err(|_| NotACursor)?,
        })
    }
}

/// An event as it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What happened.
    pub event: Event,
    /// When this process heard of it, on its own clock.
    pub at: Wall,
    /// The place behind it. `None` if it only says how things stood when the listener came.
    pub cursor: Option<Cursor>,
}

/// The events of one listener, in order: first how things stand, then whatever happens.
#[derive(Debug)]
pub struct Events {
    queue: Arc<Queue>,
    start: Cursor,
}

impl Events {
    /// The next event; `None` when the node has shut down. A cancelled wait loses nothing.
    pub async fn next(&mut self) -> Option<Event> {
        Some(self.next_notice().await?.event)
    }

    /// The place at which this listener came: behind what it is told of how things stand.
    #[must_use]
    pub fn start(&self) -> Cursor {
        self.start
    }

    /// The next event, with its time and place; `None` when the node has shut down. A cancelled wait loses nothing.
    pub async fn next_notice(&mut self) -> Option<Notice> {
        loop {
            let mut filled = std::pin::pin!(self.queue.filled.notified());
            filled.as_mut().enable();
            match self.queue.pop() {
                Next::Event(event) => return Some(event),
                Next::Closed => return None,
                Next::Empty => filled.await,
            }
        }
    }

    /// The same on a thread of its own.
    fn next_blocking(&mut self) -> Option<Event> {
        let mut state = self.queue.state();
        loop {
            match state.pop() {
                Next::Event(told) => return Some(told.event),
                Next::Closed => return None,
                Next::Empty => {
                    let woken = self.queue.filled_for_threads.wait(state);
                    state = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Calls `observer` with every event, on a thread of its own.
    pub(super) fn observe(mut self, mut observer: impl FnMut(Event) + Send + 'static) {
        let thread = std::thread::Builder::new().name("tenure-observer".to_owned());
        let started = thread.spawn(move || {
            while let Some(event) = self.next_blocking() {
                if catch_unwind(AssertUnwindSafe(|| observer(event))).is_err() {
                    tracing::error!("an observer of the cluster panicked; it is called again");
                }
            }
        });
        if let Err(error) = started {
            tracing::error!(%error, "cannot start the thread of an observer: it gets no events");
        }
    }
}

/// What waits for one listener.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<Waiting>,
    filled: Notify,
    filled_for_threads: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Notice>,
    /// How many came after these and were lost.
    missed: u64,
    closed: bool,
}

enum Next {
    Event(Notice),
    Empty,
    Closed,
}

impl Queue {
    /// Returns whether the event was lost.
    fn push(&self, told: Notice, waiting_max: usize) -> bool {
        let is_lost = self.state().push(told, waiting_max);
        self.wake();
        is_lost
    }

    fn pop(&self) -> Next {
        self.state().pop()
    }

    fn close(&self) {
        self.state().closed = true;
        self.wake();
    }

    fn wake(&self) {
        self.filled.notify_waiters();
        self.filled_for_threads.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn push(&mut self, told: Notice, waiting_max: usize) -> bool {
        if self.events.len() >= waiting_max {
            self.missed += 1;
            return true;
        }
        if self.missed > 0 {
            let missed = missed(std::mem::take(&mut self.missed));
            self.events.push_back(missed);
        }
        self.events.push_back(told);
        false
    }

    fn pop(&mut self) -> Next {
        match self.events.pop_front() {
            Some(told) => Next::Event(told),
            None if self.missed > 0 => Next::Event(missed(std::mem::take(&mut self.missed))),
            None if self.closed => Next::Closed,
            None => Next::Empty,
        }
    }
}

/// Where the gap is there is no place to go on from.
fn missed(count: u64) -> Notice {
    Notice {
        event: Event::Missed(count),
        at: Wall::default(),
        cursor: None,
    }
}

/// Where events come from. How things stand is kept, for listeners that come later.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<Standing>,
    counters: Arc<Counters>,
    runtime: Runtime,
}

#[derive(Debug, Default)]
struct Standing {
    leader: Option<Leader>,
    members: BTreeMap<Incarnation, Member>,
    /// Of each shard that has not ended, how it came to stand as it does: assigned, and what came last.
    shards: BTreeMap<Shard, Vec<Turn>>,
    /// How many shards there are, ended ones too.
    shard_count: usize,
    listeners: Vec<Weak<Queue>>,
    closed: bool,
    past: Past,
}

/// The latest events, for listeners who come back.
#[derive(Debug, Default)]
struct Past {
    /// Whether this process hears of everything, so that there is no gap between them.
    is_kept: bool,
    feed: u64,
    /// How many were told in this feed.
    told: u64,
    /// The last of them.
    latest: VecDeque<Notice>,
    bytes: usize,
}

impl Hub {
    pub(crate) fn new(counters: Arc<Counters>, runtime: Runtime, follows: bool) -> Arc<Self> {
        let hub = Self {
            state: Mutex::default(),
            counters,
            runtime,
        };
        hub.keep_past(follows);
        Arc::new(hub)
    }

    /// Whether this process hears of everything from now on: what it did not hear of cannot be gone on from.
    pub(crate) fn keep_past(&self, is_kept: bool) {
        let feed = self.runtime.unique().as_u64_pair().0;
        let past = &mut self.state().past;
        if past.is_kept != is_kept || past.feed == 0 {
            *past = Past {
                is_kept,
                feed,
                ..Past::default()
            };
        }
    }

    pub(crate) fn subscribe(&self) -> Events {
        let mut state = self.state();
        let at = self.runtime.clock.now().wall;
        let standing = state.as_events().into_iter().map(|event| Notice {
            event,
            at,
            cursor: None,
        });
        let standing = standing.collect();
        state.listen(standing)
    }

    /// Whatever was told behind a place, and what is told from now on; `None` if some of it is not kept any more.
    pub(crate) fn subscribe_after(&self, cursor: Cursor) -> Option<Events> {
        let mut state = self.state();
        let behind = state.past.behind(cursor)?;
        Some(state.listen(behind))
    }

    pub(crate) fn members(&self) -> Vec<Member> {
        self.state().members.values().cloned().collect()
    }

    /// Someone leads, or nobody does.
    pub(crate) fn leader_is(&self, leader: Option<&Leader>) {
        let mut state = self.state();
        if state.leader.as_ref() == leader {
            return;
        }
        if let Some(Leader { node, term, .. }) = state.leader.take() {
            self.tell(&mut state, &Event::LeaderLost { node, term });
        }
        if let Some(leader) = leader {
            state.leader = Some(leader.clone());
            let (node, term) = (leader.node.clone(), leader.term);
            self.tell(&mut state, &Event::LeaderElected { node, term });
        }
    }

    /// A session has ended, and with it whatever it led.
    pub(crate) fn session_ended(&self, incarnation: Incarnation) {
        let leads = |leader: &Leader| leader.incarnation == incarnation;
        let is_leader = self.state().leader.as_ref().is_some_and(leads);
        if is_leader {
            self.leader_is(None);
        }
    }

    pub(crate) fn joined(&self, record: &Record) {
        let member = Member::of(record);
        let mut state = self.state();
        state.members.insert(record.incarnation, member.clone());
        self.tell(&mut state, &Event::NodeJoined(member));
    }

    pub(crate) fn left(&self, record: &Record, evicted: bool) {
        let mut state = self.state();
        state.members.remove(&record.incarnation);
        let event = if evicted {
            Event::NodeEvicted(Member::of(record))
        } else {
            Event::NodeLeft(Member::of(record))
        };
        self.tell(&mut state, &event);
    }

    /// Something has happened to one of so many shards.
    pub(crate) fn turned(&self, turn: Turn, shard_count: usize) {
        let mut state = self.state();
        state.shard_count = shard_count;
        match turn.what {
            What::Assigned => drop(state.shards.insert(turn.shard.clone(), vec![turn.clone()])),
            What::Started | What::Revoked => {
                if let Some(turns) = state.shards.get_mut(&turn.shard) {
                    turns.truncate(1);
                    turns.push(turn.clone());
                }
            }
            What::Stopped | What::Failed { .. } => drop(state.shards.remove(&turn.shard)),
        }
        self.tell(&mut state, &turn.into());
    }

    /// The driver has ended.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        for listener in state.listeners.drain(..) {
            if let Some(queue) = listener.upgrade() {
                queue.close();
            }
        }
    }

    fn tell(&self, state: &mut Standing, event: &Event) {
        self.counters.cluster_event(event, state.members.len());
        let waiting_max = state.waiting_max();
        let told = state.past.note(event, self.runtime.clock.now().wall);
        state.listeners.retain(|listener| match listener.upgrade() {
            Some(queue) => {
                if queue.push(told.clone(), waiting_max) {
                    self.counters.event_missed();
                }
                true
            }
            None => false,
        });
    }

    /// Plain data: a panic elsewhere leaves it whole.
    fn state(&self) -> MutexGuard<'_, Standing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standing {
    fn as_events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(leader) = &self.leader {
            let (node, term) = (leader.node.clone(), leader.term);
            events.push(Event::LeaderElected { node, term });
        }
        let members = self.members.values().cloned();
        events.extend(members.map(Event::NodeJoined));
        let turns = self.shards.values().flatten().cloned();
        events.extend(turns.map(Event::from));
        events
    }

    fn waiting_max(&self) -> usize {
        WAITING_MAX + self.shard_count * WAITING_MAX_PER_SHARD
    }

    /// A listener who is told this first.
    fn listen(&mut self, first: Vec<Notice>) -> Events {
        let queue = Arc::new(Queue::default());
        let waiting_max = self.waiting_max();
        for told in first {
            queue.push(told, waiting_max);
        }
        if self.closed {
            queue.close();
        } else {
            self.listeners.push(Arc::downgrade(&queue));
        }
        Events {
            queue,
            start: self.past.cursor(),
        }
    }
}

impl Past {
    fn cursor(&self) -> Cursor {
        Cursor {
            feed: self.feed,
            number: self.told,
        }
    }

    /// Gives an event its place, and keeps it.
    fn note(&mut self, event: &Event, at: Wall) -> Notice {
        self.told += 1;
        let told = Notice {
            event: event.clone(),
            at,
            cursor: Some(self.cursor()),
        };
        if self.is_kept {
            self.bytes += event.bytes();
            self.latest.push_back(told.clone());
            while self.latest.len() > PAST_MAX || self.bytes > PAST_BYTES_MAX {
                let Some(oldest) = self.latest.pop_front() else {
                    break;
                };
                self.bytes -= oldest.event.bytes();
            }
        }
        told
    }

    /// What was told behind a place, if all of it is kept.
    fn behind(&self, cursor: Cursor) -> Option<Vec<Notice>> {
        let is_of_this = self.is_kept && cursor.feed == self.feed;
        let missing = self.told.checked_sub(cursor.number)?;
        let missing = usize::try_from(missing).ok()?;
        let from = self.latest.len().checked_sub(missing)?;
        is_of_this.then(|| self.latest.range(from..).cloned().collect())
    }
}

impl Event {
    /// About how much memory it takes: what others say of themselves has no other bound.
    fn bytes(&self) -> usize {
        let text = match self {
            Event::NodeJoined(member) | Event::NodeLeft(member) | Event::NodeEvicted(member) => {
                let labels = member.labels.iter();
                let labels: usize = labels.map(|(key, value)| key.len() + value.len()).sum();
                let lengths =
                    [&member.address, &member.version].map(|it| it.as_ref().map_or(0, String::len));
                labels + lengths.iter().sum::<usize>()
            }
            Event::Failed { error, .. } => error.len(),
            _ => 0,
        };
        size_of::<Notice>() + text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn hub() -> Arc<Hub> {
        Hub::new(Arc::default(), Runtime::default(), true)
    }

    fn leader(term: u64) -> Leader {
        Leader {
            node: NodeId::new("a").unwrap(),
            incarnation: Incarnation(1),
            term: Term(term),
        }
    }

    fn term_of(event: &Event) -> u64 {
        match event {
            Event::LeaderElected { term, .. } | Event::LeaderLost { term, .. } => term.0,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_late_listener_hears_how_things_stand_and_then_what_happens() {
        let hub = hub();
        hub.leader_is(Some(&leader(1)));
        let mut events = hub.subscribe();
        hub.leader_is(Some(&leader(2)));
        hub.leader_is(Some(&leader(2)));
        hub.session_ended(Incarnation(9));
        hub.session_ended(Incarnation(1));
        hub.close();
        let mut told = Vec::new();
        while let Some(event) = events.next().await {
            let is_elected = matches!(event, Event::LeaderElected { .. });
            told.push((is_elected, term_of(&event)));
        }
        assert_eq!(told, [(true, 1), (false, 1), (true, 2), (false, 2)]);
        assert_eq!(hub.subscribe().next().await, None);
    }

    #[tokio::test]
    async fn a_slow_listener_is_told_what_it_missed_where_it_missed_it() {
        let hub = hub();
        let (mut slow, mut quick) = (hub.subscribe(), hub.subscribe());
        let terms = 3000;
        for term in 1..=terms {
            hub.leader_is(Some(&leader(term)));
            while let Next::Event(event) = quick.queue.pop() {
                assert!(!matches!(event.event, Event::Missed(_)));
            }
        }
        // Elected and lost, but for the last one.
        let missed = 2 * terms - 1 - WAITING_MAX as u64;
        for _ in 0..10 {
            term_of(&slow.next().await.unwrap());
        }
        hub.leader_is(None);
        for _ in 10..WAITING_MAX {
            term_of(&slow.next().await.unwrap());
        }
        assert_eq!(slow.next().await, Some(Event::Missed(missed)));
        assert_eq!(term_of(&slow.next().await.unwrap()), terms);
        assert!(quick.next().await.is_some());
    }

    #[tokio::test]
    async fn a_listener_who_comes_back_goes_on_where_it_was_or_is_told_that_it_cannot() {
        let hub = hub();
        hub.leader_is(Some(&leader(1)));
        let mut events = hub.subscribe();
        assert_eq!(
            events.next_notice().await.unwrap().cursor,
            None,
            "it stood so"
        );
        hub.leader_is(Some(&leader(2)));
        let told = events.next_notice().await.unwrap();
        assert_eq!(
            told.event,
            Event::LeaderLost {
                node: leader(1).node,
                term: Term(1)
            }
        );
        let cursor: Cursor = told.cursor.unwrap().to_string().parse().unwrap();
        drop(events);
        hub.leader_is(None);
        let mut again = hub.subscribe_after(cursor).unwrap();
        let mut terms = Vec::new();
        for _ in 0..2 {
            terms.push(term_of(&again.next().await.unwrap()));
        }
        assert_eq!(terms, [2, 2], "elected and lost, and nothing twice");
        // Of a start that never was, of another process, and of events that are no longer kept.
        let ahead = Cursor {
            number: 99,
            ..cursor
        };
        let other = Cursor { feed: 7, ..cursor };
        assert!(hub.subscribe_after(ahead).is_none() && hub.subscribe_after(other).is_none());
        for term in 3..=PAST_MAX as u64 {
            hub.leader_is(Some(&leader(term)));
        }
        assert!(hub.subscribe_after(cursor).is_none());
        let state = hub.state();
        assert!(state.past.latest.len() == PAST_MAX && state.past.bytes < PAST_BYTES_MAX);
        drop(state);
        // What it did not hear of is not gone on from.
        let latest = hub.subscribe().start();
        assert!(hub.subscribe_after(latest).is_some());
        hub.keep_past(false);
        hub.keep_past(true);
        assert!(hub.subscribe_after(latest).is_none());
    }

    #[test]
    fn an_observer_that_panics_is_called_again() {
        let hub = hub();
        let (sender, receiver) = mpsc::channel();
        hub.subscribe().observe(move |event| {
            sender.send(term_of(&event)).unwrap();
            panic!("on purpose");
        });
        hub.leader_is(Some(&leader(1)));
        hub.leader_is(None);
        assert_eq!(receiver.recv().unwrap(), 1);
        assert_eq!(receiver.recv().unwrap(), 1);
        hub.close();
        // The thread has ended, and with it the observer.
        assert!(receiver.recv().is_err());
    }
}
