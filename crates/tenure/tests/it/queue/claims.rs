//! Claims that wait: woken at once, in order, and only those who can take a job.

use std::time::Duration;

use tenure::core::queue::Cancelled;
use tenure::core::session::Config;
use tenure::queue::Queue;
use tenure::{Node, NodeOptions};
use tokio::task::JoinSet;

use super::stage::{claim, claim_now, id, ids, job, open, submit, worker};
use crate::support::{PATIENCE, until};

async fn memory() -> (Node, Queue) {
    let mut options = NodeOptions::new("memory:", "claims");
    options.session = Config::for_ttl(Duration::from_secs(30));
    let node = Node::start(options).await.unwrap();
    let queue = open(&node).await;
    (node, queue)
}

#[tokio::test]
async fn one_job_wakes_one_of_many_that_wait() {
    let (_node, queue) = memory().await;
    let mut workers = JoinSet::new();
    for number in 0..1_000 {
        let queue = queue.clone();
        let claim = worker(&number.to_string());
        workers.spawn(async move { (number, queue.claim(claim.waiting(PATIENCE)).await.unwrap()) });
        tokio::task::yield_now().await;
    }
    let before = queue.statistics().unwrap().records;
    assert_eq!(before, 0, "nothing is written while nothing can be claimed");
    for number in 0..10 {
        submit(&queue, &[&number.to_string()]).await;
        let (who, jobs) = workers.join_next().await.unwrap().unwrap();
        assert_eq!(ids(&jobs), [number.to_string()]);
        assert_eq!(who, number, "who came first is first");
    }
    let after = queue.statistics().unwrap().records;
    assert_eq!(after, 20, "a submit and a claim each");
}

#[tokio::test]
async fn a_job_and_the_claim_that_waits_for_it_are_one_commit() {
    let (_node, queue) = memory().await;
    for number in 1..=20 {
        let waits = {
            let queue = queue.clone();
            let claim = worker("w").waiting(PATIENCE);
            tokio::spawn(async move { queue.claim(claim).await.unwrap() })
        };
        tokio::task::yield_now().await;
        submit(&queue, &[&number.to_string()]).await;
        assert_eq!(ids(&waits.await.unwrap()), [number.to_string()]);
        let statistics = queue.statistics().unwrap();
        assert_eq!(
            (statistics.commits, statistics.records),
            (number, 2 * number)
        );
    }
}

#[tokio::test]
async fn a_claim_that_rode_in_vain_waits_on() {
    let (_node, queue) = memory().await;
    let mut workers = JoinSet::new();
    for number in 0..2 {
        let queue = queue.clone();
        let claim = worker(&number.to_string()).waiting(PATIENCE);
        workers.spawn(async move { queue.claim(claim).await.unwrap() });
        tokio::task::yield_now().await;
    }
    // Both look new when a claim is put behind each; the second is not, once the first is there.
    let (first, second) = tokio::join!(queue.submit(vec![job("a")]), queue.submit(vec![job("a")]));
    assert_eq!((first.unwrap().len(), second.unwrap().len()), (1, 1));
    assert_eq!(ids(&workers.join_next().await.unwrap().unwrap()), ["a"]);
    submit(&queue, &["b"]).await;
    assert_eq!(ids(&workers.join_next().await.unwrap().unwrap()), ["b"]);
    let records = queue.statistics().unwrap().records;
    assert_eq!(
        records, 6,
        "three submits, and three claims of which one was in vain"
    );
}

#[tokio::test]
async fn jobs_of_a_batch_are_shared_among_those_who_wait() {
    let (_node, queue) = memory().await;
    let mut workers = JoinSet::new();
    for number in 0..4 {
        let queue = queue.clone();
        let mut claim = worker(&number.to_string());
        claim.max = 10;
        workers.spawn(async move { queue.claim(claim.waiting(PATIENCE)).await.unwrap() });
        tokio::task::yield_now().await;
    }
    submit(&queue, &["a", "b", "c", "d", "e", "f", "g", "h"]).await;
    let mut shares = Vec::new();
    while let Some(jobs) = workers.join_next().await {
        shares.push(jobs.unwrap().len());
    }
    assert_eq!(shares, [2, 2, 2, 2]);
}

#[tokio::test]
async fn a_claim_that_finds_nothing_ends_with_its_time() {
    let (_node, queue) = memory().await;
    let none = queue
        .claim(worker("w").waiting(Duration::from_millis(20)))
        .await;
    assert!(none.unwrap().is_empty());
    assert!(claim_now(&queue, worker("w")).await.unwrap().is_empty());
    assert_eq!(queue.statistics().unwrap().records, 0);
    // It is not counted as waiting any more.
    submit(&queue, &["a"]).await;
    assert_eq!(ids(&claim(&queue, worker("w")).await), ["a"]);
}

#[tokio::test]
async fn a_paused_queue_wakes_everyone_it_has_jobs_for_when_it_resumes() {
    let (_node, queue) = memory().await;
    let default = job("a").queue;
    queue.pause(default.clone()).await.unwrap();
    submit(&queue, &["a", "b"]).await;
    let mut workers = JoinSet::new();
    for number in 0..3 {
        let queue = queue.clone();
        let claim = worker(&number.to_string());
        workers.spawn(async move { queue.claim(claim.waiting(PATIENCE)).await.unwrap() });
        tokio::task::yield_now().await;
    }
    queue.resume(default).await.unwrap();
    for _ in 0..2 {
        let jobs = workers.join_next().await.unwrap().unwrap();
        assert_eq!(jobs.len(), 1);
    }
    workers.abort_all();
    while workers.join_next().await.is_some() {}
    let answers = queue.cancel(vec![id("a")]).await.unwrap();
    assert_eq!(answers[0].outcome, Ok(Cancelled::Requested));
    until("nobody waits", async || {
        queue.statistics().unwrap().waiting == 0
    })
    .await;
}
