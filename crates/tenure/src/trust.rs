//! How long this process may act, for a term that it leads or a shard that it runs: what the driver's thread and
//! the application share about it.
//!
//! A term and a shard end in the same way. The work is told to [stop](Trust::stopping) and goes on to be trusted until
//! it has, within bounds; then, or when trust runs out, it has [ended](Trust::ended).

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tenure_core::cluster::{Generation, Shard};
use tenure_core::election::{EndReason, Term};
use tenure_core::{ElectionName, Moment};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::driver::Command;
use crate::driver::cluster::Order;

/// The right to act for one term ([`Leadership`](crate::Leadership)) or one shard in one generation
/// ([`Context`](crate::daemon::Context)), for as long as it lasts. Cheap to clone; holding it keeps nothing alive.
///
/// Ask [`check`](Trust::check) right before everything that only one process may do: a timer may be late, a clock is
/// not. A process can still be paused between the check and the act, so pass a token on to whatever can refuse an
/// older one.
#[derive(Clone)]
pub struct Trust {
    state: Arc<State>,
}

struct State {
    of: Of,
    clock: Clock,
    /// The end of trust, in nanoseconds since the clock's origin: read at every check, without a lock.
    trusted_until: AtomicU64,
    /// Told whenever the end of trust has moved.
    moved: Notify,
    /// Cancelled when the work is to stop in its own time.
    stopping: CancellationToken,
    /// Cancelled when it is over and the work is dropped.
    ended: CancellationToken,
    work: Mutex<Work>,
    commands: mpsc::UnboundedSender<Command>,
}

/// What this process is trusted with.
#[derive(Debug, Clone)]
pub(crate) enum Of {
    Term(ElectionName, Term),
    Shard(Shard, Generation),
}

/// How much work runs, and whether the driver knows of its end.
#[derive(Debug, Default)]
struct Work {
    running: usize,
    is_stopping: bool,
    /// Why the term ended.
    reason: Option<EndReason>,
    /// The first thing that went wrong with the shard.
    error: Option<String>,
    is_reported: bool,
}

/// This process may not act: its term or its shard has ended, or is about to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Leadership has ended, or is ending and no work may begin.
    #[error("leadership of {election} in term {term} {}", match reason { Some(reason) => format!("ended: {reason}"), None => "is ending".to_owned() })]
    Term {
        /// Which election.
        election: ElectionName,
        /// Which term.
        term: Term,
        /// Why, if the term has ended already.
        reason: Option<EndReason>,
    },
    /// The shard is another process's, or may be in a moment.
    #[error("this process no longer runs {shard} in generation {generation}")]
    Shard {
        /// Which shard.
        shard: Shard,
        /// In which generation.
        generation: Generation,
    },
}

impl Stopped {
    /// Why, if a term has ended already.
    #[must_use]
    pub fn reason(&self) -> Option<&EndReason> {
        match self {
            Stopped::Term { reason, .. } => reason.as_ref(),
            Stopped::Shard { .. } => None,
        }
    }
}

impl Trust {
    /// How long this process may still act, at least, if what it acts for is not given up meanwhile; an error if it may
    /// not. Reads two atomics and a clock.
    ///
    /// Leadership is given up when it is resigned or transferred, when somebody asks for either, and when the node is shut
    /// down; a shard when it goes elsewhere or the node leaves. Work that was [begun](Trust::begin_work) is waited for
    /// then, within bounds. Of other work nobody knows: another node may act as soon as this one has let go, and only
    /// a token protects receivers from what is done after that.
    pub fn check(&self) -> Result<Duration, Stopped> {
        let remaining = self.deadline().since(self.state.clock.moment());
        if remaining.is_zero() || self.state.ended.is_cancelled() {
            return Err(self.stopped());
        }
        Ok(remaining)
    }

    /// Whether this process may act right now: asks the clock, not a timer.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        !self.state.ended.is_cancelled() && self.state.clock.moment() < self.deadline()
    }

    /// When trust ends unless it is renewed before: on this host's clock that counts suspend (`CLOCK_BOOTTIME`), so that
    /// another process of the host can hold to it. Right only until [`ended`](Trust::ended).
    #[must_use]
    pub fn deadline(&self) -> Moment {
        Moment::from_origin(Duration::from_nanos(
            self.state.trusted_until.load(Ordering::Acquire),
        ))
    }

    /// Waits until the deadline is another than `known`, and returns it. A cancelled wait loses nothing.
    pub async fn deadline_after(&self, known: Moment) -> Moment {
        loop {
            let mut moved = pin!(self.state.moved.notified());
            // Registered before the look, so that no move falls in between.
            moved.as_mut().enable();
            let deadline = self.deadline();
            if deadline != known {
                return deadline;
            }
            moved.await;
        }
    }

    /// Cancelled when the work is to stop in good order: it is being given up, or trust is running out. This process
    /// is trusted until the work has stopped, or until the [`deadline`](Trust::deadline).
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.state.stopping.clone()
    }

    /// Cancelled when it is over: whatever still works is to be aborted at once.
    #[must_use]
    pub fn ended(&self) -> CancellationToken {
        self.state.ended.clone()
    }

    /// Says that work has begun which is not a future that this crate runs, such as another process or a thread: the
    /// lease or the shard is not given to another before the answer is dropped. The caller ends the work when
    /// [`stopping`](Trust::stopping) says so, and before the [`deadline`](Trust::deadline).
    pub fn begin_work(&self) -> Result<Working, Stopped> {
        // Under the lock, so that what has ended does not begin again.
        let mut work = self.work();
        let is_refused = match self.state.of {
            Of::Term(..) => work.is_stopping,
            // What a daemon needs to stop in good order may begin until it has stopped.
            Of::Shard(..) => work.is_reported,
        };
        if is_refused || !self.is_trusted() {
            drop(work);
            return Err(self.stopped());
        }
        work.running += 1;
        drop(work);
        Ok(Working {
            trust: self.clone(),
        })
    }

    pub(crate) fn new(
        of: Of,
        trusted_until: Moment,
        clock: Clock,
        commands: mpsc::UnboundedSender<Command>,
    ) -> Self {
        Self {
            state: Arc::new(State {
                of,
                clock,
                trusted_until: AtomicU64::new(nanoseconds(trusted_until)),
                moved: Notify::new(),
                stopping: CancellationToken::new(),
                ended: CancellationToken::new(),
                work: Mutex::default(),
                commands,
            }),
        }
    }

    pub(crate) fn trust_until(&self, until: Moment) {
        let until = nanoseconds(until);
        if self.state.trusted_until.swap(until, Ordering::AcqRel) != until {
            self.state.moved.notify_waiters();
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.state.clock.moment()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.state.stopping.is_cancelled()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state.ended.is_cancelled()
    }

    /// Counts work, also if nothing is trusted yet or any more: for what reports the end of a shard.
    pub(crate) fn count_work(&self) -> Working {
        self.work().running += 1;
        Working {
            trust: self.clone(),
        }
    }

    /// The outcome; `None` if it ended, or is no longer trusted, before there was one. Nothing is polled after that,
    /// also if the whole process was paused, and with it the thread that would have ended it.
    pub(crate) async fn while_trusted<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let trusted = std::future::poll_fn(|context| {
            if self.is_trusted() {
                return future.as_mut().poll(context).map(Some);
            }
            match self.state.of {
                Of::Term(..) => self.end(EndReason::Expired),
                Of::Shard(..) => self.abort(),
            }
            Poll::Ready(None)
        });
        tokio::select! {
            biased;
            () = self.state.ended.cancelled() => None,
            outcome = trusted => outcome,
        }
    }

    /// Asks the work to stop.
    pub(crate) fn stop(&self) {
        self.work().is_stopping = true;
        self.state.stopping.cancel();
        self.report_if_idle(self.work());
    }

    /// Ends a term, and drops the work.
    pub(crate) fn end(&self, reason: EndReason) {
        self.work().reason.get_or_insert(reason);
        self.drop_work();
    }

    /// Ends a shard, and drops the work.
    pub(crate) fn abort(&self) {
        self.trust_until(Moment::default());
        self.drop_work();
    }

    fn drop_work(&self) {
        self.work().is_stopping = true;
        self.state.stopping.cancel();
        self.state.ended.cancel();
        self.report_if_idle(self.work());
    }

    /// The first thing that went wrong counts.
    pub(crate) fn failed(&self, error: String) {
        self.work().error.get_or_insert(error);
    }

    pub(crate) fn stopped(&self) -> Stopped {
        match self.state.of.clone() {
            Of::Term(election, term) => Stopped::Term {
                election,
                term,
                reason: self.work().reason.clone(),
            },
            Of::Shard(shard, generation) => Stopped::Shard { shard, generation },
        }
    }

    /// Work is reported to have ended once, when none runs any more. That of a shard runs from its start; that of a
    /// term comes and goes, so it has ended only when no more may begin.
    fn report_if_idle(&self, mut work: MutexGuard<'_, Work>) {
        let may_begin = matches!(self.state.of, Of::Term(..)) && !work.is_stopping;
        if work.running > 0 || may_begin || work.is_reported {
            return;
        }
        work.is_reported = true;
        let error = work.error.take();
        drop(work);
        self.send(match self.state.of.clone() {
            Of::Term(election, term) => Command::WorkEnded(election, term),
            Of::Shard(shard, generation) => Command::Cluster(Order::Ended {
                shard,
                generation,
                error,
            }),
        });
    }

    /// A driver that is gone has ended everything already.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.state.commands.send(command);
    }

    /// Plain data: a panic elsewhere leaves it whole.
    fn work(&self) -> MutexGuard<'_, Work> {
        let work = self.state.work.lock();
        work.unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Trust")
            .field("of", &self.state.of)
            .finish_non_exhaustive()
    }
}

/// Counts a piece of work for as long as it lives, also if it panics or its future is dropped.
#[derive(Debug)]
#[must_use = "the work counts as ended as soon as this is dropped"]
pub struct Working {
    trust: Trust,
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut work = self.trust.work();
        work.running -= 1;
        self.trust.report_if_idle(work);
    }
}

pub(crate) fn nanoseconds(moment: Moment) -> u64 {
    u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX)
}
