//! Leader election on storage you already have, to embed in a program of your own.
//!
//! A [`Node`] is this process's session in a namespace: one heartbeat, on a thread and connection of its
//! own, however many elections it takes part in. [`Node::join`] makes it a candidate in an [`Election`];
//! each time it wins it gets a [`Leadership`], valid for one term.
//!
//! ```
//! use tenure::{Node, NodeOptions};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure::Error> {
//! let node = Node::start(NodeOptions::new("memory:", "demo")).await?;
//! let election = node.join("reports").await?;
//!
//! let leadership = election.elected().await?;
//! let done = leadership.run(async { "only one node does this at a time" }).await;
//! assert!(done.is_ok());
//!
//! node.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! What is guaranteed, what is not, and under which assumptions: [`tenure_core::session`] and
//! [`tenure_core::election`].

mod clock;
pub mod cluster;
pub mod daemon;
mod driver;
mod duplicates;
mod election;
mod error;
mod fence;
mod follow;
mod inspect;
mod keys;
mod leadership;
pub mod log;
mod metrics;
mod node;
mod nudge;
mod one_shot;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub mod outbox;
pub mod queue;
mod requests;
mod runtime;
mod sweep;
pub mod testing;
mod trust;
mod turns;

pub use election::{Election, Transition, Transitions};
pub use error::Error;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use fence::claim::{ClaimError, ClaimFence, Claims, FencedJob};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use fence::transaction::{FenceError, Fenceable, Locked};
pub use fence::{Receiver, Stale, Token, TokenError};
pub use follow::{Follower, Seen};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use inspect::transaction::{RequestError, Requestable};
pub use inspect::{Brief, Candidate, NamespaceView, Status};
pub use leadership::{Leadership, Watchdog};
pub use metrics::{ClusterMetrics, ElectionMetrics, HeartbeatOutcome, Heartbeats, Metrics};
pub use node::{Node, NodeOptions, host_name};
pub use one_shot::{Bounds, OneShot, Outcome, Withdrawal, is_one_shot};
pub use runtime::{Process, Runtime};
pub use trust::{Stopped, Trust, Working};

// What the signatures above use of the core, so that nobody has to look for it there. The whole of both crates is there
// for those who build on the machines or the stores themselves.
pub use tenure_core as core;
pub use tenure_core::election::{EndReason, Fence, Leader, Lease, Term};
pub use tenure_core::session;
pub use tenure_core::{
    DaemonId, ElectionName, Incarnation, JobId, JobType, Lineage, Moment, NameError, Namespace,
    NodeId, QueueName, RecordError, ScheduleName, Wall,
};
pub use tenure_store as store;

/// Keeps the code in README.md compiling and true.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The same for the guide to testing.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing.md")]
struct TestingGuide;
