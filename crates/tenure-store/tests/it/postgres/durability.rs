//! What makes a write durable, and which servers are refused. With servers started by the tests.

use std::time::Duration;

use sqlx::{Connection, Executor, PgConnection, Row};
use tenure_store::{Error, Expect, Key};
use tokio::time::sleep;

use super::restart::Server;
use crate::sql;

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure' AND wait_event = 'SyncRep'";

const LET_GO: &str =
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

/// A server takes a while to learn that there is a standby to wait for: its checkpointer tells the other processes.
async fn until_commits_wait(admin: &mut PgConnection, url: &str) {
    for number in 0.. {
        let mut probe = PgConnection::connect(url).await.unwrap();
        let table = format!("CREATE TABLE probe_{number} ()");
        let waits = tokio::spawn(async move {
            probe.execute("SET synchronous_commit = on").await.unwrap();
            probe.execute(sqlx::AssertSqlSafe(table)).await.unwrap();
        });
        while !waits.is_finished() {
            let found = admin.fetch_all(LET_GO).await.unwrap();
            if !found.is_empty() {
                return waits.await.unwrap();
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What is acknowledged while `synchronous_commit` is off is lost when the server crashes. A commit that does not wait
/// for the disk does not wait for a standby either. There is no standby here, so waiting shows that a write asks for a
/// flush.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_synchronous_where_the_server_would_not_wait() {
    let Some(server) = Server::start("trust") else {
        return;
    };
    let url = server.url("");
    let mut admin = PgConnection::connect(&url).await.unwrap();
    for statement in [
        "ALTER DATABASE postgres SET synchronous_commit = off",
        "ALTER SYSTEM SET synchronous_commit = off",
        "SELECT pg_reload_conf()",
    ] {
        admin.execute(statement).await.unwrap();
    }
    let store = tenure_store::open(&url).await.unwrap();
    let key = Key::new("it/durable").unwrap();
    let created = store.put(&key, "0".into(), &Expect::Absent).await.unwrap();
    for statement in [
        "ALTER SYSTEM SET synchronous_standby_names = 'nobody'",
        "SELECT pg_reload_conf()",
    ] {
        admin.execute(statement).await.unwrap();
    }
    // Other connections do not wait.
    let mut other = PgConnection::connect(&url).await.unwrap();
    while other
        .fetch_one("SHOW synchronous_standby_names")
        .await
        .unwrap()
        .get::<String, _>(0)
        != "nobody"
    {
        sleep(Duration::from_millis(10)).await;
    }
    other.execute("CREATE TABLE other ()").await.unwrap();
    until_commits_wait(&mut admin, &url).await;
    for change in ["replace", "create", "delete"] {
        let (store, created) = (store.clone(), created.clone());
        let key = key.clone();
        let written = tokio::spawn(async move {
            match change {
                "replace" => {
                    let expect = Expect::Version(created);
                    store.put(&key, "1".into(), &expect).await.map(drop)
                }
                "create" => {
                    let key = Key::new("it/durable-2").unwrap();
                    store.put(&key, "1".into(), &Expect::Absent).await.map(drop)
                }
                _ => store.delete(&key).await,
            }
        });
        let waiting = async |admin: &mut PgConnection| -> i64 {
            admin.fetch_one(WAITING).await.unwrap().get(0)
        };
        while waiting(&mut admin).await == 0 {
            assert!(!written.is_finished(), "{change}: it waited for nothing");
            sleep(Duration::from_millis(10)).await;
        }
        // It is committed, with a warning that no standby has it.
        admin.execute(LET_GO).await.unwrap();
        // It may have timed out meanwhile: then its outcome is unknown.
        match written.await.unwrap() {
            Ok(()) | Err(Error::Unknown { .. }) => {}
            Err(error) => panic!("{change}: {error:?}"),
        }
    }
}

/// Its reads lag behind, so finished writes would seem to be missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused() {
    let Some(server) = Server::start("trust") else {
        return;
    };
    drop(tenure_store::open(&server.url("")).await.unwrap());
    let standby = tokio::task::block_in_place(|| server.standby());
    let error = tenure_store::open(&standby.url("")).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(sql::everything(&error).contains("standby"), "{error:?}");
    assert_eq!(error.hint(), "connect to the primary");
}
