//! The order within groups is that of commits.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use tenure_random::Random;

/// How many rows each of the writers commits.
const ROWS: usize = 150;
const WRITERS: u64 = 8;
const GROUPS: usize = 100;

/// Writers with long and short transactions, some rolled back. Each notes the order of a group's commits while it holds the group: its
/// counter is locked from the submit on, so a row of the user's own table, written after it, has the order.
#[tokio::test]
async fn groups_keep_the_order_of_commits_beside_eight_writers() {
    for (ground, mut any) in Ground::with_outbox().await {
        let home = Home::new().await;
        home.relay_to_queue(ground.database()).await;
        let committed = write_all(&ground, &mut any).await;
        until("all are enqueued", async || home.total() == committed).await;
        let jobs = home.jobs().into_iter();
        let order = jobs.map(|job| {
            let group = job.group.map(|group| group.to_string());
            (group, job.payload.read().unwrap())
        });
        check_order(&mut any, order.collect()).await;
        home.end().await;
    }
}

/// Takes rows one by one, and fails at every third call.
#[derive(Default)]
struct Flaky {
    calls: AtomicUsize,
    got: Mutex<Vec<(Option<String>, usize)>>,
}

impl Handler for Flaky {
    async fn handle(&self, row: &Row, _token: Token) -> Result<(), Failure> {
        if self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) {
            return Err("not now".into());
        }
        let number = row.job.as_ref().unwrap().payload.read().unwrap();
        self.got.lock().unwrap().push((row.group.clone(), number));
        Ok(())
    }
}

#[tokio::test]
async fn groups_keep_the_order_of_commits_though_handlers_fail() {
    for (ground, mut any) in Ground::with_outbox().await {
        let home = Home::new().await;
        let flaky = Arc::new(Flaky::default());
        let mut options = brisk_options();
        options.policy.attempts_max = u32::MAX;
        // Counters are dropped beside the writers, and begin anew.
        options.group_keep = Duration::from_millis(10);
        let relay = home.relay(ground.database(), Each::new(flaky.clone()), options);
        let committed = write_all(&ground, &mut any).await;
        // Each failure is written down by itself, which takes a while on a slow disk: as long as it goes on, it is waited for.
        let mut delivered = 0;
        while delivered < committed as u64 {
            until("more is delivered", async || {
                relay.metrics().delivered > delivered
            })
            .await;
            delivered = relay.metrics().delivered;
        }
        let order = flaky.got.lock().unwrap().clone();
        assert_eq!(order.len(), committed, "{}", any.engine());
        check_order(&mut any, order).await;
        home.end().await;
    }
}

/// Eight writers at once. How many rows they committed.
async fn write_all(ground: &Ground, any: &mut Any) -> usize {
    any.run("CREATE TABLE truth (name VARCHAR(20) PRIMARY KEY, number BIGINT NOT NULL)")
        .await;
    for group in 0..GROUPS {
        any.run(&format!("INSERT INTO truth VALUES ('g{group}', 0)"))
            .await;
    }
    let writers: Vec<_> = (0..WRITERS)
        .map(|seed| {
            let url = ground.url.clone();
            tokio::spawn(async move { write(&url, seed).await })
        })
        .collect();
    let mut committed = 0;
    for writer in writers {
        committed += writer.await.unwrap();
    }
    committed
}

/// Each group is complete, and in the order that its writers noted.
async fn check_order(any: &mut Any, order: Vec<(Option<String>, usize)>) {
    let mut next = BTreeMap::<String, usize>::new();
    for (group, number) in order {
        let Some(group) = group else { continue };
        let last = next.entry(group.clone()).or_default();
        assert_eq!(number, *last + 1, "in {group} on {}", any.engine());
        *last = number;
    }
    for (group, last) in next {
        let truth = any
            .number(&format!("SELECT number FROM truth WHERE name = '{group}'"))
            .await;
        assert_eq!(usize::try_from(truth).unwrap(), last);
    }
}

/// How many rows it committed.
async fn write(url: &str, seed: u64) -> usize {
    let mut random = Random::new(seed);
    let mut any = Any::connect(url).await;
    let mut committed = 0;
    for _ in 0..ROWS / 3 {
        any.begin().await;
        let group = format!("g{}", random.below(GROUPS as u64));
        let mut count = 0;
        // Without a group beside it: its number is taken before the group's turn comes.
        any.submit(job(0)).await;
        for _ in 0..1 + random.below(3) {
            // The number is only known when the group is ours: the first statement takes its lock.
            any.run(&format!(
                "UPDATE truth SET number = number + 1 WHERE name = '{group}'"
            ))
            .await;
            let number = any
                .number(&format!("SELECT number FROM truth WHERE name = '{group}'"))
                .await;
            any.submit(grouped(usize::try_from(number).unwrap(), &group))
                .await;
            count += 1;
        }
        if random.below(4) == 0 && any.engine() != "sqlite" {
            tokio::time::sleep(Duration::from_millis(random.below(30))).await;
        }
        if random.below(5) == 0 {
            any.run("ROLLBACK").await;
        } else {
            any.run("COMMIT").await;
            committed += count + 1;
        }
    }
    committed
}

/// The trap itself: a row with a lower number that commits behind one of its group that was delivered... cannot, since its transaction
/// waits for the group; and rows of other transactions that are still open hold nobody up.
#[tokio::test]
async fn an_open_transaction_holds_up_its_own_group_only() {
    for (ground, mut any) in Ground::with_outbox().await {
        if any.engine() == "sqlite" {
            // One writer at a time: nobody else could insert.
            continue;
        }
        let home = Home::new().await;
        let relay = home.relay_to_queue(ground.database()).await;
        let mut open = ground.connect().await;
        open.begin().await;
        open.submit_all(vec![job(1), grouped(2, "held")]).await;
        let mut second = ground.connect().await;
        second.begin().await;
        let waiting = tokio::spawn(async move {
            second.submit(grouped(3, "held")).await;
            second.run("COMMIT").await;
        });
        any.submit_all((10..20).map(job).collect()).await;
        any.submit_all((20..30).map(|number| grouped(number, "free")).collect())
            .await;
        until("the others are delivered", async || {
            relay.metrics().delivered == 20
        })
        .await;
        assert!(!waiting.is_finished());
        open.run("COMMIT").await;
        waiting.await.unwrap();
        until("all are delivered", async || {
            relay.metrics().delivered == 23
        })
        .await;
        let held = Key::new("held").unwrap();
        let order: Vec<usize> = home
            .jobs()
            .iter()
            .filter(|job| job.group.as_ref() == Some(&held))
            .map(|job| job.payload.read().unwrap())
            .collect();
        assert_eq!(order, [2, 3], "{}", any.engine());
        home.end().await;
    }
}
