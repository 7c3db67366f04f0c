//! `make model`: the exhaustive check within its bounds, and each rule broken on purpose, as two tables.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure_core::mutation::{Mutation, with};
use tenure_sim::model::{Bounds, Counterexample, Explored, cluster, explore, scenarios};
use tenure_sim::{Options, run};

/// How many seeds of the simulation, and how many states of the model, a broken rule may survive.
const SEEDS: u64 = 300;
const STATES_MAX: u64 = 300_000;
const CLUSTER_STATES_MAX: u64 = 600_000;

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

/// One exhaustive look, as a line of the table.
struct Look {
    name: &'static str,
    processes: usize,
    faults: u8,
    window: Duration,
    horizon: Duration,
    explore: Box<dyn Fn() -> Outcome + Sync>,
}

/// States, steps, calm runs, time, and whether it is complete.
type Outcome = Result<(u64, u64, u64, Duration, bool), Box<Counterexample>>;

fn outcome<K>(result: Result<Explored<K>, Box<Counterexample>>) -> Outcome {
    let explored = result?;
    Ok((
        explored.states,
        explored.steps,
        explored.calm_runs,
        explored.took,
        explored.is_complete,
    ))
}

fn looks() -> Vec<Look> {
    let elections = scenarios::all().into_iter().map(|bounds| Look {
        name: bounds.name,
        processes: bounds.processes,
        faults: bounds.faults,
        window: bounds.window,
        horizon: bounds.horizon,
        explore: Box::new(move || outcome(explore(&bounds))),
    });
    let assignments = cluster::scenarios::all().into_iter().map(|bounds| Look {
        name: bounds.name,
        processes: bounds.nodes,
        faults: bounds.faults,
        window: bounds.window,
        horizon: bounds.horizon,
        explore: Box::new(move || outcome(cluster::explore(&bounds))),
    });
    elections.chain(assignments).collect()
}

fn bounds_table() -> io::Result<bool> {
    let mut out = io::stdout();
    let mut all = looks();
    if let Some(name) = std::env::args().nth(2) {
        all.retain(|look| look.name == name);
    }
    let started = Instant::now();
    writeln!(
        out,
        "{:<32} {:>9} {:>6} {:>7} {:>7} {:>9} {:>9} {:>9} {:>7}  verdict",
        "look", "processes", "faults", "window", "horizon", "states", "steps", "calm runs", "time"
    )?;
    let holds = in_parallel(&all, |look| {
        let result = (look.explore)();
        let holds = result.is_ok();
        line(&mut io::stdout().lock(), look, result).is_ok() && holds
    });
    let holds = holds.into_iter().all(|holds| holds);
    writeln!(out, "{:.0} s in all", started.elapsed().as_secs_f64())?;
    Ok(holds)
}

fn line(out: &mut impl Write, look: &Look, outcome: Outcome) -> io::Result<()> {
    let seconds = |duration: Duration| format!("{:.1}s", duration.as_secs_f64());
    write!(
        out,
        "{:<32} {:>9} {:>6} {:>7} {:>7} ",
        look.name,
        look.processes,
        look.faults,
        seconds(look.window),
        seconds(look.horizon)
    )?;
    match outcome {
        Ok((states, steps, calm_runs, took, is_complete)) => {
            let took = seconds(took);
            let verdict = if is_complete { "holds" } else { "holds so far" };
            writeln!(
                out,
                "{states:>9} {steps:>9} {calm_runs:>9} {took:>7}  {verdict}"
            )
        }
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
    let mut rules = Mutation::ALL.to_vec();
    // The queue has a simulation of its own: see tests/mutations.rs.
    let of_queue = Mutation::UniqueKeyIgnored..=Mutation::SnapshotOneAhead;
    rules.retain(|mutation| !of_queue.contains(mutation));
    if let Some(name) = std::env::args().nth(2) {
        rules.retain(|mutation| format!("{mutation:?}") == name);
    }
    let found = in_parallel(&rules, |&mutation| match mutation < Mutation::NoDrain {
        true => (in_simulation(mutation), in_model(mutation)),
        // The cluster's own simulation is a part of the tests: see tests/mutations.rs.
        false => (None, in_cluster_model(mutation)),
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

fn in_cluster_model(mutation: Mutation) -> Option<String> {
    let looks = [cluster::scenarios::all(), cluster::scenarios::hunts()].concat();
    looks.into_iter().find_map(|bounds| {
        let bounds = cluster::Bounds {
            states_max: CLUSTER_STATES_MAX,
            ..bounds
        };
        let found = with(Some(mutation), || cluster::explore(&bounds)).err()?;
        let (property, steps) = (found.violation.property, found.path.len());
        Some(format!("{property} ({steps} steps, {})", bounds.name))
    })
}
