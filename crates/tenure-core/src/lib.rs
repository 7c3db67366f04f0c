//! The pure core of Tenure: state machines that decide, and the records they decide about.
//!
//! Nothing here waits, reads a clock, draws a random number or touches storage. A driver takes an input, calls `step`,
//! carries out the outputs and sleeps until `wake_at`. That makes every decision testable from text and searchable by a
//! model checker, on the very code that runs in production.
//!
//! - [`session`]: a process's liveness, the only thing that is ever renewed.
//! - [`election`]: who leads, as a lease that is written only when leadership changes.
//! - [`cluster`]: who runs which daemon, as desired by the leader and reported by the nodes.
//! - [`node`]: one process as one machine: its session, what it knows of others, its elections, and its part in the
//!   cluster.
//! - [`polls`]: many looks at leases, answered by one listing.
//! - [`queue`]: the durable job queue: commands in, events out, replayed exactly.
//!
//! Read [`session`] first, then [`election`]: their module texts are the protocol.

pub mod cluster;
pub mod election;
#[cfg(test)]
mod fuzz;
mod io;
pub mod node;
pub mod polls;
pub mod queue;
mod random;
mod record;
pub mod session;
mod time;

pub use io::{Expect, Read, Version, Written};
pub use record::RecordError;
pub use tenure_api::{
    DaemonId, ElectionName, Incarnation, JobId, JobType, Lineage, NameError, Namespace, NodeId,
    Nonce, QueueName, ScheduleName,
};
pub use time::{ClockId, Moment, Now, Reading, Wall};
