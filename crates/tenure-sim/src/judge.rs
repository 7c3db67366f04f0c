//! Calls the invariants: at every event, at every applied write, and in between. The simulation and the model check
//! share this code.

use std::time::Duration;

use tenure_core::election::{EndReason, Fence, Lease, Term};
use tenure_core::node::{Answer, Request};
use tenure_core::session::{Record, State};
use tenure_core::{ElectionName, Lineage, Moment, Read, Written};

use crate::invariants::{
    Violation, ended_for_a_reason, ended_stays_ended, evicted_after_ttl, fence_only_grows,
    gone_after_work, installed_first, one_leader, paired_events, taken_from_ended, terms_only_grow,
    trust_is_backed, vacated_after_work,
};
use crate::oracle::Oracle;
use crate::process::Process;
use crate::store::{Applied, Key, Store};

/// A process was elected, and works from now on.
pub(crate) fn elected(
    oracle: &mut Oracle,
    process: &mut Process,
    election: &ElectionName,
    term: Term,
    lineage: Lineage,
) -> Result<(), Violation> {
    let incarnation = process.incarnation;
    let is_copied = oracle.copied.contains_key(&incarnation);
    paired_events::elected(oracle, process, election, term)?;
    // Copies of one process lead the same term, for as long as each trusts itself.
    if oracle.elected.get(&(election.clone(), lineage)) != Some(&(term, incarnation)) || !is_copied
    {
        terms_only_grow::check(oracle, election, lineage, term, incarnation)?;
    }
    installed_first::check(oracle, election, term, incarnation)?;
    process.work.insert(election.clone(), term);
    oracle
        .leading
        .insert((process.known_as, election.clone()), (term, lineage));
    oracle
        .elected
        .insert((election.clone(), lineage), (term, incarnation));
    oracle.highest.insert(election.clone(), term);
    oracle.elected_count += 1;
    Ok(())
}

/// A term has ended.
pub(crate) fn ended(
    oracle: &mut Oracle,
    process: &Process,
    store: &Store,
    election: &ElectionName,
    term: Term,
    reason: &EndReason,
) -> Result<(), Violation> {
    paired_events::ended(oracle, process, election, term)?;
    ended_for_a_reason::ended(process, election, term, reason, oracle, store)?;
    oracle.leading.remove(&(process.known_as, election.clone()));
    Ok(())
}

/// A process has left on its own.
pub(crate) fn left(oracle: &mut Oracle, process: &Process) -> Result<(), Violation> {
    if let Some((election, term)) = process.work.first_key_value() {
        let message = format!(
            "{} left while working for term {term} of {election}",
            process.label
        );
        return Err(Violation::new("a process leaves after its work", message));
    }
    oracle.forget(process.known_as);
    Ok(())
}

/// A write by a process was applied.
pub(crate) fn applied<'a>(
    now: Duration,
    applied: &Applied,
    oracle: &mut Oracle,
    store: &Store,
    processes: impl Iterator<Item = &'a Process>,
) -> Result<(), Violation> {
    let readable = "processes write what they can read";
    match &applied.key {
        // The cluster has a separate model and world.
        Key::Assignments | Key::Drains => Ok(()),
        Key::Session(_) => {
            evicted_after_ttl::check(now, applied, oracle)?;
            ended_stays_ended::check(applied)?;
            let after = Record::decode(&applied.after.bytes).expect(readable);
            if after.state != State::Alive {
                oracle.ended.insert(after.incarnation);
            }
            if oracle.copied.contains_key(&after.incarnation) {
                Ok(())
            } else {
                gone_after_work::check(&after, processes)
            }
        }
        Key::Lease(election) => {
            let after = Lease::decode(&applied.after.bytes).expect(readable);
            let before = applied.before.as_ref();
            if let Some(object) = before
                && let Ok(before) = Lease::decode(&object.bytes)
            {
                // For copies it is unknown whose work it was. Trust is checked in any case.
                if !oracle.copied.contains_key(&after.writer.incarnation) {
                    vacated_after_work::check(election, &before, &after, processes)?;
                }
                let before = (&before, object.begun_at);
                taken_from_ended::check(now, election, before, &after, oracle, store)?;
            }
            Ok(())
        }
        Key::Fence(election) => {
            let before = applied.before.as_ref();
            let before = before.and_then(|object| Fence::decode(&object.bytes).ok());
            let after = Fence::decode(&applied.after.bytes).expect(readable);
            let installed = (election.clone(), after.term, after.holder.incarnation);
            oracle.installed.insert(installed);
            match before {
                Some(before) => fence_only_grows::check(election, &before, &after),
                None => Ok(()),
            }
        }
    }
}

/// Records what the store did for a process: trust may rest only on that.
pub(crate) fn answered(
    oracle: &mut Oracle,
    store: &Store,
    process: &Process,
    started: Moment,
    request: &Request,
    answer: &Answer,
) {
    let me = process.incarnation;
    let shown = |lease: &Lease| {
        let holder = lease.holder();
        let is_mine = holder.is_some_and(|holder| holder.incarnation == me);
        is_mine.then_some(lease.term)
    };
    match (request, answer) {
        (Request::WriteSession { record, .. }, Answer::Written(Written::Done(_)))
            if record.incarnation == me && record.state == State::Alive =>
        {
            oracle.back_session(process.known_as, started);
        }
        (
            Request::WriteLease {
                election, lease, ..
            },
            Answer::Written(Written::Done(_)),
        ) => {
            if let Some(term) = shown(lease) {
                oracle.back_lease(process.known_as, election, term, started);
            }
        }
        (Request::ReadLease { election, .. }, Answer::Lease(read)) => {
            let lease = match read {
                Read::Found { record, .. } => Some(record.clone()),
                Read::Unchanged { .. } => store.lease(election),
                _ => None,
            };
            if let Some(term) = lease.as_ref().and_then(shown) {
                oracle.back_lease(process.known_as, election, term, started);
            }
        }
        _ => {}
    }
}

/// Checks what must hold between events.
pub(crate) fn between<'a>(
    now: Duration,
    elections: &[ElectionName],
    processes: impl Iterator<Item = &'a Process> + Clone,
    oracle: &Oracle,
) -> Result<(), Violation> {
    for election in elections {
        one_leader::check(now, election, processes.clone(), oracle)?;
    }
    for process in processes {
        trust_is_backed::check(process, elections, oracle)?;
    }
    Ok(())
}
