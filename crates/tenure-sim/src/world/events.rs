//! Carries out the outputs of machines like a driver, and checks applied writes.

use std::time::Duration;

use tenure_core::election::Term;
use tenure_core::node::{Event, Input};
use tenure_core::{ElectionName, Lineage};

use super::{Happening, World, words};
use crate::faults::Fault;
use crate::invariants::{Violation, ended_for_a_reason, paired_events};
use crate::judge;
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
                let (oracle, store) = (&mut self.oracle, &self.store);
                judge::ended(oracle, process, store, &election, term, &reason)?;
                if process.work.contains_key(&election) {
                    self.faults.count(Fault::WorkOutlivedTrust);
                    let after = self.random.up_to(self.plan.work_stops_in);
                    let input = Input::WorkEnded(election, term);
                    self.deliver_in(after, id, input);
                }
                Ok(())
            }
            Event::Over { reason } => {
                ended_for_a_reason::over(process, &reason, &self.oracle, &self.store, self.now)?;
                self.on_over(id);
                Ok(())
            }
            Event::Left => self.on_left(id),
            Event::Trusted { .. }
            | Event::SessionEnded { .. }
            | Event::Leader { .. }
            | Event::Anomaly { .. }
            | Event::Cluster(_) => Ok(()),
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
        judge::elected(&mut self.oracle, process, &election, term, lineage)?;
        if self.random.chance(self.plan.work_fails) {
            self.faults.count(Fault::WorkEndedByItself);
            let after = self.random.up_to(process.config.ttl * 2);
            let input = Input::WorkEnded(election, term);
            self.deliver_in(after, id, input);
        }
        Ok(())
    }

    /// Starts the next incarnation at once, or when this one has left.
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
        judge::left(&mut self.oracle, &process)?;
        if !process.replaced {
            self.plan_in(self.plan.latency, Happening::Start { slot: process.slot });
        }
        Ok(())
    }

    // ---- writes -------------------------------------------------------------------------------------

    /// A write by a process was applied.
    pub(crate) fn on_applied(&mut self, applied: &Applied) -> Result<(), Violation> {
        let (oracle, processes) = (&mut self.oracle, self.processes.values());
        judge::applied(self.now, applied, oracle, &self.store, processes)?;
        if let Key::Lease(election) = &applied.key {
            self.on_lease_changed(election, applied.after.bytes.clone());
        }
        Ok(())
    }

    /// Keeps a copy for operators, and sends the store's hints.
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
