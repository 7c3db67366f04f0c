//! What the leader does next: a pure function of what is desired, what is reported, and what time it is.
//!
//! First each shard is looked at: it is free if its node's session has ended or its node has answered, and it is
//! revoked if its node must not keep it. Then free shards are placed, and then loads are balanced.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Config;
use super::memory::{Memory, Reported, Standing};
use super::nodes::Nodes;
use super::placement::{NoPlace, Placement, Room, Work};
use super::plan::{Decision, Reason};
use super::record::{Assignment, AssignmentState, Assignments, Daemon, Shard};
use super::report::{Count, Definition, Going, Part, RunState};
use crate::session::{Holder, Record};
use crate::{DaemonId, Moment, NodeId};

/// Everything that a decision depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    pub(crate) now: Moment,
    pub(crate) config: &'a Config,
    pub(crate) desired: &'a Assignments,
    pub(crate) nodes: &'a Nodes,
    pub(crate) drained: &'a BTreeSet<NodeId>,
    pub(crate) memory: &'a Memory,
    /// How long after a revoke the shard's node has certainly ended it.
    pub(crate) force_after: Duration,
    /// Whether free shards may be given out.
    pub(crate) may_place: MayPlace,
    /// Whether work may be moved for balance.
    pub(crate) may_balance: bool,
}

/// Whether free shards may be given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayPlace {
    Yes,
    /// Nodes may still run shards of lost assignments, for at most this long.
    Not {
        for_at_most: Duration,
    },
}

/// What to do now, and when to ask again if nothing happens.
#[derive(Debug, Clone)]
pub(crate) struct Decided {
    pub(crate) decisions: Vec<Decision>,
    pub(crate) again_at: Moment,
}

/// What each shard's node reports of the generation that is assigned to it.
pub(crate) fn reported<'a>(desired: &'a Assignments, nodes: &'a Nodes) -> Reported<'a> {
    let mut reported: Reported<'_> = desired
        .daemons
        .iter()
        .map(|(id, daemon)| (id, vec![None; daemon.shards.len()]))
        .collect();
    for record in nodes.live().values() {
        for (id, runs) in &Part::of(&record.about).runs {
            let (Some(daemon), Some(states)) = (desired.daemons.get(id), reported.get_mut(id))
            else {
                continue;
            };
            for run in runs {
                let index = run.0 as usize;
                let assigned = daemon.shards.get(index).copied().flatten();
                if assigned.is_some_and(|assignment| {
                    assignment.incarnation == record.incarnation && assignment.generation == run.1
                }) {
                    states[index] = Some(&run.2);
                }
            }
        }
    }
    reported
}

/// Makes one pass over everything.
pub(crate) fn decide(situation: &Situation<'_>) -> Decided {
    let mut pass = Pass::new(situation);
    pass.define();
    pass.look_at_shards();
    pass.place();
    pass.balance();
    Decided {
        decisions: pass.decisions,
        again_at: pass.again_at,
    }
}

/// What this pass does with a shard.
#[derive(Debug, Clone)]
enum Seat {
    /// It stays where it is.
    Stays { node: Option<usize>, movable: bool },
    /// It is being revoked.
    Leaves { node: Option<usize> },
    /// It needs a node: not `avoid`, and `prefer` if possible.
    Vacant {
        avoid: Option<usize>,
        prefer: Option<usize>,
    },
    /// The shard is not wanted.
    Closed,
}

struct Pass<'a> {
    situation: &'a Situation<'a>,
    /// The live nodes by index.
    live: Vec<&'a Record>,
    positions: BTreeMap<crate::Incarnation, usize>,
    /// The daemons by index, with the definition in effect and the seats of their shards.
    daemons: Vec<(&'a DaemonId, &'a Definition, Vec<Seat>)>,
    placement: Placement,
    /// The live nodes that have not acknowledged something, by index.
    silent: BTreeSet<usize>,
    /// Which daemon fails on which node in this pass. The memory learns that only from the pass's decisions.
    failing: BTreeSet<(DaemonId, usize)>,
    /// The shards that their nodes cannot end.
    stuck: BTreeSet<(DaemonId, u32)>,
    /// The daemons, by index, that still have shards of a former number.
    changing: BTreeSet<usize>,
    /// How many more shards may be moved.
    budget: usize,
    decisions: Vec<Decision>,
    again_at: Moment,
}

impl<'a> Pass<'a> {
    fn new(situation: &'a Situation<'a>) -> Self {
        let live: Vec<&Record> = situation.nodes.live().values().collect();
        let on_their_way = situation
            .desired
            .iter()
            .filter(|(_, _, assignment)| assignment.state == AssignmentState::Revoking)
            .count();
        Self {
            positions: situation.nodes.live().keys().copied().zip(0..).collect(),
            live,
            daemons: Vec::new(),
            silent: BTreeSet::new(),
            failing: BTreeSet::new(),
            stuck: BTreeSet::new(),
            changing: BTreeSet::new(),
            placement: Placement::new(Vec::new(), Vec::new()),
            budget: situation.config.moves_max.saturating_sub(on_their_way),
            decisions: Vec::new(),
            again_at: Moment::NEVER,
            situation,
        }
    }

    // ---- which daemons there are --------------------------------------------------------------------

    /// Finds the definition in effect for every daemon; see [`Definition`].
    fn define(&mut self) {
        let mut offers: BTreeMap<&DaemonId, Vec<&Definition>> = BTreeMap::new();
        for record in &self.live {
            for (id, definition) in &Part::of(&record.about).offers {
                if definition.check().is_ok() {
                    offers.entry(id).or_default().push(definition);
                }
            }
        }
        let desired = &self.situation.desired.daemons;
        let known: BTreeSet<&DaemonId> = desired.keys().chain(offers.keys().copied()).collect();
        for id in known {
            let current = desired.get(id);
            let Some(offered) = offers.get(id) else {
                let daemon = current.expect("a daemon that nobody offers is one that is known");
                if daemon.shards.iter().all(Option::is_none) {
                    let daemon = id.clone();
                    self.decisions.push(Decision::Forget { daemon });
                } else {
                    self.daemons.push((id, &daemon.definition, Vec::new()));
                }
                continue;
            };
            let newest = offered
                .iter()
                .copied()
                .max_by_key(|offer| (offer.revision, *offer));
            let newest = newest.expect("somebody offers it");
            let current = current.map(|daemon| &daemon.definition);
            let ruling = match current {
                Some(current)
                    if current.revision == newest.revision && offered.contains(&current) =>
                {
                    current
                }
                _ => newest,
            };
            if current != Some(ruling) {
                self.decisions.push(Decision::Define {
                    daemon: id.clone(),
                    definition: ruling.clone(),
                });
            }
            self.daemons.push((id, ruling, Vec::new()));
        }
    }

    // ---- what happens to what is assigned -----------------------------------------------------------

    fn look_at_shards(&mut self) {
        let reported = reported(self.situation.desired, self.situation.nodes);
        // Nodes that are about to start something of a daemon, by the index of both.
        let mut starting = BTreeSet::new();
        for position in 0..self.daemons.len() {
            let (id, definition, _) = self.daemons[position];
            let shards: &[Option<Assignment>] = match self.situation.desired.daemons.get(id) {
                Some(daemon) => &daemon.shards,
                None => &[],
            };
            let count = definition
                .count
                .number()
                .max(u32::try_from(shards.len()).unwrap_or(0));
            let mut seats = Vec::with_capacity(count as usize);
            for index in 0..count {
                let assignment = shards.get(index as usize).copied().flatten();
                let report = reported
                    .get(id)
                    .and_then(|all| all.get(index as usize))
                    .copied();
                let report = report.flatten();
                let seat = match assignment {
                    None if index >= definition.count.number() => Seat::Closed,
                    None => Seat::Vacant {
                        avoid: None,
                        prefer: None,
                    },
                    Some(assignment) => self.look_at(id, definition, index, assignment, report),
                };
                let is_former = assignment.is_some_and(|it| Daemon::is_former(definition, &it));
                if is_former && matches!(seat, Seat::Stays { .. } | Seat::Leaves { .. }) {
                    self.changing.insert(position);
                }
                if let Seat::Stays {
                    node: Some(node),
                    movable: false,
                } = seat
                {
                    starting.insert((position, node));
                }
                seats.push(seat);
            }
            self.daemons[position].2 = seats;
        }
        self.placement = self.survey(&starting);
    }

    /// Decides about one shard that is assigned.
    fn look_at(
        &mut self,
        id: &DaemonId,
        definition: &Definition,
        index: u32,
        assignment: Assignment,
        report: Option<&RunState>,
    ) -> Seat {
        let is_surplus = index >= definition.count.number();
        let is_former = Daemon::is_former(definition, &assignment);
        let revoking = assignment.state == AssignmentState::Revoking;
        let holder = &self.situation.desired.holders[&assignment.incarnation];
        let shard = Shard {
            daemon: id.clone(),
            index,
        };
        if let Some(ended) = self.situation.nodes.ended(assignment.incarnation) {
            let prefer = self.situation.nodes.back(&holder.node, id);
            let prefer = prefer.map(|record| self.positions[&record.incarnation]);
            let kept = ended.kept_until.filter(|&until| self.situation.now < until);
            let kept = kept.filter(|_| !is_former);
            if let (Some(until), None, false, false) = (kept, prefer, revoking, is_surplus) {
                self.again_at = self.again_at.min(until);
                self.wait(shard, Reason::Restarting);
                return Seat::Stays {
                    node: None,
                    movable: false,
                };
            }
            self.free(shard, holder, Reason::SessionEnded(ended.how));
            let prefer = prefer.filter(|_| kept.is_some() && !revoking);
            return vacant(is_surplus, None, prefer);
        }
        let Some(&node) = self.positions.get(&assignment.incarnation) else {
            // Not heard from is not dead: the node keeps the shard until its session has ended.
            self.wait(shard, Reason::SessionUnknown);
            return if revoking {
                Seat::Leaves { node: None }
            } else {
                Seat::Stays {
                    node: None,
                    movable: false,
                }
            };
        };
        if let Some(state) = report.filter(|state| state.has_ended()) {
            // A shard of a former number is not kept for its node.
            let revoking = revoking || is_former;
            return self.has_ended(shard, holder, node, revoking, is_surplus, state);
        }
        if revoking {
            return self.is_leaving(shard, holder, node, assignment, is_surplus);
        }
        let part = self.part(node);
        // An earlier session lost it, and it still runs there. Started anywhere else, it would run twice.
        if let Some(error) = part.blocked(&shard.daemon, shard.index, assignment.generation) {
            let error = error.to_owned();
            self.wait(shard, Reason::Stuck { error });
            return Seat::Stays {
                node: Some(node),
                movable: false,
            };
        }
        match self.must_go(definition, &shard, node, assignment, report) {
            Some(reason) => {
                self.revoke(shard, holder, reason);
                Seat::Leaves { node: Some(node) }
            }
            None => self.keeps(shard, node, assignment, report),
        }
    }

    /// The node says that the shard has ended.
    fn has_ended(
        &mut self,
        shard: Shard,
        holder: &Holder,
        node: usize,
        revoking: bool,
        is_surplus: bool,
        state: &RunState,
    ) -> Seat {
        let restarting = matches!(self.part(node).going, Some(Going::Restarting { .. }));
        if restarting && !revoking && !is_surplus {
            self.wait(shard, Reason::Restarting);
            return Seat::Stays {
                node: Some(node),
                movable: false,
            };
        }
        let (reason, avoid) = match state {
            // Whatever happens while it is told to end does not count as a failure.
            RunState::Failed { error } if !revoking => {
                self.failing.insert((shard.daemon.clone(), node));
                let error = error.clone();
                (Reason::Failed { error }, Some(node))
            }
            _ => (Reason::Stopped, None),
        };
        self.free(shard, holder, reason);
        vacant(is_surplus, avoid, None)
    }

    /// The shard was revoked and its node has not answered yet.
    fn is_leaving(
        &mut self,
        shard: Shard,
        holder: &Holder,
        node: usize,
        assignment: Assignment,
        is_surplus: bool,
    ) -> Seat {
        let part = self.part(node);
        let stuck = part.stuck(&shard.daemon, shard.index, assignment.generation);
        if let Some(error) = stuck {
            let error = error.to_owned();
            self.stuck.insert((shard.daemon.clone(), shard.index));
            self.wait(shard, Reason::Stuck { error });
            return Seat::Leaves { node: Some(node) };
        }
        let since = self.situation.memory.since(&shard.daemon, shard.index);
        let forced_at = since + self.situation.force_after;
        // By now the node no longer trusts itself with the shard, even if it lives and does not answer.
        if self.situation.now >= forced_at {
            self.failing.insert((shard.daemon.clone(), node));
            self.free(shard, holder, Reason::Unanswered);
            return vacant(is_surplus, Some(node), None);
        }
        self.again_at = self.again_at.min(forced_at);
        Seat::Leaves { node: Some(node) }
    }

    /// Why a node must not keep a shard.
    fn must_go(
        &mut self,
        definition: &Definition,
        shard: &Shard,
        node: usize,
        assignment: Assignment,
        report: Option<&RunState>,
    ) -> Option<Reason> {
        let record = self.live[node];
        if shard.index >= definition.count.number() {
            return Some(Reason::Surplus);
        }
        // All at once, whatever the budget: nothing of the new number starts before.
        if Daemon::is_former(definition, &assignment) {
            return Some(Reason::CountChanged);
        }
        let part = Part::of(&record.about);
        let (config, is_going) = (self.situation.config, part.going.is_some());
        if !is_going && !part.offers.contains_key(&shard.daemon) {
            return Some(Reason::NotOffered);
        }
        if !is_going && !definition.allows(&record.about.labels) {
            return Some(Reason::LabelMissing);
        }
        let late = match report {
            // A node ends without being told what it does not trust itself with, and everything when it leaves.
            Some(RunState::Draining) => Some((Reason::Unanswered, config.drain_timeout)),
            _ if is_going => None,
            // If a shard was active and is no longer reported, its node has lost its memory. That is the same.
            None => Some((Reason::NotAcknowledged, config.acknowledge_timeout)),
            Some(RunState::Starting) => Some((Reason::NotStarted, config.acknowledge_timeout)),
            Some(_) => None,
        };
        if let Some((reason, patience)) = late {
            let since = self.situation.memory.since(&shard.daemon, shard.index);
            if self.situation.now >= since + patience {
                self.failing.insert((shard.daemon.clone(), node));
                return Some(reason);
            }
            self.again_at = self.again_at.min(since + patience);
        }
        if is_going {
            return None;
        }
        if self.situation.drained.contains(&record.node) && self.budget > 0 {
            self.budget -= 1;
            return Some(Reason::Drained);
        }
        None
    }

    fn keeps(
        &mut self,
        shard: Shard,
        node: usize,
        assignment: Assignment,
        report: Option<&RunState>,
    ) -> Seat {
        if report.is_none() {
            self.silent.insert(node);
        }
        let running = report == Some(&RunState::Running);
        if running && assignment.state == AssignmentState::Assigning {
            let on = self.live[node].node.clone();
            self.decisions.push(Decision::Activate { shard, on });
        } else if self.part(node).going.is_some() {
            self.wait(shard, Reason::Leaving);
        }
        Seat::Stays {
            node: Some(node),
            movable: running,
        }
    }

    // ---- where everything goes ----------------------------------------------------------------------

    /// Nodes and work as they are after the shards were looked at, before anything is placed.
    fn survey(&mut self, starting: &BTreeSet<(usize, usize)>) -> Placement {
        let mut rooms = Vec::with_capacity(self.live.len());
        for node in 0..self.live.len() {
            let mut room = Room::new(self.part(node).capacity);
            room.silent = self.silent.contains(&node);
            rooms.push(room);
        }
        let mut works = Vec::with_capacity(self.daemons.len());
        for position in 0..self.daemons.len() {
            works.push(self.work(position, starting));
        }
        let mut placement = Placement::new(rooms, works);
        let mut by_node: BTreeMap<&NodeId, u64> = BTreeMap::new();
        for (position, (id, definition, seats)) in self.daemons.iter().enumerate() {
            for (index, seat) in (0..).zip(seats) {
                match *seat {
                    Seat::Stays { node, movable } => {
                        if let Some(node) = node {
                            placement.stays(position, index, node, movable);
                        }
                        if let Some(node) = self.node_of(id, index) {
                            *by_node.entry(node).or_default() += u64::from(definition.weight);
                        }
                    }
                    Seat::Leaves { node: Some(node) } => placement.leaves(position, node),
                    _ => {}
                }
            }
        }
        // A node that was killed and is back has two sessions for a while. What the old one held comes back to the node
        // when that session has ended, so nothing else is moved there meanwhile.
        for (node, record) in self.live.iter().enumerate() {
            let of_node = by_node.get(&record.node).copied().unwrap_or_default();
            let elsewhere = of_node.saturating_sub(placement.load(node));
            placement.add_load(node, elsewhere);
        }
        placement
    }

    /// The node that a shard is assigned to.
    fn node_of(&self, id: &DaemonId, index: u32) -> Option<&'a NodeId> {
        let desired = self.situation.desired;
        let assignment = desired
            .daemons
            .get(id)?
            .shards
            .get(index as usize)?
            .as_ref()?;
        Some(&desired.holders.get(&assignment.incarnation)?.node)
    }

    fn work(&mut self, position: usize, starting: &BTreeSet<(usize, usize)>) -> Work {
        let (id, definition, _) = self.daemons[position];
        let may = |record: &&Record| {
            Part::of(&record.about).takes(id)
                && definition.allows(&record.about.labels)
                && !self.situation.drained.contains(&record.node)
        };
        let allowed = self.live.iter().map(may).collect();
        let alone = matches!(definition.count, Count::Replicas(_));
        let mut work = Work::new(definition.weight, alone, allowed);
        let memory = self.situation.memory;
        if !memory.has_failures() && self.failing.is_empty() {
            return work;
        }
        for (node, record) in self.live.iter().enumerate() {
            if self.failing.contains(&(id.clone(), node)) {
                work.unreliable.push(node);
                continue;
            }
            let standing = memory.standing(self.situation.now, id, record.incarnation);
            let Some((standing, until)) = standing else {
                continue;
            };
            self.again_at = self.again_at.min(until);
            // A node on trial gets no more while it is starting something.
            if standing == Standing::Unreliable || starting.contains(&(position, node)) {
                work.unreliable.push(node);
            } else {
                work.on_trial.push(node);
            }
        }
        work
    }

    /// Gives out free shards, the heaviest first, and counts what is on its way.
    fn place(&mut self) {
        let mut order: Vec<usize> = (0..self.daemons.len()).collect();
        order.sort_by_key(|&position| Reverse(self.daemons[position].1.weight));
        let mut generation = self.situation.desired.generation;
        for position in order {
            let seats = std::mem::take(&mut self.daemons[position].2);
            let id = self.daemons[position].0;
            for (index, seat) in (0..).zip(seats) {
                let shard = || Shard {
                    daemon: id.clone(),
                    index,
                };
                match seat {
                    Seat::Vacant { .. }
                        if let MayPlace::Not { for_at_most } = self.situation.may_place =>
                    {
                        self.wait(shard(), Reason::Lost { for_at_most });
                    }
                    Seat::Vacant { .. } if self.changing.contains(&position) => {
                        self.wait(shard(), Reason::FormerCount);
                    }
                    Seat::Vacant { avoid, prefer } => {
                        match self.place_one(position, index, avoid, prefer) {
                            Ok((to, reason)) => {
                                generation = generation.next();
                                self.decisions.push(Decision::Assign {
                                    shard: shard(),
                                    generation,
                                    to: self.live[to].holder(),
                                    reason,
                                });
                            }
                            Err(reason) => self.wait(shard(), reason),
                        }
                    }
                    // A shard that waits because its node cannot end it is in the decisions already.
                    Seat::Leaves { .. } if self.is_told(id, index) => {}
                    Seat::Leaves { .. } if index < self.daemons[position].1.count.number() => {
                        let next = self.placement.place(position, &[], None).ok();
                        let to = next.map(|node| self.live[node].node.clone());
                        self.wait(shard(), Reason::Draining { to });
                    }
                    Seat::Stays { .. } | Seat::Leaves { .. } | Seat::Closed => {}
                }
            }
        }
    }

    fn place_one(
        &mut self,
        position: usize,
        index: u32,
        avoid: Option<usize>,
        prefer: Option<usize>,
    ) -> Result<(usize, Reason), Reason> {
        let id = self.daemons[position].0;
        let mut avoided: Vec<usize> = avoid.into_iter().collect();
        let mut again_at = Moment::NEVER;
        if self.situation.memory.has_failures() {
            for (node, record) in self.live.iter().enumerate() {
                let memory = self.situation.memory;
                let until = memory.passed_over(self.situation.now, id, index, record.incarnation);
                if let Some(until) = until {
                    avoided.push(node);
                    again_at = again_at.min(until);
                }
            }
        }
        match self.placement.place(position, &avoided, prefer) {
            Ok(node) if prefer == Some(node) => Ok((node, Reason::Returned)),
            Ok(node) => {
                let weight = u64::from(self.daemons[position].1.weight);
                let load = self.placement.load(node) - weight;
                Ok((node, Reason::LeastLoaded { load }))
            }
            Err(problem) => {
                self.again_at = self.again_at.min(again_at);
                Err(match problem {
                    NoPlace::NoNode => self.why_no_node(position),
                    NoPlace::PassedOver => Reason::PassedOver,
                    NoPlace::OneEverywhere => Reason::ReplicaEverywhere,
                    NoPlace::NoRoom => Reason::NoRoom,
                })
            }
        }
    }

    /// Why no node may be given shards of a daemon: the rule that excludes the last ones.
    fn why_no_node(&self, position: usize) -> Reason {
        let (id, definition, _) = self.daemons[position];
        let offers = |record: &&&Record| Part::of(&record.about).takes(id);
        let mut offering = self.live.iter().filter(offers).peekable();
        if offering.peek().is_none() {
            Reason::NoNode
        } else if offering.any(|record| definition.allows(&record.about.labels)) {
            Reason::AllDrained
        } else {
            Reason::NoLabels
        }
    }

    fn balance(&mut self) {
        if !self.situation.may_balance || self.situation.may_place != MayPlace::Yes {
            return;
        }
        for moved in self.placement.balance(self.budget) {
            let shard = Shard {
                daemon: self.daemons[moved.work].0.clone(),
                index: moved.index,
            };
            // It is revoked now: noting that it runs is useless.
            self.decisions.retain(
                |decision| !matches!(decision, Decision::Activate { shard: other, .. } if *other == shard),
            );
            let to = self.live[moved.to].node.clone();
            let loads = moved.loads;
            self.decisions.push(Decision::Revoke {
                shard,
                from: self.live[moved.from].node.clone(),
                reason: Reason::Balance { to, loads },
            });
        }
    }

    /// Whether this pass has decided already that the shard waits.
    fn is_told(&self, id: &DaemonId, index: u32) -> bool {
        self.stuck.contains(&(id.clone(), index))
    }

    fn part(&self, node: usize) -> &'a Part {
        Part::of(&self.live[node].about)
    }

    // ---- words --------------------------------------------------------------------------------------

    fn wait(&mut self, shard: Shard, reason: Reason) {
        self.decisions.push(Decision::Wait { shard, reason });
    }

    fn free(&mut self, shard: Shard, from: &Holder, reason: Reason) {
        let from = from.clone();
        self.decisions.push(Decision::Free {
            shard,
            from,
            reason,
        });
    }

    fn revoke(&mut self, shard: Shard, from: &Holder, reason: Reason) {
        let from = from.node.clone();
        self.decisions.push(Decision::Revoke {
            shard,
            from,
            reason,
        });
    }
}

fn vacant(is_surplus: bool, avoid: Option<usize>, prefer: Option<usize>) -> Seat {
    if is_surplus {
        Seat::Closed
    } else {
        Seat::Vacant { avoid, prefer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::Generation;
    use crate::cluster::report::Run;
    use crate::election::{Term, Writer};
    use crate::session::About;
    use crate::session::State;
    use crate::{Incarnation, Nonce, Wall};

    const SHARDS: u32 = 6;

    fn node(number: u128, definition: &Definition, runs: Vec<Run>) -> Record {
        let daemon = DaemonId::new("d").unwrap();
        let part = Part {
            offers: [(daemon.clone(), definition.clone())].into(),
            runs: [(daemon, runs)].into(),
            ..Part::default()
        };
        Record {
            node: NodeId::new(format!("n{number}")).unwrap(),
            incarnation: Incarnation(number),
            counter: 1,
            nonce: Nonce::default(),
            ttl: Duration::from_secs(10),
            state: State::Alive,
            joined_at: Wall::default(),
            about: Box::new(About {
                cluster: Some(Box::new(part)),
                ..About::default()
            }),
        }
    }

    fn six() -> Definition {
        Definition {
            count: Count::Shards(SHARDS),
            weight: 1,
            requires: BTreeMap::new(),
            revision: 0,
        }
    }

    /// All shards are assigned to one node, in the first generation.
    fn all_on(holder: Holder, config: &Config, definition: &Definition) -> Assignments {
        let generation = Generation(1);
        let assignment = Assignment {
            generation,
            incarnation: holder.incarnation,
            state: AssignmentState::Active,
            since: Wall::default(),
            count: SHARDS,
        };
        let daemon = Daemon {
            definition: definition.clone(),
            shards: vec![Some(assignment); SHARDS as usize],
            failures: BTreeMap::new(),
        };
        Assignments {
            lineage: None,
            term: Term(1),
            writer: Writer {
                incarnation: holder.incarnation,
                counter: 1,
                nonce: Nonce::default(),
            },
            generation,
            drain_timeout: config.drain_timeout,
            force_after: config.drain_timeout,
            recovering: false,
            holders: [(holder.incarnation, holder)].into(),
            daemons: [(DaemonId::new("d").unwrap(), daemon)].into(),
        }
    }

    /// The leader looks again when a node's time is over. A pass before that would be wasted.
    #[test]
    fn a_shard_that_does_not_start_is_looked_at_when_its_time_is_over() {
        let (config, definition) = (Config::default(), six());
        let state = |index| match index {
            0 => RunState::Starting,
            _ => RunState::Running,
        };
        let runs = (0..SHARDS).map(|index| Run(index, Generation(1), state(index)));
        let only = node(1, &definition, runs.collect());
        let desired = all_on(only.holder(), &config, &definition);
        let since = Moment::from_origin(Duration::from_secs(1000));
        let mut nodes = Nodes::default();
        nodes.hear(since, only, Duration::ZERO);
        let mut memory = Memory::default();
        memory.observe(since, &desired, &reported(&desired, &nodes));
        let decided = decide(&Situation {
            now: since + Duration::from_secs(1),
            config: &config,
            desired: &desired,
            nodes: &nodes,
            drained: &BTreeSet::new(),
            memory: &memory,
            force_after: config.drain_timeout,
            may_place: MayPlace::Yes,
            may_balance: true,
        });
        assert_eq!(decided.again_at, since + config.acknowledge_timeout);
    }

    /// All shards run on the first node; the second was given one and failed. The leader gets no news from then on.
    #[test]
    fn a_node_that_has_failed_gets_its_share_without_any_news() {
        let config = Config::default();
        let definition = six();
        let runs = (0..SHARDS).map(|index| Run(index, Generation(1), RunState::Running));
        let mut nodes = Nodes::default();
        let mut now = Moment::from_origin(Duration::from_secs(1000));
        let (first, second) = (
            node(1, &definition, runs.collect()),
            node(2, &definition, Vec::new()),
        );
        let (holder, other) = (first.holder(), second.holder());
        for record in [first, second] {
            nodes.hear(now, record, Duration::ZERO);
        }
        let daemon = DaemonId::new("d").unwrap();
        let desired = all_on(holder, &config, &definition);
        let mut memory = Memory::default();
        let failed = Decision::Free {
            shard: Shard { daemon, index: 0 },
            from: other,
            reason: Reason::Unanswered,
        };
        memory.learn(now, &config, &desired, &[failed]);
        let mut moves = Vec::new();
        // It is unreliable, then on trial, then forgiven: each time the pass says when to ask again.
        for _ in 0..3 {
            let decided = decide(&Situation {
                now,
                config: &config,
                desired: &desired,
                nodes: &nodes,
                drained: &BTreeSet::new(),
                memory: &memory,
                force_after: config.drain_timeout,
                may_place: MayPlace::Yes,
                may_balance: true,
            });
            let revoked = decided.decisions.iter();
            let revoked = revoked.filter(|it| matches!(it, Decision::Revoke { .. }));
            moves.push(revoked.count());
            if moves.len() < 3 {
                assert!(decided.again_at < Moment::NEVER, "after {moves:?}");
                now = decided.again_at;
            }
        }
        assert_eq!(moves, [0, 1, 3]);
    }
}
