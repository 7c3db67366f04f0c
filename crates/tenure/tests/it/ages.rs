//! Clocks of stores that are wrong: nobody who lives is taken for dead, and a dead leader is replaced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use tenure::Node;
use tenure::core::session::Config;
use tenure::store::engine::object::Objects;
use tenure::store::{
    Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version, Watch,
};
use tenure_testkit::gcs::Gcs;

use crate::support::{elected, namespace, options, until, url};

const TTL: Duration = Duration::from_secs(4);

/// A store whose clock is believed, as it was before.
#[derive(Debug)]
struct Believing(Objects);

fn believed(object: Object) -> Object {
    Object {
        age: object.shown_age,
        ..object
    }
}

#[async_trait]
impl Store for Believing {
    fn describe(&self) -> Description {
        self.0.describe()
    }
    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        Ok(self.0.get(key).await?.map(believed))
    }
    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        Ok(match self.0.get_if_changed(key, version).await? {
            Change::Changed(object) => Change::Changed(believed(object)),
            change => change,
        })
    }
    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        self.0.put(key, value, expect).await
    }
    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.0.delete(key).await
    }
    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.0.list(prefix, after).await
    }
    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.0.watch(prefix)
    }
}

/// Two nodes on a bucket behind something that sends dates 12 s ahead. Whether the second is elected while
/// the first lives.
async fn is_usurped(node: impl AsyncFn(&str, Objects) -> Node) -> bool {
    let gcs = Gcs::start("bucket").await;
    gcs.set_date_ahead(12);
    let store = async || {
        let url = gcs.url().parse().unwrap();
        Objects::open_with(&url, Gcs::variables()).await.unwrap()
    };
    let a = node("a", store().await).await;
    let leads = a.join("e").await.unwrap();
    let first = elected(&leads).await;
    let b = node("b", store().await).await;
    let stands = b.join("e").await.unwrap();
    let started = Instant::now();
    while started.elapsed() < TTL * 2 {
        if stands.is_leader() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(leads.is_leader(), "the first leader was not left alone");
    assert_eq!(leads.leadership().map(|it| it.term()), Some(first.term()));
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_with_dates_ahead_makes_no_second_leader() {
    let space = namespace();
    let node = async |name: &str, store: Objects| {
        let options = options("", &space, name, Config::for_ttl(TTL));
        Node::start_with(Arc::new(store), options).await.unwrap()
    };
    assert!(!is_usurped(node).await);
}

/// What the test above would see if such a clock were believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_with_dates_ahead_that_is_believed_makes_one() {
    let space = namespace();
    let node = async |name: &str, store: Objects| {
        let options = options("", &space, name, Config::for_ttl(TTL));
        let store = Arc::new(Believing(store));
        Node::start_with(store, options).await.unwrap()
    };
    assert!(is_usurped(node).await);
}

/// A node that does nothing but stand in an election.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_node_on_postgres_holds_two_connections() {
    use sqlx::{AssertSqlSafe, Connection, Row};
    let Some(server) = url("TENURE_TEST_POSTGRES") else {
        return;
    };
    let name = format!("tenure-{}", uuid::Uuid::new_v4().simple());
    let separator = if server.contains('?') { '&' } else { '?' };
    let named = format!("{server}{separator}application_name={name}");
    let options = options(&named, &namespace(), "a", Config::for_ttl(TTL));
    let node = Node::start(options).await.unwrap();
    let election = node.join("e").await.unwrap();
    let _leadership = elected(&election).await;
    let mut connection = sqlx::PgConnection::connect(&server).await.unwrap();
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'");
    let mut looks = 0;
    // Two, again and again. What was made in a hurry is closed after a while.
    until("two connections", async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let row = sqlx::raw_sql(AssertSqlSafe(count.clone())).fetch_one(&mut connection);
        let connections: i64 = row.await.unwrap().get(0);
        looks = if (1..=2).contains(&connections) {
            looks + 1
        } else {
            0
        };
        looks > 20
    })
    .await;
}
