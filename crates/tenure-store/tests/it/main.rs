//! Every engine keeps the whole contract, on the real server.

mod memory;
mod wrap;
