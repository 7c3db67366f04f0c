//! The verbs about this program: completions, manual pages and help.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

const COMPLETIONS_AFTER: &str = "\
Examples:
  bash:  tenure completions bash > ~/.local/share/bash-completion/completions/tenure
  zsh:   tenure completions zsh > \"${fpath[1]}/_tenure\"
  fish:  tenure completions fish > ~/.config/fish/completions/tenure.fish";

const MAN_AFTER: &str = "\
Writes tenure.1 and a page for each verb, such as tenure-job-submit.1. Creates the directory if it
does not exist.

Examples:
  tenure man ~/.local/share/man/man1 && man tenure-serve
  tenure man ./man && man -l ./man/tenure.1";

const HELP_AFTER: &str = "\
Examples:
  tenure help serve
  tenure help job submit";

/// The shells that can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellName {
    Bash,
    Zsh,
    Fish,
}

/// `tenure completions`
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_AFTER)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: ShellName,
}

/// `tenure man`
#[derive(Debug, Args)]
#[command(after_help = MAN_AFTER)]
pub(crate) struct Man {
    /// The directory to write them to
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

/// `tenure help`, as far as the help shows it: what is asked for is found before anything is parsed.
#[derive(Debug, Args)]
#[command(after_help = HELP_AFTER)]
pub(crate) struct Help {
    /// The verb to explain
    #[arg(value_name = "VERB")]
    pub(crate) verb: Vec<String>,
}
