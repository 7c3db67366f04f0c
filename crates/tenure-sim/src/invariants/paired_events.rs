//! Per process and election, the events elected and ended alternate, with equal terms; and a process does not lead
//! while work of an earlier term still runs.

use tenure_core::ElectionName;
use tenure_core::election::Term;

use super::Violation;
use crate::oracle::Oracle;
use crate::process::Process;

const PROPERTY: &str = "every elected has one ended";

/// Checks an election.
pub fn elected(
    oracle: &Oracle,
    process: &Process,
    election: &ElectionName,
    term: Term,
) -> Result<(), Violation> {
    let key = (process.known_as, election.clone());
    if let Some((other, _)) = oracle.leading.get(&key) {
        let message = format!(
            "{} is elected for {election} in term {term}, term {other} has not ended",
            process.label
        );
        return Err(Violation::new(PROPERTY, message));
    }
    if let Some(working) = process.work.get(election) {
        let message = format!(
            "{} is elected for {election} in term {term} while it still works for term {working}",
            process.label
        );
        return Err(Violation::new(PROPERTY, message));
    }
    Ok(())
}

/// Checks a term that has ended, or that has to stop.
pub fn ended(
    oracle: &Oracle,
    process: &Process,
    election: &ElectionName,
    term: Term,
) -> Result<(), Violation> {
    let key = (process.known_as, election.clone());
    match oracle.leading.get(&key) {
        Some((led, _)) if *led == term => Ok(()),
        led => Err(Violation::new(
            PROPERTY,
            format!(
                "{} ends or stops {election} in term {term}, it leads {led:?}",
                process.label
            ),
        )),
    }
}
