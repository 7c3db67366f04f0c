//! `tenure schedule`: jobs that are submitted on a schedule.

use std::process::ExitCode;

use serde::Serialize;
use tenure::core::Wall;
use tenure_client::{Client, Error, Missed, NewJob, ScheduleName, api};

use crate::args::{AskServer, OneSchedule, Schedule, SetSchedule};
use crate::commands::at_server::{ask, document, payload, write};
use crate::commands::timed::WithTimes;
use crate::output::{Hinted, printable, table};
use crate::times;

pub(crate) async fn run(verb: Schedule) -> anyhow::Result<ExitCode> {
    match verb {
        Schedule::Set(arguments) => set(*arguments).await,
        Schedule::List(arguments) => list(arguments).await,
        Schedule::Pause(arguments) => {
            change(arguments, async |client, name| {
                client.pause_schedule(&name).await
            })
            .await
        }
        Schedule::Resume(arguments) => {
            change(arguments, async |client, name| {
                client.resume_schedule(&name).await
            })
            .await
        }
        Schedule::Delete(arguments) => delete(arguments).await,
    }
}

async fn set(arguments: SetSchedule) -> anyhow::Result<ExitCode> {
    let name = ScheduleName::new(&arguments.name)?;
    let missed = missed(&arguments.missed)?;
    let payload = payload(arguments.payload.as_deref())?;
    let job = NewJob::new(&arguments.job_type, &payload);
    let job = arguments.options.apply(job);
    ask(&arguments.ask.server, async |client| {
        let (cron, zone) = (&arguments.cron, &arguments.timezone);
        let set = if arguments.run_on_start {
            client
                .start_schedule(&name, cron, zone, missed, job)
                .await?
        } else {
            client.set_schedule(&name, cron, zone, missed, job).await?
        };
        write(&if arguments.ask.json {
            document(&WithTimes::of(&set))?
        } else {
            text(&[set])
        })?;
        Ok(ExitCode::SUCCESS)
    })
    .await
}

async fn list(arguments: AskServer) -> anyhow::Result<ExitCode> {
    ask(&arguments.server, async |client| {
        let schedules = client.schedules().await?;
        write(&if arguments.json {
            document(&Schedules {
                schedules: WithTimes::all(&schedules),
            })?
        } else {
            text(&schedules)
        })?;
        Ok(ExitCode::SUCCESS)
    })
    .await
}

async fn change(
    arguments: OneSchedule,
    work: impl AsyncFnOnce(Client, ScheduleName) -> Result<api::Schedule, Error>,
) -> anyhow::Result<ExitCode> {
    let name = ScheduleName::new(&arguments.name)?;
    ask(&arguments.ask.server, async |client| {
        let schedule = work(client, name).await?;
        write(&if arguments.ask.json {
            document(&WithTimes::of(&schedule))?
        } else {
            text(&[schedule])
        })?;
        Ok(ExitCode::SUCCESS)
    })
    .await
}

async fn delete(arguments: OneSchedule) -> anyhow::Result<ExitCode> {
    let name = ScheduleName::new(&arguments.name)?;
    ask(&arguments.ask.server, async |client| {
        client.delete_schedule(&name).await?;
        write(&if arguments.ask.json {
            document(&Deleted { deleted: &name })?
        } else {
            format!("{name} is deleted; its jobs are kept\n")
        })?;
        Ok(ExitCode::SUCCESS)
    })
    .await
}

#[derive(Debug, Serialize)]
struct Schedules<'a> {
    schedules: Vec<WithTimes<'a, api::Schedule>>,
}

#[derive(Debug, Serialize)]
struct Deleted<'a> {
    deleted: &'a ScheduleName,
}

/// Reads `once`, `skip` or `all=N`.
fn missed(text: &str) -> Result<Missed, Hinted> {
    let count = text
        .strip_prefix("all=")
        .and_then(|count| count.parse().ok());
    match (text, count) {
        ("once", _) => Ok(Missed::Once),
        ("skip", _) => Ok(Missed::Skip),
        (_, Some(count)) => Ok(Missed::All(count)),
        _ => Err(Hinted::new(
            format!("--missed {text:?} is not once, skip or all=N"),
            "once runs the latest missed slot, skip runs none, all=10 runs the latest ten",
        )),
    }
}

fn text(schedules: &[api::Schedule]) -> String {
    let heading = ["SCHEDULE", "CRON", "ZONE", "TYPE", "QUEUE", "NEXT", "LAST"].map(str::to_owned);
    let time = |at: Option<u64>| match at {
        Some(at) => format!(
            "{} ({})",
            times::rfc3339(Wall(at)),
            times::distance(Wall(at))
        ),
        None => "-".to_owned(),
    };
    let rows = schedules.iter().map(|schedule| {
        [
            schedule.name.to_string(),
            printable(&schedule.cron),
            printable(&schedule.timezone),
            schedule.job.job_type.to_string(),
            schedule.job.queue.to_string(),
            if schedule.paused {
                "paused".to_owned()
            } else {
                time(schedule.next_at)
            },
            time(schedule.last_at),
        ]
    });
    let rows: Vec<_> = std::iter::once(heading).chain(rows).collect();
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_runs_are_named() {
        assert_eq!(missed("once").unwrap(), Missed::Once);
        assert_eq!(missed("skip").unwrap(), Missed::Skip);
        assert_eq!(missed("all=3").unwrap(), Missed::All(3));
        assert!(missed("all").is_err() && missed("all=x").is_err());
    }
}
