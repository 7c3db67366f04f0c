//! What a driver does when a machine says something, and what is judged when a write was applied.

use std::time::Duration;

use tenure_core::election::{Fence, Lease, Term};
use tenure_core::node::{Event, Input};
use tenure_core::session::{Record, State};
use tenure_core::{ElectionName, Lineage};

use super::{Happening, World, words};
use crate::faults::Fault;
use crate::invariants::{
    Violation, ended_for_a_reason, ended_stays_ended, evicted_after_ttl, fence_only_grows,
    gone_after_work, installed_first, paired_events, taken_from_ended, terms_only_grow,
    vacated_after_work,
};
use crate::store::{Applied, Key};

impl World {
    pub(super) fn on_event(&mut self, id: u64, event: Event) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&id) else {
            return Ok(());
        };
        if let Some(words) = words::event(&event) {
            self.trace.say(self.now, &process.label, &words);
        }
        match event {
            Event::Elected {
                election,
                term,
                lineage,
            } => self.on_elected(id, election, term, lineage),
            Event::Stop { election, term } => {
                paired_events::ended(&self.oracle, process, &election, term)?;
                let hangs = self.random.chance(self.plan.work_hangs);
                let usual = self.random.up_to(self.plan.work_stops_in);
                let ttl = process.config.ttl;
                let after = if hangs {
                    self.random.up_to(ttl * 4)
                } else {
                    usual
                };
                if hangs {
                    self.faults.count(Fault::WorkOutlivedStop);
                }
                let input = Input::WorkEnded(election, term);
                self.deliver_in(after, id, input);
                Ok(())
            }
            Event::Ended {
                election,
                term,
                reason,
            } => {
                paired_events::ended(&self.oracle, process, &election, term)?;
                let (oracle, store) = (&self.oracle, &self.store);
                ended_for_a_reason::ended(process, &election, term, &reason, oracle, store)?;
                self.oracle
                    .leading
                    .remove(&(process.incarnation, election.clone()));
                if process.work.contains_key(&election) {
                    self.faults.count(Fault::WorkOutlivedTrust);
                    let after = self.random.up_to(self.plan.work_stops_in);
                    let input = Input::WorkEnded(election, term);
                    self.deliver_in(after, id, input);
                }
                Ok(())
            }
            Event::Over { reason } => {
                ended_for_a_reason::over(process, &reason, &self.oracle, &self.store)?;
                self.on_over(id);
                Ok(())
            }
            Event::Left => self.on_left(id),
            Event::Trusted { .. }
            | Event::Session(_)
            | Event::SessionEnded { .. }
            | Event::Leader { .. }
            | Event::Anomaly { .. } => Ok(()),
        }
    }

    fn on_elected(
        &mut self,
        id: u64,
        election: ElectionName,
        term: Term,
        lineage: Lineage,
    ) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&id) else {
            return Ok(());
        };
        let incarnation = process.incarnation;
        paired_events::elected(&self.oracle, process, &election, term)?;
        terms_only_grow::check(&self.oracle, &election, lineage, term, incarnation)?;
        installed_first::check(&self.oracle, &election, term, incarnation)?;
        process.work.insert(election.clone(), term);
        let oracle = &mut self.oracle;
        oracle
            .leading
            .insert((incarnation, election.clone()), (term, lineage));
        oracle
            .elected
            .insert((election.clone(), lineage), (term, incarnation));
        oracle.highest.insert(election.clone(), term);
        oracle.elected_count += 1;
        if self.random.chance(self.plan.work_fails) {
            self.faults.count(Fault::WorkEndedByItself);
            let after = self.random.up_to(process.config.ttl * 2);
            let input = Input::WorkEnded(election, term);
            self.deliver_in(after, id, input);
        }
        Ok(())
    }

    /// The next incarnation starts at once, or when this one has left.
    fn on_over(&mut self, id: u64) {
        let at_once = self.random.chance(500);
        let joins_late = !self.is_calm && self.random.chance(100);
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        process.over = true;
        if at_once && !process.replaced {
            process.replaced = true;
            let slot = process.slot;
            self.plan_in(Duration::ZERO, Happening::Start { slot });
        }
        if joins_late {
            self.faults.count(Fault::JoinAfterOver);
            let election = self.elections[0].clone();
            let new_lineage = Lineage(u128::from(self.random.bits()));
            let input = Input::Join {
                election,
                priority: Some(100),
                new_lineage,
            };
            let after = self.random.up_to(self.plan.latency);
            self.deliver_in(after, id, input);
        }
    }

    fn on_left(&mut self, id: u64) -> Result<(), Violation> {
        let Some(process) = self.processes.remove(&id) else {
            return Ok(());
        };
        if let Some((election, term)) = process.work.first_key_value() {
            let message = format!(
                "{} left while working for term {term} of {election}",
                process.label
            );
            return Err(Violation::new("a process leaves after its work", message));
        }
        self.oracle.forget(process.incarnation);
        if !process.replaced {
            self.plan_in(self.plan.latency, Happening::Start { slot: process.slot });
        }
        Ok(())
    }

    // ---- writes -------------------------------------------------------------------------------------

    /// A write by a process was applied.
    pub(crate) fn on_applied(&mut self, applied: &Applied) -> Result<(), Violation> {
        match &applied.key {
            Key::Session(_) => {
                evicted_after_ttl::check(self.now, applied, &self.oracle)?;
                ended_stays_ended::check(applied)?;
                let after = Record::decode(&applied.after.bytes);
                let after = after.expect("processes write what they can read");
                if after.state != State::Alive {
                    self.oracle.ended.insert(after.incarnation);
                }
                gone_after_work::check(&after, self.processes.values())
            }
            Key::Lease(election) => {
                let after = Lease::decode(&applied.after.bytes);
                let after = after.expect("processes write what they can read");
                let before = applied.before.as_ref();
                if let Some(Ok(before)) = before.map(|object| Lease::decode(&object.bytes)) {
                    vacated_after_work::check(election, &before, &after, self.processes.values())?;
                    let (oracle, store) = (&self.oracle, &self.store);
                    taken_from_ended::check(self.now, election, &before, &after, oracle, store)?;
                }
                self.on_lease_changed(election, applied.after.bytes.clone());
                Ok(())
            }
            Key::Fence(election) => {
                let decode = |bytes: &[u8]| Fence::decode(bytes).ok();
                let before = applied.before.as_ref();
                let before = before.and_then(|object| decode(&object.bytes));
                let after = decode(&applied.after.bytes);
                let after = after.expect("processes write what they can read");
                let installed = (election.clone(), after.term, after.holder.incarnation);
                self.oracle.installed.insert(installed);
                match before {
                    Some(before) => fence_only_grows::check(election, &before, &after),
                    None => Ok(()),
                }
            }
        }
    }

    /// People keep copies, and the store gives hints.
    pub(crate) fn on_lease_changed(&mut self, election: &ElectionName, bytes: Vec<u8>) {
        self.copies.entry(election.clone()).or_default().push(bytes);
        let ids: Vec<u64> = self.processes.keys().copied().collect();
        for id in ids {
            if !self.random.chance(self.plan.hinted) {
                self.faults.count(Fault::HintLost);
                continue;
            }
            let after = self.random.up_to(self.plan.latency);
            let input = Input::Hint(election.clone());
            self.deliver_in(after, id, input);
        }
    }
}
