//! The model of one job, as clients see it: the possible answers of each call in each state.
//!
//! Changes over time are not calls and may happen at any moment: a lease runs out, a finished job is deleted. Other
//! checks cover their exact times. A claim whose answer was lost may have claimed any job: so if there was one, a job
//! may be running without its worker knowing.

use crate::Model;

/// The name of a claim (its token) or of a worker.
pub type Name = String;

/// What may happen to the job besides the calls that name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Job {
    /// Some claims lost their answers, so it is unknown which jobs they got.
    pub claims_are_lost: bool,
    /// A schedule creates it, not a call.
    pub is_scheduled: bool,
}

/// The state of a job, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    phase: Phase,
    /// The claim that was ended last, and how.
    ended: Option<(Name, End)>,
}

impl State {
    /// There was never such a job.
    pub const ABSENT: Self = Self {
        phase: Phase::Absent,
        ended: None,
    };

    fn entered(self, phase: Phase) -> Self {
        Self { phase, ..self }
    }
}

/// The phase of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    /// There was never such a job.
    Absent,
    /// It waits for its time, for its group, or for a worker.
    Waiting,
    /// A worker has claimed it.
    Running {
        /// The claim and its worker; `None` if unknown.
        by: Option<(Name, Name)>,
        /// Whether cancellation was requested.
        is_cancelled: bool,
    },
    /// It has ended.
    Finished(Ending),
    /// It was deleted; its id may be remembered for a while.
    Gone,
}

/// How a job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// With success.
    Completed,
    /// Its last attempt failed.
    Dead,
    /// It was cancelled.
    Cancelled,
}

/// A call about the job with its answer; `None` if the answer was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// It was submitted.
    Submit(Option<Submitted>),
    /// This worker got it by this claim.
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
        /// How it was ended.
        end: End,
        /// Whether the claim held.
        held: Option<bool>,
    },
    /// A cancellation.
    Cancel(Option<Cancelled>),
    /// A retry: run again, or sooner.
    Retry(Option<bool>),
    /// A deletion.
    Forget(Option<bool>),
    /// A read.
    Read(Seen),
}

/// The answer to a submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// It is new.
    Created,
    /// It was already there.
    Known,
    /// It is there, whether new or already there before: a client that sends a submit again cannot tell.
    There,
    /// It is not there: there was no room, or another job has its unique key.
    Refused,
}

/// How a worker ends a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// With success.
    Complete,
    /// Without success.
    Fail,
    /// The claim is undone.
    Release,
}

/// The answer to a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It is cancelled.
    Done,
    /// It is running, and its worker will be told.
    Requested,
    /// Nothing was done: it has ended, or does not exist.
    Refused,
}

/// What a read shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// No such job, or only what is left of its id.
    Nothing,
    /// It waits.
    Waiting,
    /// This worker runs it.
    Running(Name),
    /// It has ended.
    Finished(Ending),
}

impl Model for Job {
    type State = State;
    type Call = Call;

    fn after(&self, state: &State, call: &Call) -> Vec<State> {
        match call {
            Call::End { token, end, held } => end_claim(state, token, *end, *held),
            call => {
                let phases = other(&state.phase, call).into_iter();
                phases.map(|phase| state.clone().entered(phase)).collect()
            }
        }
    }

    fn settles(&self, state: &State) -> Vec<State> {
        let phases = self.settled(&state.phase).into_iter();
        phases.map(|phase| state.clone().entered(phase)).collect()
    }
}

/// The phases after a call that does not end a claim.
fn other(state: &Phase, call: &Call) -> Vec<Phase> {
    match call {
        Call::Submit(answer) => submit(state, *answer),
        Call::Claim { token, worker } => match state {
            Phase::Waiting => vec![Phase::Running {
                by: Some((token.clone(), worker.clone())),
                is_cancelled: false,
            }],
            _ => Vec::new(),
        },
        Call::End { .. } => Vec::new(),
        Call::Cancel(answer) => cancel(state, *answer),
        Call::Retry(done) => match state {
            Phase::Waiting | Phase::Finished(Ending::Dead | Ending::Cancelled)
                if *done != Some(false) =>
            {
                vec![Phase::Waiting]
            }
            // Another job holds the unique key, or the job already waits for its turn.
            _ if *done != Some(true) => vec![state.clone()],
            _ => Vec::new(),
        },
        Call::Forget(done) => match (state, done) {
            (Phase::Finished(_) | Phase::Gone, Some(true) | None) => vec![Phase::Gone],
            (Phase::Finished(_), Some(false)) | (_, Some(true)) => Vec::new(),
            (_, Some(false) | None) => vec![state.clone()],
        },
        Call::Read(seen) => match (seen, state) {
            (Seen::Nothing, Phase::Absent | Phase::Gone) | (Seen::Waiting, Phase::Waiting) => {
                vec![state.clone()]
            }
            (Seen::Running(worker), Phase::Running { by, .. })
                if by.as_ref().is_none_or(|(_, holder)| holder == worker) =>
            {
                vec![state.clone()]
            }
            (Seen::Finished(seen), Phase::Finished(ending)) if seen == ending => {
                vec![state.clone()]
            }
            _ => Vec::new(),
        },
    }
}

impl Job {
    /// The phases that a job can change to over time.
    fn settled(&self, state: &Phase) -> Vec<Phase> {
        match state {
            Phase::Absent if self.is_scheduled => vec![Phase::Waiting],
            Phase::Waiting if self.claims_are_lost => vec![Phase::Running {
                by: None,
                is_cancelled: false,
            }],
            Phase::Running { is_cancelled, .. } => {
                if *is_cancelled {
                    vec![Phase::Finished(Ending::Cancelled)]
                } else {
                    vec![Phase::Waiting, Phase::Finished(Ending::Dead)]
                }
            }
            Phase::Finished(_) => vec![Phase::Gone],
            Phase::Absent | Phase::Waiting | Phase::Gone => Vec::new(),
        }
    }
}

fn submit(state: &Phase, answer: Option<Submitted>) -> Vec<Phase> {
    match (state, answer) {
        (Phase::Absent | Phase::Gone, Some(Submitted::Created)) => vec![Phase::Waiting],
        (Phase::Absent | Phase::Gone, Some(Submitted::Refused)) => vec![state.clone()],
        (Phase::Absent, Some(Submitted::Known)) | (_, Some(Submitted::Created)) => Vec::new(),
        (Phase::Absent | Phase::Gone, Some(Submitted::There)) => vec![Phase::Waiting],
        (_, Some(Submitted::Known | Submitted::There)) => vec![state.clone()],
        // A job that already exists is not refused.
        (_, Some(Submitted::Refused)) => Vec::new(),
        (Phase::Absent | Phase::Gone, None) => vec![state.clone(), Phase::Waiting],
        (_, None) => vec![state.clone()],
    }
}

fn end_claim(state: &State, token: &str, end: End, held: Option<bool>) -> Vec<State> {
    let Phase::Running {
        by: Some((by, _)),
        is_cancelled,
    } = &state.phase
    else {
        return told_again(state, token, end, held);
    };
    if by != token {
        return told_again(state, token, end, held);
    }
    if held == Some(false) {
        return Vec::new();
    }
    let phases = match end {
        End::Complete => vec![Phase::Finished(Ending::Completed)],
        _ if *is_cancelled => vec![Phase::Finished(Ending::Cancelled)],
        End::Fail => vec![Phase::Waiting, Phase::Finished(Ending::Dead)],
        End::Release => vec![Phase::Waiting],
    };
    let ended = Some((token.to_owned(), end));
    let after = phases.into_iter().map(|phase| State {
        phase,
        ended: ended.clone(),
    });
    after.collect()
}

/// An end of a claim that does not hold the job. The end of the claim that was ended last may get its answer again, if
/// the broker remembers it.
fn told_again(state: &State, token: &str, end: End, held: Option<bool>) -> Vec<State> {
    let is_last = |(ended, how): &(Name, End)| ended == token && *how == end;
    if held == Some(true) && !state.ended.as_ref().is_some_and(is_last) {
        return Vec::new();
    }
    vec![state.clone()]
}

fn cancel(state: &Phase, answer: Option<Cancelled>) -> Vec<Phase> {
    let (after, told) = match state {
        Phase::Waiting => (Phase::Finished(Ending::Cancelled), Cancelled::Done),
        Phase::Running { by, .. } => {
            let by = by.clone();
            let is_cancelled = true;
            (Phase::Running { by, is_cancelled }, Cancelled::Requested)
        }
        _ => (state.clone(), Cancelled::Refused),
    };
    if answer.is_none_or(|answer| answer == told) {
        vec![after]
    } else {
        Vec::new()
    }
}
