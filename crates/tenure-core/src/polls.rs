//! Polls of many leases, answered by one listing.
//!
//! A process in a thousand elections has to look at a thousand leases in every heartbeat, and nearly always nothing has
//! changed. A listing shows the versions of a thousand objects in one request, so a poll that would only hear
//! "unchanged" is answered from there; whatever looks changed or missing is read.
//!
//! That is as good as a separate read: the core counts trust from the moment when it asked for the look, and a listing
//! serves only polls that were made before it was started. Each line of it, on any page, was read after that.
//!
//! # Listings that are slow, or fail
//!
//! A namespace may have many more elections than this process is in, and a page may be slow. So:
//!
//! - A page serves the polls whose names it has passed, whether or not the next one arrives.
//! - Polls that have waited for as long as a request may take are late. From then on some are read for each page, from the end of
//!   the alphabet, while the listing goes on from its beginning until they meet.
//! - A page that fails, or does not come in time, ends its listing. The remaining leases are read one by one.
//! - A further page that could serve no more than ten polls is not asked for: they are read instead.
//! - Every page shows how many pages there are, so the next polls know whether a listing is worth it.
//!
//! # Hints
//!
//! Thousands of changes at once, most of them our own, become hints that anything may have changed, one after the other.
//! Each makes every election look, so there is a [pause](Polls::hint) between them, and none while a listing is under way.
//!
//! This module only decides. The driver sends the requests.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::node::{Request, Ticket};
use crate::session::Config;
use crate::{ElectionName, Moment, Version};

/// How many single reads a page of a listing must save: a listing is a heavier request than they are.
const SAVED_MIN: usize = 10;

/// The time between two hints that make every election look, in pauses of a listing.
const HINT_PAUSES: u32 = 3;

/// How many late polls are read for each page while a listing brings them: the page serves many more, and the other
/// requests of elections need their turn too.
const LATE_MAX: usize = 100;

/// A look at a lease whose version is known.
#[derive(Debug, Clone, Hash)]
pub struct Poll {
    /// Names the request.
    pub ticket: Ticket,
    /// The election.
    pub election: ElectionName,
    /// The version that is known.
    pub known: Version,
    /// How long the answer may take.
    pub within: Duration,
    /// When it was asked for.
    pub asked: Moment,
}

impl From<Poll> for Request {
    fn from(poll: Poll) -> Self {
        Request::ReadLease {
            election: poll.election,
            known: Some(poll.known),
        }
    }
}

/// The polls that wait, and the listing that is under way. Leases are listed by `K`, in its order.
#[derive(Debug, Clone, Hash)]
pub struct Polls<K> {
    /// How long a listing waits for more polls. Polls are jittered, so they come one by one.
    pause: Duration,
    /// How long a poll waits for its page.
    patience: Duration,
    /// The polls that wait for the next listing, and when it is to start.
    gathering: Group<K>,
    starts_at: Moment,
    /// The polls that wait for the listing that is under way.
    listed: Group<K>,
    /// How many pages of it have come; `None` while there is none under way.
    pages_seen: Option<usize>,
    /// When the last page of it came, or it began, and how many late polls have been read since.
    page_at: Moment,
    late: usize,
    /// The polls whose listing has ended without an answer for them.
    left: Vec<Poll>,
    /// How many pages there are, as far as is known.
    pages: usize,
    /// Whether a hint that anything may have changed has come and not been acted on, and when the next one may be.
    is_hinted: bool,
    hints_from: Moment,
}

#[derive(Debug, Clone, Hash)]
struct Group<K> {
    polls: BTreeMap<K, Poll>,
    late_at: Moment,
}

impl<K> Group<K> {
    fn empty() -> Self {
        Self {
            polls: BTreeMap::new(),
            late_at: Moment::NEVER,
        }
    }
}

/// A page of a listing of leases, in order.
#[derive(Debug, Clone, Hash)]
pub struct Page<K> {
    /// The leases, each with its version.
    pub leases: Vec<(K, Version)>,
    /// Whether there are more after them.
    pub more: bool,
}

/// What a page means for the polls that waited for it.
#[derive(Debug)]
pub struct Shown<K> {
    /// These are at the version that was known.
    pub unchanged: Vec<Poll>,
    /// These have changed or are missing, so they must be read.
    pub changed: Vec<Poll>,
    /// The listing goes on after this one.
    pub next: Option<K>,
}

impl<K: Ord + Clone> Polls<K> {
    /// Makes the polls of a process with these times.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        // The time limit of an answer counts from when it was asked for, so the wait for more polls is short.
        let pause = config.heartbeat.min(config.request_timeout) / 4;
        Self::with(pause, config.request_timeout)
    }

    fn with(pause: Duration, patience: Duration) -> Self {
        Self {
            pause,
            patience,
            gathering: Group::empty(),
            starts_at: Moment::NEVER,
            listed: Group::empty(),
            pages_seen: None,
            page_at: Moment::default(),
            late: 0,
            left: Vec::new(),
            pages: 1,
            is_hinted: false,
            hints_from: Moment::default(),
        }
    }

    /// Whether a listing costs less than looking at this many objects one by one.
    #[must_use]
    pub fn is_worth(&self, objects: usize) -> bool {
        objects > SAVED_MIN * self.pages
    }

    /// Adds a poll to a listing that has not been started yet: soon, or when others have had time to join.
    pub fn join(&mut self, key: K, poll: Poll, is_hinted: bool) {
        let pause = if is_hinted {
            Duration::ZERO
        } else {
            self.pause
        };
        self.starts_at = self.starts_at.min(poll.asked + pause);
        self.gathering.late_at = self.gathering.late_at.min(poll.asked + self.patience);
        self.gathering.polls.insert(key, poll);
    }

    /// Notes a hint that anything may have changed.
    pub fn hint(&mut self) {
        self.is_hinted = true;
    }

    /// Whether every election has to look now, because of a hint.
    pub fn take_hint(&mut self, now: Moment) -> bool {
        let is_due = self.is_hinted && self.pages_seen.is_none() && now >= self.hints_from;
        if is_due {
            self.is_hinted = false;
            self.hints_from = now + self.pause * HINT_PAUSES;
        }
        is_due
    }

    /// When to call [`start`](Self::start), [`take_late`](Self::take_late) or [`take_hint`](Self::take_hint) next.
    #[must_use]
    pub fn wake_at(&self, now: Moment) -> Moment {
        let starts_at = match self.pages_seen {
            None => self.starts_at,
            Some(_) => Moment::NEVER,
        };
        // Those that are late already wait for their turn, not for time.
        let late_at = self.gathering.late_at.min(self.listed.late_at);
        let late_at = if late_at > now {
            late_at
        } else {
            Moment::NEVER
        };
        let hints_at = if self.is_hinted && self.pages_seen.is_none() {
            self.hints_from
        } else {
            Moment::NEVER
        };
        let stalls_at = if self.is_steady(now) && self.late >= LATE_MAX {
            self.page_at + self.page_patience()
        } else {
            Moment::NEVER
        };
        starts_at.min(late_at).min(hints_at).min(stalls_at)
    }

    /// Whether a listing is to be started now. There is one at a time.
    pub fn start(&mut self, now: Moment) -> bool {
        if self.pages_seen.is_some() || now < self.starts_at {
            return false;
        }
        self.starts_at = Moment::NEVER;
        if self.gathering.polls.is_empty() {
            self.gathering = Group::empty();
            return false;
        }
        self.listed = std::mem::replace(&mut self.gathering, Group::empty());
        self.pages_seen = Some(0);
        (self.page_at, self.late) = (now, 0);
        true
    }

    /// Takes the page that was asked for, or `None` if it did not come.
    pub fn on_page(&mut self, now: Moment, page: Option<Page<K>>) -> Shown<K> {
        (self.page_at, self.late) = (now, 0);
        let mut shown = Shown {
            unchanged: Vec::new(),
            changed: Vec::new(),
            next: None,
        };
        let Some(Page { leases, more }) = page else {
            self.end();
            return shown;
        };
        let seen = self.pages_seen.unwrap_or_default() + 1;
        let last = leases.last().map(|(key, _)| key.clone());
        let passed = match last.filter(|_| more) {
            // All polls up to the last lease of this page.
            Some(last) => {
                let mut after = self.listed.polls.split_off(&last);
                if let Some(at) = after.remove(&last) {
                    self.listed.polls.insert(last.clone(), at);
                }
                shown.next = Some(last);
                std::mem::replace(&mut self.listed.polls, after)
            }
            None => std::mem::take(&mut self.listed.polls),
        };
        for (key, poll) in passed {
            let at = leases.binary_search_by(|(listed, _)| listed.cmp(&key));
            if at.is_ok_and(|at| leases[at].1 == poll.known) {
                shown.unchanged.push(poll);
            } else {
                shown.changed.push(poll);
            }
        }
        self.pages_seen = Some(seen);
        self.pages = match shown.next {
            Some(_) => self.pages.max(seen + 1),
            None => seen,
        };
        if shown.next.is_none() || self.listed.polls.len() <= SAVED_MIN {
            shown.next = None;
            self.end();
        }
        shown
    }

    /// The next poll that must be read on its own, if any.
    pub fn take_late(&mut self, now: Moment) -> Option<Poll> {
        if let Some(poll) = self.left.pop() {
            return Some(poll);
        }
        if self.is_steady(now) && self.late >= LATE_MAX {
            return None;
        }
        // The listing goes on from the other end.
        let late = [&mut self.listed, &mut self.gathering]
            .into_iter()
            .filter(|group| group.late_at <= now)
            .find_map(|group| group.polls.pop_last());
        self.late += usize::from(late.is_some());
        late.map(|(_, poll)| poll)
    }

    /// Whether a listing is under way and its next page can still be expected soon.
    fn is_steady(&self, now: Moment) -> bool {
        self.pages_seen.is_some() && now < self.page_at + self.page_patience()
    }

    fn page_patience(&self) -> Duration {
        self.patience / 4
    }

    fn end(&mut self) {
        self.pages_seen = None;
        let listed = std::mem::replace(&mut self.listed, Group::empty());
        self.left.extend(listed.polls.into_values());
    }
}

#[cfg(test)]
mod tests;
