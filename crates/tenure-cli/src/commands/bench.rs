//! `tenure bench`: how many jobs a server takes, and how long that takes.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tenure_client::{Client, Error, QueueName};
use tokio::time::{Instant, sleep};

use crate::EXIT_NO;
use crate::args::{Bench, Workload};
use crate::commands::at_server;
use crate::output;

mod load;
mod report;

use load::Meter;

/// How often progress is shown on a terminal.
const TOLD_EVERY: Duration = Duration::from_millis(500);

pub(crate) async fn run(arguments: Bench) -> anyhow::Result<ExitCode> {
    let client = at_server::client(&arguments.server).await?;
    super::interruptible(at_server::no_is_an_answer(bench(client, arguments))).await
}

async fn bench(client: Client, arguments: Bench) -> anyhow::Result<ExitCode> {
    // Before measuring, check that a broker answers and allows this.
    client.queues().await?;
    let now = crate::times::now().0;
    let queue = QueueName::new(format!("bench-{now:x}-{:x}", std::process::id()))?;
    let meter = Arc::new(Meter::new()?);
    let started = Instant::now();
    let measured = async {
        let elapsed = load::run(&client, &queue, &arguments, &meter).await;
        if !arguments.keep {
            load::clean(&client, &queue).await?;
            match load::delete(&client, &queue, &meter).await {
                Ok(0) => {}
                Ok(left) => output::warning(&format!(
                    "{} of {queue} could not be deleted",
                    output::counted(left, "job")
                )),
                Err(Error::Denied(_)) => output::note(&format!(
                    "the jobs stay in {queue} as completed: only an admin token may delete them"
                )),
                Err(error) => return Err(error.into()),
            }
        }
        anyhow::Ok(elapsed)
    };
    let elapsed = tokio::select! {
        elapsed = measured => elapsed?,
        () = tell(&meter, started), if std::io::stderr().is_terminal() => unreachable!("never ends"),
    };
    if std::io::stderr().is_terminal() {
        output::raw_to_stderr("\r\x1b[K");
    }
    let report = report::Report::of(&meter, &arguments, elapsed);
    at_server::write(&if arguments.json {
        at_server::document(&report)?
    } else {
        report.text()
    })?;
    if let Some(error) = meter.first_error() {
        output::warning(&format!(
            "{} calls failed, the first: {error}",
            report.failed_calls
        ));
    }
    let is_work = arguments.workload == Workload::Work;
    if is_work && report.completed < report.jobs && report.failed_calls == 0 {
        output::note("not all jobs were completed in time");
    }
    Ok(match report.failed_calls {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_NO),
    })
}

/// Keeps one line of progress on the terminal up to date.
async fn tell(meter: &Meter, started: Instant) {
    loop {
        sleep(TOLD_EVERY).await;
        let seconds = started.elapsed().as_secs_f64();
        output::raw_to_stderr(&format!(
            "\r\x1b[K{seconds:.0}s  {} submitted  {} completed  {} failed calls",
            meter.jobs(),
            meter.completed(),
            meter.failed()
        ));
    }
}
