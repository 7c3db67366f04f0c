//! One job, as its clients can see it: what each call may be answered in each state.
//!
//! What time does is not a call, and may happen at any moment: a lease runs out, a finished job is forgotten. When exactly is
//! for other checks. A claim whose answer was lost may have been given any job: so if there was one, a job may be
//! with a worker that does not know it.

use crate::Model;

/// A token of a claim, and a worker, by their names.
pub type Name = String;

/// What may happen to the job beside the calls that name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Job {
    /// Claims were lost, so that nobody knows which jobs they were given.
    pub claims_are_lost: bool,
    /// A schedule makes it, not a call.
    pub is_scheduled: bool,
}

/// Where a job is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum State {
    /// There was never such a job.
    Absent,
    /// It waits: for its time, for its group, or for a worker.
    Waiting,
    /// It is with a worker.
    Running {
        /// By which claim; none if that is not known.
        by: Option<(Name, Name)>,
        /// Whether it is to be given up.
        is_cancelled: bool,
    },
    /// It has ended.
    Finished(Ending),
    /// It was forgotten; its id may be known for a while.
    Gone,
}

/// How a job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// With success.
    Completed,
    /// Its last attempt failed.
    Dead,
    /// Someone gave it up.
    Cancelled,
}

/// A call about the job, with what it was answered; none if the answer was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// It was submitted.
    Submit(Option<Submitted>),
    /// It was handed out by this claim to this worker.
    Claim {
        /// The claim.
        token: Name,
        /// The worker.
        worker: Name,
    },
    /// A claim was ended.
    End {
        /// The claim.
        token: Name,
        /// In which way.
        end: End,
        /// Whether the claim held.
        held: Option<bool>,
    },
    /// It was given up.
    Cancel(Option<Cancelled>),
    /// It was to run again, or sooner.
    Retry(Option<bool>),
    /// It was to be forgotten.
    Forget(Option<bool>),
    /// Someone looked.
    Read(Seen),
}

/// How a submit was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// It is new.
    Created,
    /// It was there.
    Known,
    /// It is not there: there is no room, or another job has its unique key.
    Refused,
}

/// How a worker ends a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With success.
    Complete,
    /// Without.
    Fail,
    /// As if it had never been made.
    Release,
}

/// How a cancellation was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It is given up.
    Done,
    /// It runs, and its worker will be told.
    Requested,
    /// Nothing was done: it has ended, or is not there.
    Refused,
}

/// What a read shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// No such job, or only what is left of its id.
    Nothing,
    /// It waits.
    Waiting,
    /// It is with this worker.
    Running(Name),
    /// It has ended.
    Finished(Ending),
}

impl Model for Job {
    type State = State;
    type Call = Call;

    fn after(&self, state: &State, call: &Call) -> Vec<State> {
        match call {
            Call::Submit(answer) => submit(state, *answer),
            Call::Claim { token, worker } => match state {
                State::Waiting => vec![State::Running {
                    by: Some((token.clone(), worker.clone())),
                    is_cancelled: false,
                }],
                _ => Vec::new(),
            },
            Call::End { token, end, held } => end_claim(state, token, *end, *held),
            Call::Cancel(answer) => cancel(state, *answer),
            Call::Retry(done) => match state {
                State::Waiting | State::Finished(Ending::Dead | Ending::Cancelled)
                    if *done != Some(false) =>
                {
                    vec![State::Waiting]
                }
                // A unique key that another holds, or work that waits for its turn already.
                _ if *done != Some(true) => vec![state.clone()],
                _ => Vec::new(),
            },
            Call::Forget(done) => match (state, done) {
                (State::Finished(_) | State::Gone, Some(true) | None) => vec![State::Gone],
                (State::Finished(_), Some(false)) | (_, Some(true)) => Vec::new(),
                (_, Some(false) | None) => vec![state.clone()],
            },
            Call::Read(seen) => match (seen, state) {
                (Seen::Nothing, State::Absent | State::Gone) | (Seen::Waiting, State::Waiting) => {
                    vec![state.clone()]
                }
                (Seen::Running(worker), State::Running { by, .. })
                    if by.as_ref().is_none_or(|(_, holder)| holder == worker) =>
                {
                    vec![state.clone()]
                }
                (Seen::Finished(seen), State::Finished(ending)) if seen == ending => {
                    vec![state.clone()]
                }
                _ => Vec::new(),
            },
        }
    }

    fn settles(&self, state: &State) -> Vec<State> {
        match state {
            State::Absent if self.is_scheduled => vec![State::Waiting],
            State::Waiting if self.claims_are_lost => vec![State::Running {
                by: None,
                is_cancelled: false,
            }],
            State::Running { is_cancelled, .. } => {
                if *is_cancelled {
                    vec![State::Finished(Ending::Cancelled)]
                } else {
                    vec![State::Waiting, State::Finished(Ending::Dead)]
                }
            }
            State::Finished(_) => vec![State::Gone],
            State::Absent | State::Waiting | State::Gone => Vec::new(),
        }
    }
}

fn submit(state: &State, answer: Option<Submitted>) -> Vec<State> {
    match (state, answer) {
        (State::Absent | State::Gone, Some(Submitted::Created)) => vec![State::Waiting],
        (State::Absent | State::Gone, Some(Submitted::Refused)) => vec![state.clone()],
        (State::Absent, Some(Submitted::Known)) | (_, Some(Submitted::Created)) => Vec::new(),
        (_, Some(Submitted::Known)) => vec![state.clone()],
        // Who is known is not refused.
        (_, Some(Submitted::Refused)) => Vec::new(),
        (State::Absent | State::Gone, None) => vec![state.clone(), State::Waiting],
        (_, None) => vec![state.clone()],
    }
}

fn end_claim(state: &State, token: &str, end: End, held: Option<bool>) -> Vec<State> {
    let is_held = match state {
        State::Running {
            by: Some((by, _)), ..
        } => by == token,
        _ => false,
    };
    if held.is_some_and(|held| held != is_held) {
        return Vec::new();
    }
    if !is_held {
        return vec![state.clone()];
    }
    let is_cancelled = matches!(
        state,
        State::Running {
            is_cancelled: true,
            ..
        }
    );
    match end {
        End::Complete => vec![State::Finished(Ending::Completed)],
        _ if is_cancelled => vec![State::Finished(Ending::Cancelled)],
        End::Fail => vec![State::Waiting, State::Finished(Ending::Dead)],
        End::Release => vec![State::Waiting],
    }
}

fn cancel(state: &State, answer: Option<Cancelled>) -> Vec<State> {
    let (after, told) = match state {
        State::Waiting => (State::Finished(Ending::Cancelled), Cancelled::Done),
        State::Running { by, .. } => {
            let by = by.clone();
            let is_cancelled = true;
            (State::Running { by, is_cancelled }, Cancelled::Requested)
        }
        _ => (state.clone(), Cancelled::Refused),
    };
    if answer.is_none_or(|answer| answer == told) {
        vec![after]
    } else {
        Vec::new()
    }
}
