//! What a process sees of other sessions: which are alive, and which may be evicted.
//!
//! An observation belongs to the observer and survives between looks: it starts when a version is seen
//! first and ends when another is. It does not start over because someone looks again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Config;
use super::record::{Holder, Record, State};
use crate::random::Random;
use crate::{Expect, Incarnation, Moment, NodeId, Read, Version, Written};

/// The machine: any number of watched sessions, at most one request in flight for each.
#[derive(Debug, Clone, Hash)]
pub struct Observer {
    config: Config,
    me: NodeId,
    random: Random,
    /// Nobody waits for the end of sessions that are not watched closely.
    is_calm: bool,
    watched: BTreeMap<Incarnation, Watched>,
}

#[derive(Debug, Clone, Hash)]
struct Watched {
    holder: Holder,
    /// A candidate waits to take over what it holds.
    is_close: bool,
    seen: Seen,
    in_flight: Option<Flight>,
    /// When to look next.
    due: Moment,
    /// When to try to evict at the earliest; never, until another look, after an attempt whose outcome is not known or
    /// that found another version.
    evict_from: Moment,
}

#[derive(Debug, Clone, Hash)]
enum Seen {
    Nothing,
    /// This version has been unchanged at least since then.
    Standing {
        version: Version,
        record: Option<Box<Record>>,
        since: Moment,
        /// Whether the store said how old it is, so that it does not matter when it was first seen.
        is_aged: bool,
    },
    /// There has been no object since then: unknown, not dead.
    Missing {
        since: Moment,
    },
    /// It has ended. Whatever it held is free.
    Ended(End),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Flight {
    Read,
    Evict,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// It left on its own.
    Gone,
    /// It had lost its session, and said so when it could.
    Lost,
    /// It was evicted, by this observer or another.
    Evicted,
    /// Its object was missing for a whole ttl.
    Missing,
}

/// What happens to an observer.
#[derive(Debug, Clone, Hash)]
pub enum Input {
    /// Time has passed.
    Wake,
    /// Watch this session until [`Input::Forget`].
    Watch(Holder),
    /// The same, closely: a candidate waits to take over what it holds.
    WatchClosely(Holder),
    /// Watch it less closely again: nobody waits to take over.
    Loosen(Incarnation),
    /// Whether nobody waits for the end of sessions that are not watched closely.
    Calm(bool),
    /// Stop watching this session.
    Forget(Incarnation),
    /// Any session may have changed.
    Hint,
    /// This session may have changed.
    HintOf(Incarnation),
    /// The answer to [`Output::Read`].
    Read(Incarnation, Read<Record>),
    /// The answer to [`Output::Evict`].
    Evicted(Incarnation, Written),
}

/// What the driver has to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Output {
    /// Read a session, only if it is no longer at the known version.
    Read {
        /// The session.
        holder: Holder,
        /// The version that is known.
        known: Option<Version>,
    },
    /// Replace a session that has not changed for its whole ttl.
    Evict {
        /// The session.
        holder: Holder,
        /// What to write.
        record: Box<Record>,
        /// What must be there.
        expect: Expect,
    },
    /// There is no such object, at this look. What the session held may not be taken yet.
    Missing {
        /// The session.
        incarnation: Incarnation,
    },
    /// What this session held may be taken.
    Ended {
        /// The session.
        incarnation: Incarnation,
        /// How it ended.
        end: End,
    },
}

impl Observer {
    /// Makes an observer that watches no sessions yet.
    #[must_use]
    pub fn new(config: Config, me: NodeId, seed: u64) -> Self {
        Self {
            random: Random::new(&config, seed),
            config,
            me,
            is_calm: false,
            watched: BTreeMap::new(),
        }
    }

    /// How a watched session ended, if it did.
    #[must_use]
    pub fn end_of(&self, incarnation: Incarnation) -> Option<End> {
        match self.watched.get(&incarnation)?.seen {
            Seen::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Whether a watched session was not there at the last look.
    #[must_use]
    pub fn is_missing(&self, incarnation: Incarnation) -> bool {
        let watched = self.watched.get(&incarnation);
        watched.is_some_and(|watched| matches!(watched.seen, Seen::Missing { .. }))
    }

    /// When the machine wants [`Input::Wake`] next.
    #[must_use]
    pub fn wake_at(&self) -> Moment {
        let idle = self
            .watched
            .values()
            .filter(|watched| watched.in_flight.is_none());
        idle.map(Watched::wake_at).min().unwrap_or(Moment::NEVER)
    }

    /// Takes an input and returns what to do.
    #[must_use]
    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        match input {
            Input::Wake => {}
            Input::Watch(holder) => {
                self.watched
                    .entry(holder.incarnation)
                    .or_insert_with(|| Watched::new(holder, now));
            }
            Input::WatchClosely(holder) => {
                let entry = self.watched.entry(holder.incarnation);
                let watched = entry.or_insert_with(|| Watched::new(holder, now));
                if !std::mem::replace(&mut watched.is_close, true) && self.is_calm {
                    watched.due = watched.due.min(now);
                }
            }
            Input::Loosen(incarnation) => {
                if let Some(watched) = self.watched.get_mut(&incarnation) {
                    watched.is_close = false;
                }
            }
            Input::Calm(is_calm) => {
                if std::mem::replace(&mut self.is_calm, is_calm) && !is_calm {
                    for watched in self.watched.values_mut() {
                        let soon = now + self.random.jitter(self.config.heartbeat);
                        watched.due = watched.due.min(soon);
                    }
                }
            }
            Input::Forget(incarnation) => drop(self.watched.remove(&incarnation)),
            Input::Hint => {
                for watched in self.watched.values_mut() {
                    watched.due = watched.due.min(now);
                }
            }
            Input::HintOf(incarnation) => {
                if let Some(watched) = self.watched.get_mut(&incarnation) {
                    watched.due = watched.due.min(now);
                }
            }
            Input::Read(incarnation, read) => {
                if let Some(watched) = self.watched.get_mut(&incarnation) {
                    watched.in_flight = None;
                    let known = watched.known();
                    let retry = self.random.jitter(self.config.retry());
                    let has_failed = read == Read::Failed;
                    watched.on_read(now, read, self.config.strict_age, retry, &mut outputs);
                    if !has_failed {
                        let pause = if self.is_calm && !watched.is_close {
                            watched.calm_pause(now, &self.config)
                        } else {
                            watched.pause(known.as_ref(), &self.config)
                        };
                        watched.due = now + self.random.jitter(pause);
                    }
                }
            }
            Input::Evicted(incarnation, written) => {
                if let Some(watched) = self.watched.get_mut(&incarnation) {
                    watched.in_flight = None;
                    let retry = self.random.jitter(self.config.retry());
                    watched.on_evicted(now, &written, retry, &mut outputs);
                }
            }
        }
        for watched in self.watched.values_mut() {
            watched.on_time(now, &self.me, &mut outputs);
        }
        outputs
    }
}

impl Watched {
    fn new(holder: Holder, now: Moment) -> Self {
        Self {
            holder,
            is_close: false,
            seen: Seen::Nothing,
            in_flight: None,
            due: now,
            evict_from: now,
        }
    }

    /// When this session may be evicted, if nothing of it is seen until then.
    fn expires_at(&self) -> Moment {
        match &self.seen {
            Seen::Standing { record, since, .. } => {
                (*since + self.ttl(record.as_deref())).max(self.evict_from)
            }
            Seen::Missing { since } => *since + self.holder.ttl,
            Seen::Nothing | Seen::Ended(_) => Moment::NEVER,
        }
    }

    /// The record's ttl counts, not the observer's. If the record cannot be read, it is the ttl that its holder wrote
    /// into the lease.
    fn ttl(&self, record: Option<&Record>) -> Duration {
        record.map_or(self.holder.ttl, |record| record.ttl)
    }

    fn wake_at(&self) -> Moment {
        if matches!(self.seen, Seen::Ended(_)) {
            Moment::NEVER
        } else {
            self.due.min(self.expires_at())
        }
    }

    fn on_read(
        &mut self,
        now: Moment,
        read: Read<Record>,
        strict_age: bool,
        retry: Duration,
        outputs: &mut Vec<Output>,
    ) {
        if read != Read::Failed {
            self.evict_from = now;
        }
        match read {
            Read::Failed => self.due = now + retry,
            Read::Missing => match self.seen {
                Seen::Missing { .. } | Seen::Ended(_) => {}
                _ => {
                    self.seen = Seen::Missing { since: now };
                    outputs.push(Output::Missing {
                        incarnation: self.holder.incarnation,
                    });
                }
            },
            Read::Unreadable { version } => self.stands(now, version, None, None),
            Read::Unchanged { age } => self.stood(now, age.filter(|_| !strict_age)),
            Read::Found {
                record,
                version,
                age,
            } => match record.state {
                State::Alive => {
                    let age = age.filter(|_| !strict_age);
                    self.stands(now, version, Some(Box::new(record)), age);
                }
                State::Gone if record.about.lost => self.ended(End::Lost, outputs),
                State::Gone => self.ended(End::Gone, outputs),
                State::Evicted { .. } => self.ended(End::Evicted, outputs),
            },
        }
    }

    /// Takes a session that was read and is there.
    fn stands(
        &mut self,
        now: Moment,
        version: Version,
        record: Option<Box<Record>>,
        age: Option<Duration>,
    ) {
        match &self.seen {
            // The same version again: the observation goes on.
            Seen::Standing { version: known, .. } if *known == version => self.stood(now, age),
            Seen::Ended(_) => {}
            _ => {
                let since = now - age.unwrap_or_default();
                self.seen = Seen::Standing {
                    version,
                    record,
                    since,
                    is_aged: age.is_some(),
                };
            }
        }
    }

    /// Notes that the known version is unchanged. An age can only prove that it is older than this observer has watched
    /// it. If a store reports less, since its clock was set back, our own clock counts.
    fn stood(&mut self, now: Moment, age: Option<Duration>) {
        if let (Seen::Standing { since, .. }, Some(age)) = (&mut self.seen, age) {
            *since = (*since).min(now - age);
        }
    }

    fn on_evicted(
        &mut self,
        now: Moment,
        written: &Written,
        retry: Duration,
        outputs: &mut Vec<Output>,
    ) {
        match written {
            Written::Done(_) => self.ended(End::Evicted, outputs),
            // A heartbeat or another observer was faster: look.
            Written::Conflict => {
                self.evict_from = Moment::NEVER;
                self.due = now;
            }
            Written::Unknown => {
                self.evict_from = Moment::NEVER;
                self.due = now + retry;
            }
            Written::NotApplied => self.evict_from = now + retry,
        }
    }

    fn ended(&mut self, end: End, outputs: &mut Vec<Output>) {
        if !matches!(self.seen, Seen::Ended(_)) {
            self.seen = Seen::Ended(end);
            outputs.push(Output::Ended {
                incarnation: self.holder.incarnation,
                end,
            });
        }
    }

    fn on_time(&mut self, now: Moment, me: &NodeId, outputs: &mut Vec<Output>) {
        if self.in_flight.is_some() || now < self.wake_at() {
            return;
        }
        if now < self.expires_at() {
            self.in_flight = Some(Flight::Read);
            outputs.push(Output::Read {
                holder: self.holder.clone(),
                known: self.known(),
            });
            return;
        }
        match &self.seen {
            Seen::Missing { .. } => self.ended(End::Missing, outputs),
            Seen::Standing {
                version, record, ..
            } => {
                // Fails if a heartbeat has arrived since: then the session lives.
                let expect = Expect::Version(version.clone());
                let record = self.tombstone(record.as_deref(), me);
                self.in_flight = Some(Flight::Evict);
                outputs.push(Output::Evict {
                    holder: self.holder.clone(),
                    record,
                    expect,
                });
            }
            Seen::Nothing | Seen::Ended(_) => {}
        }
    }

    /// How long until the next look, after one that was answered; `known` is the version before it.
    fn pause(&self, known: Option<&Version>, config: &Config) -> Duration {
        match &self.seen {
            Seen::Standing {
                version,
                is_aged: false,
                ..
            } if known == Some(version) => config.close_look(),
            Seen::Standing { is_aged: false, .. } => config.first_look(),
            _ => config.heartbeat,
        }
    }

    /// The same if nobody waits for the end of the session: so late that a live session has changed by then, and so
    /// early that the session does not yet count as dead. If it has not changed by then, it is looked at as often as
    /// any.
    fn calm_pause(&self, now: Moment, config: &Config) -> Duration {
        let Seen::Standing { record, since, .. } = &self.seen else {
            return config.heartbeat;
        };
        let until = *since + self.ttl(record.as_deref()) * 3 / 4;
        let pause = until.since(now);
        if pause.is_zero() {
            config.heartbeat
        } else {
            pause
        }
    }

    fn known(&self) -> Option<Version> {
        match &self.seen {
            Seen::Standing { version, .. } => Some(version.clone()),
            _ => None,
        }
    }

    fn tombstone(&self, record: Option<&Record>, me: &NodeId) -> Box<Record> {
        let state = State::Evicted { by: me.clone() };
        Box::new(match record {
            Some(record) => Record {
                state,
                ..record.clone()
            },
            None => Record {
                node: self.holder.node.clone(),
                incarnation: self.holder.incarnation,
                counter: 0,
                nonce: crate::Nonce::default(),
                ttl: self.holder.ttl,
                state,
                joined_at: crate::Wall::default(),
                about: Box::default(),
            },
        })
    }
}
