//! Ends of claims that are told again.
//!
//! The answer to an end of a claim can be lost. So a job remembers the last claim that its worker has ended, and
//! how: as long as the job, or its [remnant](super::remnants), is there and no other claim of it was ended since. The
//! same end of the same claim is then answered as it was the first time, and does nothing: no event, no attempt, no other
//! result. Another end of that claim, be it another error or another result, is refused, and told how the claim has ended:
//! what it says is not what the queue has.
//!
//! A result is compared with the one that is kept. What a failure says is kept as a hash, since the error of a job is
//! replaced by that of a later attempt, and when it is to run again is not kept at all.
//!
//! Only what a worker has asked for is remembered. A lease that ran out, or a claim that was handed back since its answer
//! reached nobody, is nobody's end, and does not stand in the way of an earlier one.
//!
//! Under [`Rules::THIRD`] and later ones.

use serde::{Deserialize, Serialize};

use tenure_api::EndedAs;

use super::answer::{Failed, Lost, Released};
use super::hash::Hash;
use super::machine::Queue;
use super::rules::Rules;
use super::slab::Handle;
use super::{Failure, Payload, Token};
use crate::JobId;

/// How a worker has ended a claim, and what it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    Completed,
    /// To be tried again.
    Failed,
    /// In the last attempt.
    Died,
    /// A failure of a job that was to be cancelled.
    FailedCancelled,
    Released,
    /// The release of a job that was to be cancelled.
    ReleasedCancelled,
}

impl From<Failed> for End {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Again { .. } => End::Failed,
            Failed::Died => End::Died,
            Failed::Cancelled => End::FailedCancelled,
        }
    }
}

impl From<Released> for End {
    fn from(released: Released) -> Self {
        match released {
            Released::Ready => End::Released,
            Released::Cancelled => End::ReleasedCancelled,
        }
    }
}

impl From<End> for EndedAs {
    fn from(end: End) -> Self {
        match end {
            End::Completed => EndedAs::Completed,
            End::Failed => EndedAs::Failed,
            End::Died => EndedAs::Dead,
            End::FailedCancelled | End::ReleasedCancelled => EndedAs::Cancelled,
            End::Released => EndedAs::Released,
        }
    }
}

/// What a failure said, to tell two of them apart: a hash, or zero if it said nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Said(u32);

impl Said {
    pub(crate) const NOTHING: Self = Self(0);

    /// As the log has it, the error cut to what is kept.
    pub(crate) fn by(failure: &Failure) -> Self {
        let (error, retry_in_ms) = (failure.error.as_deref(), failure.retry_in_ms);
        if error.is_none() && retry_in_ms.is_none() && !failure.permanent {
            return Self::NOTHING;
        }
        let mut hash = Hash::new(0);
        hash.number(error.is_some().into());
        hash.text(error.unwrap_or_default());
        hash.number(retry_in_ms.map_or(0, |wait| wait.wrapping_add(1)));
        hash.number(failure.permanent.into());
        let hash = hash.finish();
        #[expect(clippy::cast_possible_truncation, reason = "half of a hash is a hash")]
        let half = (hash ^ (hash >> 32)) as u32;
        Self(half.max(1))
    }

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::NOTHING
    }

    pub(crate) fn if_any(self) -> Option<Self> {
        (!self.is_nothing()).then_some(self)
    }
}

/// The last claim of a job that its worker has ended. Without gaps, since every job that has run has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(Token, End)", into = "(Token, End)")]
#[repr(Rust, packed)]
pub(crate) struct LastEnd {
    number: u64,
    nonce: u32,
    end: End,
}

impl LastEnd {
    /// Whether it is the end of this claim.
    pub(crate) fn is_of(self, token: Token) -> bool {
        let (ended, _) = self.into();
        ended == token
    }
}

impl From<(Token, End)> for LastEnd {
    fn from((Token { number, nonce }, end): (Token, End)) -> Self {
        Self { number, nonce, end }
    }
}

impl From<LastEnd> for (Token, End) {
    fn from(LastEnd { number, nonce, end }: LastEnd) -> Self {
        (Token { number, nonce }, end)
    }
}

/// How a claim was ended before.
struct Before<'a> {
    end: End,
    said: Said,
    result: Option<&'a Payload>,
}

impl Queue {
    /// A worker has ended its claim of a job.
    pub(crate) fn note_end(&mut self, handle: Handle, token: Token, end: End, said: Said) {
        // The older rules did not remember it.
        if self.rules < Rules::THIRD {
            return;
        }
        let job = self.edit(handle);
        job.course_mut().last_end = Some((token, end).into());
        // Few say anything that is not kept as an error, so few have this for its sake.
        if job.extra.is_some() || !said.is_nothing() {
            job.extra_mut().said = said;
        }
    }

    /// How a claim was ended that is the last of its job that was.
    fn ended_before(&self, id: &JobId, token: Token) -> Option<Before<'_>> {
        let (last, said, result) = match self.find(id) {
            Some(handle) => {
                let job = &self.jobs[handle];
                let extra = job.extra.as_deref();
                let said = extra.map_or(Said::NOTHING, |extra| extra.said);
                (
                    job.course().last_end,
                    said,
                    extra.and_then(|extra| extra.result.as_ref()),
                )
            }
            None => {
                let left = self.find_remnant(id)?;
                (left.last_end, left.said, left.result.as_ref())
            }
        };
        let last = last.filter(|last| last.is_of(token))?;
        Some(Before {
            end: last.end,
            said,
            result,
        })
    }

    /// That this very claim has completed the job, if it has.
    pub(crate) fn completed_by(&self, id: &JobId, token: Token) -> Option<Lost> {
        let before = self.ended_before(id, token)?;
        let how = EndedAs::from(before.end);
        (how == EndedAs::Completed).then_some(Lost::Ended { how })
    }

    /// What a completion is answered whose claim does not hold: as before if it is told again.
    pub(crate) fn completed_before(
        &self,
        id: &JobId,
        token: Token,
        result: Option<&Payload>,
        lost: Lost,
    ) -> Result<(), Lost> {
        let Some(before) = self.ended_before(id, token) else {
            return Err(lost);
        };
        let is_same = match (before.result, result) {
            (Some(before), Some(result)) => before.is_same_value(result),
            (before, result) => before.is_none() && result.is_none(),
        };
        match before.end {
            End::Completed if is_same => Ok(()),
            end => Err(Lost::Ended { how: end.into() }),
        }
    }

    /// What a failure is answered whose claim does not hold: as before if it is told again.
    pub(crate) fn failed_before(
        &self,
        id: &JobId,
        token: Token,
        said: Said,
        lost: Lost,
    ) -> Result<Failed, Lost> {
        let Some(before) = self.ended_before(id, token) else {
            return Err(lost);
        };
        let other = Lost::Ended {
            how: before.end.into(),
        };
        if before.said != said {
            return Err(other);
        }
        match before.end {
            End::Failed => {
                // When it is to run: as it was said, unless a later lease ran out or an operator changed it.
                let run_at = self.find(id).map(|handle| self.jobs[handle].run_at);
                let run_at = run_at.or_else(|| Some(self.remnant(id)?.run_at));
                Ok(Failed::Again {
                    run_at: run_at.ok_or(lost)?,
                })
            }
            End::Died => Ok(Failed::Died),
            End::FailedCancelled => Ok(Failed::Cancelled),
            End::Completed | End::Released | End::ReleasedCancelled => Err(other),
        }
    }

    /// What a release is answered whose claim does not hold: as before if it is told again.
    pub(crate) fn released_before(
        &self,
        id: &JobId,
        token: Token,
        lost: Lost,
    ) -> Result<Released, Lost> {
        match self.ended_before(id, token).map(|before| before.end) {
            None => Err(lost),
            Some(End::Released) => Ok(Released::Ready),
            Some(End::ReleasedCancelled) => Ok(Released::Cancelled),
            Some(end) => Err(Lost::Ended { how: end.into() }),
        }
    }
}
