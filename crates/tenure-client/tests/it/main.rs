//! The client and the worker against a real server, in this process.

// A test that cannot go on may well end in a panic.
#![allow(clippy::unwrap_used)]

mod calls;
mod coalesce;
mod events;
mod failover;
mod lost_answers;
mod rounds;
mod support;
#[cfg(feature = "opentelemetry")]
mod traces;
mod worker;
