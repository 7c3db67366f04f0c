//! What clients can make has a bound, and they are told which.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::queue::{
    Limits, Missed, Payload, QueueOptions, ScheduleSpec, Submission, SubmitStatus,
};
use tenure::core::{JobId, JobType, QueueName, ScheduleName};
use tenure::queue::{Error, Options, Queue};
use tenure::store::engine::memory::Memory;

use super::stage::{claim, done, node_on, open_with, worker};

const TTL: Duration = Duration::from_secs(60);

async fn small() -> Queue {
    let node = node_on(Arc::new(Memory::new()), "crowd", "a", TTL, None).await;
    let limits = Limits {
        queues_max: 3,
        types_max: 4,
        schedules_max: 2,
        schedules_bytes_max: 1_000,
        ..Limits::default()
    };
    let options = Options {
        limits,
        waiting_claims_bytes_max: 2_000,
        ..Options::default()
    };
    open_with(&node, options).await
}

fn job(queue: &str, job_type: &str) -> Submission {
    let mut job = Submission::new(JobType::new(job_type).unwrap());
    job.queue = QueueName::new(queue).unwrap();
    job
}

#[track_caller]
fn full<T: std::fmt::Debug>(answer: Result<T, Error>, what: &str) {
    match answer.unwrap_err() {
        Error::Full { what: said, hint } => assert!(said.contains(what), "{said}; {hint}"),
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn queues_and_types_are_bounded_and_what_is_there_goes_on() {
    let queue = small().await;
    for name in ["a", "b", "c"] {
        queue.submit(vec![job(name, name)]).await.unwrap();
    }
    full(
        queue.submit(vec![job("d", "a")]).await,
        "3 queues; there is no room for d",
    );
    let name = |name| QueueName::new(name).unwrap();
    let options = QueueOptions {
        concurrency: Some(1),
        rate: None,
    };
    full(queue.set_queue(name("d"), options).await, "no room for d");
    full(queue.pause(name("d")).await, "no room for d");
    queue.set_queue(name("a"), options).await.unwrap();
    queue.submit(vec![job("a", "d")]).await.unwrap();
    full(
        queue.submit(vec![job("a", "e")]).await,
        "4 job types; there is no room for e",
    );
    queue.submit(vec![job("a", "d")]).await.unwrap();
    // A name is free when nothing has it any more, not even the id of a job that is gone.
    let mut settings = queue.settings().unwrap();
    settings.ids.age_ms = 0;
    queue.configure(settings).await.unwrap();
    let mut takes_b = worker("w");
    takes_b.queues = vec![name("b")];
    let claimed = claim(&queue, takes_b).await;
    queue.complete(vec![done(&claimed[0])]).await.unwrap();
    queue.forget(vec![claimed[0].id.clone()]).await.unwrap();
    let answers = queue.submit(vec![job("d", "a")]).await.unwrap();
    assert_eq!(answers[0].status, SubmitStatus::Created);
}

#[tokio::test]
async fn one_job_without_room_refuses_no_other() {
    let queue = small().await;
    for name in ["a", "b"] {
        queue.submit(vec![job(name, name)]).await.unwrap();
    }
    let mut named = job("e", "a");
    named.id = Some(JobId::new("named").unwrap());
    let batch = vec![
        job("a", "b"),
        job("c", "c"),
        job("d", "a"),
        // The queue that has just come, and the last type.
        job("c", "d"),
        named,
        job("b", "e"),
        job("b", "d"),
    ];
    let answers = queue.submit(batch).await.unwrap();
    let statuses: Vec<_> = answers.iter().map(|job| job.status).collect();
    let (created, full) = (SubmitStatus::Created, SubmitStatus::Full);
    let expected = [created, created, full, created, full, full, created];
    assert_eq!(statuses, expected);
    assert_eq!(answers[4].id.as_str(), "named");
    assert_eq!(queue.counts().unwrap().0.ready, 6);
    let none = vec![job("d", "a"), job("a", "e")];
    let answers = queue.submit(none).await.unwrap();
    assert!(answers.iter().all(|job| job.status == full));
}

#[tokio::test]
async fn schedules_are_bounded_in_number_and_in_bytes() {
    let queue = small().await;
    let set = async |name: &str, bytes: usize| {
        let mut job = job("q", "t");
        job.payload = Payload::of(&"x".repeat(bytes)).unwrap();
        let spec = ScheduleSpec {
            cron: "0 3 * * *".to_owned(),
            timezone: "UTC".to_owned(),
            job,
            missed: Missed::Once,
            run_on_start: false,
        };
        queue
            .set_schedule(ScheduleName::new(name).unwrap(), spec)
            .await
    };
    set("a", 500).await.unwrap();
    full(set("b", 600).await, "at most 1000");
    set("b", 400).await.unwrap();
    full(set("c", 1).await, "2 schedules; there is no room for c");
    // One that is there may change, and shrink in any case.
    set("b", 300).await.unwrap();
    full(set("b", 600).await, "at most 1000");
    queue
        .delete_schedule(ScheduleName::new("a").unwrap())
        .await
        .unwrap();
    set("c", 600).await.unwrap();
}

#[tokio::test]
async fn a_cron_counts_as_much_as_a_payload() {
    let queue = small().await;
    let set = async |name: &str, hours: usize| {
        let spec = ScheduleSpec {
            cron: format!("0 {}1 * * *", "1,".repeat(hours)),
            timezone: "UTC".to_owned(),
            job: job("q", "t"),
            missed: Missed::Once,
            run_on_start: false,
        };
        queue
            .set_schedule(ScheduleName::new(name).unwrap(), spec)
            .await
    };
    set("a", 400).await.unwrap();
    full(set("b", 100).await, "at most 1000");
    let refused = set("b", 600).await.unwrap_err().to_string();
    assert!(refused.contains("cron has 1209 bytes"), "{refused}");
    set("b", 10).await.unwrap();
}

#[tokio::test]
async fn a_queue_of_a_schedule_counts_before_its_first_slot() {
    let queue = small().await;
    let set = async |name: &str, into: &str| {
        let spec = ScheduleSpec {
            cron: "0 3 * * *".to_owned(),
            timezone: "UTC".to_owned(),
            job: job(into, "t"),
            missed: Missed::Once,
            run_on_start: false,
        };
        queue
            .set_schedule(ScheduleName::new(name).unwrap(), spec)
            .await
    };
    set("first", "a").await.unwrap();
    queue.submit(vec![job("b", "t")]).await.unwrap();
    set("second", "c").await.unwrap();
    full(
        queue.submit(vec![job("d", "t")]).await,
        "3 queues; there is no room for d",
    );
    full(
        queue.pause(QueueName::new("d").unwrap()).await,
        "no room for d",
    );
    // One that is replaced needs no room any more.
    set("second", "d").await.unwrap();
    set("second", "c").await.unwrap();
    // What they have room for comes in, by their slots or otherwise.
    queue.submit(vec![job("c", "t")]).await.unwrap();
    full(set("second", "d").await, "no room for d");
    set("second", "b").await.unwrap();
    queue
        .delete_schedule(ScheduleName::new("first").unwrap())
        .await
        .unwrap();
    set("second", "d").await.unwrap();
    full(queue.submit(vec![job("a", "t")]).await, "no room for a");
}

#[tokio::test]
async fn claims_that_wait_are_bounded_in_bytes() {
    let queue = small().await;
    let mut waits = worker("w");
    waits.types = (0..20)
        .map(|number| JobType::new(format!("t{number}")).unwrap())
        .collect();
    let answer = queue.claim(waits.waiting(Duration::from_secs(60))).await;
    assert!(
        matches!(answer, Err(Error::Overloaded { .. })),
        "{answer:?}"
    );
    let mut waits = worker("w");
    waits.types = vec![JobType::new("t").unwrap()];
    let answer = queue.claim(waits.waiting(Duration::from_millis(1))).await;
    assert!(answer.unwrap().is_empty());
}

#[tokio::test]
async fn no_job_of_a_batch_overtakes_one_of_its_group_that_has_no_room() {
    let queue = small().await;
    for name in ["a", "b", "c", "d"] {
        queue.submit(vec![job("a", name)]).await.unwrap();
    }
    let of_group = |job_type: &str, group: &str| {
        let mut job = job("a", job_type);
        job.group = Some(tenure::core::queue::Key::new(group).unwrap());
        job
    };
    let jobs = vec![
        of_group("a", "g"),
        of_group("new", "g"),
        of_group("a", "g"),
        of_group("a", "h"),
    ];
    let answers = queue.submit(jobs).await.unwrap();
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    let (created, full) = (SubmitStatus::Created, SubmitStatus::Full);
    assert_eq!(statuses, [created, full, full, created]);
}
