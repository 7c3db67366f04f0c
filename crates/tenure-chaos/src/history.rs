//! What the clients saw: every call with the moments before it was sent and after it was answered.
//!
//! Whatever the brokers did for a call, they did between those two moments, or, if the answer was lost,
//! at any time after the first. All clients live in this process, so one clock tells all moments.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_client::Token;
use tenure_linear::job::Seen;

/// A time since the run began.
pub type Moment = Duration;

/// When a call was sent and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Before it was sent.
    pub invoked: Moment,
    /// After it was answered, or given up.
    pub answered: Moment,
}

/// One call, or one fault.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Who made it.
    pub actor: String,
    /// When.
    pub span: Span,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A job was submitted.
    Submit {
        /// The client's own id.
        id: String,
        /// The group, if it has one.
        group: Option<String>,
        /// The unique key, if it has one.
        key: Option<String>,
        /// How it went.
        outcome: Submit,
    },
    /// A job was handed out.
    Claim {
        /// The job.
        id: String,
        /// The attempt.
        attempt: u32,
        /// The token.
        token: Token,
        /// The lease.
        lease: Duration,
    },
    /// A claim was kept.
    Heartbeat {
        /// The job.
        id: String,
        /// The token.
        token: Token,
        /// How it went.
        outcome: Outcome,
    },
    /// A claim was ended.
    End {
        /// The job.
        id: String,
        /// The attempt.
        attempt: u32,
        /// The token.
        token: Token,
        /// With success?
        is_success: bool,
        /// How it went.
        outcome: Outcome,
    },
    /// Somebody looked at a job.
    Read {
        /// The job.
        id: String,
        /// What was there.
        seen: Seen,
    },
    /// Something was broken, from the first moment to the second.
    Fault(String),
}

/// How a submit went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submit {
    /// It is there.
    Acknowledged,
    /// This other job has its unique key.
    KeyTaken(String),
    /// The client says that nothing was done.
    NotDone,
    /// The answer was lost.
    Unknown,
    /// An answer that must not be.
    Wrong(String),
}

/// How a call about a claim went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As asked.
    Done,
    /// The claim did not hold.
    Lost,
    /// The client says that nothing was done.
    NotDone,
    /// The answer was lost.
    Unknown,
}

/// A job as the broker lists it in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its state.
    pub state: String,
    /// The last attempt.
    pub attempt: u32,
}

/// Everything that can be checked.
#[derive(Debug, Default)]
pub struct Record {
    /// In the order in which the calls ended.
    pub events: Vec<Event>,
    /// What the clients saw and at once knew to be wrong.
    pub broken: Vec<String>,
    /// Every job of the broker, in the end.
    pub listed: BTreeMap<String, Listed>,
}

/// Where the clients write, all at once.
#[derive(Debug)]
pub struct History {
    started: Instant,
    record: Mutex<Record>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            record: Mutex::default(),
        }
    }
}

impl History {
    /// The time since the run began.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.started.elapsed()
    }

    /// A call that was sent at `invoked` has ended now.
    pub fn add(&self, actor: &str, invoked: Moment, what: impl IntoIterator<Item = What>) {
        let answered = self.now();
        let span = Span { invoked, answered };
        let actor = actor.to_owned();
        self.lock()
            .events
            .extend(what.into_iter().map(|what| Event {
                actor: actor.clone(),
                span,
                what,
            }));
    }

    /// Something that must not be was seen.
    pub fn broken(&self, what: String) {
        self.lock().broken.push(what);
    }

    /// How many completions were accepted so far.
    #[must_use]
    pub fn completed(&self) -> usize {
        let is_completion = |event: &&Event| {
            matches!(
                event.what,
                What::End {
                    is_success: true,
                    outcome: Outcome::Done,
                    ..
                }
            )
        };
        self.lock().events.iter().filter(is_completion).count()
    }

    /// What was written so far; nothing is left behind.
    #[must_use]
    pub fn take(&self) -> Record {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    /// The calls about a job, and the faults since shortly before the first of them.
    #[must_use]
    pub fn about(&self, id: &str) -> String {
        let mut about: Vec<&Event> = self.events.iter().collect();
        about.retain(|event| event.what.job() == Some(id));
        let first = about.iter().map(|event| event.span.invoked).min();
        let last = about.iter().map(|event| event.span.answered).max();
        if let (Some(first), Some(last)) = (first, last) {
            about.extend(self.events.iter().filter(|event| {
                matches!(event.what, What::Fault(_))
                    && event.span.answered + Duration::from_secs(5) >= first
                    && event.span.invoked <= last
            }));
        }
        about.sort_by_key(|event| event.span.invoked);
        about.iter().map(|event| format!("    {event}\n")).collect()
    }
}

impl What {
    /// The job it is about.
    #[must_use]
    pub fn job(&self) -> Option<&str> {
        match self {
            What::Submit { id, .. }
            | What::Claim { id, .. }
            | What::Heartbeat { id, .. }
            | What::End { id, .. }
            | What::Read { id, .. } => Some(id),
            What::Fault(_) => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.span.invoked, self.span.answered);
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        write!(formatter, "{from:9.3} to {to:9.3} {}: ", self.actor)?;
        match &self.what {
            What::Submit { id, outcome, .. } => write!(formatter, "submit {id}: {outcome:?}"),
            What::Claim {
                id, attempt, token, ..
            } => {
                write!(formatter, "claim {id}: attempt {attempt}, token {token}")
            }
            What::Heartbeat { id, token, outcome } => {
                write!(formatter, "heartbeat {id}, token {token}: {outcome:?}")
            }
            What::End {
                id,
                attempt,
                token,
                is_success,
                outcome,
            } => {
                let word = if *is_success { "complete" } else { "fail" };
                write!(
                    formatter,
                    "{word} {id}, attempt {attempt}, token {token}: {outcome:?}"
                )
            }
            What::Read { id, seen } => write!(formatter, "read {id}: {seen:?}"),
            What::Fault(fault) => formatter.write_str(fault),
        }
    }
}
