//! The times of the protocol, and which of them fit together.

use std::time::Duration;

/// The times of a session. Every node of a namespace may have its own: observers go by the ttl in the record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Config {
    /// How long a session may go without a heartbeat before others may evict it: the time until a dead leader is
    /// replaced. Shorter means faster takeover and more writes. Default 10 s.
    pub ttl: Duration,
    /// How often the session is renewed, and how often leases are looked at. A third of the ttl or
    /// less, so that one failed heartbeat costs nothing. Default 3 s.
    pub heartbeat: Duration,
    /// How much earlier than the ttl a process stops trusting itself. Covers the difference of clock rates between
    /// hosts and the time it takes to notice. Default 1 s.
    pub margin: Duration,
    /// How long before trust ends the work is told to stop if no heartbeat got through. Default 2 s.
    pub grace: Duration,
    /// How long work may take to stop when a leader gives up leadership; the term goes on meanwhile. After that the
    /// term is over, and the work is aborted. Long enough for what is under way to be finished. Default 30 s.
    pub stop_within: Duration,
    /// How long one request to the store may take before its answer counts as lost. Default 2 s.
    pub request_timeout: Duration,
    /// How long a node that gave up leadership leaves it to others. Default 5 s.
    pub stand_back: Duration,
    /// Ignore the age that a store reports, even if the store URL asks for one by the clock of a server. A freshly
    /// started observer then waits a whole ttl, whatever it finds. Default false.
    pub strict_age: bool,
    /// Shorten each wait by up to a fifth, so that nodes that were started together do not ask together.
    /// Without it, every wait is as long as it can be: for a model checker, which tries each order anyway and has
    /// fewer moments to look at. Default true.
    pub jitter: bool,
}

/// Everything that is unsafe in a configuration, with the arithmetic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("these times are not safe together: {}", violations.join("; "))]
pub struct ConfigError {
    /// One sentence each.
    pub violations: Vec<String>,
}

/// The largest difference in clock rate between two hosts that the margin must cover: 1 %. Quartz clocks
/// differ by less than 0.02 %, a host that slews its clock by up to 0.05 %.
const CLOCK_RATE_DIFFERENCE: u32 = 100;

/// While nothing waits for news, one look in this many heartbeats is enough.
const REST_HEARTBEATS: u32 = 10;

/// The longest wait before a failed request is tried again.
const RETRY_MAX: Duration = Duration::from_secs(5);

const TTL_MIN: Duration = Duration::from_millis(200);
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

impl Config {
    /// Times in the default proportions for a ttl: heartbeat 3/10, margin 1/10, grace 2/10, request
    /// timeout 2/10, stand back 5/10. Work gets 30 s to stop, whatever the ttl.
    #[must_use]
    pub fn for_ttl(ttl: Duration) -> Self {
        Self {
            ttl,
            heartbeat: ttl * 3 / 10,
            margin: ttl / 10,
            grace: ttl / 5,
            stop_within: Duration::from_secs(30),
            request_timeout: ttl / 5,
            stand_back: ttl / 2,
            strict_age: false,
            jitter: true,
        }
    }

    /// Times for a ttl that ask for as few requests as are safe: heartbeat 1/2 of the ttl, margin 1/10, grace, request
    /// timeout and stand back 1/10 but no more than 10 s. As always, a heartbeat that fails is tried again at once, so
    /// three fit into a ttl.
    #[must_use]
    pub fn economical(ttl: Duration) -> Self {
        let short = (ttl / 10).min(Duration::from_secs(10));
        Self {
            heartbeat: ttl / 2,
            grace: short,
            request_timeout: short,
            stand_back: short,
            ..Self::for_ttl(ttl)
        }
    }

    /// The longest pause between two heartbeats that still lets one of them be slow: for a store that should get fewer
    /// requests.
    #[must_use]
    pub fn heartbeat_max(&self) -> Duration {
        let spent = self.request_timeout + self.grace + self.margin;
        self.ttl.saturating_sub(spent).max(self.heartbeat)
    }

    /// How many heartbeats a day has at most if they are as rare as possible.
    #[must_use]
    pub fn heartbeats_per_day(&self) -> u32 {
        // Waits are shortened by up to a fifth.
        let pause = self.heartbeat_max() * 4 / 5;
        let heartbeats = Duration::from_secs(24 * 3600).as_nanos() / pause.as_nanos().max(1);
        u32::try_from(heartbeats).unwrap_or(u32::MAX / 2) + 1
    }

    /// Checks that the times are safe together.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Self {
            ttl,
            heartbeat,
            margin,
            grace,
            request_timeout,
            ..
        } = *self;
        let mut violations = Vec::new();
        if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
            violations.push(format!(
                "ttl {ttl:?} is not between {TTL_MIN:?} and {TTL_MAX:?}"
            ));
        }
        for (name, value) in [
            ("heartbeat", heartbeat),
            ("margin", margin),
            ("grace", grace),
            ("request_timeout", request_timeout),
        ] {
            // If the ttl is zero, so are the times that follow from it; only the ttl is reported.
            if value.is_zero() && !ttl.is_zero() {
                violations.push(format!("{name} must not be zero"));
            }
        }
        let drift = ttl / CLOCK_RATE_DIFFERENCE;
        if margin < drift {
            violations.push(format!("margin {margin:?} < ttl {ttl:?} / 100 = {drift:?}, so clocks that differ by 1 % could lead to two leaders"));
        }
        let spent = heartbeat
            .saturating_add(request_timeout)
            .saturating_add(grace)
            .saturating_add(margin);
        if spent > ttl {
            violations.push(format!(
                "heartbeat {heartbeat:?} + request_timeout {request_timeout:?} + grace {grace:?} + margin {margin:?} = {spent:?} > ttl {ttl:?}, so one slow heartbeat would stop a healthy leader"
            ));
        }
        if violations.is_empty() {
            Ok(())
        } else {
            Err(ConfigError { violations })
        }
    }

    /// How long after the start of a confirmed request trust lasts.
    #[must_use]
    pub(crate) fn trust(&self) -> Duration {
        self.ttl.saturating_sub(self.margin)
    }

    /// How much longer a candidate of the lowest priority waits: less than it takes from one look to the next, so that
    /// it still acts before a candidate that waits.
    #[must_use]
    pub(crate) fn hesitation(&self) -> Duration {
        self.heartbeat / 3
    }

    /// How soon an observer looks again after it saw a new version whose age it does not know: a little
    /// before the next one can be there.
    #[must_use]
    pub(crate) fn first_look(&self) -> Duration {
        self.heartbeat * 3 / 4
    }

    /// How often it looks from then on. If a version is first seen late, its eviction is late by as much, so this is a
    /// twentieth of the ttl by default.
    #[must_use]
    pub(crate) fn close_look(&self) -> Duration {
        self.heartbeat / 6
    }

    /// How often to look at something that nothing waits for. If the hint of a change is lost, this bounds how late the
    /// change is seen.
    #[must_use]
    pub(crate) fn rest(&self) -> Duration {
        self.heartbeat * REST_HEARTBEATS
    }

    /// How soon a failed request is tried again: never so late that callers wait for minutes only because the ttl is
    /// long.
    #[must_use]
    pub(crate) fn retry(&self) -> Duration {
        (self.heartbeat / 8).min(RETRY_MAX)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::for_ttl(Duration::from_secs(10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_safe_at_any_allowed_ttl() {
        assert_eq!(Config::default().heartbeat, Duration::from_secs(3));
        for ttl in [
            TTL_MIN,
            Duration::from_secs(1),
            Duration::from_secs(10),
            TTL_MAX,
        ] {
            Config::for_ttl(ttl).check().unwrap();
        }
    }

    #[test]
    fn economical_times_are_safe_and_leave_room_for_a_second_try() {
        for ttl in [TTL_MIN, Duration::from_secs(120), TTL_MAX] {
            let config = Config::economical(ttl);
            config.check().unwrap();
            let second = config.heartbeat + config.request_timeout + config.retry();
            assert!(second + config.request_timeout < config.trust() - config.grace);
        }
        assert_eq!(
            Config::default().heartbeat_max(),
            Duration::from_secs(5),
            "ttl - request timeout - grace - margin"
        );
        assert_eq!(Config::default().heartbeats_per_day(), 21_601);
    }

    #[test]
    fn a_lost_answer_is_never_waited_for_long() {
        let day = Config::for_ttl(TTL_MAX);
        assert!(day.retry() <= Duration::from_secs(5));
        assert_eq!(Config::default().retry(), Duration::from_millis(375));
    }

    #[test]
    fn every_violation_is_named_with_its_arithmetic() {
        let config = Config {
            ttl: Duration::from_secs(15),
            heartbeat: Duration::from_secs(14),
            margin: Duration::ZERO,
            request_timeout: Duration::from_secs(5),
            ..Config::default()
        };
        let error = config.check().unwrap_err();
        assert_eq!(
            error.violations,
            [
                "margin must not be zero",
                "margin 0ns < ttl 15s / 100 = 150ms, so clocks that differ by 1 % could lead to two leaders",
                "heartbeat 14s + request_timeout 5s + grace 2s + margin 0ns = 21s > ttl 15s, so one slow heartbeat would stop a healthy leader",
            ]
        );
        let error = Config::for_ttl(Duration::ZERO).check().unwrap_err();
        assert_eq!(
            error.violations,
            ["ttl 0ns is not between 200ms and 86400s"]
        );
    }
}
