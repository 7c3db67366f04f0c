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
    let outbox = Outbox::default();
    let (_, mut connection) = database(&server, "submits").await;
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
    let rows: usize = std::env::var("ROWS").map_or(60_000, |rows| rows.parse().unwrap());

    let mut free = Side::new(&server, "free", &node, &queue).await;
    let mut held = Side::new(&server, "held", &node, &queue).await;
    let mut snapshot = PgConnection::connect(&held.url).await.unwrap();
    run(
        &mut snapshot,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tenure_outbox",
    )
    .await;
    // In turns, so that whatever else the machine does comes to both. What an hour brings through is a matter of the rows, not of the time:
    // `ROUNDS` says how many times that number.
    let rounds: usize = std::env::var("ROUNDS").map_or(6, |rounds| rounds.parse().unwrap());
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let rate = free.rate(&outbox, rows, &cluster).await;
        let beside = held.rate(&outbox, rows, &cluster).await;
        let dead = round * rows;
        println!(
            "relayed {rate:>9.0} rows/s; {beside:>9.0} beside an old snapshot and {dead} deleted rows"
        );
        // The first round warms up.
        if round > 0 {
            rates.push(rate);
            ratios.push(beside / rate);
        }
    }
    let rate = middle(rates);
    let goal = format!("{ROWS_PER_SECOND} rows/s are relayed: {rate:.0}");
    goals.hold(&goal, rate >= ROWS_PER_SECOND);
    // Behind the most deleted rows.
    let slower = (1.0 - middle(ratios.split_off(rounds / 2))) * 100.0;
    let goal = format!("an open snapshot costs less than {SNAPSHOT_PERCENT} %: {slower:.1} %");
    goals.hold(&goal, slower < SNAPSHOT_PERCENT);
    run(&mut snapshot, "COMMIT").await;
    held.rest(&cluster).await;

    idle(&mut free.connection).await;
    free.rest(&cluster).await;
    let lag = poison(&node, &cluster, &free.url, &outbox, &mut free.connection).await;
    let goal = format!("beside a group that fails, rows wait less than {POISON_LAG:?}: {lag:.2?}");
    goals.hold(&goal, lag < POISON_LAG);
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

/// A database with an outbox, and its relay.
struct Side {
    url: String,
    connection: PgConnection,
    relay: Relay<ToQueue>,
}

impl Side {
    async fn new(server: &str, name: &str, node: &Node, queue: &Queue) -> Self {
        let (url, connection) = database(server, name).await;
        let options = Options {
            name: name.to_owned(),
            ..Options::default()
        };
        let deliver = ToQueue::new(queue.clone());
        let relay = Relay::new(node, Database::new(&url).unwrap(), deliver, options).unwrap();
        Self {
            url,
            connection,
            relay,
        }
    }

    async fn rest(&self, cluster: &cluster::Cluster) {
        let _ = cluster.withdraw(self.relay.daemon().as_str());
        while self.relay.metrics().running {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Rows per second. They are written while the relay is away, so that only the relay is measured.
    async fn rate(&mut self, outbox: &Outbox, rows: usize, cluster: &cluster::Cluster) -> f64 {
        self.rest(cluster).await;
        for from in (0..rows).step_by(1000) {
            let jobs = (from..rows.min(from + 1000)).map(job).collect();
            let connection = &mut self.connection;
            outbox.submit_all(connection, jobs).await.unwrap();
        }
        let before = self.relay.metrics().delivered;
        self.relay.register(cluster).unwrap();
        let mut began = None;
        loop {
            let delivered = self.relay.metrics().delivered - before;
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
}

/// A new database with the outbox's tables.
async fn database(server: &str, name: &str) -> (String, PgConnection) {
    let name = format!("bench_{name}_{}", std::process::id());
    let mut connection = PgConnection::connect(server).await.unwrap();
    run(&mut connection, &format!("CREATE DATABASE {name}")).await;
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    Outbox::default().create(&mut connection).await.unwrap();
    (url, connection)
}

fn middle(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
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
    let (mut plain, mut submitted, mut in_group) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..3000 {
        let mut job = job(number);
        let began = Instant::now();
        let mut transaction = connection.begin().await.unwrap();
        let times = match number % 3 {
            0 => {
                sqlx::query(insert)
                    .bind(uuid::Uuid::new_v4().to_string())
                    .bind(job.job_type.as_str())
                    .bind(job.payload.as_str())
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
                &mut plain
            }
            kind => {
                job.group = (kind == 2).then(|| Key::new("one").unwrap());
                outbox.submit(&mut *transaction, job).await.unwrap();
                if kind == 1 {
                    &mut submitted
                } else {
                    &mut in_group
                }
            }
        };
        transaction.commit().await.unwrap();
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    let (plain, submitted, in_group) = (middle(plain), middle(submitted), middle(in_group));
    let percent = |time: f64| (time / plain - 1.0) * 100.0;
    let (more, grouped) = (percent(submitted), percent(in_group));
    println!("a transaction with an insert  {plain:>9.0} µs");
    println!("a transaction with a submit   {submitted:>9.0} µs ({more:+.1} %)");
    println!("the same into a busy group    {in_group:>9.0} µs ({grouped:+.1} %)");
    more
}

/// How long 99 of 100 rows of a hundred groups wait at most while one group always fails, and has many rows.
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
    // Not the last of them: a machine that does other things stops now and then.
    let nearly_all = lags[lags.len() * 99 / 100];
    println!(
        "beside a group that fails     {median:>9.0?} until a row is delivered, 99 % within {nearly_all:.2?}, {most:.2?} at most"
    );
    let _ = cluster.withdraw(relay.daemon().as_str());
    run(
        connection,
        "DELETE FROM tenure_outbox WHERE group_key = 'poison'",
    )
    .await;
    nearly_all
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
