//! What a member is told, and what it asks for and tells.

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
    /// This process can run a daemon, which is to run in the whole cluster like this.
    Offer(DaemonId, Definition),
    /// It can run the daemon no longer.
    Withdraw(DaemonId),
    /// A shard has started and runs.
    Started(Shard, Generation),
    /// A shard has ended, whatever the cause; nothing of it runs any more.
    Ended {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
        /// What went wrong, if something did.
        error: Option<String>,
    },
    /// A shard cannot be ended, for this reason; or can, after all.
    Stuck {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
        /// Why, if it still cannot.
        error: Option<String>,
    },
    /// Drain everything and start nothing new. The first word counts: a process that restarts and then
    /// leaves is still one that restarts.
    Leave(Going),
    /// Know of the other nodes from now on also while this process does not lead, or no longer; as
    /// [`Membership::follows`](super::Membership::follows) says at first.
    Follow(bool),
    /// The assignments may have changed.
    HintAssignments,
    /// The drains may have changed.
    HintDrains,
    /// A session may have changed.
    HintSession(NodeId, Incarnation),
    /// This process leads the election `tenure.cluster`. Its [`Node`](crate::node::Node) says so when it
    /// wins that election; a check that chooses leaders itself says so instead.
    Elected(Lineage, Term, Predecessors),
    /// It does not lead any more.
    Deposed,
}

/// What else a member hears, from its own node.
#[derive(Debug, Clone, Hash)]
pub(crate) enum Heard {
    /// Passed on.
    Input(Input),
    /// Time has passed.
    Wake,
    /// The session is trusted until then.
    Trusted(Moment),
    /// The session is over: nothing is held any more.
    SessionOver,
    /// What the own session says, or will say with its next write.
    Own(Box<Record>),
    /// The own session as it is stored says that it assigns.
    Said,
    /// A session that is watched was read.
    Session(Box<Record>),
    /// A session has ended.
    SessionEnded(Incarnation, End),
    /// Somebody leads `tenure.cluster`, or nobody does.
    Leader(Option<Leader>),
    /// Anything may have changed, or somebody has rung at the lease of `tenure.cluster`.
    Rung,
    /// The answer to a request.
    Answer(Question, Box<Answer>),
}

/// What a member asked the store, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Question {
    /// The agent's look at the assignments.
    Look,
    /// The assigner's three.
    Assignments,
    Write,
    Drains,
    /// The registry's three.
    List,
    Session(Incarnation),
    Delete,
}

/// What its node is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// Ask the store.
    Ask(Question, Request),
    /// Watch this session, evict it when that is allowed, and tell what is seen of it.
    Watch(Holder),
    /// Watch it no longer.
    Forget(Incarnation),
    /// Whether nothing waits for the end of those that are watched.
    Calm(bool),
    /// Resign from `tenure.cluster`: this node is kept free, and another one can decide.
    Resign { term: Term },
    /// What the session says of the cluster has changed; see [`Member::part`](super::Member::part).
    Report,
    /// The same, and [`Heard::Said`] is waited for.
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
        /// Which.
        shard: Shard,
        /// The fencing token.
        generation: Generation,
        /// How many shards the daemon has, as far as this one is concerned.
        count: u32,
    },
    /// Tell a shard to finish, and say when it has ended.
    Drain {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
        /// When it will be aborted.
        until: Moment,
    },
    /// End a shard at once, and say when it has ended.
    Abort {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
    },
    /// Shards may be trusted for longer than before, or for less.
    TrustMoved,
    /// Something has happened to a shard, here or elsewhere.
    Turn(Turn),
    /// A node is there.
    Joined(Box<Record>),
    /// A node has left by itself.
    Left(Box<Record>),
    /// A node was evicted, or its session was deleted.
    Evicted(Box<Record>),
    /// The assignments carry this term: from now on this process hands out the work.
    Installed {
        /// The term.
        term: Term,
    },
    /// These decisions stand in the store.
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
