//! The worker runtime: claims jobs, runs their handlers, keeps the claims and reports the ends.
//!
//! ```text
//!            free slots                      one task per job
//!  claim ──────────────> jobs ──> handler ───────────────────> desk ──> outbox ──> complete, fail, release
//!    ^ long poll                    │ ^                          │                   (batched)
//!    ├── slot free again            │ └─ cancelled: by request,  │
//!    │                              │    claim lost, lease over, │
//!    │                              │    worker stops            │
//!    │                              └─ progress ──> keeper ──> heartbeat (batched, three per lease)
//!    └── ends go along with the next claim ──────────────────────┘
//! ```
//!
//! - Never more claims than free slots: what waits here could run elsewhere. A slot is free again when the
//!   broker has acknowledged the job's end.
//! - A busy worker makes one call per round: a claim that is about to be sent takes the ends along, and the slots that they
//!   free are claimed for in the same commit. Ends wait for no claim otherwise (see `worker/desk.rs`).
//! - A claim that is lost stops its handler, and its result is not sent.
//! - A claim is trusted for a lease from when its request was sent, on a clock that counts suspend. If little or nothing
//!   of that is left when the answer is seen, after a long wait or because this process was stopped, a heartbeat has to
//!   confirm the claim before the handler is called.
//! - A handler that is told to stop and does not is dropped after the grace period. Code that never awaits
//!   cannot be dropped; give such work to `tokio::task::spawn_blocking`, and watch
//!   [`Job::cancellation`] there.
//! - A panic in a handler fails its job and nothing else.
//! - A job that is to be cancelled stays claimed until its handler has ended, and so do its key and its turn.
//! - A job that a handler cannot begin here ([`Failure::hand_back`]) goes to others, and less is claimed for a while.
//! - When the worker stops it claims no more, lets handlers finish for as long as it may, and then hands
//!   their jobs back. That costs them no attempt.
//!
//! Dropping the future of [`Worker::run`] stops everything at once; the jobs come back when their leases run
//! out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_api::{
    ClaimRequest, Claimed, EndedAs, JobType, Key, LEASE_MS_DEFAULT, QueueName, WAIT_MS_MAX,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::claims::{Claim, Ended, Round};
use crate::client::Client;
use crate::clock::{self, Moment};
use crate::error::Error;
use crate::trace;

mod board;
mod desk;
mod event;
mod failure;
mod handler;
mod job;
mod keeper;
mod outbox;
mod room;

use board::Board;
use desk::{Desk, merged};
use event::{Listener, tell};
pub(crate) use handler::Returned;
use handler::{End, Ending, Handler, ending, erase};
use job::Control;
use outbox::{Letter, Reply};
use room::Room;

pub use event::{Attempt, WorkerEvent};
pub use failure::Failure;
pub use job::{CancelReason, Job};

/// The most jobs of one claim.
const CLAIM_MAX: usize = 1_000;

/// How long to wait after a claim that has failed with all its own tries.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the ends of jobs that were handed back may take to be told.
const FAREWELL: Duration = Duration::from_secs(10);

/// How long a worker that stops waits for the answer to a claim that waits for no job: what it was given it can hand back.
const LAST_CLAIM: Duration = Duration::from_secs(1);

/// Runs jobs.
pub struct Worker {
    shared: Arc<Shared>,
    settings: Settings,
}

/// What a worker is made of.
pub struct WorkerBuilder {
    client: Client,
    handlers: BTreeMap<String, Handler>,
    name: Option<String>,
    queues: Vec<String>,
    listeners: Vec<Listener>,
    settings: Settings,
}

#[derive(Debug, Clone)]
struct Settings {
    concurrency: usize,
    lease: Duration,
    wait: Duration,
    drain: Duration,
    grace: Duration,
}

/// What a worker has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Jobs done.
    pub completed: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Jobs that were handed back: the worker stopped, or had no room for them.
    pub released: u64,
    /// Claims that were lost, or whose end was refused.
    pub lost: u64,
}

/// What the tasks of a worker share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) board: Board,
    /// Wakes the sender of heartbeats.
    pub(crate) wake: Arc<Notify>,
    room: Room,
    /// Handlers are not waited for any longer.
    hand_back: CancellationToken,
    /// The handlers that have not ended yet.
    handling: TaskTracker,
    name: Key,
    handlers: BTreeMap<JobType, Handler>,
    queues: Vec<QueueName>,
    listeners: Vec<Listener>,
    grace: Duration,
    completed: AtomicU64,
    failed: AtomicU64,
    released: AtomicU64,
    lost: AtomicU64,
}

impl Worker {
    /// A worker that takes its jobs through this client.
    #[must_use]
    pub fn builder(client: Client) -> WorkerBuilder {
        WorkerBuilder {
            client,
            handlers: BTreeMap::new(),
            name: None,
            queues: Vec::new(),
            listeners: Vec::new(),
            settings: Settings {
                concurrency: 10,
                lease: Duration::from_millis(LEASE_MS_DEFAULT.into()),
                wait: Duration::from_secs(20),
                drain: Duration::from_secs(30),
                grace: Duration::from_secs(5),
            },
        }
    }

    /// The name that the broker shows for its jobs.
    #[must_use]
    pub fn name(&self) -> &str {
        self.shared.name.as_str()
    }

    /// Works until `stop` is cancelled, then drains, and says what was done.
    ///
    /// Goes on through outages of the servers. Fails if they refuse its claims, for a wrong token, say;
    /// what runs by then is drained first.
    pub async fn run(&self, stop: CancellationToken) -> Result<Summary, Error> {
        let shared = &self.shared;
        // Dropping this future cancels it, and with it every task.
        let abandon = CancellationToken::new();
        let _guard = abandon.clone().drop_guard();
        let (outbox, letters) = mpsc::channel(self.settings.concurrency);
        let (alone, letters_alone) = mpsc::channel(self.settings.concurrency);
        let mut desk = Desk::new(letters, alone);
        let tasks = TaskTracker::new();
        let work = async {
            let polled = self.poll(&stop, &abandon, &tasks, &outbox, &mut desk).await;
            // No claim is made any more that an end could go along with.
            tokio::select! {
                () = self.drain(&tasks) => {}
                () = desk.pass_on() => {}
            }
            polled
        };
        let polled = tokio::select! {
            polled = work => polled,
            () = outbox::deliver(&shared.client, letters_alone) => unreachable!("a sender is held above"),
            () = keeper::keep(shared) => unreachable!("never ends"),
            () = keeper::watch(shared) => unreachable!("never ends"),
        };
        polled.map(|()| shared.summary())
    }

    /// Lets a worker that was told to stop wait for its handlers no longer: they are told to stop, and their
    /// jobs are handed back.
    pub fn hand_back(&self) {
        self.shared.hand_back.cancel();
    }

    /// Claims as many jobs as there are free slots, again and again.
    async fn poll(
        &self,
        stop: &CancellationToken,
        abandon: &CancellationToken,
        tasks: &TaskTracker,
        outbox: &mpsc::Sender<Letter>,
        desk: &mut Desk,
    ) -> Result<(), Error> {
        let slots = Arc::new(Semaphore::new(self.settings.concurrency));
        // A claim is the same one until it is answered: what it was given and did not hear of, it is given again.
        let mut name = Uuid::new_v4();
        while !stop.is_cancelled() {
            let Taken {
                jobs,
                slots: mut taken,
                sent,
            } = match self.round(&slots, name, stop, desk).await {
                Ok(Some(taken)) => taken,
                Ok(None) => continue,
                Err(error) if may_pass(&error) => {
                    tracing::warn!(%error, "cannot claim jobs; trying again");
                    tokio::select! {
                        () = sleep(PAUSE) => {}
                        () = stop.cancelled() => {}
                        () = desk.pass_on() => {}
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            name = Uuid::new_v4();
            for job in jobs {
                let slot = match taken.as_mut().and_then(|taken| taken.split(1)) {
                    Some(slot) => Slot::Taken(slot),
                    // An end that was to free one was refused, or an earlier try of this claim had more: it waits here.
                    None => Slot::Awaited(slots.clone()),
                };
                let arrival = Arrival {
                    job,
                    sent,
                    slot,
                    is_too_late: stop.is_cancelled(),
                };
                let (shared, outbox) = (self.shared.clone(), outbox.clone());
                let abandon = abandon.clone();
                tasks.spawn(async move {
                    tokio::select! {
                        () = attend(&shared, arrival, outbox) => {}
                        () = abandon.cancelled() => {}
                    }
                });
            }
        }
        Ok(())
    }

    /// One claim. If something has ended, or ends before there is a free slot, the claim takes that along. None if the
    /// worker stops, or the same claim is to be made again.
    async fn round(
        &self,
        slots: &Arc<Semaphore>,
        name: Uuid,
        stop: &CancellationToken,
        desk: &mut Desk,
    ) -> Result<Option<Taken>, Error> {
        let room = &self.shared.room;
        if desk.may_ride() && !room.is_scarce() {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(None),
                () = desk.gather() => {}
                free = slots.acquire() => drop(free),
            }
            // The job that has just ended may have had no room: then the next claim is not due yet, and its end does not wait.
            if desk.riding() > 0 && !room.is_scarce() {
                return self.end_and_claim(slots, name, stop, desk).await;
            }
        }
        tokio::select! {
            biased;
            // A claim that is cut off here is noticed by the server, which hands its jobs back.
            () = stop.cancelled() => Ok(None),
            () = desk.pass_on() => Ok(None),
            claimed = self.claim(slots, name) => claimed.map(Some),
        }
    }

    /// Waits for free slots, and claims as many jobs.
    async fn claim(&self, slots: &Arc<Semaphore>, name: Uuid) -> Result<Taken, Error> {
        let closed = "the semaphore is never closed";
        let permits = slots.clone().acquire_owned().await.expect(closed);
        let most = self.shared.room.wait(self.settings.concurrency).await;
        let permits = merged(Some(permits), free(slots, most.min(CLAIM_MAX) - 1));
        let taken = permits
            .as_ref()
            .map_or(1, OwnedSemaphorePermit::num_permits);
        let wait = milliseconds(self.settings.wait).min(WAIT_MS_MAX);
        let request = self.request(taken, wait);
        let sent = clock::now();
        let jobs = self.shared.client.claim_named(&request, name).await?;
        self.shared.room.claimed(jobs.len());
        Ok(Taken {
            jobs,
            slots: permits,
            sent,
        })
    }

    /// Tells how jobs have ended, and claims as many as there are slots then, without waiting for them. None if the worker
    /// stops, or the broker will not have ends along with a claim.
    async fn end_and_claim(
        &self,
        slots: &Arc<Semaphore>,
        name: Uuid,
        stop: &CancellationToken,
        desk: &mut Desk,
    ) -> Result<Option<Taken>, Error> {
        let ends = desk.ends();
        let permits = free(slots, CLAIM_MAX - desk.riding());
        let taken = permits
            .as_ref()
            .map_or(0, OwnedSemaphorePermit::num_permits);
        let request = self.request(taken + desk.riding(), 0);
        let too_late = async {
            stop.cancelled().await;
            sleep(LAST_CLAIM).await;
        };
        let sent = clock::now();
        let call = self.shared.client.end_and_claim(&request, name, &ends);
        let answered = tokio::select! {
            biased;
            answered = call => answered,
            () = too_late => return Ok(None),
        };
        match answered {
            Ok(Round { jobs, ended }) => {
                let freed = match ended {
                    Some(ended) => desk.answered(ended).await,
                    None => {
                        desk.stay_apart();
                        desk.send_alone(0).await;
                        None
                    }
                };
                self.shared.room.claimed(jobs.len());
                Ok(Some(Taken {
                    jobs,
                    slots: merged(permits, freed),
                    sent,
                }))
            }
            Err(error) => {
                // They may have been told: to tell them again, without the claim, does no harm.
                desk.send_alone(0).await;
                if may_pass(&error) {
                    return Err(error);
                }
                tracing::debug!(%error, "the broker does not take ends along with a claim");
                desk.stay_apart();
                Ok(None)
            }
        }
    }

    fn request(&self, max: usize, wait_ms: u32) -> ClaimRequest {
        ClaimRequest {
            worker: self.shared.name.clone(),
            queues: self.shared.queues.clone(),
            types: self.shared.handlers.keys().cloned().collect(),
            max: u32::try_from(max).unwrap_or(1),
            lease_ms: milliseconds(self.settings.lease),
            wait_ms,
        }
    }

    /// Lets handlers finish, then tells them to stop, then drops what is left.
    async fn drain(&self, tasks: &TaskTracker) {
        tasks.close();
        let running = self.shared.board.len();
        if running > 0 {
            tracing::info!(running, "letting jobs finish");
        }
        tokio::select! {
            () = tasks.wait() => return,
            () = sleep(self.settings.drain) => {}
            () = self.shared.hand_back.cancelled() => {}
        }
        tracing::info!(running = self.shared.board.len(), "handing jobs back");
        self.shared.board.stop_all();
        // Two waits: a long grace is for handlers, not for a broker that does not answer.
        self.shared.handling.close();
        let _ = timeout(self.settings.grace, self.shared.handling.wait()).await;
        if timeout(FAREWELL, tasks.wait()).await.is_err() {
            tracing::warn!(
                jobs = self.shared.board.len(),
                "could not report to the broker: these jobs run again when their leases end"
            );
        }
    }
}

/// What a claim has brought.
struct Taken {
    jobs: Vec<Claimed>,
    /// The slots that it was made for.
    slots: Option<OwnedSemaphorePermit>,
    /// When it was sent: the leases have begun since.
    sent: Moment,
}

/// A job that has just come in.
struct Arrival {
    job: Claimed,
    /// When its claim was sent.
    sent: Moment,
    slot: Slot,
    /// The worker stops: it is handed back.
    is_too_late: bool,
}

/// Where a job runs.
enum Slot {
    Taken(OwnedSemaphorePermit),
    Awaited(Arc<Semaphore>),
}

impl Slot {
    /// None if the job is told to stop before it has one.
    async fn take(self, control: &Control) -> Option<OwnedSemaphorePermit> {
        match self {
            Slot::Taken(slot) => Some(slot),
            Slot::Awaited(slots) => tokio::select! {
                biased;
                () = control.stop.cancelled() => None,
                slot = slots.acquire_owned() => slot.ok(),
            },
        }
    }
}

/// As many slots as are free now, up to so many. Only the worker's own loop takes several, so what is free can be taken.
fn free(slots: &Arc<Semaphore>, most: usize) -> Option<OwnedSemaphorePermit> {
    let free = u32::try_from(slots.available_permits().min(most)).ok()?;
    let free = (free > 0).then_some(free)?;
    slots.clone().try_acquire_many_owned(free).ok()
}

/// Whether a claim that has failed so may be made again.
fn may_pass(error: &Error) -> bool {
    error.is_temporary() || matches!(error, Error::Broken { .. })
}

/// One job, from its claim to the acknowledged end of it.
async fn attend(shared: &Arc<Shared>, arrival: Arrival, outbox: mpsc::Sender<Letter>) {
    let Arrival {
        job: claimed,
        sent,
        slot,
        is_too_late,
    } = arrival;
    let claim = Claim::from(&claimed);
    let attempt = Attempt::from(&claimed);
    let control = Arc::new(Control::new(claim.clone(), shared.wake.clone()));
    if is_too_late {
        control.cancel(CancelReason::Stopping);
    }
    let lease = Duration::from_millis(claimed.lease_ms.into());
    shared.board.add(control.clone(), lease, sent, clock::now());
    // Its lease may be shorter than those that heartbeats are sent for now, or be all but over.
    shared.wake.notify_one();
    let work = {
        let (shared, control) = (shared.clone(), control.clone());
        let span = trace::span_of(&claimed);
        // All of the handler, what comes before its first await included, is in a task of its own.
        let handled = async move {
            let returned = match shared.handlers.get(&claimed.job_type) {
                Some(handler) => handler(Job::new(claimed, control)).await,
                None => Err("this worker has no handler for its type".into()),
            };
            trace::note_failure(&returned);
            returned
        };
        handled.instrument(span)
    };
    let (end, slot) = {
        let _handling = shared.handling.token();
        let slot = slot.take(&control).await;
        let end = if slot.is_some() && control.may_begin().await {
            tell(&shared.listeners, &WorkerEvent::Claimed(attempt.clone()));
            supervise(work, &control, shared.grace).await
        } else {
            End::NotBegun
        };
        (end, slot)
    };
    match end.no_room() {
        Some(why) => shared.room.ran_out(why),
        None => shared.room.has_ended(),
    }
    let ending = ending(claim, end, control.reason());
    let wanted: (_, fn(Attempt) -> WorkerEvent) = match ending {
        Some(Ending::Complete(_)) => (&shared.completed, WorkerEvent::Completed),
        Some(Ending::Fail(_)) => (&shared.failed, WorkerEvent::Failed),
        Some(Ending::Release(_)) => (&shared.released, WorkerEvent::Released),
        None => (&shared.lost, WorkerEvent::Lost),
    };
    let completes = matches!(ending, Some(Ending::Complete(_)));
    let mut ended = None;
    if let Some(ending) = ending {
        let (sender, answer) = oneshot::channel();
        let reply = Reply { sender, slot };
        if outbox.send(Letter { ending, reply }).await.is_ok() {
            ended = answer.await.ok();
        }
    }
    shared.board.remove(&control);
    let (counter, event) = match ended {
        Some(Ended::Done | Ended::Cancelled) => wanted,
        // By its own transaction, with another result: that one is kept.
        Some(Ended::Lost(Some(reason)))
            if completes && reason.ended_as == Some(EndedAs::Completed) =>
        {
            tracing::debug!(id = %control.claim.id, "the job was completed by its own transaction, with another result");
            ended = Some(Ended::Done);
            wanted
        }
        Some(Ended::Lost(_) | Ended::Refused(_)) | None => (&shared.lost, WorkerEvent::Lost as _),
    };
    counter.fetch_add(1, Ordering::Relaxed);
    tell(&shared.listeners, &event(attempt));
    if let Some(Ended::Lost(reason)) = ended {
        let reason = reason.map_or_else(String::new, |reason| reason.to_string());
        tracing::warn!(id = %control.claim.id, reason, "the claim was lost before its end was reported");
    }
}

/// Runs a handler as a task of its own, so that its panic is its own. Dropped with this future.
async fn supervise(
    work: impl Future<Output = Returned> + Send + 'static,
    control: &Control,
    grace: Duration,
) -> End {
    let mut task = JoinSet::new();
    task.spawn(work);
    let too_late = async {
        control.stop.cancelled().await;
        sleep(grace).await;
    };
    tokio::select! {
        joined = task.join_next() => match joined {
            Some(Ok(returned)) => End::Returned(returned),
            Some(Err(error)) if error.is_panic() => End::of_panic(&*error.into_panic()),
            _ => End::Dropped,
        },
        () = too_late => {
            task.shutdown().await;
            End::Dropped
        }
    }
}

impl Shared {
    fn summary(&self) -> Summary {
        Summary {
            completed: self.completed.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            released: self.released.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}

impl WorkerBuilder {
    /// Runs jobs of this type with `handler`: a function from [`Job<T>`](Job) to a result. The payload is
    /// read as a `T`; one that cannot be is a permanent failure. What the handler returns is kept with the
    /// job, unless it is `()`; a result that cannot be written as JSON, or is too large, is left out, with a warning. Its
    /// error fails the attempt (see [`Failure`]).
    #[must_use]
    pub fn handle<T, R, E, F, Fut>(mut self, job_type: &str, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        R: Serialize,
        E: Into<Failure>,
        F: Fn(Job<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        self.handlers.insert(job_type.to_owned(), erase(handler));
        self
    }

    /// Takes jobs of this queue; may be called more than once. Without it jobs of every queue are taken.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// Calls `listener` with what happens to each job; may be called more than once. It runs in the job's own task, so it
    /// must not block; no heartbeat waits for it. If it panics, that is logged, and changes nothing.
    #[must_use]
    pub fn on_event(mut self, listener: impl Fn(&WorkerEvent) + Send + Sync + 'static) -> Self {
        self.listeners.push(Box::new(listener));
        self
    }

    /// The name that the broker shows for its jobs. Default: host and process.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How many jobs run at once. Default 10.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// How long a claim lasts without a heartbeat. Default 30 s. Shorter: a job whose worker died is tried
    /// again sooner. Longer: a network that is down for a while costs no work.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How long a claim waits for jobs before it is made anew. Default 20 s, at most a minute.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// How long handlers may go on when the worker stops. Default 30 s.
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> Self {
        self.settings.drain = drain;
        self
    }

    /// How long a handler may take to stop once it was told to; then it is dropped, and its job is given to
    /// others. Default 5 s. Make it very long where the work goes on without the handler: until the handler
    /// returns, the claim is kept.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// Checks the parts and makes the worker.
    pub fn build(self) -> Result<Worker, Error> {
        if self.handlers.is_empty() {
            return Err(Error::invalid("types", "the worker has no handler"));
        }
        if self.settings.concurrency == 0 {
            return Err(Error::invalid("concurrency", "is 0"));
        }
        let handlers = self
            .handlers
            .into_iter()
            .map(|(name, handler)| Ok((JobType::new(name)?, handler)))
            .collect::<Result<_, tenure_api::NameError>>()
            .map_err(|error| Error::invalid("types", &error))?;
        let queues = self
            .queues
            .iter()
            .map(QueueName::new)
            .collect::<Result<_, _>>()
            .map_err(|error| Error::invalid("queues", &error))?;
        let name = self.name.unwrap_or_else(default_name);
        let name = Key::new(name).map_err(|error| Error::invalid("worker", &error))?;
        Ok(Worker {
            shared: Arc::new(Shared {
                client: self.client,
                board: Board::default(),
                wake: Arc::new(Notify::new()),
                room: Room::default(),
                hand_back: CancellationToken::new(),
                handling: TaskTracker::new(),
                name,
                handlers,
                queues,
                listeners: self.listeners,
                grace: self.settings.grace,
                completed: AtomicU64::new(0),
                failed: AtomicU64::new(0),
                released: AtomicU64::new(0),
                lost: AtomicU64::new(0),
            }),
            settings: self.settings,
        })
    }
}

/// Host and process: `web-1:4711`.
fn default_name() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let host: String = host
        .chars()
        .filter(|character| !character.is_control())
        .take(100)
        .collect();
    format!("{host}:{}", std::process::id())
}

fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Worker")
            .field("name", &self.shared.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for WorkerBuilder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("WorkerBuilder")
            .field("types", &self.handlers.keys())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
