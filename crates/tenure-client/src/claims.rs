//! Claims: taken, kept and ended.
//!
//! # When the answer to an end is lost
//!
//! A claim ends once. If the answer to [`Client::complete`], [`Client::fail`] or [`Client::release`] is lost
//! the call is sent again; had the first try been carried out, a broker answers the second as it would have the first. Only
//! if another claim of the job was ended since, or a broker of an older version takes part, is it answered "lost", though the
//! claim was never taken from us. So whenever an end is answered "lost", for a reason that fits, the job is read back:
//!
//! - it is completed, and no attempt was started after ours: only the holder of our token can have
//!   completed it, so it was us;
//! - our attempt is over and the job's error is the one we sent: our failure was recorded;
//! - our attempt does not count any more: it is still to come, or another claim makes it. Only the holder
//!   of our token can have handed it back, so it was us.
//!
//! Anything else is [`Ended::Lost`] indeed. Two mistakes remain possible, both harmless: the attempt
//! numbers start over when somebody retries a dead job by hand, and two attempts may fail in the same words.
//! In both cases the job is in the very state that we asked for. And a claim that was handed back is told as
//! lost if another one has taken the job and ended meanwhile: nothing is left to do in either case.

use std::time::Duration;

use tenure_api::{
    self as api, ClaimAnswer, ClaimCall, ClaimRequest, Claimed, ClaimsAnswer, CompleteRequest,
    Completion, EndsAnswer, FailRequest, Failure, HeartbeatRequest, JobId, LostCode, LostReason,
    Outcome, OutcomeStatus, Payload, ReleaseRequest, State, Token,
};

use uuid::Uuid;

use crate::client::Client;
use crate::error::Error;
use crate::transport::{Call, Transport};

/// One claim of one job, as it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The job.
    pub id: JobId,
    /// Proves the claim. Its holder can end the claim: treat it like a password.
    pub token: Token,
    /// Which attempt it is.
    pub attempt: u32,
}

impl From<&Claimed> for Claim {
    fn from(claimed: &Claimed) -> Self {
        Self {
            id: claimed.id.clone(),
            token: claimed.token,
            attempt: claimed.attempt,
        }
    }
}

/// A claim to end with success.
#[derive(Debug, Clone, PartialEq)]
pub struct Completed {
    /// The claim.
    pub claim: Claim,
    /// What is kept with the job.
    pub result: Option<Payload>,
}

/// A claim to end without success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The claim.
    pub claim: Claim,
    /// What went wrong; shown to people.
    pub error: String,
    /// Try again after this long, instead of what the job's back-off says.
    pub retry_in: Option<Duration>,
    /// Do not try again, whatever attempts are left.
    pub permanent: bool,
}

/// Claims to end along with another claim.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) completed: Vec<Completed>,
    pub(crate) failed: Vec<Failed>,
    pub(crate) released: Vec<Claim>,
}

/// What came of a claim that had ends with it.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) jobs: Vec<Claimed>,
    /// The outcomes as they were answered, in the order of the ends, by kind; none if the broker has not looked at the ends:
    /// then nothing is known of them.
    pub(crate) ended: Option<EndedRound>,
}

#[derive(Debug)]
pub(crate) struct EndedRound {
    pub(crate) completed: Vec<Ended>,
    pub(crate) failed: Vec<Ended>,
    pub(crate) released: Vec<Ended>,
}

/// The outcome of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// As asked.
    Done,
    /// To a heartbeat: the claim is kept, and the job is to be given up; stop, keep the claim until the work has
    /// ended, then end it as usual. To a failure or a release: it was to be given up, and now is.
    Cancelled,
    /// The claim does not hold. Nothing was done.
    Lost(Option<LostReason>),
    /// The broker does not take what was said of it: a result that is too large, say. Nothing was done, and the claim
    /// stands as it stood.
    Refused(Box<api::Problem>),
}

impl Client {
    /// Takes jobs, waiting for them if the request says so. None if there were none in time.
    ///
    /// Sent again if it fails, under the same name: if an answer with jobs was lost, the next one has the same jobs, and no
    /// attempt is counted twice. Only if none arrives before the deadline do they come back when their lease runs out.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, Error> {
        self.claim_named(request, Uuid::new_v4()).await
    }

    /// The same for a caller that repeats a claim after it has failed: by the same name it is the same claim.
    pub(crate) async fn claim_named(
        &self,
        request: &ClaimRequest,
        name: Uuid,
    ) -> Result<Vec<Claimed>, Error> {
        let wait = Duration::from_millis(request.wait_ms.into());
        let call = Call::post(&["v1", "jobs", "claim"], request)?
            .waiting(wait)
            .named(name)
            .of_claim();
        let answer: ClaimAnswer = self.transport.call(&call).await?;
        Ok(answer.jobs)
    }

    /// Ends claims, and takes jobs without waiting for them, in one call and one commit. By the same name it is the same
    /// claim, and ends that are told twice are answered twice, so it can be sent again.
    ///
    /// An end that is answered "lost" was not read back: to tell it once more in a call of its own does that. A broker of an
    /// older version refuses the call, or does not look at the ends, and then they have to be told in calls of their own, too.
    pub(crate) async fn end_and_claim(
        &self,
        request: &ClaimRequest,
        name: Uuid,
        ends: &Ends,
    ) -> Result<Round, Error> {
        let body = ClaimCall {
            request: request.clone(),
            ends: Some(api::Ends {
                completed: ends.completed.iter().map(completion).collect(),
                failed: ends.failed.iter().map(failure).collect(),
                released: ends.released.iter().map(released).collect(),
            }),
        };
        let call = Call::post(&["v1", "jobs", "claim"], &body)?;
        let call = call.named(name).of_claim();
        let ClaimAnswer { jobs, ends: told } = self.transport.call(&call).await?;
        let ended = told.and_then(|told| ended_round(ends, &told));
        Ok(Round { jobs, ended })
    }

    /// Keeps claims for another lease, and tells how far their work is. Progress that the broker does not take is not
    /// shown, with a warning in the log; its claim is kept all the same.
    ///
    /// Calls about one claim that are made at the same time share requests, as with [`Client::complete`].
    pub async fn heartbeat(
        &self,
        claims: &[(Claim, Option<Payload>)],
    ) -> Result<Vec<Ended>, Error> {
        match claims {
            [one] => {
                let kept = self.together.heartbeats.call(one.clone());
                kept.await.map(|ended| vec![ended])
            }
            _ => self.heartbeat_within(claims, None).await,
        }
    }

    /// The same at once, with a deadline of its own.
    pub(crate) async fn heartbeat_within(
        &self,
        claims: &[(Claim, Option<Payload>)],
        deadline: Option<Duration>,
    ) -> Result<Vec<Ended>, Error> {
        self.transport.heartbeat(claims, deadline).await
    }

    /// Ends a claim with success. The result, if there is one, is kept as long as the job.
    ///
    /// Calls that are made at the same time, by this client and its clones, share requests: the first goes at once, and what
    /// comes while it is under way goes with the next. Each has its own answer. Dropping the future before the end was sent
    /// leaves it out; later, the claim may have ended or not.
    ///
    /// Sent again by itself; an end that was recorded by a try whose answer was lost is recognised by
    /// reading the job back: it is completed, and no attempt was started after this one.
    pub async fn complete(&self, claim: &Claim, result: Option<Payload>) -> Result<(), Error> {
        let claim = claim.clone();
        let completed = Completed { claim, result };
        let mut ended = self.together.completions.call(completed.clone()).await?;
        if let Ended::Lost(_) = ended {
            // Perhaps by this very end. That is found out here: it would hold up the others.
            ended = only(self.complete_all(vec![completed.clone()]).await?);
        }
        single(&completed.claim, ended)
    }

    /// Ends claims with success, in one call; the answers stand in the order of the claims. See
    /// [`Client::complete`].
    pub async fn complete_all(&self, claims: Vec<Completed>) -> Result<Vec<Ended>, Error> {
        let (held, claims): (Vec<Claim>, Vec<Completion>) = claims
            .into_iter()
            .map(|completed| {
                let completion = completion(&completed);
                (completed.claim, completion)
            })
            .unzip();
        let call = Call::post(&["v1", "jobs", "complete"], &CompleteRequest { claims })?;
        let fits = |_, reason: LostReason| reason.state == Some(State::Completed);
        self.end(&call, &held, fits, |place, job| {
            (job.state == State::Completed && job.attempt == held[place].attempt)
                .then_some(Ended::Done)
        })
        .await
    }

    /// Ends a claim without success: the job is tried again, or is dead. Shares requests with others, as
    /// [`Client::complete`] does.
    ///
    /// Sent again by itself; an end that was recorded by a try whose answer was lost is recognised by
    /// reading the job back: this attempt is over, and the job's error is this one.
    pub async fn fail(&self, failed: Failed) -> Result<(), Error> {
        let mut ended = self.together.failures.call(failed.clone()).await?;
        if let Ended::Lost(_) = ended {
            // As above.
            ended = only(self.fail_all(vec![failed.clone()]).await?);
        }
        single(&failed.claim, ended)
    }

    /// Ends claims without success, in one call; the answers stand in the order of the claims. See
    /// [`Client::fail`].
    pub async fn fail_all(&self, claims: Vec<Failed>) -> Result<Vec<Ended>, Error> {
        let (held, claims): (Vec<(Claim, String)>, Vec<Failure>) = claims
            .into_iter()
            .map(|failed| {
                let failure = failure(&failed);
                ((failed.claim, failed.error), failure)
            })
            .unzip();
        let (held, errors): (Vec<Claim>, Vec<String>) = held.into_iter().unzip();
        let call = Call::post(&["v1", "jobs", "fail"], &FailRequest { claims })?;
        let fits = |place: usize, reason: LostReason| match reason.code {
            LostCode::NotRunning => reason.state != Some(State::Completed),
            LostCode::Superseded => reason.attempt == Some(held[place].attempt + 1),
            _ => false,
        };
        self.end(&call, &held, fits, |place, job| {
            // The server cuts long errors.
            let recorded = job.error.as_deref().unwrap_or_default();
            let is_ours = !recorded.is_empty() && errors[place].starts_with(recorded);
            let ours = held[place].attempt;
            let is_over = match job.state {
                State::Running => job.attempt == ours + 1,
                State::Completed => false,
                _ => job.attempt == ours,
            };
            (is_ours && is_over).then_some(match job.state {
                State::Cancelled => Ended::Cancelled,
                _ => Ended::Done,
            })
        })
        .await
    }

    /// Hands a claim back as if it had never been made: the job can be claimed again at once, and the attempt
    /// does not count. A job that somebody wants given up is cancelled instead.
    ///
    /// Sent again by itself; an end that was recorded by a try whose answer was lost is recognised by
    /// reading the job back: this attempt is still to come, or another claim makes it.
    pub async fn release(&self, claim: &Claim) -> Result<(), Error> {
        let ended = self.release_all(vec![claim.clone()]).await?;
        single(claim, only(ended))
    }

    /// Hands claims back, in one call; the answers stand in the order of the claims. See
    /// [`Client::release`].
    pub async fn release_all(&self, held: Vec<Claim>) -> Result<Vec<Ended>, Error> {
        let claims = held.iter().map(released).collect();
        let call = Call::post(&["v1", "jobs", "release"], &ReleaseRequest { claims })?;
        let fits = |place: usize, reason: LostReason| match reason.code {
            LostCode::NotRunning => true,
            LostCode::Superseded => reason.attempt == Some(held[place].attempt),
            _ => false,
        };
        self.end(&call, &held, fits, |place, job| {
            let ours = held[place].attempt;
            match job.state {
                State::Running => (job.attempt == ours).then_some(Ended::Done),
                State::Cancelled if job.attempt == ours => Some(Ended::Cancelled),
                _ => (job.attempt + 1 == ours).then_some(Ended::Done),
            }
        })
        .await
    }

    /// Ends claims. `fits` says for which reasons a lost claim may be one that this very end, sent before,
    /// has ended; `recognise` is shown the job then.
    async fn end(
        &self,
        call: &Call,
        held: &[Claim],
        fits: impl Fn(usize, LostReason) -> bool,
        recognise: impl Fn(usize, &api::Job) -> Option<Ended>,
    ) -> Result<Vec<Ended>, Error> {
        let ids: Vec<JobId> = held.iter().map(|claim| claim.id.clone()).collect();
        let outcomes = self.transport.outcomes(call, &ids).await?;
        let mut all: Vec<Ended> = outcomes.iter().map(ended).collect();
        for (place, one) in all.iter_mut().enumerate() {
            if let &mut Ended::Lost(Some(reason)) = one
                && fits(place, reason)
            {
                match self.read_back(&held[place].id).await {
                    Ok(job) => *one = recognise(place, &job).unwrap_or_else(|| one.clone()),
                    // Forgotten meanwhile: nothing is left to tell by.
                    Err(Error::NotFound(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(all)
    }
}

/// Calls about claims as they are answered: what is lost is not read back.
impl Transport {
    pub(crate) async fn heartbeat(
        &self,
        claims: &[(Claim, Option<Payload>)],
        deadline: Option<Duration>,
    ) -> Result<Vec<Ended>, Error> {
        let claims: Vec<_> = claims
            .iter()
            .map(|(claim, progress)| api::Heartbeat {
                id: claim.id.clone(),
                token: claim.token,
                progress: progress.clone(),
            })
            .collect();
        let ids: Vec<JobId> = claims.iter().map(|claim| claim.id.clone()).collect();
        let call = Call::post(&["v1", "jobs", "heartbeat"], &HeartbeatRequest { claims })?
            .within(deadline);
        let outcomes = self.outcomes(&call, &ids).await?;
        for (outcome, id) in outcomes.iter().zip(&ids) {
            let problem = outcome.problem.as_ref();
            if let Some(problem) = problem.filter(|_| outcome.status != OutcomeStatus::Invalid) {
                tracing::warn!(%id, %problem, "the progress of a job was refused, and is not shown");
            }
        }
        Ok(outcomes.iter().map(ended).collect())
    }

    pub(crate) async fn complete(&self, claims: &[Completed]) -> Result<Vec<Ended>, Error> {
        let ids = claims.iter().map(|completed| completed.claim.id.clone());
        let ids: Vec<JobId> = ids.collect();
        let claims = claims.iter().map(completion).collect();
        let call = Call::post(&["v1", "jobs", "complete"], &CompleteRequest { claims })?;
        let outcomes = self.outcomes(&call, &ids).await?;
        Ok(outcomes.iter().map(ended).collect())
    }

    pub(crate) async fn fail(&self, claims: &[Failed]) -> Result<Vec<Ended>, Error> {
        let ids = claims.iter().map(|failed| failed.claim.id.clone());
        let ids: Vec<JobId> = ids.collect();
        let claims = claims.iter().map(failure).collect();
        let call = Call::post(&["v1", "jobs", "fail"], &FailRequest { claims })?;
        let outcomes = self.outcomes(&call, &ids).await?;
        Ok(outcomes.iter().map(ended).collect())
    }

    /// The outcomes, if there is one for each job, in order.
    async fn outcomes(&self, call: &Call, ids: &[JobId]) -> Result<Vec<Outcome>, Error> {
        let ClaimsAnswer { claims: outcomes } = self.call(call).await?;
        let is_matched = outcomes.len() == ids.len()
            && outcomes
                .iter()
                .zip(ids)
                .all(|(outcome, id)| outcome.id.as_ref() == Some(id));
        if is_matched {
            Ok(outcomes)
        } else {
            Err(self.nonsense("the number of answers does not match the number of claims"))
        }
    }
}

fn completion(Completed { claim, result }: &Completed) -> Completion {
    Completion {
        id: claim.id.clone(),
        token: claim.token,
        result: result.clone(),
    }
}

fn failure(failed: &Failed) -> Failure {
    let milliseconds = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    Failure {
        id: failed.claim.id.clone(),
        token: failed.claim.token,
        error: Some(failed.error.as_str().into()),
        retry_in_ms: failed.retry_in.map(milliseconds),
        permanent: failed.permanent,
    }
}

fn released(claim: &Claim) -> api::Claim {
    api::Claim {
        id: claim.id.clone(),
        token: claim.token,
    }
}

/// The outcomes, if there is one for each end, in order.
fn ended_round(ends: &Ends, told: &EndsAnswer) -> Option<EndedRound> {
    let completed = ends.completed.iter().map(|completed| &completed.claim);
    let failed = ends.failed.iter().map(|failed| &failed.claim);
    Some(EndedRound {
        completed: ended_all(completed, &told.completed)?,
        failed: ended_all(failed, &told.failed)?,
        released: ended_all(ends.released.iter(), &told.released)?,
    })
}

fn ended_all<'a>(
    held: impl ExactSizeIterator<Item = &'a Claim>,
    outcomes: &[Outcome],
) -> Option<Vec<Ended>> {
    let is_matched = held.len() == outcomes.len()
        && held
            .zip(outcomes)
            .all(|(claim, outcome)| outcome.id.as_ref() == Some(&claim.id));
    is_matched.then(|| outcomes.iter().map(ended).collect())
}

fn ended(outcome: &Outcome) -> Ended {
    match outcome.status {
        OutcomeStatus::Ok => Ended::Done,
        OutcomeStatus::Cancelled => Ended::Cancelled,
        OutcomeStatus::Lost => Ended::Lost(outcome.reason),
        OutcomeStatus::Invalid | OutcomeStatus::Other => {
            let unexplained = || {
                let detail = format!("the broker answered {:?} about a claim", outcome.status);
                Box::new(api::Problem::new(api::Code::InvalidField, detail))
            };
            Ended::Refused(outcome.problem.clone().unwrap_or_else(unexplained))
        }
    }
}

/// The outcome of a call about one claim.
fn only(mut ended: Vec<Ended>) -> Ended {
    ended.pop().expect("there is one, as was checked")
}

fn single(claim: &Claim, ended: Ended) -> Result<(), Error> {
    match ended {
        Ended::Lost(reason) => Err(Error::Lost {
            id: claim.id.clone(),
            reason,
        }),
        Ended::Refused(mut problem) => {
            // Which place it had in a request is nothing to its caller.
            let field = problem.field.as_deref();
            let own = field.and_then(|field| field.strip_prefix("claims[")?.split_once("]."));
            if let Some((_, own)) = own {
                problem.field = Some(own.to_owned());
            }
            Err(Error::of(*problem, None))
        }
        _ => Ok(()),
    }
}
