//! Many processes in one thread, each of which can be crashed or paused between any two steps of any of its tasks.
//!
//! A [`Process`] is what [it runs](Process::spawn), and every task of the node that was given it. Crashed, all of them are
//! dropped where they stand, as by the end of a real process; what they left in memory is reached by nobody else.
//! One that is paused does nothing until it goes on, while its clock does.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_random::Random;
use tokio::task::JoinHandle;

/// A simulated process.
#[derive(Debug)]
pub(crate) struct Process {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    life: Life,
    /// How to wake each task.
    wakers: BTreeMap<u64, Waker>,
    tasks: u64,
    /// Where its chance comes from.
    random: Random,
    /// What the first task said that panicked.
    panic: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    Paused,
    Crashed,
}

impl Process {
    /// A process with no task, whose chance follows from the seed.
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let state = State {
            life: Life::Running,
            wakers: BTreeMap::new(),
            tasks: 0,
            random: Random::new(seed),
            panic: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    /// Starts a task of this process.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        tokio::spawn(Task::new(self.clone(), task.boxed()))
    }

    /// Ends it: no task of it makes another step, and each is dropped where it stands.
    pub(crate) fn crash(&self) {
        self.become_(Life::Crashed);
    }

    /// Lets no task of it make another step until it goes on.
    pub(crate) fn pause(&self) {
        let mut state = self.state();
        if state.life == Life::Running {
            state.life = Life::Paused;
        }
    }

    /// Lets it go on, if it was paused.
    pub(crate) fn go_on(&self) {
        let is_paused = self.state().life == Life::Paused;
        if is_paused {
            self.become_(Life::Running);
        }
    }

    /// Whether it has crashed.
    pub(crate) fn is_crashed(&self) -> bool {
        self.state().life == Life::Crashed
    }

    /// Whether it stands still.
    pub(crate) fn is_paused(&self) -> bool {
        self.state().life == Life::Paused
    }

    /// What a task of it said that panicked, if one did.
    pub(crate) fn panic(&self) -> Option<String> {
        self.state().panic.clone()
    }

    fn become_(&self, life: Life) {
        let wakers: Vec<Waker> = {
            let mut state = self.state();
            state.life = life;
            state.wakers.values().cloned().collect()
        };
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl tenure::Process for Process {
    fn task(self: Arc<Self>, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        Task::new(self, task).boxed()
    }

    fn unique(&self) -> u128 {
        let mut state = self.state();
        let high = u128::from(state.random.bits());
        high << 64 | u128::from(state.random.bits())
    }
}

/// A task of a process.
struct Task {
    process: Arc<Process>,
    number: u64,
    future: Option<BoxFuture<'static, ()>>,
}

impl Task {
    fn new(process: Arc<Process>, future: BoxFuture<'static, ()>) -> Self {
        let number = {
            let mut state = process.state();
            state.tasks += 1;
            state.tasks
        };
        Self {
            process,
            number,
            future: Some(future),
        }
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let life = {
            let mut state = this.process.state();
            state.wakers.insert(this.number, context.waker().clone());
            state.life
        };
        match (life, &mut this.future) {
            (Life::Running, Some(future)) => {
                // Whoever started the task may catch the panic: it is a bug all the same.
                let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
                let polled = polled.unwrap_or_else(|panic| {
                    let mut state = this.process.state();
                    state.panic.get_or_insert_with(|| words(&*panic));
                    drop(state);
                    resume_unwind(panic)
                });
                if polled.is_ready() {
                    this.future = None;
                }
                polled
            }
            // Nobody is left who would want to know.
            (Life::Crashed, _) => {
                this.future = None;
                Poll::Pending
            }
            (Life::Running | Life::Paused, _) => Poll::Pending,
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.future = None;
        self.process.state().wakers.remove(&self.number);
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a word").to_owned()
}
