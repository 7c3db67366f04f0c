//! `tenure job submit`: the id on stdout means that the job is durable.

use std::io::{self, BufRead};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use serde::Serialize;
use tenure_client::api::{self, SubmitStatus, Submitted};
use tenure_client::{Client, Error, NewJob, Payload, State, Submission, Traceparent, Tracestate};

use crate::EXIT_NO;
use crate::args::Submit;
use crate::commands::at_server::{ask, document, payload, write};
use crate::commands::timed::WithTimes;
use crate::output::{self, Hinted, table};

/// How many lines of a batch go into one call, and how large they may be together: by default, brokers take 1 MiB per
/// request.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 512 * 1024;

pub(crate) async fn run(arguments: Submit) -> anyhow::Result<ExitCode> {
    if arguments.batch {
        return ask(&arguments.server, async |client| {
            batch(&client, &arguments).await
        })
        .await;
    }
    let job = job(&arguments)?;
    ask(&arguments.server, async |client| {
        single(&client, &arguments, job).await
    })
    .await
}

fn job(arguments: &Submit) -> anyhow::Result<NewJob> {
    let job_type = arguments.job_type.as_deref().unwrap_or_default();
    let payload: Payload = payload(arguments.payload.as_deref())?;
    let mut job = arguments.options.apply(NewJob::new(job_type, &payload));
    if let Some(id) = &arguments.id {
        job = job.id(id);
    }
    if let Some(delay) = arguments.delay {
        job = job.delay(delay);
    }
    if let Some(run_at) = &arguments.run_at {
        job = job.run_at(time(run_at)?);
    }
    let span = span(arguments)?;
    if let Some(parent) = span.0 {
        job = job.traceparent(parent.to_string());
    }
    if let Some(state) = span.1 {
        job = job.tracestate(state.as_str());
    }
    Ok(job)
}

/// The span that jobs belong to. A malformed span in the environment is ignored, since the user did not ask for it
/// here.
fn span(arguments: &Submit) -> anyhow::Result<(Option<Traceparent>, Option<Tracestate>)> {
    if let Some(parent) = &arguments.traceparent {
        let parent = parent
            .parse()
            .context("--traceparent is not a valid span")?;
        return Ok((Some(parent), None));
    }
    let variable = |name| std::env::var(name).ok();
    let parent = variable("TRACEPARENT").and_then(|text| text.parse().ok());
    let state = variable("TRACESTATE").and_then(|text| Tracestate::shortened(&text));
    Ok((parent, state.filter(|_| parent.is_some())))
}

/// Parses a time by the same rules as the HTTP interface.
fn time(text: &str) -> anyhow::Result<SystemTime> {
    #[derive(serde::Serialize)]
    struct Wish<'a> {
        r#type: &'a str,
        run_at: &'a str,
    }
    let wish = Wish {
        r#type: "any",
        run_at: text,
    };
    let milliseconds = serde_json::to_string(&wish)
        .and_then(|wish| serde_json::from_str::<Submission>(&wish))
        .ok()
        .and_then(|wish| wish.run_at)
        .ok_or_else(|| {
            Hinted::new(
                "--run-at is not a valid time after 1970",
                "use a time such as 2026-02-28T09:05:03Z, or use --delay",
            )
        })?;
    Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds))
}

async fn single(client: &Client, arguments: &Submit, job: NewJob) -> anyhow::Result<ExitCode> {
    let submitted = client.submit(job).await?;
    if submitted.status == SubmitStatus::Duplicate {
        output::note(&match &submitted.existing {
            Some(existing) => {
                format!("the job {existing} has the same unique key, so nothing was added")
            }
            None => format!("the job {} already exists", submitted.id),
        });
    }
    let id = submitted.existing.as_ref().unwrap_or(&submitted.id).clone();
    let Some(wait) = arguments.wait else {
        write(&if arguments.json {
            document(&submitted)?
        } else {
            format!("{id}\n")
        })?;
        return Ok(ExitCode::SUCCESS);
    };
    let job = client.wait(&id, wait).await?;
    write(&if arguments.json {
        document(&WithTimes::of(&job))?
    } else {
        super::text(&job)
    })?;
    if !job.state.is_finished() {
        output::note("the job has not finished in time; it continues");
    }
    Ok(match job.state {
        State::Completed => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_NO),
    })
}

/// Submits jobs from standard input. All lines are read before the first is sent: a mistake on the last line must be
/// found before the others are submitted.
async fn batch(client: &Client, arguments: &Submit) -> anyhow::Result<ExitCode> {
    let (parent, state) = span(arguments)?;
    let mut jobs = Vec::new();
    for (number, line) in io::stdin().lock().lines().enumerate() {
        let line = line.context("cannot read standard input")?;
        if line.trim().is_empty() {
            continue;
        }
        if jobs.is_empty() && line.trim_start().starts_with('[') {
            return Err(Hinted::new(
                "standard input is a JSON array, not one job per line",
                "split it: jq -c '.[]' FILE | tenure job submit --batch; nothing was sent",
            )
            .into());
        }
        let job = api::strict::from_slice::<Submission>(line.as_bytes());
        let mut job = job.map_err(|error| {
            Hinted::new(
                format!("line {} is not a valid job: {error}", number + 1),
                "each line must be an object such as {\"type\":\"mail\",\"payload\":{}}; nothing was sent",
            )
        })?;
        if parent.is_some() && job.traceparent.is_none() {
            job.traceparent = parent;
            job.tracestate.clone_from(&state);
        }
        jobs.push(Line {
            number: number + 1,
            bytes: line.len(),
            job: NewJob::from(job),
        });
    }
    let mut all = Vec::new();
    let mut rest = jobs.into_iter().peekable();
    while rest.peek().is_some() {
        let (mut some, mut numbers) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        while let Some(line) = rest
            .next_if(|line| some.len() < BATCH && bytes + line.bytes <= BATCH_BYTES.max(line.bytes))
        {
            bytes += line.bytes;
            numbers.push(line.number);
            some.push(line.job);
        }
        match client.submit_all(some).await {
            Ok(mut submitted) => all.append(&mut submitted),
            Err(error) => {
                // What was accepted is told first: nobody else knows those ids.
                if !all.is_empty() {
                    show(arguments, &all)?;
                }
                let which = match &error {
                    Error::Unknown { .. } => {
                        format!("it is not known whether {} added", lines(&numbers))
                    }
                    error => refused_lines(&numbers, &error.to_string()),
                };
                let before = match all.len() {
                    0 => "no job was accepted before".to_owned(),
                    1 => "1 job was accepted before, and its id is printed".to_owned(),
                    count => {
                        format!("{count} jobs were accepted before, and their ids are printed")
                    }
                };
                return Err(anyhow::Error::from(error).context(format!("{which}; {before}")));
            }
        }
    }
    show(arguments, &all)?;
    let refused =
        |one: &Submitted| matches!(one.status, SubmitStatus::Conflict | SubmitStatus::Full);
    Ok(if all.iter().any(refused) {
        ExitCode::from(EXIT_NO)
    } else {
        ExitCode::SUCCESS
    })
}

fn show(arguments: &Submit, all: &[Submitted]) -> anyhow::Result<()> {
    let rows: Vec<[String; 2]> = all
        .iter()
        .map(|one| [one.id.to_string(), status(one)])
        .collect();
    write(&if arguments.json {
        document(&Document { jobs: all })?
    } else {
        table(&rows)
    })
}

/// Names the lines of a call that failed, or the one line if the broker names one of its jobs.
fn refused_lines(numbers: &[usize], error: &str) -> String {
    let named = error.split_once("jobs[").and_then(|(_, rest)| {
        let place: usize = rest.split_once(']')?.0.parse().ok()?;
        numbers.get(place)
    });
    match (named, numbers) {
        (Some(line), [first, ..]) if line != first => {
            format!("line {line} was refused, and nothing from line {first} on was added")
        }
        (Some(line), _) => format!("line {line} was refused"),
        (None, _) => format!("{} not accepted", lines(numbers)),
    }
}

/// The line numbers, with a verb.
fn lines(numbers: &[usize]) -> String {
    match numbers {
        [first, .., last] => format!("lines {first} to {last} were"),
        [only] => format!("line {only} was"),
        [] => "nothing was".to_owned(),
    }
}

fn status(one: &Submitted) -> String {
    match (one.status, &one.existing) {
        (SubmitStatus::Created, _) => "created".to_owned(),
        (SubmitStatus::Duplicate, Some(existing)) => format!("duplicate of {existing}"),
        (SubmitStatus::Duplicate, None) => "duplicate".to_owned(),
        (SubmitStatus::Conflict, _) => "refused: another job has this id".to_owned(),
        (SubmitStatus::Full, _) => "refused: the queue is full".to_owned(),
    }
}

/// A line of standard input.
struct Line {
    number: usize,
    bytes: usize,
    job: NewJob,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    jobs: &'a [Submitted],
}

#[cfg(test)]
mod tests {
    use super::refused_lines;

    #[test]
    fn the_line_of_a_refused_job_is_told() {
        let named = "jobs[2].payload has 300002 bytes; at most 262144 are allowed";
        assert_eq!(
            refused_lines(&[1001, 1002, 1005], named),
            "line 1005 was refused, and nothing from line 1001 on was added"
        );
        assert_eq!(
            refused_lines(&[3, 4, 6], "jobs[0].id"),
            "line 3 was refused"
        );
        assert_eq!(
            refused_lines(&[3, 4], "no broker answered, jobs[x]"),
            "lines 3 to 4 were not accepted"
        );
        assert_eq!(
            refused_lines(&[7], "the body is too large"),
            "line 7 was not accepted"
        );
    }
}
