//! What processes do with what happens to them: the machines, wired as the driver wires them.

use std::sync::Arc;

use tenure_core::cluster::agent::{self, Agent};
use tenure_core::cluster::assigner::{self, Assigner};
use tenure_core::cluster::{Generation, Going, Part, Shard};
use tenure_core::session::record::About;
use tenure_core::session::{Holder, Observer, Session, machine, observer};
use tenure_core::{Incarnation, Lineage, Read};

use super::process::{Input, Process, Run};
use super::state::{Item, Slot, State, Work, config, daemon, session_config};
use super::store::{Ask, Told};
use crate::invariants::{Violation, decided_after_installed, generations_only_grow, started_alone};

type Verdict = Result<(), Violation>;

impl State {
    // ---- processes ----------------------------------------------------------------------------------

    pub(super) fn start(&mut self, slot: usize) -> Verdict {
        self.started += 1;
        let id = self.started;
        let Slot { node, clock } = self.slots[slot].clone();
        let now = clock.now(self.now);
        let me = Holder {
            node: node.clone(),
            incarnation: Incarnation(0),
            ttl: session_config().ttl,
        };
        let about = About::default();
        let process = Process {
            slot,
            session: Session::new(session_config(), &me, about.clone(), now, 0),
            observer: Observer::new(session_config(), node, 0),
            agent: Agent::new(&session_config(), now.moment, 0),
            assigner: Assigner::new(config(), &session_config(), me.clone(), now.moment, 0),
            me,
            clock,
            about,
            leads: None,
            is_deposed: false,
            list_at: None,
            paused: None,
            runs: std::collections::BTreeMap::new(),
            going: None,
        };
        self.processes.insert(id, Arc::new(process));
        self.step_agent(id, agent::Input::Offer(daemon()))?;
        self.join(id)
    }

    /// A new session of a process.
    fn join(&mut self, id: u64) -> Verdict {
        self.incarnations += 1;
        let incarnation = Incarnation(self.incarnations);
        let (now, definition) = (self.now, self.definition());
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        let now = process.clock.now(now);
        process.me.incarnation = incarnation;
        process.about = About {
            cluster: Some(Box::new(Part {
                offers: [(daemon(), definition)].into(),
                ..Part::default()
            })),
            ..About::default()
        };
        let about = process.about.clone();
        process.session = Session::new(session_config(), &process.me, about, now, 0);
        let me = process.me.clone();
        process.assigner = Assigner::new(config(), &session_config(), me, now.moment, 0);
        self.step_agent(id, agent::Input::Joined(incarnation))?;
        self.step_session(id, machine::Input::Wake)
    }

    /// It is gone, with all that it ran. Its requests are on their way all the same. Returns where it was.
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
        let now = self.now;
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        if let Some(waiting) = &mut process.paused {
            waiting.push(input);
            return Ok(());
        }
        match input {
            Input::Wake => self.wake(id),
            Input::Told(by, told) => self.hear(id, by, *told),
            Input::Started(shard, generation) => {
                let run = process.runs.get_mut(&(shard.clone(), generation));
                match run {
                    Some(run) if *run == Run::Starting => *run = Run::Running,
                    _ => return Ok(()),
                }
                self.step_agent(id, agent::Input::Started(shard, generation))
            }
            Input::Ended(shard, generation, error) => {
                let key = (shard, generation);
                match process.runs.get(&key) {
                    None | Some(Run::Stuck) => return Ok(()),
                    Some(Run::Starting | Run::Running) => drop(process.runs.remove(&key)),
                }
                let (shard, generation) = key;
                let input = agent::Input::Ended {
                    shard,
                    generation,
                    error,
                };
                self.step_agent(id, input)
            }
            Input::Elected(term) => {
                process.leads = Some(term);
                process.is_deposed = false;
                process.list_at = Some(process.clock.moment(now));
                self.step_assigner(id, assigner::Input::Elected(Lineage(1), term))
            }
            Input::Deposed => self.depose(id),
            Input::Leave(going) => {
                process.going = Some(going);
                self.step_agent(id, agent::Input::Leave(going))
            }
            Input::AssignmentsHint => self.step_agent(id, agent::Input::Hint),
            Input::DrainsHint if process.leads.is_some() => {
                self.step_assigner(id, assigner::Input::DrainsHint)
            }
            Input::SessionHint(incarnation) if process.leads.is_some() => {
                self.step_observer(id, observer::Input::HintOf(incarnation))
            }
            Input::DrainsHint | Input::SessionHint(_) => Ok(()),
        }
    }

    fn wake(&mut self, id: u64) -> Verdict {
        self.step_session(id, machine::Input::Wake)?;
        self.step_observer(id, observer::Input::Wake)?;
        self.step_agent(id, agent::Input::Wake)?;
        self.step_assigner(id, assigner::Input::Wake)?;
        let now = self.now;
        if let Some(process) = self.process(id)
            && let moment = process.clock.moment(now)
            && process.list_at.is_some_and(|at| at <= moment)
        {
            process.list_at = None;
            self.send(id, Ask::List);
        }
        Ok(())
    }

    fn depose(&mut self, id: u64) -> Verdict {
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        process.leads = None;
        process.is_deposed = false;
        process.list_at = None;
        self.step_assigner(id, assigner::Input::Ended)
    }

    fn hear(&mut self, id: u64, by: Incarnation, told: Told) -> Verdict {
        let now = self.now;
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        let is_current = process.me.incarnation == by;
        match told {
            Told::Evicted(incarnation, written) => {
                self.step_observer(id, observer::Input::Evicted(incarnation, written))
            }
            Told::Observed(incarnation, found) => {
                if let (Read::Found { record, .. }, true) = (&found, is_current) {
                    let seen = assigner::Input::Session(Box::new(record.clone()));
                    self.step_assigner(id, seen)?;
                }
                self.step_observer(id, observer::Input::Read(incarnation, found))
            }
            // The agent outlives sessions and must cope by itself.
            Told::Looked(found) => self.step_agent(id, agent::Input::Looked(found)),
            // What a session asked that is over concerns nobody.
            _ if !is_current => Ok(()),
            Told::SessionWritten(written) => {
                self.step_session(id, machine::Input::Written(written))
            }
            Told::SessionRead(found) => self.step_session(id, machine::Input::Read(found)),
            Told::AssignmentsRead(found) => self.step_assigner(id, assigner::Input::Read(found)),
            Told::AssignmentsWritten(written) => {
                self.step_assigner(id, assigner::Input::Written(written))
            }
            Told::DrainsRead(found) => self.step_assigner(id, assigner::Input::DrainsRead(found)),
            Told::Listed(records) => {
                if process.leads.is_some() {
                    let again = process.clock.moment(now) + session_config().heartbeat;
                    process.list_at = Some(again);
                }
                match records {
                    Some(records) => self.step_assigner(id, assigner::Input::Sessions(records)),
                    None => Ok(()),
                }
            }
        }
    }

    // ---- the machines -------------------------------------------------------------------------------

    fn step_session(&mut self, id: u64, input: machine::Input) -> Verdict {
        let now = self.now;
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        let now = process.clock.now(now);
        for output in process.session.step(now, input) {
            match output {
                machine::Output::Write { record, expect, .. } => {
                    self.send(id, Ask::WriteSession(Arc::new(record), expect));
                }
                machine::Output::Read { .. } => {
                    let own = self.processes[&id].me.incarnation;
                    self.send(id, Ask::ReadSession(own));
                }
                machine::Output::Trusted { until } => {
                    self.step_agent(id, agent::Input::Trusted(until))?;
                }
                machine::Output::Over { .. } => {
                    self.depose(id)?;
                    self.step_agent(id, agent::Input::SessionOver)?;
                    if self.processes.contains_key(&id) {
                        self.join(id)?;
                    }
                    return Ok(());
                }
                machine::Output::Left => self.leave(id)?,
            }
        }
        Ok(())
    }

    /// It has gone by itself, and comes back if it said so.
    fn leave(&mut self, id: u64) -> Verdict {
        let going = self.processes.get(&id).and_then(|process| process.going);
        match (self.crash(id), going) {
            (Some(slot), Some(Going::Restarting { .. })) => self.start(slot),
            _ => Ok(()),
        }
    }

    fn step_observer(&mut self, id: u64, input: observer::Input) -> Verdict {
        let now = self.now;
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        let moment = process.clock.moment(now);
        for output in process.observer.step(moment, input) {
            match output {
                observer::Output::Read { holder, known } => {
                    self.send(id, Ask::Observe(holder, known));
                }
                observer::Output::Evict { record, expect, .. } => {
                    self.send(id, Ask::Evict(Arc::from(record), expect));
                }
                observer::Output::Ended { incarnation, end } => {
                    self.step_assigner(id, assigner::Input::SessionEnded(incarnation, end))?;
                }
            }
        }
        Ok(())
    }

    fn step_agent(&mut self, id: u64, input: agent::Input) -> Verdict {
        let now = self.now;
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        let moment = process.clock.moment(now);
        for output in process.agent.step(moment, input) {
            match output {
                agent::Output::Look { known } => self.send(id, Ask::Look(known)),
                agent::Output::Start {
                    shard, generation, ..
                } => {
                    self.start_shard(id, shard, generation)?;
                }
                agent::Output::Drain {
                    shard, generation, ..
                } => self.end_shard(id, shard, generation, false),
                agent::Output::Abort { shard, generation } => {
                    self.end_shard(id, shard, generation, true);
                }
                agent::Output::Report(report) => self.report(id, report)?,
                agent::Output::Idle => self.step_session(id, machine::Input::Leave)?,
            }
        }
        Ok(())
    }

    fn report(&mut self, id: u64, report: agent::Report) -> Verdict {
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        report.apply(&mut process.about);
        let about = process.about.clone();
        self.step_session(id, machine::Input::About(about))?;
        // A leader knows what its own session says without reading it.
        match self.process(id) {
            Some(process) if process.leads.is_some() => {
                let record = Box::new(process.session.record().clone());
                self.step_assigner(id, assigner::Input::Session(record))
            }
            _ => Ok(()),
        }
    }

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
        // Whoever hangs does not hear that it is to drain; an abort ends what still can be ended.
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

    fn step_assigner(&mut self, id: u64, input: assigner::Input) -> Verdict {
        let now = self.now;
        let Some(process) = self.process(id) else {
            return Ok(());
        };
        let (now, me) = (process.clock.now(now), process.me.incarnation);
        for output in process.assigner.step(now, input) {
            match output {
                assigner::Output::Read { known } => self.send(id, Ask::ReadAssignments(known)),
                assigner::Output::Write {
                    assignments,
                    expect,
                } => self.send(id, Ask::WriteAssignments(Arc::from(assignments), expect)),
                assigner::Output::ReadDrains { known } => self.send(id, Ask::ReadDrains(known)),
                assigner::Output::Watch(holder) if holder.incarnation != me => {
                    self.step_observer(id, observer::Input::Watch(holder))?;
                }
                assigner::Output::Forget(incarnation) => {
                    self.step_observer(id, observer::Input::Forget(incarnation))?;
                }
                assigner::Output::Installed { term } => {
                    decided_after_installed::check(&self.installed, term, me)?;
                }
                assigner::Output::Watch(_)
                | assigner::Output::Decided(_)
                | assigner::Output::Superseded { .. }
                // Elections are not part of this model: a term may end at any time.
                | assigner::Output::Resign { .. }
                | assigner::Output::Anomaly(_) => {}
            }
        }
        Ok(())
    }
}
