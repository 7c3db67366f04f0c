//! `make model`: the exhaustive check within its bounds, and each rule broken on purpose, as two tables.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure_core::mutation::{Mutation, with};
use tenure_sim::model::{Bounds, Counterexample, Explored, cluster, explore, scenarios};
use tenure_sim::{Options, run};

/// How many seeds of the simulation a broken rule may survive.
const SEEDS: u64 = 300;

/// How many states of each look it may survive, round by round: most rules show within the first few thousand
/// of some look, and only those that do not are looked for in more.
const ROUNDS: [u64; 3] = [25_000, 100_000, 1_000_000];

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
    /// Looks at so many states at most.
    explore: Box<dyn Fn(u64) -> Outcome + Sync>,
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

fn of_elections(looks: Vec<Bounds>) -> Vec<Look> {
    let look = |bounds: Bounds| Look {
        name: bounds.name,
        processes: bounds.processes,
        faults: bounds.faults,
        window: bounds.window,
        horizon: bounds.horizon,
        explore: Box::new(move |states_max| {
            let bounds = bounds.clone();
            outcome(explore(&Bounds {
                states_max,
                ..bounds
            }))
        }),
    };
    looks.into_iter().map(look).collect()
}

fn of_assignments(looks: Vec<cluster::Bounds>) -> Vec<Look> {
    let look = |bounds: cluster::Bounds| Look {
        name: bounds.name,
        processes: bounds.nodes,
        faults: bounds.faults,
        window: bounds.window,
        horizon: bounds.horizon,
        explore: Box::new(move |states_max| {
            let bounds = bounds.clone();
            outcome(cluster::explore(&cluster::Bounds {
                states_max,
                ..bounds
            }))
        }),
    };
    looks.into_iter().map(look).collect()
}

fn bounds_table() -> io::Result<bool> {
    let mut out = io::stdout();
    let mut all = of_elections(scenarios::all());
    all.extend(of_assignments(cluster::scenarios::all()));
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
        let result = (look.explore)(u64::MAX);
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
    let started = Instant::now();
    let mut rules = Mutation::ALL.to_vec();
    // The queue has no model, but a simulation that notices each of its rules: see tests/mutations.rs.
    let of_queue = Mutation::UniqueKeyIgnored..=Mutation::ForgottenEarly;
    rules.retain(|mutation| !of_queue.contains(mutation));
    if let Some(name) = std::env::args().nth(2) {
        rules.retain(|mutation| format!("{mutation:?}") == name);
    }
    let elections = of_elections(scenarios::all());
    let mut assignments = of_assignments(cluster::scenarios::hunts());
    assignments.extend(of_assignments(cluster::scenarios::all()));
    writeln!(
        io::stdout(),
        "\n{:<26} {:<48} {:<30} {:>7} {:>5} {:>6}  simulation of elections",
        "rule broken",
        "noticed by",
        "look",
        "states",
        "steps",
        "time"
    )?;
    let noticed = in_parallel(&rules, |&mutation| {
        // That of the cluster is a part of the tests: see tests/mutations.rs.
        let is_of_elections = mutation < Mutation::NoDrain;
        let simulation = is_of_elections.then(|| in_simulation(mutation)).flatten();
        let looks = if is_of_elections {
            &elections
        } else {
            &assignments
        };
        let began = Instant::now();
        let model = in_model(mutation, looks);
        let is_noticed = simulation.is_some() || model.is_some();
        let model = model.unwrap_or_else(|| format!("{:<48} {:<30} {:>7} {:>5}", "-", "", "", ""));
        let line = writeln!(
            io::stdout().lock(),
            "{:<26} {model} {:>5.1}s  {}",
            format!("{mutation:?}"),
            began.elapsed().as_secs_f64(),
            simulation.unwrap_or_default()
        );
        line.is_ok() && is_noticed
    });
    let (count, noticed) = (rules.len(), noticed.into_iter().filter(|it| *it).count());
    let took = started.elapsed().as_secs_f64();
    writeln!(
        io::stdout(),
        "{count} rules broken, {noticed} noticed, {took:.0} s in all"
    )?;
    Ok(noticed == count)
}

fn in_simulation(mutation: Mutation) -> Option<String> {
    (0..SEEDS).find_map(|seed| {
        let verdict = with(Some(mutation), || run(seed, &Options::default()));
        let property = verdict.err()?.violation.property;
        Some(format!("{property} (seed {seed})"))
    })
}

/// The property that is broken, the look that shows it, and how far it had to look.
fn in_model(mutation: Mutation, looks: &[Look]) -> Option<String> {
    let mut tries = ROUNDS
        .iter()
        .flat_map(|&states_max| looks.iter().map(move |look| (look, states_max)));
    tries.find_map(|(look, states_max)| {
        let found = with(Some(mutation), || (look.explore)(states_max)).err()?;
        Some(format!(
            "{:<48} {:<30} {:>7} {:>5}",
            found.violation.property,
            look.name,
            found.states,
            found.path.len()
        ))
    })
}
