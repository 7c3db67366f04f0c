//! `tenure completions`: a script for a shell.

use std::process::ExitCode;

use anyhow::Context;
use clap_complete::{Shell, generate};

use crate::args::{self, Completions, ShellName};
use crate::output::Data;

pub(crate) fn run(arguments: &Completions) -> anyhow::Result<ExitCode> {
    let shell = match arguments.shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut args::command(), "tenure", &mut script);
    let mut data = Data::new();
    data.write(std::str::from_utf8(&script)?);
    data.finish().context("cannot write the script")?;
    Ok(ExitCode::SUCCESS)
}
