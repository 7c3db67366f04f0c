//! A job is given to one worker at a time: nobody gets it while another may believe that it holds it.

use tenure_core::queue::{Claimed, Token};
use tokio::time::Instant;

use super::super::claims::{Claims, Hold};
use crate::invariants::Violation;

pub(crate) fn check(claims: &Claims, worker: &str, job: &Claimed) -> Result<(), Violation> {
    let now = Instant::now();
    let mut others = claims.holds.get(&job.id).into_iter().flatten();
    // A claim that was asked for again is the same claim.
    let is_same = |token: &Token, hold: &Hold| *token == job.token && hold.worker == worker;
    match others.find(|(token, hold)| hold.until > now && !is_same(token, hold)) {
        None => Ok(()),
        Some((token, hold)) => Err(Violation::new(
            "a job is with one worker at a time",
            format!(
                "{} is given to {worker}, and {} holds it by {token} for another {:?}",
                job.id,
                hold.worker,
                hold.until - now
            ),
        )),
    }
}
