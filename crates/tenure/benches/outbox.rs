//! The outbox on PostgreSQL: rows per second into a queue on files, the same beside a transaction that is held open, what
//! a submit adds to a transaction over a plain insert, how long rows wait beside a group that always fails, and what an idle relay
//! costs.
//!
//! Each goal is held against what was measured: `PASS` or `MISSED` stands behind it, and a goal that was missed fails the run.
//!
//! `make bench-outbox` runs it. `ROWS=100000` says how many rows; `TENURE_BENCH_FOLDER` where the queue is: the folder for temporary
//! files may be in memory, where a flush costs nothing.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark talks, and may fail"
)]

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tenure::cluster;
use tenure::core::JobType;
use tenure::core::queue::{Key, Payload, Submission};
use tenure::outbox::{
    Database, Each, Event, Failure, Handler, Observer, Options, Outbox, Relay, Row, ToQueue, Token,
};
use tenure::queue::Queue;
use tenure::{Node, NodeOptions};

/// What the outbox is to reach, on the machine that runs this.
const ROWS_PER_SECOND: f64 = 20_000.0;
const SUBMIT_PERCENT: f64 = 10.0;
const SNAPSHOT_PERCENT: f64 = 20.0;
const POISON_LAG: Duration = Duration::from_secs(1);

/// Holds what was measured against its goals.
#[derive(Default)]
struct Goals {
    missed: usize,
}

impl Goals {
    fn hold(&mut self, what: &str, is_reached: bool) {
        let verdict = if is_reached { "PASS" } else { "MISSED" };
        println!("{verdict:<6} {what}");
        self.missed += usize::from(!is_reached);
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut goals = Goals::default();
    let Ok(server) = std::env::var("TENURE_TEST_POSTGRES") else {
        println!("skipped: set TENURE_TEST_POSTGRES, or run make bench-outbox");
        return ExitCode::SUCCESS;
    };
    let name = format!("bench_{}", std::process::id());
    let mut connection = PgConnection::connect(&server).await.unwrap();
    run(&mut connection, &format!("CREATE DATABASE {name}")).await;
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let outbox = Outbox::default();
    outbox.create(&mut connection).await.unwrap();

    let more = overhead(&outbox, &mut connection).await;
    let goal = format!("a submit adds less than {SUBMIT_PERCENT} % to a transaction: {more:.1} %");
    goals.hold(&goal, more < SUBMIT_PERCENT);

    let folder = std::env::var("TENURE_BENCH_FOLDER").unwrap_or_else(|_| "target".to_owned());
    let folder = tempfile::tempdir_in(folder).unwrap();
    let store = format!("file:{}", folder.path().display());
    let node = Node::start(NodeOptions::new(store, "bench")).await.unwrap();
    let cluster = node.cluster(cluster::Options::default()).await.unwrap();
    let queue = Queue::open(&node, tenure::queue::Options::default())
        .await
        .unwrap();
    queue.serving().await.unwrap();
    let database = Database::new(&url).unwrap();
    let rows: usize = std::env::var("ROWS").map_or(60_000, |rows| rows.parse().unwrap());

    let deliver = ToQueue::new(queue.clone());
    let relay = Relay::new(&node, database, deliver, Options::default()).unwrap();
    // The better of the two: the first also warms up.
    let mut before = 0.0_f64;
    for _ in 0..2 {
        let rate = queue_rate(&relay, &outbox, &mut connection, rows, &cluster).await;
        println!("relayed, nothing else open    {rate:>9.0} rows/s");
        before = before.max(rate);
    }
    let goal = format!("{ROWS_PER_SECOND} rows/s are relayed: {before:.0}");
    goals.hold(&goal, before >= ROWS_PER_SECOND);

    let mut held = PgConnection::connect(&url).await.unwrap();
    run(
        &mut held,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tenure_outbox",
    )
    .await;
    // What an hour brings through is a matter of the rows, not of the time: `ROUNDS` says how many times that number.
    let rounds: usize = std::env::var("ROUNDS").map_or(4, |rounds| rounds.parse().unwrap());
    let mut last = before;
    for round in 1..=rounds {
        let rate = queue_rate(&relay, &outbox, &mut connection, rows, &cluster).await;
        let dead = round * rows;
        println!("relayed, a snapshot held open {rate:>9.0} rows/s behind {dead} deleted rows");
        last = rate;
    }
    let slower = (1.0 - last / before) * 100.0;
    println!("slower by the open snapshot   {slower:>9.1} %");
    let goal = format!("an open snapshot costs less than {SNAPSHOT_PERCENT} %: {slower:.1} %");
    goals.hold(&goal, slower < SNAPSHOT_PERCENT);
    run(&mut held, "COMMIT").await;

    idle(&mut connection).await;
    let _ = cluster.withdraw(relay.daemon().as_str());
    while relay.metrics().running {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let most = poison(&node, &cluster, &url, &outbox, &mut connection).await;
    let goal = format!("beside a group that fails no row waits for {POISON_LAG:?}: {most:.2?}");
    goals.hold(&goal, most < POISON_LAG);
    queue.close().await;
    node.shutdown().await;
    ExitCode::from(u8::from(goals.missed > 0))
}

async fn run(connection: &mut PgConnection, statement: &str) {
    let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
    connection.execute(statement).await.unwrap();
}

fn job(number: usize) -> Submission {
    let mut job = Submission::new(JobType::new("work").unwrap());
    job.payload = Payload::new(format!(r#"{{"order":{number},"text":"{:0100}"}}"#, 0)).unwrap();
    job
}

/// Rows are written while the relay is away, so that only the relay is measured.
async fn queue_rate(
    relay: &Relay<ToQueue>,
    outbox: &Outbox,
    connection: &mut PgConnection,
    rows: usize,
    cluster: &cluster::Cluster,
) -> f64 {
    let _ = cluster.withdraw(relay.daemon().as_str());
    while relay.metrics().running {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for from in (0..rows).step_by(1000) {
        let jobs = (from..rows.min(from + 1000)).map(job).collect();
        outbox.submit_all(connection, jobs).await.unwrap();
    }
    let before = relay.metrics().delivered;
    relay.register(cluster).unwrap();
    let mut began = None;
    loop {
        let delivered = relay.metrics().delivered - before;
        if delivered > 0 {
            // From the first batch on: until then the cluster decides where it runs.
            let (began, first) = *began.get_or_insert((Instant::now(), delivered));
            if delivered >= rows as u64 {
                let counted = u32::try_from(delivered - first).unwrap();
                return f64::from(counted) / began.elapsed().as_secs_f64();
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The same row into a table without triggers, and through the outbox: one transaction each.
///
/// By how many percent the second takes longer.
async fn overhead(outbox: &Outbox, connection: &mut PgConnection) -> f64 {
    run(
        connection,
        "CREATE TABLE plain (LIKE tenure_outbox INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING INDEXES)",
    )
    .await;
    let insert = "INSERT INTO plain (id, type, payload, queue, priority) VALUES ($1, $2, $3::json, 'default', 0)";
    let (mut plain, mut submitted) = (Vec::new(), Vec::new());
    for number in 0..2000 {
        let job = job(number);
        let began = Instant::now();
        let mut transaction = connection.begin().await.unwrap();
        if number % 2 == 0 {
            sqlx::query(insert)
                .bind(uuid::Uuid::new_v4().to_string())
                .bind(job.job_type.as_str())
                .bind(job.payload.as_str())
                .execute(&mut *transaction)
                .await
                .unwrap();
        } else {
            outbox.submit(&mut *transaction, job).await.unwrap();
        }
        transaction.commit().await.unwrap();
        let took = began.elapsed();
        if number % 2 == 0 {
            plain.push(took);
        } else {
            submitted.push(took);
        }
    }
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    let (plain, submitted) = (median(plain), median(submitted));
    let more = (submitted.as_secs_f64() / plain.as_secs_f64() - 1.0) * 100.0;
    println!("a transaction with an insert  {plain:>9.0?}");
    println!("a transaction with a submit   {submitted:>9.0?} ({more:+.1} %)");
    run(connection, "TRUNCATE tenure_outbox").await;
    more
}

/// How long rows of a hundred groups wait at most while one group always fails, and has many rows.
async fn poison(
    node: &Node,
    cluster: &cluster::Cluster,
    url: &str,
    outbox: &Outbox,
    connection: &mut PgConnection,
) -> Duration {
    let in_group = |number: usize, group: String| {
        let mut job = job(number);
        job.group = Some(Key::new(group).unwrap());
        job
    };
    let sick = (0..2_000).map(|number| in_group(number, "poison".to_owned()));
    outbox.submit_all(connection, sick.collect()).await.unwrap();
    let lags = Arc::new(Mutex::new(Vec::new()));
    let seen = lags.clone();
    let mut options = Options {
        name: "poison".to_owned(),
        observer: Observer::new(move |event| {
            if let Event::Delivered { lag, .. } = event {
                seen.lock().unwrap().push(*lag);
            }
        }),
        ..Options::default()
    };
    options.policy.attempts_max = u32::MAX;
    let database = Database::new(url).unwrap();
    // Another name is another relay: the outbox has to be let go.
    database.release().await.unwrap();
    let relay = Relay::new(node, database, Each::new(Sick), options).unwrap();
    relay.register(cluster).unwrap();
    while relay.metrics().failed == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for round in 0..100 {
        let jobs = (0..100).map(|group| in_group(round, format!("g{group:02}")));
        outbox.submit_all(connection, jobs.collect()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    while lags.lock().unwrap().len() < 10_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut lags = std::mem::take(&mut *lags.lock().unwrap());
    lags.sort();
    let (median, most) = (lags[lags.len() / 2], lags[lags.len() - 1]);
    println!(
        "beside a group that fails     {median:>9.0?} until a row is delivered, {most:.2?} at most"
    );
    let _ = cluster.withdraw(relay.daemon().as_str());
    run(
        connection,
        "DELETE FROM tenure_outbox WHERE group_key = 'poison'",
    )
    .await;
    most
}

/// Takes every row but those of one group.
struct Sick;

impl Handler for Sick {
    async fn handle(&self, row: &Row, _token: Token) -> Result<(), Failure> {
        match row.group.as_deref() {
            Some("poison") => Err("not now".into()),
            _ => Ok(()),
        }
    }
}

/// What a relay asks of a server while there is nothing.
async fn idle(connection: &mut PgConnection) {
    tokio::time::sleep(Duration::from_secs(12)).await;
    let count = async |connection: &mut PgConnection| -> i64 {
        run(connection, "SELECT pg_stat_clear_snapshot()").await;
        let statement =
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        sqlx::query_scalar(statement)
            .fetch_one(connection)
            .await
            .unwrap()
    };
    let before = count(connection).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let transactions = u32::try_from(count(connection).await - before).unwrap();
    println!(
        "an idle relay                 {:>9.1} transactions/s",
        f64::from(transactions) / 20.0
    );
}
