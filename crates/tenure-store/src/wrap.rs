//! Stores around stores.
