//! Installing: a leader reads the assignments and puts its term on them, and does so again if they were deleted or
//! replaced. It decides nothing before that.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::decide::reported;
use super::super::desired;
use super::super::record::{Assignments, Generation};
use super::{Anomaly, Assigner, Flight, Output, Phase, Saying, Stored};
use crate::election::Term;
use crate::{Expect, Moment, Nonce, Now, Read, Version, Wall};

/// If the assignments are lost, generations go on above the term times this, and above everything that is reported. A
/// term would have to give out a million generations to reach the range of the next.
const GENERATIONS_PER_TERM: u64 = 1 << 20;

impl Assigner {
    pub(super) fn on_read(
        &mut self,
        now: Moment,
        read: Read<Assignments>,
        outputs: &mut Vec<Output>,
    ) {
        if !matches!(self.in_flight.take(), Some(Flight::Read)) {
            return;
        }
        self.due = now + self.random.jitter(self.pause());
        match read {
            Read::Failed => {
                self.due = now + self.random.jitter(self.retry);
                return;
            }
            Read::Unreadable { .. } => {
                // A newer version of Tenure may have written it: never write over it.
                self.must_read = true;
                outputs.push(Output::Anomaly(Anomaly::AssignmentsUnreadable));
                return;
            }
            Read::Unchanged { .. } if matches!(self.stored, Stored::Nothing) => {
                // The answer to a request of an earlier term.
                self.due = now;
                return;
            }
            Read::Unchanged { .. } => {}
            Read::Missing => self.on_missing(outputs),
            Read::Found {
                record, version, ..
            } => self.on_found(now, record, version, outputs),
        }
        self.must_read = false;
    }

    fn on_missing(&mut self, outputs: &mut Vec<Output>) {
        match self.phase {
            Phase::Installing { .. } => self.stored = Stored::Missing,
            Phase::Leading { term, .. } => {
                outputs.push(Output::Anomaly(Anomaly::AssignmentsMissing));
                self.phase = Phase::Installing { term, lost: true };
                self.stored = Stored::Missing;
            }
            Phase::Following | Phase::Superseded => {}
        }
    }

    fn on_found(
        &mut self,
        now: Moment,
        found: Assignments,
        version: Version,
        outputs: &mut Vec<Output>,
    ) {
        let (Phase::Installing { term, .. } | Phase::Leading { term, .. }) = self.phase else {
            return;
        };
        let is_mine = found.term == term
            && found.lineage == self.lineage
            && found.writer.incarnation == self.me.incarnation;
        if self.is_newer(&found, term) && !is_mine {
            outputs.push(Output::Superseded { by: found.term });
            self.rest(Phase::Superseded, outputs);
            return;
        }
        let newest = match &self.stored {
            Stored::Found { assignments, .. }
                if assignments.term == term && assignments.lineage == self.lineage =>
            {
                assignments.writer.counter
            }
            _ => 0,
        };
        // An older write of ours, after a newer one was confirmed, is a restored copy.
        if is_mine && found.writer.counter >= newest {
            // Whichever of our writes was applied, it is the desired state.
            self.adopt(now, found, version, outputs);
        } else if newest > 0 {
            outputs.push(Output::Anomaly(Anomaly::AssignmentsRestored));
            self.phase = Phase::Installing { term, lost: true };
            self.restored(&found, version);
        } else {
            self.stored = Stored::Found {
                assignments: Box::new(found),
                version,
            };
        }
    }

    /// Whether a newer leader wrote this. Terms of one lineage are ordered by their number. A lineage that this process
    /// does not know is older if it was there when this process was elected: the election was started over, and the
    /// leader before has ended. If it is found later, a successor wrote it.
    fn is_newer(&self, found: &Assignments, term: Term) -> bool {
        match (found.lineage, self.lineage) {
            (Some(found), Some(mine)) if found != mine => {
                matches!(self.phase, Phase::Leading { .. })
            }
            _ => found.term >= term,
        }
    }

    /// Something older has overwritten what this leader wrote. Nodes go by what they saw last, which is what this
    /// leader wrote; only the version to write over has changed.
    fn restored(&mut self, found: &Assignments, place: Version) {
        if let Stored::Found {
            assignments,
            version,
        } = &mut self.stored
        {
            assignments.generation = assignments.generation.max(found.generation);
            assignments.force_after = assignments.force_after.max(found.force_after);
            *version = place;
        }
    }

    /// Takes over what is stored: this process wrote it in this term.
    pub(super) fn adopt(
        &mut self,
        now: Moment,
        assignments: Assignments,
        version: Version,
        outputs: &mut Vec<Output>,
    ) {
        if let Phase::Installing { term, .. } = self.phase {
            let wait = if assignments.recovering {
                // Nodes may have seen something else meanwhile, so all times count from now.
                self.memory.forget_timers();
                assignments.force_after
            } else {
                Duration::ZERO
            };
            self.phase = Phase::Leading {
                term,
                place_from: now + wait,
                longer: (assignments.force_after, now + assignments.force_after),
            };
            outputs.push(Output::Installed { term });
            if self.saying == Saying::NotYet {
                self.saying = Saying::Asked;
                outputs.push(Output::Say);
            }
        }
        if let Some((counter, decisions)) = self.unsettled_decisions.take()
            && counter == assignments.writer.counter
            && !decisions.is_empty()
        {
            outputs.push(Output::Decided(decisions));
        }
        self.nodes
            .forget_ended(|incarnation| assignments.holders.contains_key(&incarnation));
        self.memory
            .observe(now, &assignments, &reported(&assignments, &self.nodes));
        self.stored = Stored::Found {
            assignments: Box::new(assignments),
            version,
        };
        self.decide_at = now;
    }

    /// Puts the term on the otherwise unchanged assignments, so that an older leader's next write fails.
    pub(super) fn take(&mut self, now: Now, term: Term, mut lost: bool, outputs: &mut Vec<Output>) {
        let (base, expect) = match &self.stored {
            Stored::Nothing => return,
            Stored::Found {
                assignments,
                version,
            } => ((**assignments).clone(), Expect::Version(version.clone())),
            // Lost assignments are made again from what the nodes report, so the nodes must have been listed.
            Stored::Missing if !self.listed => return,
            Stored::Missing => {
                if !lost && !self.is_first() {
                    lost = true;
                    self.phase = Phase::Installing { term, lost };
                    outputs.push(Output::Anomaly(Anomaly::AssignmentsMissing));
                }
                (self.made_anew(now.wall, term, lost), Expect::Absent)
            }
        };
        let drain_timeout = self.config.drain_timeout;
        let assignments = Assignments {
            lineage: self.lineage,
            term,
            drain_timeout,
            force_after: base.force_after.max(drain_timeout),
            recovering: base.recovering || lost,
            generation: base.generation.max(self.generation),
            ..base
        };
        self.write(now, assignments, expect, Vec::new(), outputs);
    }

    /// Whether nothing was ever assigned, so that nothing can have been lost: all earlier leaders say that they
    /// assigned nothing. A leader takes that back before it assigns, and a session that has ended still says what it
    /// last said.
    fn is_first(&self) -> bool {
        let predecessors = self.predecessors.as_ref();
        predecessors.is_some_and(|all| all.is_subset(&self.has_assigned_none))
    }

    /// Makes assignments from what live nodes report.
    fn made_anew(&self, at: Wall, term: Term, lost: bool) -> Assignments {
        let floor = if lost {
            term.0.saturating_mul(GENERATIONS_PER_TERM)
        } else {
            0
        };
        let blank = Assignments {
            lineage: self.lineage,
            term,
            writer: self.writer(Nonce::default()),
            generation: Generation(floor),
            drain_timeout: self.config.drain_timeout,
            force_after: self.config.drain_timeout,
            recovering: lost,
            holders: BTreeMap::new(),
            daemons: BTreeMap::new(),
        };
        desired::adopt_reports(blank, self.nodes.live().values(), at)
    }
}
