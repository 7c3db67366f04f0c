//! Where tasks and chance come from: one place, so that a simulation can crash a process between any two
//! steps, and repeat what happened by chance.
//!
//! Without the feature `__simulation` there is nothing here but what tokio and the operating system give.

use std::future::Future;

use tokio::task::JoinHandle;
use uuid::Uuid;

/// Starts a task of this process.
pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(scoped(future))
}

/// What a task of this process is to run, for those who start it in another way.
#[cfg(not(feature = "__simulation"))]
pub(crate) fn scoped<F: Future>(future: F) -> F {
    future
}

/// Like no other, ever.
#[cfg(not(feature = "__simulation"))]
pub(crate) fn unique() -> Uuid {
    Uuid::new_v4()
}

#[cfg(feature = "__simulation")]
pub(crate) use crate::simulation::scoped;

#[cfg(feature = "__simulation")]
pub(crate) fn unique() -> Uuid {
    crate::simulation::unique().unwrap_or_else(Uuid::new_v4)
}
