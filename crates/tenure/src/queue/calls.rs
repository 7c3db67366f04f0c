//! The queue as a program sees it: calls that are answered while this process serves it.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tenure_core::queue::{
    Action, Answer, Cancelled, Changed, Claim, ClaimKey, ClaimRequest, Claimed, Completion, Ended,
    Ends, Failed, Failure, KeepIds, Key, Limits, Lost, Payload, QueueOptions, Released, Rules,
    Schedule, ScheduleSpec, Settings, Submission, Submitted,
};
use tenure_core::{JobId, QueueName, ScheduleName};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Position;
use super::broker::Broker;
use super::due::{commit, portions};
use super::serve::serve;
use super::service::Service;
use super::{Error, Follower, HeartbeatAnswer, Options, Serving};
use crate::log::Counters;
use crate::{Election, Node};

/// How many schedules go into one command when time was set back.
const REPLANNED_MAX: usize = 500;

/// How many of them are planned before others have a turn.
const REPLANNED_AT_ONCE: usize = 50;

/// The job queue of a namespace, in this process. Cheap to clone.
///
/// Of all processes that have opened it, the leader of its [`election`](Queue::election) serves it; in the
/// others every call fails with [`Error::NotServing`], which names the leader. Dropping the last handle is
/// like [`close`](Queue::close) without waiting for it.
///
/// ```
/// use std::time::Duration;
/// use tenure::core::JobType;
/// use tenure::core::queue::{ClaimRequest, Completion, Key, Payload, Submission};
/// use tenure::queue::{Options, Queue};
/// use tenure::{Node, NodeOptions};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = Node::start(NodeOptions::new("memory:", "demo")).await?;
/// let queue = Queue::open(&node, Options::default()).await?;
/// queue.serving().await?;
///
/// let mut job = Submission::new(JobType::new("mail")?);
/// job.payload = Payload::new(r#"{"to":"someone"}"#)?;
/// queue.submit(vec![job]).await?;
///
/// let worker = ClaimRequest::new(Key::new("worker-1")?);
/// for job in queue.claim(worker.waiting(Duration::from_secs(10))).await? {
///     assert_eq!(job.payload.as_str(), r#"{"to":"someone"}"#);
///     let done = Completion { id: job.id, token: job.token, result: None };
///     queue.complete(vec![done]).await?;
/// }
/// queue.close().await;
/// # node.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// # What an answer means
///
/// A call that changes something returns when that is durable: it survives this process and is never undone.
/// An error says whether something was done; after [`Error::Unknown`] and [`Error::Fenced`] send it again, to
/// the leader of that moment. Jobs with an id of their own, and claims with their token, make that harmless. A call
/// whose future is dropped is carried out, or not, as if its answer had been lost.
///
/// Calls may come from any number of tasks at once; what arrives while a commit is under way is committed
/// together. Reads never wait for a commit, and show only what is committed.
#[derive(Debug, Clone)]
pub struct Queue {
    pub(crate) shared: Arc<Shared>,
    /// Closes the queue when the last handle goes.
    _open: Arc<DropGuard>,
}

/// What came of [`Queue::end_and_claim`]: one answer for each end, in order, and the jobs that were claimed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Round {
    /// To the completions.
    pub completed: Vec<Ended<()>>,
    /// To the failures.
    pub failed: Vec<Ended<Failed>>,
    /// To what was handed back.
    pub released: Vec<Ended<Released>>,
    /// In the order in which they are to run; possibly none.
    pub claimed: Vec<Claimed>,
}

/// What the handles of a queue and its task share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) election: Election,
    pub(crate) options: Options,
    pub(crate) state: watch::Sender<Serving>,
    /// The present term, while this process serves.
    service: RwLock<Option<Arc<Service>>>,
    /// Over all terms.
    pub(crate) counters: Arc<Counters>,
    /// Terms that could not be served to their end.
    pub(crate) terms_failed: AtomicU64,
    /// How often the log was read, and how long it took last.
    pub(crate) recoveries: Mutex<(u64, Option<Duration>)>,
    /// Cancelled when no more calls are taken.
    pub(crate) closing: CancellationToken,
    /// Cancelled when the task has ended.
    pub(crate) ended: CancellationToken,
}

impl Queue {
    /// Stands in the queue's own election on this node, and serves the queue whenever this process leads. The work is done
    /// by a task of the present runtime; it keeps the node's session until the queue is closed.
    pub async fn open(node: &Node, options: Options) -> Result<Self, Error> {
        let name = options.check()?;
        let election = node.join_own(name, options.priority);
        let shared = Arc::new(Shared::new(node.clone(), election, options));
        let open = Arc::new(shared.closing.clone().drop_guard());
        node.runtime().spawn(serve(shared.clone()));
        Ok(Self {
            shared,
            _open: open,
        })
    }

    /// The election whose leader serves the queue: to see who leads, to resign, to transfer.
    #[must_use]
    pub fn election(&self) -> &Election {
        &self.shared.election
    }

    /// What a request may ask for. A call checks all that it is given, and does nothing if something is wrong with a
    /// part of it: a caller that passes on items of others checks each one separately.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.shared.limits()
    }

    /// Whether calls are served here.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        matches!(&*self.shared.state.borrow(), Serving::Serving { .. })
    }

    /// Waits until calls are served here. Fails if the queue stops before, or cannot be served; then it may
    /// be waited for again.
    pub async fn serving(&self) -> Result<(), Error> {
        let mut state = self.watch();
        let settled = state.wait_for(|state| {
            matches!(
                state,
                Serving::Serving { .. } | Serving::Failed(_) | Serving::Stopped
            )
        });
        match settled.await.as_deref() {
            Ok(Serving::Serving { .. }) => Ok(()),
            Ok(Serving::Failed(error)) => Err(error.clone()),
            _ => Err(Error::Stopped),
        }
    }

    /// How the queue stands in this process.
    #[must_use]
    pub fn state(&self) -> Serving {
        self.shared.state.borrow().clone()
    }

    /// The same, as it changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Serving> {
        self.shared.state.subscribe()
    }

    /// Enqueues jobs. One answer per job, in order. They are one record of the log: all of them are durable, or
    /// none is. A single one for whose queue or type there is no room is an [`Error::Full`]; of several, those that
    /// have no room are answered so, and the others are enqueued.
    pub async fn submit(&self, jobs: Vec<Submission>) -> Result<Vec<Submitted>, Error> {
        let service = self.shared.service()?;
        let at = service.time.at();
        service.limits.submissions(&jobs, at)?;
        let is_one = jobs.len() == 1;
        let mut admitted = self.shared.answer(service.admit_jobs(jobs))?;
        if let Some(full) = admitted.why.take().filter(|_| is_one) {
            return self.shared.answer(Err(full));
        }
        let jobs = std::mem::take(&mut admitted.jobs);
        if jobs.is_empty() {
            return Ok(admitted.answers(Vec::new()));
        }
        let answer = service.submit(at, jobs).await;
        let answer = self.shared.answer(answer).map(Answer::submitted);
        answer.map(|answers| admitted.answers(answers))
    }

    /// Claims jobs, the first whose turn it is, and waits for one if there is none and the request says so.
    /// Answered with at least one job, or with none when the time is over.
    ///
    /// The claim that has waited longest gets the first job that it could take. Nothing is written while nothing can
    /// be claimed. If the future is dropped it claims nothing, or hands back what it has claimed, without
    /// costing an attempt; only if this process dies just then do the jobs wait until their lease runs out.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, Error> {
        self.claim_until(request, std::future::pending()).await
    }

    /// The same, but waits no longer once `stop` has ended. What is being claimed just then is still claimed, and answered
    /// with: a process that is about to end could not hand it back any more.
    pub async fn claim_until(
        &self,
        request: ClaimRequest,
        stop: impl Future<Output = ()>,
    ) -> Result<Vec<Claimed>, Error> {
        self.claim_named(request, None, stop).await
    }

    /// The same for a claim that has a name of the caller's: something random, another for each claim. If the answer is
    /// lost, the same claim is made again: the same worker and name get the jobs that they hold, with the same tokens, and
    /// no attempt is counted twice. So a worker that may have had its answer keeps its jobs, a claim with a name that was
    /// made again is not handed back if the future is dropped.
    ///
    /// While a broker of an older version is in the namespace, names mean nothing.
    pub async fn claim_named(
        &self,
        mut request: ClaimRequest,
        name: Option<&Key>,
        stop: impl Future<Output = ()>,
    ) -> Result<Vec<Claimed>, Error> {
        let service = self.shared.service()?;
        service.limits.claim(&request)?;
        let key = name.map(|name| ClaimKey::new(&request.worker, name));
        // How long its caller waits is not for the log.
        let wait = Duration::from_millis(std::mem::take(&mut request.wait_ms).into());
        let claimed = service.claim(request, key, wait, stop).await;
        self.shared.answer(claimed)
    }

    /// Ends claims, and claims jobs, in one commit: what a busy worker does between two rounds. The ends come first, so a
    /// job that one of them makes claimable can be claimed. Does not wait for a job, whatever the request says.
    ///
    /// The call can be made again if its answer is lost: with the same name it is the same claim, as with
    /// [`Queue::claim_named`], and ends that were done are answered as they were. After an [`Error::Unknown`] some of it may
    /// have been done. Every other error means that nothing was.
    ///
    /// If others wait for a job, and an end makes room in a queue that limits how many run at once, they come first: the
    /// claim is then a second commit.
    pub async fn end_and_claim(
        &self,
        mut ends: Ends,
        mut request: ClaimRequest,
        name: Option<&Key>,
    ) -> Result<Round, Error> {
        let service = self.shared.service()?;
        service.limits.claim(&request)?;
        service.limits.ends(&mut ends)?;
        request.wait_ms = 0;
        let key = name.map(|name| ClaimKey::new(&request.worker, name));
        let done = service.end_and_claim(ends, request, key).await;
        let (ended, claimed) = self.shared.answer(done)?;
        let mut round = Round {
            claimed,
            ..Round::default()
        };
        for answer in ended {
            match answer {
                Answer::Completed(ended) => round.completed = ended,
                Answer::Failed(ended) => round.failed = ended,
                answer => round.released = answer.released(),
            }
        }
        Ok(round)
    }

    /// Renews claims, and notes progress. One answer per claim, in order. Costs no storage request.
    pub async fn heartbeat(
        &self,
        claims: Vec<(Claim, Option<Payload>)>,
    ) -> Result<Vec<Result<HeartbeatAnswer, Lost>>, Error> {
        let service = self.shared.service()?;
        let limits = self.shared.limits();
        limits.heartbeats(claims.iter().map(|(_, progress)| progress.as_ref()))?;
        let now = service.time.clock().moment();
        // A leader that was replaced has nothing to renew.
        self.shared.answer(service.check())?;
        self.shared.answer(service.change(|broker| {
            let (leases, queue) = (&mut broker.leases, &broker.queue);
            let renew = |(claim, progress): (Claim, Option<Payload>)| {
                leases.heartbeat(queue, &claim.id, claim.token, progress, now)
            };
            claims.into_iter().map(renew).collect()
        }))
    }

    /// Hands claims back as if they had never been made: the attempts do not count. One answer per claim, in
    /// order.
    pub async fn release(&self, claims: Vec<Claim>) -> Result<Vec<Ended<Released>>, Error> {
        self.shared.limits().batch("claims", claims.len())?;
        let answer = self.ask(Action::Release(claims)).await;
        answer.map(Answer::released)
    }

    /// Ends claims with success. One answer per claim, in order.
    pub async fn complete(&self, claims: Vec<Completion>) -> Result<Vec<Ended<()>>, Error> {
        self.shared.limits().completions(&claims)?;
        let answer = self.ask(Action::Complete(claims)).await;
        answer.map(Answer::completed)
    }

    /// Ends claims without success. One answer per claim, in order.
    pub async fn fail(&self, mut claims: Vec<Failure>) -> Result<Vec<Ended<Failed>>, Error> {
        self.shared.limits().failures(&mut claims)?;
        self.ask(Action::Fail(claims)).await.map(Answer::failed)
    }

    /// Gives jobs up; running ones are told with their next heartbeat. One answer per job, in order.
    pub async fn cancel(&self, jobs: Vec<JobId>) -> Result<Vec<Changed<Cancelled>>, Error> {
        self.shared.limits().batch("jobs", jobs.len())?;
        self.ask(Action::Cancel(jobs)).await.map(Answer::cancelled)
    }

    /// Runs dead or cancelled jobs again, or waiting ones now. One answer per job, in order.
    pub async fn retry(&self, jobs: Vec<JobId>) -> Result<Vec<Changed<()>>, Error> {
        self.shared.limits().batch("jobs", jobs.len())?;
        self.ask(Action::Retry(jobs)).await.map(Answer::retried)
    }

    /// Moves jobs to another queue, where each keeps its turn: by priority, and then by when it was submitted. Jobs that run or
    /// are completed are refused. One answer per job, in order.
    ///
    /// Refused while a process of an older version is in the namespace, which could not read it.
    pub async fn move_jobs(
        &self,
        jobs: Vec<JobId>,
        to: QueueName,
    ) -> Result<Vec<Changed<()>>, Error> {
        self.shared.limits().batch("jobs", jobs.len())?;
        if self.rules()? < Rules::FOURTH {
            return Err(Error::invalid(
                "cannot move jobs yet: a process of an earlier version is in the namespace",
                "nothing was done; upgrade or stop that process, then try again later",
            ));
        }
        self.admit(|service| service.admit_queue(&to))?;
        self.ask(Action::Move(jobs, to)).await.map(Answer::moved)
    }

    /// Forgets finished jobs before their time. One answer per job, in order.
    pub async fn forget(&self, jobs: Vec<JobId>) -> Result<Vec<Changed<()>>, Error> {
        self.shared.limits().batch("jobs", jobs.len())?;
        self.ask(Action::Forget(jobs)).await.map(Answer::forgotten)
    }

    /// Sets a queue's limits, all of them.
    pub async fn set_queue(&self, name: QueueName, options: QueueOptions) -> Result<(), Error> {
        self.change_queue(name, move |limits| *limits = options)
            .await
    }

    /// Changes a queue's limits: `change` is given those that hold, and no other change comes in between. What two
    /// callers change at once is changed, unless it is the same field.
    ///
    /// Once begun it is done to its end, also if the future is dropped, since the next change builds on it.
    pub async fn change_queue(
        &self,
        name: QueueName,
        change: impl FnOnce(&mut QueueOptions) + Send + 'static,
    ) -> Result<(), Error> {
        let queue = self.clone();
        let runtime = self.shared.node.runtime();
        let done = runtime.spawn(async move { queue.change_queue_in_turn(name, change).await });
        done.await.unwrap_or(Err(Error::Unknown { source: None }))
    }

    async fn change_queue_in_turn(
        &self,
        name: QueueName,
        change: impl FnOnce(&mut QueueOptions),
    ) -> Result<(), Error> {
        self.shared.limits().queue(&name)?;
        let service = self.shared.service()?;
        let _turn = service.changes.lock().await;
        let before = service.read(|broker| broker.queue.queue(&name));
        let before = self.shared.answer(before)?.map(|view| view.options);
        let mut options = before.unwrap_or_default();
        change(&mut options);
        self.shared.limits().queue_options(&options)?;
        self.shared.answer(service.admit_queue(&name))?;
        let answer = service.commit(Action::SetQueue(name, options)).await;
        self.shared.answer(answer).map(drop)
    }

    /// Lets no job of a queue be claimed. What runs goes on.
    pub async fn pause(&self, name: QueueName) -> Result<(), Error> {
        self.shared.limits().queue(&name)?;
        self.admit(|service| service.admit_queue(&name))?;
        self.ask(Action::Pause(name)).await.map(drop)
    }

    /// Lets jobs of a queue be claimed again.
    pub async fn resume(&self, name: QueueName) -> Result<(), Error> {
        self.ask(Action::Resume(name)).await.map(drop)
    }

    /// Creates or replaces a schedule. Returns when it next fires.
    pub async fn set_schedule(
        &self,
        name: ScheduleName,
        mut spec: ScheduleSpec,
    ) -> Result<Option<u64>, Error> {
        // As brokers of every version read it.
        if spec.cron.trim_start().starts_with('@') {
            spec.cron.make_ascii_lowercase();
        }
        let service = self.shared.service()?;
        let _planned = service.slots.read().await;
        let now = service.time.at();
        self.shared.limits().schedule(&name, &spec, now)?;
        self.admit(|service| service.admit_schedule(&name, &spec))?;
        let answer = self.ask(Schedule::command(name, spec, now)?).await;
        answer.map(Answer::schedule_set)
    }

    /// Deletes a schedule. Its jobs stay. Returns whether it was there.
    pub async fn delete_schedule(&self, name: ScheduleName) -> Result<bool, Error> {
        let answer = self.ask(Action::DeleteSchedule(name)).await;
        answer.map(Answer::schedule_deleted)
    }

    /// Lets a schedule make no jobs until it is [resumed](Queue::resume_schedule), also if it is set again meanwhile.
    /// Jobs that it has made are not touched. Returns whether there is such a schedule.
    ///
    /// Refused while a process of an older version is in the namespace, which could not read it.
    pub async fn pause_schedule(&self, name: ScheduleName) -> Result<bool, Error> {
        if self.rules()? < Rules::THIRD {
            return Err(Error::invalid(
                "cannot pause schedules yet: a process of an earlier version is in the namespace",
                "nothing was done; upgrade or stop that process, then try again later",
            ));
        }
        let answer = self.ask(Action::PauseSchedule(name)).await;
        answer.map(Answer::schedule_paused)
    }

    /// Lets a paused schedule make jobs again, beginning with its next slot: what fell into the pause is skipped,
    /// whatever its policy for missed slots. Returns whether there is such a schedule.
    pub async fn resume_schedule(&self, name: ScheduleName) -> Result<bool, Error> {
        let service = self.shared.service()?;
        let _planned = service.slots.read().await;
        // Again only if somebody else has changed the schedule between the look and the commit.
        loop {
            let Some(schedule) = self.schedule(&name)? else {
                return Ok(false);
            };
            if !schedule.paused {
                return Ok(true);
            }
            let answer = self.ask(schedule.resumption(service.time.at())?).await?;
            if answer.schedule_resumed() {
                return Ok(true);
            }
        }
    }

    /// Sets what holds for all queues.
    pub async fn configure(&self, settings: Settings) -> Result<(), Error> {
        self.change_settings(move |all| *all = settings).await
    }

    async fn configure_in_turn(&self, settings: Settings) -> Result<(), Error> {
        self.shared.limits().settings(&settings)?;
        // A broker of an earlier version must be able to read what is committed.
        if settings.ids != KeepIds::default() && self.rules()? < Rules::SECOND {
            return Err(Error::invalid(
                "cannot change how long ids are kept yet: a process of an earlier version is in the namespace",
                "nothing was done; upgrade or stop that process, then try again later",
            ));
        }
        self.ask(Action::Configure(settings)).await.map(drop)
    }

    /// Changes what holds for all queues: `change` is given what holds, and no other change comes in between. What two
    /// callers change at once is changed, unless it is the same field.
    ///
    /// Once begun it is done to its end, also if the future is dropped, since the next change builds on it.
    pub async fn change_settings(
        &self,
        change: impl FnOnce(&mut Settings) + Send + 'static,
    ) -> Result<(), Error> {
        let queue = self.clone();
        let runtime = self.shared.node.runtime();
        let done = runtime.spawn(async move {
            let service = queue.shared.service()?;
            let _turn = service.changes.lock().await;
            let mut settings = queue.settings()?;
            change(&mut settings);
            queue.configure_in_turn(settings).await
        });
        done.await.unwrap_or(Err(Error::Unknown { source: None }))
    }

    /// Sets the queue's time, back as well, to what this host's clock shows or to `to`: for an operator, after a clock
    /// was wrong. Delays and back-offs that began at a later time last as long from now on, a job that was submitted with a `run_at`
    /// keeps it, what ended later counts as ended now,
    /// rates count anew, and schedules go on with the next slot; a slot whose job is still there does not run twice.
    /// Claims are not touched. If time goes back, every job is looked at once, a portion with each commit, so nobody else
    /// waits for it; this returns when it is done. A leader that follows in the middle goes on with it.
    ///
    /// Refused if it is before 2024 or more than a year ahead of this host's clock, and while brokers of an older version
    /// take part, which could not read it.
    ///
    /// Once begun it is done to its end, also if the future is dropped: half of it would leave schedules with slots of the
    /// time before.
    ///
    /// Returns the time that it is then: what was set, and how long this took. Another one that is set right after does not
    /// show in it.
    pub async fn set_time(&self, to: Option<u64>) -> Result<u64, Error> {
        let queue = self.clone();
        let runtime = self.shared.node.runtime();
        let done = runtime.spawn(async move { queue.set_time_and_slots(to).await });
        done.await.unwrap_or(Err(Error::Unknown { source: None }))
    }

    async fn set_time_and_slots(&self, to: Option<u64>) -> Result<u64, Error> {
        let service = self.shared.service()?;
        // Of two that set it at once, the second begins when the slots follow the first.
        let _turn = service.changes.lock().await;
        let wall = service.time.wall();
        let to = to.unwrap_or(wall);
        super::time::check_set(to, wall)?;
        if service.read(|broker| broker.queue.rules())? < Rules::SECOND {
            return Err(Error::invalid(
                "a broker of an older version is in the namespace and cannot read this",
                "upgrade all brokers in this namespace first",
            ));
        }
        tracing::warn!(
            from = service.time.at(),
            to,
            "the queue's time is being set"
        );
        self.shared.answer(service.set_time(to).await)?;
        self.shared.answer(self.replan(&service, to).await)?;
        // The broker does this anyway. The caller that set the time is told when it is done.
        while self
            .shared
            .answer(service.read(|broker| broker.queue.is_setting_back()))?
        {
            self.shared.answer(commit(&service, Action::Tick).await)?;
        }
        Ok(service.time.at())
    }

    /// Lets every schedule go on after `to`. They are taken out a portion at a time and planned without the lock, so that
    /// nobody else waits for it.
    async fn replan(&self, service: &Service, to: u64) -> Result<(), Error> {
        let mut behind = None;
        loop {
            let queue = |broker: &Broker| {
                let queue = &broker.queue;
                queue.schedules_to_replan(behind.as_ref(), REPLANNED_MAX)
            };
            let due = service.read(queue)?;
            let Some(last) = due.last() else {
                return Ok(());
            };
            behind = Some(last.schedule.clone());
            let mut firings = Vec::new();
            for (planned, due) in due.iter().enumerate() {
                firings.extend(due.replan(to));
                if planned % REPLANNED_AT_ONCE == REPLANNED_AT_ONCE - 1 {
                    // This thread has others to serve.
                    tokio::task::yield_now().await;
                }
            }
            let bytes_max = service.record_bytes_max;
            for firings in portions(firings, REPLANNED_MAX, bytes_max, |_| 1) {
                commit(service, Action::Fire(firings)).await?;
            }
        }
    }

    /// What is committed from now on, in the order of the log. A follower that falls too far behind is cut off
    /// and told so, and so is everyone when this process no longer serves the queue.
    #[must_use]
    pub fn follow(&self) -> Follower {
        self.follower(None).unwrap_or_else(Follower::ended)
    }

    /// What is committed behind a place in the log, for a follower who was away; `None` if that is not
    /// [kept](Queue::keep_past), or the queue is not served here.
    #[must_use]
    pub fn follow_after(&self, position: Position) -> Option<Follower> {
        self.follower(Some(position))
    }

    fn follower(&self, after: Option<Position>) -> Option<Follower> {
        let service = self.shared.service().ok()?;
        service.read(|broker| broker.follow(after)).ok().flatten()
    }

    /// Whether to keep the latest events from now on, for [`Queue::follow_after`]: up to 10,000 of this process's present
    /// term. Costs memory, and a little time with every commit.
    pub fn keep_past(&self, is_kept: bool) {
        if let Ok(service) = self.shared.service() {
            let _ = service.change(|broker| broker.keep_past(is_kept));
        }
    }

    /// Takes no more calls, commits what waits, answers everyone, leaves the election, and waits for all of
    /// it. The node goes on.
    pub async fn close(&self) {
        self.shared.closing.cancel();
        self.shared.ended.cancelled().await;
    }

    fn admit(&self, admit: impl FnOnce(&Service) -> Result<(), Error>) -> Result<(), Error> {
        let service = self.shared.service()?;
        self.shared.answer(admit(&service))
    }

    async fn ask(&self, action: Action) -> Result<Answer, Error> {
        let service = self.shared.service()?;
        self.shared.answer(service.commit(action).await)
    }
}

impl Shared {
    fn new(node: Node, election: Election, options: Options) -> Self {
        let leader = election.leader();
        Self {
            node,
            election,
            options,
            state: watch::Sender::new(Serving::Standby { leader }),
            service: RwLock::default(),
            counters: Arc::default(),
            terms_failed: AtomicU64::default(),
            recoveries: Mutex::default(),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
        }
    }

    /// The term that answers calls; an error if this process does not serve.
    pub(crate) fn service(&self) -> Result<Arc<Service>, Error> {
        let service = self.service.read().unwrap_or_else(PoisonError::into_inner);
        service.clone().ok_or_else(|| self.not_serving())
    }

    /// Why calls are not answered here.
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

    /// From now on calls are answered by this term.
    pub(crate) fn install(&self, service: &Arc<Service>) {
        let mut current = self.service.write().unwrap_or_else(PoisonError::into_inner);
        *current = Some(service.clone());
    }

    /// From now on they are answered by nobody.
    pub(crate) fn uninstall(&self) -> Option<Arc<Service>> {
        let mut current = self.service.write().unwrap_or_else(PoisonError::into_inner);
        current.take()
    }
}
