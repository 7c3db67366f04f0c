//! The outbox through the command line: a relay that is killed again and again, and the verbs that read an outbox.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, Executor};
use tenure::core::queue::{Key, Payload, Submission};
use tenure::core::{JobId, JobType};
use tenure::outbox::{Database, Outbox};
use tenure_client::Client;

use crate::support::{run, tenure};

/// Long enough for a slow machine; nothing is measured against it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that is killed when the test ends, even by a failure.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A broker on a directory, and its address.
fn broker(folder: &std::path::Path, more: &[&str]) -> (Process, String) {
    let store = format!("file:{}", folder.join("store").display());
    let mut command = tenure(&["serve", "--listen", "127.0.0.1:0", "--store", &store]);
    command.args(more).args(["--log-format", "text"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let url = lines
        .by_ref()
        .map(Result::unwrap)
        .find_map(|line| {
            let url = line.split_once("dashboard")?.1.trim();
            Some(url.trim_end_matches('/').to_owned())
        })
        .expect("the broker says where it is");
    // Reads the pipe to its end, so that it does not fill up.
    std::thread::spawn(move || lines.for_each(drop));
    (Process(child), url)
}

fn relay(folder: &std::path::Path, outbox: &str, broker: &str, node: &str) -> Process {
    let store = format!("file:{}", folder.join("store").display());
    let arguments = [
        "outbox", "run", outbox, "--server", broker, "--store", &store, "--ttl", "1s", "--node",
        node,
    ];
    let mut command = tenure(&arguments);
    Process(command.stderr(Stdio::null()).spawn().unwrap())
}

fn number_of(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

fn job(number: usize) -> Submission {
    let mut job = Submission::new(JobType::new("work").unwrap());
    job.payload = Payload::new(number.to_string()).unwrap();
    if number.is_multiple_of(2) {
        job.group = Some(Key::new(format!("g{}", number % 100)).unwrap());
    }
    job
}

async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Kills the relay with SIGKILL while rows are written, and checks which jobs arrive.
async fn survives_kills<D>(url: &str, begin: &'static str, kills: usize)
where
    D: sqlx::Database,
    D::Connection: tenure::outbox::Insert,
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
{
    let rows = number_of("TENURE_OUTBOX_ROWS", 3_000);
    // There is one writer at a time, so what holds up the relay also holds up the test.
    let kills_max = if url.starts_with("sqlite") {
        10
    } else {
        usize::MAX
    };
    let kills = number_of("TENURE_OUTBOX_KILLS", kills).min(kills_max);
    let folder = tempfile::tempdir().unwrap();
    let (_broker, broker_url) = broker(folder.path(), &["--ttl", "2s"]);
    let outbox = Outbox::default();
    // sqlx takes a path where the command line takes sqlite:PATH.
    let mut connection = D::Connection::connect(url).await.unwrap();
    outbox.create(&mut connection).await.unwrap();
    let mut committed: BTreeSet<JobId> = BTreeSet::new();
    let mut seed = 0x5eed_u64;
    let mut chance = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let database = Database::new(url).unwrap();
    let of_round = rows / (kills + 1);
    for round in 0..=kills {
        let relaying = relay(folder.path(), url, &broker_url, "relay");
        let takeover = database.status().await.unwrap().takeover;
        let mut written = 0;
        while written < of_round {
            let count = usize::try_from(1 + chance(200)).unwrap();
            let jobs = (written..written + count).map(job).collect();
            connection
                .execute(sqlx::raw_sql(AssertSqlSafe(begin.to_owned())))
                .await
                .unwrap();
            let ids = outbox.submit_all(&mut connection, jobs).await.unwrap();
            let end = if chance(5) == 0 { "ROLLBACK" } else { "COMMIT" };
            connection
                .execute(sqlx::raw_sql(AssertSqlSafe(end.to_owned())))
                .await
                .unwrap();
            if end == "COMMIT" {
                written += count;
                committed.extend(ids);
            }
        }
        eventually("it has taken over", async || {
            database.status().await.unwrap().takeover > takeover
        })
        .await;
        if round == kills {
            eventually("all rows are gone", async || {
                database.status().await.unwrap().waiting == 0
            })
            .await;
            break;
        }
        // Somewhere between two statements, or within one.
        tokio::time::sleep(Duration::from_micros(chance(60_000))).await;
        drop(relaying);
    }
    let client = Client::new([broker_url]).unwrap();
    let queues = client.queues().await.unwrap();
    let ready: u64 = queues.iter().map(|queue| queue.counts.ready).sum();
    assert_eq!(ready, committed.len() as u64, "each once, and nothing else");
    let mut found = BTreeSet::new();
    for id in &committed {
        found.extend(client.job(id).await.ok().map(|job| job.id));
    }
    assert_eq!(found, committed);
}

/// Stops the active one of two relays at a random point, until the other one has taken over, and then continues it.
async fn survives_pauses<D>(url: &str, begin: &'static str)
where
    D: sqlx::Database,
    D::Connection: tenure::outbox::Insert,
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
{
    let pauses = number_of("TENURE_OUTBOX_PAUSES", 3);
    let folder = tempfile::tempdir().unwrap();
    let (_broker, broker_url) = broker(folder.path(), &["--ttl", "2s"]);
    let outbox = Outbox::default();
    let mut connection = D::Connection::connect(url).await.unwrap();
    outbox.create(&mut connection).await.unwrap();
    let relays = ["a", "b"].map(|node| (node, relay(folder.path(), url, &broker_url, node)));
    let database = Database::new(url).unwrap();
    let mut count = 0;
    for pause in 0..=pauses {
        let before = database.status().await.unwrap();
        for _ in 0..20 {
            let jobs = (count..count + 50).map(|number| {
                let mut job = job(number);
                job.group = Some(Key::new(format!("g{}", number % 7)).unwrap());
                job
            });
            count += 50;
            for statement in [begin, "COMMIT"] {
                if statement == "COMMIT" {
                    let jobs = jobs.clone().collect();
                    outbox.submit_all(&mut connection, jobs).await.unwrap();
                }
                let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
                connection.execute(statement).await.unwrap();
            }
        }
        if pause == 0 {
            eventually("one relays", async || {
                database.status().await.unwrap().takeover > 0
            })
            .await;
            continue;
        }
        let holder = before.holder.expect("one has taken over");
        let (_, paused) = relays.iter().find(|(node, _)| **node == holder).unwrap();
        let signal = |name: &str| {
            let pid = paused.0.id().to_string();
            let status = std::process::Command::new("kill")
                .args([name, &pid])
                .status();
            assert!(status.unwrap().success());
        };
        signal("-STOP");
        let began = Instant::now();
        // If it is stopped in the middle of an SQLite transaction, or of a write to the store's files, it blocks
        // everybody. Then it is continued after a while, and has not overlapped with the other.
        while database.status().await.unwrap().takeover == before.takeover
            && began.elapsed() < Duration::from_secs(15)
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        signal("-CONT");
    }
    eventually("all rows are gone", async || {
        database.status().await.unwrap().waiting == 0
    })
    .await;
    let status = database.status().await.unwrap();
    assert_eq!(status.dead, 0);
    assert!(status.takeover > 1, "nobody has ever taken over");
    let mut groups = BTreeMap::<String, Vec<usize>>::new();
    for (group, number) in listed(&broker_url) {
        groups.entry(group).or_default().push(number);
    }
    for (place, numbers) in groups.values().enumerate() {
        let all: Vec<usize> = (0..count).filter(|number| number % 7 == place).collect();
        assert_eq!(*numbers, all, "each once, and in order");
    }
    assert_eq!(groups.len(), 7);
}

/// Group and payload of every job, in the order in which they were enqueued.
fn listed(broker: &str) -> Vec<(String, usize)> {
    let mut all = Vec::new();
    let mut after = 0;
    loop {
        let url = format!("{broker}/v1/jobs?limit=1000&after={after}");
        let output = std::process::Command::new("curl")
            .args(["-s", &url])
            .output();
        let page: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        for job in page["jobs"].as_array().unwrap() {
            let number = usize::try_from(job["payload"].as_u64().unwrap()).unwrap();
            all.push((job["group"].as_str().unwrap().to_owned(), number));
        }
        match page["next"].as_u64() {
            Some(next) => after = next,
            None => return all,
        }
    }
}

async fn fresh_database(server: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("outbox_{}_{number}", std::process::id());
    let (base, _) = server.rsplit_once('/').unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    if server.starts_with("postgres") {
        let mut connection = sqlx::PgConnection::connect(server).await.unwrap();
        connection.execute(sqlx::raw_sql(create)).await.unwrap();
    } else {
        let mut connection = sqlx::MySqlConnection::connect(server).await.unwrap();
        connection.execute(sqlx::raw_sql(create)).await.unwrap();
    }
    format!("{base}/{name}")
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_postgres_are_enqueued_once_though_the_relay_is_killed() {
    if let Some(server) = crate::support::server("TENURE_TEST_POSTGRES") {
        let url = fresh_database(&server).await;
        survives_kills::<sqlx::Postgres>(&url, "BEGIN", 3).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_mariadb_are_enqueued_once_though_the_relay_is_killed() {
    if let Some(server) = crate::support::server("TENURE_TEST_MYSQL") {
        let url = fresh_database(&server).await;
        survives_kills::<sqlx::MySql>(&url, "BEGIN", 3).await;
    }
}

/// An empty database with a write-ahead log.
async fn sqlite(folder: &std::path::Path) -> String {
    let path = folder.join("shop.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(&path)
        .create_if_missing(true)
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
    let made = sqlx::SqliteConnection::connect_with(&options).await;
    made.unwrap().close().await.unwrap();
    format!("sqlite:{}", path.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_sqlite_are_enqueued_once_though_the_relay_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite(folder.path()).await;
    survives_kills::<sqlx::Sqlite>(&url, "BEGIN IMMEDIATE", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_on_postgres_that_was_paused_delivers_nothing_twice_or_out_of_order() {
    if let Some(server) = crate::support::server("TENURE_TEST_POSTGRES") {
        let url = fresh_database(&server).await;
        survives_pauses::<sqlx::Postgres>(&url, "BEGIN").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_on_mariadb_that_was_paused_delivers_nothing_twice_or_out_of_order() {
    if let Some(server) = crate::support::server("TENURE_TEST_MYSQL") {
        let url = fresh_database(&server).await;
        survives_pauses::<sqlx::MySql>(&url, "BEGIN").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_on_sqlite_that_was_paused_delivers_nothing_twice_or_out_of_order() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite(folder.path()).await;
    survives_pauses::<sqlx::Sqlite>(&url, "BEGIN IMMEDIATE").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_relays_and_tells_of_it_and_the_verbs_look_at_it() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite(folder.path()).await;
    let (_broker, broker_url) = broker(folder.path(), &["--ttl", "2s", "--outbox", &url]);
    let database = Database::new(&url).unwrap();
    eventually("it relays", async || {
        database
            .status()
            .await
            .is_ok_and(|status| status.takeover == 1)
    })
    .await;
    let path = url.strip_prefix("sqlite:").unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(Duration::from_secs(30));
    let mut connection = sqlx::SqliteConnection::connect_with(&options)
        .await
        .unwrap();
    for statement in [
        "INSERT INTO tenure_outbox (type, payload) VALUES ('mail', '{\"to\":1}')",
        "INSERT INTO tenure_outbox (type, id) VALUES ('no type', 'poison')",
    ] {
        connection.execute(statement).await.unwrap();
    }
    eventually("one is enqueued, one is dead", async || {
        let status = database.status().await.unwrap();
        status.waiting == 0 && status.dead == 1
    })
    .await;
    let client = Client::new([&*broker_url]).unwrap();
    let queues = client.queues().await.unwrap();
    assert_eq!(
        queues.iter().map(|queue| queue.counts.ready).sum::<u64>(),
        1
    );

    let (code, stdout, stderr) = run(&mut tenure(&["outbox", "status", &url]));
    assert_eq!((code, &*stderr), (1, ""), "{stdout}");
    assert!(
        stdout.contains("poison") && stdout.contains("type: "),
        "{stdout}"
    );
    assert!(stdout.contains("default/outbox:default on "), "{stdout}");
    let (code, stdout, _) = run(&mut tenure(&["outbox", "status", &url, "--json"]));
    assert_eq!(code, 1);
    assert!(stdout.contains("\"dead\": 1"), "{stdout}");

    // A second cluster is refused.
    let other = tempfile::tempdir().unwrap();
    let (_second, second_url) = broker(other.path(), &["--ttl", "2s", "--outbox", &url]);
    let numbers = async |broker: &str| {
        let mut command = std::process::Command::new("curl");
        let output = command.args(["-s", &format!("{broker}/metrics")]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    eventually("the first says so", async || {
        numbers(&broker_url)
            .await
            .contains("tenure_outbox_delivered_total{outbox=\"default\"} 1")
    })
    .await;
    let alerts = std::fs::read_to_string("../../deploy/alerts.yml").unwrap();
    let expressions = alerts.lines().filter(|line| line.contains("expr:"));
    let words = expressions.flat_map(|line| line.split(['(', ')', '[']));
    let asked: Vec<_> = words
        .filter(|word| word.starts_with("tenure_outbox_"))
        .collect();
    assert!(asked.len() > 2, "{asked:?}");
    eventually("every alert finds what it asks for", async || {
        let page = numbers(&broker_url).await;
        asked
            .iter()
            .all(|name| page.contains(&format!("\n{name}{{")))
    })
    .await;
    let relaying = "tenure_outbox_relaying{outbox=\"default\"}";
    assert!(
        numbers(&broker_url)
            .await
            .contains(&format!("{relaying} 1"))
    );
    // Asked for while the relay is still starting.
    eventually("the second has numbers, too", async || {
        let page = numbers(&second_url).await;
        assert!(!page.contains(&format!("{relaying} 1")), "{page}");
        page.contains(&format!("{relaying} 0"))
    })
    .await;
    assert_eq!(database.status().await.unwrap().takeover, 1);

    // Every broker shows it, whichever relays, and none shows user or password.
    for (broker, relays_here) in [(&broker_url, true), (&second_url, false)] {
        let mut command = std::process::Command::new("curl");
        let command = command.args(["-s", &format!("{broker}/v1/dashboard/outboxes")]);
        let shown: serde_json::Value =
            serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        let shown = &shown["outboxes"][0];
        assert_eq!(shown["name"], "default");
        assert_eq!(shown["relays_here"], relays_here, "{shown}");
        assert_eq!(shown["tables"]["dead"], 1, "{shown}");
        assert_eq!(shown["tables"]["dead_rows"][0]["id"], "poison", "{shown}");
        assert_eq!(shown["problem"], serde_json::Value::Null);
    }

    for verb in ["retry", "purge"] {
        let (code, stdout, stderr) = run(&mut tenure(&["outbox", verb, &url, "nobody"]));
        assert!(code == 1 && stdout.starts_with("0 "), "{stdout}");
        assert!(stderr.contains("no dead row has the id nobody"), "{stderr}");
    }
    let (code, stdout, _) = run(&mut tenure(&["outbox", "retry", &url, "--all"]));
    assert_eq!((code, &*stdout), (0, "1 put back\n"));
    eventually("it is dead again", async || {
        database.status().await.unwrap().dead == 1
    })
    .await;
    let (code, stdout, _) = run(&mut tenure(&["outbox", "purge", &url, "poison"]));
    assert_eq!((code, &*stdout), (0, "1 deleted\n"));
    let (code, stdout, stderr) = run(&mut tenure(&["outbox", "status", &url]));
    assert_eq!((code, &*stderr), (0, ""), "{stdout}");
}

#[test]
fn the_schema_is_printed_and_what_is_no_database_is_refused() {
    for (engine, words) in [
        ("postgres", "CREATE OR REPLACE FUNCTION tenure_submit("),
        ("mysql", "ENGINE = InnoDB"),
        ("sqlite", "AUTOINCREMENT"),
    ] {
        let (code, stdout, stderr) = run(&mut tenure(&["outbox", "schema", engine]));
        assert_eq!((code, &*stderr), (0, ""));
        assert!(stdout.contains(words), "{stdout}");
    }
    let wrong = ["outbox", "status", "s3://user:hunter2@bucket"];
    let (code, stdout, stderr) = run(&mut tenure(&wrong));
    assert_eq!((code, &*stdout), (2, ""));
    assert!(
        stderr.contains("hint: use postgres://") && !stderr.contains("hunter2"),
        "{stderr}"
    );
    let away = [
        "outbox",
        "status",
        "postgres://user:hunter2@127.0.0.1:1/shop",
    ];
    let (code, _, stderr) = run(&mut tenure(&away));
    assert_eq!(code, 2);
    assert!(!stderr.contains("hunter2"), "{stderr}");
    assert_eq!(stderr.matches("refused").count(), 1, "{stderr}");
    let missing = ["outbox", "status", "sqlite:/nobody/has/this.db"];
    let (code, _, stderr) = run(&mut tenure(&missing));
    assert_eq!(code, 2);
    for once in ["/nobody/has/this.db", "unable to open database file"] {
        assert_eq!(stderr.matches(once).count(), 1, "{stderr}");
    }
    let (code, _, stderr) = run(&mut tenure(&[
        "serve",
        "--store",
        "memory:",
        "--outbox",
        "=sqlite:a.db",
    ]));
    assert!(code == 2 && stderr.contains("has no name"), "{stderr}");
}
