//! `tenure run` and `tenure worker` on systems without a guard for programs: they refuse to run, since nothing would
//! end a program in time.
//!
//! The guard needs features that only Linux has: child subreapers, parent-death signals and process descriptors. All
//! other verbs work without it.

use std::process::ExitCode;

use crate::output::Hinted;

fn refuse(verb: &str) -> anyhow::Result<ExitCode> {
    let what = format!("`tenure {verb}` needs Linux: nothing here could end its programs in time");
    let hint = "run it on a Linux host or in a container; brokers and all other verbs work here";
    Err(Hinted::new(what, hint).into())
}

pub(crate) mod run {
    pub(crate) async fn run(_: crate::args::Run) -> anyhow::Result<super::ExitCode> {
        super::refuse("run")
    }
}

pub(crate) mod worker {
    pub(crate) async fn run(_: crate::args::Worker) -> anyhow::Result<super::ExitCode> {
        super::refuse("worker")
    }
}

pub(crate) mod init {
    pub(crate) fn run(_: &crate::args::Command) -> anyhow::Result<super::ExitCode> {
        super::refuse("run")
    }
}

pub(crate) mod guard {
    pub(crate) fn run<W>(_: W) -> anyhow::Result<super::ExitCode> {
        super::refuse("run")
    }
}

pub(crate) mod exec {
    pub(crate) use super::guard::run;
}
