//! Leader election, daemons and a durable job queue, on storage you already have: a directory, a bucket or a database.
//!
//! This is the library to embed: the program that uses it needs no other service. To talk to brokers (`tenure serve`) over
//! HTTP instead, use the crate `tenure-client`.
//!
//! ```toml
//! [dependencies]
//! tenure = { version = "0.1", default-features = false, features = ["postgres"] }
//! tokio = { version = "1", features = ["full"] }
//! ```
//!
//! A [`Node`] is this process's session in a namespace of a store: one heartbeat for everything below,
//! with its own thread and connection.
//!
//! # Elections
//!
//! [`Node::join`] makes the process a candidate in an [`Election`]. Each time it wins, it gets a [`Leadership`], valid for
//! one term:
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
//! [`Election::lead`] does this again for every term. A process can be paused between the check and the act, so pass
//! [`Leadership::token`] to everything you write to: a [`Receiver`] refuses an older token. Programs that run once and
//! exit use [`OneShot`], which needs no node.
//!
//! # Daemons
//!
//! Work that always runs, split into shards that the nodes share. Each shard runs on one node at a time, and moves when its
//! node stops or dies; see [`daemon`](mod@daemon) and [`cluster`].
//!
//! ```
//! use tenure::cluster::{Definition, Options};
//! use tenure::daemon::{Context, DaemonError, daemon};
//! use tenure::{Node, NodeOptions};
//!
//! async fn index(context: Context) -> Result<(), DaemonError> {
//!     while !context.stopping().is_cancelled() {
//!         context.check()?; // right before the act: the process may have been paused
//!         println!("indexing part {}", context.shard().index);
//!         tokio::time::sleep(std::time::Duration::from_millis(10)).await;
//!     }
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let node = Node::start(NodeOptions::new("memory:", "demo")).await?;
//! let cluster = node.cluster(Options::default()).await?;
//! cluster.register(daemon("indexer", index), Definition::shards(12))?;
//! // ...until this process has to stop. Then its shards stop here and start on other nodes:
//! node.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # The queue
//!
//! Every process opens the [`queue`], and the leader serves it. What was acknowledged is in the store.
//!
//! ```
//! use std::time::Duration;
//! use tenure::queue::{ClaimRequest, Completion, Key, Options, Payload, Queue, Submission};
//! use tenure::{JobType, Node, NodeOptions};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let node = Node::start(NodeOptions::new("memory:", "demo")).await?;
//! let queue = Queue::open(&node, Options::default()).await?;
//! queue.serving().await?;
//!
//! let mut mail = Submission::new(JobType::new("mail")?);
//! mail.payload = Payload::new(r#"{"to":"ada@example.com"}"#)?;
//! queue.submit(vec![mail]).await?;
//!
//! let claim = ClaimRequest::new(Key::new("worker-1")?).waiting(Duration::from_secs(5));
//! for job in queue.claim(claim).await? {
//!     println!("attempt {} of {}: {}", job.attempt, job.id, job.payload.as_str());
//!     let done = Completion { id: job.id, token: job.token, result: None };
//!     queue.complete(vec![done]).await?;
//! }
//! queue.close().await;
//! node.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! Workers with heartbeats, typed payloads and retries are in `tenure-client`; jobs that commit with your own SQL
//! transaction are in `outbox`, which needs one of the database features.
//!
//! # Testing your code
//!
//! [`testing`] has a store that fails, processes that pause, and a clock that you control: test a leader that was
//! paused for a minute, in milliseconds.
//!
//! ```
//! use tenure::testing::Scene;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure::Error> {
//! let scene = Scene::new(7);
//! let (a, b) = (scene.host("a").await?, scene.host("b").await?);
//! let first = a.node().join("reports").await?.elected().await?;
//! let election = b.node().join("reports").await?;
//!
//! a.pause();
//! scene.until(|| election.is_leader()).await;
//! assert!(first.check().is_err());
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! All of them are on by default. Each engine that you leave out saves its dependencies; `memory:` is always there.
//!
//! | feature | stores | also |
//! | --- | --- | --- |
//! | `file` | `file:DIRECTORY` | |
//! | `object` | `s3://`, `gs://`, `az://` buckets | |
//! | `postgres` | `postgres://` | [fences](Leadership) and [elections](OneShot) inside your own transactions, the outbox |
//! | `mysql` | `mysql://`, MariaDB too | the same |
//! | `sqlite` | `sqlite:FILE` | the same |
//!
//! # Guarantees
//!
//! What is guaranteed, what is not, and under which assumptions: [`tenure_core::session`] and
//! [`tenure_core::election`] for leaders, [`log`] for the queue.

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
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod transaction;
mod trust;
mod turns;

pub use election::{Election, Transition, Transitions};
pub use error::Error;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use fence::claim::{ClaimError, ClaimFence, Claims, FencedJob};
pub use fence::seen::{SeenClaim, StaleClaim};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use fence::transaction::{FenceError, Fenceable, Locked};
pub use fence::{Receiver, Stale, Token, TokenError};
pub use follow::{Follower, Seen};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use inspect::transaction::RequestError;
pub use inspect::{Brief, Candidate, NamespaceView, Status};
pub use leadership::{Leadership, Watchdog};
pub use metrics::{ClusterMetrics, ElectionMetrics, HeartbeatOutcome, Heartbeats, Metrics};
pub use node::{Node, NodeOptions, host_name};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use one_shot::transaction::TransactionError;
pub use one_shot::{Bounds, OneShot, Outcome, Withdrawal, is_one_shot};
pub use runtime::{Process, Runtime};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use transaction::{Joined, NewObject, StoredObject, Transactional};
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

/// The same for the guide to elections.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../docs/elections.md")]
struct ElectionsGuide;

/// The same for the guide to the outbox.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../docs/outbox.md")]
struct OutboxGuide;
