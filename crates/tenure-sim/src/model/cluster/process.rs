//! One process: its machine, and the work that it has begun.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::cluster::assigner::Predecessors;
use tenure_core::cluster::member::Member;
use tenure_core::cluster::{Generation, Going, Shard};
use tenure_core::election::Term;
use tenure_core::node::{Answer, Node, Ticket};
use tenure_core::session::Holder;
use tenure_core::{Incarnation, NodeId};

use crate::clock::Clock;

#[derive(Debug, Clone, Hash)]
pub(super) struct Process {
    pub(super) slot: usize,
    pub(super) clock: Clock,
    /// Its current session.
    pub(super) me: Holder,
    pub(super) node: Node,
    pub(super) leads: Option<Term>,
    /// Whether another process was elected since, and it does not know that.
    pub(super) is_deposed: bool,
    /// The inputs that came while it was paused; `None` while it runs.
    pub(super) paused: Option<Vec<Input>>,
    pub(super) runs: BTreeMap<(Shard, Generation), Run>,
    pub(super) going: Option<Going>,
    /// Whether its session has left.
    pub(super) has_left: bool,
}

/// The state of a shard's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Run {
    Starting,
    Running,
    /// It never ends, even when told to.
    Stuck,
}

/// An input of a process.
#[derive(Debug, Clone, Hash)]
pub(super) enum Input {
    Wake,
    /// An answer to a request of that session.
    Answer(Incarnation, Ticket, Box<Answer>),
    Started(Shard, Generation),
    Ended(Shard, Generation, Option<String>),
    Elected(Term, Predecessors),
    Deposed,
    Leave(Going),
    HintAssignments,
    HintDrains,
    HintSession(NodeId, Incarnation),
}

impl Process {
    /// When it wants to be woken; `None` if never.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.clock.real(self.node.wake_at())
    }

    /// Until when it may act for a shard, on its own clock; `None` if it may not.
    pub(super) fn trusts(&self, now: Duration, shard: &Shard, generation: Generation) -> bool {
        let member = self.node.member();
        let until = member.and_then(|member| member.trusted_until(shard, generation));
        until.is_some_and(|until| self.clock.moment(now) < until)
    }

    pub(super) fn is_trusted(&self, now: Duration) -> bool {
        self.node.is_trusted(self.clock.moment(now))
    }

    /// Whether it leads and trusts itself, and no other process was elected since.
    pub(super) fn is_leader(&self, now: Duration) -> bool {
        self.leads.is_some() && !self.is_deposed && self.is_trusted(now)
    }

    pub(super) fn is_stuck_with(&self, shard: &Shard) -> bool {
        let mut runs = self.runs.iter();
        runs.any(|((other, _), run)| other == shard && *run == Run::Stuck)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.node.member().is_none_or(Member::is_idle)
    }
}
