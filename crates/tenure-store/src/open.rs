//! Stores by URL.

use std::sync::Arc;

#[cfg(any(feature = "object", feature = "postgres", feature = "mysql"))]
use url::Url;

#[cfg(feature = "file")]
use crate::engine::file::File;
use crate::engine::memory::Memory;
#[cfg(feature = "mysql")]
use crate::engine::mysql::MySql;
#[cfg(feature = "object")]
use crate::engine::object::Objects;
#[cfg(feature = "postgres")]
use crate::engine::postgres::Postgres;
#[cfg(feature = "sqlite")]
use crate::engine::sqlite::Sqlite;
use crate::{Error, Store};

const SCHEMES: &str = "use memory:, file:DIR or a plain path, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, \
    az://CONTAINER/PREFIX, postgres://HOST/DATABASE, mysql://HOST/DATABASE or sqlite:PATH";

/// Opens the store that a URL names, and checks that it is there and may be used.
///
/// | URL | engine | credentials and endpoint |
/// | --- | --- | --- |
/// | `memory:` | memory, new and empty | |
/// | `file:DIR`, or a plain path | file | |
/// | `s3://BUCKET/PREFIX` | S3 | `AWS_*` variables |
/// | `gs://BUCKET/PREFIX` | Google Cloud Storage | `GOOGLE_*` variables |
/// | `az://CONTAINER/PREFIX` | Azure Blob | `AZURE_*` variables |
/// | `postgres://USER@HOST/DATABASE` | PostgreSQL | in the URL, or `PG*` variables |
/// | `mysql://USER@HOST/DATABASE` | MySQL, MariaDB | in the URL |
/// | `sqlite:PATH` | SQLite | |
///
/// `?age=server-clock` after the URL of a server or a bucket asks for ages by its clock, at a risk that
/// [`ServerAges`](crate::wrap::ServerAges) describes.
pub async fn open(url: &str) -> Result<Arc<dyn Store>, Error> {
    open_or_make(url, true).await
}

/// As [`open`], but creates no folder, file or table: for read-only use. Refused where there is no store.
pub async fn open_existing(url: &str) -> Result<Arc<dyn Store>, Error> {
    open_or_make(url, false).await
}

/// Opens a bucket, or part of one, that holds another program's objects, to read them. [`open_existing`] would refuse
/// it.
pub fn open_foreign(url: &str) -> Result<Arc<dyn Store>, Error> {
    #[cfg(feature = "object")]
    if ["s3:", "gs:", "az:"].iter().any(|it| url.starts_with(it)) {
        let (url, _) = parse(url)?;
        return Ok(Arc::new(Objects::open_foreign(&url)?));
    }
    let _ = url;
    Err(Error::invalid(
        "this is not the URL of a bucket that this build can read",
        "use s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX",
    ))
}

async fn open_or_make(url: &str, makes: bool) -> Result<Arc<dyn Store>, Error> {
    #[cfg(not(any(
        feature = "file",
        feature = "object",
        feature = "sqlite",
        feature = "postgres",
        feature = "mysql"
    )))]
    let _ = makes;
    #[cfg_attr(
        not(any(feature = "file", feature = "sqlite")),
        expect(unused_variables, reason = "no engine of this build has a path")
    )]
    let (scheme, rest) = match url.split_once(':') {
        Some((scheme, rest)) if !scheme.contains('/') => (scheme, rest),
        _ => ("file", url),
    };
    // Boxed where the future is large, so that callers' futures do not contain all of them.
    match scheme {
        "memory" => Ok(Arc::new(Memory::new())),
        #[cfg(feature = "file")]
        "file" => {
            let path = path_of(url, rest)?;
            Ok(Arc::new(if makes {
                File::open(path).await?
            } else {
                File::open_existing(path).await?
            }))
        }
        #[cfg(feature = "object")]
        "s3" | "gs" | "az" => {
            let (url, asks_for_age) = parse(url)?;
            let store = if makes {
                Box::pin(Objects::open(&url)).await?
            } else {
                Box::pin(Objects::open_existing(&url)).await?
            };
            Ok(with_age(store, asks_for_age))
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let (url, asks_for_age) = parse(url)?;
            let store = if makes {
                Box::pin(Postgres::open(&url)).await?
            } else {
                Box::pin(Postgres::open_existing(&url)).await?
            };
            Ok(with_age(store, asks_for_age))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            let (url, asks_for_age) = parse(url)?;
            let store = if makes {
                Box::pin(MySql::open(&url)).await?
            } else {
                Box::pin(MySql::open_existing(&url)).await?
            };
            Ok(with_age(store, asks_for_age))
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let path = path_of(url, rest)?;
            Ok(Arc::new(if makes {
                Box::pin(Sqlite::open(path)).await?
            } else {
                Box::pin(Sqlite::open_existing(path)).await?
            }))
        }
        // The rest of the URL may hold a password so it is not repeated.
        _ => Err(Error::invalid(
            format!("this build has no store with the scheme {scheme:?}"),
            SCHEMES,
        )),
    }
}

/// The URL for the engine, and whether it asks for ages by the server's clock.
#[cfg(any(feature = "object", feature = "postgres", feature = "mysql"))]
fn parse(url: &str) -> Result<(Url, bool), Error> {
    let url = Url::parse(url)
        .map_err(|error| Error::invalid(format!("the store URL is not valid: {error}"), SCHEMES))?;
    let mut asks_for_age = false;
    let mut others = Vec::new();
    for (name, value) in url.query_pairs() {
        match (&*name, &*value) {
            ("age", "server-clock") => asks_for_age = true,
            ("age", _) => {
                return Err(Error::invalid(
                    "the parameter age in the store URL can only be server-clock",
                    "leave it out: that is safe on every server",
                ));
            }
            _ => others.push((name.into_owned(), value.into_owned())),
        }
    }
    if !asks_for_age {
        return Ok((url, false));
    }
    let mut rest = url.clone();
    rest.set_query(None);
    if !others.is_empty() {
        rest.query_pairs_mut().extend_pairs(others);
    }
    Ok((rest, true))
}

#[cfg(any(feature = "object", feature = "postgres", feature = "mysql"))]
fn with_age(store: impl Store, asks_for_age: bool) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(store);
    if asks_for_age {
        Arc::new(crate::wrap::ServerAges::new(store))
    } else {
        store
    }
}

/// The path of `file:DIR`, `file:///DIR` and `sqlite:PATH`; relative ones stay relative.
#[cfg(any(feature = "file", feature = "sqlite"))]
fn path_of<'a>(url: &str, rest: &'a str) -> Result<&'a std::path::Path, Error> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() || path.contains('\0') {
        return Err(Error::invalid(
            format!("the store URL {url:?} has no path"),
            SCHEMES,
        ));
    }
    Ok(std::path::Path::new(path))
}
