//! Answers: what came of a command, for the caller that asked. Each command has its own kind, and each item of a
//! batch its own answer, in order.
//!
//! What happened beside it, to this job or to others, is told by [`Event`](super::Event)s.

use tenure_api::{EndedAs, LostCode, LostReason, Outcome, Submitted};

use super::{Claimed, State};
use crate::JobId;

/// What came of a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// To [`Action::Submit`](super::Action::Submit).
    Submitted(Vec<Submitted>),
    /// To [`Action::Claim`](super::Action::Claim): in the order in which they are to run; possibly none.
    Claimed(Vec<Claimed>),
    /// To [`Action::Complete`](super::Action::Complete).
    Completed(Vec<Ended<()>>),
    /// To [`Action::Fail`](super::Action::Fail) and [`Action::Expire`](super::Action::Expire).
    Failed(Vec<Ended<Failed>>),
    /// To [`Action::Release`](super::Action::Release).
    Released(Vec<Ended<Released>>),
    /// To [`Action::Cancel`](super::Action::Cancel).
    Cancelled(Vec<Changed<Cancelled>>),
    /// To [`Action::Retry`](super::Action::Retry).
    Retried(Vec<Changed<()>>),
    /// To [`Action::Move`](super::Action::Move).
    Moved(Vec<Changed<()>>),
    /// To [`Action::Forget`](super::Action::Forget).
    Forgotten(Vec<Changed<()>>),
    /// To [`Action::SetSchedule`](super::Action::SetSchedule): when it next fires.
    ScheduleSet(Option<u64>),
    /// To [`Action::DeleteSchedule`](super::Action::DeleteSchedule): whether it was there.
    ScheduleDeleted(bool),
    /// To [`Action::PauseSchedule`](super::Action::PauseSchedule): whether it is there.
    SchedulePaused(bool),
    /// To [`Action::ResumeSchedule`](super::Action::ResumeSchedule): whether it is the version that was meant. If not,
    /// nothing was done.
    ScheduleResumed(bool),
    /// To what is always done, and has nothing to say.
    Done,
}

macro_rules! answers {
    ($($method:ident: $kind:ident($answer:ty);)*) => {
        /// What the caller knows its command to be answered with.
        ///
        /// # Panics
        ///
        /// If it is the answer to another command: that is a mistake of the program.
        impl Answer {$(
            #[doc = concat!("What [`Answer::", stringify!($kind), "`] has.")]
            #[must_use]
            pub fn $method(self) -> $answer {
                match self {
                    Answer::$kind(answer) => answer,
                    other => panic!("asked for {}, answered {other:?}", stringify!($method)),
                }
            }
        )*}
    };
}

answers! {
    submitted: Submitted(Vec<Submitted>);
    claimed: Claimed(Vec<Claimed>);
    completed: Completed(Vec<Ended<()>>);
    failed: Failed(Vec<Ended<Failed>>);
    released: Released(Vec<Ended<Released>>);
    cancelled: Cancelled(Vec<Changed<Cancelled>>);
    retried: Retried(Vec<Changed<()>>);
    moved: Moved(Vec<Changed<()>>);
    forgotten: Forgotten(Vec<Changed<()>>);
    schedule_set: ScheduleSet(Option<u64>);
    schedule_deleted: ScheduleDeleted(bool);
    schedule_paused: SchedulePaused(bool);
    schedule_resumed: ScheduleResumed(bool);
}

/// One item of a batch: what was done to the job, or why nothing was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item<T, E> {
    /// The job.
    pub id: JobId,
    /// What was done, or why nothing was.
    pub outcome: Result<T, E>,
}

/// A claim that was to end.
pub type Ended<T> = Item<T, Lost>;

/// A job that was to be changed by hand.
pub type Changed<T> = Item<T, Refusal>;

/// What a failed attempt leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// The next attempt may start at this time.
    Again {
        /// In milliseconds since 1970.
        run_at: u64,
    },
    /// It was the last attempt.
    Died,
    /// The job was to be cancelled, and is now.
    Cancelled,
}

/// What a claim leaves that was handed back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The job waits as before: the attempt does not count.
    Ready,
    /// The job was to be cancelled, and is now.
    Cancelled,
}

/// How far a job is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It is.
    Done,
    /// It runs; its worker will be told.
    Requested,
}

/// Why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such job, or it was forgotten.
    NotFound,
    /// A job in this state cannot be cancelled, retried, moved or forgotten.
    State {
        /// Its state.
        state: State,
    },
    /// To a retry: another job holds its unique key now. To a move: another job of that queue does.
    UniqueKey {
        /// That job.
        existing: JobId,
    },
}

/// Why a token holds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// There is no such job, or it was forgotten.
    NotFound,
    /// The lease ran out. The attempt counts as failed.
    Expired,
    /// The job is not running: it waits for another attempt, or has finished.
    NotRunning {
        /// Its state.
        state: State,
    },
    /// Another claim holds the job.
    Superseded {
        /// Its attempt.
        attempt: u32,
    },
    /// The claim was ended before, in another way.
    Ended {
        /// In this one.
        how: EndedAs,
    },
}

impl From<Lost> for LostReason {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::NotFound => LostCode::NotFound.into(),
            Lost::Expired => LostCode::Expired.into(),
            Lost::NotRunning { state } => Self {
                state: Some(state),
                ..LostCode::NotRunning.into()
            },
            Lost::Superseded { attempt } => Self {
                attempt: Some(attempt),
                ..LostCode::Superseded.into()
            },
            Lost::Ended { how } => Self {
                ended_as: Some(how),
                ..LostCode::Ended.into()
            },
        }
    }
}

impl From<Ended<()>> for Outcome {
    fn from(Item { id, outcome }: Ended<()>) -> Self {
        match outcome {
            Ok(()) => Outcome::ok(id),
            Err(lost) => Outcome::lost(id, lost),
        }
    }
}

impl From<Ended<Failed>> for Outcome {
    fn from(Item { id, outcome }: Ended<Failed>) -> Self {
        match outcome {
            Ok(Failed::Again { .. } | Failed::Died) => Outcome::ok(id),
            Ok(Failed::Cancelled) => Outcome::cancelled(id),
            Err(lost) => Outcome::lost(id, lost),
        }
    }
}

impl From<Ended<Released>> for Outcome {
    fn from(Item { id, outcome }: Ended<Released>) -> Self {
        match outcome {
            Ok(Released::Ready) => Outcome::ok(id),
            Ok(Released::Cancelled) => Outcome::cancelled(id),
            Err(lost) => Outcome::lost(id, lost),
        }
    }
}
