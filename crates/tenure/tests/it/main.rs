//! The driver on real stores.

mod elections;
mod one_shot;
