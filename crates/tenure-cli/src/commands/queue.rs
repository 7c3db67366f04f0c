//! `tenure queue`: queues, their limits, and how many jobs they have.

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tenure_client::{Client, Error, QueueName, Rate, api};

use crate::args::{AskServer, OneQueue, Queue, QueueTime, SetQueue};
use crate::commands::at_server::{ask, document, write};
use crate::commands::timed::WithTimes;
use crate::output::{self, Hinted, table};
use crate::{EXIT_NO, times};
use tenure::core::Wall;

pub(crate) async fn run(verb: Queue) -> anyhow::Result<ExitCode> {
    match verb {
        Queue::List(arguments) => list(arguments).await,
        Queue::Pause(arguments) => {
            change(arguments, async |client, queue| client.pause(&queue).await).await
        }
        Queue::Resume(arguments) => {
            change(arguments, async |client, queue| client.resume(&queue).await).await
        }
        Queue::Set(arguments) => set(arguments).await,
        Queue::Time(arguments) => time(arguments).await,
    }
}

async fn time(arguments: QueueTime) -> anyhow::Result<ExitCode> {
    let to = match arguments.set.as_deref() {
        None => None,
        Some("now") => Some(api::SetTime::default()),
        Some(text) => {
            let to = match text.parse::<u64>() {
                Ok(milliseconds) => serde_json::json!({ "to": milliseconds }),
                Err(_) => serde_json::json!({ "to": text }),
            };
            let read = serde_json::from_value(to);
            let read = read.map_err(|error: serde_json::Error| {
                let error = error.to_string();
                let problem = error.strip_prefix("to ").unwrap_or("is not a valid time");
                Hinted::new(
                    format!("{text:?} {problem}"),
                    "use now, or a time such as 2026-03-01T12:00:00Z",
                )
            });
            Some(read?)
        }
    };
    ask(&arguments.ask.server, async |client| {
        let time = match to {
            Some(api::SetTime { to }) => client.set_time(to).await?,
            None => client.time().await?,
        };
        write(&if arguments.ask.json {
            document(&WithTimes::of(&time))?
        } else {
            time_text(&time)
        })?;
        Ok(ExitCode::SUCCESS)
    })
    .await
}

fn time_text(time: &api::QueueTime) -> String {
    let clock = match time.clock {
        api::ClockTrust::Followed => "followed",
        api::ClockTrust::Ahead => "too far ahead, not followed",
        api::ClockTrust::Behind => "behind: the queue's time runs more slowly",
        api::ClockTrust::Other => "unknown",
    };
    let row = |name: &str, value: String| [name.to_owned(), value];
    table(&[
        row("queue", times::rfc3339(Wall(time.now_ms))),
        row("broker's clock", times::rfc3339(Wall(time.wall_ms))),
        row("clock", clock.to_owned()),
    ])
}

async fn list(arguments: AskServer) -> anyhow::Result<ExitCode> {
    ask(&arguments.server, async |client| {
        let queues = client.queues().await?;
        write(&if arguments.json {
            document(&Queues {
                queues: WithTimes::all(&queues),
            })?
        } else {
            text(&queues)
        })?;
        Ok(ExitCode::SUCCESS)
    })
    .await
}

#[derive(Debug, Serialize)]
struct Queues<'a> {
    queues: Vec<WithTimes<'a, api::Queue>>,
}

async fn change(
    arguments: OneQueue,
    work: impl AsyncFnOnce(Client, QueueName) -> Result<api::Queue, Error>,
) -> anyhow::Result<ExitCode> {
    let name = QueueName::new(&arguments.queue)?;
    ask(&arguments.ask.server, async |client| {
        // The broker would create a queue of that name, and a typo would look like success.
        if let Err(Error::NotFound(_)) = client.queue(&name).await {
            output::error(&anyhow::anyhow!("there is no queue {name}"));
            output::hint("`tenure queue list` shows the queues; a queue exists when it has jobs, or limits by `tenure queue set`");
            return Ok(ExitCode::from(EXIT_NO));
        }
        let queue = work(client, name).await?;
        show(&queue, arguments.ask.json)
    })
    .await
}

async fn set(arguments: SetQueue) -> anyhow::Result<ExitCode> {
    let name = QueueName::new(&arguments.queue)?;
    let rate = rate(&arguments)?;
    ask(&arguments.ask.server, async |client| {
        let names_concurrency = arguments.concurrency.is_some() || arguments.no_concurrency;
        let names_rate = rate.is_some() || arguments.no_rate;
        // The broker keeps limits that are not named, even if someone else changes them meanwhile.
        let change = api::QueueChange {
            concurrency: names_concurrency.then_some(arguments.concurrency),
            rate: names_rate.then_some(rate),
        };
        let queue = client.change_queue(&name, &change).await?;
        show(&queue, arguments.ask.json)
    })
    .await
}

fn show(queue: &api::Queue, json: bool) -> anyhow::Result<ExitCode> {
    write(&if json {
        document(&WithTimes::of(queue))?
    } else {
        text(std::slice::from_ref(queue))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads `100/1m`.
fn rate(arguments: &SetQueue) -> anyhow::Result<Option<Rate>> {
    let Some(text) = &arguments.rate else {
        return Ok(None);
    };
    let parse = || -> Option<Rate> {
        let (jobs, period) = text.split_once('/')?;
        let period = times::parse_duration(period).ok()?;
        Some(Rate {
            jobs: jobs.trim().parse().ok()?,
            period_ms: u32::try_from(period.as_millis()).ok()?,
            burst: arguments.burst,
        })
    };
    let rate = parse().ok_or_else(|| {
        Hinted::new(
            format!("{text:?} is not a valid rate"),
            "give the number of jobs per time: 100/1m, 5/1s",
        )
    })?;
    Ok(Some(rate))
}

fn text(queues: &[api::Queue]) -> String {
    let heading = [
        "QUEUE",
        "READY",
        "RUNNING",
        "SCHEDULED",
        "COMPLETED",
        "CANCELLED",
        "DEAD",
        "OLDEST",
        "LIMITS",
    ]
    .map(str::to_owned);
    let rows = queues.iter().map(|queue| {
        let counts = &queue.counts;
        let oldest = |at: u64| times::age(Wall(at));
        [
            queue.name.to_string(),
            counts.ready.to_string(),
            counts.running.to_string(),
            counts.scheduled.to_string(),
            counts.completed.to_string(),
            counts.cancelled.to_string(),
            counts.dead.to_string(),
            queue.oldest_ready_at.map_or_else(|| "-".to_owned(), oldest),
            limits(queue),
        ]
    });
    let rows: Vec<_> = std::iter::once(heading).chain(rows).collect();
    table(&rows)
}

fn limits(queue: &api::Queue) -> String {
    let mut limits = Vec::new();
    if queue.paused {
        limits.push("paused".to_owned());
    }
    if let Some(concurrency) = queue.options.concurrency {
        limits.push(format!("{concurrency} at once"));
    }
    if let Some(rate) = queue.options.rate {
        let period = times::duration(Duration::from_millis(rate.period_ms.into()));
        let burst = rate.burst.map(|burst| format!(", {burst} at once"));
        limits.push(format!(
            "{} per {period}{}",
            rate.jobs,
            burst.unwrap_or_default()
        ));
    }
    if limits.is_empty() {
        "-".to_owned()
    } else {
        limits.join(", ")
    }
}
