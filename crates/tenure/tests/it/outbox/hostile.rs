//! Rows that somebody inserted who knows nothing of jobs, or wishes us ill.

use super::*;
use tenure::core::queue::Limits;

/// Rows that are no jobs, in words of this engine: the columns without `type`, the values, and what is said of each.
fn hostile(any: &Any) -> Vec<(&'static str, String, &'static str)> {
    let mut rows = vec![
        ("", "'no such type'".to_owned(), "type:"),
        (", id", "'x', 'a b'".to_owned(), "id:"),
        (", id", "'x', ''".to_owned(), "id:"),
        (", priority", "'x', 999".to_owned(), "priority:"),
        (", run_at", "'x', -1".to_owned(), "run_at:"),
        (", max_attempts", "'x', 0".to_owned(), "max_attempts"),
        (
            ", backoff",
            r#"'x', '{"unknown": 1}'"#.to_owned(),
            "backoff: there is no option",
        ),
        (", traceparent", "'x', 'y'".to_owned(), "traceparent:"),
    ];
    // MariaDB refuses more than 32 levels at the insert.
    if !matches!(any, Any::MySql(_)) {
        let deep = format!("'x', '{}'", deep());
        rows.push((", payload", deep, "payload is nested"));
    }
    let long = |text: &str| format!("'x', {text}");
    match any {
        Any::MySql(_) => {
            rows.push((
                ", tracestate",
                long("REPEAT('y', 50000)"),
                "tracestate: has more than",
            ));
            // A time that is none.
            rows.push((", created_at", "'!', '0000-00-00'".to_owned(), "type:"));
        }
        Any::Postgres(_) => {
            let long = long("repeat('y', 100000)");
            for (column, said) in [
                (", id", "id: has more than"),
                (", group_key", "group_key: has more than"),
                (", tracestate", "tracestate: has more than"),
            ] {
                rows.push((column, long.clone(), said));
            }
            rows.push((", created_at", "'!', 'infinity'".to_owned(), "type:"));
        }
        Any::Sqlite(_) => {
            let long = long("hex(zeroblob(250000))");
            for (column, said) in [
                (", id", "id: has more than"),
                (", group_key", "group_key: has more than"),
                (", tracestate", "tracestate: has more than"),
            ] {
                rows.push((column, long.clone(), said));
            }
            for column in [", id", ", group_key", ", unique_key"] {
                let bytes = "'x', CAST(x'ff41' AS TEXT)".to_owned();
                rows.push((column, bytes, "is not valid UTF-8"));
            }
            let bytes = "CAST(x'ff41' AS TEXT)".to_owned();
            rows.push(("", bytes, "type: is not valid UTF-8"));
            // The part before the zero is a name, and the whole is none.
            rows.push((", id", "'x', 'a' || char(0)".to_owned(), "id:"));
        }
    }
    rows
}

/// Valid JSON that few parsers take.
fn deep() -> String {
    format!("{}{}", "[".repeat(500), "]".repeat(500))
}

#[tokio::test]
async fn hostile_rows_die_one_by_one_and_cost_their_neighbours_nothing() {
    for (ground, mut any) in Ground::with_outbox().await {
        let hostile = hostile(&any);
        if let Any::MySql(_) = any {
            any.run("SET sql_mode = ''").await;
        }
        any.submit_all((0..500).map(job).collect()).await;
        for (column, values, _) in &hostile {
            any.run(&format!(
                "INSERT INTO tenure_outbox (type{column}) VALUES ({values})"
            ))
            .await;
        }
        let in_group = (500..600).map(|number| grouped(number, "g"));
        any.submit_all(in_group.collect()).await;
        let home = Home::new().await;
        let relay = home.relay_to_queue(ground.database()).await;
        until("the others are enqueued", async || home.total() == 600).await;
        until("they are dead", async || {
            relay.metrics().died == hostile.len() as u64
        })
        .await;
        assert_eq!(relay.metrics().unavailable, 0, "{}", any.engine());
        let dead = ground.database().dead(100).await.unwrap();
        let said: Vec<(&str, &str)> = dead
            .iter()
            .zip(&hostile)
            .map(|(dead, (_, _, said))| (dead.error.as_str(), *said))
            .collect();
        assert_eq!(said.len(), hostile.len());
        for (error, said) in said {
            assert!(error.contains(said), "{}: {error}: {said}", any.engine());
        }
        let status = ground.database().status().await.unwrap();
        assert_eq!(status.waiting, 0);
        home.end().await;
    }
}

#[tokio::test]
async fn a_row_whose_type_has_no_room_holds_up_its_group_only() {
    let ground = Ground::sqlite().await;
    ground.database().create().await.unwrap();
    let mut any = ground.connect().await;
    let home = Home::with_limits(Limits {
        types_max: 1,
        ..Limits::default()
    })
    .await;
    home.queue.serving().await.unwrap();
    home.queue.submit(vec![job(0)]).await.unwrap();
    let of_type = |number, name| {
        let mut job = grouped(number, "g");
        job.job_type = JobType::new(name).unwrap();
        job
    };
    // Two of them: among themselves, too, they are told what it is.
    any.submit_all(vec![
        of_type(1, "new"),
        grouped(2, "g"),
        grouped(3, "free"),
        job(4),
    ])
    .await;
    let mut second = job(5);
    second.job_type = JobType::new("other").unwrap();
    any.submit(second).await;
    let relay = home.relay_to_queue(ground.database()).await;
    until("the others are enqueued", async || home.total() == 3).await;
    let numbers = |home: &Home| -> Vec<usize> {
        let jobs = home.jobs();
        jobs.iter().map(|job| job.payload.read().unwrap()).collect()
    };
    assert_eq!(numbers(&home), [0, 4, 3], "2 waits for 1");
    until("they are dead", async || relay.metrics().died == 2).await;
    until("its group goes on", async || home.total() == 4).await;
    assert_eq!(relay.metrics().unavailable, 0, "nobody else had to wait");
    home.end().await;
}

/// Takes rows when it is there.
#[derive(Default)]
struct Away {
    is_there: std::sync::atomic::AtomicBool,
}

impl Handler for Away {
    async fn handle(&self, _row: &Row, _token: Token) -> Result<(), Failure> {
        if self.is_there.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(());
        }
        Err(Failure::unavailable("not there"))
    }
}

#[tokio::test]
async fn a_handlers_target_that_is_away_costs_no_attempt() {
    let ground = Ground::sqlite().await;
    ground.database().create().await.unwrap();
    let mut any = ground.connect().await;
    any.submit_all(vec![job(0), grouped(1, "g"), grouped(2, "g")])
        .await;
    let home = Home::new().await;
    let away = Arc::new(Away::default());
    let relay = home.relay(ground.database(), Each::new(away.clone()), brisk_options());
    until("it was tried more often than a row may fail", async || {
        relay.metrics().unavailable > 6
    })
    .await;
    let status = ground.database().status().await.unwrap();
    assert_eq!((status.waiting, status.failing, status.dead), (3, 0, 0));
    away.is_there
        .store(true, std::sync::atomic::Ordering::Relaxed);
    until("all are delivered", async || relay.metrics().delivered == 3).await;
    home.end().await;
}

/// Takes its time.
struct Slow;

impl Deliver for Slow {
    async fn deliver(&self, rows: &[Row], _token: Token) -> Vec<Outcome> {
        tokio::time::sleep(Duration::from_millis(20)).await;
        vec![Outcome::Delivered; rows.len()]
    }
}

#[tokio::test]
async fn what_waits_is_told_while_there_is_more_than_can_be_delivered() {
    let ground = Ground::sqlite().await;
    ground.database().create().await.unwrap();
    let mut any = ground.connect().await;
    any.submit_all((0..2_000).map(job).collect()).await;
    let home = Home::new().await;
    let mut options = brisk_options();
    options.policy.batch_max = 5;
    let relay = home.relay(ground.database(), Slow, options);
    until("it is told", async || relay.metrics().status.is_some()).await;
    let metrics = relay.metrics();
    assert!(metrics.delivered < 2_000, "too late: {metrics:?}");
    assert!(metrics.status.unwrap().waiting > 1_000);
    home.end().await;
}

/// Large rows are read a few at a time, not a thousand of which all but a few are left behind.
#[tokio::test]
async fn large_rows_come_through() {
    for (ground, mut any) in Ground::with_outbox().await {
        let large = |number: usize| {
            let mut job = grouped(number, &format!("g{}", number % 3));
            job.payload = Payload::new(format!("\"{number}{}\"", "x".repeat(200_000))).unwrap();
            job
        };
        for from in (0..60).step_by(20) {
            any.submit_all((from..from + 20).map(large).collect()).await;
        }
        let home = Home::new().await;
        home.relay_to_queue(ground.database()).await;
        until("all are enqueued", async || home.total() == 60).await;
        home.end().await;
    }
}

/// The server closes all connections and lets nobody in for a moment, as a restart does.
#[tokio::test]
async fn after_a_restart_of_postgres_the_relay_listens_again() {
    let Some(server) = url("TENURE_TEST_POSTGRES") else {
        return;
    };
    let ground = Ground::on_server(&server).await;
    ground.database().create().await.unwrap();
    let name = ground.url.rsplit_once('/').unwrap().1.to_owned();
    let mut root = Any::connect(&server).await;
    let home = Home::new().await;
    home.queue.serving().await.unwrap();
    // With its usual waits: in brisk ones it has no time to find that it cannot listen.
    let deliver = ToQueue::new(home.queue.clone());
    let relay = home.relay(ground.database(), deliver, Options::default());
    let listeners = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND query ILIKE 'LISTEN%'"
    );
    until("it listens", async || root.number(&listeners).await == 1).await;
    // It finds out that it cannot listen while it waits.
    let busy = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND clock_timestamp() - query_start < interval '300 ms'"
    );
    until("it waits", async || root.number(&busy).await == 0).await;
    root.run(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        .await;
    root.run(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    ))
    .await;
    // More than once: what listened has found no other connection either.
    until("it has noticed", async || relay.metrics().unavailable > 3).await;
    root.run(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
        .await;
    until("it listens again", async || {
        root.number(&listeners).await == 1
    })
    .await;
    home.end().await;
}

/// Somebody looks at the figures just then.
#[tokio::test]
async fn what_waits_grows_older_while_the_database_is_away() {
    let away = Duration::from_millis(1_500);
    for (ground, mut any) in Ground::with_outbox().await {
        any.submit_all(vec![job(1)]).await;
        let home = Home::new().await;
        let relay = home.relay(
            ground.database(),
            Each::new(Arc::new(Away::default())),
            brisk_options(),
        );
        let oldest = || relay.metrics().status.and_then(|status| status.oldest_ms);
        until("it waits", async || oldest().is_some()).await;
        assert_eq!(relay.metrics().unavailable_ms, 0);
        any.run("ALTER TABLE tenure_outbox RENAME TO tenure_outbox_gone")
            .await;
        until("it is away", async || relay.metrics().unavailable_ms > 0).await;
        let before = oldest().unwrap();
        tokio::time::sleep(away).await;
        let metrics = relay.metrics();
        assert!(metrics.running);
        assert!(u128::from(metrics.unavailable_ms) >= away.as_millis());
        assert!(u128::from(oldest().unwrap() - before) >= away.as_millis());
        any.run("ALTER TABLE tenure_outbox_gone RENAME TO tenure_outbox")
            .await;
        until("it is back", async || relay.metrics().unavailable_ms == 0).await;
        home.end().await;
    }
}
