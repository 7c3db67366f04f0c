use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};
use tenure_store::{Error, Expect, Hint, Key, Prefix};
use tokio::time::timeout;

use crate::{sql, support};

mod announcements;
mod durability;
mod restart;

const SERVER: &str = "TENURE_TEST_POSTGRES";
const NEWER: &str = "TENURE_TEST_POSTGRES_NEW";
const POOLER: &str = "TENURE_TEST_PGBOUNCER";

#[tokio::test(flavor = "multi_thread")]
async fn keeps_the_contract() {
    if let Some(url) = support::url(SERVER) {
        assert!(
            tenure_store::open(&url)
                .await
                .unwrap()
                .describe()
                .capabilities
                .hints
        );
        sql::keeps_the_contract(&url).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_the_contract_on_a_newer_server() {
    if let Some(url) = support::url(NEWER) {
        sql::keeps_the_contract(&url).await;
        sql::thousand_increments_are_exact(&url).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_the_contract_behind_a_transaction_pooler() {
    if let Some(url) = support::url(POOLER) {
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
async fn thousand_increments_behind_a_transaction_pooler_are_exact() {
    if let Some(url) = support::url(POOLER) {
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
        execute(&url, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_make_views_goes_on_without() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let (fresh, name) = fresh_database(&url).await;
    drop(tenure_store::open(&fresh).await.unwrap());
    let role = format!("{name}_role");
    for statement in [
        // Fails unless all of them exist.
        "DROP VIEW tenure_daemons, tenure_leaders, tenure_nodes",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        &format!("CREATE ROLE {role} LOGIN"),
        &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON tenure_objects TO {role}"),
    ] {
        execute(&fresh, statement).await;
    }
    let limited = with(&fresh, |url| url.set_username(&role).unwrap());
    let store = tenure_store::open(&limited).await.unwrap();
    let key = Key::new("a/b").unwrap();
    store.put(&key, "1".into(), &Expect::Absent).await.unwrap();
    drop(store);
    // Fails if it exists.
    execute(&fresh, "CREATE VIEW tenure_nodes AS SELECT 1").await;
    execute(&url, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
    execute(&url, &format!("DROP ROLE {role}")).await;
}

/// Also while the pooler is busy with others: a store that relied on hints there would wait for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_pooler_is_recognised() {
    let Some(url) = support::url(POOLER) else {
        return;
    };
    // Opens as many connections as all of this needs at once, so that the pooler has them already.
    let options: PgConnectOptions = url.parse().unwrap();
    let options = options.extra_float_digits(None);
    let mut held = Vec::new();
    for _ in 0..12 {
        let mut connection = options.connect().await.unwrap();
        connection.execute("BEGIN").await.unwrap();
        held.push(connection);
    }
    for mut connection in held {
        connection.execute("ROLLBACK").await.unwrap();
    }
    let busy = tenure_store::open(&url).await.unwrap();
    let key = sql::fresh_key();
    let readers: Vec<_> = (0..6)
        .map(|_| {
            let (store, key) = (busy.clone(), key.clone());
            tokio::spawn(async move {
                loop {
                    store.get(&key).await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..40 {
        let store = tenure_store::open(&url).await.unwrap();
        assert!(!store.describe().capabilities.hints);
        assert!(store.watch(&Prefix::new("it/somewhere").unwrap()).is_none());
    }
    readers.iter().for_each(|reader| reader.abort());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_made_through_a_pooler_is_heard_by_who_is_connected_directly() {
    let (Some(direct), Some(pooled)) = (support::url(SERVER), support::url(POOLER)) else {
        return;
    };
    let listener = tenure_store::open(&direct).await.unwrap();
    let writer = tenure_store::open(&pooled).await.unwrap();
    let key = sql::fresh_key();
    let mut watch = listener.watch(&folder_of(&key)).unwrap();
    assert_eq!(hint(&mut watch).await, Hint::Anything);
    writer.put(&key, "x".into(), &Expect::Absent).await.unwrap();
    assert_eq!(hint(&mut watch).await, Hint::Changed(key.clone()));
    writer.delete(&key).await.unwrap();
    assert_eq!(hint(&mut watch).await, Hint::Changed(key));
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_come_back_after_the_connection_was_lost() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let (proxy, proxied) = sql::through_a_proxy(&url).await;
    let store = tenure_store::open(&proxied).await.unwrap();
    let writer = tenure_store::open(&url).await.unwrap();
    let keys = [sql::fresh_key(), sql::fresh_key()];
    let mut expects = [Expect::Absent, Expect::Absent];
    let mut watches = keys
        .each_ref()
        .map(|key| store.watch(&folder_of(key)).unwrap());
    for _ in 0..3 {
        for ((watch, key), expect) in watches.iter_mut().zip(&keys).zip(&mut expects) {
            assert_eq!(hint(watch).await, Hint::Anything);
            *expect = Expect::Version(writer.put(key, "x".into(), expect).await.unwrap());
            assert_eq!(hint(watch).await, Hint::Changed(key.clone()));
        }
        proxy.cut().await;
    }
}

#[tokio::test]
async fn hints_can_be_turned_off() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let quiet = with(&url, |url| url.set_query(Some("hints=off")));
    let store = tenure_store::open(&quiet).await.unwrap();
    assert!(!store.describe().capabilities.hints);
    assert!(store.watch(&Prefix::new("it/somewhere").unwrap()).is_none());
}

#[tokio::test]
async fn a_watch_needs_two_segments() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let store = tenure_store::open(&url).await.unwrap();
    assert!(store.watch(&Prefix::new("it").unwrap()).is_none());
    assert!(store.watch(&Prefix::new("it/it").unwrap()).is_some());
}

/// A caller with a timeout drops its future while the server waits for a lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_write_leaves_no_connection_that_answers_the_wrong_question() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let store = tenure_store::open(&url).await.unwrap();
    let key = sql::fresh_key();
    let version = store
        .put(&key, "first".into(), &Expect::Absent)
        .await
        .unwrap();
    let mut other = hold(&url, &key).await;
    let expect = Expect::Version(version);
    for _ in 0..20 {
        let put = store.put(&key, "dropped".into(), &expect);
        assert!(timeout(Duration::from_millis(20), put).await.is_err());
        let read = store.get(&key).await.unwrap().unwrap();
        assert_eq!(read.value, "first");
    }
    other.execute("ROLLBACK").await.unwrap();
    // One of the dropped writes may be applied now, as the contract allows, but only one.
    for index in 0..20 {
        let key = Key::new(format!("{key}-{index}")).unwrap();
        let value = format!("value {index}");
        store
            .put(&key, value.clone().into(), &Expect::Absent)
            .await
            .unwrap();
        assert_eq!(store.get(&key).await.unwrap().unwrap().value, value);
        store.delete(&key).await.unwrap();
    }
    store.delete(&key).await.unwrap();
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
    let mut other = hold(&url, &key).await;
    let put = store
        .put(&key, "late".into(), &Expect::Version(version.clone()))
        .await;
    assert!(matches!(put, Err(Error::Unavailable { .. })), "{put:?}");
    other.execute("ROLLBACK").await.unwrap();
    let object = store.get(&key).await.unwrap().unwrap();
    assert_eq!((&*object.value, object.version), (&b"first"[..], version));
    store.delete(&key).await.unwrap();
}

/// How many connections to a database there are, without this one.
async fn connections(url: &str, database: &str) -> i64 {
    use sqlx::Row;
    let mut connection = PgConnection::connect(url).await.unwrap();
    let count = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND application_name = 'tenure'"
    );
    let row = sqlx::raw_sql(AssertSqlSafe(count)).fetch_one(&mut connection);
    row.await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_costs_no_more_connections_than_the_pool_has() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let (fresh, name) = fresh_database(&url).await;
    drop(tenure_store::open(&fresh).await.unwrap());
    let mut other = PgConnection::connect(&fresh).await.unwrap();
    other.execute("BEGIN").await.unwrap();
    other.execute("LOCK TABLE tenure_objects").await.unwrap();
    let unlock = async {
        other.execute("ROLLBACK").await.unwrap();
    };
    let count = async || connections(&url, &name).await;
    sql::a_locked_table_costs_no_more_than_the_pool(&fresh, 3 * 8, count, unlock).await;
    execute(&url, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_used_holds_no_connection() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let (fresh, name) = fresh_database(&url).await;
    let store = tenure_store::open(&fresh).await.unwrap();
    let settles_at = async |most: i64| {
        let started = std::time::Instant::now();
        while connections(&url, &name).await > most {
            // A connection that was opened because others were busy is closed after a while without use.
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "more than {most}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    settles_at(0).await;
    // Requests that come at once take turns.
    let key = sql::fresh_key();
    for _ in 0..10 {
        let (one, two) = tokio::join!(store.get(&key), store.get(&key));
        assert!(one.unwrap().is_none() && two.unwrap().is_none());
    }
    settles_at(1).await;
    drop(store);
    execute(&url, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
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
    execute(&url, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_tls_is_required() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    // As for a server on another host, where the URL says nothing about TLS.
    let join = if url.contains('?') { '&' } else { '?' };
    let error = tenure_store::open(&format!("{url}{join}sslmode=require"))
        .await
        .expect_err("the server of the tests has no TLS");
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(error.hint().contains("sslmode=disable"), "{error:?}");
}

#[tokio::test]
async fn a_missing_database_is_refused_with_a_hint() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let missing = with(&url, |url| {
        url.set_path("/no_such_database");
        url.set_password(Some(sql::PASSWORD)).unwrap();
    });
    let error = tenure_store::open(&missing).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.hint().contains("create the database"), "{error:?}");
    assert!(!sql::everything(&error).contains(sql::PASSWORD));
}

#[tokio::test]
async fn a_user_without_rights_can_use_what_exists_and_is_told_what_is_missing() {
    let Some(url) = support::url(SERVER) else {
        return;
    };
    let (fresh, database) = fresh_database(&url).await;
    let user = fresh_name();
    execute(&fresh, "REVOKE CREATE ON SCHEMA public FROM PUBLIC").await;
    execute(&fresh, &format!("CREATE ROLE {user} LOGIN")).await;
    let reader = with(&fresh, |url| {
        url.set_username(&user).unwrap();
        url.set_password(Some(sql::PASSWORD)).unwrap();
    });
    let error = tenure_store::open(&reader).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.hint().contains("CREATE"), "{error:?}");

    let key = sql::fresh_key();
    let owner = tenure_store::open(&fresh).await.unwrap();
    owner.put(&key, "x".into(), &Expect::Absent).await.unwrap();
    execute(&fresh, &format!("GRANT SELECT ON tenure_objects TO {user}")).await;
    let store = tenure_store::open(&reader).await.unwrap();
    assert!(!format!("{store:?}{:?}", store.describe()).contains(sql::PASSWORD));
    let object = store.get(&key).await.unwrap().unwrap();
    let put = store
        .put(&key, "y".into(), &Expect::Version(object.version))
        .await;
    assert!(matches!(put, Err(Error::Refused { .. })), "{put:?}");
    assert_eq!(store.get(&key).await.unwrap().unwrap().value, "x");
    drop((store, owner));
    execute(&url, &format!("DROP DATABASE {database} WITH (FORCE)")).await;
    execute(&url, &format!("DROP ROLE {user}")).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let url = format!("postgres://someone:{}@127.0.0.1:1/tenure", sql::PASSWORD);
    let error = tenure_store::open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let everything = sql::everything(&error);
    assert!(!everything.contains(sql::PASSWORD), "{everything}");
    assert!(
        everything.contains("postgres://127.0.0.1:1/tenure"),
        "{everything}"
    );
}

#[tokio::test]
async fn an_unknown_parameter_is_named_and_its_value_is_not() {
    for (parameter, named) in [("passwort", true), ("sslmode", false), ("hints", true)] {
        let url = format!(
            "postgres://127.0.0.1:1/tenure?{parameter}={}",
            sql::PASSWORD
        );
        let error = tenure_store::open(&url).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert_eq!(error.to_string().contains(parameter), named, "{error}");
        assert!(!sql::everything(&error).contains(sql::PASSWORD));
    }
}

async fn hint(watch: &mut tenure_store::Watch) -> Hint {
    timeout(Duration::from_secs(20), watch.next())
        .await
        .expect("a hint comes")
        .expect("the watch goes on")
}

fn folder_of(key: &Key) -> Prefix {
    let (folder, _) = key.as_str().rsplit_once('/').unwrap();
    Prefix::new(folder).unwrap()
}

/// A connection that keeps all others from changing the object until it rolls back.
async fn hold(url: &str, key: &Key) -> PgConnection {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let statement = format!("SELECT 1 FROM tenure_objects WHERE key = '{key}' FOR UPDATE");
    connection.execute("BEGIN").await.unwrap();
    connection.execute(AssertSqlSafe(statement)).await.unwrap();
    connection
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
    let mut connection = PgConnection::connect(url).await.unwrap();
    connection.execute(AssertSqlSafe(statement)).await.unwrap();
}
