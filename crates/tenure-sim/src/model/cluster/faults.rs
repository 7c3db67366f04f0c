//! The faults that are possible in a state, and their effects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::cluster::{Drained, Drains, Going};
use tenure_core::election::Writer;
use tenure_core::{Incarnation, Wall, Written};

use super::Bounds;
use super::action::{Action, Kind};
use super::process::{Input, Run};
use super::state::{Item, State};
use crate::invariants::Violation;

/// How long the shards of a node that restarts are kept for it.
const RESTART_WITHIN: Duration = Duration::from_secs(5);

impl State {
    pub(super) fn faults(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        let mut add = |kind: Kind, number: u64| {
            if bounds.kinds.contains(&kind) {
                actions.push(Action::Fault(kind, number));
            }
        };
        // Later items come to the front at some point.
        let front = if bounds.any_order {
            self.queue.len()
        } else {
            1
        };
        for (at, item) in (0..).zip(self.queue.iter().take(front)) {
            match item {
                Item::Request(flight) => {
                    add(Kind::Refused, at);
                    add(Kind::Slow, at);
                    if flight.request.is_write() {
                        add(Kind::AnswerLost, at);
                        add(Kind::Late, at);
                        add(Kind::Duplicated, at);
                    }
                }
                Item::Work(work) => {
                    add(Kind::WorkHangs, at);
                    if work.starts {
                        add(Kind::StartFails, at);
                    } else {
                        add(Kind::WorkStuck, at);
                    }
                }
            }
        }
        for (&id, process) in &self.processes {
            add(Kind::Crash, id);
            add(Kind::CrashForGood, id);
            let incarnation = process.me.incarnation;
            if self.store.sessions.contains_key(&incarnation) {
                add(Kind::SessionDeleted, id);
            }
            if process.paused.is_some() {
                continue;
            }
            add(Kind::Pause, id);
            if process.runs.values().any(|run| *run == Run::Running) {
                add(Kind::RunFails, id);
            }
            if process.going.is_none() {
                add(Kind::Leave, id);
                add(Kind::Restart, id);
                if process.is_trusted(self.now) && process.leads.is_none() {
                    add(Kind::Elect, id);
                }
            }
        }
        let drains = self.store.drains.as_ref();
        for (slot, number) in self.slots.iter().zip(0..) {
            let is_drained = drains.is_some_and(|(it, _)| it.nodes.contains_key(&slot.node));
            if is_drained {
                add(Kind::Undrain, number);
            } else {
                add(Kind::Drain, number);
            }
        }
        if self.store.assignments.is_some() {
            add(Kind::AssignmentsDeleted, 0);
        }
    }

    pub(super) fn fault(&mut self, kind: Kind, number: u64) -> Result<(), Violation> {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        match kind {
            Kind::Refused
            | Kind::AnswerLost
            | Kind::Late
            | Kind::Slow
            | Kind::Duplicated
            | Kind::StartFails
            | Kind::WorkHangs
            | Kind::WorkStuck => {
                let item = self.queue.remove(at);
                return self.strike(kind, item);
            }
            Kind::RunFails => {
                let runs = self.processes[&number].runs.iter();
                let mut running = runs.filter(|(_, run)| **run == Run::Running);
                if let Some(((shard, generation), _)) = running.next() {
                    let error = Some("it failed".to_owned());
                    let input = Input::Ended(shard.clone(), *generation, error);
                    self.deliver(number, input)?;
                }
            }
            Kind::Crash => {
                if let Some(slot) = self.crash(number) {
                    self.start(slot)?;
                }
            }
            Kind::CrashForGood => drop(self.crash(number)),
            Kind::Pause => {
                if let Some(process) = self.processes.get_mut(&number) {
                    Arc::make_mut(process).paused = Some(Vec::new());
                }
            }
            Kind::Leave => self.deliver(number, Input::Leave(Going::Leaving))?,
            Kind::Restart => {
                let within = RESTART_WITHIN;
                let going = Going::Restarting { within };
                self.deliver(number, Input::Leave(going))?;
            }
            Kind::Elect => self.elect(number)?,
            Kind::Drain => self.drain(at, true)?,
            Kind::Undrain => self.drain(at, false)?,
            Kind::AssignmentsDeleted => self.store.assignments = None,
            Kind::SessionDeleted => {
                let incarnation = self.processes[&number].me.incarnation;
                self.store.sessions.remove(&incarnation);
            }
        }
        Ok(())
    }

    /// A fault strikes the item that was about to happen.
    fn strike(&mut self, kind: Kind, item: Item) -> Result<(), Violation> {
        match (item, kind) {
            (Item::Request(flight), Kind::Refused) => {
                let answer = flight.request.unanswered(Written::NotApplied);
                self.answer(&flight, answer)
            }
            (Item::Request(flight), Kind::AnswerLost) => {
                self.execute(&flight.request)?;
                self.give_up(flight, false)
            }
            (Item::Request(flight), Kind::Late) => self.give_up(flight, true),
            (Item::Request(flight), Kind::Duplicated) => {
                self.late.push(flight.request.clone());
                let answer = self.execute(&flight.request)?;
                self.answer(&flight, answer)
            }
            (Item::Request(flight), _) => {
                self.slow.push((flight, None));
                Ok(())
            }
            (Item::Work(work), Kind::StartFails) => {
                let error = Some("no luck".to_owned());
                let input = Input::Ended(work.shard, work.generation, error);
                self.deliver(work.process, input)
            }
            (Item::Work(work), Kind::WorkStuck) => {
                let key = (work.shard, work.generation);
                if let Some(process) = self.processes.get_mut(&work.process)
                    && let Some(run) = Arc::make_mut(process).runs.get_mut(&key)
                {
                    *run = Run::Stuck;
                }
                Ok(())
            }
            (Item::Work(work), _) => {
                self.hung.push(work);
                Ok(())
            }
        }
    }

    /// An operator drains a node, or undrains it.
    pub(super) fn drain(&mut self, slot: usize, is_drained: bool) -> Result<(), Violation> {
        let mut drains = match &self.store.drains {
            Some((drains, _)) => Drains::clone(drains),
            None => Drains {
                writer: Writer {
                    incarnation: Incarnation(u128::MAX),
                    counter: 0,
                    nonce: tenure_core::Nonce::default(),
                },
                nodes: BTreeMap::new(),
            },
        };
        drains.writer.counter += 1;
        let node = self.slots[slot].node.clone();
        if is_drained {
            let (by, since) = ("people".to_owned(), Wall(0));
            drains.nodes.insert(node, Drained { by, since });
        } else {
            drop(drains.nodes.remove(&node));
        }
        self.store.overwrite_drains(drains);
        self.hint(&Input::HintDrains)
    }
}
