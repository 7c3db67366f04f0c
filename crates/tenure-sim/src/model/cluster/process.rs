//! One process: its machines, and the work that it has begun.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::cluster::{Agent, Assigner, Generation, Going, Part, Shard};
use tenure_core::election::Term;
use tenure_core::session::record::About;
use tenure_core::session::{Holder, Observer, Session};
use tenure_core::{Incarnation, Moment, NodeId};

use super::store::Told;
use crate::clock::Clock;

#[derive(Debug, Clone, Hash)]
pub(super) struct Process {
    pub(super) slot: usize,
    pub(super) clock: Clock,
    /// Its current session.
    pub(super) me: Holder,
    pub(super) session: Session,
    pub(super) observer: Observer,
    pub(super) agent: Agent,
    pub(super) assigner: Assigner,
    pub(super) about: About,
    pub(super) leads: Option<Term>,
    /// Somebody else was elected since, and it has not heard of it.
    pub(super) is_deposed: bool,
    /// When to list the sessions next, while it leads and does not.
    pub(super) list_at: Option<Moment>,
    /// What has come while it was paused.
    pub(super) paused: Option<Vec<Input>>,
    pub(super) runs: BTreeMap<(Shard, Generation), Run>,
    pub(super) going: Option<Going>,
}

/// How far a shard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Run {
    Starting,
    Running,
    /// It never ends, whatever it is told.
    Stuck,
}

/// What happens to a process.
#[derive(Debug, Clone, Hash)]
pub(super) enum Input {
    Wake,
    /// An answer, to a question of that session.
    Told(Incarnation, Box<Told>),
    Started(Shard, Generation),
    Ended(Shard, Generation, Option<String>),
    Elected(Term),
    Deposed,
    Leave(Going),
    AssignmentsHint,
    DrainsHint,
    SessionHint(Incarnation),
}

impl Process {
    pub(super) fn node(&self) -> &NodeId {
        &self.me.node
    }

    /// When it wants to be woken; `None` if never.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        let machines = self
            .session
            .wake_at()
            .min(self.observer.wake_at())
            .min(self.agent.wake_at())
            .min(self.assigner.wake_at());
        let at = machines.min(self.list_at.unwrap_or(Moment::NEVER));
        self.clock.real(at)
    }

    /// Until when it may act for a shard, on its own clock; `None` if it may not.
    pub(super) fn trusts(&self, now: Duration, shard: &Shard, generation: Generation) -> bool {
        let until = self.agent.trusted_until(shard, generation);
        until.is_some_and(|until| self.clock.moment(now) < until)
    }

    pub(super) fn is_trusted(&self, now: Duration) -> bool {
        self.session.is_trusted(self.clock.moment(now))
    }

    /// Whether it leads, as far as anybody else is concerned.
    pub(super) fn is_leader(&self, now: Duration) -> bool {
        self.leads.is_some() && !self.is_deposed && self.is_trusted(now)
    }

    pub(super) fn is_stuck_with(&self, shard: &Shard) -> bool {
        let mut runs = self.runs.iter();
        runs.any(|((other, _), run)| other == shard && *run == Run::Stuck)
    }

    /// Whether it may be given anything, as far as it is concerned.
    pub(super) fn takes(&self) -> bool {
        self.going.is_none() && Part::of(&self.about).going.is_none()
    }
}
