//! A job is given to one worker at a time: nobody gets it while another may believe that it holds it.

use tenure_core::queue::Claimed;
use tokio::time::Instant;

use super::super::claims::Claims;
use crate::invariants::Violation;

pub(crate) fn check(claims: &Claims, worker: &str, job: &Claimed) -> Result<(), Violation> {
    let now = Instant::now();
    let mut others = claims.holds.get(&job.id).into_iter().flatten();
    match others.find(|(_, hold)| hold.until > now) {
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
