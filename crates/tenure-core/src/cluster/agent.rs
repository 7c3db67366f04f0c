//! A node's part: runs what is assigned to it, for as long as it may, and reports the state of each shard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::record::{AssignmentState, Assignments, Generation, Shard, look_trust};
use super::report::{Going, Part, Run, RunState, Stuck, short};
use crate::random::Random;
use crate::session;
use crate::{DaemonId, Incarnation, Moment, Read, Version};

/// The machine. It outlives sessions: what an old one started must have ended before a new one starts
/// the same. One look is in flight at most; the driver answers each with one input.
#[derive(Debug, Clone, Hash)]
pub struct Agent {
    heartbeat: Duration,
    rest: Duration,
    retry: Duration,
    random: Random,
    /// Nobody here wants to know of the assignments of others.
    rests: bool,
    /// The session that assignments must name; `None` while there is none.
    me: Option<Incarnation>,
    session_trusted_until: Moment,
    offers: BTreeSet<DaemonId>,
    view: Option<View>,
    /// What runs here, or has not ended yet.
    local: BTreeMap<Shard, Local>,
    /// The highest generation of each shard that has ended here, or never will be started, and how. No
    /// generation up to it is ever started.
    ended: BTreeMap<Shard, (Generation, RunState)>,
    going: Option<Going>,
    in_flight: Option<Look>,
    due: Moment,
    /// What was reported last in this session.
    reported: Option<Report>,
    idle: bool,
    /// Something that starts and reports rest on is another than when they were last looked at.
    has_changed: bool,
    /// Something would have been started if it had been trusted.
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
    /// What was seen is certainly still so until then.
    until: Moment,
    /// What is assigned to this session, and whether it is being revoked.
    mine: BTreeMap<Shard, (Generation, bool)>,
    /// Under how many shards of its daemon each of them was assigned.
    counts: BTreeMap<Shard, u32>,
}

#[derive(Debug, Clone, Hash)]
struct Local {
    generation: Generation,
    phase: Phase,
    /// The shard is nobody else's until then.
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
    /// Whether nobody here wants to know of the assignments of others: while there are none of its own either, a look now
    /// and then is enough.
    Rests(bool),
    /// The process has a new session.
    Joined(Incarnation),
    /// The session is trusted until then.
    Trusted(Moment),
    /// The session is over: nothing is held any more.
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
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
        /// What went wrong, if something did.
        error: Option<String>,
    },
    /// A shard cannot be ended, for this reason; or can, after all.
    Stuck {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
        /// Why, if it still cannot.
        error: Option<String>,
    },
    /// The process wants to go: drain everything, start nothing.
    Leave(Going),
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Read the assignments, only if they are no longer at the known version.
    Look {
        /// The version that is known.
        known: Option<Version>,
    },
    /// Start a shard. The driver checks [`Agent::trusted_until`] whenever the daemon asks.
    Start {
        /// Which.
        shard: Shard,
        /// The fencing token.
        generation: Generation,
        /// How many shards the daemon has, as far as this one is concerned.
        count: u32,
    },
    /// Tell a shard to finish, and say when it has ended.
    Drain {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
        /// When it will be aborted.
        until: Moment,
    },
    /// End a shard at once, and say when it has ended.
    Abort {
        /// Which.
        shard: Shard,
        /// In which generation.
        generation: Generation,
    },
    /// Put this into the session record.
    Report(Report),
    /// After [`Input::Leave`]: everything has ended. The session may go; if it is over already, no new one
    /// is to be made.
    Idle,
}

/// What the session record says about daemons; see [`Report::apply`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Report {
    /// The state of what was assigned.
    pub runs: BTreeMap<DaemonId, Vec<Run>>,
    /// What cannot be ended.
    pub stuck: BTreeMap<DaemonId, Vec<Stuck>>,
    /// The process is about to go.
    pub going: Option<Going>,
}

impl Report {
    /// Writes the report into what the session says of the cluster.
    pub fn apply(self, part: &mut Part) {
        part.runs = self.runs;
        part.stuck = self.stuck;
        part.going = self.going;
    }
}

impl Agent {
    /// An agent of a process without a session.
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

    /// Until when this process may act for a shard; `None` if it may not. Checked at use.
    #[must_use]
    pub fn trusted_until(&self, shard: &Shard, generation: Generation) -> Option<Moment> {
        let local = self.local.get(shard)?;
        let is_trusted = local.generation == generation && local.phase != Phase::Aborting;
        is_trusted.then(|| self.trust_of(local))
    }

    /// Until when a shard is nobody else's: while it was seen to be assigned here, and by a live session.
    fn trust_of(&self, local: &Local) -> Moment {
        local.until.min(self.session_trusted_until)
    }

    /// Whether nothing runs here, and all that did has ended.
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

    /// Takes an input and says what to do about it.
    #[must_use]
    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Output> {
        self.step_all(now, [input])
    }

    /// The same for inputs that came together. Ten thousand shards that start make one report, not as many, each
    /// of which would have to look at all of them.
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
            // A look of the session before, which says nothing about this one.
            self.due = now;
            return;
        }
        match read {
            Read::Found {
                record, version, ..
            } => self.view = Some(View::new(&record, version, me)),
            Read::Unchanged { .. } => {}
            // Without anything to see, what was seen last counts for its time and no longer.
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
            // Only a look that shows this very generation, not revoking, prolongs trust. What it had before it keeps:
            // the leader waits for that.
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

    /// A promise: this generation will not be started, again or at all.
    fn never_again(&mut self, shard: Shard, generation: Generation, state: RunState) {
        let newer = self.ended.get(&shard);
        if newer.is_none_or(|&(ended, _)| ended < generation) {
            self.ended.insert(shard, (generation, state));
        }
    }

    // ---- what to do ---------------------------------------------------------------------------------

    /// Whether the assignments say nothing that anybody here acts on or tells. Only what is offered is ever assigned, and
    /// what was withdrawn a moment ago is refused when it is seen, or taken away in time if it is not.
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
            // Draining something and aborting it in one breath is aborting it.
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
            // Restored from an older copy: that generation is long over here.
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
