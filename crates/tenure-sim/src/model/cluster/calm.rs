//! If nothing else goes wrong, every shard runs in time.

use std::time::Duration;

use super::action::Action;
use super::process::Run;
use super::state::{State, config, session_config};
use crate::invariants::{Violation, every_shard_runs};
use crate::model::search::World;

/// Lets the world run without faults: paused processes continue, requests in transit arrive, hanging work continues,
/// and every shard that some node can run must be running within the bound.
pub(super) fn converges(mut state: State) -> Result<(), Violation> {
    state.faults = 0;
    let deadline = state.now + patience();
    loop {
        let next = next(&state);
        if next == Action::Tick {
            let idle = state.idle_shards();
            if idle.is_empty() {
                return Ok(());
            }
            if state.now > deadline {
                return every_shard_runs::check(&idle, || state.describe());
            }
        }
        state.take(&next)?;
    }
}

/// The next step if nothing goes wrong.
fn next(state: &State) -> Action {
    if let Some((&process, _)) = state.processes.iter().find(|(_, it)| it.paused.is_some()) {
        return Action::Resume {
            process,
            time_first: true,
        };
    }
    if let Some((&process, _)) = state.processes.iter().find(|(_, it)| it.is_deposed) {
        return Action::Depose(process);
    }
    if let Some((_, answer)) = state.slow.first() {
        return match answer {
            Some(_) => Action::Deliver(0),
            None => Action::Apply(0),
        };
    }
    if !state.late.is_empty() {
        return Action::Land(0);
    }
    if !state.hung.is_empty() {
        return Action::GoOn(0);
    }
    if state.queue.is_empty() {
        Action::Tick
    } else {
        Action::Next(0)
    }
}

/// A dead node is evicted after its ttl; lost assignments, and a shard that is not ended, cost a drain timeout each;
/// a node where a shard has failed is avoided for a while; and then comes the next look.
fn patience() -> Duration {
    let (session, cluster) = (session_config(), config());
    session.ttl * 2
        + cluster.drain_timeout * 2
        + cluster.acknowledge_timeout
        + cluster.failure_delay_max
        + session.heartbeat * 4
}

impl State {
    /// Lets the world run until all shards run and nothing is left to do.
    pub(super) fn settle_down(&mut self) -> Result<(), Violation> {
        let deadline = self.now + patience();
        let is_active = |state: &State| {
            let mut runs = state.processes.values().flat_map(|it| it.runs.values());
            state.idle_shards().is_empty() && runs.all(|run| *run == Run::Running)
        };
        // Reports are read with the next heartbeat, and noted down after that.
        let mut quiet = 0;
        while quiet < 12 {
            let next = next(self);
            if next == Action::Tick {
                quiet = if is_active(self) { quiet + 1 } else { 0 };
                if self.now > deadline {
                    return every_shard_runs::check(&self.idle_shards(), || self.describe());
                }
            }
            self.take(&next)?;
        }
        Ok(())
    }
}
