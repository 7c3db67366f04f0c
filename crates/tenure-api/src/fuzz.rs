//! What travels, given damaged input: see `tenure_fuzz`.

mod bodies;
mod texts;
