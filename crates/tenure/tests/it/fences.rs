//! Fenced transactions on real databases: whatever an older term does, it never commits in a newer one.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor};
use tenure::{FenceError, Fenceable};
use tenure_core::Incarnation;
use tenure_core::election::{Fence, Term};
use tenure_store::Expect;

use crate::support::{PATIENCE, elected, namespace, node, url};

/// Long enough that no trust runs out on a slow machine: only the fence is at work here.
const TTL: Duration = PATIENCE;

#[tokio::test]
async fn postgres_commits_only_in_the_current_term() {
    let Some(url) = url("TENURE_TEST_POSTGRES") else {
        return;
    };
    takeover_waits_for_an_open_transaction::<sqlx::Postgres>(&url).await;
}

#[tokio::test]
async fn postgres_behind_a_pooler_commits_only_in_the_current_term() {
    let Some(url) = url("TENURE_TEST_PGBOUNCER") else {
        return;
    };
    let direct = crate::support::url("TENURE_TEST_POSTGRES");
    // The table of the test is made directly; PgBouncer 1.18 may lose prepared statements.
    if direct.is_some() {
        takeover_waits_for_an_open_transaction::<sqlx::Postgres>(&url).await;
    }
}

#[tokio::test]
async fn mariadb_commits_only_in_the_current_term() {
    let Some(url) = url("TENURE_TEST_MYSQL") else {
        return;
    };
    takeover_waits_for_an_open_transaction::<sqlx::MySql>(&url).await;
}

/// A leader that stops in the middle of its transaction keeps nobody from taking over for hours.
#[tokio::test]
async fn mariadb_ends_a_fenced_transaction_that_is_left_idle() {
    let Some(url) = url("TENURE_TEST_MYSQL") else {
        return;
    };
    let node = node(&url, &namespace(), "a", Duration::from_secs(2)).await;
    let election = node.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let mut connection = sqlx::MySqlConnection::connect(&url).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    leadership.fence(&mut *transaction).await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    let ended = transaction.execute("SELECT 1").await;
    assert!(ended.is_err(), "it is still open");
}

/// An idle transaction of a leader on SQLite would keep every heartbeat from the file: it is ended before anybody's session is.
#[tokio::test]
async fn sqlite_transactions_end_before_heartbeats_are_late() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    transactions_end_in_time::<sqlx::Sqlite>(&url).await;
}

#[tokio::test]
async fn postgres_transactions_end_in_time() {
    if let Some(url) = url("TENURE_TEST_POSTGRES") {
        transactions_end_in_time::<sqlx::Postgres>(&url).await;
    }
}

#[tokio::test]
async fn mariadb_transactions_end_in_time() {
    if let Some(url) = url("TENURE_TEST_MYSQL") {
        transactions_end_in_time::<sqlx::MySql>(&url).await;
    }
}

async fn transactions_end_in_time<D>(url: &str)
where
    D: sqlx::Database,
    D::Connection: Fenceable + Connection<Database = D>,
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
{
    let namespace = namespace();
    let ttl = Duration::from_secs(6);
    let a = node(url, &namespace, "a", ttl).await;
    let b = node(url, &namespace, "b", ttl).await;
    b.joined().await.unwrap();
    let before = b.session();
    let election = a.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let mut connection = D::Connection::connect(url).await.unwrap();
    let table = format!("fenced_{}", uuid::Uuid::new_v4().simple());
    let sql = |text: String| sqlx::raw_sql(AssertSqlSafe(text));
    let create = format!("CREATE TABLE {table} (number BIGINT NOT NULL)");
    connection.execute(sql(create)).await.unwrap();
    let insert = |number: u64| sql(format!("INSERT INTO {table} VALUES ({number})"));

    // Done, failed, too long, and dropped.
    let done = async |transaction: &mut D::Connection| {
        transaction.execute(insert(1)).await.unwrap();
        Ok::<_, FenceError>(7)
    };
    let done = leadership.transaction(&mut connection, done).await;
    assert_eq!(done.unwrap(), 7);
    let failed = async |transaction: &mut D::Connection| {
        transaction.execute(insert(2)).await.unwrap();
        Err::<(), _>(FenceError::NoTransaction)
    };
    let failed = leadership.transaction(&mut connection, failed).await;
    assert!(
        matches!(failed, Err(FenceError::NoTransaction)),
        "{failed:?}"
    );
    let idle = async |number: u64, transaction: &mut D::Connection| {
        transaction.execute(insert(number)).await.unwrap();
        std::future::pending::<Result<(), FenceError>>().await
    };
    let too_long = async |transaction: &mut D::Connection| idle(3, transaction).await;
    let too_long = leadership.transaction(&mut connection, too_long);
    let too_long = tokio::time::timeout(ttl, too_long).await.unwrap();
    assert!(
        matches!(too_long, Err(FenceError::TooLong { .. })),
        "{too_long:?}"
    );
    let dropped = async |transaction: &mut D::Connection| idle(4, transaction).await;
    let dropped = leadership.transaction(&mut connection, dropped);
    let dropped = tokio::time::timeout(Duration::from_millis(300), dropped).await;
    dropped.unwrap_err();

    let rows = sql(format!("SELECT number FROM {table}"));
    let rows = connection.fetch_all(rows).await.unwrap();
    assert_eq!(rows.len(), 1, "only what was committed");
    // Both sessions have lived through it.
    tokio::time::sleep(ttl).await;
    leadership.check().unwrap();
    assert_eq!(b.session(), before);
    connection
        .execute(sql(format!("DROP TABLE {table}")))
        .await
        .unwrap();
    a.shutdown().await;
    b.shutdown().await;
}

/// A transaction that is open when leadership moves commits before the new term begins; one that begins
/// later fails.
async fn takeover_waits_for_an_open_transaction<D>(url: &str)
where
    D: sqlx::Database,
    D::Connection: Fenceable,
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
{
    let namespace = namespace();
    let table = format!("fenced_{}", uuid::Uuid::new_v4().simple());
    let sql = |text: String| AssertSqlSafe(text);
    let mut connection = D::Connection::connect(url).await.unwrap();
    let create = format!("CREATE TABLE {table} (term BIGINT NOT NULL)");
    connection
        .execute(sqlx::raw_sql(sql(create)))
        .await
        .unwrap();

    let (a, b) = (
        node(url, &namespace, "a", TTL).await,
        node(url, &namespace, "b", TTL).await,
    );
    let election_a = a.join("e").await.unwrap();
    let old = elected(&election_a).await;

    let mut transaction = connection.begin().await.unwrap();
    old.fence(&mut *transaction).await.unwrap();
    let insert = format!("INSERT INTO {table} VALUES (1)");
    transaction
        .execute(sqlx::raw_sql(sql(insert.clone())))
        .await
        .unwrap();

    // Leadership moves while the transaction is open: the successor has the lease, but not the fence.
    let election_b = b.join("e").await.unwrap();
    old.resign();
    let status = || async { b.view().status(election_b.name()).await.unwrap() };
    while status()
        .await
        .leader()
        .is_none_or(|leader| leader.node.as_str() != "b")
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // It asks for the fence at once when it has the lease, and again and again.
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(
            !election_b.is_leader(),
            "elected beside an open fenced transaction"
        );
        assert_eq!(status().await.fence.unwrap().term, old.term());
    }

    transaction.commit().await.unwrap();
    let new = elected(&election_b).await;
    assert!(new.term() > old.term());

    let mut late = connection.begin().await.unwrap();
    let refused = old.fence(&mut *late).await.unwrap_err();
    assert!(matches!(refused, FenceError::Stale(_)), "{refused}");
    late.rollback().await.unwrap();
    let mut current = connection.begin().await.unwrap();
    new.fence(&mut *current).await.unwrap();
    current.commit().await.unwrap();

    let rows = format!("SELECT term FROM {table}");
    let rows = connection
        .fetch_all(sqlx::raw_sql(sql(rows)))
        .await
        .unwrap();
    assert_eq!(rows.len(), 1, "one transaction wrote, and committed");

    let refused = new.fence(&mut connection).await.unwrap_err();
    assert!(matches!(refused, FenceError::NoTransaction), "{refused}");
    a_fence_that_is_not_ours_is_refused::<D>(&b, &new, &mut connection).await;
    let drop = format!("DROP TABLE {table}");
    connection.execute(sqlx::raw_sql(sql(drop))).await.unwrap();
    a.shutdown().await;
    b.shutdown().await;
}

/// What a fail-over that lost commits, or a restore, leaves behind: an older term, or the same term of another
/// process. Rows are changed by hand, as no other leader would.
async fn a_fence_that_is_not_ours_is_refused<D>(
    node: &tenure::Node,
    leadership: &tenure::Leadership,
    connection: &mut D::Connection,
) where
    D: sqlx::Database,
    D::Connection: Fenceable,
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
{
    let store = node.view().store().clone();
    let key = leadership.fence_key();
    let own = store.get(key).await.unwrap().unwrap();
    let fence = Fence::decode(&own.value).unwrap();
    let mut older = fence.clone();
    older.term = Term(fence.term.0 - 1);
    let mut of_another = fence.clone();
    of_another.holder.incarnation = Incarnation(fence.holder.incarnation.0 ^ 1);
    let mut version = own.version;
    for foreign in [older, of_another] {
        let expect = Expect::Version(version);
        version = store
            .put(key, foreign.encode().into(), &expect)
            .await
            .unwrap();
        let mut transaction = connection.begin().await.unwrap();
        let refused = leadership.fence(&mut *transaction).await.unwrap_err();
        assert!(matches!(refused, FenceError::Foreign { .. }), "{refused}");
        transaction.rollback().await.unwrap();
    }
    store
        .put(key, own.value, &Expect::Version(version))
        .await
        .unwrap();
    let mut transaction = connection.begin().await.unwrap();
    leadership.fence(&mut *transaction).await.unwrap();
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn sqlite_refuses_the_first_write_of_a_transaction_from_before_the_takeover() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let url = format!("sqlite:{}", path.display());
    let namespace = namespace();
    let a = node(&url, &namespace, "a", TTL).await;
    let election_a = a.join("e").await.unwrap();
    let old = elected(&election_a).await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let mut connection = sqlx::SqliteConnection::connect_with(&options)
        .await
        .unwrap();
    connection
        .execute("CREATE TABLE fenced (term INTEGER)")
        .await
        .unwrap();

    let mut transaction = connection.begin().await.unwrap();
    old.fence(&mut *transaction).await.unwrap();
    let b = node(&url, &namespace, "b", TTL).await;
    let election_b = b.join("e").await.unwrap();
    old.resign();
    let new = elected(&election_b).await;
    let refused = transaction
        .execute("INSERT INTO fenced VALUES (1)")
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("locked"), "{refused}");
    transaction.rollback().await.unwrap();

    let mut late = connection.begin().await.unwrap();
    let refused = old.fence(&mut *late).await.unwrap_err();
    assert!(matches!(refused, FenceError::Stale(_)), "{refused}");
    late.rollback().await.unwrap();

    // A heartbeat between the look at the fence and the first write would end a deferred one, as the takeover did.
    let mut current = connection.begin_with("BEGIN IMMEDIATE").await.unwrap();
    new.fence(&mut *current).await.unwrap();
    current
        .execute("INSERT INTO fenced VALUES (2)")
        .await
        .unwrap();
    current.commit().await.unwrap();

    let refused = new.fence(&mut connection).await.unwrap_err();
    assert!(matches!(refused, FenceError::NoTransaction), "{refused}");
    a_fence_that_is_not_ours_is_refused::<sqlx::Sqlite>(&b, &new, &mut connection).await;
    a.shutdown().await;
    b.shutdown().await;
}
