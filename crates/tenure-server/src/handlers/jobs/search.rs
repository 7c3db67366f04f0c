//! Jobs in pages: by filter alone, or by what is written in them.
//!
//! Either looks at a portion of the jobs at a time, and holds the queue for that long. A search walks over the jobs, since
//! there is no index of words, and one request gets so many portions: what a search costs is bounded, however many jobs there are. What is found is
//! bounded in bytes as well: see [`PAGE_BYTES_MAX`].

use tenure::queue::PAGE_BYTES_MAX;
use tenure_api::{Code, JobsQuery, Order};
use tenure_core::queue::{Filter, Job, Page, PageReader, PageStart};

use crate::app::App;
use crate::problem::Problem;

/// The longest text to search for.
const CHARACTERS_MAX: usize = 200;

/// Portions of one request: up to 40,000 jobs, or 20 MiB of text.
const PORTIONS_MAX: usize = 20;

/// About how many bytes jobs have as JSON.
pub(crate) fn bytes(jobs: &[Job]) -> usize {
    jobs.iter().map(Job::json_bytes).sum()
}

/// The jobs that a filter means, from a place on. Between two portions others come first: a commit waits for nobody who
/// lists, and the thread is not kept.
pub(crate) async fn filtered(
    app: &App,
    filter: Filter,
    from: PageStart,
    limit: usize,
) -> Result<Page, Problem> {
    let mut reading = PageReader::new(filter, from, limit, PAGE_BYTES_MAX);
    while app.queue.read_on(&mut reading)? {
        tokio::task::yield_now().await;
    }
    Ok(reading.into_page())
}

/// The jobs that a query means, from a place on. There may be fewer than `limit`, and still a next page.
pub(crate) async fn page(
    app: &App,
    query: &JobsQuery,
    from: PageStart,
    limit: usize,
) -> Result<Page, Problem> {
    let filter = filter(query);
    let Some(text) = &query.search else {
        return filtered(app, filter, from, limit).await;
    };
    let length = text.chars().count();
    if !(1..=CHARACTERS_MAX).contains(&length) {
        let problem =
            format!("search has {length} characters, but must have 1 to {CHARACTERS_MAX}");
        return Err(Problem::new(Code::InvalidField, problem).field("search"));
    }
    let mut found = app.queue.search(&filter, text, from, limit)?;
    for _ in 1..PORTIONS_MAX {
        // A portion may find some more, and one job.
        let is_full = found.jobs.len() >= limit || bytes(&found.jobs) >= PAGE_BYTES_MAX * 3 / 4;
        let Some(next) = found.next.filter(|_| !is_full) else {
            break;
        };
        // Others come first: a commit waits for nobody who searches.
        tokio::task::yield_now().await;
        let from = match from {
            PageStart::After(_) => PageStart::After(next),
            PageStart::Before(_) => PageStart::Before(next),
        };
        let left = limit - found.jobs.len();
        let more = app.queue.search(&filter, text, from, left)?;
        found.jobs.extend(more.jobs);
        found.next = more.next;
    }
    Ok(found)
}

/// What the queue is to look for.
fn filter(query: &JobsQuery) -> Filter {
    Filter {
        state: query.state,
        queue: query.queue.clone(),
        job_type: query.job_type.clone(),
    }
}

/// Where the page starts; `None` if `after`, `before` and `order` contradict each other.
pub(crate) fn place(query: &JobsQuery) -> Option<PageStart> {
    match (query.after, query.before, query.order) {
        (Some(_), Some(_), _) | (Some(_), _, Some(Order::Newest)) => None,
        (_, Some(_), Some(Order::Oldest)) => None,
        (Some(after), None, _) => Some(PageStart::After(after)),
        (None, Some(before), _) => Some(PageStart::Before(before)),
        (None, None, Some(Order::Newest)) => Some(PageStart::Before(u64::MAX)),
        (None, None, _) => Some(PageStart::After(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_starts_where_it_is_told() {
        let start = |text: &str| place(&serde_json::from_str(text).unwrap());
        assert_eq!(start("{}"), Some(PageStart::After(0)));
        assert_eq!(
            start(r#"{"order":"newest"}"#),
            Some(PageStart::Before(u64::MAX))
        );
        assert_eq!(start(r#"{"before":7}"#), Some(PageStart::Before(7)));
        assert_eq!(
            start(r#"{"after":7,"order":"oldest"}"#),
            Some(PageStart::After(7))
        );
        assert_eq!(start(r#"{"after":7,"before":9}"#), None);
        assert_eq!(start(r#"{"after":7,"order":"newest"}"#), None);
    }
}
