//! Ends and a claim in one commit.

use tenure::core::queue::{Claimed, Ends, Failure, Key, Lost, QueueOptions};
use tenure::core::session::Config;
use tenure::core::{JobType, QueueName};
use tenure::queue::{Claim, Failed, Options, Queue, Released};
use tenure::{Node, NodeOptions};
use tokio::task::yield_now;

use super::stage::{claim, done, ids, job, open, open_with, submit, worker};
use crate::support::PATIENCE;

async fn memory() -> (Node, Queue) {
    let mut options = NodeOptions::new("memory:", "rounds");
    options.session = Config::for_ttl(PATIENCE);
    let node = Node::start(options).await.unwrap();
    let queue = open(&node).await;
    (node, queue)
}

fn failure(job: &Claimed) -> Failure {
    Failure {
        id: job.id.clone(),
        token: job.token,
        error: Some("no".into()),
        retry_in_ms: Some(0),
        permanent: false,
    }
}

fn held(job: &Claimed) -> Claim {
    Claim {
        id: job.id.clone(),
        token: job.token,
    }
}

fn completed(jobs: &[Claimed]) -> Ends {
    Ends {
        completed: jobs.iter().map(done).collect(),
        ..Ends::default()
    }
}

#[tokio::test]
async fn a_round_of_a_worker_is_one_commit() {
    let (_node, queue) = memory().await;
    let names: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    submit(&queue, &names).await;
    let mut jobs = queue.claim(worker("w")).await.unwrap();
    let before = queue.statistics().unwrap();
    let mut rounds = 0;
    while !jobs.is_empty() {
        let round = queue
            .end_and_claim(completed(&jobs), worker("w"), None)
            .await;
        let round = round.unwrap();
        assert_eq!(round.completed.len(), 1);
        assert_eq!(round.completed[0].outcome, Ok(()));
        jobs = round.claimed;
        rounds += 1;
    }
    assert_eq!(rounds, 20);
    let after = queue.statistics().unwrap();
    assert_eq!(after.commits - before.commits, rounds);
    assert_eq!(after.records - before.records, 2 * rounds);
}

#[tokio::test]
async fn ends_of_every_kind_are_answered_one_by_one_and_come_before_the_claim() {
    let (_node, queue) = memory().await;
    submit(&queue, &["a", "b", "c", "d"]).await;
    let mut request = worker("w");
    request.max = 4;
    let jobs = queue.claim(request.clone()).await.unwrap();
    let [a, b, c, d] = &jobs[..] else {
        panic!("{jobs:?}");
    };
    let before = queue.statistics().unwrap().commits;
    let mut stale = held(d);
    stale.token.nonce ^= 1;
    let ends = Ends {
        completed: vec![done(a)],
        failed: vec![failure(b)],
        released: vec![held(c), stale],
    };
    let name = Key::new("one").unwrap();
    let again = ends.clone();
    let round = queue
        .end_and_claim(ends, request.clone(), Some(&name))
        .await;
    let round = round.unwrap();
    assert_eq!(queue.statistics().unwrap().commits - before, 1);
    assert_eq!(round.completed[0].outcome, Ok(()));
    assert!(matches!(round.failed[0].outcome, Ok(Failed::Again { .. })));
    assert_eq!(round.released[0].outcome, Ok(Released::Ready));
    assert!(
        matches!(round.released[1].outcome, Err(Lost::Superseded { .. })),
        "{round:?}"
    );
    assert_eq!(ids(&round.claimed), ["b", "c"], "what the ends have freed");
    // Told again, it is the same round.
    let same = queue
        .end_and_claim(again, request, Some(&name))
        .await
        .unwrap();
    assert_eq!(same, round);
}

/// Who ends a job of a limited queue must not always be who begins the next: jobs of other types would never run.
#[tokio::test]
async fn those_who_wait_for_a_limited_queue_come_first() {
    let (_node, queue) = memory().await;
    let limited = QueueName::new("limited").unwrap();
    let options = QueueOptions {
        concurrency: Some(1),
        ..QueueOptions::default()
    };
    queue.set_queue(limited.clone(), options).await.unwrap();
    let of_type = |id: &str, job_type: &str| {
        let mut job = job(id);
        job.queue = limited.clone();
        job.job_type = JobType::new(job_type).unwrap();
        job
    };
    let who_takes = |job_type: &str| {
        let mut claim = worker(job_type);
        claim.types = vec![JobType::new(job_type).unwrap()];
        claim
    };
    let jobs = vec![of_type("a1", "a"), of_type("a2", "a"), of_type("b1", "b")];
    queue.submit(jobs).await.unwrap();
    let first = queue.claim(who_takes("a")).await.unwrap();
    assert_eq!(ids(&first), ["a1"]);
    let waits = {
        let (queue, claim) = (queue.clone(), who_takes("b"));
        tokio::spawn(async move { queue.claim(claim.waiting(PATIENCE)).await.unwrap() })
    };
    yield_now().await;
    let round = queue
        .end_and_claim(completed(&first), who_takes("a"), None)
        .await;
    let round = round.unwrap();
    assert_eq!(round.completed[0].outcome, Ok(()));
    assert_eq!(ids(&round.claimed), [] as [&str; 0]);
    let second = waits.await.unwrap();
    assert_eq!(ids(&second), ["b1"]);
    // Nobody waits any more.
    let round = queue
        .end_and_claim(completed(&second), who_takes("a"), None)
        .await;
    assert_eq!(ids(&round.unwrap().claimed), ["a2"]);
}

#[tokio::test]
async fn a_round_is_taken_as_a_whole_or_not_at_all() {
    let mut options = NodeOptions::new("memory:", "rounds");
    options.session = Config::for_ttl(PATIENCE);
    let node = Node::start(options).await.unwrap();
    let mut options = Options::default();
    // The claim would have no room behind the ends.
    options.log.backlog_records_max = 2;
    let queue = open_with(&node, options).await;
    submit(&queue, &["a", "b", "c"]).await;
    let first = claim(&queue, worker("w")).await;
    let second = claim(&queue, worker("w")).await;
    let mut ends = completed(&first);
    ends.released = vec![held(&second[0])];
    let error = queue.end_and_claim(ends.clone(), worker("w"), None).await;
    let error = error.unwrap_err();
    assert!(
        matches!(error, tenure::queue::Error::Overloaded { .. }),
        "{error}"
    );
    ends.released.clear();
    let round = queue.end_and_claim(ends, worker("w"), None).await.unwrap();
    assert_eq!(round.completed[0].outcome, Ok(()), "not done before");
    assert_eq!(ids(&round.claimed), ["c"]);
}

#[tokio::test]
async fn what_is_claimed_for_nobody_is_handed_back_and_the_ends_are_done() {
    let (_node, queue) = memory().await;
    submit(&queue, &["a", "b"]).await;
    let first = queue.claim(worker("w")).await.unwrap();
    {
        let round = queue.end_and_claim(completed(&first), worker("w"), None);
        let mut round = std::pin::pin!(round);
        let polled = futures_util::poll!(round.as_mut());
        assert!(polled.is_pending(), "{polled:?}");
    }
    let next = claim(&queue, worker("v")).await;
    assert_eq!((ids(&next), next[0].attempt), (vec!["b"], 1));
    let again = queue.complete(vec![done(&first[0])]).await.unwrap();
    assert_eq!(again[0].outcome, Ok(()));
}
