//! `tenure-sim`: runs the simulation. Takes seeds, prints verdicts.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tenure_sim::command::{self, Words, number};
use tenure_sim::{Counts, Fault, Options, run};

const USAGE: &str = "usage: tenure-sim [--seeds COUNT] [--from SEED | --seed SEED] [--nodes COUNT] [--lines COUNT] [--verbose]";

struct Arguments {
    from: u64,
    seeds: u64,
    verbose: bool,
    options: Options,
}

fn main() -> ExitCode {
    command::main(USAGE, parse, simulate)
}

fn parse(words: &mut Words) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        from: 0,
        seeds: 200,
        verbose: false,
        options: Options::default(),
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => arguments.seeds = number(&word, words)?,
            "--from" => arguments.from = number(&word, words)?,
            "--seed" => (arguments.from, arguments.seeds) = (number(&word, words)?, 1),
            "--nodes" => arguments.options.nodes = Some(number::<usize>(&word, words)?.max(1)),
            "--lines" => arguments.options.trace_lines = number(&word, words)?,
            "--verbose" => arguments.verbose = true,
            _ => return Err(format!("{word:?} means nothing")),
        }
    }
    Ok(arguments)
}

/// Runs the seeds. Returns whether all passed.
#[allow(
    clippy::disallowed_methods,
    reason = "the speed of the simulation is measured, not simulated"
)]
fn simulate(arguments: &Arguments) -> io::Result<bool> {
    let mut output = io::stdout().lock();
    let started = Instant::now();
    let (mut simulated, mut faults) = (Duration::ZERO, Counts::default());
    let (mut steps, mut requests, mut elected, mut busiest, mut slowest, mut failed) =
        (0, 0, 0, 0, 0, 0);
    for seed in arguments.from..arguments.from.saturating_add(arguments.seeds) {
        match run(seed, &arguments.options) {
            Ok(summary) => {
                if arguments.verbose {
                    writeln!(output, "seed {seed}: {summary:?}")?;
                }
                simulated += summary.simulated;
                steps += summary.steps;
                requests += summary.requests;
                elected += summary.elected;
                busiest = summary.requests_per_second_max.max(busiest);
                slowest = summary.convergence_percent.max(slowest);
                faults.add(&summary.faults);
            }
            Err(failure) => {
                failed += 1;
                if failed <= 1 || arguments.verbose {
                    writeln!(output, "{}", failure.trace)?;
                }
                writeln!(output, "seed {seed}: {}", failure.violation)?;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    writeln!(
        output,
        "{} seeds, {failed} failed, {:.1} seeds per second",
        arguments.seeds,
        arguments.seeds as f64 / seconds
    )?;
    writeln!(
        output,
        "{:.1} hours simulated, {elected} terms, {steps} steps, {requests} requests",
        simulated.as_secs_f64() / 3600.0
    )?;
    writeln!(
        output,
        "busiest process {busiest} requests in a second, slowest convergence {slowest} % of its bound"
    )?;
    for fault in Fault::ALL {
        writeln!(output, "{:>9} {fault:?}", faults.of(fault))?;
    }
    Ok(failed == 0)
}
