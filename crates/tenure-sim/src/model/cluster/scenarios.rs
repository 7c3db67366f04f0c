//! The checks: a few nodes and faults in each, so that each can be exhaustive.

use std::time::Duration;

use super::{Bounds, KINDS, Kind};

/// The ttl is ten seconds, heartbeats come every three, and the drain timeout is fifteen.
fn bounds(name: &'static str, window_millis: u64, horizon_seconds: u64) -> Bounds {
    Bounds {
        name,
        nodes: 2,
        shards: 1,
        faults: 1,
        settled: true,
        drained: false,
        window: Duration::from_millis(window_millis),
        horizon: Duration::from_secs(horizon_seconds),
        skewed: false,
        hints: false,
        any_order: false,
        kinds: KINDS.to_vec(),
        states_max: u64::MAX,
    }
}

/// The faults with delayed effects.
const LOOSE: [Kind; 6] = [
    Kind::Slow,
    Kind::WorkHangs,
    Kind::Pause,
    Kind::Elect,
    Kind::AssignmentsDeleted,
    Kind::SessionDeleted,
];

/// All checks, for `make model`.
#[must_use]
pub fn all() -> Vec<Bounds> {
    vec![
        Bounds {
            settled: false,
            ..bounds("shards from nothing", 16_000, 32)
        },
        bounds("shards at rest", 16_000, 32),
        Bounds {
            drained: true,
            ..bounds("shards in a drain", 16_000, 32)
        },
        Bounds {
            drained: true,
            skewed: true,
            hints: true,
            ..bounds("shards in a drain, hints", 16_000, 32)
        },
        Bounds {
            nodes: 3,
            shards: 2,
            settled: false,
            ..bounds("shards of three nodes", 7000, 24)
        },
        Bounds {
            nodes: 3,
            shards: 3,
            drained: true,
            ..bounds("shards of three in a drain", 7000, 24)
        },
        Bounds {
            faults: 2,
            settled: false,
            hints: true,
            kinds: LOOSE.to_vec(),
            ..bounds("shards from nothing, two", 150, 8)
        },
        Bounds {
            nodes: 1,
            faults: 2,
            ..bounds("shards of one node, two", 3500, 20)
        },
        Bounds {
            faults: 2,
            ..bounds("shards at rest, two", 0, 18)
        },
        Bounds {
            faults: 2,
            drained: true,
            skewed: true,
            hints: true,
            kinds: LOOSE.to_vec(),
            ..bounds("shards in a drain, two", 0, 18)
        },
        Bounds {
            nodes: 1,
            settled: false,
            any_order: true,
            ..bounds("shards in any order", 0, 18)
        },
    ]
}

/// Checks for rules whose violation takes only a few kinds of faults, but more of them, or later ones, than
/// elsewhere.
#[must_use]
pub fn hunts() -> Vec<Bounds> {
    vec![
        Bounds {
            faults: 2,
            drained: true,
            skewed: true,
            hints: true,
            kinds: vec![Kind::Slow, Kind::Elect],
            ..bounds("shards in a drain, slow looks", 150, 17)
        },
        Bounds {
            faults: 3,
            settled: false,
            hints: true,
            kinds: vec![Kind::Slow, Kind::Drain, Kind::AssignmentsDeleted],
            ..bounds("shards lost, three", 150, 6)
        },
    ]
}

/// Small checks, for the tests.
#[must_use]
pub fn small() -> Vec<Bounds> {
    vec![
        Bounds {
            settled: false,
            ..bounds("shards from nothing", 6500, 18)
        },
        bounds("shards at rest", 6500, 18),
        Bounds {
            drained: true,
            skewed: true,
            hints: true,
            ..bounds("shards in a drain", 6500, 20)
        },
    ]
}
