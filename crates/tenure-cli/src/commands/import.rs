//! `tenure import osqueue`: the jobs of an osqueue bucket, from its `queue.json`.
//!
//! Ids are kept, so that a second run adds nothing twice. No clock is involved: if the file changes, osqueue's broker
//! still runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tenure_client::api::SubmitStatus;
use tenure_client::{Client, Error, NewJob, Payload};
use tenure_store::Key;

use crate::EXIT_NO;
use crate::args::{Import, ImportOsqueue};
use crate::commands::at_server::{ask, document, write};
use crate::output::{self, Hinted};

/// The one object in which osqueue keeps everything.
const FILE: &str = "queue.json";

/// How long to watch for changes: by default, osqueue's broker writes more often than this.
const LOOK: Duration = Duration::from_secs(4);

/// osqueue takes a job away from a worker that has been silent for this long.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(30);

/// osqueue's default number of attempts.
const ATTEMPTS_DEFAULT: i64 = 3;

/// How many jobs go into one call, and how large they may be together.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 512 * 1024;

/// The most refusals that are shown.
const REFUSALS_SHOWN: usize = 20;

pub(crate) async fn run(arguments: Import) -> anyhow::Result<ExitCode> {
    let Import::Osqueue(arguments) = arguments;
    ask(&arguments.server, async |client| {
        osqueue(&client, &arguments).await
    })
    .await
}

/// osqueue's stored state. Its jobs are read one by one, since an odd one must not keep the others out.
#[derive(Debug, Deserialize)]
struct State {
    jobs: Vec<Box<RawValue>>,
}

/// As much of a job as tells which one it is.
#[derive(Debug, Deserialize)]
struct OnlyId {
    id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OldJob {
    id: String,
    #[serde(default)]
    status: String,
    payload: Option<Box<RawValue>>,
    r#type: Option<String>,
    #[serde(default)]
    attempts: i64,
    max_attempts: Option<i64>,
}

/// The result of an import.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Jobs in the file.
    jobs: usize,
    created: usize,
    /// Jobs that were already there.
    duplicates: usize,
    /// Created jobs that had a worker, and are delayed.
    held_back: usize,
    refused: Vec<Refused>,
}

#[derive(Debug, Serialize)]
struct Refused {
    id: String,
    reason: String,
}

async fn osqueue(client: &Client, arguments: &ImportOsqueue) -> anyhow::Result<ExitCode> {
    let source = Source::open(&arguments.url).await?;
    let first = source.read().await?;
    output::note("checking whether an osqueue broker is still writing");
    tokio::time::sleep(LOOK).await;
    let bytes = source.read().await?;
    if first != bytes {
        output::error(
            &Hinted::new(
                "queue.json is changing: an osqueue broker is still running",
                "stop it, then run this again; nothing was imported",
            )
            .into(),
        );
        return Ok(ExitCode::from(EXIT_NO));
    }
    let state: State = serde_json::from_slice(&bytes)
        .context("queue.json does not look like osqueue's; nothing was imported")?;
    let mut report = Report {
        jobs: state.jobs.len(),
        ..Report::default()
    };
    let jobs = report.readable(&state.jobs);
    let mut rest = jobs.iter().peekable();
    let mut seen = report.refused.len();
    while rest.peek().is_some() {
        let mut some = Vec::new();
        let mut bytes = 0;
        while let Some(job) = rest.next_if(|job| {
            let length = job.bytes();
            some.len() < BATCH && bytes + length <= BATCH_BYTES.max(length)
        }) {
            bytes += job.bytes();
            some.push(job);
        }
        seen += some.len();
        submit(client, &some, &mut report).await?;
        output::note(&format!("{seen} of {} jobs", report.jobs));
    }
    write(&if arguments.json {
        document(&report)?
    } else {
        report.text()
    })?;
    Ok(if report.refused.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NO)
    })
}

/// Submits some jobs. If one of them is wrong, each by itself: the others are not its fault.
async fn submit(client: &Client, jobs: &[&OldJob], report: &mut Report) -> anyhow::Result<()> {
    let mut good = Vec::new();
    for job in jobs {
        match job.as_new() {
            Ok(new) => good.push((*job, new)),
            Err(reason) => report.refuse(job, reason),
        }
    }
    let sent = client
        .submit_all(good.iter().map(|(_, new)| new.clone()))
        .await;
    match sent {
        Ok(submitted) => {
            for ((job, _), one) in good.iter().zip(submitted) {
                report.note(job, one.status);
            }
            Ok(())
        }
        Err(Error::Invalid(_)) if good.len() > 1 => {
            for (job, new) in good {
                match client.submit_all([new]).await {
                    Ok(submitted) => submitted
                        .iter()
                        .for_each(|one| report.note(job, one.status)),
                    Err(Error::Invalid(problem)) => report.refuse(job, problem.to_string()),
                    Err(error) => return Err(error).context(report.so_far()),
                }
            }
            Ok(())
        }
        Err(Error::Invalid(problem)) => {
            let reason = problem.to_string();
            good.iter()
                .for_each(|(job, _)| report.refuse(job, reason.clone()));
            Ok(())
        }
        Err(error) => Err(error).context(report.so_far()),
    }
}

impl OldJob {
    fn bytes(&self) -> usize {
        let payload = self
            .payload
            .as_ref()
            .map_or(4, |payload| payload.get().len());
        payload + self.r#type.as_ref().map_or(0, String::len) + 256
    }

    fn has_worker(&self) -> bool {
        self.status == "in_progress"
    }

    fn as_new(&self) -> Result<NewJob, String> {
        let job_type = tenure_server::osqueue_type(self.r#type.as_deref())
            .ok_or("its type is too long to be a name")?;
        let payload = match &self.payload {
            Some(payload) => Payload::new(payload.get()).map_err(|error| error.to_string())?,
            None => Payload::default(),
        };
        // At least one, or the job would be dead at once; osqueue has not dropped it yet.
        let most = self.max_attempts.unwrap_or(ATTEMPTS_DEFAULT);
        let left = most.saturating_sub(self.attempts).clamp(1, 10_000);
        let left = u32::try_from(left).map_err(|error| error.to_string())?;
        let job = NewJob::new(job_type.as_str(), &payload)
            .id(&self.id)
            .max_attempts(left);
        Ok(if self.has_worker() {
            job.delay(HEARTBEAT_TIMEOUT)
        } else {
            job
        })
    }
}

impl Report {
    /// The jobs that can be read; the others are refused.
    fn readable(&mut self, stored: &[Box<RawValue>]) -> Vec<OldJob> {
        let mut jobs = Vec::new();
        for (number, text) in stored.iter().enumerate() {
            match serde_json::from_str::<OldJob>(text.get()) {
                Ok(job) => jobs.push(job),
                Err(error) => {
                    let named = serde_json::from_str::<OnlyId>(text.get());
                    self.refused.push(Refused {
                        id: named
                            .map_or_else(|_| format!("job number {}", number + 1), |job| job.id),
                        reason: format!("it is not a job as osqueue writes them: {error}"),
                    });
                }
            }
        }
        jobs
    }

    fn note(&mut self, job: &OldJob, status: SubmitStatus) {
        match status {
            SubmitStatus::Created => {
                self.created += 1;
                self.held_back += usize::from(job.has_worker());
            }
            SubmitStatus::Duplicate => self.duplicates += 1,
            SubmitStatus::Conflict => self.refuse(job, "another job has this id".to_owned()),
            SubmitStatus::Full => self.refuse(job, "the queue is full".to_owned()),
        }
    }

    fn refuse(&mut self, job: &OldJob, reason: String) {
        self.refused.push(Refused {
            id: job.id.clone(),
            reason,
        });
    }

    fn so_far(&self) -> String {
        format!(
            "{} of {} jobs were imported; run this again for the rest",
            self.created, self.jobs
        )
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{} jobs: {} imported, {} were there already, {} refused\n",
            self.jobs,
            self.created,
            self.duplicates,
            self.refused.len()
        );
        for Refused { id, reason } in self.refused.iter().take(REFUSALS_SHOWN) {
            let id = output::printable(id);
            text += &format!("refused {id}: {}\n", output::printable(reason));
        }
        let more = self.refused.len().saturating_sub(REFUSALS_SHOWN);
        if more > 0 {
            text += &format!("and {more} more; --json lists them all\n");
        }
        text
    }
}

/// Where the file comes from.
enum Source {
    File(PathBuf),
    Store(std::sync::Arc<dyn tenure_store::Store>, Key),
}

impl Source {
    async fn open(url: &str) -> anyhow::Result<Self> {
        if url.contains("://") {
            // The store holds only what osqueue wrote, and nothing of ours.
            let store = tenure_store::open_foreign(url)?;
            return Ok(Self::Store(store, Key::new(FILE)?));
        }
        let path = Path::new(url.strip_prefix("file:").unwrap_or(url));
        let path = if path.is_dir() {
            path.join(FILE)
        } else {
            path.to_owned()
        };
        Ok(Self::File(path))
    }

    async fn read(&self) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::File(path) => {
                std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
            }
            Self::Store(store, key) => {
                let object = store.get(key).await?;
                let object = object.ok_or_else(|| {
                    Hinted::new(
                        "there is no queue.json in this bucket, under this prefix",
                        "give the bucket and S3_PREFIX or GCS_PREFIX of osqueue's broker",
                    )
                })?;
                Ok(object.value.to_vec())
            }
        }
    }
}
