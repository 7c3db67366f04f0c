//! Relays that fail, are replaced, or meet rows that cannot be delivered.

use super::*;

#[tokio::test]
async fn a_poison_row_goes_to_the_dead_table_and_holds_up_its_group_only() {
    for (ground, mut any) in Ground::with_outbox().await {
        // Written by another program: no name of a type.
        let (column, position) = match any {
            Any::MySql(_) => (", group_position", ", 1"),
            _ => ("", ""),
        };
        if let Any::MySql(_) = any {
            any.run("INSERT INTO tenure_outbox_groups VALUES ('sick', 1)")
                .await;
        }
        any.run(&format!(
            "INSERT INTO tenure_outbox (type, group_key{column}) VALUES ('no such type', 'sick'{position})"
        ))
        .await;
        any.submit_all(vec![grouped(1, "sick"), grouped(2, "well"), job(3)])
            .await;
        let home = Home::new().await;
        let relay = home.relay_to_queue(ground.database()).await;
        until("the rest is enqueued", async || home.total() == 3).await;
        until("it is dead", async || relay.metrics().died == 1).await;
        let dead = ground.database().dead(10).await.unwrap();
        assert_eq!(dead.len(), 1, "{}", any.engine());
        assert!(dead[0].error.contains("type:"), "{dead:?}");
        assert_eq!(dead[0].group.as_deref(), Some("sick"));

        // Mended, it is delivered.
        any.run("UPDATE tenure_outbox_dead SET type = 'work'").await;
        let ids = Which::Ids(vec![dead[0].id.clone()]);
        assert_eq!(ground.database().retry(&ids).await.unwrap(), 1);
        until("it is enqueued", async || home.total() == 4).await;
        assert_eq!(ground.database().status().await.unwrap().dead, 0);
        home.end().await;
    }
}

#[tokio::test]
async fn dead_rows_are_purged_by_id_by_age_and_all() {
    for (ground, mut any) in Ground::with_outbox().await {
        for id in ["a", "b", "c"] {
            any.run(&format!(
                "INSERT INTO tenure_outbox (type, id) VALUES ('!', '{id}')"
            ))
            .await;
        }
        let home = Home::new().await;
        let relay = home.relay_to_queue(ground.database()).await;
        until("all are dead", async || relay.metrics().died == 3).await;
        let database = ground.database();
        let purge = async |which| database.purge(&which).await.unwrap();
        assert_eq!(purge(Which::Ids(vec![])).await, 0);
        assert_eq!(
            purge(Which::Ids(vec!["a".to_owned(), "x".to_owned()])).await,
            1
        );
        assert_eq!(purge(Which::OlderThan(Duration::from_secs(3600))).await, 0);
        assert_eq!(purge(Which::All).await, 2);
        assert_eq!(
            database.purge_claims(Duration::from_secs(1)).await.unwrap(),
            0
        );
        home.end().await;
    }
}

#[tokio::test]
async fn more_claims_are_purged_than_one_statement_deletes() {
    for (ground, mut any) in Ground::with_outbox().await {
        let digits = "(SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 \
             UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)";
        let (name, old) = match any {
            Any::MySql(_) => (
                "CONCAT(a.n, b.n, c.n, d.n, e.n)",
                "UTC_TIMESTAMP(6) - INTERVAL 1 DAY",
            ),
            Any::Postgres(_) => (
                "concat(a.n, b.n, c.n, d.n, e.n)",
                "clock_timestamp() - interval '1 day'",
            ),
            Any::Sqlite(_) => ("a.n || b.n || c.n || d.n || e.n", "julianday('now') - 1"),
        };
        any.run(&format!(
            "INSERT INTO tenure_claims (job, claim, seen_at) SELECT {name}, 1, {old} \
             FROM {digits} a, {digits} b, {digits} c, {digits} d, (SELECT 0 AS n UNION SELECT 1) e"
        ))
        .await;
        any.run("INSERT INTO tenure_claims (job, claim) VALUES ('new', 1)")
            .await;
        let hour = Duration::from_secs(3600);
        let purged = ground.database().purge_claims(hour).await.unwrap();
        assert_eq!(purged, 20_000, "{}", any.engine());
        assert_eq!(any.number("SELECT count(*) FROM tenure_claims").await, 1);
    }
}

/// Keeps what it is given, in order, and fails as told.
#[derive(Default)]
struct Keeper {
    got: Mutex<Vec<(Option<String>, usize)>>,
    tokens: Mutex<BTreeSet<Token>>,
    /// Fails each row this often.
    fails: u32,
    /// Never takes rows of this group.
    poison: Option<&'static str>,
}

impl Handler for Keeper {
    async fn handle(&self, row: &Row, token: Token) -> Result<(), Failure> {
        if row.attempts < self.fails || (row.group.is_some() && row.group.as_deref() == self.poison)
        {
            return Err("not now".into());
        }
        let number = row.job.as_ref().unwrap().payload.read().unwrap();
        self.got.lock().unwrap().push((row.group.clone(), number));
        self.tokens.lock().unwrap().insert(token);
        Ok(())
    }
}

#[tokio::test]
async fn a_handler_gets_groups_in_order_though_each_row_fails_twice() {
    for (ground, mut any) in Ground::with_outbox().await {
        let jobs = (0..60).map(|number| grouped(number, &format!("g{}", number % 5)));
        any.submit_all(jobs.collect()).await;
        any.submit_all((100..110).map(job).collect()).await;
        let home = Home::new().await;
        let keeper = Arc::new(Keeper {
            fails: 2,
            ..Keeper::default()
        });
        let events = Arc::new(Mutex::new(BTreeMap::<&str, usize>::new()));
        let seen = events.clone();
        let mut options = brisk_options();
        options.observer = Observer::new(move |event| {
            let name = match event {
                Event::Delivering { .. } => "delivering",
                Event::Delivered { .. } => "delivered",
                Event::Failed { dead: false, .. } => "failed",
                _ => "other",
            };
            *seen.lock().unwrap().entry(name).or_default() += 1;
        });
        home.relay(ground.database(), Each::new(keeper.clone()), options);
        until("all are delivered", async || {
            keeper.got.lock().unwrap().len() == 70
        })
        .await;
        until("all are deleted", async || {
            any.number("SELECT count(*) FROM tenure_outbox").await == 0
        })
        .await;
        let got = keeper.got.lock().unwrap().clone();
        for group in 0..5 {
            let name = format!("g{group}");
            let of_group = got
                .iter()
                .filter(|(group, _)| group.as_ref() == Some(&name));
            let numbers: Vec<usize> = of_group.map(|(_, number)| *number).collect();
            assert!(numbers.is_sorted() && numbers.len() == 12, "{numbers:?}");
        }
        let tokens = keeper.tokens.lock().unwrap().clone();
        assert_eq!(tokens.len(), 1);
        assert!(tokens.first().unwrap().takeover == 1);
        // They are told after it is written down.
        until("all is told", async || {
            events.lock().unwrap().get("delivered") == Some(&70)
        })
        .await;
        let events = events.lock().unwrap().clone();
        assert_eq!(
            (events["delivered"], events["failed"]),
            (70, 140),
            "{events:?}"
        );
        // Also of those that waited for one before them.
        assert!(events["delivering"] >= 210, "{events:?}");
        home.end().await;
    }
}

#[tokio::test]
async fn an_observer_is_told_of_each_job_that_is_submitted() {
    let ground = Ground::sqlite().await;
    ground.database().create().await.unwrap();
    let Any::Sqlite(mut connection) = ground.connect().await else {
        unreachable!("it is SQLite");
    };
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = told.clone();
    let outbox = Outbox::default().with_observer(Observer::new(move |event| match event {
        Event::Enqueued { id } => seen.lock().unwrap().push(id.clone()),
        other => panic!("{other:?}"),
    }));
    let jobs = vec![grouped(1, "b"), grouped(2, "a"), job(3)];
    let ids = outbox.submit_all(&mut connection, jobs).await.unwrap();
    assert_eq!(*told.lock().unwrap(), ids);
}

/// Beside one group that always fails and has many rows, no other row waits for a second. `make bench-outbox` holds a thousand times as
/// many to it.
#[tokio::test]
async fn a_group_that_always_fails_starves_nobody() {
    for (ground, mut any) in Ground::with_outbox().await {
        any.submit_all((0..3000).map(|number| grouped(number, "poison")).collect())
            .await;
        let lags = Arc::new(Mutex::new(Vec::new()));
        let seen = lags.clone();
        let home = Home::new().await;
        let keeper = Arc::new(Keeper {
            poison: Some("poison"),
            ..Keeper::default()
        });
        let mut options = brisk_options();
        options.policy.attempts_max = u32::MAX;
        options.observer = Observer::new(move |event| {
            if let Event::Delivered { lag, .. } = event {
                seen.lock().unwrap().push(*lag);
            }
        });
        let relay = home.relay(ground.database(), Each::new(keeper.clone()), options);
        until("it has failed", async || relay.metrics().failed > 3).await;
        any.submit_all(
            (0..20)
                .map(|number| grouped(number, &format!("g{number}")))
                .collect(),
        )
        .await;
        // Counted when their rows are deleted: the handler has them before that.
        until("others are delivered", async || {
            relay.metrics().delivered == 20
        })
        .await;
        assert_eq!(keeper.got.lock().unwrap().len(), 20);
        assert_eq!(ground.database().status().await.unwrap().waiting, 3000);
        // The median, since a machine that is busy with other tests may stop for longer.
        let mut lags = lags.lock().unwrap().clone();
        lags.sort();
        let engine = any.engine();
        assert!(
            lags[lags.len() / 2] < Duration::from_secs(1),
            "{engine}: {lags:?}"
        );
        home.end().await;
    }
}

/// Stops in the middle of its first delivery until it is let go.
struct Gate {
    queue: Queue,
    arrived: Arc<Notify>,
    go: Arc<Notify>,
    done: Arc<Notify>,
}

impl Deliver for Gate {
    async fn deliver(&self, rows: &[Row], token: Token) -> Vec<Outcome> {
        self.arrived.notify_one();
        self.go.notified().await;
        let outcomes = ToQueue::new(self.queue.clone()).deliver(rows, token).await;
        self.done.notify_one();
        outcomes
    }
}

#[tokio::test]
async fn a_relay_that_was_replaced_while_it_slept_delivers_nothing_twice_and_changes_nothing() {
    for (ground, mut any) in Ground::with_outbox().await {
        any.submit_all((0..50).map(|number| grouped(number, "g")).collect())
            .await;
        any.run("INSERT INTO tenure_outbox (type) VALUES ('!')")
            .await;
        let store = Arc::new(Memory::new());
        let home = Home::on(&store, "a").await;
        home.queue.serving().await.unwrap();
        let (arrived, go, done) = (Arc::default(), Arc::default(), Arc::default());
        let gate = Gate {
            queue: home.queue.clone(),
            arrived: Arc::clone(&arrived),
            go: Arc::clone(&go),
            done: Arc::clone(&done),
        };
        let sleeper = home.relay(ground.database(), gate, brisk_options());
        arrived.notified().await;

        // Its successor: the same daemon, offered under its name by another node, as if the first were lost.
        let other = Home::on(&Arc::new(Memory::new()), "b").await;
        let refused = other.relay(
            ground.database(),
            ToQueue::new(home.queue.clone()),
            brisk_options(),
        );
        until("it is refused", async || refused.metrics().refused > 1).await;
        let owner = ground.database().status().await.unwrap().owner;
        assert_eq!(owner.as_deref(), Some("outbox/outbox:default"));
        assert_eq!(ground.database().status().await.unwrap().takeover, 1);
        assert_eq!(refused.metrics().delivered, 0);
        ground.database().release().await.unwrap();
        until("it has delivered", async || {
            any.number("SELECT count(*) FROM tenure_outbox").await == 0
        })
        .await;
        assert_eq!(home.total(), 50);
        assert_eq!(ground.database().status().await.unwrap().dead, 1);

        go.notify_one();
        done.notified().await;
        until("the first has noticed", async || !sleeper.metrics().running).await;
        assert_eq!(sleeper.metrics().delivered, 0);
        let order: Vec<usize> = home
            .jobs()
            .iter()
            .map(|job| job.payload.read().unwrap())
            .collect();
        assert_eq!(order, (0..50).collect::<Vec<_>>(), "{}", any.engine());
        other.end().await;
        home.end().await;
    }
}

#[tokio::test]
async fn rows_wait_while_nobody_takes_them_and_none_dies() {
    for (ground, mut any) in Ground::with_outbox().await {
        let home = Home::new().await;
        let relay = home.relay_to_queue(ground.database()).await;
        until("it runs", async || relay.metrics().running).await;
        home.queue.close().await;
        any.submit_all((0..10).map(|number| grouped(number, "g")).collect())
            .await;
        until("it has tried more often than a row may fail", async || {
            relay.metrics().unavailable > 5
        })
        .await;
        let status = ground.database().status().await.unwrap();
        assert_eq!((status.waiting, status.failing, status.dead), (10, 0, 0));
        home.node.shutdown().await;
    }
}
