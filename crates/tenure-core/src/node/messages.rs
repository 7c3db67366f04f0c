//! What a node is told, and what it asks for and tells.

use std::time::Duration;

use super::Ticket;
use crate::election::machine::{Anomaly, EndReason, Leader};
use crate::election::{Fence, Lease, Term};
use crate::session::machine as session;
use crate::session::record::About;
use crate::session::{Holder, Record, observer};
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
        /// Which.
        election: ElectionName,
        /// The priority; `None` to observe.
        priority: Option<u8>,
        /// For the first term ever.
        new_lineage: Lineage,
    },
    /// The same for many at once, of which the session speaks in one write.
    JoinMany(Vec<Joining>),
    /// Give leadership of an election up.
    Resign(ElectionName),
    /// Give leadership of an election to this session.
    Transfer(ElectionName, Holder),
    /// All work of a term has ended.
    WorkEnded(ElectionName, Term),
    /// This lease may have changed.
    Hint(ElectionName),
    /// Anything may have changed.
    HintAll,
    /// The process says something new of itself.
    Labels(About),
    /// Watch a session, evict it when that is allowed, and tell what is seen of it and when it has ended.
    Watch(Holder),
    /// Watch it no longer.
    Forget(Incarnation),
    /// A session that is watched may have changed.
    HintSession(Incarnation),
    /// Whether anything besides elections works under this session, so that it does not leave before the
    /// end of that.
    Hold(bool),
    /// Give everything back and go.
    Leave,
}

/// One of the elections of [`Input::JoinMany`]; as in [`Input::Join`].
#[derive(Debug, Clone, Hash)]
pub struct Joining {
    /// Which.
    pub election: ElectionName,
    /// The priority; `None` to observe.
    pub priority: Option<u8>,
    /// For the first term ever.
    pub new_lineage: Lineage,
}

/// What the driver is to do.
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
    /// Tell whoever wants to know.
    Event(Event),
}

/// A request to the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Read a session.
    ReadSession {
        /// Whose.
        holder: Holder,
        /// Only if it is no longer at this version.
        known: Option<Version>,
    },
    /// Write a session: the own one, or one that is evicted.
    WriteSession {
        /// What to write.
        record: Box<Record>,
        /// What must be there.
        expect: Expect,
    },
    /// Read a lease.
    ReadLease {
        /// Of which election.
        election: ElectionName,
        /// Only if it is no longer at this version.
        known: Option<Version>,
    },
    /// Write a lease.
    WriteLease {
        /// Of which election.
        election: ElectionName,
        /// What to write.
        lease: Box<Lease>,
        /// What must be there.
        expect: Expect,
    },
    /// Read a fence.
    ReadFence {
        /// Of which election.
        election: ElectionName,
    },
    /// Write a fence.
    WriteFence {
        /// Of which election.
        election: ElectionName,
        /// What to write.
        fence: Fence,
        /// What must be there.
        expect: Expect,
    },
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
}

/// What whoever runs the node should know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The session stands and is trusted until then.
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
    /// A session that is watched on request was read.
    Session(Box<Record>),
    /// Another session was found to have ended.
    SessionEnded {
        /// Whose.
        incarnation: Incarnation,
        /// How.
        end: observer::End,
    },
    /// Someone leads an election, or nobody does.
    Leader {
        /// Which.
        election: ElectionName,
        /// Who.
        leader: Option<Leader>,
    },
    /// This process leads: start the work.
    Elected {
        /// Which election.
        election: ElectionName,
        /// The fencing token.
        term: Term,
        /// The row of terms that it belongs to.
        lineage: Lineage,
    },
    /// Tell the work of this term to stop, and say when it has ended.
    Stop {
        /// Which election.
        election: ElectionName,
        /// The term.
        term: Term,
    },
    /// The term is over: abort what still works, and say when it has ended.
    Ended {
        /// Which election.
        election: ElectionName,
        /// The term.
        term: Term,
        /// Why.
        reason: EndReason,
    },
    /// Something that should not happen.
    Anomaly {
        /// In which election.
        election: ElectionName,
        /// What.
        anomaly: Anomaly,
    },
}
