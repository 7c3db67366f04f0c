//! Tips for common mistakes that the parser does not know.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Arg, Command};

/// Adds a tip to an error, if there is one.
pub(super) fn add(mut error: Error) -> Error {
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if let Some(ContextValue::StyledStr(shown)) = error.get(ContextKind::Usage) {
        let verb = verb(super::command(), &words);
        if names_a_variable(&verb, &words, &shown.to_string()) {
            let usage = ContextValue::StyledStr(verb.clone().render_usage());
            error.insert(ContextKind::Usage, usage);
        }
    }
    let named = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(named)) => named.clone(),
        _ => return error,
    };
    if let Some(tip) = tip(error.kind(), &words, &named) {
        let tip = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}

/// The verb that was typed, as far as there is one.
fn verb(mut command: Command, words: &[String]) -> Command {
    command.build();
    for word in words {
        let Some(below) = command.find_subcommand(word) else {
            break;
        };
        command = below.clone();
    }
    command
}

/// Whether the usage shows a flag that nobody typed, and that has its value from a variable: the parser lists what it was
/// given, and `--server` would look as if it had to be there.
fn names_a_variable(verb: &Command, words: &[String], usage: &str) -> bool {
    let is_shown = |flag: &str| usage.split_whitespace().any(|word| word == flag);
    let is_typed = |flag: &str| {
        let with_value = format!("{flag}=");
        words
            .iter()
            .any(|word| word == flag || word.starts_with(&with_value))
    };
    let has_variable = |argument: &&Arg| argument.get_env().and_then(std::env::var_os).is_some();
    verb.get_arguments()
        .filter(has_variable)
        .filter_map(|argument| argument.get_long())
        .map(|name| format!("--{name}"))
        .any(|flag| is_shown(&flag) && !is_typed(&flag))
}

fn tip(kind: ErrorKind, words: &[String], named: &str) -> Option<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        // A word that is not a flag is the program.
        [verb @ ("run" | "worker"), ..]
            if kind == ErrorKind::UnknownArgument && !named.starts_with('-') =>
        {
            let at = words.iter().position(|word| *word == named)?;
            let before = words[..at].join(" ");
            let line = words[at..].join(" ");
            let or = match verb {
                "worker" => format!(", or --exec '{line}'"),
                _ => String::new(),
            };
            Some(format!(
                "put -- before the program: tenure {before} -- {line}{or}"
            ))
        }
        ["job", "submit", .., file]
            if kind == ErrorKind::ArgumentConflict && words.contains(&"--batch") =>
        {
            Some(format!(
                "--batch reads jobs from standard input: tenure job submit --batch < {file}"
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: ErrorKind, line: &str, named: &str) -> Option<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        tip(kind, &words, named)
    }

    #[test]
    fn a_program_without_dashes_is_shown_with_them() {
        let unknown = ErrorKind::UnknownArgument;
        assert_eq!(
            told(unknown, "worker --type t ./prog -v", "./prog").unwrap(),
            "put -- before the program: tenure worker --type t -- ./prog -v, or --exec './prog -v'"
        );
        assert_eq!(
            told(unknown, "run ./reports", "./reports").unwrap(),
            "put -- before the program: tenure run -- ./reports"
        );
        assert_eq!(told(unknown, "run --elction x", "--elction"), None);
        assert_eq!(told(unknown, "status x", "x"), None);
    }

    #[test]
    fn a_file_of_jobs_is_for_standard_input() {
        assert_eq!(
            told(
                ErrorKind::ArgumentConflict,
                "job submit --batch jobs.json",
                "--batch"
            )
            .unwrap(),
            "--batch reads jobs from standard input: tenure job submit --batch < jobs.json"
        );
    }
}
