//! What the verbs that speak to a server have in common.

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure_client::{Client, Error};

use crate::args::AtServer;
use crate::output::{self, Data, Hinted};
use crate::{EXIT_BROKEN, EXIT_NO};

/// Where the token is, unless it is in a file. Not `TENURE_TOKEN`: programs of `tenure run` have their
/// fencing token there, and must be able to submit jobs.
const TOKEN_VARIABLE: &str = "TENURE_API_TOKEN";

/// When to say that something takes its time.
const PATIENCE: Duration = Duration::from_secs(2);

/// A client of the servers that were named.
pub(crate) fn client(options: &AtServer) -> anyhow::Result<Client> {
    let mut builder = Client::builder(&options.server).deadline(options.timeout);
    if let Some(token) = token(options)? {
        builder = builder.token(token);
    }
    Ok(builder.build()?)
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
    let client = client(options)?;
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

/// A server that says no has answered.
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

/// Writes what was asked for.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    let mut data = Data::new();
    data.write(text);
    data.finish().context("cannot write the answer")
}

/// A document for programs.
pub(crate) fn document(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// The payload that was given: JSON, or `-` for standard input.
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
