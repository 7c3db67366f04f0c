//! `tenure store check`: runs the conformance suite on a user's store.
//!
//! The run always removes what it made: at the end, after a failure, and when it is interrupted. Only a second signal
//! makes it leave objects behind, and then it prints where.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tenure_store::Store;
use tenure_store::conformance::{self, Check as Checked, Options, Report, Suite};

use crate::args::Check;
use crate::output::{self, Data, Paint};
use crate::signals::Signals;

mod finishing;
mod report;

use finishing::Finishing;
use report::Answer;

pub(crate) async fn run(arguments: Check) -> anyhow::Result<ExitCode> {
    let options = options(&arguments);
    let url = super::named(arguments.url)?;
    let mut signals = Signals::new()?;
    let store = tokio::select! {
        store = tenure_store::open(&url) => Arc::new(Finishing::new(store?)),
        stop = signals.next() => {
            output::note("interrupted before anything was written; there is no verdict");
            return Ok(stop.exit_code());
        }
    };
    let suite = Suite::new(store.clone(), options.clone());
    let mut view = View::new(arguments.json);
    view.start(&store, &options);
    let stop = tokio::select! {
        report = check(&suite, &store, &mut view) => {
            view.end(&report, &options)?;
            hints(&report, arguments.quick);
            return Ok(Answer::of(&report).exit_code());
        }
        stop = signals.next() => stop,
    };
    view.clear_progress();
    stop_early(&mut signals, &store, &suite).await;
    Ok(stop.exit_code())
}

async fn check(suite: &Suite, store: &Finishing, view: &mut View) -> Report {
    let mut report = suite.run(|check| view.checked(check)).await;
    if !report.passed() {
        // A check that was aborted may have left writes under way, which could land after the clean-up.
        store.finish().await;
        report.left_behind = left_behind(suite).await;
    }
    view.clear_progress();
    report
}

fn options(arguments: &Check) -> Options {
    let mut options = if arguments.quick {
        Options::quick()
    } else {
        Options::default()
    };
    if let Some(writers) = arguments.writers {
        options.writers = writers.into();
    }
    if let Some(rounds) = arguments.rounds {
        options.rounds = rounds.into();
    }
    options
}

async fn stop_early(signals: &mut Signals, store: &Finishing, suite: &Suite) {
    output::note("interrupted; removing what this run wrote (interrupt again to leave it)");
    let clean_up = async {
        store.finish().await;
        left_behind(suite).await
    };
    let left_behind = tokio::select! {
        left_behind = clean_up => left_behind,
        _ = signals.next() => Some(format!("objects under {} were not removed", suite.prefix())),
    };
    match left_behind {
        None => output::note("everything that this run wrote is removed; there is no verdict"),
        Some(left_behind) => output::warning(&left_behind),
    }
}

async fn left_behind(suite: &Suite) -> Option<String> {
    let error = anyhow::Error::from(suite.clean_up().await.err()?);
    let prefix = suite.prefix();
    Some(format!(
        "objects under {prefix} could not be removed: {error:#}"
    ))
}

/// Prints hints about the report.
fn hints(report: &Report, quick: bool) {
    if let Some(left_behind) = &report.left_behind {
        output::warning(left_behind);
    }
    match Answer::of(report) {
        Answer::Failed => {
            output::hint("do not use this store: Tenure cannot make up for a broken guarantee");
        }
        Answer::Unclear => {
            output::hint("fix the errors that prevented checks, then check again");
        }
        Answer::Passed if !report.store.capabilities.durable => {
            output::hint("this store keeps nothing when the process ends; use it only for tests");
        }
        Answer::Passed if quick => {
            output::hint("check again without --quick before you rely on the store");
        }
        Answer::Passed => {}
    }
}

/// The output of a run: the report on stdout, line by line or as one document at the end; and on a terminal, a line
/// on stderr that shows what is being checked.
struct View {
    data: Data,
    json: bool,
    paint: Paint,
    progress: bool,
    done: usize,
}

impl View {
    fn new(json: bool) -> Self {
        Self {
            data: Data::new(),
            json,
            paint: Paint::of(&io::stdout()),
            progress: io::stderr().is_terminal(),
            done: 0,
        }
    }

    fn start(&mut self, store: &Finishing, options: &Options) {
        if !self.json {
            self.data.write(&report::head(&store.describe(), options));
        }
        self.show_progress();
    }

    fn checked(&mut self, check: &Checked) {
        self.clear_progress();
        if !self.json {
            self.data.write(&report::row(check, self.paint));
        }
        self.done += 1;
        self.show_progress();
    }

    fn end(mut self, report: &Report, options: &Options) -> anyhow::Result<()> {
        let text = if self.json {
            report::json(report, options)?
        } else {
            report::verdict(report, self.paint)
        };
        self.data.write(&text);
        self.data.finish().context("cannot write the report")
    }

    fn show_progress(&self) {
        if !self.progress {
            return;
        }
        let mut names = conformance::names();
        let count = names.len();
        output::raw_to_stderr(&match names.nth(self.done) {
            Some(name) => format!("checking {} of {count}: {name}", self.done + 1),
            None => "removing what the checks wrote".to_owned(),
        });
    }

    /// The line is short enough for any terminal, so this erases all of it.
    fn clear_progress(&self) {
        if self.progress {
            output::raw_to_stderr("\r\x1b[2K");
        }
    }
}
