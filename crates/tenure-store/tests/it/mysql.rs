use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use tenure_store::{Error, Expect};
use tenure_testkit::recording::Recording;

use crate::support::Log;
use crate::{sql, support};

const SERVER: &str = "TENURE_TEST_MYSQL";

#[tokio::test(flavor = "multi_thread")]
async fn keeps_the_contract() {
    if let Some(url) = support::url(SERVER) {
        sql::keeps_the_contract(&url).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_age_by_the_servers_clock_is_told_only_if_asked_for() {
    if let Some(url) = support::url(SERVER) {
        sql::has_an_age_only_if_asked(&url).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_increments_are_exact() {
    if let Some(url) = support::url(SERVER) {
        sql::thousand_increments_are_exact(&url).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_unknown_and_applied_once() {
    if let Some(url) = support::url(SERVER) {
        sql::a_lost_answer_is_unknown(&url).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_connections_are_replaced_before_a_write_is_sent() {
    if let Some(url) = support::url(SERVER) {
        sql::dead_connections_are_replaced(&url).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_open_an_empty_database_at_once() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    for _ in 0..3 {
        let (fresh, name) = fresh_database(&url).await;
        sql::open_at_once(&fresh).await;
        execute(&url, &format!("DROP DATABASE {name}")).await;
    }
}

/// This is a setting of the server and cannot be set per connection.
#[tokio::test]
async fn a_server_that_does_not_wait_for_its_disk_is_warned_of() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    const WARNING: &str = "innodb_flush_log_at_trx_commit is not 1: a crash can lose writes";
    for (setting, is_warned_of) in [("1", false), ("2", true), ("0", true), ("1", false)] {
        execute(
            &url,
            &format!("SET GLOBAL innodb_flush_log_at_trx_commit = {setting}"),
        )
        .await;
        let log = Log::default();
        let writer = tracing_subscriber::fmt().with_writer(log.clone()).finish();
        // This test's runtime has one thread.
        let recording = Recording::start(writer);
        let opened = tenure_store::open(&url).await;
        drop(recording);
        opened.unwrap();
        assert_eq!(log.text().contains(WARNING), is_warned_of, "{setting}");
    }
}

#[tokio::test]
async fn a_missing_database_or_wrong_password_is_refused_with_a_hint() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let missing = with(&url, |url| url.set_path("/no_such_database"));
    let error = tenure_store::open(&missing).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.hint().contains("create the database"), "{error:?}");

    let user = fresh_name();
    execute(&url, &format!("CREATE USER {user} IDENTIFIED BY 'right'")).await;
    let wrong = with(&url, |url| {
        url.set_username(&user).unwrap();
        url.set_password(Some(sql::PASSWORD)).unwrap();
    });
    let error = tenure_store::open(&wrong).await.unwrap_err();
    execute(&url, &format!("DROP USER {user}")).await;
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.hint().contains("password"), "{error:?}");
    let everything = sql::everything(&error);
    assert!(!everything.contains(sql::PASSWORD), "{everything}");
}

#[tokio::test]
async fn a_user_without_rights_can_use_what_exists_and_is_told_what_is_missing() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let (fresh, database) = fresh_database(&url).await;
    let user = fresh_name();
    execute(
        &fresh,
        &format!("CREATE USER {user} IDENTIFIED BY '{}'", sql::PASSWORD),
    )
    .await;
    execute(&fresh, &format!("GRANT SELECT ON {database}.* TO {user}")).await;
    let reader = with(&fresh, |url| {
        url.set_username(&user).unwrap();
        url.set_password(Some(sql::PASSWORD)).unwrap();
    });
    let error = tenure_store::open(&reader).await.unwrap_err();
    assert!(error.hint().contains("CREATE"), "{error:?}");

    let key = sql::fresh_key();
    let owner = tenure_store::open(&fresh).await.unwrap();
    owner.put(&key, "x".into(), &Expect::Absent).await.unwrap();
    let store = tenure_store::open(&reader).await.unwrap();
    assert!(!format!("{store:?}{:?}", store.describe()).contains(sql::PASSWORD));
    let object = store.get(&key).await.unwrap().unwrap();
    let put = store
        .put(&key, "y".into(), &Expect::Version(object.version))
        .await;
    assert!(matches!(put, Err(Error::Refused { .. })), "{put:?}");
    assert_eq!(store.get(&key).await.unwrap().unwrap().value, "x");
    execute(&url, &format!("DROP DATABASE {database}")).await;
    execute(&url, &format!("DROP USER {user}")).await;
}

/// Another connection locks the row for longer than a writer waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_waits_in_vain_has_written_nothing() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let store = tenure_store::open(&url).await.unwrap();
    let key = sql::fresh_key();
    let version = store
        .put(&key, "first".into(), &Expect::Absent)
        .await
        .unwrap();
    let mut other = MySqlConnection::connect(&url).await.unwrap();
    let hold = format!("SELECT 1 FROM tenure_objects WHERE `key` = '{key}' FOR UPDATE");
    other.execute("BEGIN").await.unwrap();
    other.execute(AssertSqlSafe(hold)).await.unwrap();
    let put = store
        .put(&key, "late".into(), &Expect::Version(version.clone()))
        .await;
    assert!(matches!(put, Err(Error::Unavailable { .. })), "{put:?}");
    other.execute("ROLLBACK").await.unwrap();
    let object = store.get(&key).await.unwrap().unwrap();
    assert_eq!((&*object.value, object.version), (&b"first"[..], version));
    store.delete(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_costs_no_more_connections_than_the_pool_has() {
    use sqlx::Row;
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let (fresh, name) = fresh_database(&url).await;
    drop(tenure_store::open(&fresh).await.unwrap());
    let mut other = MySqlConnection::connect(&fresh).await.unwrap();
    other
        .execute("LOCK TABLES tenure_objects WRITE")
        .await
        .unwrap();
    let unlock = async {
        other.execute("UNLOCK TABLES").await.unwrap();
    };
    let count = async || -> i64 {
        let mut connection = MySqlConnection::connect(&url).await.unwrap();
        let count =
            format!("SELECT count(*) FROM information_schema.processlist WHERE db = '{name}'");
        let row = sqlx::raw_sql(AssertSqlSafe(count)).fetch_one(&mut connection);
        row.await.unwrap().get(0)
    };
    // The additional connection is the one that holds the lock.
    sql::a_locked_table_costs_no_more_than_the_pool(&fresh, 3 * 8 + 1, count, unlock).await;
    execute(&url, &format!("DROP DATABASE {name}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_looks_makes_no_table() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let (fresh, name) = fresh_database(&url).await;
    for _ in 0..2 {
        let error = tenure_store::open_existing(&fresh).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    }
    drop(tenure_store::open(&fresh).await.unwrap());
    drop(tenure_store::open_existing(&fresh).await.unwrap());
    execute(&url, &format!("DROP DATABASE {name}")).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let url = format!("mysql://someone:{}@127.0.0.1:1/tenure", sql::PASSWORD);
    let error = tenure_store::open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(!sql::everything(&error).contains(sql::PASSWORD));
}

#[tokio::test]
async fn an_unknown_parameter_is_named_and_its_value_is_not() {
    let url = format!("mysql://127.0.0.1:1/tenure?passwort={}", sql::PASSWORD);
    let error = tenure_store::open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert!(error.to_string().contains("passwort"), "{error}");
    assert!(!sql::everything(&error).contains(sql::PASSWORD));
}

fn with(url: &str, change: impl FnOnce(&mut url::Url)) -> String {
    let mut url: url::Url = url.parse().unwrap();
    change(&mut url);
    url.to_string()
}

fn fresh_name() -> String {
    format!(
        "tenure_{}",
        &uuid::Uuid::new_v4().simple().to_string()[..16]
    )
}

/// The URL and the name of a new database.
async fn fresh_database(url: &str) -> (String, String) {
    let name = fresh_name();
    execute(url, &format!("CREATE DATABASE {name}")).await;
    (with(url, |url| url.set_path(&name)), name)
}

async fn execute(url: &str, statement: &str) {
    let mut connection = MySqlConnection::connect(url).await.unwrap();
    connection.execute(AssertSqlSafe(statement)).await.unwrap();
}
