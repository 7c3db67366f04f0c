//! Inputs of processes, and carrying out the outputs of their machines.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::cluster::member::{self, Membership};
use tenure_core::cluster::{Generation, Going, Part, Shard};
use tenure_core::node::{self, Event, Node, Output};
use tenure_core::session::{About, Holder};
use tenure_core::{Incarnation, Lineage};

use super::process::{Input, Process, Run};
use super::state::{Item, Slot, State, Work, config, daemon, session_config};
use crate::invariants::{Violation, decided_after_installed, generations_only_grow, started_alone};

type Verdict = Result<(), Violation>;

impl State {
    // ---- processes ----------------------------------------------------------------------------------

    pub(super) fn start(&mut self, slot: usize) -> Verdict {
        self.started += 1;
        let id = self.started;
        let Slot { node, clock } = self.slots[slot].clone();
        let me = Holder {
            node,
            incarnation: self.new_incarnation(),
            ttl: session_config().ttl,
        };
        let now = clock.now(self.now);
        let process = Process {
            slot,
            node: Node::new(session_config(), me.clone(), About::default(), now, 0),
            me,
            clock,
            leads: None,
            is_deposed: false,
            paused: None,
            runs: BTreeMap::new(),
            going: None,
            has_left: false,
        };
        self.processes.insert(id, Arc::new(process));
        let membership = Membership {
            config: config(),
            part: Part::default(),
            follows: false,
            seed: 0,
        };
        let offer = member::Input::Offer(daemon(), self.definition());
        let inputs = [
            node::Input::TakePart(Box::new(membership)),
            node::Input::Cluster(offer),
            node::Input::Wake,
        ];
        self.step(id, inputs)
    }

    /// Starts a new session of a process.
    fn join(&mut self, id: u64) -> Verdict {
        let (now, incarnation) = (self.now, self.new_incarnation());
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        process.me.incarnation = incarnation;
        process.has_left = false;
        let (me, now) = (process.me.clone(), process.clock.now(now));
        let member = process.node.take_member();
        process.node = Node::resume(session_config(), me, About::default(), member, now, 0);
        self.step(id, [node::Input::Wake])
    }

    fn new_incarnation(&mut self) -> Incarnation {
        self.incarnations += 1;
        Incarnation(self.incarnations)
    }

    /// The process is gone with everything that it ran. Its requests are still in transit. Returns where it was.
    pub(super) fn crash(&mut self, id: u64) -> Option<usize> {
        let process = self.processes.remove(&id)?;
        self.forget(id);
        Some(process.slot)
    }

    pub(super) fn resume(&mut self, id: u64, time_first: bool) -> Verdict {
        let waiting = self.process(id).and_then(|process| process.paused.take());
        let Some(mut waiting) = waiting else {
            return Ok(());
        };
        if time_first {
            waiting.insert(0, Input::Wake);
        }
        for input in waiting {
            self.deliver(id, input)?;
            self.check()?;
        }
        Ok(())
    }

    fn process(&mut self, id: u64) -> Option<&mut Process> {
        self.processes.get_mut(&id).map(Arc::make_mut)
    }

    // ---- what happens to them -----------------------------------------------------------------------

    pub(super) fn deliver(&mut self, id: u64, input: Input) -> Verdict {
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        if let Some(waiting) = &mut process.paused {
            waiting.push(input);
            return Ok(());
        }
        let input = match input {
            Input::Wake => return self.step(id, [node::Input::Wake]),
            // Answers to a session that is over are dropped.
            Input::Answer(by, ..) if by != process.me.incarnation => return Ok(()),
            Input::Answer(_, ticket, answer) => {
                return self.step(id, [node::Input::Answer(ticket, *answer)]);
            }
            Input::Started(shard, generation) => {
                match process.runs.get_mut(&(shard.clone(), generation)) {
                    Some(run) if *run == Run::Starting => *run = Run::Running,
                    _ => return Ok(()),
                }
                member::Input::Started(shard, generation)
            }
            Input::Ended(shard, generation, error) => {
                let key = (shard, generation);
                match process.runs.get(&key) {
                    None | Some(Run::Stuck) => return Ok(()),
                    Some(Run::Starting | Run::Running) => drop(process.runs.remove(&key)),
                }
                let (shard, generation) = key;
                member::Input::Ended {
                    shard,
                    generation,
                    error,
                }
            }
            Input::Elected(term, before) => {
                process.leads = Some(term);
                process.is_deposed = false;
                member::Input::Elected(Lineage(1), term, before)
            }
            Input::Deposed => {
                process.leads = None;
                process.is_deposed = false;
                member::Input::Deposed
            }
            Input::Leave(going) => {
                process.going = Some(going);
                let leave = node::Input::Cluster(member::Input::Leave(going));
                return self.step(id, [leave, node::Input::Leave]);
            }
            Input::HintAssignments => member::Input::HintAssignments,
            Input::HintDrains => member::Input::HintDrains,
            // Only a leader asks for these.
            Input::HintSession(node, incarnation) if process.leads.is_some() => {
                member::Input::HintSession(node, incarnation)
            }
            Input::HintSession(..) => return Ok(()),
        };
        self.step(id, [node::Input::Cluster(input)])
    }

    fn step(&mut self, id: u64, inputs: impl IntoIterator<Item = node::Input>) -> Verdict {
        let now = self.now;
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        let now = process.clock.now(now);
        for output in process.node.step_all(now, inputs) {
            match output {
                Output::Request {
                    ticket,
                    request,
                    within,
                } => self.send(id, ticket, request, within),
                Output::Event(event) => self.on_event(id, event)?,
            }
        }
        self.go_if_left(id)
    }

    fn on_event(&mut self, id: u64, event: Event) -> Verdict {
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        match event {
            Event::Over { .. } => {
                process.leads = None;
                process.is_deposed = false;
                Ok(())
            }
            Event::Left => {
                process.has_left = true;
                Ok(())
            }
            Event::Cluster(member::Event::Start {
                shard, generation, ..
            }) => self.start_shard(id, shard, generation),
            Event::Cluster(member::Event::Drain {
                shard, generation, ..
            }) => {
                self.end_shard(id, shard, generation, false);
                Ok(())
            }
            Event::Cluster(member::Event::Abort { shard, generation }) => {
                self.end_shard(id, shard, generation, true);
                Ok(())
            }
            Event::Cluster(member::Event::Installed { term }) => {
                let me = process.me.incarnation;
                decided_after_installed::check(&self.installed, term, me)
            }
            _ => Ok(()),
        }
    }

    /// A session that has left is followed by the next one. A process that is leaving stays until its work has ended,
    /// and comes back if it announced a restart.
    fn go_if_left(&mut self, id: u64) -> Verdict {
        let Some(process) = self.processes.get(&id).filter(|it| it.has_left) else {
            return Ok(());
        };
        match process.going {
            None => self.join(id),
            Some(_) if !process.is_idle() => Ok(()),
            Some(going) => match (self.crash(id), going) {
                (Some(slot), Going::Restarting { .. }) => self.start(slot),
                _ => Ok(()),
            },
        }
    }

    // ---- work ---------------------------------------------------------------------------------------

    fn start_shard(&mut self, id: u64, shard: Shard, generation: Generation) -> Verdict {
        generations_only_grow::check(&mut self.highest, &shard, generation)?;
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        started_alone::check(process.runs.keys(), &shard, generation)?;
        let key = (shard.clone(), generation);
        process.runs.insert(key, Run::Starting);
        self.queue.push(Item::Work(Work {
            process: id,
            shard,
            generation,
            starts: true,
        }));
        Ok(())
    }

    fn end_shard(&mut self, id: u64, shard: Shard, generation: Generation, aborts: bool) {
        let is_same = |work: &Work| {
            work.process == id && work.shard == shard && work.generation == generation
        };
        // Hanging work ignores a drain; an abort ends work that can still be ended.
        if !aborts && self.hung.iter().any(is_same) {
            return;
        }
        self.hung.retain(|work| !(is_same(work) && work.starts));
        self.queue.push(Item::Work(Work {
            process: id,
            shard,
            generation,
            starts: false,
        }));
    }
}
