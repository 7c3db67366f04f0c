//! The driver on real stores.

#![allow(clippy::unwrap_used, reason = "also what tests share is test code")]

mod elections;
<<<<<<< HEAD
#[cfg(all(feature = "postgres", feature = "mysql", feature = "sqlite"))]
=======
mod engines;
mod faults;
>>>>>>> 7484f40 (tenure: poll by listing, report duplicates, count)
mod fences;
mod one_shot;
mod queue_log;
mod support;
mod tampering;
mod work;
