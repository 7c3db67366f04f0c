//! The bare operations that each engine is built on.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use object_store::{ObjectStore, ObjectStoreExt};
use sqlx::{Connection, Executor};

use crate::Result;

/// One bare operation.
pub(crate) struct Floor {
    pub(crate) name: &'static str,
    operation: Box<dyn FnMut(usize, Bytes) -> BoxFuture<'static, Result<()>> + Send>,
}

impl Floor {
    fn new(
        name: &'static str,
        operation: impl FnMut(usize, Bytes) -> BoxFuture<'static, Result<()>> + Send + 'static,
    ) -> Self {
        Self {
            name,
            operation: Box::new(operation),
        }
    }

    pub(crate) async fn run(&mut self, round: usize, value: Bytes) -> Result<()> {
        (self.operation)(round, value).await
    }
}

/// The floors of an engine. The first is the one it is compared with.
pub(crate) async fn of(engine: &str, url: &str, folder: &Path) -> Result<Vec<Floor>> {
    Ok(match engine {
        "file" => vec![create_and_rename(folder)?, append(folder)?],
        "sqlite" => {
            let path = folder.join("floor");
            let options = sqlx::sqlite::SqliteConnectOptions::new()
                .filename(path)
                .create_if_missing(true)
                .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
                .synchronous(sqlx::sqlite::SqliteSynchronous::Full);
            vec![
                bare_update::<sqlx::Sqlite>(sqlx::SqliteConnection::connect_with(&options).await?)
                    .await?,
            ]
        }
        "postgres" => {
            vec![bare_update::<sqlx::Postgres>(sqlx::PgConnection::connect(url).await?).await?]
        }
        "mysql" => {
            vec![bare_update::<sqlx::MySql>(sqlx::MySqlConnection::connect(url).await?).await?]
        }
        "s3-ceph" => vec![bare_put(
            object_store::aws::AmazonS3Builder::from_env()
                .with_url(bare(url))
                .with_endpoint(endpoint(url)?)
                .with_allow_http(true)
                .build()?,
        )],
        "azure" => vec![bare_put(
            object_store::azure::MicrosoftAzureBuilder::from_env()
                .with_url(bare(url))
                .with_endpoint(endpoint(url)?)
                .with_allow_http(true)
                .build()?,
        )],
        _ => Vec::new(),
    })
}

/// The steps that any atomic and durable write of a file takes.
fn create_and_rename(folder: &Path) -> Result<Floor> {
    let folder = folder.join("bare");
    fs::create_dir(&folder)?;
    Ok(Floor::new(
        "create+sync+rename+sync",
        move |round, value| {
            let folder = folder.clone();
            blocking(move || {
                let temporary = folder.join("temporary");
                let mut file = File::create(&temporary)?;
                file.write_all(&value)?;
                file.sync_all()?;
                fs::rename(&temporary, folder.join(round.to_string()))?;
                File::open(&folder)?.sync_all()?;
                Ok(())
            })
        },
    ))
}

/// The steps that a log takes to append.
fn append(folder: &Path) -> Result<Floor> {
    let file = std::sync::Arc::new(File::create(folder.join("appended"))?);
    Ok(Floor::new("append+fdatasync", move |_, value| {
        let file = file.clone();
        blocking(move || {
            (&*file).write_all(&value)?;
            file.sync_data()?;
            Ok(())
        })
    }))
}

/// The engine hands its work to another thread, so the floor does too.
fn blocking(work: impl FnOnce() -> Result<()> + Send + 'static) -> BoxFuture<'static, Result<()>> {
    Box::pin(async { tokio::task::spawn_blocking(work).await? })
}

/// One row of the same bytes, changed and committed, on its own connection: one statement, one
/// message.
async fn bare_update<D: sqlx::Database>(mut connection: D::Connection) -> Result<Floor>
where
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
{
    for statement in [
        "DROP TABLE IF EXISTS tenure_bench",
        "CREATE TABLE tenure_bench (id INTEGER PRIMARY KEY, value TEXT NOT NULL)",
        "INSERT INTO tenure_bench VALUES (1, '')",
    ] {
        connection.execute(statement).await?;
    }
    let connection = std::sync::Arc::new(tokio::sync::Mutex::new(connection));
    Ok(Floor::new("one-row UPDATE", move |_, value| {
        let connection = connection.clone();
        Box::pin(async move {
            let digits = std::str::from_utf8(&value)?;
            let update = format!("UPDATE tenure_bench SET value = '{digits}' WHERE id = 1");
            let mut connection = connection.lock().await;
            connection
                .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(update)))
                .await?;
            Ok(())
        })
    }))
}

/// A PUT without condition.
fn bare_put(store: impl ObjectStore) -> Floor {
    let store = std::sync::Arc::new(store);
    Floor::new("bare PUT", move |round, value| {
        let store = store.clone();
        Box::pin(async move {
            let path = object_store::path::Path::from(format!("tenure-bench-bare/{}", round % 10));
            store.put(&path, value.into()).await?;
            Ok(())
        })
    })
}

fn bare(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

fn endpoint(url: &str) -> Result<String> {
    let url = url::Url::parse(url)?;
    let endpoint = url.query_pairs().find(|(name, _)| name == "endpoint");
    Ok(endpoint.ok_or("the URL names no endpoint")?.1.into_owned())
}
