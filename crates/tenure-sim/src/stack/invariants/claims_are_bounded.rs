//! No answer to a claim is larger than what a client takes, from the second rules on, and it has a job if there is one.

use tenure_core::queue::{Action, Answer, Command, Queue, Rules};

use crate::invariants::Violation;

/// The most bytes of payloads in one answer, unless its only job is larger.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Whether a claim got fewer jobs than it asked for, since more would have been too large.
pub(crate) fn check(command: &Command, answer: &Answer, queue: &Queue) -> Result<bool, Violation> {
    let (Action::Claim(claim), Answer::Claimed(jobs)) = (&command.action, answer) else {
        return Ok(false);
    };
    let request = &claim.request;
    if queue.rules() < Rules::SECOND {
        return Ok(false);
    }
    let sizes: Vec<usize> = jobs.iter().map(|job| job.payload.bytes()).collect();
    let bytes: usize = sizes.iter().sum();
    if bytes > BYTES_MAX && sizes.len() > 1 {
        let message = format!(
            "{} jobs of {bytes} bytes for {}",
            sizes.len(),
            request.worker
        );
        return Err(Violation::new("a claim is bounded in bytes", message));
    }
    let largest = sizes.iter().max().copied().unwrap_or_default();
    let is_cut = bytes + largest > BYTES_MAX && sizes.len() < request.max as usize;
    Ok(is_cut)
}
