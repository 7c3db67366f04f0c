//! `tenure worker`: a program per job.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tenure_client::{CancellationToken, Client, Job, Payload, Summary};

use crate::args::Worker;
use crate::commands::{at_server, files, guarded};
use crate::output;
use crate::signals::Signals;

mod program;

use program::JobProgram;

/// How long a claim is kept while its program does not end: practically for ever. The program's guard ends it; if it
/// is not permitted to, no one else may do the job.
const GRACE: Duration = Duration::from_secs(365 * 24 * 3600);

pub(crate) async fn run(arguments: Worker) -> anyhow::Result<ExitCode> {
    files::raise();
    let client = at_server::client(&arguments.server).await?;
    // Without passwords.
    let nodes = client.nodes().join(", ");
    let worker = worker(&arguments, client)?;
    output::note(&format!(
        "{} takes jobs of type {} from {nodes}",
        worker.name(),
        arguments.types.join(", ")
    ));
    let mut signals = Signals::with_hang_up()?;
    guarded::adopt()?;
    let stop = CancellationToken::new();
    let mut signals_seen = 0;
    let work = worker.run(stop.clone());
    tokio::pin!(work);
    let summary = loop {
        tokio::select! {
            summary = &mut work => break summary?,
            signal = signals.next() => {
                signals_seen += 1;
                match signals_seen {
                    1 => {
                        output::note("letting programs finish; signal again to hand their jobs back");
                        stop.cancel();
                    }
                    2 => {
                        output::note("handing jobs back");
                        worker.hand_back();
                    }
                    // The programs die with this process, except those that may not be killed, and the jobs become
                    // ready again when their leases end.
                    _ => {
                        output::warning("stopped at once: jobs that were not handed back wait until their leases end");
                        return Ok(signal.exit_code());
                    }
                }
            }
        }
    };
    output::note(&said(summary));
    Ok(ExitCode::SUCCESS)
}

fn worker(arguments: &Worker, client: Client) -> anyhow::Result<tenure_client::Worker> {
    let command: Vec<OsString> = match &arguments.exec {
        Some(line) => vec!["sh".into(), "-c".into(), line.clone()],
        None => arguments.command.clone(),
    };
    super::run::find(&command[0])?;
    let program = Arc::new(JobProgram {
        command,
        kill_after: arguments.kill_after,
    });
    let mut builder = tenure_client::Worker::builder(client)
        .concurrency(slots(arguments.concurrency)?)
        .lease(arguments.lease)
        .drain(arguments.drain)
        .grace(GRACE);
    if let Some(name) = &arguments.name {
        builder = builder.name(name);
    }
    for queue in &arguments.queues {
        builder = builder.queue(queue);
    }
    for job_type in &arguments.types {
        let program = program.clone();
        builder = builder.handle(job_type, move |job: Job<Payload>| {
            let program = program.clone();
            async move { program.run(job).await }
        });
    }
    Ok(builder.build()?)
}

/// How many programs run at once, limited by the files they need. Further jobs would be claimed only to be released.
fn slots(wanted: u32) -> anyhow::Result<usize> {
    // Otherwise every job would be claimed only to be released.
    files::check_room().context("there is no room for even one program")?;
    let mut slots = u64::from(wanted);
    if let Some((fitting, most)) = files::programs_max().filter(|(fitting, _)| *fitting < slots) {
        output::warning(&format!(
            "only {fitting} of {slots} programs run at once: {most} files may be open, which is too few for more. \
             Raise the limit (ulimit -Hn, LimitNOFILE)"
        ));
        slots = fitting;
    }
    Ok(usize::try_from(slots)?)
}

fn said(summary: Summary) -> String {
    let Summary {
        completed,
        failed,
        released,
        lost,
    } = summary;
    let mut said = format!("{completed} completed, {failed} failed");
    if released > 0 {
        said += &format!(", {released} handed back");
    }
    if lost > 0 {
        said += &format!(", {} lost", output::counted(lost, "claim"));
    }
    said
}
