//! The driver on real stores.

#![allow(clippy::unwrap_used, reason = "also what tests share is test code")]

#[cfg(all(feature = "object", feature = "postgres"))]
mod ages;
mod blind;
mod cluster;
mod deadline;
mod dropped;
mod elections;
#[cfg(feature = "object")]
mod engines;
mod faults;
#[cfg(all(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod fences;
mod many;
mod nudges;
mod one_shot;
#[cfg(all(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod one_shot_transactions;
mod one_shot_ttls;
#[cfg(all(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod outbox;
mod panics;
#[cfg(all(feature = "file", feature = "sqlite"))]
mod processes;
mod queue;
mod queue_log;
mod scenes;
mod support;
#[cfg(feature = "file")]
mod tampering;
#[cfg(all(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod views;
mod work;
