//! The calls: each handler reads a request, asks the queue or the store, and writes its answer.

pub(crate) mod cluster;
pub(crate) mod elections;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod osqueue;
pub(crate) mod queues;
pub(crate) mod schedules;
pub(crate) mod stats;
pub(crate) mod workers;
