//! One term, as the process that leads it sees it.

use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::election::Term;
use tenure_core::{ElectionName, Incarnation, Moment};
use tenure_store::Key;

use crate::driver::Command;
use crate::fence::Token;
use crate::trust::{Stopped, Trust, nanoseconds};

/// How much of a reason the history keeps, in characters: it is part of the lease.
const WHY_MAX: usize = 200;

/// The right to lead for one term. Cheap to clone; holding it does not keep the term alive.
///
/// It is [`Trust`], with the same methods: ask [`check`](Trust::check) right before everything that only a leader may
/// do. Do that within [`run`](Leadership::run), or after [`begin_work`](Trust::begin_work): only such work is waited for
/// when leadership is given up, up to `stop_within`. Pass the [`token`](Leadership::token) on to whatever can refuse an
/// older one: a process can be paused between the check and the act.
#[derive(Debug, Clone)]
pub struct Leadership {
    trust: Trust,
    term: Arc<Details>,
}

#[derive(Debug)]
struct Details {
    election: ElectionName,
    token: Token,
    /// The process that leads: the fence names it too.
    incarnation: Incarnation,
    fence_key: Key,
    watchdog: Mutex<Option<Arc<LastFed>>>,
}

impl Leadership {
    pub(crate) fn new(
        trust: Trust,
        election: ElectionName,
        token: Token,
        incarnation: Incarnation,
        fence_key: Key,
    ) -> Self {
        Self {
            trust,
            term: Arc::new(Details {
                election,
                token,
                incarnation,
                fence_key,
                watchdog: Mutex::default(),
            }),
        }
    }

    /// The election.
    #[must_use]
    pub fn election(&self) -> &ElectionName {
        &self.term.election
    }

    /// The term: a number that only grows.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term.token.term
    }

    /// What to pass on to receivers, so that they can refuse an older leader.
    #[must_use]
    pub fn token(&self) -> Token {
        self.term.token
    }

    /// Where the store keeps the fence of the election, for receivers that can read it there.
    #[must_use]
    pub fn fence_key(&self) -> &Key {
        &self.term.fence_key
    }

    /// Which process leads: this one, from its start to its end.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.term.incarnation
    }

    /// Runs work that only a leader may do.
    ///
    /// When leadership is given up, the work is asked to stop through [`stopping`](Trust::stopping)
    /// and gets `stop_within` for it; leadership is released when all work of the term has ended, so a
    /// successor never starts beside it. Work that does not stop in time is dropped, as it is at once
    /// when trust ends, and is never polled again, also if this process was paused and has only just woken
    /// up. If the work panics, leadership is given up. Work that returns, or whose future is dropped, does not end the
    /// term: [`Election::lead`](crate::Election::lead) resigns then.
    ///
    /// Work that does not return control (a blocking call) cannot be dropped: others then lead beside it
    /// as if the process had died, and only the token protects receivers. This process takes no lease of
    /// the election before that work has returned.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Stopped> {
        let _running = self.begin_work()?;
        let _panic = ResignOnPanic(self);
        let outcome = self.trust.while_trusted(work).await;
        outcome.ok_or_else(|| self.trust.stopped())
    }

    /// Gives leadership up: the work is told to stop, and the lease is vacated when it has. Changes
    /// nothing if the term is over, also if this process leads a later one.
    pub fn resign(&self) {
        let election = self.election().clone();
        self.trust.send(Command::ResignTerm(election, self.term()));
    }

    /// The same as [`resign`](Leadership::resign), since something is wrong with the work here: `why` is what the history
    /// says of the term, up to 200 characters of it.
    pub fn give_up(&self, why: &str) {
        let why = why.chars().take(WHY_MAX).collect();
        let election = self.election().clone();
        let command = Command::GiveUpTerm(election, self.term(), why);
        self.trust.send(command);
    }

    /// Lets leadership go if [`Watchdog::feed`] is not called for `period`: for work that may hang while
    /// the process lives. Without it, a blocked application keeps its lease, since heartbeats have a
    /// thread of their own.
    #[must_use]
    pub fn watchdog(&self, period: Duration) -> Watchdog {
        let fed = Arc::new(LastFed {
            period,
            at: AtomicU64::new(nanoseconds(self.trust.now())),
        });
        *self.term.watchdog() = Some(fed.clone());
        self.trust.send(Command::WatchdogSet(self.clone()));
        Watchdog {
            fed,
            leadership: self.clone(),
        }
    }

    /// When the watchdog gives up, if there is one.
    pub(crate) fn watchdog_expires_at(&self) -> Option<Moment> {
        let fed = self.term.watchdog().clone()?;
        let at = Moment::from_origin(Duration::from_nanos(fed.at.load(Ordering::Relaxed)));
        Some(at + fed.period)
    }

    /// The watchdog has barked; it does so once.
    pub(crate) fn clear_watchdog(&self) {
        *self.term.watchdog() = None;
    }

    /// Whether this is the same term, in the same process.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.term, &other.term)
    }
}

impl Deref for Leadership {
    type Target = Trust;

    fn deref(&self) -> &Trust {
        &self.trust
    }
}

impl Details {
    /// Plain data: a panic elsewhere leaves it whole.
    fn watchdog(&self) -> MutexGuard<'_, Option<Arc<LastFed>>> {
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps leadership as long as it is fed. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watchdog {
    fed: Arc<LastFed>,
    leadership: Leadership,
}

#[derive(Debug)]
struct LastFed {
    period: Duration,
    at: AtomicU64,
}

impl Watchdog {
    /// Says that the work makes progress.
    pub fn feed(&self) {
        let now = nanoseconds(self.leadership.now());
        self.fed.at.store(now, Ordering::Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let mut current = self.leadership.term.watchdog();
        if current
            .as_ref()
            .is_some_and(|fed| Arc::ptr_eq(fed, &self.fed))
        {
            *current = None;
        }
    }
}

/// Work that panics is not done, and a leader that does nothing is worse than none.
struct ResignOnPanic<'a>(&'a Leadership);

impl Drop for ResignOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up("the work panicked");
        }
    }
}
