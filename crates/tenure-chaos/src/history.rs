//! What the clients saw: every call, with the times just before it was sent and just after it was answered.
//!
//! A call takes effect between those two times or, if the answer was lost, at any time after the first. All clients
//! are in this process, so all times come from one clock.

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
    /// After it was answered, or abandoned.
    pub answered: Moment,
}

/// One call, or one fault.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Who made it.
    pub actor: String,
    /// When it was made.
    pub span: Span,
    /// What was called, and the answer.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A job was submitted.
    Submit {
        /// The client's own id.
        id: String,
        /// Its group, if it has one.
        group: Option<String>,
        /// Its unique key, if it has one.
        key: Option<String>,
        /// The outcome.
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
    /// A claim was renewed.
    Heartbeat {
        /// The job.
        id: String,
        /// The token.
        token: Token,
        /// The outcome.
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
        /// Whether it was a success.
        is_success: bool,
        /// The outcome.
        outcome: Outcome,
    },
    /// A job was read.
    Read {
        /// The job.
        id: String,
        /// What was seen.
        seen: Seen,
    },
    /// A fault, which lasted for the span.
    Fault(String),
}

/// The outcome of a submit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submit {
    /// The job is there.
    Acknowledged,
    /// Another job, this one, has its unique key.
    KeyTaken(String),
    /// The client says that nothing was done.
    NotDone,
    /// The answer was lost.
    Unknown,
    /// An answer that is never correct.
    Wrong(String),
}

/// The outcome of a call about a claim.
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

/// A job in the broker's final listing.
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
    /// Violations that clients noticed at once.
    pub broken: Vec<String>,
    /// Every job in the broker's final listing.
    pub listed: BTreeMap<String, Listed>,
}

/// The recorder, which all clients share.
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

    /// Records a call that was sent at `invoked` and has ended now.
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

    /// Records a violation that was noticed at once.
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

    /// Takes everything that was recorded so far.
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
