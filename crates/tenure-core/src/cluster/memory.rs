//! What the leader remembers in addition to what it has written: since when each shard is in its state, and where work
//! has failed.
//!
//! None of it is needed for safety. A new leader starts every timeout from the beginning, which can only make it wait
//! longer, and it tries again where work has failed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Config;
use super::plan::{Decision, Reason};
use super::record::{AssignmentState, Assignments, Generation, Shard};
use super::report::RunState;
use crate::{DaemonId, Incarnation, Moment};

/// What each shard's node reports of the generation that is assigned to it, by daemon and shard.
pub(crate) type Reported<'a> = BTreeMap<&'a DaemonId, Vec<Option<&'a RunState>>>;

#[derive(Debug, Clone, Default, Hash)]
pub(crate) struct Memory {
    timers: BTreeMap<DaemonId, Vec<Timer>>,
    failures: BTreeMap<(DaemonId, Incarnation), Failures>,
}

/// Since when a shard is in its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Timer {
    generation: Generation,
    stage: Stage,
    since: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Vacant,
    Assigned,
    Acknowledged,
    /// The node ends it without being told.
    Draining,
    Revoked,
}

/// Where and how often a daemon has failed on one node.
#[derive(Debug, Clone, Default, Hash)]
struct Failures {
    any: Failure,
    shards: BTreeMap<u32, Failure>,
}

#[derive(Debug, Clone, Copy, Default, Hash)]
struct Failure {
    count: u32,
    delay: Duration,
    until: Moment,
    /// When the failures are forgotten if nothing fails meanwhile.
    forgiven_at: Moment,
}

/// Whether a node may be trusted with a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has failed not long ago.
    Unreliable,
    /// It has failed before.
    OnTrial,
}

impl Memory {
    /// Starts the timer of every shard whose state has changed.
    pub(crate) fn observe(&mut self, now: Moment, desired: &Assignments, reported: &Reported<'_>) {
        self.timers.retain(|id, _| desired.daemons.contains_key(id));
        for (id, daemon) in &desired.daemons {
            let reports = reported.get(id);
            let timers = self.timers.entry(id.clone()).or_default();
            let vacant = Timer {
                generation: Generation(0),
                stage: Stage::Vacant,
                since: now,
            };
            timers.resize(daemon.shards.len(), vacant);
            for (index, (timer, assignment)) in timers.iter_mut().zip(&daemon.shards).enumerate() {
                let report = reports.and_then(|reports| reports.get(index).copied().flatten());
                let (generation, stage) = match assignment {
                    None => (Generation(0), Stage::Vacant),
                    Some(assignment) => {
                        let stage = match (assignment.state, report) {
                            (AssignmentState::Revoking, _) => Stage::Revoked,
                            (_, None) => Stage::Assigned,
                            (_, Some(RunState::Draining)) => Stage::Draining,
                            (_, Some(_)) => Stage::Acknowledged,
                        };
                        (assignment.generation, stage)
                    }
                };
                if (timer.generation, timer.stage) != (generation, stage) {
                    *timer = Timer {
                        generation,
                        stage,
                        since: now,
                    };
                }
            }
        }
    }

    /// Starts every timer from the beginning.
    pub(crate) fn forget_timers(&mut self) {
        self.timers.clear();
    }

    /// Since when a shard is in its state; never, if that was not observed.
    pub(crate) fn since(&self, daemon: &DaemonId, index: u32) -> Moment {
        let timer = self
            .timers
            .get(daemon)
            .and_then(|all| all.get(index as usize));
        timer.map_or(Moment::NEVER, |timer| timer.since)
    }

    /// Learns where work fails, from the decisions about it.
    pub(crate) fn learn(
        &mut self,
        now: Moment,
        config: &Config,
        desired: &Assignments,
        decisions: &[Decision],
    ) {
        for decision in decisions {
            match decision {
                Decision::Free {
                    shard,
                    from,
                    reason: Reason::Failed { .. } | Reason::Unanswered,
                } => self.failed(now, Duration::ZERO, config, shard, from.incarnation),
                // The shard may be freed only when the drain timeout is over, and it takes the acknowledge
                // timeout to find out whether the next try does any better: the failure counts for longer.
                Decision::Revoke {
                    shard,
                    reason: Reason::NotAcknowledged | Reason::NotStarted,
                    ..
                } => {
                    if let Some(assignment) = desired.get(shard) {
                        let slow = config.drain_timeout;
                        self.failed(now, slow, config, shard, assignment.incarnation);
                    }
                }
                _ => {}
            }
        }
        self.failures
            .retain(|_, failures| now < failures.any.forgiven_at);
    }

    fn failed(
        &mut self,
        now: Moment,
        slow: Duration,
        config: &Config,
        shard: &Shard,
        on: Incarnation,
    ) {
        let key = (shard.daemon.clone(), on);
        let failures = self.failures.entry(key).or_default();
        failures.any.again(now, slow, config);
        let failure = failures.shards.entry(shard.index).or_default();
        failure.again(now, slow, config);
    }

    /// How a node has done with a daemon lately, and when that changes; `None` if nothing failed.
    pub(crate) fn standing(
        &self,
        now: Moment,
        daemon: &DaemonId,
        node: Incarnation,
    ) -> Option<(Standing, Moment)> {
        let failure = self.failures.get(&(daemon.clone(), node))?.any;
        if now < failure.until {
            Some((Standing::Unreliable, failure.until))
        } else if now < failure.forgiven_at {
            Some((Standing::OnTrial, failure.forgiven_at))
        } else {
            None
        }
    }

    /// Until when a node is passed over for a shard.
    pub(crate) fn passed_over(
        &self,
        now: Moment,
        daemon: &DaemonId,
        index: u32,
        node: Incarnation,
    ) -> Option<Moment> {
        let failures = self.failures.get(&(daemon.clone(), node))?;
        let until = failures.shards.get(&index)?.until;
        (now < until).then_some(until)
    }

    /// Whether anything has failed anywhere.
    pub(crate) fn has_failures(&self) -> bool {
        !self.failures.is_empty()
    }
}

impl Failure {
    /// Counts a failure. If it takes a while to see whether the next attempt does better, `slow` is that time.
    fn again(&mut self, now: Moment, slow: Duration, config: &Config) {
        // Many shards may fail at once, and one decision may be made twice: that is one failure.
        if now < self.until {
            return;
        }
        if now >= self.forgiven_at {
            self.count = 0;
        }
        let delay = config.failure_delay.saturating_mul(1 << self.count.min(20));
        self.delay = delay.min(config.failure_delay_max);
        self.count += 1;
        self.until = now + slow + self.delay;
        let remembered = (self.delay * 4).min(config.failure_delay_max * 2);
        self.forgiven_at = if slow.is_zero() {
            self.until + remembered
        } else {
            self.until + remembered + config.acknowledge_timeout * 2
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_passed_over_for_longer_and_longer_and_then_forgiven() {
        let config = Config::default();
        let mut failure = Failure::default();
        let mut now = Moment::from_origin(Duration::from_secs(1000));
        let mut delays = Vec::new();
        for _ in 0..10 {
            failure.again(now, Duration::ZERO, &config);
            // The same failure, reported twice.
            failure.again(now, Duration::ZERO, &config);
            delays.push(failure.until.since(now).as_secs());
            now = failure.until;
        }
        assert_eq!(delays, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        now = now + Duration::from_secs(601);
        failure.again(now, Duration::ZERO, &config);
        assert_eq!(failure.until.since(now).as_secs(), 2);
    }

    #[test]
    fn a_standing_says_until_when_it_lasts() {
        let config = Config::default();
        let (daemon, node) = (DaemonId::new("d").unwrap(), Incarnation(1));
        let shard = Shard {
            daemon: daemon.clone(),
            index: 0,
        };
        let mut memory = Memory::default();
        let mut now = Moment::from_origin(Duration::from_secs(1000));
        memory.failed(now, Duration::ZERO, &config, &shard, node);
        let mut standings = Vec::new();
        while let Some((standing, until)) = memory.standing(now, &daemon, node) {
            assert!(now < until && until < Moment::NEVER);
            standings.push(standing);
            now = until;
        }
        assert_eq!(standings, [Standing::Unreliable, Standing::OnTrial]);
    }

    #[test]
    fn a_start_that_hangs_is_remembered_until_the_next_can_have_hung() {
        let config = Config::default();
        let mut failure = Failure::default();
        let mut now = Moment::from_origin(Duration::from_secs(1000));
        let mut delays = Vec::new();
        for _ in 0..4 {
            failure.again(now, config.drain_timeout, &config);
            delays.push(failure.until.since(now + config.drain_timeout).as_secs());
            // Passed over until then, it is given the shard again and hangs again.
            now = failure.until + config.acknowledge_timeout;
        }
        assert_eq!(delays, [2, 4, 8, 16]);
    }
}
