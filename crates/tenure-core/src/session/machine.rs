//! A process's own session: joins, renews, settles lost answers, leaves.

use std::time::Duration;

use super::record::{About, Record, State};
use super::{Config, Holder};
use crate::random::Random;
use crate::{Expect, Moment, Nonce, Now, Read, Version, Written};

/// The machine. At most one request is in flight; the driver answers each with one input.
#[derive(Debug, Clone, Hash)]
pub struct Session {
    config: Config,
    random: Random,
    /// What the next write says; its counter is the last one used.
    record: Record,
    phase: Phase,
    /// The version of the write that was last known to be applied.
    confirmed: Option<Version>,
    /// Writes that may have been applied or may still be. All expect the confirmed version, so at most one of them can
    /// be.
    unsettled: Vec<Attempt>,
    in_flight: Option<Flight>,
    /// A conflict or a lost answer must be settled before anything else is written.
    must_read: bool,
    /// What the process says about itself has changed since the last write was started.
    about_changed: bool,
    /// What the process says about itself is known to be stored.
    about_is_stored: bool,
    /// Heartbeats are as rare as is safe.
    is_sparing: bool,
    /// When the next request is due.
    due: Moment,
    trusted_until: Moment,
    /// The store is known to say that the session is gone.
    has_said_gone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Joining,
    Alive,
    /// Over for the process, perhaps not in the store: it can still be told that the session is gone.
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
    nonce: Nonce,
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
    /// The process says something new about itself.
    About(About),
    /// Whether heartbeats are to be as rare as is safe, because the store should get no more requests.
    Spare(bool),
    /// Something that this process holds, or may hold, could not be read for a whole ttl: it can neither use it nor
    /// give it back, and while its session lives nobody else can take it.
    Blind,
    /// All work has ended and the process wants to leave.
    Leave,
    /// The session is over and some of its work does not end: leave without saying so.
    Abandon,
}

/// What the driver has to do.
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
    /// The session is in the store and is trusted until then.
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
    /// Someone else wrote the session object: manually, or as a copy of this process.
    Overwritten,
    /// The store accepts what this process writes, but does not let it read.
    CannotRead,
}

impl Reason {
    /// Whether a lease may still be given back. It may not if a copy of this process may go on with the same session,
    /// and lead: if another write has replaced the session, or trust has run out. Others take the lease anyway once
    /// they see that the session has ended.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        match self {
            Reason::Evicted { .. } | Reason::Deleted => true,
            Reason::Expired | Reason::Overwritten | Reason::CannotRead => false,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::Expired => formatter.write_str("no heartbeat was confirmed in time"),
            Reason::Evicted { by } => write!(formatter, "evicted by {by}"),
            Reason::Deleted => formatter.write_str("the session object was deleted"),
            Reason::Overwritten => formatter.write_str("the session object was overwritten"),
            Reason::CannotRead => {
                formatter.write_str("a lease could be written but not read for a full ttl")
            }
        }
    }
}

impl Attempt {
    /// Whether this attempt is what was read, and not the write of a copy of this process with the same counter.
    fn is(&self, record: &Record) -> bool {
        self.counter == record.counter && self.nonce == record.nonce
    }
}

/// The last words of a session, for later.
#[derive(Debug, Clone, Hash)]
pub struct Farewell {
    record: Record,
    confirmed: Option<Version>,
    unsettled: Vec<Attempt>,
}

impl Farewell {
    /// Whose they are.
    #[must_use]
    pub fn holder(&self) -> Holder {
        self.record.holder()
    }

    /// What to write over what was found. `None` if that was not written by this very process: a copy of it may live
    /// on, and lead.
    #[must_use]
    pub fn after(&self, found: &Record, version: &Version, nonce: Nonce) -> Option<Record> {
        let is_confirmed = self.confirmed.as_ref() == Some(version);
        let is_ours = is_confirmed || self.unsettled.iter().any(|attempt| attempt.is(found));
        let is_alive = found.state == State::Alive;
        (is_ours && is_alive && found.incarnation == self.record.incarnation).then(|| Record {
            counter: self.record.counter + 1,
            nonce,
            ..self.record.clone()
        })
    }
}

impl Session {
    /// Makes a session that has not joined yet; the first [`Input::Wake`] starts it.
    #[must_use]
    pub fn new(config: Config, holder: &Holder, about: About, now: Now, seed: u64) -> Self {
        let record = Record {
            node: holder.node.clone(),
            incarnation: holder.incarnation,
            counter: 0,
            nonce: Nonce::default(),
            ttl: config.ttl,
            state: State::Alive,
            joined_at: now.wall,
            about: Box::new(about),
        };
        Self {
            random: Random::new(&config, seed),
            config,
            record,
            phase: Phase::Joining,
            confirmed: None,
            unsettled: Vec::new(),
            in_flight: None,
            must_read: false,
            about_changed: false,
            about_is_stored: false,
            is_sparing: false,
            due: now.moment,
            trusted_until: Moment::default(),
            has_said_gone: false,
        }
    }

    /// Whether the process may act on what it holds. Check it at every use, not only by a timer.
    #[must_use]
    pub fn is_trusted(&self, now: Moment) -> bool {
        self.phase == Phase::Alive && now < self.trusted_until
    }

    /// Whether everything that the process says about itself is known to be stored.
    #[must_use]
    pub(crate) fn about_is_stored(&self) -> bool {
        self.about_is_stored
    }

    /// What the next write says; its counter is the last one used.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// How this session says, or said, that it is gone: all its work has ended. Its successor may say so again, if it
    /// is not known whether that was stored. `None` if another process has written in its name.
    #[must_use]
    pub fn farewell(&self) -> Option<Farewell> {
        let is_lost = matches!(self.phase, Phase::Over { can_leave: false });
        (!is_lost && self.record.state == State::Gone).then(|| Farewell {
            record: self.record.clone(),
            confirmed: self.confirmed.clone(),
            unsettled: self.unsettled.clone(),
        })
    }

    /// Whether the store is known to say that this session is gone.
    #[must_use]
    pub fn has_said_gone(&self) -> bool {
        self.has_said_gone
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

    /// Takes an input and returns what to do.
    #[must_use]
    pub fn step(&mut self, at: Now, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        let now = at.moment;
        match input {
            Input::Wake => {}
            Input::Written(written) => self.on_written(now, written, &mut outputs),
            Input::Read(read) => self.on_read(now, read, &mut outputs),
            Input::About(about) => self.on_about(now, about),
            // This counts from the next pause. The current one began with the last heartbeat and stays as it is.
            Input::Spare(is_sparing) => self.is_sparing = is_sparing,
            Input::Blind => self.on_blind(now, &mut outputs),
            Input::Leave => self.on_leave(now, &mut outputs),
            Input::Abandon => self.end(&mut outputs),
        }
        self.on_time(at, &mut outputs);
        outputs
    }

    fn on_about(&mut self, now: Moment, mut about: About) {
        about.lost = self.record.about.lost;
        if *self.record.about != about {
            *self.record.about = about;
            self.about_is_stored = false;
            self.about_changed = true;
            // Others may wait for what has changed, and the next heartbeat would be late.
            self.due = self.due.min(now);
        }
    }

    fn on_blind(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        // Otherwise there is nothing to do: a process that leaves always says so, and without trust the session is over
        // anyway.
        if self.is_trusted(now) {
            self.over(Reason::CannotRead, outputs);
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
        self.record.about.lost = matches!(self.phase, Phase::Over { .. });
        // Beyond its ttl anyone can evict the session, so there is no use in trying longer.
        self.phase = Phase::Leaving {
            give_up_at: now + self.config.ttl,
        };
        self.due = now;
    }

    fn on_written(&mut self, now: Moment, written: Written, outputs: &mut Vec<Output>) {
        let Some(Flight::Write(attempt)) = self.in_flight.take() else {
            return;
        };
        match written {
            Written::Done(version) => self.confirm(attempt, version, outputs),
            Written::NotApplied => {
                self.unsettled
                    .retain(|other| other.counter != attempt.counter);
                self.due = now + self.random.jitter(self.config.retry());
            }
            // Either may mean that a write of our own was applied. Only reading back tells, so nothing is written
            // before.
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
                // Unless a write has arrived, the heartbeat must still be made.
                self.due = now;
                self.on_own_record(&record, version, outputs);
            }
            // No write was ever confirmed, so the object need not have been deleted: try to create it.
            Read::Missing if self.confirmed.is_none() => self.due = now,
            Read::Missing => self.over(Reason::Deleted, outputs),
            // A read for settling is never conditional, so `Unchanged` is as wrong as anything else.
            Read::Found { .. } | Read::Unreadable { .. } | Read::Unchanged { .. } => {
                self.over(Reason::Overwritten, outputs);
            }
        }
        self.must_read = false;
    }

    /// Takes a record of this very incarnation that was read back.
    fn on_own_record(&mut self, record: &Record, version: Version, outputs: &mut Vec<Output>) {
        let is_confirmed = self
            .confirmed
            .as_ref()
            .is_some_and(|confirmed| *confirmed == version);
        let landed = self
            .unsettled
            .iter()
            .find(|attempt| attempt.is(record))
            .copied();
        match (&record.state, landed) {
            (State::Evicted { by }, _) => self.over(Reason::Evicted { by: by.clone() }, outputs),
            (_, Some(attempt)) => self.confirm(attempt, version, outputs),
            // No write has arrived yet, though one still may.
            (State::Alive, None) if is_confirmed => {}
            (State::Alive | State::Gone, None) => self.over(Reason::Overwritten, outputs),
        }
    }

    /// A write is known to have been applied. Whatever else was under way expected an older version and can no longer
    /// be applied.
    fn confirm(&mut self, attempt: Attempt, version: Version, outputs: &mut Vec<Output>) {
        self.confirmed = Some(version);
        self.unsettled.clear();
        // The write that arrived may be an earlier attempt, which said something else.
        self.about_is_stored |= attempt.counter == self.record.counter && !self.about_changed;
        match self.phase {
            Phase::Joining | Phase::Alive => {
                self.phase = Phase::Alive;
                // From before the write was sent. Observers count from when they see it, which is later, and they wait
                // a whole ttl: the margin is all that clocks may differ by.
                self.trusted_until = self
                    .trusted_until
                    .max(attempt.started + self.config.trust());
                let pause = if self.about_changed {
                    Duration::ZERO
                } else if self.is_sparing {
                    self.config.heartbeat_max()
                } else {
                    self.config.heartbeat
                };
                self.due = attempt.started + self.random.jitter(pause);
                outputs.push(Output::Trusted {
                    until: self.trusted_until,
                });
            }
            // The write that arrived may be a heartbeat from before leaving.
            Phase::Leaving { .. } if attempt.says_gone => {
                self.has_said_gone = true;
                self.end(outputs);
            }
            Phase::Leaving { .. } | Phase::Over { .. } | Phase::Left => {}
        }
    }

    /// Does what is due.
    fn on_time(&mut self, at: Now, outputs: &mut Vec<Output>) {
        let now = at.moment;
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
        // Never the same bytes twice, applied or not: reading back must show which attempt was applied.
        self.record.counter += 1;
        self.record.nonce = at.nonce;
        let attempt = Attempt {
            counter: self.record.counter,
            nonce: self.record.nonce,
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
                // Only after these can our session still be in the store.
                let can_leave = matches!(reason, Reason::Expired | Reason::CannotRead);
                self.phase = Phase::Over { can_leave };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, NodeId, Wall};

    fn at(seconds: u64, nonce: u128) -> Now {
        Now {
            moment: Moment::default() + Duration::from_secs(seconds),
            wall: Wall(0),
            nonce: Nonce(nonce),
        }
    }

    #[test]
    fn who_lost_its_session_did_not_leave_by_itself() {
        let config = Config::default();
        let holder = Holder {
            node: NodeId::new("a").unwrap(),
            incarnation: Incarnation(1),
            ttl: config.ttl,
        };
        for is_cut_off in [false, true] {
            let about = About::default();
            let mut session = Session::new(config.clone(), &holder, about, at(0, 1), 0);
            let _ = session.step(at(0, 1), Input::Wake);
            let version = Version::new("1");
            let _ = session.step(at(0, 2), Input::Written(Written::Done(version)));
            let leaves_at = if is_cut_off { 3600 } else { 1 };
            let _ = session.step(at(leaves_at, 3), Input::Wake);
            let _ = session.step(at(leaves_at, 4), Input::Leave);
            let gone = session.record();
            assert_eq!((&gone.state, gone.about.lost), (&State::Gone, is_cut_off));
        }
    }

    /// When writes run out, heartbeats become as rare as the ttl allows, and often again when they do not.
    #[test]
    fn who_spares_renews_as_rarely_as_is_safe() {
        let config = Config::default();
        let holder = Holder {
            node: NodeId::new("a").unwrap(),
            incarnation: Incarnation(1),
            ttl: config.ttl,
        };
        let mut session = Session::new(config.clone(), &holder, About::default(), at(0, 1), 0);
        let mut now = 0;
        for (turn, (spares, usual)) in [
            (false, config.heartbeat),
            (true, config.heartbeat_max()),
            (false, config.heartbeat),
        ]
        .into_iter()
        .enumerate()
        {
            let nonce = 10 * (turn as u128 + 1);
            let _ = session.step(at(now, nonce), Input::Spare(spares));
            let _ = session.step(at(now, nonce + 1), Input::Wake);
            let version = Version::new(turn.to_string());
            let _ = session.step(at(now, nonce + 2), Input::Written(Written::Done(version)));
            let renewed = at(now, 0).moment;
            let due = session.due;
            // Waits are shortened by up to a fifth.
            assert!(
                due <= renewed + usual && due >= renewed + usual * 4 / 5,
                "{turn}"
            );
            // A slow answer to that heartbeat still comes before trust ends.
            assert!(session.is_trusted(due + config.request_timeout));
            now += 5;
        }
    }

    #[test]
    fn last_words_replace_no_write_of_a_copy() {
        let config = Config::default();
        let holder = Holder {
            node: NodeId::new("a").unwrap(),
            incarnation: Incarnation(1),
            ttl: config.ttl,
        };
        let mut session = Session::new(config, &holder, About::default(), at(0, 1), 0);
        let _ = session.step(at(0, 1), Input::Wake);
        let joined = session.record().clone();
        let version = Version::new("1");
        let _ = session.step(at(0, 2), Input::Written(Written::Done(version.clone())));
        assert!(session.farewell().is_none(), "it is there");
        let _ = session.step(at(1, 3), Input::Leave);
        let gone = session.record().clone();
        let _ = session.step(at(1, 4), Input::Written(Written::Unknown));

        let words = session.farewell().unwrap();
        let after = words.after(&joined, &version, Nonce(9)).unwrap();
        assert_eq!((after.state, after.nonce), (State::Gone, Nonce(9)));
        let other = Version::new("2");
        assert_eq!(words.after(&gone, &other, Nonce(9)), None, "it was heard");
        let copied = Record {
            counter: gone.counter,
            nonce: Nonce(7),
            ..joined
        };
        assert_eq!(words.after(&copied, &other, Nonce(9)), None);
    }
}
