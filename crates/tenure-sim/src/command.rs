//! What the commands have in common: words in, an exit code out.

use std::io::{self, Write};
use std::process::ExitCode;
use std::str::FromStr;

/// The words of a command line.
pub type Words = std::iter::Skip<std::env::Args>;

/// Does what the words of this process say: 0 if every seed passed, 1 if one did not, 2 for words that mean nothing.
pub fn main<A>(
    usage: &str,
    parse: impl FnOnce(&mut Words) -> Result<A, String>,
    simulate: impl FnOnce(&A) -> io::Result<bool>,
) -> ExitCode {
    match parse(&mut std::env::args().skip(1)).map(|arguments| simulate(&arguments)) {
        Err(problem) => {
            // Nobody is left to be told if standard error is closed.
            let _ = writeln!(io::stderr(), "{problem}\n{usage}");
            ExitCode::from(2)
        }
        Ok(Ok(false)) => ExitCode::FAILURE,
        // An error is a closed pipe: the reader has seen enough.
        Ok(Ok(true) | Err(_)) => ExitCode::SUCCESS,
    }
}

/// The number that has to follow a word.
///
/// # Errors
///
/// If none does.
pub fn number<T: FromStr>(word: &str, words: &mut Words) -> Result<T, String> {
    let value = words.next().ok_or(format!("{word} needs a number"))?;
    value.parse().map_err(|_| format!("{value:?} is no number"))
}
