//! Finding jobs by their words: a walk over the jobs that a filter means, a portion at a time.
//!
//! There is no index of words: few ask, and every submit would pay. A portion is bounded by jobs and by bytes, those
//! that are looked at and those that are found, so that a search holds up nobody, and the answer says where to go
//! on.

use super::kept::Kept;
use super::machine::Queue;
use super::shelves::{Class, Merge, Row, Shelf};
use super::slab::Handle;
use super::view::{Filter, PageStart};
use super::{Key, Page};

/// The most jobs that are looked at in one portion.
const JOBS_MAX: usize = 2_000;

/// The most bytes that are looked at, and one job: a millisecond or so of work. Also the most bytes of the jobs that
/// are found, and one job: one that is found by its id has a payload that nobody looked at.
const BYTES_MAX: usize = 1 << 20;

/// Words to find, in lower or upper case.
struct Words {
    lower: Vec<u8>,
}

impl Queue {
    /// The jobs of a filter that have `text` in their id, queue, type, keys, worker, error, payload or result.
    ///
    /// Looks at one portion of them only: there may be fewer than `limit`, or none, and still a
    /// [`next`](Page::next). Letters from A to Z match in either case. Payloads and results are searched as the
    /// JSON text that they are.
    #[must_use]
    pub fn search(&self, filter: &Filter, text: &str, from: PageStart, limit: usize) -> Page {
        let words = Words::new(text);
        let mut page = Page {
            jobs: Vec::new(),
            next: None,
        };
        let Some(mut candidates) = self.candidates(filter, from) else {
            return page;
        };
        let (mut bytes, mut found_bytes) = (0, 0);
        for number in 1.. {
            let Some((place, handle)) = candidates.next() else {
                return page;
            };
            let job = &self.jobs[handle];
            if candidates.mean(job) && self.has(job, &words, &mut bytes) {
                let job = self.shown(handle);
                found_bytes += job.json_bytes();
                page.jobs.push(job);
            }
            let is_long = bytes >= BYTES_MAX || found_bytes >= BYTES_MAX;
            if number >= JOBS_MAX || is_long || page.jobs.len() >= limit {
                page.next = candidates.next().map(|_| place);
                return page;
            }
        }
        page
    }

    /// The jobs to look at for a filter, in order; none if it names what does not exist. Of one queue these are the
    /// jobs that it means; of all queues together, those of its state.
    pub(crate) fn candidates(&self, filter: &Filter, from: PageStart) -> Option<Candidates<'_>> {
        let job_type = match &filter.job_type {
            Some(name) => Some(self.types.find(name)?),
            None => None,
        };
        let is_meant = |class: Class| filter.state.is_none_or(|state| class.state() == state);
        let jobs = match &filter.queue {
            Some(name) => {
                let matches = |shelf: &Shelf| {
                    is_meant(shelf.class) && job_type.is_none_or(|meant| shelf.job_type == meant)
                };
                let queue = self.queues.find(name)?;
                self.shelves.from(from, queue, matches, &self.orders)
            }
            None => self.orders_from(from, is_meant),
        };
        Some(Candidates { jobs, job_type })
    }

    /// All jobs from a place on, in the order of the log or backwards.
    pub(crate) fn all_from(&self, place: PageStart) -> Merge<'_> {
        self.orders_from(place, |_| true)
    }

    fn orders_from(&self, place: PageStart, is_meant: impl Fn(Class) -> bool) -> Merge<'_> {
        let classes = Class::ALL.into_iter().filter(|&class| is_meant(class));
        let rows = classes.map(|class| Row::Order(self.orders[class as usize].from(place)));
        Merge::new(rows, matches!(place, PageStart::Before(_)))
    }

    fn has(&self, job: &Kept, words: &Words, bytes: &mut usize) -> bool {
        let extra = job.extra.as_deref();
        // Short, and not worth counting.
        let key = |key: Option<&Key>| key.is_some_and(|key| words.are_in(key.as_str(), &mut 0));
        words.are_in(job.id.as_str(), bytes)
            || words.are_in(self.types.name(job.job_type).as_str(), bytes)
            || words.are_in(self.queues.name(job.queue).as_str(), bytes)
            || key(job.unique_key())
            || key(job.group_key())
            || key(job.running().map(|running| &running.worker))
            || extra
                .and_then(|extra| extra.error.as_deref())
                .is_some_and(|error| words.are_in(error, bytes))
            || words.are_in(job.payload.as_str(), bytes)
            || extra
                .and_then(|extra| extra.result.as_ref())
                .is_some_and(|result| words.are_in(result.as_str(), bytes))
    }
}

/// Jobs to look at, one after the other.
pub(crate) struct Candidates<'a> {
    jobs: Merge<'a>,
    job_type: Option<Handle>,
}

impl Candidates<'_> {
    pub(crate) fn next(&mut self) -> Option<(u64, Handle)> {
        self.jobs.next()
    }

    /// Whether a job that was given is meant.
    pub(crate) fn mean(&self, job: &Kept) -> bool {
        self.job_type.is_none_or(|meant| job.job_type == meant)
    }
}

impl Words {
    fn new(text: &str) -> Self {
        Self {
            lower: text.to_ascii_lowercase().into_bytes(),
        }
    }

    fn are_in(&self, text: &str, bytes: &mut usize) -> bool {
        *bytes += text.len();
        let Some((&first, rest)) = self.lower.split_first() else {
            return true;
        };
        let mut text = text.as_bytes();
        while let Some(place) = text
            .iter()
            .position(|byte| byte.to_ascii_lowercase() == first)
        {
            text = &text[place + 1..];
            if text
                .get(..rest.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(rest))
            {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::stories::Story;
    use super::*;

    fn found(page: &Page) -> Vec<&str> {
        page.jobs.iter().map(|job| job.id.as_str()).collect()
    }

    #[test]
    fn any_text_of_a_job_finds_it() {
        let mut story = Story::new();
        story.submit(&[
            r#""id":"order-17","queue":"mail","payload":{"to":"Ada@example.org"}"#,
            r#""id":"order-18","unique_key":"invoice 18","group":"Berlin""#,
            r#""id":"other","payload":"größer""#,
        ]);
        let page = |text: &str| {
            let page = story
                .queue
                .search(&Filter::default(), text, PageStart::After(0), 10);
            assert_eq!(page.next, None);
            page
        };
        assert_eq!(found(&page("order-1")), ["order-17", "order-18"]);
        assert_eq!(found(&page("ada@EXAMPLE")), ["order-17"]);
        assert_eq!(found(&page("mail")), ["order-17"]);
        assert_eq!(found(&page("invoice 18")), ["order-18"]);
        assert_eq!(found(&page("berlin")), ["order-18"]);
        assert_eq!(found(&page("größer")), ["other"]);
        assert_eq!(found(&page("nothing like it")), [""; 0]);
        assert_eq!(found(&page("aab")), [""; 0]);
        let claimed = &story.claim(1)[0];
        story.act(super::super::Action::Complete(vec![
            super::super::Completion {
                id: claimed.id.clone(),
                token: claimed.token,
                result: Some(super::super::Payload::new("\"Sent by relay\"").unwrap()),
            },
        ]));
        let page = story
            .queue
            .search(&Filter::default(), "RELAY", PageStart::After(0), 10);
        assert_eq!(found(&page), ["order-17"]);
    }

    #[test]
    fn a_portion_is_bounded_and_the_next_goes_on_behind_it() {
        let mut story = Story::new();
        let jobs: Vec<String> = (0..5_000)
            .map(|number| format!(r#""id":"job-{number}","payload":{}"#, number % 500))
            .collect();
        for jobs in jobs.chunks(500) {
            story.submit(&jobs.iter().map(String::as_str).collect::<Vec<_>>());
        }
        for newest_first in [false, true] {
            let (mut all, mut portions) = (Vec::new(), 0);
            let mut place = if newest_first {
                PageStart::Before(u64::MAX)
            } else {
                PageStart::After(0)
            };
            loop {
                let page = story
                    .queue
                    .search(&Filter::default(), "job-4999", place, 10);
                all.extend(page.jobs.iter().map(|job| job.id.to_string()));
                portions += 1;
                match (page.next, newest_first) {
                    (None, _) => break,
                    (Some(next), false) => place = PageStart::After(next),
                    (Some(next), true) => place = PageStart::Before(next),
                }
            }
            assert_eq!(all, ["job-4999"]);
            assert_eq!(portions, 3);
        }
        // As many as were asked for, and where to go on.
        let page = story
            .queue
            .search(&Filter::default(), "JOB-1", PageStart::After(0), 3);
        assert_eq!(found(&page), ["job-1", "job-10", "job-11"]);
        assert_eq!(page.next, Some(12));
    }

    #[test]
    fn large_payloads_make_small_portions() {
        let mut story = Story::new();
        let payload = "x".repeat(200_000);
        for number in 0..12 {
            story.submit(&[&format!(r#""id":"a{number}","payload":"{payload}""#)]);
        }
        let page = story
            .queue
            .search(&Filter::default(), "y", PageStart::After(0), 10);
        assert_eq!(page.next, Some(6));
        // Found by the id, so that no payload was looked at.
        let page = story
            .queue
            .search(&Filter::default(), "a", PageStart::After(0), 10);
        assert_eq!(found(&page), ["a0", "a1", "a2", "a3", "a4", "a5"]);
        assert_eq!(page.next, Some(6));
        let nobody = Filter {
            queue: Some(crate::QueueName::new("nobody").unwrap()),
            ..Filter::default()
        };
        assert_eq!(
            story
                .queue
                .search(&nobody, "x", PageStart::After(0), 10)
                .next,
            None
        );
    }
}
