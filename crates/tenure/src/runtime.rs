//! What a process runs on: its clocks, its tasks and its randomness. One value that is passed in, so that a
//! simulation can stop a process between any two steps, and repeat what happened by chance.

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use tenure_core::{Nonce, Now};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};
use uuid::Uuid;

use crate::clock::{self, Clock};

/// The host itself.
pub(crate) const HOST: Runtime = Runtime {
    clock: clock::HOST,
    process: None,
};

/// What a node, and all that is opened on it, runs on: the clocks, the tasks and the randomness of this host. For
/// tests, a [`ManualClock`](crate::testing::ManualClock) or a [`RunningClock`](crate::testing::RunningClock) shows the time,
/// and a [`Process`] of their own runs the tasks.
#[derive(Debug, Clone, Default)]
pub struct Runtime {
    pub(crate) clock: Clock,
    /// Absent: tokio and the operating system.
    process: Option<Arc<dyn Process>>,
}

/// A process that a simulation has in its hands: it can stop between any two steps of its tasks, and its randomness
/// can be repeated.
///
/// Every task of a node that [runs on it](Runtime::with_process) passes here, in a simulation with a
/// [`RunningClock`](crate::testing::RunningClock). With any other clock the session has a thread of its own, which
/// does not.
pub trait Process: fmt::Debug + Send + Sync {
    /// What tokio is to run in the place of a task. It runs the task to its end, unless the process ends before.
    fn task(self: Arc<Self>, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;

    /// Bits that nobody else has drawn, nor will.
    fn unique(&self) -> u128;
}

impl Runtime {
    /// Time by this clock, all else by the host.
    pub(crate) fn at(clock: Clock) -> Self {
        Self {
            clock,
            process: None,
        }
    }

    /// The same clock, with the tasks and the randomness of a process.
    #[must_use]
    pub fn with_process(self, process: Arc<dyn Process>) -> Self {
        Self {
            process: Some(process),
            ..self
        }
    }

    /// Both clocks for one step of a machine, with what marks its writes. It is randomness of the operating system, mixed
    /// with the time: a copy of a whole virtual machine may go on with the same state of that randomness.
    pub(crate) fn step(&self) -> Now {
        let now = self.clock.now();
        let time = now.moment.since_origin().as_nanos();
        Now {
            nonce: Nonce(self.unique().as_u128() ^ time),
            ..now
        }
    }

    /// Like no other, ever.
    pub(crate) fn unique(&self) -> Uuid {
        match &self.process {
            None => Uuid::new_v4(),
            Some(process) => Uuid::from_u128(process.unique()),
        }
    }

    /// What a task of this process is to run, for those who start it themselves.
    pub(crate) fn task<F>(&self, task: F) -> impl Future<Output = F::Output> + Send + use<F>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        match self.process.clone() {
            None => Either::Left(task),
            Some(process) => Either::Right(in_process(process, task)),
        }
    }

    /// Starts a task of this process.
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(self.task(task))
    }

    /// Runs what uses a disk: on a thread that may block, if it does, where nobody else waits for it. It goes on when
    /// this is dropped.
    pub(crate) async fn blocking<F>(&self, blocks: bool, work: F) -> F::Output
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let done = if blocks {
            tokio::task::spawn_blocking(|| block_on(work)).await
        } else {
            self.spawn(work).await
        };
        match done.map_err(JoinError::try_into_panic) {
            Ok(output) => output,
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime is being shut down, and the task that waits for this with it.
            Err(Err(_)) => std::future::pending().await,
        }
    }

    /// Starts a thread that runs something, and tells how to wait for its end; a task, if it does not block.
    pub(crate) fn spawn_thread<F>(
        &self,
        name: &str,
        blocks: bool,
        work: F,
    ) -> std::io::Result<Option<thread::JoinHandle<()>>>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if !blocks {
            self.spawn(work);
            return Ok(None);
        }
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn(|| block_on(work)).map(Some)
    }
}

/// The output of a task leaves the process beside it.
async fn in_process<F>(process: Arc<dyn Process>, task: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (sender, mut receiver) = oneshot::channel();
    let run = async move {
        // Nobody waits for it any more.
        let _ = sender.send(task.await);
    };
    process.task(run.boxed()).await;
    match receiver.try_recv() {
        Ok(output) => output,
        // The process has ended, and nobody is left who would want to know.
        Err(_) => std::future::pending().await,
    }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    /// Lets so many tasks begin, and counts what it is asked for.
    #[derive(Debug)]
    struct Limited {
        tasks_max: u32,
        tasks: AtomicU32,
        drawn: AtomicU32,
    }

    impl Process for Limited {
        fn task(self: Arc<Self>, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
            if self.tasks.fetch_add(1, Ordering::Relaxed) < self.tasks_max {
                task
            } else {
                std::future::pending().boxed()
            }
        }

        fn unique(&self) -> u128 {
            self.drawn.fetch_add(1, Ordering::Relaxed).into()
        }
    }

    fn limited(tasks_max: u32) -> (Arc<Limited>, Runtime) {
        let process = Arc::new(Limited {
            tasks_max,
            tasks: AtomicU32::default(),
            drawn: AtomicU32::default(),
        });
        (process.clone(), HOST.with_process(process))
    }

    #[tokio::test]
    async fn every_task_passes_the_process_and_gives_its_output() {
        let (process, runtime) = limited(3);
        assert_eq!(runtime.spawn(async { "spawned" }).await.unwrap(), "spawned");
        assert_eq!(runtime.blocking(false, async { "run" }).await, "run");
        assert_eq!(runtime.task(async { "started" }).await, "started");
        assert_eq!(process.tasks.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_process_does_not_run_never_ends() {
        let (_, runtime) = limited(0);
        let task = runtime.spawn(async { "never" });
        let waited = tokio::time::timeout(Duration::from_secs(3600), task).await;
        assert!(waited.is_err());
    }

    #[tokio::test]
    async fn a_panic_of_a_task_is_told_as_without_a_process() {
        let (_, runtime) = limited(1);
        let task = runtime.spawn(async { panic!("a bug") });
        assert!(task.await.unwrap_err().is_panic());
    }

    #[test]
    fn randomness_is_that_of_the_process_or_never_the_same() {
        let (_, runtime) = limited(0);
        assert_eq!([0, 1].map(|_| runtime.unique().as_u128()), [0, 1]);
        let (first, second) = (runtime.step(), HOST.step());
        assert_eq!(first.nonce.0 ^ first.moment.since_origin().as_nanos(), 2);
        assert_ne!(second.nonce, HOST.step().nonce);
        assert_ne!(HOST.unique(), HOST.unique());
    }
}
