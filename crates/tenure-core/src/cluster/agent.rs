//! A node's part: runs what is assigned to it, for as long as it may, and reports the state of each shard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::record::{AssignmentState, Assignments, Generation, Shard, look_trust};
use super::report::{Going, Part, Run, RunState, Stuck, short};
use crate::random::Random;
use crate::session;
use crate::{DaemonId, Incarnation, Moment, Read, Version};

/// The machine. It outlives sessions: what an old one started must have ended before a new one starts the same. At most
/// one look is in flight; the driver answers each with one input.
#[derive(Debug, Clone, Hash)]
pub struct Agent {
    heartbeat: Duration,
    rest: Duration,
    retry: Duration,
    random: Random,
    /// Nobody here needs the assignments of other nodes.
    rests: bool,
    /// The session that assignments must name; `None` while there is none.
    me: Option<Incarnation>,
    session_trusted_until: Moment,
    offers: BTreeSet<DaemonId>,
    view: Option<View>,
    /// The shards that run here, or have not ended yet.
    local: BTreeMap<Shard, Local>,
    /// The highest generation of each shard that has ended here or will never be started, with its final state. No
    /// generation up to it is ever started.
    ended: BTreeMap<Shard, (Generation, RunState)>,
    going: Option<Going>,
    in_flight: Option<Look>,
    due: Moment,
    /// The last report in this session.
    reported: Option<Report>,
    idle: bool,
    /// Something has changed that starts and reports depend on.
    has_changed: bool,
    /// A shard would have been started if the session had been trusted.
    waits_for_trust: bool,
}

/// A look that is in flight: when it was started, and by which session.
#[derive(Debug, Clone, Copy, Hash)]
struct Look {
    started: Moment,
    by: Incarnation,
}

/// What was seen of the assignments.
#[derive(Debug, Clone, Hash)]
struct View {
    version: Option<Version>,
    drain_timeout: Duration,
    /// Until when what was seen is certainly still valid.
    until: Moment,
    /// What is assigned to this session, and whether it is being revoked.
    mine: BTreeMap<Shard, (Generation, bool)>,
    /// How many shards its daemon had when each of them was assigned.
    counts: BTreeMap<Shard, u32>,
}

#[derive(Debug, Clone, Hash)]
struct Local {
    generation: Generation,
    phase: Phase,
    /// No other node can have the shard before then.
    until: Moment,
    /// Why it cannot be ended, if it cannot.
    stuck: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Starting,
    Running,
    Draining { abort_at: Moment },
    Aborting,
}

/// What happens to an agent.
#[derive(Debug, Clone, Hash)]
pub enum Input {
    /// Time has passed.
    Wake,
    /// The assignments may have changed.
    Hint,
    /// Whether nobody here needs the assignments of other nodes. If there are none of its own either, an occasional
    /// look is enough.
    Rests(bool),
    /// The process has a new session.
    Joined(Incarnation),
    /// The session is trusted until then.
    Trusted(Moment),
    /// The session is over: nothing is held now.
    SessionOver,
    /// The answer to [`Output::Look`].
    Looked(Read<Assignments>),
    /// The process can run this daemon.
    Offer(DaemonId),
    /// The process can no longer run this daemon.
    Withdraw(DaemonId),
    /// A shard has started and runs.
    Started(Shard, Generation),
    /// A shard has ended, whatever the cause; nothing of it runs any more.
    Ended {
        /// The shard.
        shard: Shard,
        /// Its generation.
        generation: Generation,
        /// What went wrong, if something did.
        error: Option<String>,
    },
    /// A shard cannot be ended, for this reason; or, without an error, it can be ended after all.
    Stuck {
        /// The shard.
        shard: Shard,
        /// Its generation.
        generation: Generation,
        /// Why, if it still cannot be ended.
        error: Option<String>,
    },
    /// The process wants to leave: drain everything, start nothing.
    Leave(Going),
}

/// What the driver has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Read the assignments, only if they are no longer at the known version.
    Look {
        /// The version that is known.
        known: Option<Version>,
    },
    /// Start a shard. The driver checks [`Agent::trusted_until`] whenever the daemon asks.
    Start {
        /// The shard.
        shard: Shard,
        /// The fencing token.
        generation: Generation,
        /// How many shards the daemon had when this one was assigned.
        count: u32,
    },
    /// Tell a shard to finish, and report when it has ended.
    Drain {
        /// The shard.
        shard: Shard,
        /// Its generation.
        generation: Generation,
        /// When it will be aborted.
        until: Moment,
    },
    /// End a shard at once, and report when it has ended.
    Abort {
        /// The shard.
        shard: Shard,
        /// Its generation.
        generation: Generation,
    },
    /// Put this into the session record.
    Report(Report),
    /// Everything has ended, after [`Input::Leave`]. The session may leave; if it is over already, no new one must be
    /// made.
    Idle,
}

/// What the session record says about daemons; see [`Report::apply`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Report {
    /// The state of what was assigned.
    pub runs: BTreeMap<DaemonId, Vec<Run>>,
    /// What cannot be ended.
    pub stuck: BTreeMap<DaemonId, Vec<Stuck>>,
    /// The process is about to leave.
    pub going: Option<Going>,
}

impl Report {
    /// Puts the report into the session's part about the cluster.
    pub fn apply(self, part: &mut Part) {
        part.runs = self.runs;
        part.stuck = self.stuck;
        part.going = self.going;
    }
}

impl Agent {
    /// Makes the agent of a process without a session.
    #[must_use]
    pub fn new(session: &session::Config, now: Moment, seed: u64) -> Self {
        Self {
            heartbeat: session.heartbeat,
            rest: session.rest(),
            rests: false,
            retry: session.retry(),
            random: Random::new(session, seed),
            me: None,
            session_trusted_until: Moment::default(),
            offers: BTreeSet::new(),
            view: None,
            local: BTreeMap::new(),
            ended: BTreeMap::new(),
            going: None,
            in_flight: None,
            due: now,
            reported: None,
            idle: false,
            has_changed: true,
            waits_for_trust: false,
        }
    }

    /// Until when this process may act for a shard; `None` if it may not. Check it at every use.
    #[must_use]
    pub fn trusted_until(&self, shard: &Shard, generation: Generation) -> Option<Moment> {
        let local = self.local.get(shard)?;
        let is_trusted = local.generation == generation && local.phase != Phase::Aborting;
        is_trusted.then(|| self.trust_of(local))
    }

    /// Until when no other node can have a shard. Both must hold: a look has shown it to be assigned here, and the
    /// session is trusted.
    fn trust_of(&self, local: &Local) -> Moment {
        local.until.min(self.session_trusted_until)
    }

    /// Whether everything here has ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.local.is_empty()
    }

    /// When the machine wants [`Input::Wake`] next.
    #[must_use]
    pub fn wake_at(&self) -> Moment {
        let look_at = match (self.me, self.in_flight) {
            (Some(_), None) => self.due,
            _ => Moment::NEVER,
        };
        let aborts = self.local.values().map(|local| self.abort_at(local));
        aborts.min().unwrap_or(Moment::NEVER).min(look_at)
    }

    /// Takes an input and returns what to do.
    #[must_use]
    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Output> {
        self.step_all(now, [input])
    }

    /// As [`step`](Self::step), for inputs that came together. Ten thousand shards that start make one report instead
    /// of ten thousand, each of which would have to look at all of them.
    #[must_use]
    pub fn step_all(
        &mut self,
        now: Moment,
        inputs: impl IntoIterator<Item = Input>,
    ) -> Vec<Output> {
        let mut outputs = Vec::new();
        for input in inputs {
            self.take(now, input);
        }
        self.end_what_must_end(now, &mut outputs);
        if self.has_changed || self.waits_for_trust {
            self.start_what_may_start(now, &mut outputs);
            self.report(&mut outputs);
            self.has_changed = false;
        }
        self.look(now, &mut outputs);
        outputs
    }

    fn take(&mut self, now: Moment, input: Input) {
        let is_silent = matches!(
            input,
            Input::Wake
                | Input::Hint
                | Input::Rests(_)
                | Input::Trusted(_)
                | Input::Looked(Read::Unchanged { .. } | Read::Failed)
        );
        self.has_changed |= !is_silent;
        match input {
            Input::Wake => {}
            Input::Hint => self.due = self.due.min(now),
            Input::Rests(rests) => {
                if self.is_at_rest() && !rests {
                    self.due = self.due.min(now);
                }
                self.rests = rests;
            }
            Input::Joined(incarnation) => {
                self.me = Some(incarnation);
                self.due = now;
            }
            Input::Trusted(until) if self.me.is_some() => self.session_trusted_until = until,
            Input::Trusted(_) => {}
            Input::SessionOver => self.on_session_over(),
            Input::Looked(read) => self.on_looked(now, read),
            Input::Offer(daemon) => {
                if self.is_at_rest() {
                    self.due = self.due.min(now);
                }
                self.offers.insert(daemon);
            }
            Input::Withdraw(daemon) => drop(self.offers.remove(&daemon)),
            Input::Started(shard, generation) => self.on_started(&shard, generation),
            Input::Ended {
                shard,
                generation,
                error,
            } => self.on_ended(shard, generation, error.as_deref()),
            Input::Stuck {
                shard,
                generation,
                error,
            } => {
                let local = self.local.get_mut(&shard);
                if let Some(local) = local.filter(|local| local.generation == generation) {
                    local.stuck = error.as_deref().map(short);
                }
            }
            Input::Leave(going) => self.going = Some(going),
        }
    }

    // ---- what happens -------------------------------------------------------------------------------

    fn on_session_over(&mut self) {
        self.me = None;
        self.session_trusted_until = Moment::default();
        self.view = None;
        self.reported = None;
    }

    fn on_looked(&mut self, now: Moment, read: Read<Assignments>) {
        let (Some(look), Some(me)) = (self.in_flight.take(), self.me) else {
            return;
        };
        if look.by != me {
            // The look was started by the previous session, and says nothing about this one.
            self.due = now;
            return;
        }
        match read {
            Read::Found {
                record, version, ..
            } => self.view = Some(View::new(&record, version, me)),
            Read::Unchanged { .. } => {}
            // Nothing could be read, so the last view stays valid for its time and no longer.
            Read::Missing | Read::Unreadable { .. } => {
                if let Some(view) = &mut self.view {
                    view.version = None;
                }
                self.due = now + self.random.jitter(self.pause());
                return;
            }
            Read::Failed => {
                self.due = now + self.random.jitter(self.retry);
                return;
            }
        }
        self.due = now + self.random.jitter(self.pause());
        let Some(view) = &mut self.view else { return };
        // From the start of the look, not from its answer: the assignments may have changed right after the store
        // read them, and an answer can be slow. The leader counts from when it knew its revoke to be stored, which
        // is later than any look that did not show it.
        view.until = look.started + look_trust(view.drain_timeout);
        for (shard, local) in &mut self.local {
            // Only a look that shows this very generation, not revoking, extends trust. Trust from earlier looks stays:
            // the leader waits for it.
            if view.mine.get(shard) == Some(&(local.generation, false)) {
                local.until = local.until.max(view.until);
            }
        }
    }

    fn on_started(&mut self, shard: &Shard, generation: Generation) {
        if let Some(local) = self.local.get_mut(shard)
            && local.generation == generation
            && local.phase == Phase::Starting
        {
            local.phase = Phase::Running;
        }
    }

    fn on_ended(&mut self, shard: Shard, generation: Generation, error: Option<&str>) {
        let Some(local) = self.local.get(&shard) else {
            return;
        };
        if local.generation != generation {
            return;
        }
        let was_told = matches!(local.phase, Phase::Draining { .. } | Phase::Aborting);
        let state = match error {
            Some(error) => RunState::failed(error),
            None if was_told => RunState::Stopped,
            None => RunState::failed("it ended on its own"),
        };
        self.local.remove(&shard);
        self.never_again(shard, generation, state);
    }

    /// Promises that this generation will not be started, or not again.
    fn never_again(&mut self, shard: Shard, generation: Generation, state: RunState) {
        let newer = self.ended.get(&shard);
        if newer.is_none_or(|&(ended, _)| ended < generation) {
            self.ended.insert(shard, (generation, state));
        }
    }

    // ---- what to do ---------------------------------------------------------------------------------

    /// Whether the assignments have nothing that this process acts on or reports. Only what is offered is ever
    /// assigned. What was withdrawn a moment ago is refused when it is seen; if it is not seen, the leader takes it
    /// away in time.
    fn is_at_rest(&self) -> bool {
        let has_none = self.view.as_ref().is_none_or(|view| view.mine.is_empty());
        self.rests && self.offers.is_empty() && self.local.is_empty() && has_none
    }

    fn pause(&self) -> Duration {
        if self.is_at_rest() {
            self.rest
        } else {
            self.heartbeat
        }
    }

    fn end_what_must_end(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        let leaves = self.going.is_some();
        for (shard, local) in &mut self.local {
            let generation = local.generation;
            if matches!(local.phase, Phase::Starting | Phase::Running) {
                let wanted = self.view.as_ref().is_some_and(|view| {
                    view.mine.get(shard) == Some(&(generation, false))
                        && self.offers.contains(&shard.daemon)
                });
                if leaves || !wanted {
                    self.has_changed = true;
                    let patience = self
                        .view
                        .as_ref()
                        .map(|view| look_trust(view.drain_timeout));
                    let until = local.until.min(now + patience.unwrap_or_default());
                    local.phase = Phase::Draining { abort_at: until };
                    let shard = shard.clone();
                    outputs.push(Output::Drain {
                        shard,
                        generation,
                        until,
                    });
                }
            }
        }
        let due: Vec<Shard> = self
            .local
            .iter()
            .filter(|(_, local)| self.abort_at(local) <= now)
            .map(|(shard, _)| shard.clone())
            .collect();
        for shard in due {
            self.has_changed = true;
            let local = self.local.get_mut(&shard).expect("it was just found");
            local.phase = Phase::Aborting;
            let generation = local.generation;
            // A shard that is aborted in the same step need not be drained.
            outputs.retain(
                |output| !matches!(output, Output::Drain { shard: other, .. } if *other == shard),
            );
            outputs.push(Output::Abort { shard, generation });
        }
    }

    fn abort_at(&self, local: &Local) -> Moment {
        match local.phase {
            Phase::Starting | Phase::Running => self.trust_of(local),
            Phase::Draining { abort_at } => abort_at.min(self.trust_of(local)),
            Phase::Aborting => Moment::NEVER,
        }
    }

    fn start_what_may_start(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        self.waits_for_trust = false;
        let Some(view) = &self.view else { return };
        let until = view.until;
        let is_trusted = now < until.min(self.session_trusted_until);
        let mut refused = Vec::new();
        for (shard, &(generation, revoking)) in &view.mine {
            let has_ended = self
                .ended
                .get(shard)
                .is_some_and(|&(ended, _)| ended >= generation);
            let local = self.local.get(shard);
            if has_ended || local.is_some_and(|local| local.generation == generation) {
                continue;
            }
            if revoking || self.going.is_some() {
                refused.push((shard.clone(), generation, RunState::Stopped));
            } else if !self.offers.contains(&shard.daemon) {
                let state = RunState::failed("the node does not offer this daemon");
                refused.push((shard.clone(), generation, state));
            } else if !is_trusted {
                self.waits_for_trust = true;
            } else if local.is_none() {
                let phase = Phase::Starting;
                let started = Local {
                    generation,
                    phase,
                    until,
                    stuck: None,
                };
                self.local.insert(shard.clone(), started);
                outputs.push(Output::Start {
                    shard: shard.clone(),
                    generation,
                    count: view.counts.get(shard).copied().unwrap_or_default(),
                });
            }
        }
        for (shard, generation, state) in refused {
            self.never_again(shard, generation, state);
        }
    }

    fn report(&mut self, outputs: &mut Vec<Output>) {
        if self.me.is_none() {
            return;
        }
        let mut runs: BTreeMap<DaemonId, Vec<Run>> = BTreeMap::new();
        let mine = self.view.iter().flat_map(|view| &view.mine);
        let assigned = mine.map(|(shard, &(generation, _))| {
            let state = self.state_of(shard, generation);
            (shard, (generation, state))
        });
        let mut states: BTreeMap<&Shard, (Generation, RunState)> = assigned.collect();
        for (shard, local) in &self.local {
            states
                .entry(shard)
                .or_insert_with(|| (local.generation, RunState::Draining));
        }
        for (shard, (generation, state)) in states {
            let daemon = runs.entry(shard.daemon.clone()).or_default();
            daemon.push(Run(shard.index, generation, state));
        }
        let mut stuck: BTreeMap<DaemonId, Vec<Stuck>> = BTreeMap::new();
        for (shard, local) in &self.local {
            if let Some(error) = &local.stuck {
                let daemon = stuck.entry(shard.daemon.clone()).or_default();
                daemon.push(Stuck(shard.index, local.generation, error.clone()));
            }
        }
        let report = Report {
            runs,
            stuck,
            going: self.going,
        };
        if self.reported.as_ref() != Some(&report) {
            self.reported = Some(report.clone());
            outputs.push(Output::Report(report));
        }
        if self.going.is_some() && self.local.is_empty() && !self.idle {
            self.idle = true;
            outputs.push(Output::Idle);
        }
    }

    fn state_of(&self, shard: &Shard, generation: Generation) -> RunState {
        if let Some(local) = self.local.get(shard)
            && local.generation == generation
        {
            return match local.phase {
                Phase::Starting => RunState::Starting,
                Phase::Running => RunState::Running,
                Phase::Draining { .. } | Phase::Aborting => RunState::Draining,
            };
        }
        match self.ended.get(shard) {
            Some((ended, state)) if *ended == generation => state.clone(),
            // The assignments were restored from an older copy: that generation has long ended here.
            Some((ended, _)) if *ended > generation => RunState::Stopped,
            _ => RunState::Starting,
        }
    }

    fn look(&mut self, now: Moment, outputs: &mut Vec<Output>) {
        let Some(by) = self.me else { return };
        if self.in_flight.is_none() && now >= self.due {
            self.in_flight = Some(Look { started: now, by });
            let known = self.view.as_ref().and_then(|view| view.version.clone());
            outputs.push(Output::Look { known });
        }
    }
}

impl View {
    fn new(assignments: &Assignments, version: Version, me: Incarnation) -> Self {
        let (mut mine, mut counts) = (BTreeMap::new(), BTreeMap::new());
        for (daemon, index, assignment) in assignments.iter() {
            if assignment.incarnation != me {
                continue;
            }
            let daemon = daemon.clone();
            let shard = Shard { daemon, index };
            let revoking = assignment.state == AssignmentState::Revoking;
            counts.insert(shard.clone(), assignment.count);
            mine.insert(shard, (assignment.generation, revoking));
        }
        Self {
            version: Some(version),
            drain_timeout: assignments.drain_timeout,
            until: Moment::default(),
            mine,
            counts,
        }
    }
}
