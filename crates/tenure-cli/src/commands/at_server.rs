//! What all verbs that call a broker share.

use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure::NamespaceView;
use tenure::core::{ElectionName, Namespace};
use tenure_client::{Client, Error};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::args::{AtServer, SERVER_DEFAULT, STORE_DEFAULT};
use crate::output::{self, Data, Hinted};
use crate::{EXIT_BROKEN, EXIT_NO};

/// The variable that holds the token, unless it is in a file. Not `TENURE_TOKEN`: for programs of `tenure run` that
/// is the fencing token, and they must be able to submit jobs.
const TOKEN_VARIABLE: &str = "TENURE_API_TOKEN";

/// When to tell the user that a call takes long.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long this host's default broker may take to answer before the store is read to find others.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

const PROBE: &[u8] = b"GET /healthz HTTP/1.0\r\n\r\n";

/// A client for the brokers that were named, or that the named store lists.
pub(crate) async fn client(options: &AtServer) -> anyhow::Result<Client> {
    let servers = servers(options).await?;
    let mut builder = Client::builder(&servers).deadline(options.timeout);
    let stores = stores(options);
    if !stores.is_empty() {
        // Finds brokers that were started later, when all the earlier ones are gone.
        builder = builder.find_with(move || {
            let stores = stores.clone();
            async move {
                let mut found = Vec::new();
                for store in &stores {
                    found.extend(brokers(store).await.unwrap_or_default());
                }
                found
            }
        });
    }
    if let Some(token) = token(options)? {
        builder = builder.token(token);
    }
    Ok(builder.build()?)
}

/// The URLs of the brokers: as named, with a store's URL replaced by the brokers that it lists. If none was named and
/// none answers at the default address, those of the default store, if it exists.
async fn servers(options: &AtServer) -> anyhow::Result<Vec<String>> {
    if is_usual(options) && !answers(tenure_server::LISTEN_DEFAULT).await {
        let found = brokers(&usual_store()).await;
        // The user named no store, so it is not an error if there is none.
        if let Some(found) = found.ok().filter(|found| !found.is_empty()) {
            return Ok(found);
        }
    }
    let mut servers = Vec::new();
    for server in &options.server {
        if is_store(server) {
            let found = brokers(server).await?;
            if found.is_empty() {
                let hint = "start one with tenure serve, and the same store and namespace";
                return Err(Hinted::new("the store names no broker that is alive", hint).into());
            }
            servers.extend(found);
        } else {
            servers.push(server.clone());
        }
    }
    Ok(servers)
}

/// Whether no broker was named.
fn is_usual(options: &AtServer) -> bool {
    options.server == [SERVER_DEFAULT]
}

/// The store that is used if none is named.
fn usual_store() -> String {
    let named = std::env::var("TENURE_STORE").ok();
    let named = named.filter(|url| !url.is_empty());
    named.unwrap_or_else(|| STORE_DEFAULT.to_owned())
}

/// The stores to look for brokers in: those that were named, or the default one if nothing was.
fn stores(options: &AtServer) -> Vec<String> {
    if is_usual(options) {
        return vec![usual_store()];
    }
    let named = options.server.iter().filter(|server| is_store(server));
    named.cloned().collect()
}

/// Whether this is a store's URL and not a broker's.
fn is_store(url: &str) -> bool {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    let stores = [
        "file",
        "s3",
        "gs",
        "az",
        "postgres",
        "postgresql",
        "mysql",
        "sqlite",
    ];
    stores.contains(&scheme)
}

/// Whether a broker answers. Connecting is not enough: the port of one that was just killed may still accept a
/// connection.
async fn answers(address: SocketAddr) -> bool {
    let asked = async {
        let mut connection = TcpStream::connect(address).await?;
        connection.write_all(PROBE).await?;
        connection.read_u8().await
    };
    matches!(tokio::time::timeout(PROBE_TIMEOUT, asked).await, Ok(Ok(_)))
}

/// The brokers that a store lists, the leader first.
async fn brokers(url: &str) -> anyhow::Result<Vec<String>> {
    let store = tenure_store::open_existing(url).await?;
    let namespace = std::env::var("TENURE_NAMESPACE")
        .ok()
        .filter(|name| !name.is_empty());
    let namespace = Namespace::new(namespace.as_deref().unwrap_or("default"))?;
    let view = NamespaceView::new(store, namespace);
    let status = view.status(&ElectionName::queue()).await?;
    let leader = status.leader().cloned();
    let (first, rest): (Vec<_>, Vec<_>) = status
        .candidates
        .into_iter()
        .partition(|candidate| Some(&candidate.holder) == leader.as_ref());
    let all = first.into_iter().chain(rest);
    Ok(all
        .filter_map(|candidate| candidate.about.address)
        .collect())
}

fn token(options: &AtServer) -> anyhow::Result<Option<String>> {
    let Some(path) = &options.token_file else {
        let token = std::env::var(TOKEN_VARIABLE).ok();
        return Ok(token.filter(|token| !token.trim().is_empty()));
    };
    let token = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the token in {}", path.display()))?;
    output::warn_if_open_to_others(path);
    if token.trim().is_empty() {
        Err(Hinted::new(
            format!("there is no token in {}", path.display()),
            "the file must contain only the token",
        )
        .into())
    } else {
        Ok(Some(token))
    }
}

/// Asks a server. Says so if it takes long, may be interrupted, and turns a server's "no" into exit code 1.
pub(crate) async fn ask(
    options: &AtServer,
    work: impl AsyncFnOnce(Client) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let client = client(options).await?;
    let nodes = client.nodes().join(", ");
    let patient = async {
        tokio::time::sleep(PATIENCE).await;
        output::note(&format!("waiting for {nodes} to answer"));
        std::future::pending::<()>().await;
    };
    let answered = async {
        tokio::select! {
            answered = work(client) => answered,
            () = patient => unreachable!("it waits for ever"),
        }
    };
    super::interruptible(no_is_an_answer(answered)).await
}

/// Turns a refusal into exit code 1: the broker has answered.
pub(crate) async fn no_is_an_answer(
    answer: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let error = match answer.await {
        Ok(code) => return Ok(code),
        Err(error) => error,
    };
    let code = error.chain().find_map(|cause| {
        let error = cause.downcast_ref::<Error>()?;
        let is_no = matches!(
            error,
            Error::NotFound(_)
                | Error::Conflict(_)
                | Error::State(_)
                | Error::Full(_)
                | Error::Lost { .. }
                | Error::Invalid(_)
        );
        Some(if is_no { EXIT_NO } else { EXIT_BROKEN })
    });
    match code {
        Some(code) => {
            output::error(&error);
            Ok(ExitCode::from(code))
        }
        None => Err(error),
    }
}

/// Writes the result to stdout.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    let mut data = Data::new();
    data.write(text);
    data.finish().context("cannot write the answer")
}

/// A JSON document for programs.
pub(crate) fn document(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Parses a payload argument: JSON, or `-` for standard input.
pub(crate) fn payload(text: Option<&str>) -> anyhow::Result<tenure_client::Payload> {
    let text = match text {
        None => return Ok(tenure_client::Payload::default()),
        Some("-") => std::io::read_to_string(std::io::stdin())
            .context("cannot read the payload from standard input")?,
        Some(text) => text.to_owned(),
    };
    tenure_client::Payload::new(text.trim()).map_err(|error| {
        Hinted::new(
            format!("the payload is not valid JSON: {error}"),
            "quote it for the shell: '{\"to\":\"you\"}', or '\"text\"' for a string",
        )
        .into()
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_accepts_and_says_nothing_is_no_broker() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // Like a port whose process was just killed: accepted, then closed.
        let killed = async { drop(listener.accept().await.unwrap()) };
        let (there, ()) = tokio::join!(answers(address), killed);
        assert!(!there);
        let answering = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            connection
                .write_all(b"HTTP/1.0 200 OK\r\n\r\n")
                .await
                .unwrap();
            connection
        };
        let (there, _connection) = tokio::join!(answers(address), answering);
        assert!(there);
        drop(listener);
        assert!(!answers(address).await);
    }
}
