//! All code of the core that reads what others wrote, fed damaged input: see `tenure_fuzz`.

mod machines;
mod records;
