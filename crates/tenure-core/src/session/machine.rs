//! A process's own session: joins, renews, settles lost answers, leaves.

use std::time::Duration;

use super::record::{About, Record, State};
use super::{Config, Holder};
use crate::mutation::{self, Mutation};
use crate::random::Random;
use crate::{Expect, Moment, Now, Read, Version, Written};

/// The machine. One request is in flight at most; the driver answers each with one input.
#[derive(Debug, Clone, Hash)]
pub struct Session {
    config: Config,
    random: Random,
    /// What the next write says; its counter is the last one used.
    record: Record,
    phase: Phase,
    /// The version of the write that was last known to be applied.
    confirmed: Option<Version>,
    /// Writes that may have been applied or may yet be. All expect the confirmed version, so at most one
    /// of them can be.
    unsettled: Vec<Attempt>,
    in_flight: Option<Flight>,
    /// A conflict or a lost answer is to be settled before anything else is written.
    must_read: bool,
    /// What the process says of itself has changed since the last write was started.
    about_changed: bool,
    /// When the next request is due.
    due: Moment,
    trusted_until: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Joining,
    Alive,
    /// Over for the process, perhaps not in the store: it can still be told that nobody is there.
    Over {
        can_leave: bool,
    },
    Leaving {
        give_up_at: Moment,
    },
    Left,
}

#[derive(Debug, Clone, Copy, Hash)]
struct Attempt {
    counter: u64,
    started: Moment,
    says_gone: bool,
}

#[derive(Debug, Clone, Copy, Hash)]
enum Flight {
    Write(Attempt),
    Read,
}

/// What happens to a session.
#[derive(Debug, Clone, Hash)]
pub enum Input {
    /// Time has passed, or the process has just started.
    Wake,
    /// The answer to [`Output::Write`].
    Written(Written),
    /// The answer to [`Output::Read`].
    Read(Read<Record>),
    /// The process says something new of itself.
    About(About),
    /// All work has ended and the process wants to go.
    Leave,
    /// The session is over and some of its work does not end: go without saying so.
    Abandon,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Output {
    /// Write the session.
    Write {
        /// What to write.
        record: Record,
        /// What must be there.
        expect: Expect,
        /// When the answer counts as lost.
        within: Duration,
    },
    /// Read the session.
    Read {
        /// When the store counts as silent.
        within: Duration,
    },
    /// The session stands in the store and is trusted until then.
    Trusted {
        /// The end of trust.
        until: Moment,
    },
    /// Stop everything at once; a new incarnation may join.
    Over {
        /// Why.
        reason: Reason,
    },
    /// Nothing more will come.
    Left,
}

/// Why a session is over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No heartbeat was confirmed before trust ended.
    Expired,
    /// An observer found no heartbeat for a whole ttl.
    Evicted {
        /// The observer.
        by: crate::NodeId,
    },
    /// Someone deleted the session object.
    Deleted,
    /// Someone else wrote the session object.
    Overwritten,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::Expired => formatter.write_str("no heartbeat was confirmed in time"),
            Reason::Evicted { by } => write!(formatter, "evicted by {by}"),
            Reason::Deleted => formatter.write_str("the session object was deleted"),
            Reason::Overwritten => formatter.write_str("the session object was overwritten"),
        }
    }
}

impl Session {
    /// A session that has not joined yet; the first [`Input::Wake`] starts it.
    #[must_use]
    pub fn new(config: Config, holder: &Holder, about: About, now: Now, seed: u64) -> Self {
        let record = Record {
            node: holder.node.clone(),
            incarnation: holder.incarnation,
            counter: 0,
            ttl: config.ttl,
            state: State::Alive,
            joined_at: now.wall,
            about,
        };
        Self {
            config,
            random: Random::from_seed(seed),
            record,
            phase: Phase::Joining,
            confirmed: None,
            unsettled: Vec::new(),
            in_flight: None,
            must_read: false,
            about_changed: false,
            due: now.moment,
            trusted_until: Moment::default(),
        }
    }

    /// Whether the process may act on what it holds. Checked at use, not by a timer alone.
    #[must_use]
    pub fn is_trusted(&self, now: Moment) -> bool {
        self.phase == Phase::Alive && now < self.trusted_until
    }

    /// What the next write says; its counter is the last one used.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// When trust ends if no further heartbeat is confirmed.
    #[must_use]
    pub fn trusted_until(&self) -> Moment {
        self.trusted_until
    }

    /// When the machine wants [`Input::Wake`] next.
    #[must_use]
    pub fn wake_at(&self) -> Moment {
        let due = if self.in_flight.is_some() {
            Moment::NEVER
        } else {
            self.due
        };
        match self.phase {
            Phase::Joining => due,
            Phase::Alive => due.min(self.trusted_until),
            Phase::Leaving { give_up_at } => due.min(give_up_at),
            Phase::Over { .. } | Phase::Left => Moment::NEVER,
        }
    }

    /// Takes an input and says what to do about it.
    #[must_use]
    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        match input {
            Input::Wake => {}
            Input::Written(written) => self.on_written(now, written, &mut outputs),
            Input::Read(read) => self.on_read(now, read, &mut outputs),
            Input::About(about) => self.on_about(now, about),
            Input::Leave => self.on_leave(now, &mut outputs),
            Input::Abandon => self.end(&mut outputs),
        }
        self.on_time(now, &mut outputs);
        outputs
    }

    fn on_about(&mut self, now: Moment, about: About) {
        if self.record.about != about {
            self.record.about = about;
            self.about_changed = true;
            // Others wait for what has changed; the next heartbeat would be late.
            self.due = self.due.min(now);
        }
    }

    fn on_leave(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        let can_leave = match self.phase {
            Phase::Joining | Phase::Alive => true,
            Phase::Over { can_leave } => can_leave,
            Phase::Leaving { .. } | Phase::Left => return,
        };
        let never_written =
            self.confirmed.is_none() && self.unsettled.is_empty() && self.in_flight.is_none();
        if !can_leave || never_written {
            self.end(outputs);
            return;
        }
        self.record.state = State::Gone;
        // Beyond its ttl anyone can evict the session, so there is no use in trying longer.
        self.phase = Phase::Leaving {
            give_up_at: now + self.config.ttl,
        };
        self.due = now;
    }

    fn on_written(&mut self, now: Moment, written: Written, outputs: &mut Vec<Output>) {
        let Some(Flight::Write(mut attempt)) = self.in_flight.take() else {
            return;
        };
        if mutation::is(Mutation::TrustFromAnswer) {
            attempt.started = now;
        }
        let written = match written {
            Written::Unknown if mutation::is(Mutation::UnknownHeartbeatFailed) => {
                Written::NotApplied
            }
            written => written,
        };
        match written {
            Written::Done(version) => self.confirm(attempt, version, outputs),
            Written::NotApplied => {
                self.unsettled
                    .retain(|other| other.counter != attempt.counter);
                self.due = now + self.random.jitter(self.config.retry());
            }
            Written::Conflict => {
                self.must_read = true;
                self.due = now;
            }
            Written::Unknown => {
                self.must_read = true;
                self.due = now + self.random.jitter(self.config.retry());
            }
        }
    }

    fn on_read(&mut self, now: Moment, read: Read<Record>, outputs: &mut Vec<Output>) {
        let Some(Flight::Read) = self.in_flight.take() else {
            return;
        };
        match read {
            Read::Failed => {
                self.due = now + self.random.jitter(self.config.retry());
                return;
            }
            Read::Found {
                record, version, ..
            } if record.incarnation == self.record.incarnation => {
                // Unless something landed, the heartbeat is still to be made.
                self.due = now;
                self.on_own_record(&record, version, outputs);
            }
            Read::Missing if self.confirmed.is_none() => self.due = now,
            Read::Missing if mutation::is(Mutation::RecreateSession) => {
                self.confirmed = None;
                self.due = now;
            }
            Read::Missing => self.over(Reason::Deleted, outputs),
            // A read for settling is never conditional, so unchanged is as foreign as anything else.
            Read::Found { .. } | Read::Unreadable { .. } | Read::Unchanged { .. } => {
                self.over(Reason::Overwritten, outputs);
            }
        }
        self.must_read = false;
    }

    /// What was read back is a record of this very incarnation.
    fn on_own_record(&mut self, record: &Record, version: Version, outputs: &mut Vec<Output>) {
        let is_confirmed = self
            .confirmed
            .as_ref()
            .is_some_and(|confirmed| *confirmed == version);
        let landed = self
            .unsettled
            .iter()
            .find(|attempt| attempt.counter == record.counter)
            .copied();
        match (&record.state, landed) {
            (State::Evicted { .. }, _) if mutation::is(Mutation::IgnoreEviction) => {
                self.confirmed = Some(version);
            }
            (State::Evicted { by }, _) => self.over(Reason::Evicted { by: by.clone() }, outputs),
            (_, Some(attempt)) => self.confirm(attempt, version, outputs),
            // Nothing has landed yet, though it still may.
            (State::Alive, None) if is_confirmed => {}
            (State::Alive | State::Gone, None) => self.over(Reason::Overwritten, outputs),
        }
    }

    /// A write is known to have been applied. Whatever else was under way expected an older version and
    /// can no longer be.
    fn confirm(&mut self, attempt: Attempt, version: Version, outputs: &mut Vec<Output>) {
        self.confirmed = Some(version);
        self.unsettled.clear();
        match self.phase {
            Phase::Joining | Phase::Alive => {
                self.phase = Phase::Alive;
                self.trusted_until = self
                    .trusted_until
                    .max(attempt.started + self.config.trust());
                let pause = if self.about_changed {
                    Duration::ZERO
                } else {
                    self.config.heartbeat
                };
                self.due = attempt.started + self.random.jitter(pause);
                outputs.push(Output::Trusted {
                    until: self.trusted_until,
                });
            }
            // What landed may be a heartbeat from before leaving.
            Phase::Leaving { .. } if attempt.says_gone => self.end(outputs),
            Phase::Leaving { .. } | Phase::Over { .. } | Phase::Left => {}
        }
    }

    /// What time alone brings about.
    fn on_time(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        match self.phase {
            Phase::Alive if now >= self.trusted_until => self.over(Reason::Expired, outputs),
            Phase::Leaving { give_up_at } if now >= give_up_at => self.end(outputs),
            _ => {}
        }
        let is_active = matches!(
            self.phase,
            Phase::Joining | Phase::Alive | Phase::Leaving { .. }
        );
        if !is_active || self.in_flight.is_some() || now < self.due {
            return;
        }
        let within = self.patience(now);
        if self.must_read {
            self.in_flight = Some(Flight::Read);
            outputs.push(Output::Read { within });
            return;
        }
        self.about_changed = false;
        self.record.counter += 1;
        let attempt = Attempt {
            counter: self.record.counter,
            started: now,
            says_gone: self.record.state == State::Gone,
        };
        self.unsettled.push(attempt);
        self.in_flight = Some(Flight::Write(attempt));
        let expect = match &self.confirmed {
            None => Expect::Absent,
            Some(version) => Expect::Version(version.clone()),
        };
        outputs.push(Output::Write {
            record: self.record.clone(),
            expect,
            within,
        });
    }

    /// How long a request may take: never past the end of trust, or the session would end with an
    /// answer under way that could still save it.
    fn patience(&self, now: Moment) -> Duration {
        match self.phase {
            Phase::Alive => self
                .config
                .request_timeout
                .min(self.trusted_until.since(now)),
            _ => self.config.request_timeout,
        }
    }

    fn over(&mut self, reason: Reason, outputs: &mut Vec<Output>) {
        match self.phase {
            Phase::Joining | Phase::Alive => {
                // Only an expired session may still stand in the store under our name.
                self.phase = Phase::Over {
                    can_leave: reason == Reason::Expired,
                };
                self.trusted_until = Moment::default();
                outputs.push(Output::Over { reason });
            }
            Phase::Leaving { .. } => self.end(outputs),
            Phase::Over { .. } | Phase::Left => {}
        }
    }

    fn end(&mut self, outputs: &mut Vec<Output>) {
        self.phase = Phase::Left;
        outputs.push(Output::Left);
    }
}
