//! `callers`: simulates one-shot callers beside nodes. Takes seeds, prints verdicts.

use std::io::{self, Write};
use std::process::ExitCode;

use tenure_sim::callers::{Options, run};
use tenure_sim::command::{self, Words, number};

const USAGE: &str = "usage: callers [--seeds COUNT] [--from SEED | --seed SEED] [--lines COUNT]";

struct Arguments {
    from: u64,
    seeds: u64,
    options: Options,
}

fn main() -> ExitCode {
    command::main(USAGE, parse, simulate)
}

fn parse(words: &mut Words) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        from: 0,
        seeds: 200,
        options: Options::default(),
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => arguments.seeds = number(&word, words)?,
            "--from" => arguments.from = number(&word, words)?,
            "--seed" => (arguments.from, arguments.seeds) = (number(&word, words)?, 1),
            "--lines" => arguments.options.trace_lines = number(&word, words)?,
            _ => return Err(format!("{word:?} means nothing")),
        }
    }
    Ok(arguments)
}

/// Runs the seeds. Returns whether all passed.
fn simulate(arguments: &Arguments) -> io::Result<bool> {
    let mut output = io::stdout().lock();
    let (mut led, mut asked, mut followed, mut calls_failed, mut failed) = (0, 0, 0, 0, 0);
    for seed in arguments.from..arguments.from.saturating_add(arguments.seeds) {
        match run(seed, &arguments.options) {
            Ok(summary) => {
                led += summary.led;
                asked += summary.asked;
                followed += summary.followed;
                calls_failed += summary.failed;
            }
            Err(failure) => {
                failed += 1;
                if failed == 1 {
                    writeln!(output, "{}", failure.trace)?;
                }
                writeln!(output, "seed {seed}: {}", failure.violation)?;
            }
        }
    }
    writeln!(
        output,
        "{} seeds, {failed} failed; {led} calls led, {asked} were asked to go, {calls_failed} failed, {followed} requests were followed",
        arguments.seeds
    )?;
    Ok(failed == 0)
}
