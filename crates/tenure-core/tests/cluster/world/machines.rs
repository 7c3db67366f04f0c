//! The machines: their inputs, and what happens to their outputs.

use std::time::Duration;

use tenure_core::cluster::{Generation, Shard, member};
use tenure_core::node::{Event as NodeEvent, Input, Output};
use tenure_core::{Now, Wall};

use super::{Daemon, Event, World};

impl World {
    /// One step of a node's machine, with everything that it asks for.
    pub(super) fn tell(&mut self, node: usize, inputs: impl IntoIterator<Item = Input>) {
        let now = Now {
            moment: self.moment(node),
            wall: Wall(u64::try_from(self.now.as_millis()).unwrap()),
            nonce: tenure_core::Nonce::default(),
        };
        let Some(machine) = &mut self.nodes[node].machine else {
            return;
        };
        let outputs = machine.step_all(now, inputs);
        self.stop_some_starts(node, &outputs);
        for output in outputs {
            match output {
                Output::Request {
                    ticket,
                    request,
                    within,
                } => self.ask(node, ticket, request, within),
                Output::Event(NodeEvent::Over { .. }) => self.nodes[node].leads = None,
                Output::Event(NodeEvent::Left) => self.on_left(node),
                Output::Event(NodeEvent::Cluster(event)) => self.on_cluster(node, event),
                Output::Event(_) => {}
            }
        }
        let it = &self.nodes[node];
        if it.has_left && it.is_going && it.is_idle() {
            self.kill(node);
        }
    }

    /// A process may be stopped between reading something and reporting on it.
    fn stop_some_starts(&mut self, node: usize, outputs: &[Output]) {
        let is_start = |output: &Output| {
            matches!(
                output,
                Output::Event(NodeEvent::Cluster(member::Event::Start { .. }))
            )
        };
        let percent = self.faults.stopped_starts;
        if percent > 0 && outputs.iter().any(is_start) && self.random.percent(percent) {
            let pause = Duration::from_millis(self.random.below(9000));
            self.pause(node, pause);
        }
    }

    /// The next session begins after a while, or never: a node that leaves waits for its work to end.
    fn on_left(&mut self, node: usize) {
        self.nodes[node].has_left = true;
        if !self.nodes[node].is_going {
            let who = self.who(node);
            let pause = Duration::from_millis(10 + self.random.below(3000));
            self.push(pause, Event::Join(who));
        }
    }

    fn on_cluster(&mut self, node: usize, event: member::Event) {
        match event {
            member::Event::Start {
                shard,
                generation,
                count,
            } => {
                let told = (shard.clone(), generation);
                self.nodes[node].told.insert(told, count);
                self.start(node, shard, generation);
            }
            member::Event::Drain { .. } if self.nodes[node].sticks => {}
            member::Event::Abort { shard, generation } if self.nodes[node].sticks => {
                let error = Some("it belongs to another user".to_owned());
                let who = self.who(node);
                self.push(Duration::ZERO, Event::Stuck(who, shard, generation, error));
            }
            member::Event::Drain {
                shard, generation, ..
            } => {
                let key = (shard, generation);
                let hangs = self.nodes[node].running.get(&key) == Some(&Daemon::Hanging);
                if !hangs && !self.random.percent(self.faults.hanging_daemons) {
                    let delay = Duration::from_millis(1 + self.random.below(2000));
                    self.end(node, delay, key, None);
                }
            }
            member::Event::Abort { shard, generation } => {
                // Rarely something cannot even be aborted for a while.
                let most = if self.random.percent(self.faults.hanging_daemons) {
                    60_000
                } else {
                    300
                };
                let delay = Duration::from_millis(self.random.below(most));
                self.end(node, delay, (shard, generation), None);
            }
            member::Event::Decided(decisions) => {
                let at = self.now;
                self.decisions
                    .extend(decisions.into_iter().map(|decision| (at, decision)));
            }
            member::Event::Installed { term } => {
                let it = (term, self.nodes[node].incarnation);
                assert!(
                    self.installed.contains(&it),
                    "{:?}: n{node} decides in term {term}, which never stood on the assignments",
                    self.now
                );
            }
            member::Event::Resigned { .. } => self.resigned.push(node),
            _ => {}
        }
    }

    fn start(&mut self, node: usize, shard: Shard, generation: Generation) {
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
}
