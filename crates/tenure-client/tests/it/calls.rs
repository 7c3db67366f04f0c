//! Every call once, as far as it can be seen from here.

use std::slice;
use std::time::Duration;

use serde_json::json;
use tenure_client::api::{MovedStatus, RetriedStatus, RetryRequest, SubmitStatus};
use tenure_client::{
    Claim, ElectionName, Ended, Error, Failed, JobId, Keep, Listing, Missed, NewJob, NodeId,
    Payload, QueueName, QueueOptions, Rate, ScheduleName, State,
};
use tenure_server::Tokens;

use crate::support::{Broker, client, config};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_from_submit_to_its_result() {
    let broker = Broker::start().await;
    let client = &broker.client;
    let mail = NewJob::new("mail", &json!({"to": "you"}))
        .queue("bulk")
        .priority(3);
    let submitted = client.submit(mail).await.unwrap();
    assert_eq!(submitted.status, SubmitStatus::Created);
    let job = client.job(&submitted.id).await.unwrap();
    assert_eq!((job.state, job.priority), (State::Ready, 3));
    assert_eq!(job.payload.as_str(), r#"{"to":"you"}"#);

    let claimed = broker.claim().await;
    let claim = Claim::from(&claimed);
    let progress = Payload::of(&json!({"percent": 50})).unwrap();
    let kept = client.heartbeat(&[(claim.clone(), Some(progress))]).await;
    assert_eq!(kept.unwrap(), [Ended::Done]);
    let job = client.job(&submitted.id).await.unwrap();
    assert_eq!(job.progress.unwrap().as_str(), r#"{"percent":50}"#);
    assert_eq!(job.worker.unwrap().as_str(), "tests");

    let result = Payload::of(&json!([1.5])).unwrap();
    client.complete(&claim, Some(result)).await.unwrap();
    let job = client.wait(&submitted.id, Duration::ZERO).await.unwrap();
    assert_eq!(job.state, State::Completed);
    assert_eq!(job.result.unwrap().read::<Vec<f64>>().unwrap(), [1.5]);
    client.forget(&submitted.id).await.unwrap();
    // Sent again, it changes nothing.
    client.forget(&submitted.id).await.unwrap();
    let left = client.job(&submitted.id).await.unwrap();
    assert!(left.remnant && left.state == State::Completed);
    let listed = client.jobs(&Listing::new()).await.unwrap().jobs;
    assert_eq!(listed, []);
    let other = JobId::new("other").unwrap();
    let none = client.forget(&other).await.unwrap_err();
    assert!(matches!(none, Error::NotFound(_)), "{none}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_one_job_however_often_it_is_sent() {
    let Broker { client, .. } = Broker::start().await;
    let job = || NewJob::new("mail", &1).id("a").unique_key("k");
    let statuses = [
        client.submit(job()).await.unwrap().status,
        client.submit(job()).await.unwrap().status,
    ];
    assert_eq!(statuses, [SubmitStatus::Created, SubmitStatus::Duplicate]);
    let other = client.submit(NewJob::new("mail", &2).id("a")).await;
    assert!(matches!(other, Err(Error::Conflict(_))), "{other:?}");
    let same_key = NewJob::new("mail", &3).id("b").unique_key("k");
    let same_key = client.submit(same_key).await.unwrap();
    assert_eq!(same_key.existing.unwrap().as_str(), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_not_renewed_is_lost() {
    let broker = Broker::start().await;
    broker.client.submit(NewJob::new("mail", &1)).await.unwrap();
    let claimed = broker.claim().await;
    let mut claim = Claim::from(&claimed);
    claim.token.nonce ^= 1;
    let lost = broker.client.complete(&claim, None).await.unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }), "{lost}");
    let failed = Failed {
        claim: Claim::from(&claimed),
        error: "no paper".to_owned(),
        retry_in: Some(Duration::from_secs(3600)),
        permanent: false,
    };
    broker.client.fail(failed).await.unwrap();
    let job = broker.client.job(&claimed.id).await.unwrap();
    assert_eq!(job.state, State::Scheduled);
    assert_eq!(job.error.as_deref(), Some("no paper"));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_given_up_and_run_again() {
    let Broker { client, .. } = Broker::start().await;
    let jobs = (0..5).map(|number| NewJob::new("mail", &number).id(format!("job-{number}")));
    client.submit_all(jobs).await.unwrap();
    let listing = Listing::new().newest_first().limit(2);
    let page = client.jobs(&listing).await.unwrap();
    let ids = |jobs: &[tenure_client::api::Job]| -> Vec<String> {
        jobs.iter().map(|job| job.id.to_string()).collect()
    };
    assert_eq!(ids(&page.jobs), ["job-4", "job-3"]);
    let page = client
        .jobs(&listing.from(page.next.unwrap()))
        .await
        .unwrap();
    assert_eq!(ids(&page.jobs), ["job-2", "job-1"]);

    let id = "job-1".parse().unwrap();
    assert_eq!(client.cancel(&id).await.unwrap().state, State::Cancelled);
    let again = client.cancel(&id).await.unwrap_err();
    assert!(matches!(again, Error::State(_)), "{again}");
    let cancelled = client.jobs(&Listing::new().state(State::Cancelled)).await;
    assert_eq!(ids(&cancelled.unwrap().jobs), ["job-1"]);
    assert_eq!(client.retry(&id).await.unwrap().state, State::Ready);
    let request = RetryRequest {
        ids: Some(vec![id, "nobody".parse().unwrap()]),
        ..RetryRequest::default()
    };
    let answer = client.retry_all(&request).await.unwrap();
    let statuses: Vec<_> = answer.jobs.iter().map(|job| job.status).collect();
    assert_eq!(statuses, [RetriedStatus::State, RetriedStatus::NotFound]);

    let slow = QueueName::new("slow").unwrap();
    let moved = ["job-4".parse().unwrap(), "nobody".parse().unwrap()];
    let answer = client.move_to(&moved, &slow).await.unwrap();
    let statuses: Vec<_> = answer.jobs.iter().map(|job| job.status).collect();
    assert_eq!(statuses, [MovedStatus::Moved, MovedStatus::NotFound]);
    let in_slow = client.jobs(&Listing::new().queue(slow)).await;
    assert_eq!(ids(&in_slow.unwrap().jobs), ["job-4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_and_settings_are_set() {
    let Broker { client, .. } = Broker::start().await;
    let queue = QueueName::new("bulk").unwrap();
    let options = QueueOptions {
        concurrency: Some(2),
        rate: Some(Rate {
            jobs: 5,
            period_ms: 1_000,
            burst: None,
        }),
    };
    let set = client.set_queue(&queue, &options).await.unwrap();
    assert_eq!(set.options, options);
    assert!(client.pause(&queue).await.unwrap().paused);
    assert!(!client.resume(&queue).await.unwrap().paused);
    assert_eq!(client.queue(&queue).await.unwrap().options, options);
    assert_eq!(client.queues().await.unwrap().len(), 1);

    let mut settings = client.settings().await.unwrap();
    settings.dead = Keep {
        age_ms: Some(1_000),
        count: None,
    };
    assert_eq!(client.configure(&settings).await.unwrap(), settings);
    let stats = client.stats().await.unwrap();
    assert!(stats.serving && stats.log.commits > 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_set_and_deleted() {
    let Broker { client, .. } = Broker::start().await;
    let name = ScheduleName::new("nightly").unwrap();
    let job = NewJob::new("report", &json!({"n": 1})).queue("reports");
    let set = client.set_schedule(&name, "0 3 * * *", "Europe/Berlin", Missed::Skip, job);
    let set = set.await.unwrap();
    assert!(set.next_at.is_some());
    assert_eq!(client.schedule(&name).await.unwrap(), set);
    assert_eq!(client.schedules().await.unwrap(), slice::from_ref(&set));
    let paused = client.pause_schedule(&name).await.unwrap();
    assert_eq!((paused.paused, paused.next_at), (true, None));
    assert_eq!(client.resume_schedule(&name).await.unwrap(), set);
    let typo = ScheduleName::new("nigthly").unwrap();
    let absent = client.pause_schedule(&typo).await.unwrap_err();
    assert!(matches!(absent, Error::NotFound(_)), "{absent}");
    let job = NewJob::new("report", &1);
    let wrong = client.set_schedule(&name, "0 25 * * *", "UTC", Missed::Once, job);
    let wrong = wrong.await.unwrap_err();
    let field = wrong.problem().and_then(|problem| problem.field.clone());
    assert_eq!(field.as_deref(), Some("cron"), "{wrong}");
    client.delete_schedule(&name).await.unwrap();
    let gone = client.delete_schedule(&name).await.unwrap_err();
    assert!(matches!(gone, Error::NotFound(_)), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_candidate_leads_until_it_leaves() {
    let folder = tempfile::tempdir().unwrap();
    // One-shot elections go by the age of sessions, which a store in memory does not know.
    let config = config(&crate::support::store_in(folder.path()));
    let server = tenure_server::Server::start(config).await.unwrap();
    let client = client([server.url()]);
    let reports = ElectionName::new("reports").unwrap();
    let [first, second] = ["web-1", "web-2"].map(|name| NodeId::new(name).unwrap());
    let ttl = Some(Duration::from_secs(30));
    let elected = client.elect(&reports, &first, ttl).await.unwrap();
    assert!(elected.is_leader() && elected.answer.token.is_some());
    assert!(elected.remaining() <= Duration::from_secs(30));
    let other = client.elect(&reports, &second, ttl).await.unwrap();
    assert!(!other.is_leader() && other.remaining().is_zero());
    assert_eq!(other.answer.leader.unwrap().node, first);
    assert!(client.leads(&reports, &first).await.unwrap());
    let election = client.election(&reports).await.unwrap();
    assert_eq!(election.candidates.len(), 2);
    client.unregister_candidate(&reports, &first).await.unwrap();
    assert!(!client.leads(&reports, &first).await.unwrap());
    client
        .register_candidate(&reports, &second, ttl)
        .await
        .unwrap();
    let cluster = client.cluster().await.unwrap();
    assert_eq!(cluster.nodes.len(), 1, "{cluster:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_told_at_once() {
    let mut config = config("memory:");
    config.tokens = Tokens::parse("worker a-token-of-the-workers\n").unwrap();
    let server = tenure_server::Server::start(config).await.unwrap();
    for token in [None, Some("a-token-of-somebody-else")] {
        let mut builder = tenure_client::Client::builder([server.url()]);
        if let Some(token) = token {
            builder = builder.token(token);
        }
        let denied = builder.build().unwrap().queues().await.unwrap_err();
        assert!(matches!(denied, Error::Denied(_)), "{denied}");
    }
    let builder = tenure_client::Client::builder([server.url()]);
    let client = builder.token("a-token-of-the-workers\n").build().unwrap();
    client.submit(NewJob::new("mail", &1)).await.unwrap();
    let queue = QueueName::new("default").unwrap();
    let denied = client.pause(&queue).await.unwrap_err();
    assert!(matches!(denied, Error::Denied(_)), "{denied}");
}
