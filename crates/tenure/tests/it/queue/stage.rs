//! What the tests of the queue share.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::queue::{
    ClaimRequest, Claimed, Completion, Key, Payload, Submission, SubmitStatus,
};
use tenure::core::session::Config;
use tenure::core::{JobId, JobType};
use tenure::queue::{Error, Options, Queue, Serving};
use tenure::store::Store;
use tenure::testing::ManualClock;
use tenure::{Node, NodeOptions};
use tokio::time::timeout;

use crate::support::PATIENCE;

/// A node on a store, whose clock is moved by hand if there is one.
pub(crate) async fn node_on(
    store: Arc<dyn Store>,
    namespace: &str,
    name: &str,
    ttl: Duration,
    clock: Option<&ManualClock>,
) -> Node {
    let mut options = NodeOptions::new("memory:", namespace);
    options.node = Some(name.to_owned());
    options.session = Config::for_ttl(ttl);
    if let Some(clock) = clock {
        options.runtime = clock.runtime();
    }
    Node::start_with(store, options).await.unwrap()
}

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

pub(crate) fn worker(name: &str) -> ClaimRequest {
    ClaimRequest::new(Key::new(name).unwrap())
}

/// Waits for jobs as long as a slow machine may need.
pub(crate) async fn claim(queue: &Queue, claim: ClaimRequest) -> Vec<Claimed> {
    queue.claim(claim.waiting(PATIENCE)).await.unwrap()
}

/// What is there now.
pub(crate) async fn claim_now(queue: &Queue, claim: ClaimRequest) -> Result<Vec<Claimed>, Error> {
    queue.claim(claim).await
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
        assert_eq!(answer.status, SubmitStatus::Created, "{answer:?}");
    }
}

/// Waits until the queue stands as it should.
pub(crate) async fn stands(queue: &Queue, what: &str, is_so: impl Fn(&Serving) -> bool) -> Serving {
    let mut state = queue.watch();
    let settled = timeout(PATIENCE, state.wait_for(|state| is_so(state))).await;
    let settled = settled.unwrap_or_else(|_| panic!("not {what} in time: {:?}", queue.state()));
    settled.unwrap().clone()
}
