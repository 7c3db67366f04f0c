//! Real processes, real servers, real faults.
//!
//! A run starts brokers (`tenure serve`) on one engine, and clients in this process: submitters, workers and
//! candidates. While they work, a sequence of faults is injected, drawn from a seed. Then everything is repaired, the
//! queue has to drain, and what the clients saw is [checked](check) against the promises.
//!
//! A seed gives the same choices in every run, but the timing differs. So running a seed again is likely to come
//! close to a failure, but does not repeat it exactly.

pub mod broker;
pub mod callers;
pub mod check;
pub mod clocks;
pub mod disk;
pub mod electorate;
pub mod engine;
pub mod faults;
pub mod history;
pub mod report;
pub mod run;
pub mod server;
pub mod submitter;
pub mod worker;
