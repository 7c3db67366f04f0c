//! The machines of a node: what they are told, and what becomes of what they want.

use std::time::Duration;

use tenure_core::cluster::agent;
use tenure_core::cluster::assigner;
use tenure_core::cluster::{Generation, Shard};
use tenure_core::session::{self, observer};
use tenure_core::{Now, Wall};

use super::store::{Ask, Told};
use super::{Daemon, Event, Who, World};

impl World {
    pub(super) fn hear(&mut self, who: Who, told: Told) {
        let node = who.node;
        let is_current = self.nodes[node].incarnation == who.incarnation;
        match told {
            Told::SessionWritten(written) if is_current => {
                self.step_session(node, session::machine::Input::Written(written));
            }
            Told::SessionRead(found) if is_current => {
                self.step_session(node, session::machine::Input::Read(found));
            }
            Told::Evicted(incarnation, written) => {
                self.step_observer(node, observer::Input::Evicted(incarnation, written));
            }
            Told::Observed(incarnation, found) => {
                self.step_observer(node, observer::Input::Read(incarnation, found));
            }
            // The agent outlives sessions and must cope by itself.
            Told::Looked(found) => self.step_agent(node, agent::Input::Looked(found)),
            Told::AssignmentsRead(found) if is_current => {
                self.step_assigner(node, assigner::Input::Read(found));
            }
            Told::AssignmentsWritten(written) if is_current => {
                self.step_assigner(node, assigner::Input::Written(written));
            }
            Told::DrainsRead(found) if is_current => {
                self.step_assigner(node, assigner::Input::DrainsRead(found));
            }
            Told::Listed(records) if is_current => {
                self.nodes[node].lists = false;
                self.nodes[node].list_at = self.now + self.session_config.heartbeat;
                if let Some(records) = records {
                    self.step_assigner(node, assigner::Input::Sessions(records));
                }
            }
            _ => {}
        }
    }

    // ---- the machines -------------------------------------------------------------------------------

    pub(super) fn step_session(&mut self, node: usize, input: session::machine::Input) {
        use session::machine::Output;
        let now = Now {
            moment: self.moment(node),
            ..Now::default()
        };
        let Some(session) = &mut self.nodes[node].session else {
            return;
        };
        for output in session.step(now, input) {
            match output {
                Output::Write { record, expect, .. } => {
                    self.ask(node, Ask::WriteSession(Box::new(record), expect));
                }
                Output::Read { .. } => {
                    let own = self.nodes[node].incarnation;
                    self.ask(node, Ask::ReadSession(own));
                }
                Output::Trusted { until } => {
                    self.step_agent(node, agent::Input::Trusted(until));
                }
                Output::Over { .. } => {
                    self.nodes[node].session = None;
                    self.nodes[node].leads = None;
                    self.step_assigner(node, assigner::Input::Ended);
                    self.step_agent(node, agent::Input::SessionOver);
                    let who = self.who(node);
                    let pause = Duration::from_millis(10 + self.random.below(3000));
                    self.push(pause, Event::Join(who));
                }
                Output::Left => self.kill(node),
            }
        }
    }

    pub(super) fn step_observer(&mut self, node: usize, input: observer::Input) {
        use observer::Output;
        let moment = self.moment(node);
        for output in self.nodes[node].observer.step(moment, input) {
            match output {
                Output::Read { holder, known } => self.ask(node, Ask::Observe(holder, known)),
                Output::Evict { record, expect, .. } => {
                    self.ask(node, Ask::Evict(record, expect));
                }
                Output::Ended { incarnation, end } => {
                    let input = assigner::Input::SessionEnded(incarnation, end);
                    self.step_assigner(node, input);
                }
            }
        }
    }

    pub(super) fn step_agent(&mut self, node: usize, input: agent::Input) {
        use agent::Output;
        let moment = self.moment(node);
        for output in self.nodes[node].agent.step(moment, input) {
            match output {
                Output::Look { known } => self.ask(node, Ask::Look(known)),
                Output::Start {
                    shard,
                    generation,
                    count,
                } => {
                    let told = (shard.clone(), generation);
                    self.nodes[node].told.insert(told, count);
                    self.start(node, shard, generation);
                }
                Output::Drain { .. } if self.nodes[node].sticks => {}
                Output::Abort { shard, generation } if self.nodes[node].sticks => {
                    let error = Some("it belongs to another user".to_owned());
                    let input = agent::Input::Stuck {
                        shard,
                        generation,
                        error,
                    };
                    self.step_agent(node, input);
                }
                Output::Drain {
                    shard, generation, ..
                } => {
                    let key = (shard, generation);
                    let hangs = self.nodes[node].running.get(&key) == Some(&Daemon::Hanging);
                    if !hangs && !self.random.percent(self.faults.hanging_daemons) {
                        let delay = Duration::from_millis(1 + self.random.below(2000));
                        self.end(node, delay, key, None);
                    }
                }
                Output::Abort { shard, generation } => {
                    // Rarely something cannot even be aborted for a while.
                    let most = if self.random.percent(self.faults.hanging_daemons) {
                        60_000
                    } else {
                        300
                    };
                    let delay = Duration::from_millis(self.random.below(most));
                    self.end(node, delay, (shard, generation), None);
                }
                Output::Report(report) => {
                    report.apply(&mut self.nodes[node].about);
                    let about = self.nodes[node].about.clone();
                    self.step_session(node, session::machine::Input::About(about));
                }
                Output::Idle if self.nodes[node].session.is_none() => self.kill(node),
                Output::Idle => self.step_session(node, session::machine::Input::Leave),
            }
        }
    }

    pub(super) fn start(&mut self, node: usize, shard: Shard, generation: Generation) {
        self.note(&format!("start {shard} {generation} on {node}"));
        self.assert_generation_grows(&shard, generation);
        let older = self.nodes[node]
            .running
            .keys()
            .find(|(other, _)| *other == shard);
        assert_eq!(older, None, "{:?}: two generations on n{node}", self.now);
        self.starts.push((self.now, shard.clone(), node));
        let key = (shard, generation);
        let who = self.who(node);
        let delay = Duration::from_millis(1 + self.random.below(300));
        let mut state = Daemon::Starting;
        if self.random.percent(self.faults.failing_starts) {
            self.end(node, delay, key.clone(), Some("no luck".to_owned()));
        } else if self.random.percent(self.faults.hanging_daemons) {
            state = Daemon::Hanging;
        } else {
            let (shard, generation) = key.clone();
            self.push(delay, Event::Started(who, shard, generation));
        }
        self.nodes[node].running.insert(key, state);
    }

    pub(super) fn end(
        &mut self,
        node: usize,
        delay: Duration,
        (shard, generation): (Shard, Generation),
        error: Option<String>,
    ) {
        let who = self.who(node);
        self.push(delay, Event::Ended(who, shard, generation, error));
    }

    pub(super) fn step_assigner(&mut self, node: usize, input: assigner::Input) {
        use assigner::Output;
        let now = Now {
            moment: self.moment(node),
            wall: Wall(u64::try_from(self.now.as_millis()).unwrap()),
            nonce: tenure_core::Nonce::default(),
        };
        for output in self.nodes[node].assigner.step(now, input) {
            match output {
                Output::Read { known } => self.ask(node, Ask::ReadAssignments(known)),
                Output::Write {
                    assignments,
                    expect,
                } => self.ask(node, Ask::WriteAssignments(assignments.encode(), expect)),
                Output::ReadDrains { known } => self.ask(node, Ask::ReadDrains(known)),
                Output::Watch(holder) if holder.incarnation != self.nodes[node].incarnation => {
                    self.step_observer(node, observer::Input::Watch(holder));
                }
                Output::Watch(_) => {}
                Output::Forget(incarnation) => {
                    self.step_observer(node, observer::Input::Forget(incarnation));
                }
                Output::Decided(decisions) => {
                    let at = self.now;
                    self.decisions
                        .extend(decisions.into_iter().map(|decision| (at, decision)));
                }
                Output::Installed { term } => {
                    let it = (term, self.nodes[node].incarnation);
                    assert!(
                        self.installed.contains(&it),
                        "{:?}: n{node} decides in term {term}, which never stood on the assignments",
                        self.now
                    );
                }
                Output::Resign { .. } => self.resigned.push(node),
                Output::Superseded { .. } | Output::Anomaly(_) => {}
            }
        }
    }
}
