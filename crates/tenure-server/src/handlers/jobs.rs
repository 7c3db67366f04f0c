//! Calls about jobs. Each handler reads a request, asks the queue, and writes its answer; what is decided is
//! decided below.

use tenure_core::JobId;
use tenure_core::api::Code;
use tenure_core::queue::{Event, Refusal};

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
        Refusal::Conflict => Problem::new(
            Code::Conflict,
            format!("there is already a job {id} with different content"),
        )
        .field("id")
        .existing(id.clone())
        .hint("use a new id for a new job"),
        Refusal::Full => Problem::new(
            Code::Full,
            "the queue has as many jobs as the settings allow",
        )
        .hint("wait until some are finished and deleted, or raise jobs_max in the settings"),
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

/// An answer that the queue cannot give to this call.
fn unexpected(event: &Event) -> Problem {
    tracing::error!(?event, "an answer of the wrong kind");
    Problem::internal("the queue gave an answer of the wrong kind")
}

/// The only answer of a call about one job.
fn only(events: Vec<Event>) -> Result<Event, Problem> {
    let event = events.into_iter().next();
    event.ok_or_else(|| Problem::internal("the queue gave no answer"))
}
