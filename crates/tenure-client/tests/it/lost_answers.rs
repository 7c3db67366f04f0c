//! Answers that get lost after the server has acted: everything is done once, and the caller hears of it.

use std::time::Duration;

use tenure_client::api::{ClaimRequest, SubmitStatus};
use tenure_client::{Claim, Client, Ended, Error, Failed, Key, Listing, NewJob, State};
use tenure_testkit::http_proxy::Fault;

use crate::support::Broker;

const FAULTS: [Fault; 10] = [
    Fault::LoseAnswer,
    Fault::AnswerInstead("502 Bad Gateway"),
    // No broker's own: what a gateway says about itself is no refusal.
    Fault::AnswerInstead("302 Found"),
    Fault::AnswerInstead("401 Unauthorized"),
    Fault::AnswerInstead("404 Not Found"),
    Fault::AnswerInstead("409 Conflict"),
    Fault::AnswerInstead("413 Content Too Large"),
    Fault::AnswerInstead("429 Too Many Requests"),
    Fault::LoseRequest,
    Fault::CloseAfterwards,
];

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_that_is_sent_again_is_one_job() {
    let broker = Broker::start().await;
    let (client, proxy) = broker.behind_proxy().await;
    for (number, fault) in FAULTS.into_iter().enumerate() {
        proxy.fail_next(fault);
        let submitted = client.submit(NewJob::new("mail", &number)).await.unwrap();
        assert_eq!(submitted.status, SubmitStatus::Created, "{fault:?}");
        let jobs = broker.client.jobs(&Listing::new()).await.unwrap().jobs;
        assert_eq!(jobs.len(), number + 1, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_was_recorded_is_recognised() {
    let broker = Broker::start().await;
    let (client, proxy) = broker.behind_proxy().await;
    for fault in FAULTS {
        let claim = claimed(&broker).await;
        proxy.fail_next(fault);
        client.complete(&claim, None).await.unwrap();
        let job = broker.client.job(&claim.id).await.unwrap();
        assert_eq!(job.state, State::Completed, "{fault:?}");

        let claim = claimed(&broker).await;
        proxy.fail_next(fault);
        client.fail(failed(&claim, "no paper")).await.unwrap();
        let job = broker.client.job(&claim.id).await.unwrap();
        assert_eq!(job.state, State::Scheduled, "{fault:?}");
        assert_eq!(job.error.as_deref(), Some("no paper"));

        let claim = claimed(&broker).await;
        proxy.fail_next(fault);
        client.release(&claim).await.unwrap();
        let job = broker.client.job(&claim.id).await.unwrap();
        assert_eq!((job.state, job.attempt), (State::Ready, 0), "{fault:?}");
        // Again, when another claim makes the attempt.
        let next = Claim::from(&broker.claim().await);
        assert_eq!((&next.id, next.attempt), (&claim.id, 1));
        client.release(&claim).await.unwrap();
        broker.client.cancel(&claim.id).await.unwrap();
        proxy.fail_next(fault);
        let ended = client.release_all(vec![next]).await.unwrap();
        assert_eq!(ended, [Ended::Cancelled], "{fault:?}");
    }
}

/// Before, such a job was dead without ever having run: its lease ran out, and there was no other attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_sent_again_has_the_same_jobs() {
    let broker = Broker::start().await;
    let (client, proxy) = broker.behind_proxy().await;
    for fault in FAULTS {
        let job = NewJob::new("mail", &1).max_attempts(1);
        let id = broker.client.submit(job).await.unwrap().id;
        let other = broker.client.submit(NewJob::new("mail", &2)).await.unwrap();
        proxy.fail_next(fault);
        let request = ClaimRequest::new(Key::new("tests").unwrap());
        let jobs = client.claim(&request).await.unwrap();
        let [job] = &jobs[..] else {
            panic!("{fault:?}: {jobs:?}");
        };
        assert_eq!((&job.id, job.attempt), (&id, 1), "{fault:?}");
        let waits = broker.client.job(&other.id).await.unwrap();
        assert_eq!(waits.state, State::Ready, "{fault:?}");
        client.complete(&Claim::from(job), None).await.unwrap();
        // Another call is another claim.
        let jobs = client.claim(&request).await.unwrap();
        assert_eq!(jobs[0].id, other.id, "{fault:?}");
        let second = client.claim(&request).await.unwrap();
        assert_eq!(second, [], "{fault:?}");
        client.complete(&Claim::from(&jobs[0]), None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_somebody_else_made_is_not() {
    let broker = Broker::start().await;
    let (client, proxy) = broker.behind_proxy().await;
    let first = claimed(&broker).await;
    let mut handed_back = failed(&first, "the lease ran out");
    handed_back.retry_in = Some(Duration::ZERO);
    broker.client.fail(handed_back).await.unwrap();
    let second = Claim::from(&broker.claim().await);
    broker.client.complete(&second, None).await.unwrap();
    // The second attempt completed the job; the first one must not take that for its own work.
    proxy.fail_next(Fault::LoseAnswer);
    let lost = client.complete(&first, None).await.unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }), "{lost}");
    let lost = client.fail(failed(&first, "no paper")).await.unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }), "{lost}");
    let lost = client.release(&first).await.unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }), "{lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_by_hand_are_recognised() {
    let broker = Broker::start().await;
    let (client, proxy) = broker.behind_proxy().await;
    let id = broker
        .client
        .submit(NewJob::new("mail", &1))
        .await
        .unwrap()
        .id;
    proxy.fail_next(Fault::LoseAnswer);
    assert_eq!(client.cancel(&id).await.unwrap().state, State::Cancelled);
    proxy.fail_next(Fault::LoseAnswer);
    assert_eq!(client.retry(&id).await.unwrap().state, State::Ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_known_is_not_guessed() {
    let broker = Broker::start().await;
    let (_, proxy) = broker.behind_proxy().await;
    let impatient = Client::builder([format!("http://{}", proxy.address())])
        .deadline(Duration::from_millis(300))
        .build()
        .unwrap();
    proxy.fail_always(Fault::LoseAnswer);
    let unknown = impatient.submit(NewJob::new("mail", &1)).await.unwrap_err();
    assert!(matches!(unknown, Error::Unknown { .. }), "{unknown}");

    let nobody = Client::builder(["http://127.0.0.1:9"])
        .deadline(Duration::from_millis(300))
        .build()
        .unwrap();
    let nothing = nobody.submit(NewJob::new("mail", &1)).await.unwrap_err();
    assert!(matches!(nothing, Error::Unavailable { .. }), "{nothing}");
}

async fn claimed(broker: &Broker) -> Claim {
    broker.client.submit(NewJob::new("mail", &1)).await.unwrap();
    Claim::from(&broker.claim().await)
}

fn failed(claim: &Claim, error: &str) -> Failed {
    Failed {
        claim: claim.clone(),
        error: error.to_owned(),
        retry_in: Some(Duration::from_secs(3_600)),
        permanent: false,
    }
}
