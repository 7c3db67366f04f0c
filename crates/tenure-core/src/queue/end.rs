//! Ends of claims that are told again.
//!
//! Whoever ends a claim may not hear what came of it. So a job remembers the last claim that its worker has ended, and
//! how: as long as the job, or its [remnant](super::remnants), is there and no other claim of it was ended since. The
//! same end of the same claim is then answered as it was the first time, and does nothing: no event, no attempt, no other
//! result. Another end of that claim is refused, as one that comes too late.
//!
//! Only what a worker has asked for is remembered. A lease that ran out, or a claim that was handed back since its answer
//! reached nobody, is nobody's end, and does not stand in the way of an earlier one.
//!
//! Under [`Rules::THIRD`] and later ones.

use serde::{Deserialize, Serialize};

use super::answer::{Failed, Released};
use super::machine::Queue;
use super::rules::Rules;
use super::slab::Handle;
use super::{Payload, Token};
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

/// The last claim of a job that its worker has ended. Without gaps, since every job may have one: as it is, a job
/// still fits into two cache lines.
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

impl Queue {
    /// A worker has ended its claim of a job.
    pub(crate) fn note_end(&mut self, handle: Handle, token: Token, end: End) {
        // The older rules did not remember it.
        if self.rules >= Rules::THIRD {
            self.edit(handle).last_end = Some((token, end).into());
        }
    }

    /// How a claim was ended that is the last of its job that was.
    fn ended_before(&self, id: &JobId, token: Token) -> Option<End> {
        let last = match self.find(id) {
            Some(handle) => self.jobs[handle].last_end,
            None => self.find_remnant(id)?.last_end,
        };
        let last = last.filter(|last| last.is_of(token))?;
        Some(last.end)
    }

    /// What a completion is answered that is told again. With another result it is another one, and would be lost.
    pub(crate) fn completed_before(
        &self,
        id: &JobId,
        token: Token,
        result: Option<&Payload>,
    ) -> Option<()> {
        let end = self.ended_before(id, token)?;
        let kept = match self.find(id) {
            Some(handle) => self.jobs[handle]
                .extra
                .as_ref()
                .and_then(|extra| extra.result.as_ref()),
            None => self.find_remnant(id)?.result.as_ref(),
        };
        (end == End::Completed && kept == result).then_some(())
    }

    /// What a failure is answered that is told again.
    pub(crate) fn failed_before(&self, id: &JobId, token: Token) -> Option<Failed> {
        match self.ended_before(id, token)? {
            End::Failed => {
                // When it is to run: as it was said, unless a later lease ran out or an operator changed it.
                let run_at = self.find(id).map(|handle| self.jobs[handle].run_at);
                let run_at = run_at.or_else(|| Some(self.remnant(id)?.run_at))?;
                Some(Failed::Again { run_at })
            }
            End::Died => Some(Failed::Died),
            End::FailedCancelled => Some(Failed::Cancelled),
            End::Completed | End::Released | End::ReleasedCancelled => None,
        }
    }

    /// What a release is answered that is told again.
    pub(crate) fn released_before(&self, id: &JobId, token: Token) -> Option<Released> {
        match self.ended_before(id, token)? {
            End::Released => Some(Released::Ready),
            End::ReleasedCancelled => Some(Released::Cancelled),
            End::Completed | End::Failed | End::Died | End::FailedCancelled => None,
        }
    }
}
