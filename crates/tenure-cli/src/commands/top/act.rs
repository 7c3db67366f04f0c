//! What a key does, once it was confirmed.

use tenure_client::{Client, Error, QueueName, State, api};

use crate::output::{self, printable};

/// Jobs per call.
const BATCH: u32 = 1_000;

/// Calls per key: so many jobs are enough for one press.
const BATCHES_MAX: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Pause(QueueName),
    Resume(QueueName),
    /// All dead jobs of a queue.
    Retry(QueueName),
    Resign,
}

impl Action {
    /// What to ask before it is done; nothing if it can be undone by the same key.
    pub(crate) fn question(&self) -> String {
        match self {
            Action::Pause(queue) => format!("pause {queue}?"),
            Action::Resume(queue) => format!("resume {queue}?"),
            Action::Retry(queue) => format!("retry all dead jobs of {queue}?"),
            Action::Resign => "ask the leader to resign?".to_owned(),
        }
    }
}

/// Does it, and says in a line what came of it.
pub(crate) async fn act(client: &Client, action: Action) -> String {
    let done = match action {
        Action::Pause(queue) => client
            .pause(&queue)
            .await
            .map(|_| format!("{queue} is paused")),
        Action::Resume(queue) => client
            .resume(&queue)
            .await
            .map(|_| format!("{queue} is resumed")),
        Action::Retry(queue) => retry(client, &queue).await,
        Action::Resign => client
            .resign_leader()
            .await
            .map(|()| "the leader was asked to resign".to_owned()),
    };
    done.unwrap_or_else(|error| printable(&error.to_string()))
}

async fn retry(client: &Client, queue: &QueueName) -> Result<String, Error> {
    let request = api::RetryRequest {
        state: Some(State::Dead),
        queue: Some(queue.clone()),
        limit: Some(BATCH),
        ..api::RetryRequest::default()
    };
    let mut retried = 0;
    for _ in 0..BATCHES_MAX {
        let answer = client.retry_all(&request).await?;
        let done = answer
            .jobs
            .iter()
            .filter(|job| job.status == api::RetriedStatus::Retried);
        let done = done.count();
        retried += done;
        if done == 0 || answer.jobs.len() < BATCH as usize {
            break;
        }
    }
    let run = if retried == 1 { "runs" } else { "run" };
    let jobs = output::counted(retried, "job");
    Ok(format!("{jobs} of {queue} {run} again"))
}
