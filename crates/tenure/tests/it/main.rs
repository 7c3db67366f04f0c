//! The driver on real stores.

mod elections;
