//! Workers whose claims bring the ends of earlier ones along.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_client::api::Submitted;
use tenure_client::{
    CancellationToken, Client, Error, Failure, Job, Listing, NewJob, State, Summary, Worker,
    WorkerBuilder, WorkerEvent,
};
use tenure_testkit::http_proxy::Fault;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::support::{Broker, Gate, PATIENCE};

const REFUSAL: &str = r#"{"type":"about:blank","title":"Unknown field","status":422,"code":"unknown_field","detail":"unknown field `ends`","field":"ends"}"#;

async fn submitted(broker: &Broker, jobs: usize) -> Vec<Submitted> {
    let jobs = (0..jobs).map(|number| NewJob::new("count", &number).max_attempts(1));
    broker.client.submit_all(jobs).await.unwrap()
}

async fn nothing(_: Job<usize>) -> Result<(), Failure> {
    Ok(())
}

fn start(builder: WorkerBuilder) -> (CancellationToken, JoinHandle<Result<Summary, Error>>) {
    let worker = builder.name("tests").build().unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    (stop, tokio::spawn(async move { worker.run(stopped).await }))
}

/// Works until all of these are completed.
async fn work(broker: &Broker, builder: WorkerBuilder, jobs: &[Submitted]) -> Summary {
    let (stop, task) = start(builder);
    for job in jobs {
        let job = broker.reaches(&job.id, State::Completed).await;
        assert_eq!(job.attempt, 1);
    }
    stop.cancel();
    timeout(PATIENCE, task).await.unwrap().unwrap().unwrap()
}

fn worker(client: Client) -> WorkerBuilder {
    Worker::builder(client).handle("count", nothing)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_of_a_busy_worker_is_one_call_and_one_commit() {
    const JOBS: usize = 30;
    let broker = Broker::start().await;
    let jobs = submitted(&broker, JOBS).await;
    let before = broker.handle.queue().statistics().unwrap();
    let (client, proxy) = broker.behind_proxy().await;
    let summary = work(&broker, worker(client).concurrency(1), &jobs).await;
    assert_eq!(summary.completed, JOBS as u64);
    let after = broker.handle.queue().statistics().unwrap();
    // The first claim, and then an end and a claim together, the last of which finds nothing.
    assert_eq!(after.commits - before.commits, 1 + JOBS as u64);
    // And a claim that waits.
    assert!(proxy.puts() <= JOBS + 2, "{} calls", proxy.puts());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_that_end_together_share_a_round() {
    const JOBS: usize = 400;
    let broker = Broker::start().await;
    let jobs = submitted(&broker, JOBS).await;
    let before = broker.handle.queue().statistics().unwrap();
    let (client, proxy) = broker.behind_proxy().await;
    let summary = work(&broker, worker(client).concurrency(40), &jobs).await;
    assert_eq!(summary.completed, JOBS as u64);
    let after = broker.handle.queue().statistics().unwrap();
    let (commits, calls) = (after.commits - before.commits, proxy.puts());
    // Eleven would do; a slow machine may make more of it, but not one for each job.
    assert!(
        commits < JOBS as u64 / 4 && calls < JOBS / 4,
        "{commits} commits, {calls} calls"
    );
}

/// While a claim waits for jobs, ends wait for nobody.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_does_not_wait_for_a_claim_that_waits() {
    let broker = Broker::start().await;
    let (client, proxy) = broker.behind_proxy().await;
    let go_on = Arc::new(Notify::new());
    let told = go_on.clone();
    let handler = move |_: Job<usize>| {
        let go_on = told.clone();
        async move {
            go_on.notified().await;
            Ok::<(), Failure>(())
        }
    };
    let builder = Worker::builder(client).handle("count", handler);
    let (stop, task) = start(builder.concurrency(2).wait(PATIENCE));
    let jobs = submitted(&broker, 1).await;
    broker.reaches(&jobs[0].id, State::Running).await;
    while proxy.puts() < 2 {
        sleep(Duration::from_millis(10)).await;
    }
    go_on.notify_one();
    let completed = broker.reaches(&jobs[0].id, State::Completed);
    timeout(PATIENCE / 2, completed).await.unwrap();
    // The claim that was answered, the one that waits, and the end.
    assert_eq!(proxy.puts(), 3);
    stop.cancel();
    timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_double_and_lose_nothing() {
    const JOBS: usize = 60;
    let broker = Broker::start().await;
    let jobs = submitted(&broker, JOBS).await;
    let (client, proxy) = broker.behind_proxy().await;
    for _ in 0..4 {
        for fault in [
            Fault::LoseAnswer,
            Fault::LoseRequest,
            Fault::AnswerInstead("502 Bad Gateway"),
            Fault::CloseAfterwards,
        ] {
            proxy.fail_next(fault);
        }
    }
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = ran.clone();
    let handler = move |_: Job<usize>| {
        counter.fetch_add(1, Ordering::SeqCst);
        async { Ok::<(), Failure>(()) }
    };
    let builder = Worker::builder(client).handle("count", handler);
    let summary = work(&broker, builder.concurrency(3), &jobs).await;
    let expected = Summary {
        completed: JOBS as u64,
        ..Summary::default()
    };
    assert_eq!(summary, expected);
    assert_eq!(ran.load(Ordering::SeqCst), JOBS, "each ran once");
}

/// A double: brokers before this one refused the field.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_does_not_know_ends_along_with_claims_loses_nothing() {
    const JOBS: usize = 20;
    let broker = Broker::start().await;
    let jobs = submitted(&broker, JOBS).await;
    let (client, proxy) = broker.behind_proxy().await;
    proxy.refuse("\"ends\"", REFUSAL);
    let summary = work(&broker, worker(client).concurrency(1), &jobs).await;
    let expected = Summary {
        completed: JOBS as u64,
        ..Summary::default()
    };
    assert_eq!(summary, expected);
    assert_eq!(proxy.refusals(), 1, "it is not tried again and again");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_is_lost_or_refused_leaves_its_neighbours_alone() {
    let broker = Broker::start().await;
    let jobs = submitted(&broker, 4).await;
    let stolen = jobs[1].id.clone();
    let (client, queue) = (broker.client.clone(), broker.handle.queue().clone());
    let handler = move |job: Job<usize>| {
        let (client, queue) = (client.clone(), queue.clone());
        async move {
            if job.payload == 1 {
                // Somebody ends the claim behind the worker's back.
                let (_, token) = queue.holder(&job.id).unwrap().unwrap();
                let claim = tenure_client::Claim {
                    id: job.id.clone(),
                    token,
                    attempt: 1,
                };
                let failed = tenure_client::Failed {
                    claim,
                    error: "taken away".to_owned(),
                    retry_in: None,
                    permanent: true,
                };
                client.fail(failed).await.unwrap();
            }
            // One result is too large.
            let bytes = if job.payload == 2 { 100_000 } else { 3 };
            Ok::<_, Failure>("x".repeat(bytes))
        }
    };
    let builder = Worker::builder(broker.client.clone()).handle("count", handler);
    let (stop, task) = start(builder.concurrency(1));
    for place in [0, 2, 3] {
        let job = broker.reaches(&jobs[place].id, State::Completed).await;
        assert_eq!(job.result.is_some(), place != 2);
    }
    let job = broker.reaches(&stolen, State::Dead).await;
    assert_eq!(job.error.as_deref(), Some("taken away"));
    stop.cancel();
    let summary = timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
    assert_eq!((summary.completed, summary.lost), (3, 1));
}

/// It stops while its calls are under way: every end is told, and what was claimed just then is handed back.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_worker_that_stops_tells_every_end() {
    const JOBS: usize = 300;
    for _ in 0..5 {
        let broker = Broker::start().await;
        submitted(&broker, JOBS).await;
        let (sender, mut ran) = mpsc::unbounded_channel();
        let handler = move |job: Job<usize>| {
            let sender = sender.clone();
            async move {
                sender.send(job.id.clone()).unwrap();
                Ok::<(), Failure>(())
            }
        };
        let builder = Worker::builder(broker.client.clone()).handle("count", handler);
        let (stop, task) = start(builder.concurrency(5));
        for _ in 0..50 {
            timeout(PATIENCE, ran.recv()).await.unwrap().unwrap();
        }
        stop.cancel();
        let summary = timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
        let mut more = 0;
        while ran.try_recv().is_ok() {
            more += 1;
        }
        assert_eq!((summary.completed, summary.lost), (50 + more, 0));
        let jobs = settled(&broker).await;
        let count = |state: State| jobs.iter().filter(|job| job.state == state).count() as u64;
        assert_eq!(count(State::Completed), summary.completed);
        // One whose lease had to run out would be dead.
        assert_eq!(count(State::Ready), JOBS as u64 - summary.completed);
    }
}

/// The answer to a claim that was sent before the worker was told to stop.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_when_the_worker_stops_is_handed_back() {
    let broker = Broker::start().await;
    let gate = Gate::start(broker.handle.address()).await;
    let jobs = submitted(&broker, 2).await;
    let go_on = Arc::new(Notify::new());
    let told = go_on.clone();
    let handler = move |_: Job<usize>| {
        let go_on = told.clone();
        async move {
            go_on.notified().await;
            Ok::<(), Failure>(())
        }
    };
    let through_gate = crate::support::client([format!("http://{}", gate.address)]);
    let builder = Worker::builder(through_gate).handle("count", handler);
    let (started, mut starts) = mpsc::unbounded_channel();
    let builder = builder.on_event(move |event| {
        if let WorkerEvent::Claimed(attempt) = event {
            started.send(attempt.id.clone()).unwrap();
        }
    });
    let (stop, task) = start(builder.concurrency(1));
    assert_eq!(starts.recv().await, Some(jobs[0].id.clone()));
    gate.close();
    go_on.notify_one();
    // The end of the first and the claim of the second are one commit.
    broker.reaches(&jobs[1].id, State::Running).await;
    broker.reaches(&jobs[0].id, State::Completed).await;
    stop.cancel();
    gate.open();
    let summary = timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
    let expected = Summary {
        completed: 1,
        released: 1,
        ..Summary::default()
    };
    assert_eq!(summary, expected);
    assert!(starts.try_recv().is_err(), "it was not begun");
    let job = broker.reaches(&jobs[1].id, State::Ready).await;
    assert_eq!(job.attempt, 0);
}

/// All jobs, when none runs any more.
async fn settled(broker: &Broker) -> Vec<tenure_client::api::Job> {
    loop {
        let jobs = broker.client.jobs(&Listing::new().limit(1_000)).await;
        let jobs = jobs.unwrap().jobs;
        if jobs.iter().all(|job| job.state != State::Running) {
            return jobs;
        }
        sleep(Duration::from_millis(20)).await;
    }
}
