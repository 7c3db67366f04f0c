//! Servers for Tenure's own tests, on 127.0.0.1 and a free port, each gone when it is dropped.
//!
//! - [`gcs`]: a double of Google Cloud Storage. No emulator at hand keeps generations right, so Tenure's
//!   engine is tested against this one, which says nothing about the real service's own quirks.
//! - [`careless_s3`]: speaks like S3 and ignores every condition, as some look-alikes do.
//! - [`http_proxy`]: stands before a real server and loses its answers.
//! - [`tcp_proxy`]: stands before a real server and cuts, delays, withholds and loses, below any protocol.
//!
//! [`recording`] is no server: it keeps the spans and log lines of one test. [`skip`] is for tests that lack something, [`port`] for those
//! that start a server which is a program of its own.
//!
//! The first three servers speak HTTP by hand (`http1`): a test that is about closed connections has to know exactly when
//! one is closed.

mod bucket;
pub mod careless_s3;
mod date;
pub mod gcs;
mod hosted;
mod http1;
pub mod http_proxy;
pub mod port;
pub mod recording;
pub mod skip;
pub mod tcp_proxy;
