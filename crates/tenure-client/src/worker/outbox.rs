//! The ends of claims on their way to the broker in calls of their own: whatever has ended while one call was under way
//! goes with the next, so a worker of many short jobs makes few calls. Those that can go along with a claim do not come here
//! (see [`super::desk`]), unless the broker says anything of them but that they are done.
//!
//! An end is sent until the broker has answered, however long that takes: the claim may well hold when the
//! broker is back. Meanwhile its slot stays taken, so no more than the worker's concurrency can wait here.

use std::time::Duration;

use futures_util::future::join3;
use tenure_api::Payload;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::sleep;

use super::handler::Ending;
use crate::claims::{Completed, Ended, Failed};
use crate::client::Client;
use crate::error::Error;

/// The most ends of one call.
pub(crate) const BATCH_MAX: usize = 500;

/// How large their results and errors may be together: servers take a MiB at a time by default.
const BATCH_BYTES_MAX: usize = 512 * 1024;

/// How long to wait after a call that has failed with all its own tries.
const PAUSE: Duration = Duration::from_secs(1);

/// An end on its way.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) ending: Ending,
    pub(crate) reply: Reply,
}

/// Who waits for the outcome of an end.
#[derive(Debug)]
pub(crate) struct Reply {
    /// Nothing is sent if the end was refused.
    pub(crate) sender: oneshot::Sender<Ended>,
    /// The slot of its job, which is free when this is dropped; none if the job never had one.
    pub(crate) slot: Option<OwnedSemaphorePermit>,
}

impl Reply {
    /// Passes the outcome on, and gives the slot back.
    pub(crate) fn send(self, ended: Ended) -> Option<OwnedSemaphorePermit> {
        // Nobody waits for it if the worker was dropped.
        let _ = self.sender.send(ended);
        self.slot
    }
}

/// Sends what comes in until nobody can send any more.
pub(crate) async fn deliver(client: &Client, mut letters: mpsc::Receiver<Letter>) {
    let mut batch = Vec::new();
    while letters.recv_many(&mut batch, BATCH_MAX).await > 0 {
        while !batch.is_empty() {
            let portion = fitting(&batch);
            let (mut completed, mut failed, mut released) = (Vec::new(), Vec::new(), Vec::new());
            for letter in batch.drain(..portion) {
                match &letter.ending {
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
pub(crate) fn fitting(letters: &[Letter]) -> usize {
    let mut bytes = 0;
    let fits = |letter: &&Letter| {
        bytes += match &letter.ending {
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
    let letters = letters.into_iter();
    let (endings, replies): (Vec<Ending>, Vec<Reply>) =
        letters.map(|letter| (letter.ending, letter.reply)).unzip();
    let answer = persist(client, &endings).await;
    let letters = endings.into_iter().zip(replies);
    let mut again = Vec::new();
    match answer {
        Ok(all) => {
            for ((ending, reply), ended) in letters.zip(all) {
                match ended {
                    Ended::Refused(problem) => again.push((ending, reply, Some(problem))),
                    ended => drop(reply.send(ended)),
                }
            }
        }
        Err(_) => again.extend(letters.map(|(ending, reply)| (ending, reply, None))),
    }
    for (ending, reply, refused) in again {
        let ended = match refused {
            Some(problem) => refused_end(client, ending, Error::of(*problem, None)).await,
            None => single(client, ending).await,
        };
        if let Some(ended) = ended {
            drop(reply.send(ended));
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
