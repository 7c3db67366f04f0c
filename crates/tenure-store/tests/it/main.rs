//! Every engine keeps the whole contract, on the real server.

mod conformance;
mod memory;
mod wrap;
