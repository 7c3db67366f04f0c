//! Every engine keeps the whole contract, on the real server.

mod conformance;
#[cfg(feature = "file")]
mod file;
mod memory;
mod wrap;
