//! `tenure schedule`: what can be typed about schedules.

use clap::{Args, Subcommand};

use super::{AskServer, JobOptions};

const SCHEDULE_AFTER: &str = "\
Examples:
  tenure schedule set nightly --cron '0 3 * * *' --timezone Europe/Berlin --type report
  tenure schedule list
  tenure schedule pause nightly
  tenure schedule delete nightly";

const LIST_SCHEDULES_AFTER: &str = "\
Examples:
  tenure schedule list
  tenure schedule list --json | jq '.schedules[].times.next_at'

Exit codes:
  0 listed, even if there are none    2 could not determine";

const DELETE_AFTER: &str = "\
Examples:
  tenure schedule delete nightly

Exit codes:
  0 deleted    1 no such schedule    2 could not determine";

const PAUSE_AFTER: &str = "\
Jobs that it has already submitted still run. It stays paused when it is set again. Runs that fall
into the pause are skipped, whatever --missed says.

Examples:
  tenure schedule pause nightly

Exit codes:
  0 paused    1 no such schedule    2 could not determine";

const RESUME_AFTER: &str = "\
Examples:
  tenure schedule resume nightly

Exit codes:
  0 resumed    1 no such schedule    2 could not determine";

const SET_SCHEDULE_AFTER: &str = "\
The next run is durable: it happens once, whichever broker leads by then. CRON has five fields
(minute, hour, day, month, weekday), or six with seconds first, or is one of @hourly, @daily,
@weekly, @monthly.

Examples:
  tenure schedule set nightly --cron '0 3 * * *' --timezone Europe/Berlin --type report
  tenure schedule set poll --cron '*/10 * * * * *' --type poll --missed skip

Exit codes:
  0 set    1 refused    2 could not determine";

/// `tenure schedule`
#[derive(Debug, Subcommand)]
#[command(after_help = SCHEDULE_AFTER, disable_help_subcommand = true)]
pub(crate) enum Schedule {
    /// Create or replace a schedule
    Set(Box<SetSchedule>),
    /// List schedules and when they run next
    #[command(after_help = LIST_SCHEDULES_AFTER)]
    List(AskServer),
    /// Stop submitting jobs, until it is resumed
    #[command(after_help = PAUSE_AFTER)]
    Pause(OneSchedule),
    /// Submit jobs again, from the next run on
    #[command(after_help = RESUME_AFTER)]
    Resume(OneSchedule),
    /// Delete a schedule; its jobs stay
    #[command(after_help = DELETE_AFTER)]
    Delete(OneSchedule),
}

/// `tenure schedule set`
#[derive(Debug, Args)]
#[command(after_help = SET_SCHEDULE_AFTER)]
pub(crate) struct SetSchedule {
    /// The schedule
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// When to submit a job
    #[arg(long, value_name = "CRON")]
    pub(crate) cron: String,

    /// The time zone of CRON, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) timezone: String,

    /// The type of the job to submit
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) job_type: String,

    /// Its payload: any JSON value, or - to read it from standard input
    #[arg(long, value_name = "PAYLOAD")]
    pub(crate) payload: Option<String>,

    /// What to do about runs that were missed while no broker led: once, skip, or all=N for the
    /// latest N
    #[arg(long, value_name = "HOW", default_value = "once")]
    pub(crate) missed: String,

    /// Also submit a job now, if this creates or changes the schedule
    #[arg(long)]
    pub(crate) run_on_start: bool,

    #[command(flatten)]
    pub(crate) options: JobOptions,

    #[command(flatten)]
    pub(crate) ask: AskServer,
}

/// `tenure schedule pause`, `resume` and `delete`
#[derive(Debug, Args)]
pub(crate) struct OneSchedule {
    /// The schedule
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) ask: AskServer,
}
