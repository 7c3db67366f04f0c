//! Calls that are made at the same time travel together, and each has its own answer.

use std::pin::pin;
use std::task::Poll;

use futures_util::future::{join_all, poll_fn};
use tenure_client::api::{ClaimRequest, SubmitStatus};
use tenure_client::{Claim, Client, Ended, Error, Failed, Key, Listing, NewJob, Payload, State};
use tenure_server::Server;
use tenure_testkit::http_proxy::Fault;
use tokio::runtime::Runtime;

use crate::support::{Broker, client, config};

fn job(number: usize) -> NewJob {
    NewJob::new("mail", &number)
}

async fn count(client: &Client) -> usize {
    let listing = Listing::new().limit(1_000);
    client.jobs(&listing).await.unwrap().jobs.len()
}

#[tokio::test]
async fn submits_at_the_same_time_share_requests() {
    let broker = Broker::start().await;
    let (client, proxy) = broker.behind_proxy().await;
    let submits = (0..200).map(|number| client.submit(job(number).id(format!("job-{number}"))));
    for (number, submitted) in join_all(submits).await.into_iter().enumerate() {
        let submitted = submitted.unwrap();
        assert_eq!(submitted.status, SubmitStatus::Created);
        assert_eq!(submitted.id.as_str(), format!("job-{number}"));
    }
    assert!(proxy.puts() <= 4, "{} requests", proxy.puts());
    assert_eq!(count(&broker.client).await, 200);
}

#[tokio::test]
async fn a_lone_submit_goes_alone() {
    let broker = Broker::start().await;
    let (client, proxy) = broker.behind_proxy().await;
    for number in 1..=3 {
        client.submit(job(number)).await.unwrap();
        assert_eq!(proxy.puts(), number);
    }
}

#[tokio::test]
async fn a_job_that_is_refused_costs_its_neighbours_nothing() {
    let broker = Broker::start().await;
    broker.client.submit(job(0).id("taken")).await.unwrap();
    let (client, proxy) = broker.behind_proxy().await;
    let submits = (0..50).map(|number| {
        client.submit(match number {
            10 => job(number).max_attempts(0),
            20 => NewJob::new("mail", &"x".repeat(300 << 10)),
            30 => job(number).id("taken"),
            _ => job(number),
        })
    });
    for (number, submitted) in join_all(submits).await.into_iter().enumerate() {
        match (number, submitted) {
            (10, Err(Error::Invalid(problem))) => {
                assert_eq!(problem.field.as_deref(), Some("max_attempts"));
            }
            (20, Err(Error::Invalid(problem))) => {
                assert_eq!(problem.field.as_deref(), Some("payload"));
            }
            (30, Err(Error::Conflict(_))) => {}
            (_, submitted) => {
                assert_eq!(submitted.unwrap().status, SubmitStatus::Created, "{number}");
            }
        }
    }
    assert_eq!(count(&broker.client).await, 48);
    // Two refusals, each of which sets one job apart and halves the others.
    assert!(proxy.puts() < 20, "{} requests", proxy.puts());
}

#[tokio::test]
async fn a_batch_whose_answer_is_lost_is_submitted_once() {
    let broker = Broker::start().await;
    let (client, proxy) = broker.behind_proxy().await;
    for fault in [
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::AnswerInstead("502 Bad Gateway"),
    ] {
        let before = count(&broker.client).await;
        proxy.fail_next(fault);
        for submitted in join_all((0..50).map(|number| client.submit(job(number)))).await {
            assert_eq!(
                submitted.unwrap().status,
                SubmitStatus::Created,
                "{fault:?}"
            );
        }
        assert_eq!(count(&broker.client).await, before + 50, "{fault:?}");
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_before_it_was_sent_leaves_its_job_out() {
    let broker = Broker::start().await;
    {
        let mut gone = pin!(broker.client.submit(job(1)));
        assert!(is_pending(&mut gone).await);
    }
    let submitted = broker.client.submit(job(2)).await.unwrap();
    let jobs = broker.client.jobs(&Listing::new()).await.unwrap().jobs;
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].id, submitted.id);
}

#[test]
fn a_submit_outlives_the_runtime_that_was_to_send_it() {
    let runtime = Runtime::new().unwrap();
    let handle = runtime.block_on(Server::start(config("memory:"))).unwrap();
    let client = client([handle.url()]);
    // It runs nothing by itself, so the batch is never sent.
    let idle = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut submit = pin!(client.submit(job(1)));
    assert!(idle.block_on(is_pending(&mut submit)));
    drop(idle);
    let submitted = runtime.block_on(submit).unwrap();
    assert_eq!(submitted.status, SubmitStatus::Created);
    assert_eq!(runtime.block_on(count(&client)), 1);
}

/// Submits so many jobs, and claims them all.
async fn claimed(broker: &Broker, jobs: usize) -> Vec<Claim> {
    broker.client.submit_all((0..jobs).map(job)).await.unwrap();
    let mut request = ClaimRequest::new(Key::new("tests").unwrap());
    request.max = u32::try_from(jobs).unwrap();
    let jobs = broker.client.claim(&request).await.unwrap();
    jobs.iter().map(Claim::from).collect()
}

fn failed(claim: &Claim, number: usize) -> Failed {
    Failed {
        claim: claim.clone(),
        error: format!("error {number}"),
        retry_in: None,
        permanent: true,
    }
}

#[tokio::test]
async fn ends_and_heartbeats_at_the_same_time_share_requests() {
    let broker = Broker::start().await;
    let (client, proxy) = broker.behind_proxy().await;
    let claims = claimed(&broker, 100).await;
    let progress = |number: usize| Some(Payload::of(&number).unwrap());
    let beats = claims.iter().enumerate().map(|(number, claim)| {
        let client = client.clone();
        async move { client.heartbeat(&[(claim.clone(), progress(number))]).await }
    });
    for kept in join_all(beats).await {
        assert_eq!(kept.unwrap(), [Ended::Done]);
    }
    assert!(proxy.puts() <= 4, "{} requests", proxy.puts());
    let job = broker.client.job(&claims[7].id).await.unwrap();
    assert_eq!(job.progress.unwrap().as_str(), "7");
    let (completed, given_up) = claims.split_at(50);
    let before = proxy.puts();
    let completions = completed
        .iter()
        .map(|claim| client.complete(claim, progress(1)));
    for done in join_all(completions).await {
        done.unwrap();
    }
    let failures = given_up.iter().enumerate();
    let failures = failures.map(|(number, claim)| client.fail(failed(claim, number)));
    for done in join_all(failures).await {
        done.unwrap();
    }
    assert!(proxy.puts() - before <= 8, "{} requests", proxy.puts());
    for (number, claim) in claims.iter().enumerate() {
        let job = broker.client.job(&claim.id).await.unwrap();
        let (state, error) = match number {
            ..50 => (State::Completed, None),
            _ => (State::Dead, Some(format!("error {}", number - 50))),
        };
        assert_eq!((job.state, job.error.as_deref()), (state, error.as_deref()));
    }
}

#[tokio::test]
async fn each_end_has_its_own_answer() {
    let broker = Broker::start().await;
    let (client, proxy) = broker.behind_proxy().await;
    for fault in [None, Some(Fault::LoseAnswer), Some(Fault::LoseRequest)] {
        let claims = claimed(&broker, 30).await;
        broker.client.fail(failed(&claims[10], 0)).await.unwrap();
        if let Some(fault) = fault {
            proxy.fail_next(fault);
        }
        let large = Payload::of(&"x".repeat(100_000)).unwrap();
        let ends = claims
            .iter()
            .enumerate()
            .map(|(number, claim)| client.complete(claim, (number == 20).then(|| large.clone())));
        for (number, ended) in join_all(ends).await.into_iter().enumerate() {
            match number {
                10 => {
                    let lost = ended.unwrap_err();
                    assert!(
                        matches!(&lost, Error::Lost { id, .. } if *id == claims[10].id),
                        "{lost}"
                    );
                }
                20 => {
                    let refused = ended.unwrap_err();
                    let field = refused.problem().unwrap().field.as_deref();
                    assert_eq!(field, Some("result"), "{refused}");
                }
                _ => ended.unwrap(),
            }
        }
        // The one that was refused can be told otherwise.
        client.complete(&claims[20], None).await.unwrap();
    }
    let alone = proxy.puts();
    let claims = claimed(&broker, 3).await;
    for claim in &claims {
        client.complete(claim, None).await.unwrap();
    }
    assert_eq!(proxy.puts() - alone, 3, "a lone one goes alone");
}

#[test]
fn an_end_outlives_the_runtime_that_was_to_send_it() {
    let runtime = Runtime::new().unwrap();
    let broker = runtime.block_on(Broker::start());
    let claims = runtime.block_on(claimed(&broker, 1));
    // It runs nothing by itself, so the batch is never sent.
    let idle = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut end = pin!(broker.client.complete(&claims[0], None));
    assert!(idle.block_on(is_pending(&mut end)));
    drop(idle);
    runtime.block_on(end).unwrap();
    let job = runtime.block_on(broker.client.job(&claims[0].id)).unwrap();
    assert_eq!(job.state, State::Completed);
}

/// Looks at a future once.
async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|context| {
        let polled = std::pin::Pin::new(&mut *future).poll(context);
        Poll::Ready(polled.is_pending())
    })
    .await
}
