//! Numbers about a node: plain data, for a metrics page or a log line. There is no global registry:
//! the owner of the [`Node`](crate::Node) publishes them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::cluster::witness::What;
use tenure_core::election::{EndReason, Leader, Term};
use tenure_core::{ElectionName, Incarnation, Moment, NodeId, Written};
use tenure_store::wrap::metered::BUCKET_BOUNDS;

use crate::cluster::events::Event;

/// What a node has counted since it was started, over all its sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// How long this process may still act on what it holds if no further heartbeat gets through; zero
    /// without a session.
    pub trust_remaining_ms: u64,
    /// How many sessions were joined: one, unless some were lost.
    pub sessions: u64,
    /// How many of them ended against this process's will.
    pub sessions_lost: u64,
    /// The heartbeats by how they ended; what never happened is left out.
    pub heartbeats: Vec<Heartbeats>,
    /// Dead sessions of others that this node has evicted.
    pub evictions: u64,
    /// Processes that run under this node's id now, besides this one.
    pub duplicates: u64,
    /// This node's part in the cluster; all zero if it takes none.
    pub cluster: ClusterMetrics,
    /// By election that this node takes part in or observes.
    pub elections: BTreeMap<ElectionName, ElectionMetrics>,
}

/// The heartbeats that ended in one way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeats {
    /// How they ended.
    pub outcome: HeartbeatOutcome,
    /// How many.
    pub count: u64,
    /// How long they took together.
    pub total_nanoseconds: u64,
    /// How many took at most the bound of the same place in
    /// [`BUCKET_BOUNDS`] and more than the bound before; the last: more than every bound.
    pub buckets: [u64; BUCKET_BOUNDS.len() + 1],
}

/// How a heartbeat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeartbeatOutcome {
    /// Confirmed: trust was extended.
    Done,
    /// The session was not as expected: read back.
    Conflict,
    /// The store could not be reached, or said no: tried again.
    NotApplied,
    /// The answer was lost: read back.
    Unknown,
}

/// One election, as this node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElectionMetrics {
    /// Whether this process leads.
    pub leads: bool,
    /// Who leads, as seen last.
    pub leader: Option<NodeId>,
    /// The highest term seen.
    pub term: Term,
    /// How often this process was elected.
    pub elected: u64,
    /// How its terms ended, by reason.
    pub ended: BTreeMap<String, u64>,
    /// Things that should not happen, such as a lease that was deleted by hand.
    pub anomalies: u64,
    /// How long nobody led, as far as this node could see: from a lease that is free, or whose holder is
    /// known to be dead, to the next one that is held.
    pub leaderless_ms: u64,
}

/// The cluster, as this node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterMetrics {
    /// How many nodes are there.
    pub nodes: u64,
    /// How many were seen to join.
    pub nodes_joined: u64,
    /// How many were seen to leave by themselves.
    pub nodes_left: u64,
    /// How many were seen to be evicted.
    pub nodes_evicted: u64,
    /// How many shards run on this node, or have not ended yet.
    pub shards: u64,
    /// How many shards this node was given.
    pub shards_assigned: u64,
    /// How many of them have started.
    pub shards_started: u64,
    /// How many were told to end.
    pub shards_revoked: u64,
    /// How many have ended as they were told to.
    pub shards_stopped: u64,
    /// How many have failed.
    pub shards_failed: u64,
    /// How often this node, as the leader, wrote the assignments.
    pub assignment_writes: u64,
    /// How often such a write ended in any other way than done.
    pub assignment_writes_failed: u64,
    /// How many decisions it has written down.
    pub decisions: u64,
    /// How many dead sessions it has removed.
    pub sessions_removed: u64,
    /// Things that should not happen, such as assignments that were deleted by hand.
    pub anomalies: u64,
    /// How many events were lost to listeners that are too slow.
    pub events_missed: u64,
}

/// What the driver counts on, and handles read.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    metrics: Metrics,
    trusted_until: Moment,
    /// Who leads, for those elections that have a leader.
    leaders: BTreeMap<ElectionName, Incarnation>,
    leaderless_since: BTreeMap<ElectionName, Moment>,
}

impl Counters {
    pub(crate) fn snapshot(&self, now: Moment) -> Metrics {
        let state = self.state();
        let mut metrics = state.metrics.clone();
        metrics.trust_remaining_ms = milliseconds(state.trusted_until.since(now));
        for (election, since) in &state.leaderless_since {
            if let Some(election) = metrics.elections.get_mut(election) {
                election.leaderless_ms += milliseconds(now.since(*since));
            }
        }
        metrics
    }

    pub(crate) fn heartbeat(&self, written: &Written, took: Duration) {
        let outcome = match written {
            Written::Done(_) => HeartbeatOutcome::Done,
            Written::Conflict => HeartbeatOutcome::Conflict,
            Written::NotApplied => HeartbeatOutcome::NotApplied,
            Written::Unknown => HeartbeatOutcome::Unknown,
        };
        let heartbeats = &mut self.state().metrics.heartbeats;
        let at = match heartbeats.binary_search_by_key(&outcome, |each| each.outcome) {
            Ok(at) => at,
            Err(at) => {
                heartbeats.insert(at, Heartbeats::none(outcome));
                at
            }
        };
        heartbeats[at].add(took);
    }

    pub(crate) fn joined(&self) {
        self.state().metrics.sessions += 1;
    }

    pub(crate) fn trusted_until(&self, until: Moment) {
        self.state().trusted_until = until;
    }

    pub(crate) fn session_lost(&self) {
        let mut state = self.state();
        state.metrics.sessions_lost += 1;
        state.trusted_until = Moment::default();
    }

    pub(crate) fn left(&self) {
        self.state().trusted_until = Moment::default();
    }

    pub(crate) fn evicted(&self) {
        self.state().metrics.evictions += 1;
    }

    pub(crate) fn duplicates(&self, count: usize) {
        self.state().metrics.duplicates = count as u64;
    }

    /// Someone leads, or nobody does.
    pub(crate) fn leader(&self, now: Moment, name: &ElectionName, leader: Option<&Leader>) {
        let mut state = self.state();
        let election = state.election(name);
        election.leader = leader.map(|leader| leader.node.clone());
        match leader {
            Some(leader) => {
                election.term = election.term.max(leader.term);
                state.leaders.insert(name.clone(), leader.incarnation);
                if let Some(since) = state.leaderless_since.remove(name) {
                    state.election(name).leaderless_ms += milliseconds(now.since(since));
                }
            }
            None => {
                state.leaders.remove(name);
                state.leaderless_since.entry(name.clone()).or_insert(now);
            }
        }
    }

    /// A session of someone else has ended: whatever it led has no leader.
    pub(crate) fn session_ended(&self, now: Moment, incarnation: Incarnation) {
        let state = &mut *self.state();
        for (name, leader) in &state.leaders {
            if *leader == incarnation {
                state.leaderless_since.entry(name.clone()).or_insert(now);
            }
        }
    }

    pub(crate) fn elected(&self, name: &ElectionName, term: Term) {
        let mut state = self.state();
        let election = state.election(name);
        election.leads = true;
        election.elected += 1;
        election.term = election.term.max(term);
    }

    pub(crate) fn ended(&self, name: &ElectionName, reason: &EndReason) {
        let mut state = self.state();
        let election = state.election(name);
        election.leads = false;
        *election.ended.entry(code(reason).to_owned()).or_default() += 1;
    }

    pub(crate) fn anomaly(&self, name: &ElectionName) {
        self.state().election(name).anomalies += 1;
    }

    /// Something has happened in the cluster, which has so many nodes now.
    pub(crate) fn cluster_event(&self, event: &Event, nodes: usize) {
        let cluster = &mut self.state().metrics.cluster;
        cluster.nodes = nodes as u64;
        let counted = match event {
            Event::NodeJoined(_) => &mut cluster.nodes_joined,
            Event::NodeLeft(_) => &mut cluster.nodes_left,
            Event::NodeEvicted(_) => &mut cluster.nodes_evicted,
            _ => return,
        };
        *counted += 1;
    }

    /// Something has become of a shard of this node.
    pub(crate) fn shard(&self, what: &What) {
        let cluster = &mut self.state().metrics.cluster;
        let counted = match what {
            What::Assigned => {
                cluster.shards += 1;
                &mut cluster.shards_assigned
            }
            What::Started => &mut cluster.shards_started,
            What::Revoked => &mut cluster.shards_revoked,
            What::Stopped => {
                cluster.shards -= 1;
                &mut cluster.shards_stopped
            }
            What::Failed { .. } => {
                cluster.shards -= 1;
                &mut cluster.shards_failed
            }
        };
        *counted += 1;
    }

    pub(crate) fn event_missed(&self) {
        self.state().metrics.cluster.events_missed += 1;
    }

    pub(crate) fn assignments_written(&self, written: &Written) {
        let cluster = &mut self.state().metrics.cluster;
        match written {
            Written::Done(_) => cluster.assignment_writes += 1,
            _ => cluster.assignment_writes_failed += 1,
        }
    }

    pub(crate) fn decided(&self, decisions: usize) {
        self.state().metrics.cluster.decisions += decisions as u64;
    }

    pub(crate) fn session_removed(&self) {
        self.state().metrics.cluster.sessions_removed += 1;
    }

    pub(crate) fn cluster_anomaly(&self) {
        self.state().metrics.cluster.anomalies += 1;
    }

    /// Plain numbers: a panic elsewhere leaves them whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn election(&mut self, name: &ElectionName) -> &mut ElectionMetrics {
        self.metrics.elections.entry(name.clone()).or_default()
    }
}

impl Heartbeats {
    fn none(outcome: HeartbeatOutcome) -> Self {
        Self {
            outcome,
            count: 0,
            total_nanoseconds: 0,
            buckets: [0; BUCKET_BOUNDS.len() + 1],
        }
    }

    fn add(&mut self, took: Duration) {
        self.count += 1;
        self.total_nanoseconds += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[BUCKET_BOUNDS.partition_point(|bound| *bound < took)] += 1;
    }
}

/// A short word for a reason, as a label.
fn code(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::Resigned => "resigned",
        EndReason::GaveUp { .. } => "gave_up",
        EndReason::Requested { .. } => "requested",
        EndReason::Transferred { .. } => "transferred",
        EndReason::WorkEnded => "work_ended",
        EndReason::WorkDidNotStop => "work_did_not_stop",
        EndReason::Expired => "expired",
        EndReason::SessionOver => "session_over",
        EndReason::LeaseTaken => "lease_taken",
        EndReason::LeaseDeleted => "lease_deleted",
        EndReason::LeaseDamaged => "lease_damaged",
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn time_without_a_leader_runs_from_the_death_of_one_to_the_next() {
        let counters = Counters::default();
        let name = ElectionName::new("e").unwrap();
        let leader = |incarnation, term| Leader {
            node: NodeId::new("a").unwrap(),
            incarnation: Incarnation(incarnation),
            term: Term(term),
        };
        let leaderless = |now| counters.snapshot(at(now)).elections[&name].leaderless_ms;
        counters.leader(at(1), &name, None);
        counters.leader(at(3), &name, Some(&leader(7, 1)));
        assert_eq!(leaderless(9), 2000);
        counters.session_ended(at(10), Incarnation(8));
        assert_eq!(leaderless(11), 2000);
        counters.session_ended(at(11), Incarnation(7));
        assert_eq!(leaderless(12), 3000);
        counters.leader(at(13), &name, None);
        counters.leader(at(15), &name, Some(&leader(8, 2)));
        assert_eq!(leaderless(99), 6000);
        assert_eq!(counters.snapshot(at(99)).elections[&name].term, Term(2));
    }

    #[test]
    fn heartbeats_are_kept_by_outcome_and_latency() {
        let counters = Counters::default();
        counters.heartbeat(&Written::Unknown, Duration::from_millis(1));
        for _ in 0..2 {
            let done = Written::Done(tenure_core::Version::new("1"));
            counters.heartbeat(&done, Duration::from_secs(3600));
        }
        let heartbeats = counters.snapshot(at(0)).heartbeats;
        let counts = heartbeats.iter().map(|each| (each.outcome, each.count));
        assert_eq!(
            counts.collect::<Vec<_>>(),
            [(HeartbeatOutcome::Done, 2), (HeartbeatOutcome::Unknown, 1)]
        );
        assert_eq!(heartbeats[0].buckets.last(), Some(&2));
        // 1 ms is more than 800 µs and at most 1.6 ms.
        assert_eq!(heartbeats[1].buckets[4], 1);
    }
}
