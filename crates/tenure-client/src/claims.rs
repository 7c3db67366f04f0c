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
    self as api, ClaimAnswer, ClaimRequest, Claimed, ClaimsAnswer, CompleteRequest, Completion,
    FailRequest, Failure, HeartbeatRequest, JobId, LostCode, LostReason, Outcome, OutcomeStatus,
    Payload, ReleaseRequest, State, Token,
};

use uuid::Uuid;

use crate::client::Client;
use crate::error::Error;
use crate::transport::Call;

/// One claim of one job, as it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The job.
    pub id: JobId,
    /// What proves the claim. Whoever has it can end the claim: treat it like a password.
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

/// What became of a claim.
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

    /// The same for whoever goes on with the claim after it has failed: by the same name it is the same claim.
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

    /// Keeps claims for another lease, and tells how far their work is. Progress that the broker does not take is not
    /// shown, with a warning in the log; its claim is kept all the same.
    pub async fn heartbeat(
        &self,
        claims: &[(Claim, Option<Payload>)],
    ) -> Result<Vec<Ended>, Error> {
        self.heartbeat_within(claims, None).await
    }

    /// The same, with a deadline of its own.
    pub(crate) async fn heartbeat_within(
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
        let answer: ClaimsAnswer = self.transport.call(&call).await?;
        let outcomes = self.matched(&ids, answer)?;
        for (outcome, id) in outcomes.iter().zip(&ids) {
            let problem = outcome.problem.as_ref();
            if let Some(problem) = problem.filter(|_| outcome.status != OutcomeStatus::Invalid) {
                tracing::warn!(%id, %problem, "the progress of a job was refused, and is not shown");
            }
        }
        Ok(outcomes.iter().map(ended).collect())
    }

    /// Ends a claim with success. The result, if there is one, is kept as long as the job.
    ///
    /// Sent again by itself; an end that was recorded by a try whose answer was lost is recognised by
    /// reading the job back: it is completed, and no attempt was started after this one.
    pub async fn complete(&self, claim: &Claim, result: Option<Payload>) -> Result<(), Error> {
        let claim = claim.clone();
        let ended = self
            .complete_all(vec![Completed {
                claim: claim.clone(),
                result,
            }])
            .await?;
        single(&claim, &ended)
    }

    /// Ends claims with success, in one call; the answers stand in the order of the claims. See
    /// [`Client::complete`].
    pub async fn complete_all(&self, claims: Vec<Completed>) -> Result<Vec<Ended>, Error> {
        let (held, claims): (Vec<Claim>, Vec<Completion>) = claims
            .into_iter()
            .map(|Completed { claim, result }| {
                let completion = Completion {
                    id: claim.id.clone(),
                    token: claim.token,
                    result,
                };
                (claim, completion)
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

    /// Ends a claim without success: the job is tried again, or is dead.
    ///
    /// Sent again by itself; an end that was recorded by a try whose answer was lost is recognised by
    /// reading the job back: this attempt is over, and the job's error is this one.
    pub async fn fail(&self, failed: Failed) -> Result<(), Error> {
        let claim = failed.claim.clone();
        single(&claim, &self.fail_all(vec![failed]).await?)
    }

    /// Ends claims without success, in one call; the answers stand in the order of the claims. See
    /// [`Client::fail`].
    pub async fn fail_all(&self, claims: Vec<Failed>) -> Result<Vec<Ended>, Error> {
        let milliseconds = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let (held, claims): (Vec<(Claim, String)>, Vec<Failure>) = claims
            .into_iter()
            .map(|failed| {
                let failure = Failure {
                    id: failed.claim.id.clone(),
                    token: failed.claim.token,
                    error: Some(failed.error.as_str().into()),
                    retry_in_ms: failed.retry_in.map(milliseconds),
                    permanent: failed.permanent,
                };
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
        single(claim, &ended)
    }

    /// Hands claims back, in one call; the answers stand in the order of the claims. See
    /// [`Client::release`].
    pub async fn release_all(&self, held: Vec<Claim>) -> Result<Vec<Ended>, Error> {
        let released = |claim: &Claim| api::Claim {
            id: claim.id.clone(),
            token: claim.token,
        };
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
        let answer: ClaimsAnswer = self.transport.call(call).await?;
        let ids: Vec<JobId> = held.iter().map(|claim| claim.id.clone()).collect();
        let outcomes = self.matched(&ids, answer)?;
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

    /// The outcomes, if there is one for each job, in order.
    fn matched(&self, ids: &[JobId], answer: ClaimsAnswer) -> Result<Vec<Outcome>, Error> {
        let outcomes = answer.claims;
        let is_matched = outcomes.len() == ids.len()
            && outcomes
                .iter()
                .zip(ids)
                .all(|(outcome, id)| outcome.id.as_ref() == Some(id));
        if is_matched {
            Ok(outcomes)
        } else {
            Err(self
                .transport
                .nonsense("the number of answers does not match the number of claims"))
        }
    }
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

fn single(claim: &Claim, ended: &[Ended]) -> Result<(), Error> {
    match ended {
        [Ended::Lost(reason)] => Err(Error::Lost {
            id: claim.id.clone(),
            reason: *reason,
        }),
        [Ended::Refused(problem)] => Err(Error::of((**problem).clone(), None)),
        _ => Ok(()),
    }
}
