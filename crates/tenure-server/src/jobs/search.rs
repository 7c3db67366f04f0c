//! Jobs in pages: by filter alone, or by what is written in them.
//!
//! A search walks over the jobs, since there is no index of words. The queue is held for one portion at a time, and
//! one request gets so many portions: what a search costs is bounded, however many jobs there are.

use tenure_core::api::{Code, JobsQuery};
use tenure_core::queue::{Page, Place};

use crate::app::App;
use crate::problem::Problem;

/// The longest text to search for.
const CHARACTERS_MAX: usize = 200;

/// Portions of one request: up to 40,000 jobs, or 20 MiB of text.
const PORTIONS_MAX: usize = 20;

/// The jobs that a query means, from a place on.
pub(crate) async fn page(
    app: &App,
    query: &JobsQuery,
    from: Place,
    limit: usize,
) -> Result<Page, Problem> {
    let filter = query.filter();
    let Some(text) = &query.search else {
        return Ok(app.queue.page(&filter, from, limit)?);
    };
    let length = text.chars().count();
    if !(1..=CHARACTERS_MAX).contains(&length) {
        let problem = format!("search has {length} characters, not 1 to {CHARACTERS_MAX}");
        return Err(Problem::new(Code::InvalidField, problem).field("search"));
    }
    let mut found = app.queue.search(&filter, text, from, limit)?;
    for _ in 1..PORTIONS_MAX {
        let Some(next) = found.next.filter(|_| found.jobs.len() < limit) else {
            break;
        };
        // Others come first: a commit waits for nobody who searches.
        tokio::task::yield_now().await;
        let from = match from {
            Place::After(_) => Place::After(next),
            Place::Before(_) => Place::Before(next),
        };
        let left = limit - found.jobs.len();
        let more = app.queue.search(&filter, text, from, left)?;
        found.jobs.extend(more.jobs);
        found.next = more.next;
    }
    Ok(found)
}
