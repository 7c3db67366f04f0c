//! One row, or what is known of it, must not stop all the others.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Panics at one row, fails at others, and takes the rest.
#[derive(Default)]
struct Touchy {
    got: AtomicUsize,
    error: &'static str,
}

impl Handler for Touchy {
    async fn handle(&self, row: &Row, _token: Token) -> Result<(), Failure> {
        match row.id.as_str() {
            "panics" => panic!("cannot take it"),
            "fails" => return Err(self.error.into()),
            "refused" => return Err(Failure::permanent(self.error)),
            _ => self.got.fetch_add(1, Ordering::Relaxed),
        };
        Ok(())
    }
}

fn named(id: &str) -> Submission {
    let mut job = job(0);
    job.id = Some(JobId::new(id).unwrap());
    job
}

#[tokio::test]
async fn a_handler_that_panics_costs_its_row_an_attempt_and_nobody_else_anything() {
    let ground = Ground::sqlite().await;
    ground.database().create().await.unwrap();
    let mut any = ground.connect().await;
    any.submit(named("panics")).await;
    any.submit_all((0..100).map(job).collect()).await;
    let home = Home::new().await;
    let touchy = Arc::new(Touchy::default());
    let relay = home.relay(
        ground.database(),
        Each::new(touchy.clone()),
        brisk_options(),
    );
    until("it is dead", async || relay.metrics().died == 1).await;
    until("the others are delivered", async || {
        relay.metrics().delivered == 100
    })
    .await;
    assert_eq!(touchy.got.load(Ordering::Relaxed), 100);
    let status = ground.database().status().await.unwrap();
    assert_eq!((status.takeover, status.dead), (1, 1), "it went on");
    let dead = ground.database().dead(1).await.unwrap();
    assert!(dead[0].error.contains("cannot take it"), "{dead:?}");
    home.end().await;
}

/// Numbers that have no successor: to count on from them fails, and the row would be in the way for ever.
#[tokio::test]
async fn a_row_that_was_tried_more_often_than_can_be_counted_dies_like_others() {
    for (ground, mut any) in Ground::with_outbox().await {
        let most = match any {
            Any::Sqlite(_) => i64::MAX,
            _ => i64::from(i32::MAX),
        };
        for (id, attempts) in [("fails", -5), ("refused", most), ("panics", most)] {
            any.run(&format!(
                "INSERT INTO tenure_outbox (id, type, attempts) VALUES ('{id}', 'x', {attempts})"
            ))
            .await;
        }
        any.submit(job(0)).await;
        let home = Home::new().await;
        let touchy = Arc::new(Touchy::default());
        let relay = home.relay(ground.database(), Each::new(touchy), brisk_options());
        until("they are dead", async || relay.metrics().died == 3).await;
        assert_eq!(relay.metrics().unavailable, 0, "{}", any.engine());
        assert_eq!(relay.metrics().delivered, 1);
        home.end().await;
    }
}

/// After a TRUNCATE, or a dump that was read back in part, numbers come a second time.
#[tokio::test]
async fn a_dead_row_whose_number_another_dead_row_has_is_kept_beside_it() {
    for (ground, mut any) in Ground::with_outbox().await {
        any.run("INSERT INTO tenure_outbox (id, type) VALUES ('new', '!')")
            .await;
        let columns = "seq, id, type, payload, queue, priority, created_at, attempts";
        any.run(&format!(
            "INSERT INTO tenure_outbox_dead ({columns}) SELECT seq, 'old', type, payload, queue, priority, created_at, attempts \
             FROM tenure_outbox"
        ))
        .await;
        any.submit(job(0)).await;
        let home = Home::new().await;
        let relay = home.relay_to_queue(ground.database()).await;
        until("it is dead", async || relay.metrics().died == 1).await;
        until("the other is enqueued", async || home.total() == 1).await;
        assert_eq!(relay.metrics().unavailable, 0, "{}", any.engine());
        let dead = ground.database().dead(10).await.unwrap();
        let ids: Vec<&str> = dead.iter().map(|dead| &*dead.id).collect();
        assert_eq!(ids, ["old", "new"], "{}", any.engine());
        home.end().await;
    }
}

/// Not every database can write every sign.
#[tokio::test]
async fn an_error_that_a_database_cannot_write_is_written_in_other_signs() {
    let Some((ground, mut any)) = encoded("LATIN1").await else {
        return;
    };
    any.submit_all(vec![named("fails"), named("refused"), job(0)])
        .await;
    let home = Home::new().await;
    let touchy = Arc::new(Touchy {
        error: "é → no",
        ..Touchy::default()
    });
    let relay = home.relay(ground.database(), Each::new(touchy), brisk_options());
    until("they are dead", async || relay.metrics().died == 2).await;
    assert_eq!(relay.metrics().unavailable, 0);
    for dead in ground.database().dead(10).await.unwrap() {
        assert!(dead.error.ends_with(" no"), "{dead:?}");
    }
    home.end().await;
}

/// An empty outbox in a database of PostgreSQL with this encoding.
async fn encoded(encoding: &str) -> Option<(Ground, Any)> {
    let server = url("TENURE_TEST_POSTGRES")?;
    let name = format!("encoded_{}", uuid::Uuid::new_v4().simple());
    let mut root = Any::connect(&server).await;
    root.run(&format!(
        "CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    ))
    .await;
    let ground = Ground {
        url: format!("{}/{name}", server.rsplit_once('/').unwrap().0),
        _folder: None,
    };
    ground.database().create().await.unwrap();
    let any = ground.connect().await;
    Some((ground, any))
}

/// Some databases keep any bytes in a text.
#[tokio::test]
async fn a_row_with_bytes_that_are_no_text_holds_up_no_other() {
    let Some((ground, mut any)) = encoded("SQL_ASCII").await else {
        return;
    };
    for column in ["id", "queue", "group_key", "payload"] {
        let kind = if column == "payload" { "::json" } else { "" };
        any.run(&format!(
            "INSERT INTO tenure_outbox (type, {column}) VALUES ('mail', E'\"\\xff\"'{kind})"
        ))
        .await;
    }
    any.submit(job(0)).await;
    let home = Home::new().await;
    let relay = home.relay_to_queue(ground.database()).await;
    until("the good one is enqueued", async || home.total() == 1).await;
    until("the others are dead", async || relay.metrics().died == 4).await;
    for dead in ground.database().dead(10).await.unwrap() {
        assert!(dead.error.contains("UTF-8"), "{dead:?}");
    }
    home.end().await;
}

/// Whoever has mended one of them and retries all must get the others back, too.
#[tokio::test]
async fn a_dead_row_that_cannot_be_put_back_holds_up_no_other() {
    for (ground, mut any) in Ground::with_outbox().await {
        let (column, position) = match any {
            Any::MySql(_) => (", group_position", ", 1"),
            _ => ("", ""),
        };
        any.run(&format!(
            "INSERT INTO tenure_outbox (id, type, group_key{column}) VALUES ('sick', 'x', 'two\nlines'{position})"
        ))
        .await;
        any.run("INSERT INTO tenure_outbox (id, type) VALUES ('well', '!')")
            .await;
        let home = Home::new().await;
        let relay = home.relay_to_queue(ground.database()).await;
        until("both are dead", async || relay.metrics().died == 2).await;
        any.run("UPDATE tenure_outbox_dead SET type = 'x'").await;
        let back = ground.database().retry(&Which::All).await.unwrap();
        assert_eq!(back, 2, "{}", any.engine());
        until("one is enqueued", async || home.total() == 1).await;
        until("one is dead again", async || relay.metrics().died == 3).await;
        home.end().await;
    }
}

/// Each statement is bounded, and all of them together are not.
#[tokio::test]
async fn more_rows_are_put_back_than_one_statement_moves_and_in_their_order() {
    for (ground, mut any) in Ground::with_outbox().await {
        let digits = "(SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 \
             UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)";
        let now = match any {
            Any::MySql(_) => "UTC_TIMESTAMP(6)",
            Any::Postgres(_) => "clock_timestamp()",
            Any::Sqlite(_) => "julianday('now')",
        };
        any.run(&format!(
            "INSERT INTO tenure_outbox_dead (seq, id, type, payload, queue, priority, group_key, created_at, attempts) \
             SELECT n, n, 'x', 'null', 'default', 0, 'g', {now}, 1 FROM (SELECT a.n * 1000 + b.n * 100 + c.n * 10 + d.n + 1 AS n \
             FROM {digits} a, {digits} b, {digits} c, {digits} d WHERE a.n = 0 AND b.n < 3) t"
        ))
        .await;
        let back = ground.database().retry(&Which::All).await.unwrap();
        assert_eq!(back, 300, "{}", any.engine());
        assert_eq!(ground.database().status().await.unwrap().dead, 0);
        let other = any
            .number("SELECT count(*) FROM tenure_outbox WHERE id <> concat('', group_position)")
            .await;
        assert_eq!(other, 0, "{}", any.engine());
    }
}

/// Two clusters: the one that was let in takes the rows, and the one before it does not take them as well.
#[tokio::test]
async fn a_relay_that_waits_delivers_nothing_after_another_cluster_was_let_in() {
    for (ground, mut any) in Ground::with_outbox().await {
        let first = Home::new().await;
        let before = first.relay_to_queue(ground.database()).await;
        any.submit(job(0)).await;
        until("it is enqueued", async || first.total() == 1).await;
        let second = Home::new().await;
        let after = second.relay_to_queue(ground.database()).await;
        until("it is refused", async || after.metrics().refused > 0).await;
        // The first one's own node may come back for it: then it is released again. But not before the second has tried, or it could
        // be the second that is fenced off. A try that had begun before the release may be one of the two.
        while !after.metrics().running {
            let refused = after.metrics().refused;
            ground.database().release().await.unwrap();
            until("it has tried", async || {
                let now = after.metrics();
                now.running || now.refused > refused + 1
            })
            .await;
        }
        any.submit_all((1..=20).map(job).collect()).await;
        until("they are enqueued", async || second.total() == 20).await;
        until("the first has noticed", async || !before.metrics().running).await;
        assert_eq!(first.total(), 1, "{}", any.engine());
        second.end().await;
        first.end().await;
    }
}

/// Rows of a group are delivered one by one. What was delivered is deleted meanwhile: when the relay is stopped, or its database fails, it gets
/// few of them again.
#[tokio::test]
async fn what_is_delivered_of_a_long_group_is_written_down_before_its_end() {
    let ground = Ground::sqlite().await;
    ground.database().create().await.unwrap();
    let mut any = ground.connect().await;
    any.submit_all((0..100).map(|number| grouped(number, "g")).collect())
        .await;
    let home = Home::new().await;
    let patient = Arc::new(Patient::default());
    let relay = home.relay(
        ground.database(),
        Each::new(patient.clone()),
        brisk_options(),
    );
    until("some are deleted", async || relay.metrics().delivered > 0).await;
    patient.go.notify_one();
    until("all are delivered", async || {
        relay.metrics().delivered == 100
    })
    .await;
    let got = patient.got.lock().unwrap().clone();
    assert_eq!(got, (0..100).collect::<Vec<_>>());
    home.end().await;
}

/// Takes its time, and at the last row waits until it is let go.
#[derive(Default)]
struct Patient {
    got: Mutex<Vec<usize>>,
    go: Notify,
}

impl Handler for Patient {
    async fn handle(&self, row: &Row, _token: Token) -> Result<(), Failure> {
        let number = row.job.as_ref().unwrap().payload.read().unwrap();
        if number == 99 {
            self.go.notified().await;
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
        self.got.lock().unwrap().push(number);
        Ok(())
    }
}

/// Old versions of what a transaction has changed are in its own way, and while somebody keeps a snapshot, in everybody's.
#[tokio::test]
async fn a_row_of_a_busy_group_costs_no_more_in_postgres_than_one_of_a_new_group() {
    let Some(server) = url("TENURE_TEST_POSTGRES") else {
        return;
    };
    let ground = Ground::on_server(&server).await;
    ground.database().create().await.unwrap();
    let mut any = ground.connect().await;
    any.run("BEGIN").await;
    let mut insert = async |count: usize| {
        any.run(&format!("INSERT INTO tenure_outbox (type, group_key) SELECT 'x', 'busy' FROM generate_series(1, {count})"))
            .await;
        blocks_of_an_insert(&mut any).await
    };
    // The first one also reads the catalogue.
    insert(10).await;
    let before = insert(10).await;
    let after = insert(12_000).await;
    assert!(after <= before + 20, "{before} blocks before, {after} then");
    let last = any
        .number("SELECT max(group_position) FROM tenure_outbox")
        .await;
    assert_eq!(last, 12_023);
}

/// How many pages PostgreSQL looks at.
async fn blocks_of_an_insert(any: &mut Any) -> i64 {
    any.run(
        "CREATE OR REPLACE FUNCTION pg_temp.blocks() RETURNS bigint LANGUAGE plpgsql AS $$ DECLARE plan json; BEGIN \
         EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) INSERT INTO tenure_outbox (type, group_key) VALUES (''x'', ''busy'')' \
         INTO plan; RETURN (plan->0->'Plan'->>'Shared Hit Blocks')::bigint; END $$",
    )
    .await;
    any.number("SELECT pg_temp.blocks()").await
}

/// They had one row for each group, whose number was changed.
#[tokio::test]
async fn groups_of_an_earlier_version_count_on_in_postgres() {
    let Some(server) = url("TENURE_TEST_POSTGRES") else {
        return;
    };
    let ground = Ground::on_server(&server).await;
    let mut any = ground.connect().await;
    any.run(
        "CREATE TABLE tenure_outbox_groups (group_key text PRIMARY KEY, last bigint NOT NULL) WITH (fillfactor = 50); \
         INSERT INTO tenure_outbox_groups VALUES ('g', 7)",
    )
    .await;
    for _ in 0..2 {
        ground.database().create().await.unwrap();
        any.submit(grouped(0, "g")).await;
        any.submit(grouped(0, "new")).await;
    }
    let sum = any
        .number("SELECT sum(group_position)::bigint FROM tenure_outbox")
        .await;
    assert_eq!(sum, 8 + 9 + 1 + 2);
}
