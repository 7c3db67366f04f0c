//! The queue as a program sees it: calls that are answered while this process serves it.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::queue::{
    Action, Answer, Cancelled, Changed, Claim as Held, ClaimRequest, Claimed, Completion, Ended,
    Failed, Failure, KeepIds, Lost, Payload, QueueOptions, Released, Rules, Schedule, ScheduleSpec,
    Settings, Submission, Submitted,
};
use tenure_core::{JobId, QueueName, ScheduleName};
use tokio::sync::watch;
use tokio_util::sync::DropGuard;

use super::serve::{Shared, serve};
use super::service::Service;
use super::{Error, Follower, Heartbeat, Options, Serving};
use crate::{Election, Node, task};

/// How many schedules go into one command when time was set back.
const REPLANNED_MAX: usize = 500;

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
/// whoever leads then. Jobs with an id of their own, and claims with their token, make that harmless. A call
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

impl Queue {
    /// Stands in the queue's own election on this node, and serves the queue whenever this process leads. The work is done
    /// by a task of the present runtime; it keeps the node's session until the queue is closed.
    pub async fn open(node: &Node, options: Options) -> Result<Self, Error> {
        let name = options.check()?;
        let election = node.join_own(name, options.priority);
        let shared = Arc::new(Shared::new(node.clone(), election, options));
        let open = Arc::new(shared.closing.clone().drop_guard());
        task::spawn(serve(shared.clone()));
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
    /// none is.
    pub async fn submit(&self, jobs: Vec<Submission>) -> Result<Vec<Submitted>, Error> {
        let service = self.shared.service()?;
        let at = service.time.at();
        service.limits.submissions(&jobs, at)?;
        self.shared.answer(service.admit_jobs(&jobs))?;
        let answer = service.commit_at(at, Action::Submit(jobs)).await;
        self.shared.answer(answer).map(Answer::submitted)
    }

    /// Claims jobs, the first whose turn it is, and waits for one if there is none and the request says so.
    /// Answered with at least one job, or with none when the time is over.
    ///
    /// Whoever waits longest is first to get a job that it could take. Nothing is written while nothing can
    /// be claimed. If the future is dropped it claims nothing, or hands back what it has claimed, without
    /// costing an attempt; only if this process dies just then do the jobs wait until their lease runs out.
    pub async fn claim(&self, mut request: ClaimRequest) -> Result<Vec<Claimed>, Error> {
        let service = self.shared.service()?;
        service.limits.claim(&request)?;
        // How long its caller waits is not for the log.
        let wait = Duration::from_millis(std::mem::take(&mut request.wait_ms).into());
        self.shared.answer(service.claim(request, wait).await)
    }

    /// Renews claims, and notes progress. One answer per claim, in order. Costs no storage request.
    pub async fn heartbeat(
        &self,
        claims: Vec<(Held, Option<Payload>)>,
    ) -> Result<Vec<Result<Heartbeat, Lost>>, Error> {
        let service = self.shared.service()?;
        let limits = self.shared.limits();
        limits.batch("claims", claims.len())?;
        for (place, (_, progress)) in claims.iter().enumerate() {
            if let Some(progress) = progress {
                limits.progress(place, progress)?;
            }
        }
        let now = service.time.clock().moment();
        // A leader that was replaced has nothing to renew.
        self.shared.answer(service.check())?;
        self.shared.answer(service.change(|broker| {
            let (leases, queue) = (&mut broker.leases, &broker.queue);
            let renew = |(claim, progress): (Held, Option<Payload>)| {
                leases.heartbeat(queue, &claim.id, claim.token, progress, now)
            };
            claims.into_iter().map(renew).collect()
        }))
    }

    /// Hands claims back as if they had never been made: the attempts do not count. One answer per claim, in
    /// order.
    pub async fn release(&self, claims: Vec<Held>) -> Result<Vec<Ended<Released>>, Error> {
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

    /// Forgets finished jobs before their time. One answer per job, in order.
    pub async fn forget(&self, jobs: Vec<JobId>) -> Result<Vec<Changed<()>>, Error> {
        self.shared.limits().batch("jobs", jobs.len())?;
        self.ask(Action::Forget(jobs)).await.map(Answer::forgotten)
    }

    /// Sets a queue's limits, all of them.
    pub async fn set_queue(&self, name: QueueName, options: QueueOptions) -> Result<(), Error> {
        self.shared.limits().queue(&name)?;
        self.shared.limits().queue_options(&options)?;
        self.admit(|service| service.admit_queue(&name))?;
        self.ask(Action::SetQueue(name, options)).await.map(drop)
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
        spec: ScheduleSpec,
    ) -> Result<Option<u64>, Error> {
        let now = self.shared.service()?.time.at();
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

    /// Sets what holds for all queues.
    pub async fn configure(&self, settings: Settings) -> Result<(), Error> {
        self.shared.limits().settings(&settings)?;
        // A broker of an earlier version must be able to read what is committed.
        if settings.ids != KeepIds::default() && self.rules()? < Rules::SECOND {
            return Err(Error::invalid(
                "how long ids are kept cannot be set yet: a process of an earlier version is in the namespace",
                "nothing was done; upgrade or stop it, and send this again after a while",
            ));
        }
        self.ask(Action::Configure(settings)).await.map(drop)
    }

    /// Sets the queue's time, back as well, to what this host's clock shows or to `to`: for an operator, after a clock
    /// was wrong. Jobs whose wait began at a later time wait as long from now on, what ended later counts as ended now,
    /// rates count anew, and schedules go on with the next slot; a slot whose job is still there does not run twice.
    /// Claims are not touched. Looks at every job once if time goes back.
    ///
    /// Refused if it is before 2024 or more than a year ahead of this host's clock, and while brokers of an older version
    /// take part, which could not read it.
    ///
    /// Once begun it is done to its end, also if the future is dropped: half of it would leave schedules with slots of the
    /// time before.
    pub async fn set_time(&self, to: Option<u64>) -> Result<(), Error> {
        let queue = self.clone();
        let done = task::spawn(async move { queue.set_time_and_slots(to).await });
        done.await.unwrap_or(Err(Error::Unknown { source: None }))
    }

    async fn set_time_and_slots(&self, to: Option<u64>) -> Result<(), Error> {
        let service = self.shared.service()?;
        let wall = service.time.wall();
        let to = to.unwrap_or(wall);
        super::time::check_set(to, wall)?;
        if service.read(|broker| broker.queue.rules())? < Rules::SECOND {
            return Err(Error::invalid(
                "a broker of an older version takes part, which cannot read this",
                "upgrade all brokers of this namespace first",
            ));
        }
        tracing::warn!(
            from = service.time.at(),
            to,
            "the queue's time is being set"
        );
        self.shared.answer(service.set_time(to).await)?;
        let replanned = service.read(|broker| broker.queue.replanned(to))?;
        for firings in replanned.chunks(REPLANNED_MAX) {
            self.ask(Action::Fire(firings.to_vec())).await?;
        }
        Ok(())
    }

    /// What is committed from now on, in the order of the log. A follower that falls too far behind is cut off
    /// and told so, and so is everyone when this process no longer serves the queue.
    #[must_use]
    pub fn follow(&self) -> Follower {
        let service = self.shared.service();
        let receiver = service.and_then(|service| service.read(super::broker::Broker::follow));
        Follower::new(receiver.ok().flatten())
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
