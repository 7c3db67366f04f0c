//! The times of the cluster, and which of them fit together.

use std::time::Duration;

use super::record::look_trust;
use crate::session::{self, ConfigError};

/// How the leader hands work out. Nodes go by what the leader wrote, so leaders with different configurations can
/// follow each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Config {
    /// How long a node has to acknowledge an assignment, and then again to get it running, before it is revoked. Longer
    /// than the slowest daemon takes to start. Default 30 s.
    pub acknowledge_timeout: Duration,
    /// How long a node that was told to end a shard may take before the shard is given to another. A node aborts what
    /// has not drained a tenth earlier. This is also how long a node goes on if it cannot look at its assignments, so
    /// it must be well above the ttl of the sessions. Default 30 s.
    pub drain_timeout: Duration,
    /// The shortest time between two writes of the assignments. What happens meanwhile is written
    /// together. Default 500 ms; stores that count writes want more.
    pub cycle: Duration,
    /// Work is moved for balance only when no node has come or gone for this long, so that a cluster
    /// that starts or restarts is not shuffled with every node. Default 2 s.
    pub settle: Duration,
    /// How many shards may move between nodes at once, for balance or because a node is drained. What a dead node held
    /// does not count. Default 32.
    pub moves_max: usize,
    /// How long a node is passed over for a shard that failed there; doubles with every failure. Default
    /// 2 s.
    pub failure_delay: Duration,
    /// The longest that a node is passed over. Default 5 min.
    pub failure_delay_max: Duration,
    /// The longest that shards are kept for a node that is restarting, whatever it asks for. Default
    /// 5 min.
    pub restart_max: Duration,
}

impl Config {
    /// The defaults, with longer timeouts where the times of the sessions ask for them.
    #[must_use]
    pub fn for_session(session: &session::Config) -> Self {
        let defaults = Self::default();
        // A node trusts what it has seen for nine tenths of the drain timeout.
        let survived = session.ttl.saturating_add(session.heartbeat);
        Self {
            drain_timeout: defaults.drain_timeout.max(survived.saturating_mul(5) / 4),
            acknowledge_timeout: defaults
                .acknowledge_timeout
                .max(session.heartbeat.saturating_mul(4)),
            ..defaults
        }
    }

    /// Checks that the times fit together, and fit those of the sessions.
    pub fn check(&self, session: &session::Config) -> Result<(), ConfigError> {
        let mut violations = Vec::new();
        for (name, value) in [("cycle", self.cycle), ("failure_delay", self.failure_delay)] {
            if value.is_zero() {
                violations.push(format!("{name} must not be zero"));
            }
        }
        if self.moves_max == 0 {
            violations
                .push("moves_max must not be zero: nothing could ever be balanced".to_owned());
        }
        let trust = look_trust(self.drain_timeout);
        let needed = session.ttl.saturating_add(session.heartbeat);
        if trust < needed {
            violations.push(format!(
                "drain_timeout {:?} * 9/10 = {trust:?} < ttl {:?} + heartbeat {:?} = {needed:?}, so an outage that sessions survive would stop their daemons",
                self.drain_timeout, session.ttl, session.heartbeat
            ));
        }
        let looks = session.heartbeat.saturating_mul(2);
        if self.acknowledge_timeout < looks {
            violations.push(format!(
                "acknowledge_timeout {:?} < 2 * heartbeat {:?} = {looks:?}, so a node that polls could be too late",
                self.acknowledge_timeout, session.heartbeat
            ));
        }
        if violations.is_empty() {
            Ok(())
        } else {
            Err(ConfigError { violations })
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            acknowledge_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            cycle: Duration::from_millis(500),
            settle: Duration::from_secs(2),
            moves_max: 32,
            failure_delay: Duration::from_secs(2),
            failure_delay_max: Duration::from_secs(300),
            restart_max: Duration::from_secs(300),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_fit_the_default_session() {
        Config::default()
            .check(&session::Config::default())
            .unwrap();
        for seconds in [1, 10, 60, 3600] {
            let session = session::Config::for_ttl(Duration::from_secs(seconds));
            let config = Config::for_session(&session);
            config.check(&session).unwrap();
            assert_eq!(config == Config::default(), seconds <= 10);
        }
    }

    #[test]
    fn every_violation_is_named_with_its_arithmetic() {
        let config = Config {
            drain_timeout: Duration::from_secs(10),
            acknowledge_timeout: Duration::from_secs(5),
            moves_max: 0,
            ..Config::default()
        };
        let error = config.check(&session::Config::default()).unwrap_err();
        assert_eq!(
            error.violations,
            [
                "moves_max must not be zero: nothing could ever be balanced",
                "drain_timeout 10s * 9/10 = 9s < ttl 10s + heartbeat 3s = 13s, so an outage that sessions survive would stop their daemons",
                "acknowledge_timeout 5s < 2 * heartbeat 3s = 6s, so a node that polls could be too late",
            ]
        );
    }
}
