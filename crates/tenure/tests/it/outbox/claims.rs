//! A worker that is paused in its transaction while its job runs again elsewhere.

use super::*;
use tenure::core::JobId;
use tenure::core::queue::{ClaimRequest, Claimed, Completion};
use tenure::{ClaimError, ClaimFence, FencedJob};

/// How often each way to be paused is tried; `TENURE_CLAIM_ROUNDS` for more.
pub(super) fn rounds() -> usize {
    std::env::var("TENURE_CLAIM_ROUNDS").map_or(12, |rounds| rounds.parse().unwrap())
}

impl Any {
    async fn fence(&mut self, claim: &ClaimFence) -> Result<(), ClaimError> {
        each_kind!(self, connection => claim.fence(connection).await)
    }

    /// By the job itself.
    async fn fence_job(&mut self, job: &Claimed) -> Result<(), ClaimError> {
        each_kind!(self, connection => job.fence(connection).await)
    }

    /// Whether this is the attempt that does the work.
    async fn once(&mut self, claim: &ClaimFence) -> Result<bool, ClaimError> {
        each_kind!(self, connection => {
            let done = claim.once(connection, async |_| Ok::<_, ClaimError>(())).await;
            done.map(|done| done.is_some())
        })
    }

    async fn finish(&mut self, claim: &ClaimFence) {
        each_kind!(self, connection => claim.finish(connection).await.unwrap());
    }
}

#[tokio::test]
async fn a_paused_worker_and_its_successor_have_one_effect() {
    for (ground, mut first) in Ground::with_outbox().await {
        first
            .run("CREATE TABLE effects (job VARCHAR(200) NOT NULL)")
            .await;
        let home = Home::new().await;
        home.queue.serving().await.unwrap();
        let mut second = ground.connect().await;
        for round in 0..rounds() {
            let (late, new) = two_claims(&home, round).await;
            let (old, new) = (ClaimFence::from(&late), ClaimFence::from(&new));
            let effect = format!("INSERT INTO effects VALUES ('{round}')");
            match round % 3 {
                // Paused before its transaction: the other has done it.
                0 => {
                    do_it(&mut second, &new, &effect).await;
                    first.begin().await;
                    let refused = first.fence(&old).await.unwrap_err();
                    assert!(matches!(refused, ClaimError::Done { .. }), "{refused}");
                    first.run("ROLLBACK").await;
                }
                // Paused before its transaction, and the other is not done: it may not begin.
                1 => {
                    second.begin().await;
                    second.fence(&new).await.unwrap();
                    second.run("COMMIT").await;
                    first.begin().await;
                    let refused = first.fence_job(&late).await.unwrap_err();
                    assert!(matches!(refused, ClaimError::Stale { .. }), "{refused}");
                    first.run("ROLLBACK").await;
                    do_it(&mut second, &new, &effect).await;
                }
                // Paused within its transaction: the other waits for it (in SQLite already to begin), and finds that it is done.
                _ => {
                    first.begin().await;
                    first.fence(&old).await.unwrap();
                    first.run(&effect).await;
                    let url = ground.url.clone();
                    let waiting = tokio::spawn(async move {
                        let mut second = Any::connect(&url).await;
                        second.begin().await;
                        second.fence(&new).await
                    });
                    tokio::task::yield_now().await;
                    assert!(!waiting.is_finished());
                    first.finish(&old).await;
                    first.run("COMMIT").await;
                    let refused = waiting.await.unwrap().unwrap_err();
                    assert!(matches!(refused, ClaimError::Done { .. }), "{refused}");
                }
            }
        }
        let effects = first.number("SELECT count(*) FROM effects").await;
        let jobs = first
            .number("SELECT count(DISTINCT job) FROM effects")
            .await;
        let rounds = i64::try_from(rounds()).unwrap();
        assert_eq!((effects, jobs), (rounds, rounds), "{}", first.engine());

        let (old, _) = two_claims(&home, usize::MAX).await;
        let refused = first.fence(&ClaimFence::from(&old)).await.unwrap_err();
        assert!(matches!(refused, ClaimError::NoTransaction), "{refused}");
        home.end().await;
    }
}

/// In MariaDB the two that wait for the row of a third block each other when it is rolled back.
#[tokio::test]
async fn of_two_attempts_that_wait_for_a_third_one_does_the_work() {
    for (ground, mut first) in Ground::with_outbox().await {
        for round in 0..4 {
            let claim = |number: u32| {
                let id = JobId::new(format!("job-{round}")).unwrap();
                let token = format!("{number}-0badc0de").parse().unwrap();
                ClaimFence::new(id, token, Duration::from_secs(30))
            };
            first.begin().await;
            first.fence(&claim(1)).await.unwrap();
            let (mut second, mut third) = (ground.connect().await, ground.connect().await);
            let rolled_back = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                first.run("ROLLBACK").await;
            };
            let (two, three) = (claim(2), claim(3));
            let (two, three, ()) = tokio::join!(second.once(&two), third.once(&three), rolled_back);
            let mut done = 0;
            for attempt in [two, three] {
                match attempt {
                    Ok(now) => done += usize::from(now),
                    Err(ClaimError::Stale { .. }) => {}
                    Err(error) => panic!("{}: {error:?}", first.engine()),
                }
            }
            assert_eq!(done, 1, "{}", first.engine());
        }
    }
}

async fn do_it(any: &mut Any, claim: &ClaimFence, effect: &str) {
    any.begin().await;
    any.fence(claim).await.unwrap();
    any.run(effect).await;
    any.finish(claim).await;
    any.run("COMMIT").await;
}

/// Two claims of one job: the first was lost.
async fn two_claims(home: &Home, round: usize) -> (Claimed, Claimed) {
    home.queue.submit(vec![job(round)]).await.unwrap();
    let claim = async || {
        let request = ClaimRequest::new(Key::new("w").unwrap());
        home.queue.claim(request).await.unwrap().remove(0)
    };
    let old = claim().await;
    let held = tenure::core::queue::Claim {
        id: old.id.clone(),
        token: old.token,
    };
    home.queue.release(vec![held]).await.unwrap();
    let new = claim().await;
    assert!(new.token.number > old.token.number && new.id == old.id);
    let done = Completion {
        id: new.id.clone(),
        token: new.token,
        result: None,
    };
    home.queue.complete(vec![done]).await.unwrap();
    (old, new)
}

#[tokio::test]
async fn work_that_is_done_once_is_not_done_again() {
    let ground = Ground::sqlite().await;
    ground.database().create().await.unwrap();
    let home = Home::new().await;
    home.queue.serving().await.unwrap();
    let (old, new) = two_claims(&home, 0).await;
    let Any::Sqlite(mut connection) = ground.connect().await else {
        unreachable!("it is SQLite");
    };
    let work = async |_: &mut sqlx::SqliteConnection| Ok::<_, ClaimError>(7);
    let first = ClaimFence::from(&old).once(&mut connection, work).await;
    assert_eq!(first.unwrap(), Some(7));
    let second = ClaimFence::from(&new).once(&mut connection, work).await;
    assert_eq!(second.unwrap(), None);
    home.end().await;
}

/// Paused within its transaction for longer than its lease: the server cuts it off, the job runs elsewhere, and when it wakes up
/// nothing of what it wrote is there.
#[tokio::test]
async fn a_worker_that_sleeps_in_its_transaction_is_cut_off_and_has_no_effect() {
    for (ground, mut sleeper) in Ground::with_outbox().await {
        if sleeper.engine() == "sqlite" {
            // It has no server: the file is locked until the process goes on or ends.
            continue;
        }
        sleeper
            .run("CREATE TABLE effects (job VARCHAR(200) NOT NULL)")
            .await;
        let home = Home::new().await;
        home.queue.serving().await.unwrap();
        let (mut late, new) = two_claims(&home, 0).await;
        late.lease_ms = 1_000;
        sleeper.begin().await;
        sleeper.fence(&ClaimFence::from(&late)).await.unwrap();
        sleeper.run("INSERT INTO effects VALUES ('sleeper')").await;
        // It waits for as long as the server lets the other sleep.
        let mut second = ground.connect().await;
        do_it(
            &mut second,
            &ClaimFence::from(&new),
            "INSERT INTO effects VALUES ('second')",
        )
        .await;
        let woken = sleeper.try_run("COMMIT").await;
        let statement = "SELECT count(*) FROM effects WHERE job = 'sleeper'";
        assert_eq!(second.number(statement).await, 0, "{woken:?}");
        let all = second.number("SELECT count(*) FROM effects").await;
        assert_eq!(all, 1, "{}", second.engine());
        home.end().await;
    }
}
