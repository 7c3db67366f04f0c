//! Real processes, real servers, real faults.
//!
//! A run starts brokers (`tenure serve`) on one engine, and clients in this process: submitters, workers and
//! candidates. While they work, a row of faults made from a seed breaks what can be broken. Then everything
//! is mended, the queue has to drain, and what the clients saw is [checked](check) against what is promised.
//!
//! The choices come from the seed and are the same in every run of it; what the machine makes of them is
//! not. A seed is a way to come near a failure again, not to repeat it.

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
