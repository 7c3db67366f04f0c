//! Notices a leader that hands out no work: elected, but stuck, or of a version that cannot read the assignments.

use std::time::Duration;

use crate::Moment;
use crate::election::{Leader, Term};

#[derive(Debug, Clone, Default, Hash)]
pub(super) struct Silence {
    /// The term that has not been seen on the assignments, and since when it is known.
    leader: Option<(Term, Moment)>,
    warned: Option<Term>,
}

impl Silence {
    pub(super) fn led_by(&mut self, now: Moment, leader: Option<&Leader>) {
        self.leader = leader.map(|leader| (leader.term, now));
    }

    /// Notes that the assignments carry this term.
    pub(super) fn heard(&mut self, of: Term) {
        if self.leader.is_some_and(|(term, _)| term == of) {
            self.leader = None;
        }
    }

    /// Returns the term of a leader that has been silent for too long, once.
    pub(super) fn check(&mut self, now: Moment, patience: Duration) -> Option<Term> {
        let (term, since) = self.leader?;
        let is_news = now.since(since) >= patience && self.warned != Some(term);
        is_news.then(|| {
            self.warned = Some(term);
            term
        })
    }
}
