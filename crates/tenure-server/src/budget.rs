//! How many bytes of bodies are in memory at once, over all requests.
//!
//! A connection may have one body each, and there may be thousands: the product of two harmless limits is
//! more than any host has. So each body takes its size from one budget, before any of it is read.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::Problem;

/// What a permit stands for. Counting in blocks keeps the counter small and its use cheap.
const BLOCK_BYTES: usize = 1024;

#[derive(Debug, Clone)]
pub(crate) struct Budget {
    blocks: Arc<Semaphore>,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            blocks: Arc::new(Semaphore::new(bytes.div_ceil(BLOCK_BYTES))),
        }
    }

    /// Takes the room for a body of that size, for as long as the answer is kept.
    pub(crate) fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Problem> {
        let blocks = u32::try_from(bytes.div_ceil(BLOCK_BYTES).max(1)).unwrap_or(u32::MAX);
        self.blocks
            .clone()
            .try_acquire_many_owned(blocks)
            .map_err(|_| Problem::overloaded("too many bytes are being received at once"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let budget = Budget::new(10_000);
        let most = budget.take(9_000).unwrap();
        assert!(budget.take(2_000).is_err());
        drop(most);
        assert!(budget.take(2_000).is_ok());
        assert!(budget.take(usize::MAX).is_err());
    }
}
