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
    /// This process leads the election `tenure.cluster` of the namespace, after these. List the sessions now.
    Elected(Lineage, Term, Predecessors),
    /// It does not lead any more.
    Ended,
    /// Every session object there is, alive or not, listed after [`Input::Elected`].
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
    /// What [`Output::Say`] asks for stands in the store.
    Said,
}

/// Who led before, all of them; `None` if that is not known.
pub type Predecessors = Option<BTreeSet<Incarnation>>;

/// What the driver is to do.
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
    /// Say in the own session that it assigns, see [`Part::has_assigned_none`](super::Part::has_assigned_none), and
    /// tell when that is stored.
    Say,
    /// Watch this session, evict it when that is allowed, and tell when it has ended.
    Watch(Holder),
    /// Watch it no longer.
    Forget(Incarnation),
    /// The assignments carry this term: from now on this process decides.
    Installed {
        /// The term.
        term: Term,
    },
    /// These decisions stand in the store.
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

/// Something that should not happen: people should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Anomaly {
    /// The assignments were deleted, or somebody led before and it is not known that there were none. They are made
    /// anew from what the nodes report.
    AssignmentsMissing,
    /// The assignments are older than what this leader wrote: restored from a copy.
    AssignmentsRestored,
    /// The assignments cannot be read by this version, so nothing is decided.
    AssignmentsUnreadable,
    /// The drains cannot be read by this version; the last that were known count.
    DrainsUnreadable,
}
