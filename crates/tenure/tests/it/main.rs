//! The driver on real stores.

#![allow(clippy::unwrap_used, reason = "also what tests share is test code")]

mod elections;
#[cfg(all(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod fences;
mod one_shot;
mod support;
