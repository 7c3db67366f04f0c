//! What goes into an election, and what comes out of it.

use std::fmt;

use super::record::{Fence, Lease, Term};
use crate::session::Holder;
use crate::session::observer::End;
use crate::{Expect, Incarnation, Lineage, Moment, NodeId, Read, Version, Written};

/// What happens to an election.
#[derive(Debug, Clone, Hash)]
pub enum Input {
    /// Time has passed.
    Wake,
    /// The lease may have changed.
    Hint,
    /// Another lease of the session that holds this one was just seen to be unchanged.
    SiblingSeen,
    /// The session is trusted until then.
    Trusted(Moment),
    /// The session is over: nothing is held now.
    SessionOver {
        /// Whether the lease may be given back.
        gives_back: bool,
    },
    /// The session that holds the lease, or that it is reserved for, has ended.
    HolderEnded(Incarnation, End),
    /// That session was missing at a look. If it leads, it may go on doing so for a ttl. A reservation for it ends at
    /// once.
    HolderMissing(Incarnation),
    /// The answer to [`Output::ReadLease`].
    LeaseRead(Read<Lease>),
    /// The answer to [`Output::WriteLease`].
    LeaseWritten(Written),
    /// The answer to [`Output::ReadFence`].
    FenceRead(Read<Fence>),
    /// The answer to [`Output::WriteFence`].
    FenceWritten(Written),
    /// All work of a term has ended, on its own or because it was told to stop.
    WorkEnded(Term),
    /// Become a candidate with this priority.
    Stand(u8),
    /// Only observe; resign if leading.
    StandDown,
    /// Give up leadership, and leave it to others for a while.
    Resign,
    /// The same, because something is wrong with the work: what it is, for people.
    GiveUp(String),
    /// Give leadership to this session.
    Transfer(Holder),
}

/// What the driver has to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Output {
    /// Read the lease, only if it is no longer at the known version.
    ReadLease {
        /// The version that is known.
        known: Option<Version>,
    },
    /// Write the lease.
    WriteLease {
        /// What to write.
        lease: Box<Lease>,
        /// What must be there.
        expect: Expect,
    },
    /// Read the fence.
    ReadFence,
    /// Write the fence.
    WriteFence {
        /// What to write.
        fence: Fence,
        /// What must be there.
        expect: Expect,
    },
    /// A lease that is or may be ours could not be read for a whole ttl: end the session, which frees it.
    Blind,
    /// Watch this session, and report when it ends.
    Watch(Holder),
    /// Stop watching this session.
    Forget(Incarnation),
    /// Who leads, if anybody does.
    Leader(Option<Leader>),
    /// This process leads: start the work.
    Elected {
        /// The fencing token.
        term: Term,
        /// The lineage that it belongs to.
        lineage: Lineage,
    },
    /// Tell the work of this term to stop, and report when it has ended.
    Stop {
        /// The term.
        term: Term,
    },
    /// The term is over: whatever still works is to be aborted.
    Ended {
        /// The term.
        term: Term,
        /// Why.
        reason: EndReason,
    },
    /// Something that should not happen, for people.
    Anomaly(Anomaly),
}

/// Who leads, as the lease says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    /// The node.
    pub node: NodeId,
    /// The process.
    pub incarnation: Incarnation,
    /// The term.
    pub term: Term,
}

/// Why a term ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// This process resigned.
    Resigned,
    /// This process resigned because something is wrong with its work.
    GaveUp {
        /// What is wrong, for people.
        why: String,
    },
    /// Someone asked for it.
    Requested {
        /// Who.
        by: NodeId,
    },
    /// Leadership goes to this node.
    Transferred {
        /// To whom.
        to: NodeId,
    },
    /// The work ended on its own.
    WorkEnded,
    /// The work was told to stop and did not in time.
    WorkDidNotStop,
    /// No renewal was confirmed in time.
    Expired,
    /// The session is over.
    SessionOver,
    /// Someone else has the lease.
    LeaseTaken,
    /// Someone deleted the lease.
    LeaseDeleted,
    /// The lease cannot be read.
    LeaseDamaged,
}

/// Something that should not happen, and that people should know about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Anomaly {
    /// The lease was deleted while the fence remembers this term.
    LeaseMissing {
        /// The highest term.
        term: Term,
    },
    /// The lease is older than the fence: restored from a copy.
    LeaseBehindFence {
        /// The lease's term.
        lease: Term,
        /// The fence's term.
        fence: Term,
    },
    /// The lease is older than a term that this process has led: restored from a copy, or created again.
    LeaseWentBack {
        /// The lease's term.
        lease: Term,
        /// The highest term that this process has led.
        led: Term,
    },
    /// The fence was deleted.
    FenceMissing {
        /// The lease's term.
        term: Term,
    },
    /// The lease cannot be read by this version.
    LeaseUnreadable,
    /// The fence cannot be read by this version.
    FenceUnreadable,
}

impl EndReason {
    /// Whether another process asked for it.
    pub(super) fn is_asked(&self) -> bool {
        matches!(
            self,
            EndReason::Requested { .. } | EndReason::Transferred { .. }
        )
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::Resigned => formatter.write_str("resigned"),
            EndReason::GaveUp { why } => write!(formatter, "gave up: {why}"),
            EndReason::Requested { by } => write!(formatter, "resigned, asked by {by}"),
            EndReason::Transferred { to } => write!(formatter, "transferred to {to}"),
            EndReason::WorkEnded => formatter.write_str("the work ended"),
            EndReason::WorkDidNotStop => formatter.write_str("the work did not stop in time"),
            EndReason::Expired => formatter.write_str("no renewal was confirmed in time"),
            EndReason::SessionOver => formatter.write_str("the session is over"),
            EndReason::LeaseTaken => formatter.write_str("another node has the lease"),
            EndReason::LeaseDeleted => formatter.write_str("the lease was deleted"),
            EndReason::LeaseDamaged => formatter.write_str("the lease cannot be read"),
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Anomaly::LeaseMissing { term } => {
                write!(
                    formatter,
                    "the lease is missing although term {term} was led; continuing with a higher term"
                )
            }
            Anomaly::LeaseBehindFence { lease, fence } => {
                write!(
                    formatter,
                    "the lease is at term {lease} but term {fence} was led; continuing with a term above both"
                )
            }
            Anomaly::LeaseWentBack { lease, led } => {
                write!(
                    formatter,
                    "the lease is at term {lease} but this process has led term {led}: it was restored from an older \
                     copy, or deleted and made again; no term is led twice here"
                )
            }
            Anomaly::FenceMissing { term } => {
                write!(
                    formatter,
                    "the fence is missing at term {term}; creating it again"
                )
            }
            Anomaly::LeaseUnreadable => {
                formatter.write_str("this version cannot read the lease; leaving it alone")
            }
            Anomaly::FenceUnreadable => {
                formatter.write_str("this version cannot read the fence; leaving it alone")
            }
        }
    }
}
