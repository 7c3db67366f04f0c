//! The views of SQL engines, which show people what is stored: beside a real election and a real daemon.

use std::time::Duration;

use sqlx::{AssertSqlSafe, ColumnIndex, Connection, Decode, Executor, Row, Type};
use tenure::Node;
use tenure::cluster::{self, Definition};

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
    let daemon = Board::new().daemon("d");
    cluster.register(daemon, Definition::shards(2)).unwrap();

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

    node.shutdown().await;
    let leads = "state, leader FROM tenure_leaders WHERE since IS NULL";
    assert_eq!(select(leads).await, [Some("vacant".to_owned()), None]);
    let gone = "node, state FROM tenure_nodes WHERE incarnation <> ''";
    assert_eq!(select(gone).await, said(&["n1", "gone"]));
}
