//! The views of SQL engines, which show people what is stored: beside a real election and a real daemon.

use std::time::Duration;

use sqlx::{AssertSqlSafe, ColumnIndex, Connection, Decode, Executor, Row, Type};
use tenure::cluster::{self, Definition};
use tenure::daemon::{DaemonError, daemon};
use tenure::{Fenceable, Node, OneShot, Transactional};

use crate::cluster::Board;
use crate::support::{brisk, namespace, options, until, url};

/// Nothing here waits for it to end.
const TTL: Duration = Duration::from_secs(60);

#[tokio::test]
async fn postgres_shows_who_leads_who_is_there_and_what_runs() {
    if let Some(url) = url("TENURE_TEST_POSTGRES") {
        shows_who_leads_who_is_there_and_what_runs::<sqlx::Postgres>(&url).await;
    }
}

#[tokio::test]
async fn mariadb_shows_who_leads_who_is_there_and_what_runs() {
    if let Some(url) = url("TENURE_TEST_MYSQL") {
        shows_who_leads_who_is_there_and_what_runs::<sqlx::MySql>(&url).await;
    }
}

#[tokio::test]
async fn sqlite_shows_who_leads_who_is_there_and_what_runs() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store").display());
    shows_who_leads_who_is_there_and_what_runs::<sqlx::Sqlite>(&url).await;
}

async fn shows_who_leads_who_is_there_and_what_runs<D>(url: &str)
where
    D: sqlx::Database,
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
    D::Connection: Fenceable + Transactional,
    for<'r> Option<String>: Decode<'r, D> + Type<D>,
    usize: ColumnIndex<D::Row>,
{
    let namespace = namespace();
    let session = brisk(TTL);
    let member = cluster::Options {
        config: cluster::Config {
            cycle: Duration::from_millis(50),
            settle: Duration::from_millis(200),
            ..cluster::Config::for_session(&session)
        },
        ..cluster::Options::default()
    };
    let mut options = options(url, &namespace, "n1", session);
    options.address = Some("http://10.0.0.5:8080".to_owned());
    let node = Node::start(options).await.unwrap();
    let cluster = node.cluster(member).await.unwrap();
    let running = Board::new().daemon("d");
    cluster.register(running, Definition::shards(2)).unwrap();

    let mut connection = D::Connection::connect(url).await.unwrap();
    let mut select = async |what: &str| -> Vec<Option<String>> {
        let query = format!("SELECT {what} AND namespace = '{namespace}'");
        let rows = sqlx::raw_sql(AssertSqlSafe(query));
        let rows = rows.fetch_all(&mut connection).await.unwrap();
        let columns = |row: &D::Row| (0..row.len()).map(|at| row.get(at)).collect::<Vec<_>>();
        rows.iter().flat_map(columns).collect()
    };
    let said = |words: &[&str]| -> Vec<Option<String>> {
        words.iter().map(|word| Some((*word).to_owned())).collect()
    };
    let active =
        "node FROM tenure_daemons WHERE daemon = 'd' AND state = 'active' AND generation > 0";
    until("both shards run", async || {
        select(active).await == said(&["n1", "n1"])
    })
    .await;
    let leads = "leader, state, session, address FROM tenure_leaders WHERE election = 'tenure.cluster' AND term = 1";
    let expected = said(&["n1", "held", "alive", "http://10.0.0.5:8080"]);
    assert_eq!(select(leads).await, expected);
    let there =
        "node, state, address FROM tenure_nodes WHERE ttl_ms = 60000 AND joined_at <= heard_at";
    assert_eq!(
        select(there).await,
        said(&["n1", "alive", "http://10.0.0.5:8080"])
    );

    // One that fails again and again is shown as that, with what was wrong last.
    let failing = daemon("e", |_| async {
        Err::<(), DaemonError>("no such table".into())
    });
    cluster.register(failing, Definition::shards(1)).unwrap();
    let fails = "state, error FROM tenure_daemons WHERE daemon = 'e' AND failures > 1";
    until("it is shown as failing", async || {
        select(fails).await == said(&["failing", "no such table"])
    })
    .await;
    let runs = "state FROM tenure_daemons WHERE daemon = 'd' AND failures = 0 AND error IS NULL";
    assert_eq!(select(runs).await, said(&["active", "active"]));

    // One that has died is not shown as one that leads, though nobody has evicted it yet.
    let store = node.view().store().clone();
    let nightly = OneShot::new(store, &namespace, Duration::from_secs(2)).unwrap();
    let nightly = nightly.with_election("nightly").unwrap();
    let cron = "cron".parse().unwrap();
    assert!(nightly.elect(&cron).await.unwrap().is_leader());
    let state = "state, session FROM tenure_leaders WHERE election = 'nightly'";
    until("the view shows that it is dead", async || {
        let shown = select(state).await;
        shown == said(&["expired", "expired"]) || {
            assert_eq!(shown, said(&["held", "alive"]));
            false
        }
    })
    .await;
    let dead = "leader FROM tenure_leaders WHERE election = 'nightly' AND expires_at IS NOT NULL";
    assert_eq!(select(dead).await, said(&["cron"]));
    nightly.unregister_candidate(&cron).await.unwrap();

    // Asked in a transaction, the leader goes if that commits, and only then.
    let ops = "ops".parse().unwrap();
    let election = node.join("mails").await.unwrap();
    until("it leads", async || election.is_leader()).await;
    let (name, view) = (election.name(), node.view());
    // On SQLite a heartbeat would come between the look and the write.
    let begin = D::Connection::BEGIN;
    for commits in [false, true] {
        let mut other = D::Connection::connect(url).await.unwrap();
        let mut transaction = other.begin_with(begin).await.unwrap();
        view.request_resign_tx(&mut *transaction, name, &ops)
            .await
            .unwrap();
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
            let lease = view.status(name).await.unwrap().lease.unwrap();
            assert_eq!((lease.term.0, lease.request), (1, None));
        }
    }
    until("it has resigned", async || {
        let lease = view.status(name).await.unwrap().lease.unwrap();
        let first = lease.history.first();
        first.is_some_and(|past| past.reason == "resigned, asked by ops")
    })
    .await;
    let status = view.status(name).await.unwrap();
    if let Some(led_for) = status.led_for() {
        assert!(led_for < Duration::from_secs(60), "{led_for:?}");
    }

    node.shutdown().await;
    let leads =
        "state, leader FROM tenure_leaders WHERE since IS NULL AND election = 'tenure.cluster'";
    assert_eq!(select(leads).await, [Some("vacant".to_owned()), None]);
    let gone = "node, state FROM tenure_nodes WHERE node = 'n1'";
    assert_eq!(select(gone).await, said(&["n1", "gone"]));
}
