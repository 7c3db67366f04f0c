//! What goes into an assigner, and what comes out.

use std::collections::BTreeSet;

use super::super::plan::Decision;
use super::super::record::{Assignments, Drains};
use crate::election::Term;
use crate::session::observer::End;
use crate::session::{Holder, Record};
use crate::{Expect, Incarnation, Lineage, Read, Version, Written};

/// What happens to an assigner.
#[derive(Debug, Clone, Hash)]
pub enum Input {
    /// Time has passed.
    Wake,
    /// This process leads the election `tenure.cluster` of the namespace, after these leaders. List the sessions now.
    Elected(Lineage, Term, Predecessors),
    /// This process no longer leads.
    Ended,
    /// All session objects, alive or not, listed after [`Input::Elected`].
    Sessions(Vec<Record>),
    /// One session object.
    Session(Box<Record>),
    /// A session that was watched has ended.
    SessionEnded(Incarnation, End),
    /// The answer to [`Output::Read`].
    Read(Read<Assignments>),
    /// The answer to [`Output::Write`].
    Written(Written),
    /// The answer to [`Output::ReadDrains`].
    DrainsRead(Read<Drains>),
    /// The drains may have changed.
    DrainsHint,
    /// What [`Output::Say`] asks for is stored.
    Said,
}

/// The leaders of all earlier terms; `None` if they are not known.
pub type Predecessors = Option<BTreeSet<Incarnation>>;

/// What the driver has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Read the assignments, only if they are no longer at the known version.
    Read {
        /// The version that is known.
        known: Option<Version>,
    },
    /// Write the assignments.
    Write {
        /// What to write.
        assignments: Box<Assignments>,
        /// What must be there.
        expect: Expect,
    },
    /// Read the drains, only if they are no longer at the known version.
    ReadDrains {
        /// The version that is known.
        known: Option<Version>,
    },
    /// Write into this process's session that it assigns, see
    /// [`Part::has_assigned_none`](super::Part::has_assigned_none), and report when that is stored.
    Say,
    /// Watch this session, evict it when that is allowed, and report when it has ended.
    Watch(Holder),
    /// Stop watching this session.
    Forget(Incarnation),
    /// The assignments carry this term: from now on this process decides.
    Installed {
        /// The term.
        term: Term,
    },
    /// These decisions are stored.
    Decided(Vec<Decision>),
    /// A newer leader has written the assignments; nothing more comes in this term.
    Superseded {
        /// Its term.
        by: Term,
    },
    /// Resign from the election: this node is kept free, and another one can decide.
    Resign {
        /// The term.
        term: Term,
    },
    /// Something that should not happen, for people.
    Anomaly(Anomaly),
}

/// Something that should not happen, and that people should know about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Anomaly {
    /// The assignments were deleted, or there was a leader before and it is not certain that there were none. They are
    /// made again from what the nodes report.
    AssignmentsMissing,
    /// The assignments are older than what this leader wrote: restored from a copy.
    AssignmentsRestored,
    /// The assignments cannot be read by this version, so nothing is decided.
    AssignmentsUnreadable,
    /// The drains cannot be read by this version; the last known ones count.
    DrainsUnreadable,
}
