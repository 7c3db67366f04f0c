//! Stores by URL.

use std::sync::Arc;

#[cfg(any(feature = "object", feature = "postgres", feature = "mysql"))]
use url::Url;

use crate::engine::memory::Memory;
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
pub async fn open(url: &str) -> Result<Arc<dyn Store>, Error> {
    #[cfg_attr(
        not(any(feature = "file", feature = "sqlite")),
        expect(unused_variables, reason = "no engine of this build has a path")
    )]
    let (scheme, rest) = match url.split_once(':') {
        Some((scheme, rest)) if !scheme.contains('/') => (scheme, rest),
        _ => ("file", url),
    };
    // Boxed where opening is a long story, so that callers do not carry all of them in their futures.
    match scheme {
        "memory" => Ok(Arc::new(Memory::new())),
        #[cfg(feature = "file")]
        "file" => Ok(Arc::new(
            crate::engine::file::File::open(path_of(url, rest)?).await?,
        )),
        #[cfg(feature = "object")]
        "s3" | "gs" | "az" => Ok(Arc::new(
            Box::pin(crate::engine::object::Objects::open(&parse(url)?)).await?,
        )),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(
            Box::pin(crate::engine::postgres::Postgres::open(&parse(url)?)).await?,
        )),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(Arc::new(
            Box::pin(crate::engine::mysql::MySql::open(&parse(url)?)).await?,
        )),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(
            Box::pin(crate::engine::sqlite::Sqlite::open(path_of(url, rest)?)).await?,
        )),
        // The rest of the URL may hold a password and is not repeated.
        _ => Err(Error::invalid(
            format!("this build knows no store with the scheme {scheme:?}"),
            SCHEMES,
        )),
    }
}

#[cfg(any(feature = "object", feature = "postgres", feature = "mysql"))]
fn parse(url: &str) -> Result<Url, Error> {
    Url::parse(url)
        .map_err(|error| Error::invalid(format!("the store URL cannot be read: {error}"), SCHEMES))
}

/// The path of `file:DIR`, `file:///DIR` and `sqlite:PATH`; relative ones stay relative.
#[cfg(any(feature = "file", feature = "sqlite"))]
fn path_of<'a>(url: &str, rest: &'a str) -> Result<&'a std::path::Path, Error> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() || path.contains('\0') {
        return Err(Error::invalid(
            format!("the store URL {url:?} names no path"),
            SCHEMES,
        ));
    }
    Ok(std::path::Path::new(path))
}
