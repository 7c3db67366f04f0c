//! Jobs: looked at, and changed by hand.

use std::time::Duration;

use reqwest::Method;
use serde::de::IgnoredAny;
use tenure_api::{
    self as api, JobId, JobType, JobsAnswer, JobsQuery, MoveAnswer, MoveRequest, Order, QueueName,
    RetryAnswer, RetryRequest, State,
};
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::error::Error;
use crate::transport::{Answered, Call};

/// How often a job that is waited for is looked at, at first and later on.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_LONGEST: Duration = Duration::from_secs(1);

impl Client {
    /// One job.
    pub async fn job(&self, id: &JobId) -> Result<api::Job, Error> {
        let call = Call::get(&["v1", "jobs", id.as_str()]).about(id);
        self.transport.call(&call).await
    }

    /// Waits until a job has finished, and returns it as it then is; or as it is after `timeout`. Looks
    /// again and again, ever less often, at least once a second.
    pub async fn wait(&self, id: &JobId, timeout: Duration) -> Result<api::Job, Error> {
        let give_up = Instant::now() + timeout;
        let mut pause = LOOK_FIRST;
        loop {
            let job = self.job(id).await?;
            let left = give_up.saturating_duration_since(Instant::now());
            if job.state.is_finished() || left.is_zero() {
                return Ok(job);
            }
            sleep(pause.min(left)).await;
            pause = (pause * 2).min(LOOK_LONGEST);
        }
    }

    /// Some jobs.
    pub async fn jobs(&self, listing: &Listing) -> Result<JobsAnswer, Error> {
        let query = &listing.query;
        let word = |value: &dyn ToString| value.to_string();
        let order = query.order.map(|order| match order {
            Order::Oldest => "oldest".to_owned(),
            Order::Newest => "newest".to_owned(),
        });
        let call = Call::get(&["v1", "jobs"]).with_query(&[
            ("state", query.state.as_ref().map(|value| word(value))),
            ("queue", query.queue.as_ref().map(|value| word(value))),
            ("type", query.job_type.as_ref().map(|value| word(value))),
            ("search", query.search.clone()),
            ("limit", query.limit.as_ref().map(|value| word(value))),
            ("after", query.after.as_ref().map(|value| word(value))),
            ("before", query.before.as_ref().map(|value| word(value))),
            ("order", order),
        ]);
        self.transport.call(&call).await
    }

    /// Gives a job up, and returns it as it then is. One that runs is only marked: its worker hears of it
    /// with its next heartbeat.
    pub async fn cancel(&self, id: &JobId) -> Result<api::Job, Error> {
        let is_done = |job: &api::Job| job.state == State::Cancelled || job.cancel_requested;
        self.change(id, "cancel", is_done).await
    }

    /// Runs a dead or cancelled job again from the first attempt, or one that waits for its time now.
    pub async fn retry(&self, id: &JobId) -> Result<api::Job, Error> {
        let is_done = |job: &api::Job| !matches!(job.state, State::Dead | State::Cancelled);
        self.change(id, "retry", is_done).await
    }

    /// A change by hand. Sent again after a lost answer it is refused, since the job is no longer as it
    /// was: the job itself then says whether that was us.
    async fn change(
        &self,
        id: &JobId,
        verb: &str,
        is_done: impl Fn(&api::Job) -> bool,
    ) -> Result<api::Job, Error> {
        let path = ["v1", "jobs", id.as_str(), verb];
        let call = Call::new(Method::POST, &path).about(id);
        match self.transport.settle(&call).await {
            Answered {
                result: Err(Error::State(problem)),
                is_unsure: true,
            } => match self.read_back(id).await? {
                job if is_done(&job) => Ok(job),
                _ => Err(Error::State(problem)),
            },
            answered => answered.result,
        }
    }

    /// Runs many jobs again in one call: those with these ids, or the oldest of a state.
    ///
    /// Not sent again once its outcome is unknown ([`Error::Unknown`]), since that would run a second
    /// portion.
    pub async fn retry_all(&self, request: &RetryRequest) -> Result<RetryAnswer, Error> {
        let call = Call::post(&["v1", "jobs", "retry"], request)?.once();
        self.transport.call(&call).await
    }

    /// Moves jobs to another queue, where each keeps its turn. Each is answered separately. A job that is there already counts as
    /// moved, so the call is sent again when an answer was lost.
    pub async fn move_to(&self, ids: &[JobId], queue: &QueueName) -> Result<MoveAnswer, Error> {
        let request = MoveRequest {
            ids: ids.to_vec(),
            queue: queue.clone(),
        };
        let call = Call::post(&["v1", "jobs", "move"], &request)?;
        self.transport.call(&call).await
    }

    /// Forgets a finished job before its time. Its id stays behind for as long as that of any other job, with its result,
    /// so that a submit can still be sent again.
    pub async fn forget(&self, id: &JobId) -> Result<(), Error> {
        let call = Call::new(Method::DELETE, &["v1", "jobs", id.as_str()]).about(id);
        match self.transport.settle::<IgnoredAny>(&call).await {
            Answered {
                result: Err(Error::NotFound(_)),
                is_unsure: true,
            } => Ok(()),
            answered => answered.result.map(drop),
        }
    }

    /// Reads a job to settle the outcome of an earlier call. If that cannot be done now, it is that call
    /// whose outcome is not known.
    pub(crate) async fn read_back(&self, id: &JobId) -> Result<api::Job, Error> {
        self.job(id).await.map_err(|error| match error {
            Error::Unavailable { waited, source } => Error::Unknown { waited, source },
            error => error,
        })
    }
}

/// Which jobs to list: all of them, oldest first, a hundred at a time.
///
/// ```
/// use tenure_client::{Listing, State};
///
/// let dead = Listing::new().state(State::Dead).newest_first().limit(20);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Listing {
    query: JobsQuery,
}

impl Listing {
    /// All jobs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only in this state.
    #[must_use]
    pub fn state(mut self, state: State) -> Self {
        self.query.state = Some(state);
        self
    }

    /// Only of this queue.
    #[must_use]
    pub fn queue(mut self, queue: QueueName) -> Self {
        self.query.queue = Some(queue);
        self
    }

    /// Only of this type.
    #[must_use]
    pub fn job_type(mut self, job_type: JobType) -> Self {
        self.query.job_type = Some(job_type);
        self
    }

    /// Only with this in one of their texts, in lower or upper case. A server looks at so many jobs at a time:
    /// an answer may be short, or empty, and still have a [`next`](JobsAnswer::next).
    #[must_use]
    pub fn search(mut self, text: impl Into<String>) -> Self {
        self.query.search = Some(text.into());
        self
    }

    /// At most this many, up to 1,000. An answer ends at about 4 MiB: it may be shorter, and still have a
    /// [`next`](JobsAnswer::next).
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.query.limit = Some(limit);
        self
    }

    /// The latest first.
    #[must_use]
    pub fn newest_first(mut self) -> Self {
        self.query.order = Some(Order::Newest);
        self
    }

    /// The page that starts at the [`next`](JobsAnswer::next) of another.
    #[must_use]
    pub fn from(mut self, next: u64) -> Self {
        match self.query.order {
            Some(Order::Newest) => self.query.before = Some(next),
            _ => self.query.after = Some(next),
        }
        self
    }
}
