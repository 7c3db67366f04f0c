//! Queues, schedules, settings and numbers.

use reqwest::Method;
use serde::de::IgnoredAny;
use tenure_api::{
    self as api, Missed, QueueChange, QueueName, QueueOptions, QueuesAnswer, ScheduleName,
    ScheduleSpec, SchedulesAnswer, Settings, SettingsChange, Stats,
};

use crate::client::Client;
use crate::error::Error;
use crate::new_job::NewJob;
use crate::transport::{Answered, Call};

impl Client {
    /// Every queue that has jobs or settings, by name. Asks for one page after the other.
    pub async fn queues(&self) -> Result<Vec<api::Queue>, Error> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let call = Call::get(&["v1", "queues"]).with_query(&[("after", after)]);
            let answer: QueuesAnswer = self.transport.call(&call).await?;
            all.extend(answer.queues);
            match answer.next {
                Some(next) => after = Some(next.to_string()),
                None => return Ok(all),
            }
        }
    }

    /// One queue.
    pub async fn queue(&self, queue: &QueueName) -> Result<api::Queue, Error> {
        let call = Call::get(&["v1", "queues", queue.as_str()]);
        self.transport.call(&call).await
    }

    /// Changes some of a queue's limits. What is not named stays as it is, also if others change it at the same time.
    pub async fn change_queue(
        &self,
        queue: &QueueName,
        change: &QueueChange,
    ) -> Result<api::Queue, Error> {
        let call = Call::new(Method::PATCH, &["v1", "queues", queue.as_str()]).with_body(change)?;
        self.transport.call(&call).await
    }

    /// Sets a queue's limits, all of them.
    pub async fn set_queue(
        &self,
        queue: &QueueName,
        options: &QueueOptions,
    ) -> Result<api::Queue, Error> {
        let call = Call::put(&["v1", "queues", queue.as_str()], options)?;
        self.transport.call(&call).await
    }

    /// Lets no job of a queue be claimed. What runs goes on.
    pub async fn pause(&self, queue: &QueueName) -> Result<api::Queue, Error> {
        let call = Call::new(Method::POST, &["v1", "queues", queue.as_str(), "pause"]);
        self.transport.call(&call).await
    }

    /// Lets jobs of a queue be claimed again.
    pub async fn resume(&self, queue: &QueueName) -> Result<api::Queue, Error> {
        let call = Call::new(Method::POST, &["v1", "queues", queue.as_str(), "resume"]);
        self.transport.call(&call).await
    }

    /// Every schedule, by name. Asks for one page after the other.
    pub async fn schedules(&self) -> Result<Vec<api::Schedule>, Error> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let call = Call::get(&["v1", "schedules"]).with_query(&[("after", after)]);
            let answer: SchedulesAnswer = self.transport.call(&call).await?;
            all.extend(answer.schedules);
            match answer.next {
                Some(next) => after = Some(next.to_string()),
                None => return Ok(all),
            }
        }
    }

    /// One schedule.
    pub async fn schedule(&self, name: &ScheduleName) -> Result<api::Schedule, Error> {
        let call = Call::get(&["v1", "schedules", name.as_str()]);
        self.transport.call(&call).await
    }

    /// Creates or replaces a schedule: `job` is submitted whenever `cron` says, in that time zone.
    pub async fn set_schedule(
        &self,
        name: &ScheduleName,
        cron: &str,
        timezone: &str,
        missed: Missed,
        job: NewJob,
    ) -> Result<api::Schedule, Error> {
        let spec = ScheduleSpec {
            cron: cron.to_owned(),
            timezone: timezone.to_owned(),
            job: job.template()?,
            missed,
            run_on_start: false,
        };
        self.put_schedule(name, &spec).await
    }

    /// The same, and submits a job at once if that creates the schedule or changes it.
    pub async fn start_schedule(
        &self,
        name: &ScheduleName,
        cron: &str,
        timezone: &str,
        missed: Missed,
        job: NewJob,
    ) -> Result<api::Schedule, Error> {
        let spec = ScheduleSpec {
            cron: cron.to_owned(),
            timezone: timezone.to_owned(),
            job: job.template()?,
            missed,
            run_on_start: true,
        };
        self.put_schedule(name, &spec).await
    }

    async fn put_schedule(
        &self,
        name: &ScheduleName,
        spec: &ScheduleSpec,
    ) -> Result<api::Schedule, Error> {
        let call = Call::put(&["v1", "schedules", name.as_str()], spec)?;
        self.transport.call(&call).await
    }

    /// Lets a schedule submit no jobs until it is resumed, also if it is set again meanwhile.
    pub async fn pause_schedule(&self, name: &ScheduleName) -> Result<api::Schedule, Error> {
        let call = Call::new(Method::POST, &["v1", "schedules", name.as_str(), "pause"]);
        self.transport.call(&call).await
    }

    /// Lets a paused schedule submit jobs again, beginning with its next slot: what fell into the pause is skipped.
    pub async fn resume_schedule(&self, name: &ScheduleName) -> Result<api::Schedule, Error> {
        let call = Call::new(Method::POST, &["v1", "schedules", name.as_str(), "resume"]);
        self.transport.call(&call).await
    }

    /// Deletes a schedule. Its jobs stay.
    pub async fn delete_schedule(&self, name: &ScheduleName) -> Result<(), Error> {
        let call = Call::new(Method::DELETE, &["v1", "schedules", name.as_str()]);
        match self.transport.settle::<IgnoredAny>(&call).await {
            Answered {
                result: Err(Error::NotFound(_)),
                is_unsure: true,
            } => Ok(()),
            answered => answered.result.map(drop),
        }
    }

    /// The workers that run jobs or wait for some, and what each runs.
    pub async fn workers(&self) -> Result<api::WorkersAnswer, Error> {
        self.transport.call(&Call::get(&["v1", "workers"])).await
    }

    /// The queue's time, and what it makes of its broker's clock.
    pub async fn time(&self) -> Result<api::QueueTime, Error> {
        self.transport.call(&Call::get(&["v1", "time"])).await
    }

    /// Sets the queue's time, back as well: to what the broker's clock shows, or to this.
    pub async fn set_time(&self, to: Option<u64>) -> Result<api::QueueTime, Error> {
        let call = Call::put(&["v1", "time"], &api::SetTime { to })?;
        self.transport.call(&call).await
    }

    /// How long finished jobs are kept, and how many there may be.
    pub async fn settings(&self) -> Result<Settings, Error> {
        let call = Call::get(&["v1", "settings"]);
        self.transport.call(&call).await
    }

    /// Sets them, all of them.
    pub async fn configure(&self, settings: &Settings) -> Result<Settings, Error> {
        let call = Call::put(&["v1", "settings"], settings)?;
        self.transport.call(&call).await
    }

    /// Changes some of them. What is not named stays as it is, also if others change it at the same time.
    pub async fn change_settings(&self, change: &SettingsChange) -> Result<Settings, Error> {
        let call = Call::new(Method::PATCH, &["v1", "settings"]).with_body(change)?;
        self.transport.call(&call).await
    }

    /// What the leader counts.
    pub async fn stats(&self) -> Result<Stats, Error> {
        self.transport.call(&Call::get(&["v1", "stats"])).await
    }
}
