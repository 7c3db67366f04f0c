//! Cluster: who runs which daemon.
//!
//! # The protocol
//!
//! A *daemon* is long-running work in numbered *shards*. The leader of the election `tenure.cluster` decides which
//! session runs which shard and writes that down in one object, the *assignments*: the desired state. Each node reports
//! in its own session object what it can run, and the state of each shard that it was given: the actual state. The two
//! never share an object, so leader and nodes never contend. A third object, the *drains*, names the nodes that
//! operators want to be kept free.
//!
//! The objects are `<namespace>/cluster/assignments` and `<namespace>/cluster/drains`. Their keys have three segments
//! because hints are told apart by the first two: on PostgreSQL, a change directly under a namespace would wake no
//! watcher.
//!
//! ```text
//!                 written            node reports running            written
//!   unassigned ----------> assigning --------------------> active ----------> revoking
//!       ^                      |  |                           |                  |
//!       |                      |  +------ not in time --------|----------------->|
//!       |                      v                              v                  v
//!       +---- node reports stopped or failed, or its session has ended, or (revoking only) the
//!             drain timeout is over: free, and mostly given to another node in the same write
//! ```
//!
//! **Generations.** Every assignment has a generation, the fencing token of what it starts. All are drawn from one
//! counter in the assignments, so they only grow, even if a daemon is removed meanwhile. A node starts a generation at
//! most once.
//!
//! **Installing.** A new leader first rewrites the assignments as they are, under its term, expecting the version it
//! read. From then on the write of any older leader fails, so each write builds on the one before, whichever processes
//! believe that they lead. Everything that safety needs is in the objects; what a leader keeps in memory (timeouts,
//! failures) starts from nothing with the next one, which only makes it wait.
//!
//! **Lost assignments.** If there was a leader before and there are no assignments, they were deleted, and nodes may
//! still run shards that the new leader does not know of. The assignments are made again from what nodes report, and
//! marked as *recovering*. For a drain timeout no free shard is given out; the next leader sees the mark and waits as
//! well. A leader that died before it assigned anything must not cost that wait. So every session states that it has
//! assigned nothing, and a leader takes that back, in the store, after its term is on the assignments and before it
//! decides. If all earlier leaders still state it, there was nothing to lose.
//!
//! **Reports are promises.** A shard that its node reports stopped or failed has ended and will not start again in that
//! generation. If a shard is not reported, nothing follows: the node may have read its assignment and be about to start
//! it. So a revoke is confirmed only by a report, never by silence, even for a shard that was never started.
//!
//! **Looking.** A node that offers or runs something looks at the assignments with every heartbeat and with every hint.
//! It trusts itself with a shard while its session is trusted *and* while the shard was seen to be assigned to it, not
//! revoking, in a look that started less than nine tenths of the drain timeout ago. After that it aborts the shard.
//! This lets the leader take a shard from a node that is alive and does not answer: once the drain timeout has passed
//! since the leader knew the revoke to be stored, no node can still trust a look from before. The drain timeout that
//! counts is the one in the object, so nodes need not be configured alike. A leader with a shorter one goes on waiting
//! for the longer one for as long as a node may have seen it.
//!
//! **The number of shards.** An assignment remembers how many shards the daemon had when it was made, and the shard is
//! told that number. When a different number takes effect, every shard is revoked, and none is started before all
//! shards of the former number have ended: a piece of work is never in two shards at one time.
//!
//! **What cannot be ended.** A node that cannot end a shard reports that (a program that now belongs to another user
//! cannot be killed). It keeps the shard for as long as its session lives, whatever the drain timeout.
//!
//! **Dead nodes.** The shards of a session are free when it has ended: gone, evicted, or missing for a whole ttl.
//! Silence moves nothing. If a node says that it is restarting, its shards are kept for it for a while.
//!
//! **Knowing who is there.** Every node lists the sessions with each heartbeat and reads those that seem to have come
//! or gone; see [`registry`]. The leader watches every live session, and removes what dead ones left behind, long
//! after.
//!
//! **At rest.** While no node offers a daemon and there are no assignments, no look is urgent: a leader that does not
//! follow the others looks at assignments, drains and the list of sessions once in ten heartbeats, and at each session
//! just before it would count as dead. A node that offers its first daemon is noticed by a hint, or because it *rings*:
//! it rewrites the lease of `tenure.cluster` unchanged, which its leader reads anyway. Then drains are read before
//! anything is placed.
//!
//! **Events.** Every node learns what happens to every shard from the assignments, which it looks at anyway; the leader
//! notes in them what went wrong. Steps between two looks are left out, and no event is taken back; see [`witness`].
//!
//! **One member per process.** The part of one process is a [`Member`](member::Member): the [`agent`], which runs what is
//! assigned, the [`assigner`], which decides while the process leads, the [`registry`] and the [`witness`].
//! The process's [`Node`](crate::node::Node) holds it beside the session and the elections, and wires them.
//! Nothing else does.
//!
//! **Placing.** What is free goes to the least loaded node that offers the daemon, has its labels and has room,
//! counting what this pass has given out already. Then shards are moved from more to less loaded nodes, while that
//! brings their loads closer together, a limited number at a time, and not while nodes come and go. A node where a
//! shard has failed is passed over for a while, which doubles with every failure. A node that was killed and is back
//! counts as loaded with what its old session still holds.
//!
//! # What is guaranteed
//!
//! - A shard is never trusted by two processes at one time, if clocks differ in rate by less than the session's margin
//!   and a tenth, whichever processes lead, and however reads and writes are delayed or their answers lost.
//! - The generations in which a shard starts only grow, over all nodes.
//! - Shards of one daemon that were told different numbers of shards are never trusted at one time.
//! - A node does not start a shard while an older generation of it has not ended there.
//! - A live node's shards move only when they are revoked; a dead one's only when its session has ended.
//! - At most one write of the assignments is in flight, and once installed a leader starts at most one per
//!   cycle.
//! - When nodes, operators and the store come to rest, every shard that some node can run is running, and
//!   between two nodes that may run the same work the loads differ by no more than the lightest shard
//!   that could be moved.
//!
//! # What is not
//!
//! - A daemon that acts without checking its trust may act late when its process is paused: pass the generation on, and
//!   let the receiver refuse an older one.
//! - If the assignments are deleted, they are made again from what live nodes report, nothing is given out for a drain
//!   timeout, and generations go on above everything reported and above the term times 2^20. A daemon that used more
//!   than that in a term and runs nowhere could see a generation twice.
//! - If the assignments are replaced with an older copy while nodes look, a node may believe the copy until
//!   the leader's next look: at most one heartbeat.
//! - Capacity limits what is given to a node. Shards that are there when it shrinks stay.
//! - Balance looks at two nodes at a time: a chain of moves over a third, which labels may require, is never made.

pub mod agent;
pub mod assigner;
mod config;
mod decide;
mod desired;
mod drained;
pub mod member;
mod memory;
mod nodes;
mod placement;
mod plan;
mod record;
pub mod registry;
mod report;
pub mod witness;

pub use config::Config;
pub use plan::{Decision, Reason};
pub use record::{
    Assignment, AssignmentState, Assignments, Daemon, Drained, Drains, Failure, Generation, Shard,
};
pub use report::{
    Count, Definition, DefinitionError, Going, Part, Run, RunState, SHARDS_MAX, Stuck, WEIGHT_MAX,
};
