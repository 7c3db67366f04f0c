//! `stack`: simulates the whole stack, a seed in, a verdict out.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_sim::Failure;
use tenure_sim::command::{self, Words, number};
use tenure_sim::stack::{Counts, Fault, Options, Part, Smallest, Summary, run, shrink};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "usage: stack [--seeds COUNT] [--from SEED | --seed SEED] [--minutes OF_CHAOS | --seconds OF_CHAOS] [--files | --objects] [--outbox | --no-outbox] [--without FAULT,…] [--threads COUNT] [--lines COUNT | --trace] [--verbose]";

struct Arguments {
    from: u64,
    seeds: u64,
    threads: u64,
    verbose: bool,
    options: Options,
}

fn main() -> ExitCode {
    command::main(USAGE, parse, simulate)
}

fn parse(words: &mut Words) -> Result<Arguments, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut arguments = Arguments {
        from: 0,
        seeds: 100,
        threads: cores as u64,
        verbose: false,
        options: Options::default(),
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => arguments.seeds = number(&word, words)?,
            "--from" => arguments.from = number(&word, words)?,
            "--seed" => (arguments.from, arguments.seeds) = (number(&word, words)?, 1),
            "--minutes" => {
                arguments.options.chaos = 60 * Duration::from_secs(number(&word, words)?);
            }
            "--seconds" => arguments.options.chaos = Duration::from_secs(number(&word, words)?),
            "--files" => arguments.options.files = Some(true),
            "--objects" => arguments.options.files = Some(false),
            "--outbox" => arguments.options.outbox = Some(true),
            "--no-outbox" => arguments.options.outbox = Some(false),
            "--without" => {
                let names = words.next().ok_or("--without needs names of faults")?;
                for name in names.split(',') {
                    let fault = Fault::named(name).ok_or(format!("{name:?} is no fault"))?;
                    arguments.options.off.insert(fault);
                }
            }
            "--threads" => arguments.threads = number::<u64>(&word, words)?.max(1),
            "--lines" => arguments.options.trace_lines = number(&word, words)?,
            "--trace" => {
                arguments.options.trace_lines = usize::MAX;
                arguments.options.always_trace = true;
            }
            "--verbose" => arguments.verbose = true,
            _ => return Err(format!("{word:?} means nothing")),
        }
    }
    Ok(arguments)
}

/// What all seeds together were like.
#[derive(Default)]
struct Sum {
    simulated: Duration,
    requests: u64,
    records: u64,
    jobs: u64,
    claims: u64,
    calls: u64,
    unjudged: u64,
    snapshots: u64,
    takeovers: u64,
    shards: u64,
    faults: Counts,
    failed: u64,
}

impl Sum {
    fn add(&mut self, summary: &Summary) {
        self.simulated += summary.simulated;
        self.requests += summary.requests;
        self.records += summary.records;
        self.jobs += summary.jobs;
        self.claims += summary.claims;
        self.calls += summary.calls;
        self.unjudged += summary.unjudged;
        self.snapshots += summary.snapshots;
        self.takeovers += summary.takeovers;
        self.shards += summary.shards;
        self.faults.add(&summary.faults);
    }
}

/// Whether every seed passed.
#[allow(
    clippy::disallowed_methods,
    reason = "the speed of the simulation is measured, not simulated"
)]
fn simulate(arguments: &Arguments) -> io::Result<bool> {
    let started = Instant::now();
    let next = AtomicU64::new(arguments.from);
    let end = arguments.from.saturating_add(arguments.seeds);
    let sum = Mutex::new(Sum::default());
    let broken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let verdict = run(seed, &arguments.options).map_err(|failure| {
                        let is_first = !broken.swap(true, Ordering::Relaxed);
                        if is_first {
                            shrink(failure, &arguments.options)
                        } else {
                            as_it_is(failure, &arguments.options)
                        }
                    });
                    let mut sum = sum
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    // Whoever has closed the pipe has seen enough.
                    let _ = tell(&mut sum, seed, arguments.verbose, verdict);
                }
            });
        }
    });
    let sum = sum
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    report(arguments, &sum, started.elapsed())?;
    Ok(sum.failed == 0)
}

/// The first failure is made smaller; the others are told as they are.
fn as_it_is(failure: Box<Failure>, options: &Options) -> Smallest {
    Smallest {
        options: options.clone(),
        failure,
        tries: 0,
    }
}

fn tell(
    sum: &mut Sum,
    seed: u64,
    verbose: bool,
    verdict: Result<Summary, Smallest>,
) -> io::Result<()> {
    let mut output = io::stdout().lock();
    match verdict {
        Ok(summary) => {
            sum.add(&summary);
            if !summary.trace.is_empty() {
                writeln!(output, "{}", summary.trace)?;
            }
            if verbose {
                writeln!(output, "seed {seed}: {summary:?}")?;
            }
        }
        Err(smallest) => {
            sum.failed += 1;
            if smallest.tries > 0 || verbose {
                writeln!(output, "{}", smallest.failure.trace)?;
            }
            writeln!(output, "seed {seed}: {}", smallest.failure.violation)?;
            writeln!(output, "run it again: {}", smallest.command())?;
        }
    }
    Ok(())
}

fn report(arguments: &Arguments, sum: &Sum, took: Duration) -> io::Result<()> {
    let mut output = io::stdout().lock();
    let seconds = took.as_secs_f64();
    writeln!(
        output,
        "{} seeds of the whole stack, {} failed, {:.2} seeds per second on {} threads",
        arguments.seeds,
        sum.failed,
        arguments.seeds as f64 / seconds,
        arguments.threads
    )?;
    writeln!(
        output,
        "{:.2} days simulated, {} requests, {} take-overs, {} snapshots, {} shards started",
        sum.simulated.as_secs_f64() / 86_400.0,
        sum.requests,
        sum.takeovers,
        sum.snapshots,
        sum.shards
    )?;
    writeln!(
        output,
        "{} records, {} jobs, {} claims, {} calls in an order that fits, {} jobs with too many at once to tell",
        sum.records, sum.jobs, sum.claims, sum.calls, sum.unjudged
    )?;
    writeln!(output, "{} faults:", sum.faults.total())?;
    let parts = Part::ALL.into_iter().map(Some).chain([None]);
    for part in parts {
        match part {
            Some(part) => writeln!(output, "{:>9} {part:?}", sum.faults.of_part(part))?,
            None => writeln!(output, "and beside them:")?,
        }
        let of_part = Fault::ALL.into_iter().filter(|fault| fault.part() == part);
        for fault in of_part {
            writeln!(output, "{:>13} {fault:?}", sum.faults.of(fault))?;
        }
    }
    Ok(())
}
