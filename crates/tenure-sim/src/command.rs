//! The shared parts of the commands: parsing arguments, and exit codes.

use std::io::{self, Write};
use std::process::ExitCode;
use std::str::FromStr;

/// The arguments of a command line.
pub type Words = std::iter::Skip<std::env::Args>;

/// Runs the command with this process's arguments: 0 if every seed passed, 1 if one did not, 2 for invalid arguments.
pub fn main<A>(
    usage: &str,
    parse: impl FnOnce(&mut Words) -> Result<A, String>,
    simulate: impl FnOnce(&A) -> io::Result<bool>,
) -> ExitCode {
    match parse(&mut std::env::args().skip(1)).map(|arguments| simulate(&arguments)) {
        Err(problem) => {
            // If standard error is closed, there is nowhere to report it.
            let _ = writeln!(io::stderr(), "{problem}\n{usage}");
            ExitCode::from(2)
        }
        Ok(Ok(false)) => ExitCode::FAILURE,
        // An error means a closed pipe: the reader has seen enough.
        Ok(Ok(true) | Err(_)) => ExitCode::SUCCESS,
    }
}

/// Parses the number that has to follow an argument.
///
/// # Errors
///
/// If there is none.
pub fn number<T: FromStr>(word: &str, words: &mut Words) -> Result<T, String> {
    let value = words.next().ok_or(format!("{word} needs a number"))?;
    value.parse().map_err(|_| format!("{value:?} is no number"))
}
