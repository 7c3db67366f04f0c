//! Jobs that complete with the transaction of their effects.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::claims::rounds;
use super::*;
use tenure::core::queue::{Claim, ClaimRequest, Claimed, Completion, Job, Submitted};
use tenure::outbox::{End, Rejected, Submit};
use tenure::{ClaimError, ClaimFence, FencedJob};

impl Any {
    async fn complete(&mut self, job: &Claimed, result: Option<Payload>) {
        each_kind!(self, connection => job.complete(connection, result).await.unwrap());
    }

    async fn fence_of(&mut self, job: &Claimed) -> Result<(), ClaimError> {
        each_kind!(self, connection => job.fence(connection).await)
    }

    /// The effect of a job and its end, as a worker does it that may die before the commit and after it.
    async fn do_and_complete(&mut self, job: &Claimed, result: &str) {
        self.begin().await;
        self.fence_of(job).await.unwrap();
        let effect = format!("INSERT INTO effects VALUES ('{}')", job.id);
        self.run(&effect).await;
        self.complete(job, Some(Payload::new(result).unwrap()))
            .await;
    }

    async fn make_effects(&mut self) {
        self.run("CREATE TABLE effects (job VARCHAR(200) NOT NULL)")
            .await;
    }

    async fn waiting(&mut self) -> i64 {
        self.number("SELECT count(*) FROM tenure_outbox").await
    }
}

async fn submitted(home: &Home, id: &str) {
    let mut job = job(0);
    job.id = Some(JobId::new(id).unwrap());
    home.queue.submit(vec![job]).await.unwrap();
}

/// A claim with a lease that does not end in a test.
async fn claimed(home: &Home) -> Claimed {
    let mut request = ClaimRequest::new(Key::new("w").unwrap());
    request.lease_ms = 600_000;
    home.queue.claim(request).await.unwrap().remove(0)
}

async fn released(home: &Home, job: &Claimed) {
    let claim = Claim {
        id: job.id.clone(),
        token: job.token,
    };
    home.queue.release(vec![claim]).await.unwrap();
}

fn kept(home: &Home, id: &JobId) -> Job {
    home.queue.job(id).unwrap().unwrap()
}

fn result_of(job: &Job) -> Option<&str> {
    job.result.as_ref().map(Payload::as_str)
}

async fn all_told(any: &mut Any) {
    until("all rows are told", async || any.waiting().await == 0).await;
}

#[tokio::test]
async fn a_worker_that_dies_after_its_commit_has_completed_its_job() {
    for (ground, mut worker) in Ground::with_outbox().await {
        worker.make_effects().await;
        let home = Home::new().await;
        home.relay_to_queue(ground.database()).await;
        submitted(&home, "order-7").await;
        let job = claimed(&home).await;
        worker.do_and_complete(&job, r#"{"paid":  7}"#).await;
        worker.run("COMMIT").await;
        let is_completed = async || kept(&home, &job.id).state == State::Completed;
        until("the job is completed", is_completed).await;
        let kept = kept(&home, &job.id);
        assert_eq!(result_of(&kept), Some(r#"{"paid":  7}"#));
        assert_eq!(kept.attempt, 1, "{}", worker.engine());
        all_told(&mut worker).await;
        let status = ground.database().status().await.unwrap();
        assert_eq!(status.dead, 0, "{status:?}");
        home.end().await;
    }
}

#[tokio::test]
async fn what_is_rolled_back_completes_nothing() {
    for (ground, mut worker) in Ground::with_outbox().await {
        worker.make_effects().await;
        let home = Home::new().await;
        home.relay_to_queue(ground.database()).await;
        submitted(&home, "order-7").await;
        let job = claimed(&home).await;
        worker.do_and_complete(&job, "1").await;
        worker.run("ROLLBACK").await;
        for table in ["tenure_outbox", "tenure_claim_results", "tenure_claims"] {
            let rows = format!("SELECT count(*) FROM {table}");
            assert_eq!(worker.number(&rows).await, 0, "{table}");
        }
        // It can be done again, by the same claim.
        worker.do_and_complete(&job, "2").await;
        worker.run("COMMIT").await;
        all_told(&mut worker).await;
        assert_eq!(result_of(&kept(&home, &job.id)), Some("2"));
        // Without a fence before there is nothing to complete.
        worker.begin().await;
        submitted(&home, "order-8").await;
        let unfenced = claimed(&home).await;
        let refused =
            each_kind!(&mut worker, connection => unfenced.complete(connection, None).await);
        assert!(
            matches!(refused, Err(ClaimError::NoTransaction)),
            "{refused:?}"
        );
        worker.run("ROLLBACK").await;
        home.end().await;
    }
}

#[tokio::test]
async fn a_later_attempt_completes_the_job_with_the_result_of_the_first() {
    for (ground, mut worker) in Ground::with_outbox().await {
        worker.make_effects().await;
        let home = Home::new().await;
        home.queue.serving().await.unwrap();
        submitted(&home, "order-7").await;
        let late = claimed(&home).await;
        worker.do_and_complete(&late, r#""first""#).await;
        worker.run("COMMIT").await;
        // The claim is over, and the job runs again, before the relay comes to tell its end.
        released(&home, &late).await;
        let new = claimed(&home).await;
        home.relay_to_queue(ground.database()).await;
        all_told(&mut worker).await;
        let job = kept(&home, &new.id);
        assert_eq!(
            job.state,
            State::Running,
            "the old claim completes nothing: {job:?}"
        );
        worker.begin().await;
        let refused = worker.fence_of(&new).await.unwrap_err();
        worker.run("ROLLBACK").await;
        let ClaimError::Done { result, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!(result.as_ref().map(Payload::as_str), Some(r#""first""#));
        let completion = Completion {
            id: new.id.clone(),
            token: new.token,
            result,
        };
        home.queue.complete(vec![completion]).await.unwrap();
        assert_eq!(result_of(&kept(&home, &new.id)), Some(r#""first""#));
        assert_eq!(ground.database().status().await.unwrap().dead, 0);
        home.end().await;
    }
}

/// A way to the queue that loses the answers to ends.
#[derive(Clone)]
struct Lossy {
    queue: Queue,
    ends: Arc<AtomicUsize>,
    lost: usize,
}

impl Submit for Lossy {
    async fn submit(&self, jobs: Vec<Submission>) -> Result<Vec<Submitted>, Rejected> {
        Submit::submit(&self.queue, jobs).await
    }

    async fn complete(&self, claims: Vec<Completion>) -> Result<Vec<End>, Rejected> {
        let ends = Submit::complete(&self.queue, claims).await?;
        if self.ends.fetch_add(1, Ordering::Relaxed) < self.lost {
            let error = "the answer was lost".to_owned();
            return Err(Rejected::Unavailable { error });
        }
        // Also the second time it is answered that it is completed.
        assert!(ends.iter().all(|end| *end == End::Completed), "{ends:?}");
        Ok(ends)
    }
}

#[tokio::test]
async fn an_end_whose_answer_was_lost_is_told_again_and_answered_as_before() {
    for (ground, mut worker) in Ground::with_outbox().await {
        worker.make_effects().await;
        let home = Home::new().await;
        home.queue.serving().await.unwrap();
        let ends = Arc::new(AtomicUsize::new(0));
        let lossy = Lossy {
            queue: home.queue.clone(),
            ends: ends.clone(),
            lost: 3,
        };
        home.relay(ground.database(), ToQueue::new(lossy), brisk_options());
        submitted(&home, "order-7").await;
        let job = claimed(&home).await;
        worker.do_and_complete(&job, "7").await;
        worker.run("COMMIT").await;
        all_told(&mut worker).await;
        assert_eq!(ends.load(Ordering::Relaxed), 4);
        assert_eq!(result_of(&kept(&home, &job.id)), Some("7"));
        assert_eq!(home.queue.completed_total().unwrap(), 1);
        assert_eq!(ground.database().status().await.unwrap().dead, 0);
        home.end().await;
    }
}

#[tokio::test]
async fn ends_of_jobs_that_nobody_waits_for_are_done_with() {
    for (ground, mut worker) in Ground::with_outbox().await {
        worker.make_effects().await;
        let home = Home::new().await;
        home.queue.serving().await.unwrap();
        // One that was completed by its worker, with another result: whatever came first is kept.
        submitted(&home, "order-1").await;
        let told = claimed(&home).await;
        worker.do_and_complete(&told, "1").await;
        worker.run("COMMIT").await;
        let completion = Completion {
            id: told.id.clone(),
            token: told.token,
            result: None,
        };
        home.queue.complete(vec![completion]).await.unwrap();
        // One that was cancelled, and one that this queue does not know: that of another namespace, say.
        submitted(&home, "order-2").await;
        let cancelled = claimed(&home).await;
        worker.do_and_complete(&cancelled, "2").await;
        worker.run("COMMIT").await;
        released(&home, &cancelled).await;
        home.queue.cancel(vec![cancelled.id.clone()]).await.unwrap();
        let mut unknown = cancelled.clone();
        unknown.id = JobId::new("elsewhere").unwrap();
        worker.do_and_complete(&unknown, "3").await;
        worker.run("COMMIT").await;
        home.relay_to_queue(ground.database()).await;
        all_told(&mut worker).await;
        assert_eq!(result_of(&kept(&home, &told.id)), None);
        assert_eq!(kept(&home, &cancelled.id).state, State::Cancelled);
        assert_eq!(ground.database().status().await.unwrap().dead, 0);
        home.end().await;
    }
}

#[tokio::test]
async fn a_job_is_completed_without_a_result_that_is_too_large() {
    for (ground, mut worker) in Ground::with_outbox().await {
        worker.make_effects().await;
        let home = Home::new().await;
        home.queue.serving().await.unwrap();
        let mut jobs = BTreeMap::new();
        for id in ["small", "large", "last"] {
            submitted(&home, id).await;
            let job = claimed(&home).await;
            let size = if id == "large" { 100_000 } else { 10 };
            let result = format!("\"{}\"", "x".repeat(size));
            worker.do_and_complete(&job, &result).await;
            worker.run("COMMIT").await;
            jobs.insert(id, job);
        }
        home.relay_to_queue(ground.database()).await;
        all_told(&mut worker).await;
        for (id, job) in jobs {
            let kept = kept(&home, &job.id);
            assert_eq!(kept.state, State::Completed, "{id}");
            assert_eq!(kept.result.is_some(), id != "large", "{id}");
        }
        assert_eq!(ground.database().status().await.unwrap().dead, 0);
        home.end().await;
    }
}

#[tokio::test]
async fn an_end_that_says_nothing_sensible_goes_to_the_dead_table() {
    for (ground, mut any) in Ground::with_outbox().await {
        let group = match any {
            Any::MySql(_) => "group_key, group_position",
            _ => "group_key",
        };
        let in_group = if group == "group_key" {
            "'g'"
        } else {
            "'g', 1"
        };
        for (columns, values) in [
            ("payload", r"'{}'"),
            ("payload", r#"'{"token": "no"}'"#),
            ("payload", r#"'{"token": "1-2", "resutl": 1}'"#),
            ("priority, payload", r#"3, '{"token": "1-2"}'"#),
        ] {
            let statement = format!(
                "INSERT INTO tenure_outbox (id, type, {columns}) VALUES ('order-7', 'tenure/complete', {values})"
            );
            any.run(&statement).await;
        }
        let statement = format!(
            r#"INSERT INTO tenure_outbox (id, type, {group}, payload) VALUES ('order-7', 'tenure/complete', {in_group}, '{{"token": "1-2"}}')"#
        );
        any.run(&statement).await;
        let home = Home::new().await;
        home.relay_to_queue(ground.database()).await;
        all_told(&mut any).await;
        let dead = ground.database().dead(10).await.unwrap();
        let errors: Vec<&str> = dead.iter().map(|row| &*row.error).collect();
        assert_eq!(errors.len(), 5, "{errors:?}");
        for (error, says) in errors.iter().zip([
            "missing field `token`",
            "payload: ",
            "resutl",
            "priority",
            "group_key",
        ]) {
            assert!(error.contains(says), "{error}, and not {says}");
        }
        home.end().await;
    }
}

/// Notes what it is given.
#[derive(Clone, Default)]
struct Witness(Arc<Mutex<Vec<String>>>);

impl Handler for Witness {
    async fn handle(&self, row: &Row, _token: Token) -> Result<(), Failure> {
        self.0.lock().unwrap().push(row.id.clone());
        Ok(())
    }
}

#[tokio::test]
async fn a_handler_is_not_given_ends_of_claims() {
    for (ground, mut any) in Ground::with_outbox().await {
        any.make_effects().await;
        let home = Home::new().await;
        home.queue.serving().await.unwrap();
        submitted(&home, "order-7").await;
        let job = claimed(&home).await;
        any.do_and_complete(&job, "7").await;
        any.run("COMMIT").await;
        let mut mail = super::job(1);
        mail.id = Some(JobId::new("mail").unwrap());
        any.submit(mail).await;
        let witness = Witness::default();
        home.relay(
            ground.database(),
            Each::new(witness.clone()),
            brisk_options(),
        );
        all_told(&mut any).await;
        assert_eq!(*witness.0.lock().unwrap(), ["mail"], "{}", any.engine());
        let dead = ground.database().dead(10).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].id, "order-7");
        assert!(
            dead[0].error.contains("not delivered to a queue"),
            "{dead:?}"
        );
        home.end().await;
    }
}

/// Every way in which a worker may end or be late, one after the other, with the relay beside it.
#[tokio::test]
async fn jobs_that_complete_with_their_transaction_have_one_effect_and_its_result() {
    for (ground, mut worker) in Ground::with_outbox().await {
        worker.make_effects().await;
        let home = Home::new().await;
        home.relay_to_queue(ground.database()).await;
        for round in 0..rounds() {
            let id = format!("job-{round}");
            submitted(&home, &id).await;
            let job = claimed(&home).await;
            let result = round.to_string();
            match round % 4 {
                // Dies after the commit.
                0 => {
                    worker.do_and_complete(&job, &result).await;
                    worker.run("COMMIT").await;
                }
                // Dies before the commit; the next attempt does the work.
                1 => {
                    worker.do_and_complete(&job, "\"never\"").await;
                    worker.run("ROLLBACK").await;
                    released(&home, &job).await;
                    let next = claimed(&home).await;
                    worker.do_and_complete(&next, &result).await;
                    worker.run("COMMIT").await;
                }
                // Completes the job itself, beside the relay.
                2 => {
                    worker.do_and_complete(&job, &result).await;
                    worker.run("COMMIT").await;
                    let completion = Completion {
                        id: job.id.clone(),
                        token: job.token,
                        result: Some(Payload::new(&*result).unwrap()),
                    };
                    let ended = home.queue.complete(vec![completion]).await.unwrap();
                    assert_eq!(ended[0].outcome, Ok(()));
                }
                // Its claim is over by the time it commits, and the next attempt completes.
                _ => {
                    worker.do_and_complete(&job, &result).await;
                    released(&home, &job).await;
                    let next = claimed(&home).await;
                    worker.run("COMMIT").await;
                    let fence = ClaimFence::from(&next);
                    worker.begin().await;
                    let refused =
                        each_kind!(&mut worker, connection => fence.fence(connection).await);
                    worker.run("ROLLBACK").await;
                    let Err(ClaimError::Done { result, .. }) = refused else {
                        panic!("{refused:?}");
                    };
                    let completion = Completion {
                        id: next.id.clone(),
                        token: next.token,
                        result,
                    };
                    let ended = home.queue.complete(vec![completion]).await.unwrap();
                    assert_eq!(ended[0].outcome, Ok(()));
                }
            }
        }
        all_told(&mut worker).await;
        let rounds = rounds();
        for round in 0..rounds {
            let kept = kept(&home, &JobId::new(format!("job-{round}")).unwrap());
            assert_eq!(kept.state, State::Completed, "{round}");
            assert_eq!(result_of(&kept), Some(&*round.to_string()));
        }
        let effects = worker.number("SELECT count(*) FROM effects").await;
        let jobs = worker
            .number("SELECT count(DISTINCT job) FROM effects")
            .await;
        let rounds = i64::try_from(rounds).unwrap();
        assert_eq!((effects, jobs), (rounds, rounds), "{}", worker.engine());
        let dead = ground.database().dead(1).await.unwrap();
        assert!(dead.is_empty(), "{dead:?}");
        home.end().await;
    }
}

#[tokio::test]
async fn work_that_is_done_once_completes_its_job_and_its_result_is_not_lost() {
    let ground = Ground::sqlite().await;
    let home = Home::new().await;
    home.relay_to_queue(ground.database()).await;
    until("the tables are there", async || {
        ground.database().status().await.is_ok()
    })
    .await;
    submitted(&home, "order-7").await;
    let job = claimed(&home).await;
    let Any::Sqlite(mut connection) = ground.connect().await else {
        unreachable!("it is SQLite");
    };
    let fence = ClaimFence::from(&job);
    for value in ["1", "2"] {
        let work = async |_: &mut sqlx::SqliteConnection| {
            Ok::<_, ClaimError>(Some(Payload::new(value).unwrap()))
        };
        let result = fence.once_and_complete(&mut connection, work).await;
        assert_eq!(result.unwrap().unwrap().as_str(), "1");
    }
    let is_completed = async || kept(&home, &job.id).state == State::Completed;
    until("the job is completed", is_completed).await;
    assert_eq!(result_of(&kept(&home, &job.id)), Some("1"));
    home.end().await;
}

#[tokio::test]
async fn tables_of_an_earlier_version_are_added_to_and_do_without_results() {
    for (ground, mut any) in Ground::with_outbox().await {
        any.make_effects().await;
        any.run("DROP TABLE tenure_claim_results").await;
        let home = Home::new().await;
        home.queue.serving().await.unwrap();
        submitted(&home, "order-7").await;
        let job = claimed(&home).await;
        any.begin().await;
        any.fence_of(&job).await.unwrap();
        any.complete(&job, None).await;
        any.run("COMMIT").await;
        any.begin().await;
        let refused = any.fence_of(&job).await.unwrap_err();
        assert!(
            matches!(refused, ClaimError::Done { result: None, .. }),
            "{refused}"
        );
        any.run("ROLLBACK").await;
        home.relay_to_queue(ground.database()).await;
        all_told(&mut any).await;
        assert_eq!(kept(&home, &job.id).state, State::Completed);
        assert_eq!(
            any.number("SELECT count(*) FROM tenure_claim_results")
                .await,
            0,
            "the relay has made it"
        );
        // What is purged takes its result along.
        submitted(&home, "order-8").await;
        let next = claimed(&home).await;
        any.do_and_complete(&next, "8").await;
        any.run("COMMIT").await;
        let database = ground.database();
        database
            .purge_claims(Duration::from_secs(3600))
            .await
            .unwrap();
        let results = "SELECT count(*) FROM tenure_claim_results";
        assert_eq!(any.number(results).await, 1);
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let purged = database.purge_claims(Duration::from_secs(1)).await.unwrap();
        assert_eq!(purged, 2);
        assert_eq!(any.number(results).await, 0, "{}", any.engine());
        home.end().await;
    }
}
