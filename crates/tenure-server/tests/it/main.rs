//! The server as its clients see it: real servers on free ports, called over HTTP.

// A failing test may panic, and a skipped one prints that.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod access;
mod browser;
mod clients;
mod cost;
mod deploy;
mod document;
mod elections;
mod events;
mod forwarding;
mod fuzz;
mod https;
mod ids;
mod jobs;
mod login;
mod mistakes;
mod operations;
mod osqueue;
mod queues;
mod rounds;
mod support;
