//! One term, as the process that leads it sees it.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tenure_core::election::Term;
use tenure_core::election::machine::EndReason;
use tenure_core::{ElectionName, Incarnation, Lineage, Moment};
use tenure_store::Key;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::driver::Command;
use crate::fence::Token;

/// The right to lead for one term. Cheap to clone; holding it does not keep the term alive.
///
/// Do what only a leader may do within [`run`](Leadership::run), or after [`begin_work`](Leadership::begin_work): only
/// such work is waited for when leadership is given up. Ask [`check`](Leadership::check) right before everything that only a leader may do, and pass the
/// [`token`](Leadership::token) on to whatever can refuse an older one: a process can be paused between
/// the check and the act.
#[derive(Debug, Clone)]
pub struct Leadership {
    term: Arc<TermState>,
}

/// What the driver's thread and the application share about one term.
#[derive(Debug)]
pub(crate) struct TermState {
    pub(crate) election: ElectionName,
    pub(crate) term: Term,
    lineage: Lineage,
    /// The process that leads: the fence names it too.
    incarnation: Incarnation,
    fence_key: Key,
    clock: Clock,
    /// The end of trust, in nanoseconds since the clock's origin: read at every check, without a lock.
    trusted_until: AtomicU64,
    /// Told whenever the end of trust has moved.
    moved: Notify,
    /// Cancelled when the work is to stop in its own time.
    stop: CancellationToken,
    /// Cancelled when the term is over and the work is dropped.
    over: CancellationToken,
    work: Mutex<Work>,
    watchdog: Mutex<Option<Arc<Fed>>>,
    commands: mpsc::UnboundedSender<Command>,
}

/// How much work runs, and whether the driver waits for its end.
#[derive(Debug, Default)]
struct Work {
    running: usize,
    told_to_stop: bool,
    end: Option<EndReason>,
    reported: bool,
}

/// The work was stopped, or never started, because leadership ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("leadership of {election} in term {term} {}", match reason { Some(reason) => format!("ended: {reason}"), None => "is ending".to_owned() })]
pub struct Stopped {
    /// Which election.
    pub election: ElectionName,
    /// Which term.
    pub term: Term,
    /// Why, if the term has ended already.
    pub reason: Option<EndReason>,
}

impl Leadership {
    pub(crate) fn new(term: Arc<TermState>) -> Self {
        Self { term }
    }

    /// The election.
    #[must_use]
    pub fn election(&self) -> &ElectionName {
        &self.term.election
    }

    /// The term: a number that only grows.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term.term
    }

    /// What to pass on to receivers, so that they can refuse an older leader.
    #[must_use]
    pub fn token(&self) -> Token {
        Token {
            lineage: self.term.lineage,
            term: self.term.term,
        }
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

    /// How long this process may still act as the leader, if leadership is not given up meanwhile; an error if it may
    /// not. Reads two atomics and a clock.
    ///
    /// It is given up when it is resigned or transferred, when somebody asks for either, and when the node is shut down. Then
    /// [`run`](Leadership::run) and [`begin_work`](Leadership::begin_work) make it wait for the work, up to
    /// `stop_within` and never beyond this time. Without one of them nobody knows that there is work: the term ends, and
    /// another node may lead, as soon as the lease is vacated. Only the token protects receivers from what is done after that.
    pub fn check(&self) -> Result<Duration, Stopped> {
        let remaining = self.term.trusted_until().since(self.term.clock.moment());
        if remaining.is_zero() || self.term.over.is_cancelled() {
            return Err(self.term.stopped());
        }
        Ok(remaining)
    }

    /// When trust ends, unless a heartbeat is confirmed before: on this host's clock that counts suspend
    /// (`CLOCK_BOOTTIME`), so that another process of the host can hold to it. Right only until
    /// [`ended`](Leadership::ended).
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.term.trusted_until()
    }

    /// Waits until the deadline is another than `known`, and returns it. A cancelled wait loses nothing.
    pub async fn deadline_after(&self, known: Moment) -> Moment {
        loop {
            let mut moved = std::pin::pin!(self.term.moved.notified());
            // Registered before the look, so that no move falls in between.
            moved.as_mut().enable();
            let deadline = self.deadline();
            if deadline != known {
                return deadline;
            }
            moved.await;
        }
    }

    /// Cancelled when the term is over: whatever still works is to be aborted at once.
    #[must_use]
    pub fn ended(&self) -> CancellationToken {
        self.term.over.clone()
    }

    /// Cancelled when the work is to stop: leadership is being given up, or trust is running out. The
    /// term goes on until the work has stopped or trust ends.
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.term.stop.clone()
    }

    /// Runs work that only a leader may do.
    ///
    /// When leadership is given up, the work is asked to stop through [`stopping`](Leadership::stopping)
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
        let _running = self.term.begin_work()?;
        let _panic = ResignOnPanic(&self.term);
        let mut work = std::pin::pin!(work);
        let trusted_work = std::future::poll_fn(|context| {
            // The thread that would cancel it may have been paused as long as this one.
            if self.term.is_trusted() {
                return work.as_mut().poll(context).map(Ok);
            }
            self.term.end(EndReason::Expired);
            Poll::Ready(Err(self.term.stopped()))
        });
        tokio::select! {
            biased;
            () = self.term.over.cancelled() => Err(self.term.stopped()),
            result = trusted_work => result,
        }
    }

    /// Says that work has begun which is no future, such as another process: leadership is not released
    /// before the answer is dropped. The caller ends the work itself when
    /// [`stopping`](Leadership::stopping) says so, and before the [`deadline`](Leadership::deadline).
    pub fn begin_work(&self) -> Result<Working, Stopped> {
        self.term.begin_work()
    }

    /// Gives leadership up: the work is told to stop, and the lease is vacated when it has. Changes
    /// nothing if the term is over, also if this process leads a later one.
    pub fn resign(&self) {
        self.term.resign();
    }

    /// Lets leadership go if [`Watchdog::feed`] is not called for `period`: for work that may hang while
    /// the process lives. Without it, a blocked application keeps its lease, since heartbeats have a
    /// thread of their own.
    #[must_use]
    pub fn watchdog(&self, period: Duration) -> Watchdog {
        let fed = Arc::new(Fed {
            period,
            at: AtomicU64::new(nanoseconds(self.term.clock.moment())),
        });
        *lock(&self.term.watchdog) = Some(fed.clone());
        self.term.send(Command::WatchdogSet(self.term.clone()));
        Watchdog {
            fed,
            term: self.term.clone(),
        }
    }
}

/// Keeps leadership as long as it is fed. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watchdog {
    fed: Arc<Fed>,
    term: Arc<TermState>,
}

#[derive(Debug)]
struct Fed {
    period: Duration,
    at: AtomicU64,
}

impl Watchdog {
    /// Says that the work makes progress.
    pub fn feed(&self) {
        self.fed
            .at
            .store(nanoseconds(self.term.clock.moment()), Ordering::Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let mut current = lock(&self.term.watchdog);
        if current
            .as_ref()
            .is_some_and(|fed| Arc::ptr_eq(fed, &self.fed))
        {
            *current = None;
        }
    }
}

impl TermState {
    pub(crate) fn new(
        election: ElectionName,
        token: Token,
        incarnation: Incarnation,
        fence_key: Key,
        trusted_until: Moment,
        clock: Clock,
        commands: mpsc::UnboundedSender<Command>,
    ) -> Arc<Self> {
        Arc::new(Self {
            election,
            term: token.term,
            lineage: token.lineage,
            incarnation,
            fence_key,
            clock,
            trusted_until: AtomicU64::new(nanoseconds(trusted_until)),
            moved: Notify::new(),
            stop: CancellationToken::new(),
            over: CancellationToken::new(),
            work: Mutex::default(),
            watchdog: Mutex::default(),
            commands,
        })
    }

    pub(crate) fn trust_until(&self, until: Moment) {
        self.trusted_until
            .store(nanoseconds(until), Ordering::Release);
        self.moved.notify_waiters();
    }

    fn trusted_until(&self) -> Moment {
        Moment::from_origin(Duration::from_nanos(
            self.trusted_until.load(Ordering::Acquire),
        ))
    }

    pub(crate) fn is_trusted(&self) -> bool {
        !self.over.is_cancelled() && self.clock.moment() < self.trusted_until()
    }

    /// Asks the work to stop.
    pub(crate) fn tell_to_stop(&self) {
        lock(&self.work).told_to_stop = true;
        self.stop.cancel();
        self.report_if_idle();
    }

    /// Ends the term, and drops the work.
    pub(crate) fn end(&self, reason: EndReason) {
        {
            let mut work = lock(&self.work);
            work.told_to_stop = true;
            work.end.get_or_insert(reason);
        }
        self.stop.cancel();
        self.over.cancel();
        self.report_if_idle();
    }

    /// When the watchdog gives up, if there is one.
    pub(crate) fn watchdog_expires_at(&self) -> Option<Moment> {
        let fed = lock(&self.watchdog).clone()?;
        let at = Moment::from_origin(Duration::from_nanos(fed.at.load(Ordering::Relaxed)));
        Some(at + fed.period)
    }

    /// The watchdog has barked; it does so once.
    pub(crate) fn clear_watchdog(&self) {
        *lock(&self.watchdog) = None;
    }

    fn begin_work(self: &Arc<Self>) -> Result<Working, Stopped> {
        let mut work = lock(&self.work);
        if work.told_to_stop || !self.is_trusted() {
            drop(work);
            return Err(self.stopped());
        }
        work.running += 1;
        Ok(Working { term: self.clone() })
    }

    fn report_if_idle(&self) {
        let mut work = lock(&self.work);
        if work.told_to_stop && work.running == 0 && !work.reported {
            work.reported = true;
            self.send(Command::WorkEnded(self.election.clone(), self.term));
        }
    }

    fn stopped(&self) -> Stopped {
        let reason = lock(&self.work).end.clone();
        Stopped {
            election: self.election.clone(),
            term: self.term,
            reason,
        }
    }

    fn resign(&self) {
        self.send(Command::ResignTerm(self.election.clone(), self.term));
    }

    /// A driver that is gone has ended every term already.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

/// Counts a piece of work for as long as it lives, also if it panics or its future is dropped.
#[derive(Debug)]
#[must_use = "the work counts as ended as soon as this is dropped"]
pub struct Working {
    term: Arc<TermState>,
}

impl Drop for Working {
    fn drop(&mut self) {
        lock(&self.term.work).running -= 1;
        self.term.report_if_idle();
    }
}

/// Work that panics is not done, and a leader that does nothing is worse than none.
struct ResignOnPanic<'a>(&'a TermState);

impl Drop for ResignOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.resign();
        }
    }
}

fn nanoseconds(moment: Moment) -> u64 {
    u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

/// These mutexes guard plain numbers; a panic elsewhere leaves them whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
