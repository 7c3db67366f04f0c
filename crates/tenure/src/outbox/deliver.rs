//! Where rows go: into the queue, or to a handler of one's own.

use std::any::Any;
use std::collections::BTreeSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use tenure_api::LostReason;
use tenure_core::cluster::Generation;
use tenure_core::queue::{Completion, Ended, Submission, SubmitStatus, Submitted};
use tokio::time::Instant;

use super::row::Row;
use crate::queue::{self, Queue};

/// A fencing token: which relay delivers. A receiver that keeps the highest `takeover` that it has seen of an outbox, and
/// refuses what is lower, is safe from a relay that was paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Token {
    /// Grows with each take-over of the outbox, for as long as its tables exist.
    pub takeover: i64,
    /// The generation of the daemon.
    pub generation: Generation,
}

/// The outcome for a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was delivered, now or before.
    Delivered,
    /// It never can be: it goes to the dead table, and its group goes on without it.
    Refused {
        /// Why.
        error: String,
    },
    /// It could not be, and that is its own fault as far as one can tell: it is tried again later, but not for ever. Its group waits.
    Failed {
        /// Why.
        error: String,
    },
    /// The target could not be reached, or is full. Costs no attempt.
    Unavailable {
        /// Why.
        error: String,
    },
    /// It was not tried, since one before it in its group was not delivered.
    Skipped,
}

/// Where rows go.
pub trait Deliver: Send + Sync + 'static {
    /// How many deliveries are under way at once. With 1, each has rows of all kinds; with more, each has the rows of one group, or
    /// one row that has none.
    fn concurrency(&self) -> usize {
        1
    }

    /// Delivers rows. One outcome per row, in order. Rows of one group stand in their order: when one of them is neither
    /// delivered nor refused, those behind it must not be delivered.
    fn deliver(&self, rows: &[Row], token: Token) -> impl Future<Output = Vec<Outcome>> + Send;

    /// Completes the jobs of rows that ask for it (see [`Row::completes`]), which [`deliver`](Deliver::deliver) is never given. One
    /// outcome per row, in order; none of them has a group. What is not the queue refuses them all, and need not say so.
    fn complete(&self, rows: &[Row], _token: Token) -> impl Future<Output = Vec<Outcome>> + Send {
        let refused = Outcome::Refused {
            error: "completes a job, and this outbox is not delivered to a queue".to_owned(),
        };
        std::future::ready(vec![refused; rows.len()])
    }
}

/// Why a handler did not deliver a row. Any error becomes one with `?`: the row has failed, and is tried again, but not for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(Outcome);

impl<E: std::fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.to_string();
        Self(Outcome::Failed { error })
    }
}

impl Failure {
    /// Trying again is of no use: the row goes to the dead table.
    pub fn permanent(error: impl std::fmt::Display) -> Self {
        let error = error.to_string();
        Self(Outcome::Refused { error })
    }

    /// The target is away, for every row: this costs no attempt, and nothing is read from the outbox for a while.
    pub fn unavailable(error: impl std::fmt::Display) -> Self {
        let error = error.to_string();
        Self(Outcome::Unavailable { error })
    }
}

/// Takes one row after the other: a broker of messages, an HTTP call, whatever it is to be instead of the queue.
///
/// It is called at least once for each row: again if the relay stops before it could note the delivery. Rows of one group come
/// one after the other.
pub trait Handler: Send + Sync + 'static {
    /// Delivers a row.
    fn handle(&self, row: &Row, token: Token) -> impl Future<Output = Result<(), Failure>> + Send;
}

impl<H: Handler> Handler for Arc<H> {
    async fn handle(&self, row: &Row, token: Token) -> Result<(), Failure> {
        (**self).handle(row, token).await
    }
}

/// A group with many rows is delivered in slices of this length: what was delivered is written down at the end of each, and what waits for
/// a delivery waits for no more.
const SLICE: Duration = Duration::from_secs(1);

/// Delivers each row with a [`Handler`], groups beside each other.
#[derive(Debug, Clone)]
pub struct Each<H> {
    handler: H,
    /// How many groups, and rows without one, are delivered at once.
    pub concurrency: usize,
    /// How long a row may take. Then it has failed.
    pub timeout: Duration,
}

impl<H> Each<H> {
    /// 16 at once, 30 s each.
    pub fn new(handler: H) -> Self {
        Self {
            handler,
            concurrency: 16,
            timeout: Duration::from_secs(30),
        }
    }
}

impl<H: Handler> Deliver for Each<H> {
    fn concurrency(&self) -> usize {
        self.concurrency.max(2)
    }

    async fn deliver(&self, rows: &[Row], token: Token) -> Vec<Outcome> {
        let began = Instant::now();
        let mut outcomes = Vec::with_capacity(rows.len());
        for row in rows {
            let handling = AssertUnwindSafe(self.handler.handle(row, token)).catch_unwind();
            let outcome = match tokio::time::timeout(self.timeout, handling).await {
                Ok(Ok(Ok(()))) => Outcome::Delivered,
                Ok(Ok(Err(Failure(outcome)))) => outcome,
                // It would take the relay down, and again whenever the row is read.
                Ok(Err(panic)) => Outcome::Failed {
                    error: format!("the handler panicked: {}", said(&*panic)),
                },
                Err(_) => Outcome::Failed {
                    error: format!("not delivered within {:?}", self.timeout),
                },
            };
            let goes_on = matches!(outcome, Outcome::Delivered | Outcome::Refused { .. });
            outcomes.push(outcome);
            if !goes_on {
                break;
            }
            if began.elapsed() >= SLICE {
                break;
            }
        }
        outcomes.resize(rows.len(), Outcome::Skipped);
        outcomes
    }
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("nothing is known of why")
}

/// Why a submit was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejected {
    /// The jobs are too many or too large together, or one of them is not valid: sent one by one they show which.
    Together {
        /// Why.
        error: String,
    },
    /// There is no room for the queue or the type of a job. Of several jobs, each is answered instead.
    ForNow {
        /// Why.
        error: String,
    },
    /// Nobody could be asked, or the answer was lost.
    Unavailable {
        /// Why.
        error: String,
    },
}

/// What came of a claim that was to be completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The job is completed, now or before by the same claim.
    Completed,
    /// The claim does not hold any more, and nothing was done: another attempt runs or has run, or the job was cancelled or
    /// deleted.
    Lost {
        /// In which way.
        reason: String,
    },
    /// The queue does not take it: its result is too large, say. The claim stands as it stood.
    Refused {
        /// Why.
        error: String,
    },
}

/// A way to the queue: this process's own, or a client.
pub trait Submit: Send + Sync + 'static {
    /// Enqueues jobs. One answer per job, in order: all that are answered are enqueued, or there was no room for them, and then
    /// none of those behind them in their groups is. After an error any of them may be enqueued, or none. Sending the same again is harmless.
    fn submit(
        &self,
        jobs: Vec<Submission>,
    ) -> impl Future<Output = Result<Vec<Submitted>, Rejected>> + Send;

    /// Completes jobs, by the claims of their workers. One answer per claim, in order. After an error any of them may be
    /// completed, or none. Sending the same again is harmless.
    fn complete(
        &self,
        claims: Vec<Completion>,
    ) -> impl Future<Output = Result<Vec<End>, Rejected>> + Send;
}

impl Submit for Queue {
    async fn submit(&self, jobs: Vec<Submission>) -> Result<Vec<Submitted>, Rejected> {
        Queue::submit(self, jobs)
            .await
            .map_err(|error| rejected(&error))
    }

    async fn complete(&self, claims: Vec<Completion>) -> Result<Vec<End>, Rejected> {
        let ended = Queue::complete(self, claims)
            .await
            .map_err(|error| rejected(&error))?;
        let end = |ended: Ended<()>| match ended.outcome {
            Ok(()) => End::Completed,
            Err(lost) => End::Lost {
                reason: LostReason::from(lost).to_string(),
            },
        };
        Ok(ended.into_iter().map(end).collect())
    }
}

fn rejected(error: &queue::Error) -> Rejected {
    let text = told(error);
    match error {
        queue::Error::Invalid { .. } | queue::Error::TooLarge { .. } => {
            Rejected::Together { error: text }
        }
        queue::Error::Full { .. } => Rejected::ForNow { error: text },
        _ => Rejected::Unavailable { error: text },
    }
}

/// Enqueues rows as jobs, the row's id as the job's id. Whether a time is too far ahead is left to the broker: this host's clock
/// may be wrong, and a row that is refused is dead.
#[derive(Debug, Clone)]
pub struct ToQueue<S = Queue> {
    submit: S,
    limits: tenure_core::queue::Limits,
}

impl<S> ToQueue<S> {
    /// Jobs go this way.
    pub fn new(submit: S) -> Self {
        Self {
            submit,
            limits: tenure_core::queue::Limits::default(),
        }
    }

    /// Refuses what does not fit these limits, without asking.
    #[must_use]
    pub fn with_limits(mut self, limits: tenure_core::queue::Limits) -> Self {
        self.limits = limits;
        self
    }
}

impl<S: Submit> Deliver for ToQueue<S> {
    async fn deliver(&self, rows: &[Row], _token: Token) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::Skipped; rows.len()];
        let mut jobs = Vec::with_capacity(rows.len());
        for (place, row) in rows.iter().enumerate() {
            match &row.job {
                Err(error) => {
                    outcomes[place] = Outcome::Refused {
                        error: error.clone(),
                    };
                }
                Ok(job) => match self.limits.submission(job, job.run_at.unwrap_or(0)) {
                    Err(invalid) => {
                        outcomes[place] = Outcome::Refused {
                            error: invalid.to_string(),
                        };
                    }
                    Ok(()) => jobs.push((place, job.clone())),
                },
            }
        }
        self.submit_in_order(jobs, &mut outcomes).await;
        outcomes
    }

    async fn complete(&self, rows: &[Row], _token: Token) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::Skipped; rows.len()];
        let claims = rows.iter().enumerate();
        let claims = claims.filter_map(|(place, row)| Some((place, row.completes.clone()?)));
        self.complete_all(claims.collect(), &mut outcomes).await;
        outcomes
    }
}

impl<S: Submit> ToQueue<S> {
    /// All at once, and if that cannot be, in halves: so one job costs the others nothing.
    async fn submit_in_order(&self, jobs: Vec<(usize, Submission)>, outcomes: &mut [Outcome]) {
        // The last stands first.
        let mut portions = vec![jobs];
        let mut held = BTreeSet::new();
        let mut without_room = Vec::new();
        while let Some(mut portion) = portions.pop() {
            portion.retain(|(_, job)| job.group.as_ref().is_none_or(|group| !held.contains(group)));
            if portion.is_empty() {
                continue;
            }
            let sent = portion.iter().map(|(_, job)| job.clone()).collect();
            match self.submit.submit(sent).await {
                Ok(answers) => {
                    let is_alone = portion.len() == 1;
                    for ((place, job), answer) in portion.into_iter().zip(answers) {
                        outcomes[place] = outcome(answer.status);
                        if answer.status == SubmitStatus::Full {
                            held.extend(job.group.clone());
                            without_room.extend((!is_alone).then_some((place, job)));
                        }
                    }
                }
                Err(Rejected::Together { .. } | Rejected::ForNow { .. }) if portion.len() > 1 => {
                    let rest = portion.split_off(portion.len() / 2);
                    portions.push(rest);
                    portions.push(portion);
                }
                Err(Rejected::Together { error }) => {
                    outcomes[portion[0].0] = Outcome::Refused { error };
                }
                Err(Rejected::ForNow { error }) => {
                    let (place, job) = &portion[0];
                    outcomes[*place] = Outcome::Failed { error };
                    held.extend(job.group.clone());
                }
                Err(Rejected::Unavailable { error }) => {
                    let rest = portions.into_iter().flatten().chain(portion);
                    for (place, _) in rest {
                        outcomes[place] = Outcome::Unavailable {
                            error: error.clone(),
                        };
                    }
                    return;
                }
            }
        }
        self.submit_alone(without_room, outcomes).await;
    }

    /// All at once, and if that cannot be, in halves: so one that is refused costs the others nothing.
    async fn complete_all(&self, claims: Vec<(usize, Completion)>, outcomes: &mut [Outcome]) {
        let mut portions = vec![claims];
        while let Some(mut portion) = portions.pop() {
            if portion.is_empty() {
                continue;
            }
            let sent = portion.iter().map(|(_, claim)| claim.clone()).collect();
            match self.submit.complete(sent).await {
                Ok(ends) => {
                    for ((place, claim), end) in portion.into_iter().zip(ends) {
                        match end {
                            End::Completed => outcomes[place] = Outcome::Delivered,
                            // The effects are committed, and marked as done: whoever has the job now, or gets it, finds that, and
                            // completes it. Or somebody did not want it any more. There is nothing left to tell.
                            End::Lost { reason } => {
                                tracing::info!(id = %claim.id, reason, "a job was not completed by its outbox");
                                outcomes[place] = Outcome::Delivered;
                            }
                            End::Refused { error } => {
                                portions.extend(refused((place, claim), error, outcomes));
                            }
                        }
                    }
                }
                Err(Rejected::Together { .. } | Rejected::ForNow { .. }) if portion.len() > 1 => {
                    let rest = portion.split_off(portion.len() / 2);
                    portions.push(rest);
                    portions.push(portion);
                }
                Err(Rejected::Together { error }) => {
                    let claim = portion.remove(0);
                    portions.extend(refused(claim, error, outcomes));
                }
                Err(Rejected::ForNow { error }) => {
                    outcomes[portion[0].0] = Outcome::Failed { error };
                }
                Err(Rejected::Unavailable { error }) => {
                    let untold = portions.into_iter().flatten().chain(portion);
                    for (place, _) in untold {
                        outcomes[place] = Outcome::Unavailable {
                            error: error.clone(),
                        };
                    }
                    return;
                }
            }
        }
    }

    /// Among others, a job is not told whether the queue is full, which is nobody's fault and costs no attempt, or there is no room for its
    /// own queue or type: then it has failed, and no other row waits for it. Alone it is told. Once the queue is full, it is so for all.
    async fn submit_alone(&self, jobs: Vec<(usize, Submission)>, outcomes: &mut [Outcome]) {
        let mut held = BTreeSet::new();
        for (place, job) in jobs {
            if job.group.as_ref().is_some_and(|group| held.contains(group)) {
                outcomes[place] = Outcome::Skipped;
                continue;
            }
            let group = job.group.clone();
            outcomes[place] = match self.submit.submit(vec![job]).await {
                Ok(answers) => match answers.first().map(|answer| answer.status) {
                    None | Some(SubmitStatus::Full) => return,
                    Some(status) => outcome(status),
                },
                Err(Rejected::Together { error }) => Outcome::Refused { error },
                Err(Rejected::ForNow { error }) => {
                    held.extend(group);
                    Outcome::Failed { error }
                }
                Err(Rejected::Unavailable { .. }) => return,
            };
        }
    }
}

/// The work was done, and is not done again for the sake of what it returned: a completion whose result is refused is told
/// once more without it.
fn refused(
    (place, claim): (usize, Completion),
    error: String,
    outcomes: &mut [Outcome],
) -> Option<Vec<(usize, Completion)>> {
    if claim.result.is_none() {
        outcomes[place] = Outcome::Refused { error };
        return None;
    }
    tracing::warn!(id = %claim.id, error, "a job is completed without its result, which was refused");
    let without = Completion {
        result: None,
        ..claim
    };
    Some(vec![(place, without)])
}

fn outcome(status: SubmitStatus) -> Outcome {
    match status {
        SubmitStatus::Created | SubmitStatus::Duplicate => Outcome::Delivered,
        SubmitStatus::Conflict => Outcome::Refused {
            error: "a job with this id and other content is in the queue".to_owned(),
        },
        SubmitStatus::Full => Outcome::Unavailable {
            error: "the queue has as many jobs as the settings allow".to_owned(),
        },
    }
}

/// An error and its causes, on one line.
pub(super) fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        // Those of databases repeat their causes.
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}
