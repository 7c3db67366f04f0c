//! The server as its clients see it: real servers on free ports, asked over HTTP.

// A test that cannot go on may well end in a panic.
#![allow(clippy::unwrap_used)]

mod access;
mod browser;
mod clients;
mod deploy;
mod document;
mod elections;
mod events;
mod forwarding;
mod jobs;
mod mistakes;
mod operations;
mod osqueue;
mod queues;
mod support;
