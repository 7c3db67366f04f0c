//! Client and worker runtime for Tenure's HTTP interface: a durable job queue with a standby, cron
//! schedules and elections.
//!
//! # Submitting
//!
//! ```no_run
//! use tenure_client::{Client, NewJob};
//!
//! # async fn example() -> Result<(), tenure_client::Error> {
//! // Any of the brokers; if one does not answer, the client tries the others.
//! let client = Client::new(["http://10.0.0.1:8080", "http://10.0.0.2:8080"])?;
//! let mail = serde_json::json!({"to": "you@example.com"});
//! let job = client.submit(NewJob::new("mail", &mail).queue("bulk")).await?;
//! println!("{} is {}", job.id, client.job(&job.id).await?.state);
//! # Ok(())
//! # }
//! ```
//!
//! # Working
//!
//! ```no_run
//! use std::time::Duration;
//! use tenure_client::{Client, Failure, Job, Worker};
//!
//! #[derive(serde::Deserialize)]
//! struct Mail {
//!     to: String,
//! }
//!
//! async fn send(job: Job<Mail>) -> Result<(), Failure> {
//!     if !job.payload.to.contains('@') {
//!         return Err(Failure::permanent("not an address"));
//!     }
//!     tokio::select! {
//!         () = tokio::time::sleep(Duration::from_secs(1)) => Ok(()),
//!         _ = job.cancelled() => Err("cancelled".into()),
//!     }
//! }
//!
//! # async fn example() -> Result<(), tenure_client::Error> {
//! let client = Client::new(["http://127.0.0.1:8080"])?;
//! let stop = tokio_util::sync::CancellationToken::new();
//! let worker = Worker::builder(client).handle("mail", send).concurrency(20).build()?;
//! worker.run(stop).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Tracing
//!
//! A handler runs in a span of `tracing` called `job`. With the feature `opentelemetry` a job carries the span that
//! it was submitted in (W3C Trace Context), and the handler's span is its child: one trace from the submit to the
//! work, whatever lies between. Without it, use [`NewJob::traceparent`] and `job.traceparent`.
//!
//! # What is guaranteed
//!
//! - **Calls survive failovers.** Every broker forwards to the leader, so any broker that answers
//!   will do. A call is tried at one broker after the other, with growing waits, until its deadline.
//! - **A call that is sent twice does its work once.** Jobs get their id before the first attempt; a repeated end
//!   of a claim is recognised by reading the job back (see [`Client::complete`] and
//!   [`Client::fail`]).
//! - **Unknown outcomes are reported as unknown.** [`Error::Unavailable`] means that nothing was done,
//!   [`Error::Unknown`] that it may have been.
//!
//! # What is not
//!
//! Exactly-once execution. If a worker dies, or the broker does not hear from it for a whole lease, the job runs
//! again. So write handlers that are idempotent.

mod claims;
mod client;
mod clock;
mod cluster;
mod coalesce;
mod discovery;
mod elections;
mod error;
mod events;
mod jobs;
mod new_job;
mod queues;
mod retry;
mod submit;
mod together;
mod trace;
mod transport;
mod worker;

pub use claims::{Claim, Completed, Ended, Failed};
pub use client::{Builder, Client};
pub use elections::Elected;
pub use error::Error;
pub use events::Events;
pub use jobs::Listing;
pub use new_job::NewJob;
pub use trace::current_span;
pub use worker::{
    Attempt, CancelReason, Failure, Job, Summary, Worker, WorkerBuilder, WorkerEvent,
};

/// What travels: the requests and answers of the HTTP interface.
pub use tenure_api as api;
/// What of it programs deal with most.
pub use tenure_api::{
    Backoff, Claimed, Counts, ElectionName, JobId, JobType, Keep, Key, Missed, NodeId, Payload,
    QueueName, QueueOptions, Rate, ScheduleName, ScheduleSpec, Settings, State, Submission, Token,
    Traceparent, Tracestate,
};
/// Tells a worker to stop.
pub use tokio_util::sync::CancellationToken;
