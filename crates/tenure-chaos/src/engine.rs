//! The engines, and for each broker a connection to its storage that can be broken.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tenure_testkit::tcp_proxy::TcpProxy;
use url::Url;

use crate::server::Server;

/// Where the brokers keep their data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// A folder.
    File,
    /// SQLite, used only when clocks are set.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    Mysql,
    /// Ceph's S3.
    S3,
}

impl Engine {
    /// All of them.
    pub const ALL: [Engine; 4] = [Engine::File, Engine::Postgres, Engine::Mysql, Engine::S3];

    /// The engines whose clocks are set.
    pub const WITH_CLOCKS: [Engine; 4] =
        [Engine::File, Engine::Sqlite, Engine::Postgres, Engine::S3];

    /// The name on the command line and in the report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Engine::File => "file",
            Engine::Sqlite => "sqlite",
            Engine::Postgres => "postgres",
            Engine::Mysql => "mysql",
            Engine::S3 => "s3",
        }
    }

    /// The variable that names its server.
    #[must_use]
    pub fn variable(self) -> Option<&'static str> {
        match self {
            Engine::File | Engine::Sqlite => None,
            Engine::Postgres => Some("TENURE_TEST_POSTGRES"),
            Engine::Mysql => Some("TENURE_TEST_MYSQL"),
            Engine::S3 => Some("TENURE_TEST_S3_CEPH"),
        }
    }

    /// The server that keeps the data, if it is one.
    #[must_use]
    pub fn server(self) -> Option<Server> {
        match self {
            Engine::File | Engine::Sqlite => None,
            Engine::Postgres => Some(Server("postgres")),
            Engine::Mysql => Some(Server("mariadb")),
            Engine::S3 => Some(Server("ceph")),
        }
    }

    /// The store's URL: at this path for a folder or a file, otherwise on the server.
    pub fn store(self, path: &Path) -> Result<String> {
        let Some(variable) = self.variable() else {
            let path = path.to_str().context("the folder's name is no text")?;
            return Ok(format!("{}:{path}", self.name()));
        };
        let store = std::env::var(variable);
        store.with_context(|| format!("set {variable}, or run scripts/with-servers"))
    }

    /// The store's URL for one broker: the folder itself, or the server behind a separate proxy.
    pub async fn reach(self, folder: &Path) -> Result<(String, Option<TcpProxy>)> {
        let store = self.store(folder)?;
        if self.variable().is_none() {
            return Ok((store, None));
        }
        let proxy = TcpProxy::start(upstream(&store)?).await?;
        Ok((through(&store, proxy.address())?, Some(proxy)))
    }
}

/// The part of a store's URL that names the server: for `s3:`, the parameter `endpoint`.
fn server(store: &str) -> Result<Url> {
    let store = Url::parse(store)?;
    match store.query_pairs().find(|(name, _)| name == "endpoint") {
        Some((_, endpoint)) => Ok(Url::parse(&endpoint)?),
        None => Ok(store),
    }
}

pub(crate) fn upstream(store: &str) -> Result<SocketAddr> {
    let server = server(store)?;
    let (host, port) = (server.host_str().unwrap_or_default(), server.port());
    let Some(port) = port else {
        bail!("the store's URL has no port");
    };
    Ok(format!("{host}:{port}").parse()?)
}

pub(crate) fn through(store: &str, proxy: SocketAddr) -> Result<String> {
    let upstream = upstream(store)?.to_string();
    Ok(store.replacen(&upstream, &proxy.to_string(), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_takes_the_place_of_the_server() {
        let proxy = "127.0.0.1:9".parse().unwrap();
        for (store, expected) in [
            (
                "postgres://postgres@127.0.0.1:5432/tenure",
                "postgres://postgres@127.0.0.1:9/tenure",
            ),
            (
                "s3://b?endpoint=http://127.0.0.1:7480&if_match=unquoted",
                "s3://b?endpoint=http://127.0.0.1:9&if_match=unquoted",
            ),
        ] {
            assert_eq!(through(store, proxy).unwrap(), expected);
        }
    }
}
