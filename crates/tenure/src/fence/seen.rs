//! The receiving side of claims, for stores that [`ClaimFence`](crate::ClaimFence) does not know.

use serde::{Deserialize, Serialize};
use tenure_core::queue::Token;

/// What a receiver keeps of a job: the newest claim that it has seen, and whether the job's effects are there.
///
/// Keep it beside the data that the job changes, in a document or under a key, and change both in one step: in a transaction, or with a
/// compare-and-swap. Then a worker that was paused changes nothing after its successor has begun, and effects happen once.
///
/// ```
/// use tenure::{SeenClaim, StaleClaim};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut seen = SeenClaim::default(); // as it is in the store, or new
/// seen.accept("1b-0badc0de".parse()?)?;
/// assert_eq!(seen.accept("1a-0badc0de".parse()?), Err(StaleClaim::Superseded { given: 26, seen: 27 }));
/// seen.finish("1b-0badc0de".parse()?)?;
/// assert_eq!(seen.accept("1c-0badc0de".parse()?), Err(StaleClaim::Done));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenClaim {
    /// The number of the newest claim: the first part of its token. None has the number 0.
    pub claim: u64,
    /// Whether an attempt has written its effects.
    pub done: bool,
}

/// Why a claim may not change anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StaleClaim {
    /// Another attempt has begun. Drop the work.
    #[error("claim {given} is over: claim {seen} was seen")]
    Superseded {
        /// The claim's number.
        given: u64,
        /// The newest.
        seen: u64,
    },
    /// An attempt has written its effects. Complete the job.
    #[error("the effects of the job are there already")]
    Done,
}

impl SeenClaim {
    /// Notes a claim that is about to change the data.
    pub fn accept(&mut self, token: Token) -> Result<(), StaleClaim> {
        if self.done {
            return Err(StaleClaim::Done);
        }
        if token.number < self.claim {
            return Err(StaleClaim::Superseded {
                given: token.number,
                seen: self.claim,
            });
        }
        self.claim = token.number;
        Ok(())
    }

    /// Notes that the effects of this claim are there, in the same step as those effects.
    pub fn finish(&mut self, token: Token) -> Result<(), StaleClaim> {
        self.accept(token)?;
        self.done = true;
        Ok(())
    }
}
