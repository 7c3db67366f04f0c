//! For tests of Tenure itself: many processes in one thread, each of which can be crashed or paused between
//! any two steps of any of its tasks.
//!
//! A [`Process`] is whatever runs in its [scope](Process::spawn): the tasks that were started there, those that
//! they started, and so on. Whoever crashes it drops all of them where they stand, as the end of a real
//! process would; what they left in memory is reached by nobody else. One that is paused does nothing
//! until it goes on, while its clock does.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::node::{Request, Ticket};
use tenure_core::session::Config;
use tenure_core::{ElectionName, Moment, Version};
use tenure_store::{Entry, Key, Page};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::polls::{self, Polls};
use crate::requests::to_store;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Process>>> = const { RefCell::new(None) };
}

/// A simulated process.
#[derive(Debug)]
pub struct Process {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    life: Life,
    /// How to wake each task.
    wakers: BTreeMap<u64, Waker>,
    tasks: u64,
    /// Where its chance comes from.
    random: u64,
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
    #[must_use]
    pub fn new(seed: u64) -> Arc<Self> {
        let state = State {
            life: Life::Running,
            wakers: BTreeMap::new(),
            tasks: 0,
            random: seed,
            panic: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    /// Starts a task of this process.
    pub fn spawn<F>(self: &Arc<Self>, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(Scoped::new(Some(self.clone()), future))
    }

    /// Ends it: no task of it makes another step, and each is dropped where it stands.
    pub fn crash(&self) {
        self.become_(Life::Crashed);
    }

    /// Lets no task of it make another step until it goes on.
    pub fn pause(&self) {
        let mut state = self.state();
        if state.life == Life::Running {
            state.life = Life::Paused;
        }
    }

    /// Lets it go on, if it was paused.
    pub fn go_on(&self) {
        let is_paused = self.state().life == Life::Paused;
        if is_paused {
            self.become_(Life::Running);
        }
    }

    /// Whether it has crashed.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.state().life == Life::Crashed
    }

    /// Whether it stands still.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.state().life == Life::Paused
    }

    /// What a task of it said that panicked, if one did.
    #[must_use]
    pub fn panic(&self) -> Option<String> {
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

/// A task of a process.
pub(crate) struct Scoped<F> {
    process: Option<Arc<Process>>,
    number: u64,
    future: Option<Pin<Box<F>>>,
}

/// What a task of the current process is to run.
pub(crate) fn scoped<F: Future>(future: F) -> Scoped<F> {
    Scoped::new(CURRENT.with_borrow(Clone::clone), future)
}

/// Chance of the current process, if there is one.
pub(crate) fn unique() -> Option<Uuid> {
    let process = CURRENT.with_borrow(Clone::clone)?;
    let mut state = process.state();
    let mut half = || {
        state.random = state.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    Some(Uuid::from_u64_pair(half(), half()))
}

impl<F: Future> Scoped<F> {
    fn new(process: Option<Arc<Process>>, future: F) -> Self {
        let number = process.as_ref().map_or(0, |process| {
            let mut state = process.state();
            state.tasks += 1;
            state.tasks
        });
        Self {
            process,
            number,
            future: Some(Box::pin(future)),
        }
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let Some(process) = &this.process else {
            let future = this.future.as_mut();
            return future.map_or(Poll::Pending, |future| future.as_mut().poll(context));
        };
        let life = {
            let mut state = process.state();
            state.wakers.insert(this.number, context.waker().clone());
            state.life
        };
        let _entered = Entered::new(process);
        match (life, &mut this.future) {
            (Life::Running, Some(future)) => {
                // Whoever started the task may catch the panic: it is a bug all the same.
                let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
                let polled = polled.unwrap_or_else(|panic| {
                    process.state().panic.get_or_insert_with(|| words(&*panic));
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

impl<F> Drop for Scoped<F> {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            let _entered = Entered::new(&process);
            self.future = None;
            process.state().wakers.remove(&self.number);
        }
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a word").to_owned()
}

/// The process whose code runs now.
struct Entered(Option<Arc<Process>>);

impl Entered {
    fn new(process: &Arc<Process>) -> Self {
        Self(CURRENT.replace(Some(process.clone())))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// The looks of one process at leases, by listings: what the driver's own are, for a world without a driver.
#[derive(Debug, Clone)]
pub struct Listings(Polls);

/// A look: the request that a machine made, and for how long.
#[derive(Debug, Clone)]
pub struct Look {
    /// Names the request.
    pub ticket: Ticket,
    /// Of which election.
    pub election: ElectionName,
    /// The version that is known.
    pub known: Version,
    /// How long the answer may take.
    pub within: Duration,
}

/// What a page says to those who waited for it.
#[derive(Debug)]
pub struct Shown {
    /// These are as they were.
    pub unchanged: Vec<Look>,
    /// These are to be read.
    pub changed: Vec<Look>,
    /// The listing goes on behind this one.
    pub next: Option<ElectionName>,
}

impl Listings {
    /// Of a process with these times.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self(Polls::new(config))
    }

    /// Waits for a listing.
    pub fn join(&mut self, now: Moment, look: Look) {
        let poll = polls::Poll {
            ticket: look.ticket,
            election: look.election,
            known: look.known,
            within: look.within,
            asked: now,
        };
        self.0.join(key(&poll.election), poll, false);
    }

    /// When to ask for a listing, or for what is late.
    #[must_use]
    pub fn wake_at(&self, now: Moment) -> Moment {
        self.0.wake_at(now)
    }

    /// Whether a listing is to be started now.
    pub fn start(&mut self, now: Moment) -> bool {
        self.0.start(now)
    }

    /// What is to be read by itself.
    pub fn take_late(&mut self, now: Moment) -> Option<Look> {
        self.0.take_late(now).map(Look::from)
    }

    /// A page, and whether there is more behind it; `None` if it did not come.
    pub fn on_page(
        &mut self,
        now: Moment,
        page: Option<(Vec<(ElectionName, Version)>, bool)>,
    ) -> Shown {
        let page = page.map(|(leases, more)| Page {
            entries: leases
                .into_iter()
                .map(|(election, version)| Entry {
                    key: key(&election),
                    version: to_store(&version),
                })
                .collect(),
            more,
        });
        let shown = self.0.on_page(now, page);
        let looks = |polls: Vec<polls::Poll>| polls.into_iter().map(Look::from).collect();
        Shown {
            unchanged: looks(shown.unchanged),
            changed: looks(shown.changed),
            next: shown
                .next
                .and_then(|key| ElectionName::new(key.name()).ok()),
        }
    }
}

impl From<polls::Poll> for Look {
    fn from(poll: polls::Poll) -> Self {
        Self {
            ticket: poll.ticket,
            election: poll.election,
            known: poll.known,
            within: poll.within,
        }
    }
}

impl From<&Look> for Request {
    fn from(look: &Look) -> Self {
        Request::ReadLease {
            election: look.election.clone(),
            known: Some(look.known.clone()),
        }
    }
}

fn key(election: &ElectionName) -> Key {
    Key::new(format!("world/elections/{election}")).expect("the name of an election is a segment")
}
