//! The real binary, and everything that it prints.

// A failing test may panic, and a skipped one prints that.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[cfg(feature = "file")]
mod asked;
#[cfg(all(
    feature = "file",
    feature = "object",
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite"
))]
mod backups;
#[cfg(feature = "file")]
mod beside;
#[cfg(feature = "file")]
mod brokers;
mod check;
#[cfg(feature = "file")]
mod cluster;
mod command_line;
#[cfg(feature = "file")]
mod elections;
#[cfg(feature = "file")]
mod file;
mod help;
mod interrupt;
mod jobs;
#[cfg(all(feature = "file", feature = "sqlite"))]
mod log;
mod logs;
#[cfg(all(feature = "file", feature = "object"))]
mod osqueue;
#[cfg(feature = "otel")]
mod otel;
#[cfg(all(
    feature = "file",
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite"
))]
mod outbox;
#[cfg(all(feature = "file", feature = "object", feature = "sqlite"))]
mod overload;
#[cfg(feature = "file")]
mod programs;
#[cfg(feature = "file")]
mod run;
mod serve;
#[cfg(any(feature = "object", feature = "postgres", feature = "mysql"))]
mod servers;
mod shells;
#[cfg(feature = "file")]
mod storage;
mod support;
mod terminal;
mod top;
mod worker;
