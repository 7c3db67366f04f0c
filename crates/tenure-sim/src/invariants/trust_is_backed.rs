//! Trust never outlasts `t0 + ttl - margin` of a write or look that the store really carried out.

use tenure_core::{ElectionName, Moment};

use super::Violation;
use crate::oracle::Oracle;
use crate::process::Process;

const PROPERTY: &str = "trust is backed by what the store did";

/// Checks one process.
pub fn check(
    process: &Process,
    elections: &[ElectionName],
    oracle: &Oracle,
) -> Result<(), Violation> {
    let backing = oracle.session_backing.get(&process.known_as);
    let backing = backing.copied().unwrap_or(Moment::default());
    let trusted = process.node.trusted_until();
    if trusted > backing {
        let message = format!(
            "{} trusts its session until {trusted}, its writes allow {backing}",
            process.label
        );
        return Err(Violation::new(PROPERTY, message));
    }
    for election in elections {
        let Some((term, until)) = process.node.leads_until(election) else {
            continue;
        };
        let key = (process.known_as, election.clone(), term);
        let lease = oracle.lease_backing.get(&key).copied().unwrap_or_default();
        if until > lease.min(backing) {
            let message = format!(
                "{} leads {election} in term {term} until {until}, its looks at the lease allow {lease}, its session {backing}",
                process.label
            );
            return Err(Violation::new(PROPERTY, message));
        }
    }
    Ok(())
}
