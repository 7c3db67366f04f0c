//! The actions of keys, once confirmed.

use tenure_client::{Client, Error, QueueName, State, api};

use crate::output::{self, printable};

/// Jobs per call.
const BATCH: u32 = 1_000;

/// The most calls per key press.
const BATCHES_MAX: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Pause(QueueName),
    Resume(QueueName),
    /// Retry all dead jobs of a queue.
    Retry(QueueName),
    Resign,
}

impl Action {
    /// The question to confirm the action.
    pub(crate) fn question(&self) -> String {
        match self {
            Action::Pause(queue) => format!("pause {queue}?"),
            Action::Resume(queue) => format!("resume {queue}?"),
            Action::Retry(queue) => format!("retry all dead jobs of {queue}?"),
            Action::Resign => "ask the leader to resign?".to_owned(),
        }
    }
}

/// Does the action, and returns the result as one line.
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
