//! What a process has seen of another's session, kept for its next call.
//!
//! A program that makes one call and ends cannot wait for a whole ttl. So it notes in its own session which version of
//! the leader's session it saw, and when, on the clock of its host. If a later call on the same host finds the same
//! version, that version has been unchanged for as long as that clock says.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{ClockId, Incarnation, Moment, Reading, Version, Wall};

/// The version that stands for a session that is not there. No store has such a version.
const MISSING: &str = "missing";

/// One version of a session, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sighting {
    /// Whose session.
    pub incarnation: Incarnation,
    /// At which version.
    version: String,
    /// The clock that showed the time, in hexadecimal digits.
    clock: String,
    /// What it showed, rounded up: nothing may look older than it is.
    at_ms: u64,
}

impl Sighting {
    /// Makes a sighting of a session that was read, with the answer there by `at`.
    #[must_use]
    pub fn new(incarnation: Incarnation, version: &Version, at: Reading) -> Self {
        Self {
            incarnation,
            version: version.as_str().to_owned(),
            clock: hexadecimal(at.clock),
            at_ms: milliseconds_up(at.moment),
        }
    }

    /// Makes a sighting of a session that was not there, with the answer there by `at`.
    #[must_use]
    pub fn of_missing(incarnation: Incarnation, at: Reading) -> Self {
        Self::new(incarnation, &Version::new(MISSING), at)
    }

    /// How long this session has been missing, at least. A deleted session is never created again, so it was missing
    /// all the time.
    #[must_use]
    pub fn missing_for(&self, incarnation: Incarnation, now: Reading) -> Option<Duration> {
        self.age(incarnation, &Version::new(MISSING), now)
    }

    /// Makes a sighting of a lease that was read, reserved for this session or held by it, with the answer there by
    /// `at`.
    #[must_use]
    pub fn of_lease(candidate: Incarnation, lease: &Version, at: Reading) -> Self {
        Self::new(candidate, &as_lease(lease), at)
    }

    /// As [`Sighting::age`], for a lease that is reserved for this session, or held by it.
    #[must_use]
    pub fn age_of_lease(
        &self,
        candidate: Incarnation,
        lease: &Version,
        now: Reading,
    ) -> Option<Duration> {
        self.age(candidate, &as_lease(lease), now)
    }

    /// How long this version has been unchanged, at least; `None` if it is not the one that was seen, or if it was seen
    /// by another clock.
    #[must_use]
    pub fn age(
        &self,
        incarnation: Incarnation,
        version: &Version,
        now: Reading,
    ) -> Option<Duration> {
        let seen = reading(&self.clock, self.at_ms)?;
        let is_same = self.incarnation == incarnation && self.version == version.as_str();
        is_same.then(|| now.since(seen))?
    }
}

/// What a process saw of others' sessions in passing, so that a later call on the same host can remove dead ones.
///
/// Two hosts can have the same name for their clocks: copies of a running virtual machine. Their clocks that cannot be
/// set then differ by the time between their starts. So here the wall clock has to agree that the time has passed. It
/// can only make a version look younger than it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Glance {
    /// The clock that showed the time, in hexadecimal digits.
    clock: String,
    /// What it showed, rounded up: nothing may look older than it is.
    at_ms: u64,
    /// What the wall clock showed.
    wall: Wall,
    /// Which version of each there was.
    versions: BTreeMap<Incarnation, String>,
}

impl Glance {
    /// Makes a glance at versions that were listed, with the answer there by `at`. Keeps no more than [`Glance::MAX`]
    /// of them.
    pub fn new<'a>(
        sessions: impl Iterator<Item = (Incarnation, &'a str)>,
        at: Reading,
        wall: Wall,
    ) -> Self {
        let text = |(incarnation, version): (_, &str)| (incarnation, version.to_owned());
        Self {
            clock: hexadecimal(at.clock),
            at_ms: milliseconds_up(at.moment),
            wall,
            versions: sessions.map(text).take(Self::MAX).collect(),
        }
    }

    /// How many sessions are noted.
    pub const MAX: usize = 8;

    /// How long ago that was, at least; `None` if that was on another clock.
    #[must_use]
    pub fn age(&self, now: Reading, wall: Wall) -> Option<Duration> {
        let by_host = now.since(reading(&self.clock, self.at_ms)?)?;
        let by_wall = Duration::from_millis(wall.0.checked_sub(self.wall.0)?);
        Some(by_host.min(by_wall))
    }

    /// Which version of each there was.
    pub fn versions(&self) -> impl Iterator<Item = (Incarnation, &str)> {
        let versions = self.versions.iter();
        versions.map(|(incarnation, version)| (*incarnation, version.as_str()))
    }
}

/// Tells the version of a lease from that of any session: so that one is never taken for the other.
fn as_lease(version: &Version) -> Version {
    Version::new(format!("lease {}", version.as_str()))
}

fn hexadecimal(clock: ClockId) -> String {
    format!("{:032x}", clock.0)
}

fn milliseconds_up(moment: Moment) -> u64 {
    let milliseconds = moment.since_origin().as_nanos().div_ceil(1_000_000);
    u64::try_from(milliseconds).unwrap_or(u64::MAX)
}

fn reading(clock: &str, at_ms: u64) -> Option<Reading> {
    Some(Reading {
        clock: ClockId(u128::from_str_radix(clock, 16).ok()?),
        moment: Moment::from_origin(Duration::from_millis(at_ms)),
    })
}

#[cfg(test)]
mod tests {
    use super::{Glance, Sighting};
    use crate::{ClockId, Incarnation, Moment, Reading, Version, Wall};
    use std::time::Duration;

    fn reading(clock: u128, milliseconds: u64) -> Reading {
        Reading {
            clock: ClockId(clock),
            moment: Moment::from_origin(Duration::from_millis(milliseconds)),
        }
    }

    #[test]
    fn a_version_ages_only_on_the_clock_that_saw_it() {
        let (leader, version) = (Incarnation(1), Version::new("tag\nguard"));
        let seen = Sighting::new(leader, &version, reading(7, 1000));
        let text = serde_json::to_string(&seen).unwrap();
        let seen: Sighting = serde_json::from_str(&text).unwrap();
        let age =
            |incarnation, version: &str, now| seen.age(incarnation, &Version::new(version), now);
        let second = Some(Duration::from_secs(1));
        assert_eq!(age(leader, "tag\nguard", reading(7, 2000)), second);
        assert_eq!(age(leader, "tag\nguard", reading(8, 2000)), None);
        assert_eq!(age(leader, "tag\nguard", reading(7, 999)), None);
        assert_eq!(age(leader, "other", reading(7, 2000)), None);
        assert_eq!(age(Incarnation(2), "tag\nguard", reading(7, 2000)), None);
    }

    #[test]
    fn a_lease_is_not_taken_for_the_session_that_it_is_reserved_for() {
        let (candidate, version) = (Incarnation(1), Version::new("tag"));
        let seen = Sighting::of_lease(candidate, &version, reading(7, 1000));
        let second = Some(Duration::from_secs(1));
        let later = reading(7, 2000);
        assert_eq!(seen.age_of_lease(candidate, &version, later), second);
        assert_eq!(seen.age(candidate, &version, later), None);
        let session = Sighting::new(candidate, &version, reading(7, 1000));
        assert_eq!(session.age_of_lease(candidate, &version, later), None);
    }

    #[test]
    fn a_moment_between_two_milliseconds_is_kept_as_the_later() {
        let mut at = reading(7, 1000);
        at.moment = at.moment + Duration::from_nanos(1);
        let seen = Sighting::new(Incarnation(1), &Version::new("v"), at);
        assert_eq!(seen.at_ms, 1001);
    }

    #[test]
    fn a_glance_is_as_old_as_both_clocks_say() {
        let sessions = (0..20).map(|number| (Incarnation(number), "v"));
        let glance = Glance::new(sessions, reading(7, 1000), Wall(50_000));
        let text = serde_json::to_string(&glance).unwrap();
        let glance: Glance = serde_json::from_str(&text).unwrap();
        let seen: Vec<_> = glance.versions().collect();
        assert_eq!(seen.len(), Glance::MAX);
        assert_eq!(seen[7], (Incarnation(7), "v"));
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let at = |clock, ms, wall| glance.age(reading(clock, ms), Wall(wall));
        assert_eq!(at(7, 61_000, 110_000), seconds(60));
        assert_eq!(
            at(7, 61_000, 999_000),
            seconds(60),
            "the wall clock was set"
        );
        assert_eq!(
            at(7, 3_601_000, 51_000),
            seconds(1),
            "a copy of the machine"
        );
        assert_eq!(at(7, 61_000, 49_999), None, "the wall clock was set back");
        assert_eq!(at(8, 61_000, 110_000), None, "another host");
    }
}
