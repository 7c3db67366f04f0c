//! Each rule broken on purpose, and the check that notices it.

use std::io::{self, Write};
use std::time::Instant;

use tenure_core::mutation::{Area, Mutation, with};
use tenure_sim::model::{cluster, scenarios};
use tenure_sim::{Options, run};

use super::{Look, in_parallel, of_assignments, of_elections};

/// The number of seeds of the simulation within which a broken rule must be noticed.
const SEEDS: u64 = 300;

/// How many states of each check are explored, round by round. Most broken rules show within the first few thousand
/// states of some check, and only the others get larger rounds.
const ROUNDS: [u64; 3] = [25_000, 100_000, 1_000_000];

/// Prints the table of broken rules. Returns whether each was noticed.
pub(super) fn table() -> io::Result<bool> {
    let started = Instant::now();
    let mut rules = Mutation::ALL.to_vec();
    // The queue has no model, but a simulation notices each of its rules: see tests/mutations.rs.
    rules.retain(|rule| matches!(rule.area(), Area::Elections | Area::Cluster));
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
        // The simulation of the cluster is part of the tests: see tests/mutations.rs.
        let is_of_elections = mutation.area() == Area::Elections;
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

/// Describes the property that is broken, the check that shows it, and how many states that took.
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
