//! Every engine keeps the whole contract, on the real server.

mod conformance;
#[cfg(feature = "file")]
mod file;
mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod proxy;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod support;
mod wrap;

#![allow(clippy::unwrap_used, reason = "also what tests share is test code")]
