//! Serving the queue whenever this process leads: one term after the other, until it is closed.
//!
//! ```text
//!              elected                  log replayed
//!  standby ──────────────> recovering ───────────────> serving
//!     ^                        │                          │  leadership ends, or the log is fenced:
//!     │     stands back        v                          v  every caller is answered
//!     └─────────────────── failed <──────────────── the term is over ──> standby
//! ```
//!
//! A term's work runs inside [`Leadership::run`], so the lease is given back only when nothing is written any
//! more, and nothing is written after trust has ended. What protects the log if that fails, since a process can
//! be paused anywhere, is the log itself: a leader that was replaced acknowledges nothing.
//!
//! A log that follows older rules than this process knows is taken over again, in the same term, when every other
//! process can read the newer ones: see `readers.rs`.
//!
//! A commit whose outcome stays unknown ends the log but not the term: it is taken over again, by the same
//! leader, and reading it tells whether the commit is there. A log that cannot be read is not served. This
//! process then leaves the election for a while, so that another one may try, and says so in
//! [`Queue::state`](super::Queue::state).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tenure_core::ElectionName;
use tenure_store::wrap::throttled::unlimited_reads;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::broker::{Broker, Signals};
use super::calls::Shared;
use super::due::{commit_due, hand_back, wake_claims};
use super::readers::Readers;
use super::service::Service;
use super::time::{ClockLimits, Time};
use super::{Config, Error, Progress, Serving};
use crate::Leadership;
use crate::log::{Log, Owner, Writer};

/// How long a process that could not serve stays out of the election.
const STAND_BACK_MIN: Duration = Duration::from_secs(1);
const STAND_BACK_MAX: Duration = Duration::from_secs(60);

/// How long to wait before the log is taken over again in the same term.
const RETAKE_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETAKE_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The largest record that the queue makes itself.
const RECORD_BYTES_MAX: usize = 64 * 1024;

/// Serves until the queue is closed or the node is shut down.
pub(crate) async fn serve(shared: Arc<Shared>) {
    let _stop = Stop(shared.clone());
    let mut stand_back = STAND_BACK_MIN;
    let mut told = None;
    let mut readers = Readers::default();
    while let Some(leadership) = shared.stand_by().await {
        let failed = match lead(&shared, &leadership, &mut readers).await {
            Ok(()) | Err(Error::Fenced) => {
                (stand_back, told) = (STAND_BACK_MIN, None);
                None
            }
            Err(error) => Some(error),
        };
        leadership.resign();
        if let Some(error) = failed {
            shared.terms_failed.fetch_add(1, Ordering::Relaxed);
            let text = crate::requests::Chain(&error).to_string();
            // Once is enough: it is tried again and again.
            if told.as_ref() != Some(&text) {
                let (namespace, term) = (shared.namespace(), leadership.term());
                tracing::error!(%namespace, %term, error = %text, "cannot serve the queue");
                told = Some(text);
            }
            shared.set(Serving::Failed(error));
            shared.stand_back(&leadership, stand_back).await;
            stand_back = (stand_back * 2).min(STAND_BACK_MAX);
        }
        shared.election.ended(&leadership).await;
    }
    // A leader has to serve, and this process no longer can.
    shared.stand(None);
}

/// Leads one term. An error says why it cannot be led to its end.
async fn lead(
    shared: &Arc<Shared>,
    leadership: &Leadership,
    readers: &mut Readers,
) -> Result<(), Error> {
    let mut pause = RETAKE_PAUSE_MIN;
    let (namespace, term) = (shared.namespace(), leadership.term());
    loop {
        let led = {
            let _over = Over(shared);
            Box::pin(leadership.run(serve_term(shared, leadership, readers))).await
        };
        match led {
            // The work was dropped when trust ended.
            Err(stopped) => {
                tracing::info!(%namespace, %term, reason = %stopped, "stepped down as the queue's broker");
                return Ok(());
            }
            Ok(Err(error @ Error::Unknown { .. })) if leadership.check().is_ok() => {
                tracing::warn!(
                    %namespace, %term, error = %crate::requests::Chain(&error),
                    "the log has ended; taking it over again"
                );
                let stopping = leadership.stopping();
                let _ = tokio::time::timeout(pause, stopping.cancelled()).await;
                pause = (pause * 2).min(RETAKE_PAUSE_MAX);
            }
            Ok(Ok(Ended::Outdated)) if leadership.check().is_ok() => {
                tracing::info!(
                    %namespace, %term,
                    "every process can read newer rules; taking the log over again with them"
                );
            }
            Ok(result) => {
                let result = result.map(drop);
                tracing::info!(%namespace, %term, ?result, "stepped down as the queue's broker");
                return result;
            }
        }
    }
}

/// Why a log is not served any more.
enum Ended {
    /// Leadership is to end, or the queue is.
    Over,
    /// It may follow newer rules.
    Outdated,
}

/// Reads the log and serves it until leadership is to end, or the log has.
async fn serve_term(
    shared: &Arc<Shared>,
    leadership: &Leadership,
    readers: &mut Readers,
) -> Result<Ended, Error> {
    let (namespace, term) = (shared.namespace(), leadership.term());
    let Some(session) = shared.node.session() else {
        // It ended just now, and the term with it.
        return Ok(Ended::Over);
    };
    let (options, runtime) = (&shared.options, shared.node.runtime());
    let clock = &runtime.clock;
    let signals = Arc::new(Signals::default());
    let (abandoned, claims) = mpsc::unbounded_channel();
    let mut broker = Broker::new(runtime, options.follow_max, signals.clone(), abandoned);
    let owner = Owner {
        token: leadership.token(),
        incarnation: session.incarnation,
    };
    let started = clock.moment();
    shared.set(Serving::Recovering(Progress::default()));
    let mut read = Progress::default();
    let stopping = leadership.stopping();
    let taken = take_over(shared, owner, readers, &mut broker, |progress| {
        read = progress;
        shared.set(Serving::Recovering(progress));
    });
    let log = tokio::select! {
        biased;
        // Reading may take longer than the caller is ready to wait, and nobody is served yet. To drop
        // it is what a loss of trust does as well: the next one to take over finds the log as it is.
        () = stopping.cancelled() => return Ok(Ended::Over),
        () = shared.closing.cancelled() => return Ok(Ended::Over),
        log = taken => log?,
    };
    broker.begin();
    let rules = log.rules();
    let took = clock.moment().since(started);
    tracing::info!(
        %namespace, %term, ?took, %rules, jobs = broker.queue.len(), records = read.records, bytes = read.bytes,
        "recovered the queue"
    );
    let limits = ClockLimits {
        ahead_max: options.clock_ahead_max,
        step_max: options.clock_step_max,
    };
    let time = Time::new(clock.clone(), limits, broker.queue.now());
    shared.recovered(took);
    let stop = leadership.stopping();
    let (handle, writer) = Writer::counted(log, broker, stop, shared.counters.clone());
    let service = Arc::new(Service {
        handle,
        leadership: leadership.clone(),
        time,
        rules,
        limits: options.limits.clone(),
        waiting_max: options.waiting_claims_max,
        waiting_bytes_max: options.waiting_claims_bytes_max,
        record_bytes_max: (options.log.batch_bytes_max / 2).min(RECORD_BYTES_MAX),
        signals,
        changes: tokio::sync::Mutex::default(),
        slots: tokio::sync::RwLock::default(),
        nonce: AtomicU32::new(runtime.unique().as_fields().0),
    });
    let mut tasks = JoinSet::new();
    let [first, second, third] = std::array::from_fn(|_| service.clone());
    tasks.spawn(runtime.task(async move { commit_due(&first).await }));
    tasks.spawn(runtime.task(async move { wake_claims(&second).await }));
    tasks.spawn(runtime.task(async move { hand_back(&third, claims).await }));
    shared.install(&service);
    shared.set(Serving::Serving {
        term,
        since: clock.now().wall,
    });
    let mut writer = std::pin::pin!(writer.run());
    tokio::select! {
        biased;
        result = &mut writer => result.map(|()| Ended::Over),
        () = shared.closing.cancelled() => {
            // Nobody sends anything any more; what waits is committed.
            shared.uninstall();
            service.answer_waiting(&Error::Stopped);
            let (result, ()) = tokio::join!(writer, service.handle.shutdown());
            result.map(|()| Ended::Over)
        }
        () = readers.newer(&shared.node, options, rules) => {
            shared.uninstall();
            let error = shared.not_serving();
            service.answer_waiting(&error);
            let (result, ()) = tokio::join!(writer, service.handle.shutdown());
            // Calls that still have it must not read what is about to be old.
            service.end(&error);
            result.map(|()| Ended::Outdated)
        }
        error = broken(&mut tasks) => {
            // Without them leases would never run out and nothing would ever be due, and nobody would be told.
            tracing::error!(
                %namespace, %term, error = %crate::requests::Chain(&error),
                "the queue's own work has ended before its term; ending the term"
            );
            Err(error)
        }
    }
}

/// Takes the log over by the newest rules that everyone reads.
async fn take_over(
    shared: &Shared,
    owner: Owner,
    readers: &mut Readers,
    broker: &mut Broker,
    progress: impl FnMut(Progress) + Send,
) -> Result<Log, Error> {
    let (node, options) = (&shared.node, &shared.options);
    let config = Config {
        rules_max: readers.rules(node, options).await,
        ..options.log.clone()
    };
    let (store, namespace) = (node.view().store().clone(), node.view().namespace());
    let runtime = shared.node.runtime();
    let taken = Log::take_over_on(runtime, store, namespace, owner, config, broker, progress);
    // At a ceiling of reads a long log would take longer than a term, again and again.
    unlimited_reads(taken).await
}

/// Resolves if a task of the term has ended for a reason that is not the end of the term: it panicked, or met an
/// error that nobody has thought of. One that was stopped, fenced, or left without an answer has found the term
/// over; the writer says how.
async fn broken(tasks: &mut JoinSet<Error>) -> Error {
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Error::Stopped | Error::Fenced | Error::Unknown { .. }) => {}
            Ok(error) => return error,
            // The panic itself is in the log already.
            Err(_) => return Error::Stopped,
        }
    }
    std::future::pending().await
}

impl Shared {
    fn namespace(&self) -> &tenure_core::Namespace {
        self.node.view().namespace()
    }

    fn election_name(&self) -> &ElectionName {
        self.election.name()
    }

    fn recovered(&self, took: Duration) {
        let mut recoveries = self
            .recoveries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *recoveries = (recoveries.0 + 1, Some(took));
    }

    fn set(&self, state: Serving) {
        self.state.send_replace(state);
    }

    /// Waits until this process leads; none when the queue is to end.
    async fn stand_by(&self) -> Option<Leadership> {
        let mut leaders = self.election.leaders();
        loop {
            let leader = leaders.borrow_and_update().clone();
            if !matches!(&*self.state.borrow(), Serving::Failed(_)) {
                self.set(Serving::Standby { leader });
            }
            tokio::select! {
                biased;
                () = self.closing.cancelled() => return None,
                elected = self.election.elected() => return elected.ok(),
                Ok(()) = leaders.changed() => {}
            }
        }
    }

    /// Leaves the election for a while.
    async fn stand_back(&self, leadership: &Leadership, pause: Duration) {
        self.stand(None);
        self.election.ended(leadership).await;
        tokio::select! {
            biased;
            () = self.closing.cancelled() => {}
            () = tokio::time::sleep(pause) => self.stand(self.options.priority),
        }
    }

    fn stand(&self, priority: Option<u8>) {
        // It was joined under this name before.
        self.node.join_own(self.election_name().clone(), priority);
    }
}

/// Ends a term for everyone who waits for something, however it ended.
struct Over<'a>(&'a Arc<Shared>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        if let Some(service) = self.0.uninstall() {
            service.end(&self.0.not_serving());
        }
    }
}

/// Ends the queue for everyone, also if its task panics or its runtime ends.
struct Stop(Arc<Shared>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.closing.cancel();
        self.0.set(Serving::Stopped);
        self.0.ended.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_queues_own_work_ends_the_term_if_the_term_did_not_end_it() {
        let too_large = Error::TooLarge {
            bytes: 2,
            bytes_max: 1,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async { Error::Stopped });
        tasks.spawn(async { Error::Unknown { source: None } });
        tasks.spawn(async { Error::Fenced });
        tasks.spawn(async move { too_large });
        let error = broken(&mut tasks).await;
        assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
        let mut tasks = JoinSet::new();
        tasks.spawn(async { Error::Fenced });
        let soon = Duration::from_millis(20);
        let waits = tokio::time::timeout(soon, broken(&mut tasks)).await;
        assert!(waits.is_err(), "the writer says how the term ended");
        tasks.spawn(async { panic!("expected by this test") });
        assert!(matches!(broken(&mut tasks).await, Error::Stopped));
    }
}
