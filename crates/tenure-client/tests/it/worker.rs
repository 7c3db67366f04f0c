//! The worker runtime, on a real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_client::{
    CancelReason, CancellationToken, Claim, Failed, Failure, Job, JobId, NewJob, Payload, State,
    Summary, Worker, WorkerBuilder, WorkerEvent,
};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::support::{Broker, Gate, PATIENCE};

/// A worker at work.
struct Working {
    worker: Arc<Worker>,
    stop: CancellationToken,
    task: JoinHandle<Result<Summary, tenure_client::Error>>,
}

impl Working {
    fn start(builder: WorkerBuilder) -> Self {
        let worker = Arc::new(builder.name("tests").build().unwrap());
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (worker, stop) = (worker.clone(), stop.clone());
            async move { worker.run(stop).await }
        });
        Self { worker, stop, task }
    }

    async fn stop(self) -> Summary {
        self.stop.cancel();
        timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap()
    }
}

async fn submit(broker: &Broker, job: NewJob) -> JobId {
    broker.client.submit(job).await.unwrap().id
}

#[derive(Debug, Serialize, Deserialize)]
struct Sum {
    numbers: Vec<i64>,
}

async fn add(job: Job<Sum>) -> Result<i64, Failure> {
    match &job.payload.numbers[..] {
        [] => Err(Failure::permanent("there is nothing to add")),
        [13] => panic!("unlucky"),
        [one] => Err(std::io::Error::other(format!("{one} is lonely")).into()),
        numbers => Ok(numbers.iter().sum()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_end_their_jobs_as_they_return() {
    let broker = Broker::start().await;
    let working = Working::start(Worker::builder(broker.client.clone()).handle("add", add));
    let sum = |numbers: &[i64]| {
        let numbers = numbers.to_vec();
        NewJob::new("add", &Sum { numbers }).max_attempts(1)
    };
    let good = submit(&broker, sum(&[1, 2])).await;
    let permanent = submit(&broker, sum(&[]).max_attempts(5)).await;
    let lonely = submit(&broker, sum(&[7])).await;
    let panicking = submit(&broker, sum(&[13])).await;
    let other = submit(&broker, NewJob::new("add", "no numbers")).await;

    let job = broker.reaches(&good, State::Completed).await;
    assert_eq!(job.result.unwrap().as_str(), "3");
    for (id, error) in [
        (permanent, "there is nothing to add"),
        (lonely, "7 is lonely"),
        (panicking, "the handler panicked: unlucky"),
        (
            other,
            "this worker's handler cannot read the payload: invalid type: string",
        ),
    ] {
        let job = broker.reaches(&id, State::Dead).await;
        assert_eq!(job.attempt, 1);
        let said = job.error.unwrap();
        assert!(said.starts_with(error), "{said}");
    }
    let summary = working.stop().await;
    assert_eq!((summary.completed, summary.failed), (1, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_jobs_run_at_once_than_there_are_slots() {
    let broker = Broker::start().await;
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (ran, seen) = (running.clone(), most.clone());
    let handler = move |_: Job<u32>| {
        let (running, most) = (ran.clone(), seen.clone());
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_millis(5)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<(), Failure>(())
        }
    };
    let jobs = (0..100).map(|number| NewJob::new("count", &number));
    let submitted = broker.client.submit_all(jobs).await.unwrap();
    let builder = Worker::builder(broker.client.clone());
    let working = Working::start(builder.handle("count", handler).concurrency(7));
    for job in submitted {
        broker.reaches(&job.id, State::Completed).await;
    }
    let claims = broker.client.jobs(&tenure_client::Listing::new()).await;
    let attempts = claims.unwrap().jobs.iter().map(|job| job.attempt).max();
    assert_eq!(attempts, Some(1));
    assert_eq!(
        most.load(Ordering::SeqCst),
        7,
        "all slots are used, and no more"
    );
    assert_eq!(working.stop().await.completed, 100);
}

/// As when its process is stopped while the claim is answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_lost_before_its_answer_was_seen_starts_nothing() {
    let broker = Broker::start().await;
    let gate = Gate::start(broker.handle.address()).await;
    let (sender, mut handled) = mpsc::unbounded_channel();
    let handler = move |job: Job<u32>| {
        let sender = sender.clone();
        async move {
            sender.send((job.id.clone(), job.attempt)).unwrap();
            Ok::<(), Failure>(())
        }
    };
    let late = submit(&broker, NewJob::new("count", &1)).await;
    gate.close();
    let through_gate = crate::support::client([format!("http://{}", gate.address)]);
    let builder = Worker::builder(through_gate).lease(Duration::from_secs(1));
    let working = Working::start(builder.handle("count", handler));
    broker.reaches(&late, State::Running).await;
    // Somebody else's by now.
    let second = broker.claim().await;
    assert_eq!((&second.id, second.attempt), (&late, 2));
    gate.open();
    let next = submit(&broker, NewJob::new("count", &2)).await;
    let (id, attempt) = timeout(PATIENCE, handled.recv()).await.unwrap().unwrap();
    assert_eq!((id, attempt), (next, 1), "not the one that was lost");
    broker
        .client
        .complete(&Claim::from(&second), None)
        .await
        .unwrap();
    let summary = working.stop().await;
    assert_eq!((summary.completed, summary.lost), (1, 1));
    assert!(handled.try_recv().is_err());
}

/// A claim may wait for a job for longer than the lease, which begins when there is one.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_waited_for_longer_than_its_lease_is_confirmed_and_worked_on() {
    let broker = Broker::start().await;
    let handler = async |_: Job<u32>| Ok::<(), Failure>(());
    let builder = Worker::builder(broker.client.clone()).lease(Duration::from_secs(1));
    let working = Working::start(builder.handle("count", handler));
    // Longer than the lease, and it does not matter by how much.
    sleep(Duration::from_millis(1_500)).await;
    let id = submit(&broker, NewJob::new("count", &1)).await;
    assert_eq!(broker.reaches(&id, State::Completed).await.attempt, 1);
    assert_eq!(working.stop().await.completed, 1);
}

/// A hundred megabytes are ready, and the worker has room for all of it.
#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_lost_because_an_answer_would_be_too_large() {
    const JOBS: usize = 400;
    let broker = Broker::start().await;
    let payload = "x".repeat(250 * 1024);
    for _ in 0..JOBS {
        submit(&broker, NewJob::new("large", &payload).max_attempts(1)).await;
    }
    let (sender, mut ended) = mpsc::unbounded_channel();
    let handler = move |job: Job<String>| {
        let sender = sender.clone();
        async move {
            sender.send(job.payload.len()).unwrap();
            Ok::<(), Failure>(())
        }
    };
    let builder = Worker::builder(broker.client.clone());
    let working = Working::start(builder.handle("large", handler).concurrency(JOBS));
    for number in 0..JOBS {
        let bytes = timeout(PATIENCE, ended.recv()).await;
        let bytes = bytes.unwrap_or_else(|_| panic!("only {number} jobs came"));
        assert_eq!(bytes, Some(payload.len()));
    }
    let summary = working.stop().await;
    assert_eq!((summary.completed, summary.failed), (JOBS as u64, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_keep_a_job_longer_than_its_lease_and_tell_progress() {
    let broker = Broker::start().await;
    let go_on = Arc::new(Notify::new());
    let told = go_on.clone();
    let handler = move |job: Job<u32>| {
        let go_on = told.clone();
        async move {
            job.progress(&serde_json::json!({"done": 1}));
            tokio::select! {
                () = go_on.notified() => Ok(()),
                reason = job.cancelled() => Err(Failure::from(format!("{reason:?}"))),
            }
        }
    };
    let builder = Worker::builder(broker.client.clone()).handle("long", handler);
    // Long enough that a slow machine gets a heartbeat through in time.
    let lease = Duration::from_secs(4);
    let working = Working::start(builder.lease(lease));
    let id = submit(&broker, NewJob::new("long", &1)).await;
    broker.reaches(&id, State::Running).await;
    sleep(lease + lease / 2).await;
    let job = broker.client.job(&id).await.unwrap();
    assert_eq!((job.state, job.attempt), (State::Running, 1));
    assert_eq!(job.progress.unwrap().as_str(), r#"{"done":1}"#);
    go_on.notify_one();
    broker.reaches(&id, State::Completed).await;
    working.stop().await;
}

/// A handler that waits to be cancelled, and tells why it was.
fn waiting(reasons: mpsc::UnboundedSender<CancelReason>) -> impl Fn(Job<u32>) -> Work {
    move |job: Job<u32>| {
        let reasons = reasons.clone();
        Box::pin(async move {
            let reason = job.cancelled().await;
            let _ = reasons.send(reason);
            match job.payload {
                0 => Err(Failure::from("given up")),
                _ => Ok(job.payload),
            }
        })
    }
}

type Work = std::pin::Pin<Box<dyn Future<Output = Result<u32, Failure>> + Send>>;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_stops_its_handler() {
    let broker = Broker::start().await;
    let (sender, mut reasons) = mpsc::unbounded_channel();
    let builder = Worker::builder(broker.client.clone()).handle("wait", waiting(sender));
    let working = Working::start(builder.lease(Duration::from_secs(6)));
    let gives_up = submit(&broker, NewJob::new("wait", &0)).await;
    let finishes = submit(&broker, NewJob::new("wait", &5)).await;
    for id in [&gives_up, &finishes] {
        broker.reaches(id, State::Running).await;
        assert!(broker.client.cancel(id).await.unwrap().cancel_requested);
    }
    for _ in 0..2 {
        let reason = timeout(PATIENCE, reasons.recv()).await.unwrap();
        assert_eq!(reason, Some(CancelReason::Cancelled));
    }
    let job = broker.reaches(&gives_up, State::Cancelled).await;
    assert_eq!(job.error.as_deref(), Some("given up"));
    let job = broker.reaches(&finishes, State::Completed).await;
    assert_eq!(job.result.unwrap().as_str(), "5", "done is done");
    working.stop().await;
}

/// A handler that takes longer to stop than its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_is_kept_until_its_handler_has_ended() {
    let broker = Broker::start().await;
    let (told, mut reasons) = mpsc::unbounded_channel();
    let go_on = Arc::new(Notify::new());
    let waits_for = go_on.clone();
    let handler = move |job: Job<u32>| {
        let (told, go_on) = (told.clone(), waits_for.clone());
        async move {
            if job.payload == 0 {
                let _ = told.send(job.cancelled().await);
                job.progress(&"cleaning up");
                go_on.notified().await;
            }
            Err::<(), _>(Failure::from("stopped"))
        }
    };
    let lease = Duration::from_secs(3);
    let builder = Worker::builder(broker.client.clone()).handle("wait", handler);
    let working = Working::start(builder.lease(lease).grace(PATIENCE * 10));
    let of_group = |payload| {
        let job = NewJob::new("wait", &payload).max_attempts(1);
        job.group("g").unique_key(format!("key-{payload}"))
    };
    let cancelled = submit(&broker, of_group(0)).await;
    let next = submit(&broker, of_group(1)).await;
    broker.reaches(&cancelled, State::Running).await;
    let asked = broker.client.cancel(&cancelled).await.unwrap();
    assert!(asked.cancel_requested);
    let reason = timeout(PATIENCE, reasons.recv()).await.unwrap();
    assert_eq!(reason, Some(CancelReason::Cancelled));

    sleep(lease * 2).await;
    let job = broker.client.job(&cancelled).await.unwrap();
    assert_eq!((job.state, job.attempt), (State::Running, 1));
    assert_eq!(job.progress.unwrap().as_str(), r#""cleaning up""#);
    let waits = broker.client.job(&next).await.unwrap();
    assert_eq!(waits.attempt, 0, "its turn comes when the other has ended");
    let again = broker.client.submit(of_group(0)).await.unwrap();
    assert_eq!(again.existing, Some(cancelled.clone()), "its key is taken");

    go_on.notify_one();
    let job = broker.reaches(&cancelled, State::Cancelled).await;
    assert_eq!(job.error.as_deref(), Some("stopped"));
    broker.reaches(&next, State::Dead).await;
    working.stop().await;
}

/// Most jobs find no room here. They are handed back, and are claimed again as room is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_room_is_handed_back_and_less_is_claimed() {
    const JOBS: usize = 12;
    const ROOM: usize = 3;
    let broker = Broker::start().await;
    let running = Arc::new(AtomicUsize::new(0));
    let refused = Arc::new(AtomicUsize::new(0));
    let (runs, refuses) = (running.clone(), refused.clone());
    let handler = move |_: Job<usize>| {
        let (running, refused) = (runs.clone(), refuses.clone());
        async move {
            if running.fetch_add(1, Ordering::SeqCst) >= ROOM {
                running.fetch_sub(1, Ordering::SeqCst);
                refused.fetch_add(1, Ordering::SeqCst);
                return Err(Failure::hand_back("no room"));
            }
            sleep(Duration::from_millis(300)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    };
    let jobs = (0..JOBS).map(|number| NewJob::new("room", &number).max_attempts(1));
    let submitted = broker.client.submit_all(jobs).await.unwrap();
    let builder = Worker::builder(broker.client.clone()).handle("room", handler);
    let working = Working::start(builder.concurrency(JOBS));
    for job in &submitted {
        let job = broker.reaches(&job.id, State::Completed).await;
        assert_eq!(job.attempt, 1);
    }
    let refused = refused.load(Ordering::SeqCst);
    // Those that were claimed together, and a few tries for more. Claimed again at once, it would be hundreds.
    assert!((1..JOBS * 3).contains(&refused), "{refused}");
    let summary = working.stop().await;
    assert_eq!(summary.completed, JOBS as u64);
    assert_eq!(summary.released, refused as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_claim_stops_its_handler_and_its_result_is_not_sent() {
    let broker = Broker::start().await;
    let (sender, mut reasons) = mpsc::unbounded_channel();
    let builder = Worker::builder(broker.client.clone())
        .handle("wait", waiting(sender))
        .lease(Duration::from_secs(6));
    let working = Working::start(builder.concurrency(1));
    let id = submit(&broker, NewJob::new("wait", &5)).await;
    let job = broker.reaches(&id, State::Running).await;
    // Somebody ends the claim behind the worker's back.
    let (_, token) = broker.handle.queue().holder(&id).unwrap().unwrap();
    let failed = Failed {
        claim: Claim {
            id: id.clone(),
            token,
            attempt: job.attempt,
        },
        error: "taken away".to_owned(),
        retry_in: Some(Duration::from_secs(3_600)),
        permanent: false,
    };
    broker.client.fail(failed).await.unwrap();
    let reason = timeout(PATIENCE, reasons.recv()).await.unwrap();
    assert_eq!(reason, Some(CancelReason::Lost));
    let summary = working.stop().await;
    assert_eq!((summary.completed, summary.lost), (0, 1));
    let job = broker.client.job(&id).await.unwrap();
    assert_eq!((job.state, job.result), (State::Scheduled, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_the_transaction_of_its_handler_has_completed_is_not_lost() {
    let broker = Broker::start().await;
    let (started, mut starts) = mpsc::unbounded_channel();
    let go_on = Arc::new(Notify::new());
    let told = go_on.clone();
    let handler = move |job: Job<u32>| {
        let (started, go_on) = (started.clone(), told.clone());
        async move {
            let _ = started.send(());
            go_on.notified().await;
            match (job.cancel_reason(), job.payload) {
                (None, result) => Ok::<u32, Failure>(result),
                (Some(reason), _) => Err(format!("{reason:?}").into()),
            }
        }
    };
    let (ends, mut ended) = mpsc::unbounded_channel();
    let builder = Worker::builder(broker.client.clone())
        .handle("work", handler)
        .on_event(move |event| {
            let _ = ends.send(matches!(event, WorkerEvent::Completed(_)));
        })
        .lease(Duration::from_secs(1));
    let working = Working::start(builder.concurrency(1));
    // The handler returns the same result as its transaction has told, and another one.
    for payload in [7, 8] {
        let id = submit(&broker, NewJob::new("work", &payload)).await;
        starts.recv().await.unwrap();
        assert_eq!(ended.recv().await, Some(false), "it is claimed");
        let (_, token) = broker.handle.queue().holder(&id).unwrap().unwrap();
        // As the relay of an outbox does it, beside the worker.
        let claim = Claim {
            id: id.clone(),
            token,
            attempt: 1,
        };
        let result = Payload::of(&7).ok();
        broker.client.complete(&claim, result).await.unwrap();
        // Several heartbeats later.
        sleep(Duration::from_secs(2)).await;
        go_on.notify_one();
        assert_eq!(ended.recv().await, Some(true), "{payload}");
        let job = broker.client.job(&id).await.unwrap();
        assert_eq!(job.state, State::Completed);
        assert_eq!(job.result.unwrap().as_str(), "7");
    }
    let summary = working.stop().await;
    assert_eq!((summary.completed, summary.failed, summary.lost), (2, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_lets_its_jobs_finish() {
    let broker = Broker::start().await;
    let (started, mut starts) = mpsc::unbounded_channel();
    let go_on = Arc::new(Notify::new());
    let told = go_on.clone();
    let handler = move |job: Job<u32>| {
        let (started, go_on) = (started.clone(), told.clone());
        async move {
            let _ = started.send(());
            go_on.notified().await;
            Ok::<u32, Failure>(job.payload)
        }
    };
    let builder = Worker::builder(broker.client.clone()).handle("slow", handler);
    let working = Working::start(builder.drain(PATIENCE));
    let id = submit(&broker, NewJob::new("slow", &1)).await;
    starts.recv().await.unwrap();
    working.stop.cancel();
    let left = submit(&broker, NewJob::new("slow", &2)).await;
    go_on.notify_one();
    assert_eq!(working.stop().await.completed, 1);
    broker.reaches(&id, State::Completed).await;
    broker.reaches(&left, State::Ready).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_finish_in_time_is_handed_back() {
    let broker = Broker::start().await;
    let (started, mut starts) = mpsc::unbounded_channel();
    // One that listens, and one that does not.
    let handler = move |job: Job<u32>| {
        let started = started.clone();
        async move {
            let _ = started.send(());
            match job.payload {
                0 => std::future::pending().await,
                _ => Err::<(), _>(Failure::from(format!("{:?}", job.cancelled().await))),
            }
        }
    };
    let builder = Worker::builder(broker.client.clone())
        .handle("endless", handler)
        // All slots are taken, so no claim waits that the server would have to hand back.
        .concurrency(2)
        .drain(PATIENCE * 10)
        .grace(Duration::from_millis(100));
    let working = Working::start(builder);
    // On their last attempt: a worker that stops must not be the death of them.
    let deaf = submit(&broker, NewJob::new("endless", &0).max_attempts(1)).await;
    let listens = submit(&broker, NewJob::new("endless", &1).max_attempts(1)).await;
    for _ in 0..2 {
        starts.recv().await.unwrap();
    }
    working.stop.cancel();
    working.worker.hand_back();
    let summary = working.stop().await;
    let expected = Summary {
        released: 2,
        ..Summary::default()
    };
    assert_eq!(summary, expected);
    for id in [deaf, listens] {
        let job = broker.client.job(&id).await.unwrap();
        assert_eq!((job.state, job.attempt, job.error), (State::Ready, 0, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_cancelled_is_not_handed_back() {
    let broker = Broker::start().await;
    let (started, mut starts) = mpsc::unbounded_channel();
    let handler = move |job: Job<u32>| {
        let started = started.clone();
        async move {
            let _ = started.send(());
            Err::<(), _>(Failure::from(format!("{:?}", job.cancelled().await)))
        }
    };
    let builder = Worker::builder(broker.client.clone())
        .handle("wait", handler)
        .concurrency(1)
        .drain(PATIENCE * 10)
        // No heartbeat tells of the cancellation before the worker stops.
        .lease(PATIENCE * 10);
    let working = Working::start(builder);
    let id = submit(&broker, NewJob::new("wait", &0)).await;
    // The broker says that it runs before the worker has heard of it.
    starts.recv().await.unwrap();
    working.stop.cancel();
    assert!(broker.client.cancel(&id).await.unwrap().cancel_requested);
    working.worker.hand_back();
    working.stop().await;
    let job = broker.client.job(&id).await.unwrap();
    assert_eq!(job.state, State::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_not_json_is_left_out_and_the_job_is_completed() {
    let broker = Broker::start().await;
    let handler = |_: Job<u8>| async {
        // JSON has no such keys.
        Ok::<_, Failure>(std::collections::BTreeMap::from([((1, 2), 3)]))
    };
    let builder = Worker::builder(broker.client.clone()).handle("odd", handler);
    let working = Working::start(builder);
    let id = submit(&broker, NewJob::new("odd", &0)).await;
    let job = broker.reaches(&id, State::Completed).await;
    assert_eq!((job.result, job.error), (None, None));
    assert_eq!(working.stop().await.completed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_too_large_is_left_out_and_the_job_is_completed() {
    let broker = Broker::start().await;
    let handler = |job: Job<usize>| async move { Ok::<_, Failure>("x".repeat(job.payload)) };
    let builder = Worker::builder(broker.client.clone()).handle("long", handler);
    let working = Working::start(builder);
    let jobs = [NewJob::new("long", &3), NewJob::new("long", &100_000)];
    let submitted = broker.client.submit_all(jobs).await.unwrap();
    broker.reaches(&submitted[0].id, State::Completed).await;
    let job = broker.reaches(&submitted[1].id, State::Completed).await;
    assert_eq!((job.result, job.error), (None, None));
    working.stop().await;
}

#[tokio::test]
async fn a_listener_hears_what_becomes_of_each_job() {
    let broker = Broker::start().await;
    let (sender, mut heard) = mpsc::unbounded_channel();
    let builder = Worker::builder(broker.client.clone()).handle("sum", add);
    let builder = builder.on_event(|_| panic!("a listener that fails changes nothing"));
    let working = Working::start(builder.on_event(move |event| {
        sender.send(event.clone()).unwrap();
    }));
    let mut next = async || timeout(PATIENCE, heard.recv()).await.unwrap().unwrap();
    let done = submit(
        &broker,
        NewJob::new(
            "sum",
            &Sum {
                numbers: vec![1, 2],
            },
        ),
    )
    .await;
    assert!(
        matches!(next().await, WorkerEvent::Claimed(attempt) if attempt.id == done && attempt.attempt == 1)
    );
    assert!(matches!(next().await, WorkerEvent::Completed(attempt) if attempt.id == done));
    let wrong = submit(&broker, NewJob::new("sum", &Sum { numbers: vec![] })).await;
    assert!(matches!(next().await, WorkerEvent::Claimed(attempt) if attempt.id == wrong));
    assert!(matches!(next().await, WorkerEvent::Failed(attempt) if attempt.id == wrong));
    assert_eq!(working.stop().await.completed, 1);
}
