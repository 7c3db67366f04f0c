//! Every engine keeps the whole contract, on the real server.

#![allow(clippy::unwrap_used, reason = "also what tests share is test code")]

#[cfg(feature = "object")]
mod azure;
mod conformance;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "object")]
mod gcs;
mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod proxy;
#[cfg(feature = "object")]
mod s3;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod support;
mod wrap;
