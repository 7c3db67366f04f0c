//! The report of a run: a table for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::check::Violation;
use crate::engine::Engine;
use crate::faults::Kind;
use crate::history::{Moment, Outcome, Record, Submit, What};

/// The most violations that are shown, and how many of them with their history.
const SHOWN: usize = 20;
const EXPLAINED: usize = 5;

/// The figures of one run.
#[derive(Debug)]
pub struct Report {
    /// The engine.
    pub engine: Engine,
    /// The seed.
    pub seed: u64,
    /// How long it took.
    pub took: Duration,
    /// How often each fault was caused.
    pub faults: BTreeMap<Kind, u64>,
    /// The faults that could not be caused here, and why.
    pub not_tried: Vec<String>,
    /// Brokers that ended on their own.
    pub exits: u64,
    /// Jobs that were submitted.
    pub submitted: usize,
    /// Those that were acknowledged.
    pub acknowledged: usize,
    /// Those that were completed.
    pub completed: usize,
    /// How often a job was handed out.
    pub claims: usize,
    /// How often a job was read.
    pub reads: usize,
    /// Calls with an unknown outcome.
    pub unknown: usize,
    /// Calls that were answered "not done".
    pub not_done: usize,
    /// Completions that came too late, and were refused.
    pub lost: usize,
    /// The longest time without an acknowledged submit, while faults were injected.
    pub longest_outage: Duration,
    /// The faults at that time.
    pub outage_faults: String,
    /// How long the queue took to drain.
    pub drained: Duration,
    /// How often each witness acted.
    pub acts: BTreeMap<String, u64>,
    /// The terms of all elections together.
    pub terms: u64,
    /// Broken promises, with what is known about each.
    pub violations: Vec<String>,
}

impl Report {
    /// Computes the figures from the history. Outages are counted until `faults_end`.
    #[must_use]
    pub fn of(
        engine: Engine,
        seed: u64,
        record: &Record,
        violations: &[Violation],
        faults_end: Moment,
    ) -> Self {
        let mut submitted = BTreeSet::new();
        let mut acknowledged = BTreeSet::new();
        let mut answers = vec![Moment::ZERO];
        let (mut claims, mut reads, mut unknown, mut not_done, mut lost) = (0, 0, 0, 0, 0);
        for event in &record.events {
            match &event.what {
                What::Submit { id, outcome, .. } => {
                    submitted.insert(id);
                    match outcome {
                        Submit::Acknowledged | Submit::KeyTaken(_) => {
                            answers.push(event.span.answered);
                            if *outcome == Submit::Acknowledged {
                                acknowledged.insert(id);
                            }
                        }
                        Submit::NotDone => not_done += 1,
                        Submit::Unknown => unknown += 1,
                        Submit::Wrong(_) => {}
                    }
                }
                What::Claim { .. } => claims += 1,
                What::Heartbeat { outcome, .. } | What::End { outcome, .. } => match outcome {
                    Outcome::Unknown => unknown += 1,
                    Outcome::NotDone => not_done += 1,
                    Outcome::Lost => lost += 1,
                    Outcome::Done => {}
                },
                What::Read { .. } => reads += 1,
                What::Fault(_) => {}
            }
        }
        answers.retain(|answer| *answer <= faults_end);
        answers.sort();
        let outage = answers.windows(2).max_by_key(|pair| pair[1] - pair[0]);
        let (from, to) = outage.map_or_else(Default::default, |pair| (pair[0], pair[1]));
        let listed = record.listed.values();
        let completed = listed.filter(|listed| listed.state == "completed").count();
        Self {
            engine,
            seed,
            took: Duration::ZERO,
            faults: BTreeMap::new(),
            not_tried: Vec::new(),
            exits: 0,
            submitted: submitted.len(),
            acknowledged: acknowledged.len(),
            completed,
            claims,
            reads,
            unknown,
            not_done,
            lost,
            longest_outage: to - from,
            outage_faults: faults_between(record, from, to),
            drained: Duration::ZERO,
            acts: BTreeMap::new(),
            terms: 0,
            violations: violations
                .iter()
                .enumerate()
                .map(|(place, violation)| match &violation.job {
                    Some(job) if place < EXPLAINED => {
                        format!("{}\n{}", violation.what, record.about(job))
                    }
                    _ => format!("{}\n", violation.what),
                })
                .collect(),
        }
    }

    /// How many faults were injected.
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }
}

fn faults_between(record: &Record, from: Moment, to: Moment) -> String {
    let mut faults = Vec::new();
    for event in &record.events {
        let is_meanwhile = event.span.answered >= from && event.span.invoked <= to;
        if let What::Fault(fault) = &event.what
            && is_meanwhile
        {
            let (begin, end) = (event.span.invoked, event.span.answered);
            let (begin, end) = (begin.as_secs_f64(), end.as_secs_f64());
            faults.push(format!("{fault} ({begin:.1} to {end:.1})"));
        }
    }
    let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
    format!("{from:.1} to {to:.1}: {}", faults.join("; "))
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in self.violations.iter().take(SHOWN) {
            write!(formatter, "VIOLATION {violation}")?;
        }
        let (engine, seed) = (self.engine.name(), self.seed);
        let seconds = |duration: Duration| format!("{:.1} s", duration.as_secs_f64());
        writeln!(formatter, "{engine}, seed {seed}, {}", seconds(self.took))?;
        let mut row =
            |name: &str, figure: &dyn fmt::Display| writeln!(formatter, "  {name:<34}{figure:>12}");
        row("faults", &self.fault_count())?;
        for (kind, count) in &self.faults {
            row(&format!("  {}", kind.words()), count)?;
        }
        row("brokers that ended by themselves", &self.exits)?;
        row("jobs submitted", &self.submitted)?;
        row("jobs acknowledged", &self.acknowledged)?;
        row("jobs completed", &self.completed)?;
        row("attempts", &self.claims)?;
        row("looks at jobs", &self.reads)?;
        row("outcomes unknown to the client", &self.unknown)?;
        row("calls given up, not done", &self.not_done)?;
        row("late ends refused", &self.lost)?;
        let outage = seconds(self.longest_outage);
        row("longest time without a submit", &outage)?;
        row("  meanwhile", &self.outage_faults)?;
        row("drained after the last fault in", &seconds(self.drained))?;
        row("acts", &self.acts.values().sum::<u64>())?;
        for (who, count) in &self.acts {
            row(&format!("  {who}"), count)?;
        }
        row("terms of their elections", &self.terms)?;
        row("violations", &self.violations.len())?;
        for what in &self.not_tried {
            writeln!(formatter, "not tried: {what}")?;
        }
        Ok(())
    }
}
