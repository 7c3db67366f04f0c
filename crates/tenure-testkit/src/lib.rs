//! Servers for Tenure's own tests, on 127.0.0.1 and a free port; each stops when it is dropped.
//!
//! - [`gcs`]: a double of Google Cloud Storage. No available emulator handles generations correctly, so Tenure's
//!   engine is tested against this one. It does not reproduce the real service's quirks.
//! - [`careless_s3`]: a server like S3 that ignores all conditions, as some S3-compatible servers do.
//! - [`http_proxy`]: a proxy in front of a real server that loses answers.
//! - [`tcp_proxy`]: a proxy in front of a real server that cuts connections, and delays, withholds and loses bytes,
//!   for any protocol.
//!
//! [`recording`] is not a server: it records the spans and log lines of one test. [`skip`] is for tests that lack
//! something, [`port`] for tests that start a server as a separate program.
//!
//! The first three servers use their own HTTP code (`http1`): tests about closed connections have to know exactly
//! when one is closed.

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
