//! `make model`: prints two tables, of the exhaustive checks within their bounds, and of the rules broken on purpose.
//!
//! The second exists only in the copy of the source that `scripts/mutants --model` makes.

#[cfg(feature = "mutants")]
mod mutants;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure_sim::model::{Bounds, Counterexample, Explored, cluster, explore, scenarios};

fn main() -> ExitCode {
    // A machine's panic is a finding, so it is not printed.
    std::panic::set_hook(Box::new(|_| {}));
    let holds = match std::env::args().nth(1).as_deref() {
        None | Some("bounds") => bounds_table(),
        #[cfg(feature = "mutants")]
        Some("mutations") => mutants::table(),
        Some(other) => Err(io::Error::other(format!(
            "there is no table {other}; scripts/mutants --model has the broken rules"
        ))),
    };
    match holds {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Works through a list on as many threads as there are cores. The results are in the order of the list.
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

/// One exhaustive check, a line of the table.
struct Look {
    name: &'static str,
    processes: usize,
    faults: u8,
    window: Duration,
    horizon: Duration,
    /// Explores at most this many states.
    explore: Box<dyn Fn(u64) -> Outcome + Sync>,
}

/// States, steps, calm runs, time, and whether the check is complete.
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
