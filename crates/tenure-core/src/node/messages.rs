//! What goes into a node, and what comes out of it.

use std::time::Duration;

use super::Ticket;
use crate::cluster::member::{self, Membership};
use crate::cluster::registry::Listed;
use crate::cluster::{Assignments, Drains};
use crate::election::{Anomaly, EndReason, Fence, Leader, Lease, Term};
use crate::session::{self, About, Holder, Record, observer};
use crate::{ElectionName, Expect, Incarnation, Lineage, Moment, Read, Version, Written};

/// What happens to a node.
#[derive(Debug, Clone, Hash)]
pub enum Input {
    /// Time has passed, or the process has just started.
    Wake,
    /// The answer to a request.
    Answer(Ticket, Answer),
    /// Take part in an election: as a candidate with a priority, or as an observer. The lineage is a
    /// random id, for an election that has never been held. Ignored once the node leaves or its session
    /// is over.
    Join {
        /// The election.
        election: ElectionName,
        /// The priority; `None` to observe.
        priority: Option<u8>,
        /// For the first term ever.
        new_lineage: Lineage,
    },
    /// Give up leadership of an election.
    Resign(ElectionName),
    /// The same, but only if this is still the term: a request of an old term must not affect a newer one.
    ResignTerm(ElectionName, Term),
    /// The same, because something is wrong with the work of that term: what it is, for people.
    GiveUpTerm(ElectionName, Term, String),
    /// Give leadership of an election to this session.
    Transfer(ElectionName, Holder),
    /// All work of a term has ended.
    WorkEnded(ElectionName, Term),
    /// This lease may have changed.
    Hint(ElectionName),
    /// Anything may have changed.
    HintAll,
    /// The process says something new about itself. Its candidacies and its part in the cluster are not taken from
    /// this: the node knows them better.
    About(About),
    /// Whether heartbeats are to be as rare as is safe.
    Spare(bool),
    /// Take part in the cluster. Changes nothing if this process does already.
    TakePart(Box<Membership>),
    /// Something has happened to the part that it takes.
    Cluster(member::Input),
    /// Give everything back and leave.
    Leave,
}

/// What the driver has to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Output {
    /// Ask the store, and give the answer back with the ticket.
    Request {
        /// Names the request.
        ticket: Ticket,
        /// What to ask.
        request: Request,
        /// When the answer counts as lost.
        within: Duration,
    },
    /// Tell the subscribers.
    Event(Event),
}

/// A request to the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Read a session.
    ReadSession {
        /// The session.
        holder: Holder,
        /// Only if it is no longer at this version.
        known: Option<Version>,
    },
    /// Write a session: this one, or one that is evicted.
    WriteSession {
        /// What to write.
        record: Box<Record>,
        /// What must be there.
        expect: Expect,
    },
    /// Read a lease.
    ReadLease {
        /// The election.
        election: ElectionName,
        /// Only if it is no longer at this version.
        known: Option<Version>,
    },
    /// Write a lease.
    WriteLease {
        /// The election.
        election: ElectionName,
        /// What to write.
        lease: Box<Lease>,
        /// What must be there.
        expect: Expect,
    },
    /// Read a fence.
    ReadFence {
        /// The election.
        election: ElectionName,
    },
    /// Write a fence.
    WriteFence {
        /// The election.
        election: ElectionName,
        /// What to write.
        fence: Fence,
        /// What must be there.
        expect: Expect,
    },
    /// Look at the assignments, for what has to run here.
    Look {
        /// Only if they are no longer at this version.
        known: Option<Version>,
    },
    /// Read the assignments, to hand out work.
    ReadAssignments {
        /// Only if they are no longer at this version.
        known: Option<Version>,
    },
    /// Write the assignments.
    WriteAssignments {
        /// What to write.
        assignments: Box<Assignments>,
        /// What must be there.
        expect: Expect,
    },
    /// Read the drains.
    ReadDrains {
        /// Only if they are no longer at this version.
        known: Option<Version>,
    },
    /// List all sessions.
    ListSessions,
    /// Delete the session of a process that is long dead. Not conditional: an incarnation is never used twice, so it is
    /// never written again.
    DeleteSession {
        /// The session.
        holder: Holder,
    },
}

impl Request {
    /// Whether it may change the store, perhaps long after its answer counts as lost.
    #[must_use]
    pub fn is_write(&self) -> bool {
        match self {
            Request::WriteSession { .. }
            | Request::WriteLease { .. }
            | Request::WriteFence { .. }
            | Request::WriteAssignments { .. }
            | Request::DeleteSession { .. } => true,
            Request::ReadSession { .. }
            | Request::ReadLease { .. }
            | Request::ReadFence { .. }
            | Request::Look { .. }
            | Request::ReadAssignments { .. }
            | Request::ReadDrains { .. }
            | Request::ListSessions => false,
        }
    }

    /// The answer to use if the store gives none; for a write it is `written`.
    #[must_use]
    pub fn unanswered(&self, written: Written) -> Answer {
        match self {
            Request::WriteSession { .. }
            | Request::WriteLease { .. }
            | Request::WriteFence { .. }
            | Request::WriteAssignments { .. } => Answer::Written(written),
            Request::ReadSession { .. } => Answer::Session(Read::Failed),
            Request::ReadLease { .. } => Answer::Lease(Read::Failed),
            Request::ReadFence { .. } => Answer::Fence(Read::Failed),
            Request::Look { .. } | Request::ReadAssignments { .. } => {
                Answer::Assignments(Read::Failed)
            }
            Request::ReadDrains { .. } => Answer::Drains(Read::Failed),
            Request::ListSessions => Answer::Sessions(None),
            Request::DeleteSession { .. } => Answer::Deleted,
        }
    }
}

/// The answer to a request, of its kind.
#[derive(Debug, Clone, Hash)]
pub enum Answer {
    /// To a write.
    Written(Written),
    /// To [`Request::ReadSession`].
    Session(Read<Record>),
    /// To [`Request::ReadLease`].
    Lease(Read<Lease>),
    /// To [`Request::ReadFence`].
    Fence(Read<Fence>),
    /// To [`Request::Look`] and [`Request::ReadAssignments`].
    Assignments(Read<Assignments>),
    /// To [`Request::ReadDrains`].
    Drains(Read<Drains>),
    /// To [`Request::ListSessions`]; `None` if the store did not give one.
    Sessions(Option<Vec<Listed>>),
    /// To [`Request::DeleteSession`], whatever happened to it: the next listing shows whether it is still there.
    Deleted,
}

/// What the driver of the node should know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The session is in the store and trusted until then.
    Trusted {
        /// The end of trust.
        until: Moment,
    },
    /// The session is over: all work stops.
    Over {
        /// Why.
        reason: session::Reason,
    },
    /// Nothing more will come from this incarnation.
    Left,
    /// Another session was found to have ended.
    SessionEnded {
        /// The session.
        incarnation: Incarnation,
        /// How.
        end: observer::End,
    },
    /// Who leads an election, if anybody does.
    Leader {
        /// The election.
        election: ElectionName,
        /// Who.
        leader: Option<Leader>,
    },
    /// This process leads: start the work.
    Elected {
        /// The election.
        election: ElectionName,
        /// The fencing token.
        term: Term,
        /// The lineage that it belongs to.
        lineage: Lineage,
    },
    /// Tell the work of this term to stop, and report when it has ended.
    Stop {
        /// The election.
        election: ElectionName,
        /// The term.
        term: Term,
    },
    /// The term is over: abort what still works, and report when it has ended.
    Ended {
        /// The election.
        election: ElectionName,
        /// The term.
        term: Term,
        /// Why.
        reason: EndReason,
    },
    /// Something that should not happen.
    Anomaly {
        /// The election.
        election: ElectionName,
        /// What happened.
        anomaly: Anomaly,
    },
    /// What this process does and knows in the cluster.
    Cluster(member::Event),
}
