//! The outbox on real databases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor};
use tenure::Node;
use tenure::cluster::{self, Cluster};
use tenure::core::queue::{Backoff, Filter, Key, PageStart, Payload, State, Submission};
use tenure::core::{JobId, JobType, QueueName};
use tenure::outbox::{
    Database, Deliver, Each, Event, Failure, Handler, Observer, Options, Outbox, Outcome, Policy,
    Relay, Row, SubmitError, ToQueue, Token, Which,
};
use tenure::queue::Queue;
use tenure::store::engine::memory::Memory;
use tokio::sync::Notify;

use crate::support::{brisk, node_on, until, url};

/// Nothing here waits for it to end.
const TTL: Duration = Duration::from_secs(60);

/// A database of a test's own, and a way to speak to it.
pub(crate) struct Ground {
    pub(crate) url: String,
    /// Of SQLite.
    _folder: Option<tempfile::TempDir>,
}

/// A connection to whichever database it is.
pub(crate) enum Any {
    Postgres(sqlx::PgConnection),
    MySql(sqlx::MySqlConnection),
    Sqlite(sqlx::SqliteConnection),
}

macro_rules! each_kind {
    ($any:expr, $connection:ident => $work:expr) => {
        match $any {
            Any::Postgres($connection) => $work,
            Any::MySql($connection) => $work,
            Any::Sqlite($connection) => $work,
        }
    };
}

// Behind the macro, which they use.
mod claims;
mod completions;
mod hostile;
mod order;
mod poison;
mod relays;
mod rights;

/// Every engine that is there.
pub(crate) async fn grounds() -> Vec<Ground> {
    let mut grounds = vec![Ground::sqlite().await];
    for variable in ["TENURE_TEST_POSTGRES", "TENURE_TEST_MYSQL"] {
        if let Some(server) = url(variable) {
            grounds.push(Ground::on_server(&server).await);
        }
    }
    grounds
}

impl Ground {
    pub(crate) async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
        let connection = sqlx::SqliteConnection::connect_with(&options)
            .await
            .unwrap();
        connection.close().await.unwrap();
        Self {
            url: format!("sqlite:{}", path.display()),
            _folder: Some(folder),
        }
    }

    pub(crate) async fn on_server(server: &str) -> Self {
        let name = format!("outbox_{}", uuid::Uuid::new_v4().simple());
        let create = format!("CREATE DATABASE {name}");
        let mut any = Any::connect(server).await;
        any.run(&create).await;
        let (base, _) = server.rsplit_once('/').unwrap();
        Self {
            url: format!("{base}/{name}"),
            _folder: None,
        }
    }

    pub(crate) async fn connect(&self) -> Any {
        Any::connect(&self.url).await
    }

    pub(crate) fn database(&self) -> Database {
        Database::new(&self.url).unwrap()
    }

    /// With its tables made.
    pub(crate) async fn with_outbox() -> Vec<(Self, Any)> {
        let mut all = Vec::new();
        for ground in grounds().await {
            let mut any = ground.connect().await;
            each_kind!(&mut any, connection => Outbox::default().create(connection).await.unwrap());
            all.push((ground, any));
        }
        all
    }
}

impl Any {
    async fn connect(url: &str) -> Self {
        let (scheme, rest) = url.split_once(':').unwrap();
        match scheme {
            "postgres" => Self::Postgres(sqlx::PgConnection::connect(url).await.unwrap()),
            "mysql" => Self::MySql(sqlx::MySqlConnection::connect(url).await.unwrap()),
            _ => {
                let options = sqlx::sqlite::SqliteConnectOptions::new()
                    .filename(rest)
                    .busy_timeout(Duration::from_secs(30));
                let connection = sqlx::SqliteConnection::connect_with(&options).await;
                Self::Sqlite(connection.unwrap())
            }
        }
    }

    pub(crate) fn engine(&self) -> &'static str {
        match self {
            Any::Postgres(_) => "postgres",
            Any::MySql(_) => "mysql",
            Any::Sqlite(_) => "sqlite",
        }
    }

    /// SQLite's writers wait for their turn only if they say at once that they write.
    pub(crate) async fn begin(&mut self) {
        match self {
            Any::Sqlite(_) => self.run("BEGIN IMMEDIATE").await,
            _ => self.run("BEGIN").await,
        }
    }

    pub(crate) async fn run(&mut self, statement: &str) {
        self.try_run(statement).await.unwrap();
    }

    pub(crate) async fn try_run(&mut self, statement: &str) -> Result<(), sqlx::Error> {
        let statement = statement.to_owned();
        each_kind!(self, connection => {
            connection.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await.map(drop)
        })
    }

    pub(crate) async fn number(&mut self, statement: &str) -> i64 {
        let statement = AssertSqlSafe(statement.to_owned());
        each_kind!(self, connection => {
            sqlx::query_scalar(statement).fetch_one(connection).await.unwrap()
        })
    }

    pub(crate) async fn submit(&mut self, job: Submission) -> JobId {
        each_kind!(self, connection => Outbox::default().submit(connection, job).await.unwrap())
    }

    pub(crate) async fn submit_all(&mut self, jobs: Vec<Submission>) -> Vec<JobId> {
        each_kind!(self, connection => Outbox::default().submit_all(connection, jobs).await.unwrap())
    }
}

/// A node with a queue, and a cluster to run relays in.
pub(crate) struct Home {
    pub(crate) node: Node,
    pub(crate) cluster: Cluster,
    pub(crate) queue: Queue,
}

impl Home {
    pub(crate) async fn new() -> Self {
        Self::on(&Arc::new(Memory::new()), "n").await
    }

    pub(crate) async fn with_limits(limits: tenure::core::queue::Limits) -> Self {
        let options = tenure::queue::Options {
            limits,
            ..tenure::queue::Options::default()
        };
        Self::with_options(&Arc::new(Memory::new()), "n", options).await
    }

    pub(crate) async fn on(store: &Arc<Memory>, name: &str) -> Self {
        Self::with_options(store, name, tenure::queue::Options::default()).await
    }

    async fn with_options(
        store: &Arc<Memory>,
        name: &str,
        options: tenure::queue::Options,
    ) -> Self {
        let session = brisk(TTL);
        let node = node_on(store, "outbox", name, session.clone()).await;
        let member = cluster::Options {
            config: cluster::Config {
                cycle: Duration::from_millis(20),
                settle: Duration::from_millis(50),
                ..cluster::Config::for_session(&session)
            },
            ..cluster::Options::default()
        };
        let cluster = node.cluster(member).await.unwrap();
        let queue = Queue::open(&node, options).await.unwrap();
        Self {
            node,
            cluster,
            queue,
        }
    }

    pub(crate) fn relay<D: Deliver>(
        &self,
        database: Database,
        deliver: D,
        options: Options,
    ) -> Relay<D> {
        let relay = Relay::new(&self.node, database, deliver, options).unwrap();
        relay.register(&self.cluster).unwrap();
        relay
    }

    pub(crate) async fn relay_to_queue(&self, database: Database) -> Relay<ToQueue> {
        self.queue.serving().await.unwrap();
        let deliver = ToQueue::new(self.queue.clone());
        self.relay(database, deliver, brisk_options())
    }

    pub(crate) fn jobs(&self) -> Vec<tenure::core::queue::Job> {
        let mut all = Vec::new();
        let mut from = PageStart::After(0);
        loop {
            let page = self.queue.page(&Filter::default(), from, 1000).unwrap();
            all.extend(page.jobs);
            match page.next {
                Some(next) => from = PageStart::After(next),
                None => return all,
            }
        }
    }

    /// How many jobs there are.
    pub(crate) fn total(&self) -> usize {
        let counts = self.queue.counts().unwrap().0;
        usize::try_from(counts.ready + counts.scheduled).unwrap()
    }

    pub(crate) async fn end(self) {
        self.queue.close().await;
        self.node.shutdown().await;
    }
}

pub(crate) fn brisk_options() -> Options {
    Options {
        policy: Policy {
            attempts_max: 3,
            backoff_first: Duration::from_millis(20),
            backoff_max: Duration::from_millis(100),
            poll_min: Duration::from_millis(20),
            poll_max: Duration::from_millis(100),
            ..Policy::default()
        },
        ..Options::default()
    }
}

pub(crate) fn job(number: usize) -> Submission {
    let mut job = Submission::new(JobType::new("work").unwrap());
    job.payload = Payload::new(number.to_string()).unwrap();
    job
}

pub(crate) fn grouped(number: usize, group: &str) -> Submission {
    let mut job = job(number);
    job.group = Some(Key::new(group).unwrap());
    job
}

#[tokio::test]
async fn a_job_exists_if_and_only_if_its_transaction_committed() {
    for (ground, mut any) in Ground::with_outbox().await {
        any.begin().await;
        any.submit(job(1)).await;
        any.submit_all(vec![grouped(2, "g"), job(3), grouped(4, "g")])
            .await;
        any.run("ROLLBACK").await;
        any.begin().await;
        let mut ids = vec![any.submit(job(5)).await];
        ids.extend(any.submit_all((6..700).map(job).collect()).await);
        ids.push(any.submit(grouped(700, "g")).await);
        any.run("COMMIT").await;
        let waiting = ground.database().status().await.unwrap().waiting;
        assert_eq!(waiting, 696, "{}", any.engine());

        let home = Home::new().await;
        home.relay_to_queue(ground.database()).await;
        until("all are enqueued", async || {
            home.queue.counts().unwrap().0.ready == 696
        })
        .await;
        until("all are deleted", async || {
            any.number("SELECT count(*) FROM tenure_outbox").await == 0
        })
        .await;
        let jobs = home.jobs();
        let found: BTreeSet<JobId> = jobs.iter().map(|job| job.id.clone()).collect();
        assert_eq!(found, ids.into_iter().collect(), "{}", any.engine());
        let payloads: BTreeSet<usize> =
            jobs.iter().map(|job| job.payload.read().unwrap()).collect();
        assert_eq!(payloads, (5..=700).collect());
        home.end().await;
    }
}

#[tokio::test]
async fn every_option_of_a_job_arrives() {
    for (ground, mut any) in Ground::with_outbox().await {
        let mut full = Submission::new(JobType::new("mail").unwrap());
        full.id = Some(JobId::new("order-7").unwrap());
        full.queue = QueueName::new("bulk").unwrap();
        full.payload = Payload::new(r#"{"to":  "naïve 'x' ☃"}"#).unwrap();
        full.priority = -7;
        full.run_at = Some(4_000_000_000_000 - 2_000_000_000_000);
        full.max_attempts = Some(3);
        full.unique_key = Some(Key::new("it's unique").unwrap());
        full.group = Some(Key::new("group %").unwrap());
        full.backoff = Some(Backoff {
            first_ms: 5,
            factor: 3,
            max_ms: 700,
            jitter_percent: 1,
        });
        full.traceparent = Some(
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
                .parse()
                .unwrap(),
        );
        full.tracestate = Some("vendor=x".parse().unwrap());
        let mut later = job(1);
        later.delay_ms = Some(3_600_000);
        any.submit_all(vec![full.clone(), later]).await;
        let home = Home::new().await;
        home.relay_to_queue(ground.database()).await;
        until("both are enqueued", async || {
            home.queue.counts().unwrap().0.scheduled == 2
        })
        .await;
        let id = JobId::new("order-7").unwrap();
        let kept = home.queue.job(&id).unwrap().unwrap();
        assert_eq!(kept.queue, full.queue);
        assert_eq!(kept.job_type, full.job_type);
        assert_eq!(kept.payload.as_str(), full.payload.as_str());
        assert_eq!(kept.priority, full.priority);
        assert_eq!(Some(kept.run_at), full.run_at);
        assert_eq!(kept.max_attempts, 3);
        assert_eq!(kept.unique_key, full.unique_key);
        assert_eq!(kept.group, full.group);
        assert_eq!(kept.backoff, full.backoff);
        assert_eq!(kept.traceparent, full.traceparent);
        assert_eq!(kept.tracestate, full.tracestate);
        home.end().await;
    }
}

#[tokio::test]
async fn plain_sql_is_enough() {
    for (ground, mut any) in Ground::with_outbox().await {
        any.begin().await;
        any.run(r#"INSERT INTO tenure_outbox (type, payload) VALUES ('mail', '{"to":1}')"#)
            .await;
        match any {
            Any::MySql(_) => {
                for _ in 0..2 {
                    any.run("INSERT INTO tenure_outbox_groups (group_key, last) VALUES ('g', LAST_INSERT_ID(1)) \
                        ON DUPLICATE KEY UPDATE last = LAST_INSERT_ID(last + 1)").await;
                    any.run("INSERT INTO tenure_outbox (type, group_key, group_position) VALUES ('mail', 'g', LAST_INSERT_ID())").await;
                }
            }
            Any::Postgres(_) => {
                any.run("SELECT tenure_submit('mail', '{\"a\":1}', \"group\" => 'g', delay => '1 hour', priority => 5)").await;
                any.run("SET search_path = pg_catalog; SELECT public.tenure_submit('mail', \"group\" => 'g'); RESET search_path").await;
            }
            Any::Sqlite(_) => {
                for _ in 0..2 {
                    any.run("INSERT INTO tenure_outbox (type, group_key) VALUES ('mail', 'g')")
                        .await;
                }
            }
        }
        any.run("COMMIT").await;
        let last = any
            .number("SELECT max(group_position) FROM tenure_outbox")
            .await;
        assert_eq!(last, 2, "{}", any.engine());
        let home = Home::new().await;
        home.relay_to_queue(ground.database()).await;
        until("all are enqueued", async || home.total() == 3).await;
        if any.engine() == "postgres" {
            let jobs = home.jobs();
            let job = jobs
                .iter()
                .find(|job| job.state == State::Scheduled)
                .unwrap();
            assert_eq!((job.payload.as_str(), job.priority), (r#"{"a":1}"#, 5));
        }
        home.end().await;
    }
}

#[tokio::test]
async fn what_is_not_valid_is_refused_before_it_is_written() {
    for (ground, mut any) in Ground::with_outbox().await {
        let mut wrong = job(1);
        wrong.max_attempts = Some(0);
        let jobs = vec![job(0), wrong];
        let refused = each_kind!(&mut any, connection => Outbox::default().submit_all(connection, jobs).await);
        let error = refused.unwrap_err();
        assert!(
            matches!(error, SubmitError::Invalid { place: 1, .. }),
            "{error:?}"
        );
        assert_eq!(ground.database().status().await.unwrap().waiting, 0);
    }
}

#[tokio::test]
async fn tables_are_made_once_whoever_comes_at_the_same_time() {
    for ground in grounds().await {
        let makers = (0..8).map(|_| {
            let database = ground.database();
            tokio::spawn(async move { database.create().await })
        });
        let makers: Vec<_> = makers.collect();
        for maker in makers {
            maker.await.unwrap().unwrap();
        }
        assert_eq!(ground.database().status().await.unwrap().takeover, 0);
    }
}

/// As docs/outbox.md says.
#[tokio::test]
async fn a_role_that_inserts_into_postgres_needs_few_rights() {
    let Some(server) = url("TENURE_TEST_POSTGRES") else {
        return;
    };
    let ground = Ground::on_server(&server).await;
    let mut any = ground.connect().await;
    ground.database().create().await.unwrap();
    let role = format!("inserts_{}", uuid::Uuid::new_v4().simple());
    any.run(&format!(
        "CREATE ROLE {role}; GRANT INSERT ON tenure_outbox TO {role}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON tenure_outbox_groups TO {role}; \
         GRANT SELECT ON tenure_outbox_waiting TO {role}; SET ROLE {role}"
    ))
    .await;
    for _ in 0..2 {
        any.submit(grouped(1, "g")).await;
    }
    any.run("INSERT INTO tenure_outbox (type) VALUES ('mail')")
        .await;
    any.run(&format!(
        "RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}"
    ))
    .await;
    assert_eq!(ground.database().status().await.unwrap().waiting, 3);
}
