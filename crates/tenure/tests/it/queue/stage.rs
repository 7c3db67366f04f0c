//! What the tests of the queue share.

use std::time::Duration;

use tenure::Node;
use tenure::core::queue::{Claimed, Completion, Event, Key, Payload, Submission};
use tenure::core::{JobId, JobType, QueueName};
use tenure::queue::{Claim, Error, Options, Queue};
use tokio::time::timeout;

use crate::support::PATIENCE;

/// A queue that is served.
pub(crate) async fn open(node: &Node) -> Queue {
    open_with(node, Options::default()).await
}

pub(crate) async fn open_with(node: &Node, options: Options) -> Queue {
    let queue = Queue::open(node, options).await.unwrap();
    served(&queue).await;
    queue
}

pub(crate) async fn served(queue: &Queue) {
    timeout(PATIENCE, queue.serving())
        .await
        .unwrap_or_else(|_| panic!("not served in time: {:?}", queue.state()))
        .unwrap();
}

pub(crate) fn job(id: &str) -> Submission {
    let mut job = Submission::new(JobType::new("work").unwrap());
    job.id = Some(JobId::new(id).unwrap());
    job.payload = Payload::new(format!("{{\"id\":{id:?}}}")).unwrap();
    job
}

pub(crate) fn id(id: &str) -> JobId {
    JobId::new(id).unwrap()
}

pub(crate) fn name(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub(crate) fn worker(name: &str) -> Claim {
    Claim::new(Key::new(name).unwrap())
}

/// Waits for jobs as long as a slow machine may need.
pub(crate) async fn claim(queue: &Queue, claim: Claim) -> Vec<Claimed> {
    queue.claim(claim, PATIENCE).await.unwrap()
}

/// What is there now.
pub(crate) async fn claim_now(queue: &Queue, claim: Claim) -> Result<Vec<Claimed>, Error> {
    queue.claim(claim, Duration::ZERO).await
}

pub(crate) fn ids(jobs: &[Claimed]) -> Vec<&str> {
    jobs.iter().map(|job| job.id.as_str()).collect()
}

pub(crate) fn done(job: &Claimed) -> Completion {
    Completion {
        id: job.id.clone(),
        token: job.token,
        result: None,
    }
}

pub(crate) async fn submit(queue: &Queue, jobs: &[&str]) {
    let jobs: Vec<_> = jobs.iter().map(|id| job(id)).collect();
    let count = jobs.len();
    let answers = queue.submit(jobs).await.unwrap();
    assert_eq!(answers.len(), count);
    for answer in answers {
        assert!(matches!(answer, Event::Submitted { .. }), "{answer:?}");
    }
}
