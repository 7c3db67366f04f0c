//! The ends of claims on their way to the broker: whatever has ended while one call was under way goes with
//! the next, so a worker of many short jobs makes few calls.
//!
//! An end is sent until the broker has answered, however long that takes: the claim may well hold when the
//! broker is back. Meanwhile its slot stays taken, so no more than the worker's concurrency can wait here.

use std::time::Duration;

use futures_util::future::join3;
use tenure_api::Payload;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::handler::Ending;
use crate::claims::{Completed, Ended, Failed};
use crate::client::Client;
use crate::error::Error;

/// The most ends of one call.
const BATCH_MAX: usize = 500;

/// How large their results and errors may be together: servers take a MiB at a time by default.
const BATCH_BYTES_MAX: usize = 512 * 1024;

/// How long to wait after a call that has failed with all its own tries.
const PAUSE: Duration = Duration::from_secs(1);

/// An end, and who wants to know what became of it. Nothing comes back if it was refused.
pub(crate) type Letter = (Ending, oneshot::Sender<Ended>);

/// Sends what comes in until nobody can send any more.
pub(crate) async fn deliver(client: &Client, mut letters: mpsc::Receiver<Letter>) {
    let mut batch = Vec::new();
    while letters.recv_many(&mut batch, BATCH_MAX).await > 0 {
        while !batch.is_empty() {
            let portion = fitting(&batch);
            let (mut completed, mut failed, mut released) = (Vec::new(), Vec::new(), Vec::new());
            for letter in batch.drain(..portion) {
                match &letter.0 {
                    Ending::Complete(_) => completed.push(letter),
                    Ending::Fail(_) => failed.push(letter),
                    Ending::Release(_) => released.push(letter),
                }
            }
            join3(
                group(client, completed),
                group(client, failed),
                group(client, released),
            )
            .await;
        }
    }
}

/// How many of the first ends fit into one call; at least one.
fn fitting(letters: &[Letter]) -> usize {
    let mut bytes = 0;
    let fits = |(ending, _): &&Letter| {
        bytes += match ending {
            Ending::Complete(completed) => completed.result.as_ref().map_or(0, Payload::bytes),
            // Written as JSON, a character may take six.
            Ending::Fail(failed) => failed.error.len() * 6,
            Ending::Release(_) => 0,
        };
        bytes <= BATCH_BYTES_MAX
    };
    letters.iter().take_while(fits).count().max(1)
}

/// Sends ends of one kind in one call; those that are refused, or all if the whole was, one by one.
async fn group(client: &Client, letters: Vec<Letter>) {
    if letters.is_empty() {
        return;
    }
    let (endings, senders): (Vec<Ending>, Vec<_>) = letters.into_iter().unzip();
    let answer = persist(client, &endings).await;
    let letters = endings.into_iter().zip(senders);
    let mut again = Vec::new();
    match answer {
        Ok(all) => {
            for ((ending, sender), ended) in letters.zip(all) {
                match ended {
                    Ended::Refused(problem) => again.push((ending, sender, Some(problem))),
                    // Nobody waits for it if the worker was dropped.
                    ended => drop(sender.send(ended)),
                }
            }
        }
        Err(_) => again.extend(letters.map(|(ending, sender)| (ending, sender, None))),
    }
    for (ending, sender, refused) in again {
        let ended = match refused {
            Some(problem) => refused_end(client, ending, Error::of(*problem, None)).await,
            None => single(client, ending).await,
        };
        if let Some(ended) = ended {
            let _ = sender.send(ended);
        }
    }
}

/// Sends one end.
async fn single(client: &Client, ending: Ending) -> Option<Ended> {
    match only(client, &ending).await {
        Ok(ended) => ended,
        Err(refusal) => refused_end(client, ending, refusal).await,
    }
}

/// The same, by itself. Fails only if it is refused.
async fn only(client: &Client, ending: &Ending) -> Result<Option<Ended>, Error> {
    let ended = persist(client, std::slice::from_ref(ending)).await?;
    match ended.into_iter().next() {
        Some(Ended::Refused(problem)) => Err(Error::of(*problem, None)),
        ended => Ok(ended),
    }
}

/// An end was refused. A success whose result is refused, being too large, say, is told without it: the work was done,
/// and must not be done again. One that is refused nevertheless is told as a failure, so that somebody sees why.
async fn refused_end(client: &Client, ending: Ending, mut refusal: Error) -> Option<Ended> {
    if let (Ending::Complete(completed), Error::Invalid(_)) = (ending, &refusal) {
        if let Some(result) = &completed.result {
            let claim = completed.claim.clone();
            let without = Ending::Complete(Completed {
                claim,
                result: None,
            });
            match only(client, &without).await {
                Ok(ended) => {
                    tracing::warn!(
                        job = %completed.claim.id,
                        bytes = result.bytes(),
                        error = %refusal,
                        "a job was completed without its result, which was refused"
                    );
                    return ended;
                }
                Err(error) => refusal = error,
            }
        }
        let failed = Failed {
            claim: completed.claim,
            error: format!("the work was done, but its end was refused: {refusal}"),
            retry_in: None,
            permanent: true,
        };
        if let Ok(ended) = only(client, &Ending::Fail(failed)).await {
            return ended;
        }
    }
    tracing::error!(error = %refusal, "the end of a claim was refused: its job runs again when the lease ends");
    None
}

/// Sends ends of one kind until there is an answer. Fails only if they are refused.
async fn persist(client: &Client, endings: &[Ending]) -> Result<Vec<Ended>, Error> {
    loop {
        match send(client, endings).await {
            Err(error) if error.is_temporary() || matches!(error, Error::Broken { .. }) => {
                tracing::warn!(%error, ends = endings.len(), "cannot report to the broker how jobs ended");
                sleep(PAUSE).await;
            }
            answered => return answered,
        }
    }
}

async fn send(client: &Client, endings: &[Ending]) -> Result<Vec<Ended>, Error> {
    let (mut completed, mut failed, mut released) = (Vec::new(), Vec::new(), Vec::new());
    for ending in endings.iter().cloned() {
        match ending {
            Ending::Complete(ending) => completed.push(ending),
            Ending::Fail(ending) => failed.push(ending),
            Ending::Release(ending) => released.push(ending),
        }
    }
    match (completed.is_empty(), failed.is_empty()) {
        (false, _) => client.complete_all(completed).await,
        (_, false) => client.fail_all(failed).await,
        _ => client.release_all(released).await,
    }
}
