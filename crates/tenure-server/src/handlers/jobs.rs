//! Calls about jobs. Each handler reads a request, asks the queue, and writes its answer; what is decided is
//! decided below.

use tenure_api::{Code, JobId};
use tenure_core::queue::{Item, Refusal};

use crate::problem::Problem;

pub(crate) mod claim;
pub(crate) mod manage;
pub(crate) mod outcome;
pub(crate) mod read;
pub(crate) mod search;
pub(crate) mod submit;

/// Why nothing was done to one job.
fn refused(id: &JobId, refusal: Refusal) -> Problem {
    match refusal {
        Refusal::NotFound => not_found(id),
        Refusal::State { state } => Problem::new(
            Code::State,
            format!("the job is {state}, which does not allow this"),
        ),
        Refusal::UniqueKey { existing } => Problem::new(
            Code::Conflict,
            format!("the job {existing} now has the unique key"),
        )
        .existing(existing),
    }
}

fn not_found(id: &JobId) -> Problem {
    Problem::new(
        Code::NotFound,
        format!("there is no job {id}, or it was deleted"),
    )
}

/// The answer about the only job of a call.
fn one<T>(answers: Vec<Item<T, Refusal>>) -> Result<(JobId, T), Problem> {
    let answer = answers.into_iter().next();
    let Item { id, outcome } = answer.expect("a call about one job has one answer");
    match outcome {
        Ok(done) => Ok((id, done)),
        Err(refusal) => Err(refused(&id, refusal)),
    }
}
