//! At most one process trusts itself as the leader of an election.
//!
//! Each is asked by its own clock. A paused process counts while its clock says so: it may already have
//! checked. A crashed one does not. Only where lease and fence were both wiped may a leader of the old
//! row of terms meet one of the new; within one row never. Copies of a process both trust themselves by what the one
//! that they were did last, and either may give up what the other believes to have: for a ttl, and no longer.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::{ElectionName, Lineage};

use super::Violation;
use crate::oracle::Oracle;
use crate::process::Process;

/// Judges all processes at one real time.
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
