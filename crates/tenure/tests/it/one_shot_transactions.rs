//! One-shot elections in the caller's own transaction: what commits has happened, and nothing else has.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Database, Executor, Row};
use tenure::core::NodeId;
use tenure::core::election::Term;
use tenure::store::{Entry, Key, Prefix, Store, list_all};
use tenure::{
    Error, Fenceable, NamespaceView, OneShot, Outcome, TransactionError, Transactional, Withdrawal,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::support::{PATIENCE, id, namespace, url};

/// Long enough that nothing expires on a slow machine.
const TTL: Duration = Duration::from_secs(120);

/// One claim on three databases.
macro_rules! on_every_database {
    ($($claim:ident),* $(,)?) => {
        $(mod $claim {
            #[tokio::test]
            async fn postgres() {
                if let Some(url) = crate::support::url("TENURE_TEST_POSTGRES") {
                    super::claims::$claim::<sqlx::Postgres>(url).await;
                }
            }

            #[tokio::test]
            async fn mariadb() {
                if let Some(url) = crate::support::url("TENURE_TEST_MYSQL") {
                    super::claims::$claim::<sqlx::MySql>(url).await;
                }
            }

            #[tokio::test]
            async fn sqlite() {
                let folder = tempfile::tempdir().unwrap();
                let url = format!("sqlite:{}", folder.path().join("store.db").display());
                super::claims::$claim::<sqlx::Sqlite>(url).await;
            }
        })*
    };
}

on_every_database! {
    a_commit_makes_the_leader,
    a_rollback_leaves_nothing,
    a_withdrawal_counts_if_it_commits,
    of_eight_transactions_at_once_one_leads,
    without_a_transaction_nothing_is_done,
    who_loses_can_go_on_and_commit,
    the_lease_is_locked_until_the_transaction_ends,
    a_snapshot_of_the_past_wins_nothing,
    a_snapshot_of_the_past_evicts_nobody,
    a_dead_leader_is_replaced_by_what_commits,
    nobody_waits_for_a_ttl_in_a_transaction,
}

/// A database of sqlx in which elections can be held.
trait Elects: Database<Connection: Connection<Database = Self> + Fenceable + Transactional> {
    /// In a transaction that has just begun: what it sees stays as it is now.
    const SNAPSHOT: &'static str;
    /// Begins a transaction that keeps nobody from writing.
    const BEGIN_TO_READ: &'static str = "BEGIN";

    fn run(connection: &mut Self::Connection, sql: &str) -> impl Future<Output = ()> + Send;
    fn number(connection: &mut Self::Connection, sql: &str) -> impl Future<Output = i64> + Send;
}

macro_rules! elects {
    ($database:ty, $snapshot:literal) => {
        impl Elects for $database {
            const SNAPSHOT: &'static str = $snapshot;

            async fn run(connection: &mut Self::Connection, sql: &str) {
                let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
                connection.execute(sql).await.unwrap();
            }

            async fn number(connection: &mut Self::Connection, sql: &str) -> i64 {
                let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
                connection.fetch_one(sql).await.unwrap().get(0)
            }
        }
    };
}

elects!(
    sqlx::Postgres,
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
);
elects!(sqlx::MySql, "SELECT 1");
elects!(sqlx::Sqlite, "SELECT 1");

/// Elections of a namespace of its own, in a database.
struct World {
    url: String,
    namespace: String,
    store: Arc<dyn Store>,
    elections: OneShot,
    table: String,
}

impl World {
    async fn new<D: Elects>(url: String, ttl: Duration) -> Self {
        let store = tenure::store::open(&url).await.unwrap();
        let namespace = namespace();
        let elections = OneShot::new(store.clone(), &namespace, ttl).unwrap();
        let table = format!("runs_{}", uuid::Uuid::new_v4().simple());
        let world = Self {
            url,
            namespace,
            store,
            elections,
            table,
        };
        let create = format!("CREATE TABLE {} (term BIGINT NOT NULL)", world.table);
        D::run(&mut world.connect::<D>().await, &create).await;
        world
    }

    async fn connect<D: Elects>(&self) -> D::Connection {
        D::Connection::connect(&self.url).await.unwrap()
    }

    /// Elects in a transaction that inserts a row if it leads, and commits.
    async fn elect<D: Elects>(&self, who: &NodeId) -> Result<Outcome, TransactionError> {
        let mut connection = self.connect::<D>().await;
        let mut transaction = connection.begin_with(D::Connection::BEGIN).await?;
        let outcome = self.elections.elect_tx(&mut *transaction, who).await?;
        if let Some(token) = outcome.token {
            let insert = format!("INSERT INTO {} VALUES ({})", self.table, token.term.0);
            D::run(&mut transaction, &insert).await;
        }
        transaction.commit().await?;
        Ok(outcome)
    }

    async fn rows<D: Elects>(&self) -> i64 {
        let count = format!("SELECT COUNT(*) FROM {}", self.table);
        D::number(&mut self.connect::<D>().await, &count).await
    }

    /// Everything that others see of the namespace.
    async fn objects(&self) -> Vec<Entry> {
        let prefix = Prefix::new(&self.namespace).unwrap();
        list_all(&*self.store, &prefix).await.unwrap()
    }

    async fn sessions(&self) -> usize {
        let objects = self.objects().await;
        let is_session = |entry: &&Entry| entry.key.as_str().contains("/nodes/");
        objects.iter().filter(is_session).count()
    }

    /// Keeps `who` leading for so long.
    async fn renew(&self, who: &NodeId, within: Duration) {
        let until = Instant::now() + within;
        while Instant::now() < until {
            let outcome = self.elections.elect(who).await.unwrap();
            assert_eq!(outcome.token.map(|token| token.term), Some(Term(1)));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn leader(outcome: &Outcome) -> Option<(NodeId, u64)> {
    let leader = outcome.leader.as_ref();
    leader.map(|leader| (leader.node.clone(), leader.term.0))
}

fn term(outcome: &Outcome) -> Option<u64> {
    outcome.token.map(|token| token.term.0)
}

/// Whether the transaction was found to be late, by the database or by the call.
fn saw_the_past(outcome: &Result<Outcome, TransactionError>) -> bool {
    matches!(
        outcome,
        Err(TransactionError::Database(_) | TransactionError::Changed { .. })
    )
}

mod claims {
    use super::*;

    pub(super) async fn a_commit_makes_the_leader<D: Elects>(url: String) {
        let world = World::new::<D>(url, TTL).await;
        let (a, b) = (id("a"), id("b"));
        let outcome = world.elect::<D>(&a).await.unwrap();
        assert_eq!(term(&outcome), Some(1));
        assert!(outcome.valid_for > TTL / 2, "{outcome:?}");
        assert!(outcome.valid_for < TTL, "{outcome:?}");
        assert_eq!(world.rows::<D>().await, 1);
        assert!(world.elections.is_leader(&a).await.unwrap());

        // Others are kept from leading, whichever way they come.
        let first = Some((a.clone(), 1));
        let by_transaction = world.elect::<D>(&b).await.unwrap();
        assert_eq!(
            (term(&by_transaction), leader(&by_transaction)),
            (None, first.clone())
        );
        let by_store = world.elections.elect(&b).await.unwrap();
        assert_eq!((term(&by_store), leader(&by_store)), (None, first));

        // It goes on in the same term, whichever way it comes, and has one session.
        assert_eq!(term(&world.elections.elect(&a).await.unwrap()), Some(1));
        assert_eq!(term(&world.elect::<D>(&a).await.unwrap()), Some(1));
        assert_eq!(world.sessions().await, 2);
    }

    pub(super) async fn a_rollback_leaves_nothing<D: Elects>(url: String) {
        let world = World::new::<D>(url, TTL).await;
        let (a, b) = (id("a"), id("b"));
        let mut connection = world.connect::<D>().await;
        for is_dropped in [false, true] {
            let begun = connection.begin_with(D::Connection::BEGIN).await;
            let mut transaction = begun.unwrap();
            let outcome = world.elections.elect_tx(&mut *transaction, &a).await;
            assert_eq!(term(&outcome.unwrap()), Some(1));
            // Nobody else sees anything of it yet.
            assert_eq!(world.objects().await, []);
            if is_dropped {
                drop(transaction);
            } else {
                transaction.rollback().await.unwrap();
            }
        }
        drop(connection);
        assert_eq!(world.objects().await, []);
        assert_eq!(term(&world.elections.elect(&b).await.unwrap()), Some(1));
    }

    pub(super) async fn a_withdrawal_counts_if_it_commits<D: Elects>(url: String) {
        let world = World::new::<D>(url, TTL).await;
        let (a, b) = (id("a"), id("b"));
        world.elect::<D>(&a).await.unwrap();
        let before = world.objects().await;
        let mut connection = world.connect::<D>().await;
        let withdraw = async |connection: &mut D::Connection, term, commits: bool| {
            let begun = connection.begin_with(D::Connection::BEGIN).await;
            let mut transaction = begun.unwrap();
            let withdrawal = world.elections.withdraw_tx(&mut *transaction, &a, term);
            let withdrawal = withdrawal.await.unwrap();
            if commits {
                transaction.commit().await.unwrap();
            } else {
                transaction.rollback().await.unwrap();
            }
            withdrawal
        };
        let done = withdraw(&mut connection, Some(Term(1)), false).await;
        assert_eq!(done, Withdrawal::Done);
        let other_term = withdraw(&mut connection, Some(Term(2)), true).await;
        assert_eq!(other_term, Withdrawal::OtherTerm);
        assert_eq!(world.objects().await, before);
        assert!(world.elections.is_leader(&a).await.unwrap());

        let done = withdraw(&mut connection, Some(Term(1)), true).await;
        assert_eq!(done, Withdrawal::Done);
        assert_eq!(world.sessions().await, 0);
        let again = withdraw(&mut connection, None, true).await;
        assert_eq!(again, Withdrawal::NotStanding);
        assert_eq!(term(&world.elect::<D>(&b).await.unwrap()), Some(2));
    }

    pub(super) async fn of_eight_transactions_at_once_one_leads<D: Elects>(url: String) {
        const ROUNDS: u64 = 5;
        let world = Arc::new(World::new::<D>(url, TTL).await);
        for round in 1..=ROUNDS {
            let mut calls = JoinSet::new();
            for number in 0..8 {
                let (world, who) = (world.clone(), id(&format!("c{number}")));
                let call = async move {
                    // Of transactions that wait for each other the database ends one.
                    loop {
                        match world.elect::<D>(&who).await {
                            Ok(outcome) => return (who, outcome),
                            Err(TransactionError::Database(_)) => {}
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                };
                calls.spawn(call);
            }
            let outcomes = timeout(PATIENCE, calls.join_all()).await.unwrap();
            let leaders: BTreeSet<_> = outcomes
                .iter()
                .map(|(_, outcome)| leader(outcome))
                .collect();
            let elected: Vec<_> = outcomes
                .iter()
                .filter_map(|(who, outcome)| Some((who.clone(), term(outcome)?)))
                .collect();
            let [(winner, led)] = &elected[..] else {
                panic!("{elected:?} lead in round {round}");
            };
            assert_eq!(*led, round);
            assert_eq!(leaders, BTreeSet::from([Some((winner.clone(), round))]));
            let rows = i64::try_from(round).unwrap();
            assert_eq!(world.rows::<D>().await, rows);
            world.elections.unregister_candidate(winner).await.unwrap();
        }
    }

    pub(super) async fn without_a_transaction_nothing_is_done<D: Elects>(url: String) {
        let world = World::new::<D>(url, TTL).await;
        let a = id("a");
        let mut connection = world.connect::<D>().await;
        let elected = world.elections.elect_tx(&mut connection, &a).await;
        assert!(
            matches!(elected, Err(TransactionError::NoTransaction)),
            "{elected:?}"
        );
        assert_eq!(world.objects().await, []);
        world.elect::<D>(&a).await.unwrap();
        let before = world.objects().await;
        let withdrawn = world.elections.withdraw_tx(&mut connection, &a, None);
        let withdrawn = withdrawn.await;
        assert!(
            matches!(withdrawn, Err(TransactionError::NoTransaction)),
            "{withdrawn:?}"
        );
        assert_eq!(world.objects().await, before);
    }

    pub(super) async fn who_loses_can_go_on_and_commit<D: Elects>(url: String) {
        let world = World::new::<D>(url, TTL).await;
        let (a, b) = (id("a"), id("b"));
        let mut first = world.connect::<D>().await;
        let mut second = world.connect::<D>().await;
        let mut winner = first.begin_with(D::Connection::BEGIN).await.unwrap();
        let won = world.elections.elect_tx(&mut *winner, &a).await.unwrap();
        assert!(won.is_leader());
        let lose = async {
            let begun = second.begin_with(D::Connection::BEGIN).await;
            let mut loser = begun.unwrap();
            let lost = world.elections.elect_tx(&mut *loser, &b).await.unwrap();
            // A conflict has not ended the transaction.
            let insert = format!("INSERT INTO {} VALUES (7)", world.table);
            D::run(&mut loser, &insert).await;
            loser.commit().await.unwrap();
            lost
        };
        let mut lose = std::pin::pin!(lose);
        // Its look finds no lease, and its write waits for the one that nobody sees yet.
        let early = timeout(Duration::from_millis(300), &mut lose).await;
        assert!(early.is_err(), "{early:?} beside an open transaction");
        winner.commit().await.unwrap();
        let lost = timeout(PATIENCE, lose).await.unwrap();
        assert_eq!((term(&lost), leader(&lost)), (None, Some((a, 1))));
        assert_eq!(world.rows::<D>().await, 1);
        assert_eq!(world.sessions().await, 2);
    }

    pub(super) async fn the_lease_is_locked_until_the_transaction_ends<D: Elects>(url: String) {
        let world = World::new::<D>(url, TTL).await;
        let a = id("a");
        world.elect::<D>(&a).await.unwrap();
        let mut connection = world.connect::<D>().await;
        let begun = connection.begin_with(D::Connection::BEGIN).await;
        let mut transaction = begun.unwrap();
        // The lease is only looked at: what the call is told depends on it all the same.
        let outcome = world.elections.elect_tx(&mut *transaction, &a).await;
        assert_eq!(term(&outcome.unwrap()), Some(1));
        let view = NamespaceView::new(world.store.clone(), world.namespace.parse().unwrap());
        let (election, by) = ("default".parse().unwrap(), id("ops"));
        let mut ask = std::pin::pin!(view.request_resign(&election, &by));
        let early = timeout(Duration::from_millis(300), &mut ask).await;
        assert!(early.is_err(), "{early:?} beside an open transaction");
        transaction.commit().await.unwrap();
        timeout(PATIENCE, ask).await.unwrap().unwrap();
        let asked = world.elect::<D>(&a).await.unwrap();
        assert_eq!((term(&asked), asked.asked_by), (None, Some(id("ops"))));
    }

    pub(super) async fn a_snapshot_of_the_past_wins_nothing<D: Elects>(url: String) {
        let world = World::new::<D>(url, TTL).await;
        let (a, b) = (id("a"), id("b"));
        let mut connection = world.connect::<D>().await;
        let begun = connection.begin_with(D::BEGIN_TO_READ).await;
        let mut transaction = begun.unwrap();
        D::run(&mut transaction, D::SNAPSHOT).await;
        let count = "SELECT COUNT(*) FROM tenure_objects";
        D::number(&mut transaction, count).await;

        // Neither the lease nor the session of the leader is in the snapshot.
        assert!(world.elections.elect(&a).await.unwrap().is_leader());
        let late = world.elections.elect_tx(&mut *transaction, &b).await;
        assert!(saw_the_past(&late), "{late:?}");
        transaction.rollback().await.unwrap();
        let outcome = world.elect::<D>(&b).await.unwrap();
        assert_eq!((term(&outcome), leader(&outcome)), (None, Some((a, 1))));
    }

    pub(super) async fn a_snapshot_of_the_past_evicts_nobody<D: Elects>(url: String) {
        let ttl = Duration::from_secs(2);
        let world = World::new::<D>(url, ttl).await;
        let (a, b) = (id("a"), id("b"));
        assert!(world.elections.elect(&a).await.unwrap().is_leader());
        // What it sees here is still in the snapshot a ttl later, and has been replaced long since.
        assert!(!world.elect::<D>(&b).await.unwrap().is_leader());
        let mut connection = world.connect::<D>().await;
        let begun = connection.begin_with(D::BEGIN_TO_READ).await;
        let mut transaction = begun.unwrap();
        D::run(&mut transaction, D::SNAPSHOT).await;
        let count = "SELECT COUNT(*) FROM tenure_objects";
        D::number(&mut transaction, count).await;
        world.renew(&a, ttl + ttl / 4).await;
        let late = world.elections.elect_tx(&mut *transaction, &b).await;
        assert!(saw_the_past(&late), "{late:?}");
        transaction.rollback().await.unwrap();
        world.renew(&a, Duration::from_millis(100)).await;
        let outcome = world.elect::<D>(&b).await.unwrap();
        assert_eq!((term(&outcome), leader(&outcome)), (None, Some((a, 1))));
    }

    pub(super) async fn a_dead_leader_is_replaced_by_what_commits<D: Elects>(url: String) {
        let ttl = Duration::from_secs(1);
        let world = World::new::<D>(url, ttl).await;
        let (a, b) = (id("a"), id("b"));
        assert!(world.elect::<D>(&a).await.unwrap().is_leader());
        // What this saw of the leader is what the next call goes by, where the database tells no ages.
        let early = world.elect::<D>(&b).await.unwrap();
        assert_eq!(leader(&early), Some((a.clone(), 1)));
        tokio::time::sleep(ttl + ttl / 4).await;

        let before = world.objects().await;
        let mut connection = world.connect::<D>().await;
        let begun = connection.begin_with(D::Connection::BEGIN).await;
        let mut transaction = begun.unwrap();
        let outcome = world.elections.elect_tx(&mut *transaction, &b).await;
        assert_eq!(term(&outcome.unwrap()), Some(2));
        transaction.rollback().await.unwrap();
        assert_eq!(world.objects().await, before, "the dead one was evicted");

        assert_eq!(term(&world.elect::<D>(&b).await.unwrap()), Some(2));
        let outcome = world.elections.elect(&a).await.unwrap();
        assert_eq!((term(&outcome), leader(&outcome)), (None, Some((b, 2))));
    }

    pub(super) async fn nobody_waits_for_a_ttl_in_a_transaction<D: Elects>(url: String) {
        let world = World::new::<D>(url, TTL).await;
        assert!(world.elect::<D>(&id("a")).await.unwrap().is_leader());
        let lease = Key::new(format!("{}/elections/default", world.namespace)).unwrap();
        world.store.delete(&lease).await.unwrap();
        let before = world.objects().await;
        let refused = timeout(PATIENCE, world.elect::<D>(&id("b"))).await;
        let refused = refused.expect("it waits");
        assert!(
            matches!(
                refused,
                Err(TransactionError::Election(Error::MustWait { .. }))
            ),
            "{refused:?}"
        );
        assert_eq!(world.objects().await, before);
    }
}

#[tokio::test]
async fn a_database_without_the_table_is_not_the_store() {
    let store = tenure::store::open("memory:").await.unwrap();
    let elections = OneShot::new(store, "default", TTL).unwrap();
    let mut sqlite = sqlx::SqliteConnection::connect("sqlite::memory:")
        .await
        .unwrap();
    let mut transaction = sqlite.begin().await.unwrap();
    let elected = elections.elect_tx(&mut *transaction, &id("a")).await;
    assert!(
        matches!(elected, Err(TransactionError::NoStore)),
        "{elected:?}"
    );
    transaction.rollback().await.unwrap();

    let Some(url) = url("TENURE_TEST_POSTGRES") else {
        return;
    };
    let mut postgres = sqlx::PgConnection::connect(&url).await.unwrap();
    let mut transaction = postgres.begin().await.unwrap();
    let elsewhere = "SET LOCAL search_path = pg_temp";
    transaction.execute(elsewhere).await.unwrap();
    let elected = elections.elect_tx(&mut *transaction, &id("a")).await;
    assert!(
        matches!(elected, Err(TransactionError::NoStore)),
        "{elected:?}"
    );
    // The transaction is as it was.
    transaction.execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn postgres_is_told_to_be_durable_and_not_to_wait_for_ever() {
    let Some(url) = url("TENURE_TEST_POSTGRES") else {
        return;
    };
    let world = World::new::<sqlx::Postgres>(url, TTL).await;
    let mut connection = world.connect::<sqlx::Postgres>().await;
    let show = "SELECT current_setting('synchronous_commit') || ' ' \
                || current_setting('idle_in_transaction_session_timeout')";
    let settings = async |connection: &mut sqlx::PgConnection| -> String {
        connection.fetch_one(show).await.unwrap().get(0)
    };
    let before = "SET synchronous_commit = off; SET idle_in_transaction_session_timeout = 0";
    connection.execute(before).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let outcome = world.elections.elect_tx(&mut *transaction, &id("a")).await;
    assert!(outcome.unwrap().is_leader());
    assert_eq!(settings(&mut transaction).await, "on 2min");
    transaction.commit().await.unwrap();
    // Others use the same session, behind a pooler.
    assert_eq!(settings(&mut connection).await, "off 0");
}
