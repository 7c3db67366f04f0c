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
//! A commit whose outcome stays unknown ends the log but not the term: it is taken over again, by the same
//! leader, and reading it tells what became of the commit. A log that cannot be read is not served. This
//! process then leaves the election for a while, so that another one may try, and says so in
//! [`Queue::state`](super::Queue::state).

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tenure_core::ElectionName;
use tenure_core::queue::Limits;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::broker::{Bells, Broker};
use super::handle::Counters;
use super::maintenance::{hand_back, maintain, wake_claims};
use super::service::Service;
use super::time::Time;
use super::{Error, Log, Options, Owner, Progress, Serving, Writer};
use crate::task::scoped;
use crate::{Election, Leadership, Node};

/// How long a process that could not serve stays out of the election.
const STAND_BACK_MIN: Duration = Duration::from_secs(1);
const STAND_BACK_MAX: Duration = Duration::from_secs(60);

/// How long to wait before the log is taken over again in the same term.
const RETAKE_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETAKE_PAUSE_MAX: Duration = Duration::from_secs(5);

/// What the handles of a queue and its task share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) election: Election,
    pub(crate) options: Options,
    pub(crate) state: watch::Sender<Serving>,
    service: RwLock<Option<Arc<Service>>>,
    /// Over all terms.
    pub(crate) counters: Arc<Counters>,
    /// How often the log was read, and how long it took last.
    pub(crate) recoveries: Mutex<(u64, Option<Duration>)>,
    /// Cancelled when no more calls are taken.
    pub(crate) closing: CancellationToken,
    /// Cancelled when the task has ended.
    pub(crate) ended: CancellationToken,
}

/// Serves until the queue is closed or the node is shut down.
pub(crate) async fn serve(shared: Arc<Shared>) {
    let _stop = Stop(shared.clone());
    let mut stand_back = STAND_BACK_MIN;
    let mut told = None;
    while let Some(leadership) = shared.stand_by().await {
        let failed = match lead(&shared, &leadership).await {
            Ok(()) | Err(Error::Fenced) => {
                (stand_back, told) = (STAND_BACK_MIN, None);
                None
            }
            Err(error) => Some(error),
        };
        leadership.resign();
        if let Some(error) = failed {
            let text = crate::requests::Chain(&error).to_string();
            // Once is enough: it is tried again and again.
            if told.as_ref() != Some(&text) {
                let (namespace, term) = (shared.namespace(), leadership.term());
                tracing::error!(%namespace, %term, error = %text, "the queue cannot be served");
                told = Some(text);
            }
            shared.set(Serving::Failed(error));
            shared.stand_back(&leadership, stand_back).await;
            stand_back = (stand_back * 2).min(STAND_BACK_MAX);
        }
        shared.election.ended(&leadership).await;
    }
    // Whoever leads is to serve.
    shared.stand(None).await;
}

/// Leads one term. An error says why it cannot be led to its end.
async fn lead(shared: &Arc<Shared>, leadership: &Leadership) -> Result<(), Error> {
    let mut pause = RETAKE_PAUSE_MIN;
    let (namespace, term) = (shared.namespace(), leadership.term());
    loop {
        let led = {
            let _over = Over(shared);
            Box::pin(leadership.run(serve_term(shared, leadership))).await
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
                    "the log has ended, taking it over again"
                );
                let stopping = leadership.stopping();
                let _ = tokio::time::timeout(pause, stopping.cancelled()).await;
                pause = (pause * 2).min(RETAKE_PAUSE_MAX);
            }
            Ok(result) => {
                tracing::info!(%namespace, %term, ?result, "stepped down as the queue's broker");
                return result;
            }
        }
    }
}

/// Reads the log and serves it until leadership is to end, or the log has.
async fn serve_term(shared: &Arc<Shared>, leadership: &Leadership) -> Result<(), Error> {
    let (namespace, term) = (shared.namespace(), leadership.term());
    let Some(session) = shared.node.session() else {
        // It ended just now, and the term with it.
        return Ok(());
    };
    let (options, clock) = (&shared.options, shared.node.clock());
    let bells = Arc::new(Bells::default());
    let (abandoned, claims) = mpsc::unbounded_channel();
    let mut broker = Broker::new(clock.clone(), options.follow_max, bells.clone(), abandoned);
    let owner = Owner {
        token: leadership.token(),
        incarnation: session.incarnation,
    };
    let started = clock.moment();
    shared.set(Serving::Recovering(Progress::default()));
    let mut read = Progress::default();
    let stopping = leadership.stopping();
    let taken = Log::take_over(
        shared.node.view().store().clone(),
        shared.node.view().namespace(),
        owner,
        options.log.clone(),
        &mut broker,
        |progress| {
            read = progress;
            shared.set(Serving::Recovering(progress));
        },
    );
    let log = tokio::select! {
        biased;
        // Reading may take longer than whoever asked is ready to wait, and nobody is served yet. To drop
        // it is what a loss of trust does as well: the next one to take over finds the log as it is.
        () = stopping.cancelled() => return Ok(()),
        () = shared.closing.cancelled() => return Ok(()),
        log = taken => log?,
    };
    broker.begin();
    let took = clock.moment().since(started);
    tracing::info!(
        %namespace, %term, ?took, jobs = broker.queue.len(), records = read.records, bytes = read.bytes,
        "recovered the queue"
    );
    let time = Time::new(clock.clone(), options.clock_ahead_max, broker.queue.now());
    shared.recovered(took);
    let stop = leadership.stopping();
    let (handle, writer) = Writer::counted(log, broker, stop, shared.counters.clone());
    let service = Arc::new(Service {
        handle,
        leadership: leadership.clone(),
        time,
        limits: options.limits.clone(),
        waiting_max: options.waiting_claims_max,
        bells,
        nonce: AtomicU32::new(crate::task::unique().as_fields().0),
    });
    let mut tasks = JoinSet::new();
    let [first, second, third] = std::array::from_fn(|_| service.clone());
    tasks.spawn(scoped(async move { maintain(&first).await }));
    tasks.spawn(scoped(async move { wake_claims(&second).await }));
    tasks.spawn(scoped(async move { hand_back(&third, claims).await }));
    shared.install(&service);
    shared.set(Serving::Serving {
        term,
        since: clock.now().wall,
    });
    let mut writer = std::pin::pin!(writer.run());
    tokio::select! {
        biased;
        result = &mut writer => result,
        () = shared.closing.cancelled() => {
            // Nobody sends anything any more; what waits is committed.
            shared.uninstall();
            service.answer_waiting(&Error::Stopped);
            let (result, ()) = tokio::join!(writer, service.handle.shutdown());
            result
        }
        () = panicked(&mut tasks) => Err(Error::Stopped),
    }
}

/// Resolves if a task of the term has panicked. One that ended otherwise has found the term over.
async fn panicked(tasks: &mut JoinSet<Error>) {
    while let Some(ended) = tasks.join_next().await {
        if ended.is_err() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

impl Shared {
    pub(crate) fn new(node: Node, election: Election, options: Options) -> Self {
        let leader = election.leader();
        Self {
            node,
            election,
            options,
            state: watch::Sender::new(Serving::Standby { leader }),
            service: RwLock::default(),
            counters: Arc::default(),
            recoveries: Mutex::default(),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
        }
    }

    /// Who answers calls; an error if nobody does here.
    pub(crate) fn service(&self) -> Result<Arc<Service>, Error> {
        let service = self.service.read().unwrap_or_else(PoisonError::into_inner);
        service.clone().ok_or_else(|| self.not_serving())
    }

    /// Why nobody answers calls.
    pub(crate) fn not_serving(&self) -> Error {
        if self.closing.is_cancelled() || self.ended.is_cancelled() {
            return Error::Stopped;
        }
        Error::NotServing {
            leader: self.election.leader(),
        }
    }

    /// What a call is answered with. A term that has stopped is not the end of the queue.
    pub(crate) fn answer<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        match result {
            Err(Error::Stopped) => Err(self.not_serving()),
            result => result,
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.options.limits
    }

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

    fn install(&self, service: &Arc<Service>) {
        let mut current = self.service.write().unwrap_or_else(PoisonError::into_inner);
        *current = Some(service.clone());
    }

    fn uninstall(&self) -> Option<Arc<Service>> {
        let mut current = self.service.write().unwrap_or_else(PoisonError::into_inner);
        current.take()
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
        self.stand(None).await;
        self.election.ended(leadership).await;
        tokio::select! {
            biased;
            () = self.closing.cancelled() => {}
            () = tokio::time::sleep(pause) => self.stand(self.options.priority).await,
        }
    }

    async fn stand(&self, priority: Option<u8>) {
        let name = self.election_name().as_str();
        // It was joined under this name before.
        let _ = self.node.join_with(name, priority).await;
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
