//! `tenure run` and `tenure worker` where there is no guard for programs: they refuse, since nothing would end a program in time.
//!
//! The guard is built on what only Linux has: a process that inherits orphans, the signal at a parent's death, descriptors of
//! processes. Everything else of the command works without it.

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
