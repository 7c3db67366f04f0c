//! Where tasks and chance come from: one place, so that a simulation can crash a process between any two
//! steps, and repeat what happened by chance.
//!
//! Without the feature `__simulation` there is nothing here but what tokio and the operating system give.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::task::{JoinError, JoinHandle};
use uuid::Uuid;

/// Starts a task of this process.
pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(scoped(future))
}

/// Runs what uses a disk: on a thread that may block, if it does, where nobody else waits for it. It goes on when
/// this is dropped.
pub(crate) async fn blocking<F>(blocks: bool, work: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let done = if blocks {
        tokio::task::spawn_blocking(|| block_on(work)).await
    } else {
        spawn(work).await
    };
    match done.map_err(JoinError::try_into_panic) {
        Ok(output) => output,
        Err(Ok(panic)) => resume_unwind(panic),
        // The runtime is being shut down, and whoever waits for this with it.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// Starts a thread that runs something, and tells how to wait for its end; a task, if it does not block.
pub(crate) fn spawn_thread<F>(
    name: &str,
    blocks: bool,
    work: F,
) -> std::io::Result<Option<thread::JoinHandle<()>>>
where
    F: Future<Output = ()> + Send + 'static,
{
    if !blocks {
        spawn(work);
        return Ok(None);
    }
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(|| block_on(work)).map(Some)
}

/// Runs something to its end on this thread, which does nothing else meanwhile.
pub(crate) fn block_on<F: Future>(work: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut work = pin!(work);
    loop {
        match work.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
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
