//! `make model`: the exhaustive check within its bounds, and each rule broken on purpose, as two tables.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure_core::mutation::{Mutation, with};
use tenure_sim::model::{Bounds, Counterexample, Explored, explore, scenarios};
use tenure_sim::{Options, run};

/// How many seeds of the simulation, and how many states of the model, a broken rule may survive.
const SEEDS: u64 = 300;
const STATES_MAX: u64 = 30_000;

fn main() -> ExitCode {
    // A machine that panics is a finding, not an accident.
    std::panic::set_hook(Box::new(|_| {}));
    let only = std::env::args().nth(1);
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only == part);
    let mut holds = true;
    if wanted("bounds") {
        holds &= bounds_table().unwrap_or(false);
    }
    if wanted("mutations") {
        holds &= mutation_table().unwrap_or(false);
    }
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Takes work off a list on as many threads as there are cores; results in the order of the work.
fn in_parallel<T: Sync, R: Send>(work: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = Mutex::new(0..work.len());
    let results: Mutex<Vec<(usize, R)>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let poisoned = "no thread panics here";
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(at) = next.lock().expect(poisoned).next() else {
                        return;
                    };
                    let result = each(&work[at]);
                    results.lock().expect(poisoned).push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect(poisoned);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn bounds_table() -> io::Result<bool> {
    let mut out = io::stdout();
    let mut all = scenarios::all();
    if let Some(name) = std::env::args().nth(2) {
        all.retain(|bounds| bounds.name == name);
    }
    let started = Instant::now();
    writeln!(
        out,
        "{:<24} {:>9} {:>6} {:>7} {:>7} {:>9} {:>9} {:>9} {:>7}  verdict",
        "look", "processes", "faults", "window", "horizon", "states", "steps", "calm runs", "time"
    )?;
    let holds = in_parallel(&all, |bounds| {
        let result = explore(bounds);
        let holds = result.is_ok();
        line(&mut io::stdout().lock(), bounds, result).is_ok() && holds
    });
    let holds = holds.into_iter().all(|holds| holds);
    writeln!(out, "{:.0} s in all", started.elapsed().as_secs_f64())?;
    Ok(holds)
}

fn line(
    out: &mut impl Write,
    bounds: &Bounds,
    result: Result<Explored, Box<Counterexample>>,
) -> io::Result<()> {
    let seconds = |duration: Duration| format!("{:.1}s", duration.as_secs_f64());
    write!(
        out,
        "{:<24} {:>9} {:>6} {:>7} {:>7} ",
        bounds.name,
        bounds.processes,
        bounds.faults,
        seconds(bounds.window),
        seconds(bounds.horizon)
    )?;
    match result {
        Ok(explored) => writeln!(
            out,
            "{:>9} {:>9} {:>9} {:>7}  {}",
            explored.states,
            explored.steps,
            explored.calm_runs,
            seconds(explored.took),
            if explored.is_complete {
                "holds"
            } else {
                "holds so far"
            }
        ),
        Err(found) => {
            writeln!(out, "{}", found.violation)?;
            found
                .path
                .iter()
                .try_for_each(|step| writeln!(out, "{step}"))
        }
    }
}

fn mutation_table() -> io::Result<bool> {
    let mut out = io::stdout().lock();
    writeln!(out, "\n{:<24} {:<52} model", "rule broken", "simulation")?;
    let rules: Vec<Mutation> = Mutation::ALL
        .into_iter()
        // The cluster has a simulation of its own: see tests/mutations.rs.
        .filter(|mutation| *mutation < Mutation::NoDrain)
        .collect();
    let found = in_parallel(&rules, |&mutation| {
        (in_simulation(mutation), in_model(mutation))
    });
    let mut all = true;
    for (mutation, (simulation, model)) in rules.iter().zip(found) {
        all &= simulation.is_some() || model.is_some();
        let simulation = simulation.unwrap_or_else(|| "-".to_owned());
        let model = model.unwrap_or_else(|| "-".to_owned());
        writeln!(
            out,
            "{:<24} {simulation:<52} {model}",
            format!("{mutation:?}")
        )?;
    }
    Ok(all)
}

fn in_simulation(mutation: Mutation) -> Option<String> {
    (0..SEEDS).find_map(|seed| {
        let verdict = with(Some(mutation), || run(seed, &Options::default()));
        let property = verdict.err()?.violation.property;
        Some(format!("{property} (seed {seed})"))
    })
}

fn in_model(mutation: Mutation) -> Option<String> {
    scenarios::all().into_iter().find_map(|bounds| {
        let bounds = Bounds {
            states_max: STATES_MAX,
            ..bounds
        };
        let found = with(Some(mutation), || explore(&bounds)).err()?;
        Some(format!(
            "{} ({} steps)",
            found.violation.property,
            found.path.len()
        ))
    })
}
