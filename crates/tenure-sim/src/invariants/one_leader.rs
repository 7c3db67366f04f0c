//! At most one process trusts itself as the leader of an election.
//!
//! Each process is judged by its own clock. A paused process counts as long as its clock allows: it may already have
//! checked its trust. A crashed one does not. Leaders of two lineages may overlap only where lease and fence were
//! both wiped; within one lineage never. Two copies of a process may both trust themselves because of what the
//! original did last, and each may release what the other believes to hold: for a ttl, and no longer.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::{ElectionName, Lineage};

use super::Violation;
use crate::oracle::Oracle;
use crate::process::Process;

/// Checks all processes at one real time.
pub fn check<'a>(
    now: Duration,
    election: &ElectionName,
    processes: impl Iterator<Item = &'a Process>,
    oracle: &Oracle,
) -> Result<(), Violation> {
    let mut leaders: BTreeMap<Option<Lineage>, &Process> = BTreeMap::new();
    let wiped = oracle.wiped.contains_key(election);
    for process in processes {
        if process.leads(election, now).is_none() {
            continue;
        }
        let key = (process.known_as, election.clone());
        let row = oracle.leading.get(&key).map(|&(_, lineage)| lineage);
        let other = leaders.insert(row.filter(|_| wiped), process);
        let is_copied = |of: &Process| {
            let until = oracle.copied.get(&of.incarnation);
            until.is_some_and(|until| now < *until)
        };
        if let Some(other) = other
            && !is_copied(other)
            && !is_copied(process)
        {
            let message = format!(
                "{election}: {} in {:?} and {} in {:?}",
                other.label,
                other.node.leads_until(election),
                process.label,
                process.node.leads_until(election),
            );
            return Err(Violation::new("at most one trusted leader", message));
        }
    }
    Ok(())
}
