//! The real binary, and everything that it prints.

// A test that cannot go on may well end in a panic.
#![allow(clippy::unwrap_used)]

mod check;
mod command_line;
#[cfg(feature = "file")]
mod file;
mod help;
mod interrupt;
mod serve;
mod support;
mod terminal;
