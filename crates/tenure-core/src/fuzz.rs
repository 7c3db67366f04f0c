//! Everything of the core that reads what others wrote, given damaged input: see `tenure_fuzz`.

mod machines;
mod records;
