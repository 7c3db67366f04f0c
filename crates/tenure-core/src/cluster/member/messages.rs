//! What goes into a member, and what comes out of it.

use super::super::assigner::{Anomaly, Predecessors};
use super::super::plan::Decision;
use super::super::record::{Generation, Shard};
use super::super::report::{Definition, Going};
use super::super::witness::Turn;
use crate::election::{Leader, Term};
use crate::node::{Answer, Request};
use crate::session::observer::End;
use crate::session::{Holder, Record};
use crate::{DaemonId, Incarnation, Lineage, Moment, NodeId};

/// What happens to a member.
#[derive(Debug, Clone, Hash)]
pub enum Input {
    /// This process can run a daemon, which has this definition for the whole cluster.
    Offer(DaemonId, Definition),
    /// This process can no longer run the daemon.
    Withdraw(DaemonId),
    /// A shard has started and runs.
    Started(Shard, Generation),
    /// A shard has ended, whatever the cause; nothing of it runs any more.
    Ended {
        /// The shard.
        shard: Shard,
        /// Its generation.
        generation: Generation,
        /// What went wrong, if something did.
        error: Option<String>,
    },
    /// A shard cannot be ended, for this reason; or, without an error, it can be ended after all.
    Stuck {
        /// The shard.
        shard: Shard,
        /// Its generation.
        generation: Generation,
        /// Why, if it still cannot be ended.
        error: Option<String>,
    },
    /// Drain everything and start nothing new. The first such input counts: a process that restarts and then leaves is
    /// still one that restarts.
    Leave(Going),
    /// Whether to follow the other nodes from now on even while this process does not lead. The initial value is
    /// [`Membership::follows`](super::Membership::follows).
    Follow(bool),
    /// The assignments may have changed.
    HintAssignments,
    /// The drains may have changed.
    HintDrains,
    /// A session may have changed.
    HintSession(NodeId, Incarnation),
    /// This process leads the election `tenure.cluster`. Its [`Node`](crate::node::Node) sends this when it wins that
    /// election. A model check that chooses leaders itself sends it instead.
    Elected(Lineage, Term, Predecessors),
    /// This process no longer leads.
    Deposed,
}

/// What a member is told by its own node.
#[derive(Debug, Clone, Hash)]
pub(crate) enum Heard {
    /// An input, passed on.
    Input(Input),
    /// Time has passed.
    Wake,
    /// The session is trusted until then.
    Trusted(Moment),
    /// The session is over: nothing is held now.
    SessionOver,
    /// What this process's session says, or will say with its next write.
    Own(Box<Record>),
    /// This process's stored session says that it assigns.
    Said,
    /// A session that is watched was read.
    Session(Box<Record>),
    /// A session has ended.
    SessionEnded(Incarnation, End),
    /// Who leads `tenure.cluster`, if anybody does.
    Leader(Option<Leader>),
    /// Anything may have changed, or a node has rung by rewriting the lease of `tenure.cluster`.
    Rung,
    /// The answer to a request.
    Answer(Question, Box<Answer>),
}

/// What a member asked the store, and for which of its machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Question {
    /// The agent's look at the assignments.
    Look,
    /// The assigner's three requests.
    Assignments,
    Write,
    Drains,
    /// The registry's three requests.
    List,
    Session(Incarnation),
    Delete,
}

/// What its node has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// Ask the store.
    Ask(Question, Request),
    /// Watch this session, evict it when that is allowed, and report what is seen of it.
    Watch(Holder),
    /// Stop watching this session.
    Forget(Incarnation),
    /// Whether nobody waits for the watched sessions to end.
    Calm(bool),
    /// Resign from `tenure.cluster`: this node is kept free, and another one can decide.
    Resign { term: Term },
    /// What the session says about the cluster has changed; see [`Member::part`](super::Member::part).
    Report,
    /// As [`Report`](Self::Report), and the member waits for [`Heard::Said`].
    Say,
    /// Tell the driver.
    Event(Event),
}

/// What the driver of the node should do or know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Start a shard. It is trusted for as long as [`Member::trusted_until`](super::Member::trusted_until)
    /// says.
    Start {
        /// The shard.
        shard: Shard,
        /// The fencing token.
        generation: Generation,
        /// How many shards the daemon had when this one was assigned.
        count: u32,
    },
    /// Tell a shard to finish, and report when it has ended.
    Drain {
        /// The shard.
        shard: Shard,
        /// Its generation.
        generation: Generation,
        /// When it will be aborted.
        until: Moment,
    },
    /// End a shard at once, and report when it has ended.
    Abort {
        /// The shard.
        shard: Shard,
        /// Its generation.
        generation: Generation,
    },
    /// How long shards are trusted has changed.
    TrustMoved,
    /// Something has happened to a shard, here or elsewhere.
    Turn(Turn),
    /// A node has joined.
    Joined(Box<Record>),
    /// A node has left on its own.
    Left(Box<Record>),
    /// A node was evicted, or its session was deleted.
    Evicted(Box<Record>),
    /// The assignments carry this term: from now on this process hands out the work.
    Installed {
        /// The term.
        term: Term,
    },
    /// These decisions are stored.
    Decided(Vec<Decision>),
    /// A newer leader has written the assignments; nothing more is decided in this term.
    Superseded {
        /// Its term.
        by: Term,
    },
    /// This node is kept free, and resigns so that another one hands out the work.
    Resigned {
        /// The term.
        term: Term,
    },
    /// The leader of this term has handed out no work for some time.
    LeaderSilent {
        /// Its term.
        term: Term,
    },
    /// Something that should not happen, for people.
    Anomaly(Anomaly),
}
